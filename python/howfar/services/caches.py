"""Redis, Valkey and Memcached."""

from __future__ import annotations

from howfar.services.service import KnownService

REDIS = KnownService(
    name="redis",
    label="Redis",
    kinds=("redis", "valkey"),
    port=6379,
    programs=("redis-server", "valkey-server", "keydb-server"),
    sockets=("/run/redis/redis-server.sock", "/run/redis/redis.sock", "/run/valkey/valkey.sock", "/tmp/redis.sock"),
    socket_names=("redis", "valkey"),
    files=("/etc/redis/redis.conf", "/etc/valkey/valkey.conf", "/etc/redis.conf"),
    file_label="redis.conf",
    socket_lines=("unixsocket {path}",),
    mode_lines=("unixsocketperm {mode}",),
    client_lines=(
        "# redis.conf; clients must be in its group",
        "unixsocket /run/redis/redis-server.sock",
        "unixsocketperm 770",
        "# PHP, phpredis",
        "$redis->pconnect('/run/redis/redis-server.sock');",
    ),
    fewer_round_trips="MGET instead of many GETs, pipelines",
)
MEMCACHED = KnownService(
    name="memcached",
    label="Memcached",
    kinds=("memcached",),
    port=11211,
    programs=("memcached", "memcached-debug"),
    sockets=("/run/memcached/memcached.sock", "/tmp/memcached.sock"),
    socket_names=("memcache",),
    files=("/etc/memcached.conf",),
    file_label="memcached.conf (one option per line)",
    socket_lines=("-s {path}",),
    mode_lines=("-a 0{mode}",),
    client_lines=(
        "# memcached.conf; -s disables its port",
        "-s /run/memcached/memcached.sock",
        "-a 0770",
        "# PHP",
        "$memcached->addServer('/run/memcached/memcached.sock', 0);",
    ),
    fewer_round_trips="one get for many keys",
)
