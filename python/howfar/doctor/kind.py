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
        """The name to show where the server itself has not said what it is."""
        return SERVICES[self].label if self.counts == "transactions" else self.value

    @property
    def names_folder(self) -> bool:
        """Clients name the directory of its socket, and the port that the socket's name ends with."""
        return SERVICES[self].names_folder

    @property
    def knows_accounts(self) -> bool:
        """Whether the server's package lets an account of the machine in over the socket, by its name."""
        return self is Kind.POSTGRESQL

    @property
    def counts(self) -> str:
        """What the server's counter of work counts."""
        return "transactions" if self is Kind.POSTGRESQL else "statements"
