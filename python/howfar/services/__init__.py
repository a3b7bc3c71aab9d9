"""The services that applications query. Each has one module and one line here."""

from __future__ import annotations

from howfar.services.caches import MEMCACHED, REDIS
from howfar.services.mysql import MYSQL
from howfar.services.postgresql import POSTGRESQL
from howfar.services.service import KnownService, ServiceName, SqlProtocol

SERVICES: dict[str, KnownService] = {service.name: service for service in (MYSQL, POSTGRESQL, REDIS, MEMCACHED)}
"""The services by name, in the order in which tables list them."""


def service_of(kind: str) -> KnownService:
    """The service that a kind of server provides; MySQL's for an unknown kind."""
    return next((service for service in SERVICES.values() if kind in service.kinds), MYSQL)


__all__ = ["SERVICES", "KnownService", "ServiceName", "SqlProtocol", "service_of"]
