"""How each kind of server is spoken to: connect, log in, ping, read counters. One file a protocol; requests only read.

PyMySQL logs in to MySQL. RESP and memcached's text protocol are written here: what takes the code is finding out what an
unknown port speaks and reading a hostile answer within bounds, which client libraries do not do, and a ping is timed around
one send and one recv.
"""

from __future__ import annotations

from howfar.doctor.findings import Kind
from howfar.doctor.protocols import memcached, mysql, redis
from howfar.doctor.protocols.session import ServerProtocol

PROTOCOLS: dict[Kind, ServerProtocol] = {
    Kind.MYSQL: mysql.Mysql(),
    Kind.REDIS: redis.Redis(),
    Kind.MEMCACHED: memcached.Memcached(),
}
