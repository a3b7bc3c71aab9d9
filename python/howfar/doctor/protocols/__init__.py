"""The protocol of each kind of server: connect, log in, ping, read counters. Requests only read.

PyMySQL logs in to MySQL, pg8000 to PostgreSQL. Redis's and Memcached's protocols are implemented here: client libraries do not detect
the protocol of an unknown port, and a ping must be timed around one send and one recv.
"""

from __future__ import annotations

from howfar.doctor.findings import Kind
from howfar.doctor.protocols import caches, mysql, postgresql
from howfar.doctor.protocols.session import GuardedProtocol, ServerProtocol

_BY_KIND: dict[Kind, ServerProtocol] = {
    Kind.MYSQL: mysql.Mysql(),
    Kind.REDIS: caches.Redis(),
    Kind.MEMCACHED: caches.Memcached(),
    Kind.POSTGRESQL: postgresql.Postgresql(),
}
PROTOCOLS = {kind: GuardedProtocol(kind, protocol) for kind, protocol in _BY_KIND.items()}
