"""How each kind of server is spoken to: dial, log in, ping, ask for counters. One file for each; only reading requests."""

from __future__ import annotations

from howfar.doctor.findings import Kind
from howfar.doctor.protocols import memcached, mysql, redis
from howfar.doctor.protocols.session import ServerProtocol

PROTOCOLS: dict[Kind, ServerProtocol] = {
    Kind.MYSQL: mysql.Mysql(),
    Kind.REDIS: redis.Redis(),
    Kind.MEMCACHED: memcached.Memcached(),
}
