"""The kinds of server that are examined."""

from __future__ import annotations

from enum import StrEnum

from howfar.services import SERVICES


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
    def names_folder(self) -> bool:
        """Whether clients give the directory of its socket, and the port with which the socket's name ends, instead of its path."""
        return SERVICES[self].names_folder

    @property
    def knows_accounts(self) -> bool:
        """Whether the server, as its package sets it up, lets a system account log in over the socket by its name."""
        return self is Kind.POSTGRESQL

    @property
    def counts(self) -> str:
        """The unit of the server's counter of work."""
        return "transactions" if self is Kind.POSTGRESQL else "statements"
