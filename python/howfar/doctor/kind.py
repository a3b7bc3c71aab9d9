"""The kinds of server that are examined, the states of their listeners, and the names of their products."""

from __future__ import annotations

import re
from enum import StrEnum
from typing import Literal

from howfar.services import SERVICES, ServiceName

Tls = Literal["none", "offered", "always", "unknown"]
"""TLS support of a listener."""
ListenerState = Literal["works", "gone", "elsewhere", "unseen"]
"""What answers at a socket's path: the server, nothing, another process, or unknown."""


class Kind(StrEnum):
    """What a server speaks."""

    MYSQL = "mysql"
    REDIS = "redis"
    MEMCACHED = "memcached"
    POSTGRESQL = "postgresql"

    @property
    def shown(self) -> str:
        """The name to show if the server itself has not reported a name."""
        return SERVICES[self].label if self.counts == "transactions" else self.value

    @property
    def names_socket_directory(self) -> bool:
        """Whether clients give the directory of its socket, and the port with which the socket's name ends, instead of its path."""
        return SERVICES[self].names_socket_directory

    @property
    def knows_accounts(self) -> bool:
        """Whether the server, as its package sets it up, lets a system account log in over the socket by its name."""
        return self is Kind.POSTGRESQL

    @property
    def counts(self) -> str:
        """The unit of the server's counter of work."""
        return "transactions" if self is Kind.POSTGRESQL else "statements"


def product_name(service: ServiceName, version: str, comment: str = "") -> str:
    """Product and version of a server with SQL: `10.11.19-MariaDB-0+deb12u1` becomes `MariaDB 10.11.19`."""
    brand = SERVICES[service].label
    if service == "mysql":
        text = f"{version} {comment}".lower()
        brand = next((name for name in ("MariaDB", "Percona Server") if name.lower().split()[0] in text), brand)
    if brand == "MariaDB":
        version = version.removeprefix("5.5.5-")  # MariaDB prepends it for old replicas
    number = re.match(r"[\w.]+", version)
    return f"{brand} {number.group() if number else version}".rstrip()
