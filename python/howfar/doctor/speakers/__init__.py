"""How each kind of server is spoken to: dial, log in, ping, ask for counters. One file for each; only reading requests."""

from __future__ import annotations

from howfar.doctor.findings import Kind
from howfar.doctor.speakers import memcached, mysql, redis
from howfar.doctor.speakers.session import Speaker

SPEAKERS: dict[Kind, Speaker] = {
    Kind.MYSQL: mysql.Mysql(),
    Kind.REDIS: redis.Redis(),
    Kind.MEMCACHED: memcached.Memcached(),
}
