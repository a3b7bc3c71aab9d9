"""What each service's turns cost a page, as the application's own clock saw them: the engine's by its histograms, PHP's by what its
pages told."""

from __future__ import annotations

from howfar.experiments.page.arms import PageTrials
from howfar.experiments.page.findings import TurnCost

SERVICES = ("mysql", "redis", "memcached")


def turn_costs(arm: PageTrials) -> tuple[TurnCost, ...]:
    """Of each service that the pages used, in the order of the contract."""
    found = (_told(arm, service) or _timed(arm, service) for service in SERVICES)
    return tuple(cost for cost in found if cost is not None)


def turns_a_page(arm: PageTrials) -> float | None:
    """Of all services. None: nobody counted them."""
    told = [turns for service in SERVICES if (turns := arm.told(f"{service}_turns")) is not None]
    if told:
        return sum(told)
    counted = arm.a_page(lambda each: each.turns)
    return counted if arm.application == "engine" and counted > 0 else None


def _told(arm: PageTrials, service: str) -> TurnCost | None:
    turns, spent_ns = arm.told(f"{service}_turns"), arm.told(f"{service}_ns")
    if not turns or spent_ns is None:
        return None
    connects, connecting_ns = arm.told(f"{service}_connects") or 0.0, arm.told(f"{service}_connect_ns")
    return TurnCost(
        service=service,
        turns=turns,
        mean_us=spent_ns / turns / 1e3,
        connects=connects,
        connect_us=connecting_ns / connects / 1e3 if connects and connecting_ns is not None else None,
        bytes_to_server=None,
        bytes_to_client=None,
    )


def _timed(arm: PageTrials, service: str) -> TurnCost | None:
    turns, mean_us = _histogram(arm, f"turn.{service}")
    if not turns:
        return None
    connects, connect_us = _histogram(arm, f"connect.{service}")
    counted = [record for each in arm.measured for record in each.services if record.service == service]
    return TurnCost(
        service=service,
        turns=turns,
        mean_us=mean_us,
        connects=connects,
        connect_us=connect_us if connects else None,
        bytes_to_server=sum(record.bytes_to_server for record in counted) / arm.pages if counted else None,
        bytes_to_client=sum(record.bytes_to_client for record in counted) / arm.pages if counted else None,
    )


def _histogram(arm: PageTrials, kind: str) -> tuple[float, float]:
    """How many a page, and their mean in microseconds."""
    records = [record for each in arm.measured for record in each.histograms if record.kind == kind]
    count = sum(record.count for record in records)
    total_ns = sum(record.mean_ns * record.count for record in records)
    return count / arm.pages, total_ns / count / 1e3 if count else 0.0
