"""The services that a page or a workload of keys refers to."""

from __future__ import annotations

from collections.abc import Iterable

from howfar.contract.messages import KeyValue, PageScript, Service, ServiceName


def is_redis(load: KeyValue) -> bool:
    return load.protocol in ("resp2", "resp3")


def services_of(script: PageScript) -> dict[ServiceName, Service]:
    """Services that a page names, in the order of their receipts."""
    by_name: tuple[tuple[ServiceName, Service | None], ...] = (
        ("mysql", script.mysql),
        ("postgresql", script.postgresql),
        ("redis", script.redis),
        ("memcached", script.memcached),
    )
    return {name: service for name, service in by_name if service is not None}


def sql_of(names: Iterable[ServiceName]) -> ServiceName | None:
    """The service that statements are sent to."""
    return next((name for name in names if name not in ("redis", "memcached")), None)
