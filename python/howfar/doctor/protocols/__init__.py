"""How to speak to each kind of server: connect, log in, ping, read counters. Requests only read.

PyMySQL logs in to MySQL, pg8000 to PostgreSQL. The other protocols are written here: client libraries neither find out what an
unknown port speaks nor bound a hostile answer, and a ping is timed around one send and one recv.
"""

from __future__ import annotations

from howfar.doctor.findings import Kind
from howfar.doctor.protocols import caches, mysql, postgresql
from howfar.doctor.protocols.session import ServerProtocol

PROTOCOLS: dict[Kind, ServerProtocol] = {
    Kind.MYSQL: mysql.Mysql(),
    Kind.REDIS: caches.Redis(),
    Kind.MEMCACHED: caches.Memcached(),
    Kind.POSTGRESQL: postgresql.Postgresql(),
}
