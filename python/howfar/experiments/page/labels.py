"""Short names of settings, routes and figures, for sentences, tables, charts and cards of pages."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from howfar.experiments.page.findings import (
    MODEL_RANGE_FACTOR,
    AtCpu,
    Crossing,
    OnRoute,
    PageArm,
    PageFindings,
    Route,
)
from howfar.experiments.page.texts import CROSSINGS
from howfar.findings import fill
from howfar.report.figures import UNKNOWN, number
from howfar.services import SERVICES
from howfar.stats.resample import SUFFIX
from howfar.units import format_rate_bps

NOTICED_MS, DEGRADED_MS = 13, 75
"""Delays from which people notice a delay (published with set-up C), and from which the experience is degraded."""
APPLICATIONS = {"php": "PHP", "engine": "engine's page"}
MACHINES = {1: "one", 2: "two"}
_PATH_NAMES = {"socket": "sockets", "tcp": "TCP", "remote": "network", "forwarded-socket": "forwarded"}


def has_several(values: Iterable[object]) -> bool:
    return len(set(values)) > 1


def location_text(arm: PageArm, findings: PageFindings) -> str:
    """Machines and route of an arm: `one, sockets`; `two, network`; if the run has several links `two, network 2 ms`."""
    routes = [other.route for other in findings.arms if other.machines == 2 == arm.machines]
    return f"{MACHINES[arm.machines]}, {route_name(arm.route, routes)}"


def route_name(route: Route, routes: Sequence[Route]) -> str:
    """Name of a route, `network`; among several links with what distinguishes it: `network 1 ms`, `network 2 ms 100mbit`."""
    rtt = f" {format_ns(route.rtt_ns)}" if route.rtt_ns and has_several(other.rtt_ns for other in routes) else ""
    rates = {other.rate_bps for other in routes}
    rate = f" {format_rate_bps(route.rate_bps)}" if route.rate_bps and len(rates) > 1 else ""
    return _PATH_NAMES.get(route.path, route.path) + rtt + rate


def setting_labels(settings: Sequence[OnRoute]) -> list[str]:
    """Labels that distinguish settings, the page first: `heavy, 4 in flight, PHP`; for arms also `+10 ms CPU`."""
    parts_of_labels = [[setting.page for setting in settings]]
    if has_several(setting.threads for setting in settings):
        parts_of_labels.append([in_flight_text(setting.threads) for setting in settings])
    requested = [setting.app_cpu_ns for setting in settings if isinstance(setting, PageArm)]
    if has_several(requested):
        parts_of_labels.append([f"+{format_ns(cpu_ns)} CPU" if cpu_ns else "+0 CPU" for cpu_ns in requested])
    if has_several(setting.application for setting in settings):
        parts_of_labels.append([APPLICATIONS[setting.application] for setting in settings])
    if has_several(setting.connect for setting in settings):
        parts_of_labels.append(
            ["persistent" if setting.connect == "persistent" else "connect per page" for setting in settings]
        )
    return [", ".join(names) for names in zip(*parts_of_labels, strict=True)]


def series_labels(settings: Sequence[AtCpu | Crossing]) -> list[str]:
    """Labels that distinguish series, without the application's CPU: `heavy, 4 in flight`; with several routes `heavy, network
    1 ms`."""
    names, routes = setting_labels(settings), [setting.route for setting in settings]
    if not has_several(routes):
        return names
    return [f"{name}, {route_name(route, routes)}" for name, route in zip(names, routes, strict=True)]


def share_of_pages(share: float) -> str:
    """A share of pages as text: `0`, `< 0.1 %`, `4.2 %`, `100 %`. `0` and `100 %` appear only if they are exact."""
    percent = share * 100
    if share in (0, 1):
        return "100 %" if share else "0"
    if percent < 0.1:
        return "< 0.1 %"
    return f"{percent:.1f} %" if percent < 10 else f"{min(percent, 99):.0f} %"


def format_ns(ns: float) -> str:
    """A duration in milliseconds: `0.2 ms`."""
    return f"{ns / 1e6:g} ms"


def service_label(name: str) -> str:
    """A service by its name: `SQL` for every database, whose own name is in the run's context."""
    return "SQL" if SERVICES[name].php else SERVICES[name].label


def prediction_text(crossing: Crossing, figure: str) -> str:
    """The model's value of a field of a crossing. `12.0 [10.0, 14.5] ms`; `12.0 [< 4.90, > 519] ms` if an end is open; `4.90 ms or
    less`; `90.0 [80.0, 110] ms, beyond what was measured`."""
    value, interval = getattr(crossing, figure), getattr(crossing, f"{figure}{SUFFIX}")
    min_ms, max_ms = crossing.swept_ms[0], crossing.swept_ms[1] * MODEL_RANGE_FACTOR
    if value is None:
        return UNKNOWN
    if interval == (None, value) or (interval is None and value <= min_ms):
        return fill(CROSSINGS["two"], min_ms=number(value))
    text = number(value)
    if interval is not None:
        low = f"< {number(min(min_ms, value))}" if interval[0] is None else number(interval[0])
        high = f"> {number(max_ms)}" if interval[1] is None else number(interval[1])
        text += f" [{low}, {high}]"
    return f"{text} ms" + ("" if min_ms <= value <= crossing.swept_ms[1] else ", beyond what was measured")


def in_flight_text(threads: int) -> str:
    return f"{threads} in flight"


def crossing_text(crossing: Crossing) -> str:
    """The application CPU from which a second machine pays: `38.0 [31.0, 45.0] ms`; `38.0 [31.0, > 64.9] ms` if no measurement closes
    the interval. Without a crossing, what is known instead: `none up to 64.9 ms`."""
    min_ms, max_ms = (number(bound) for bound in crossing.swept_ms)
    if (measured := crossing.measured_ms) is not None:
        if measured.low is None and measured.high is None:
            return fill(CROSSINGS["no interval"], ms=number(measured.value))
        low = f"< {min_ms}" if measured.low is None else number(measured.low)
        high = f"> {max_ms}" if measured.high is None else number(measured.high)
        return fill(CROSSINGS["interval"], ms=number(measured.value), low=low, high=high)
    return fill(CROSSINGS[crossing.always or "unresolved"], min_ms=min_ms, max_ms=max_ms)


def predicted_crossing_text(crossing: Crossing) -> str:
    """The crossing by the model as text: `39.0 ms`, `none`, `4.90 ms or less`. Empty without a model, or if it has several."""
    if crossing.predicted_ms is not None:
        return prediction_text(crossing, "predicted_ms")
    at_most = fill(CROSSINGS["two"], min_ms=number(crossing.swept_ms[0]))
    return {"one": "none", "two": at_most}.get(crossing.predicted_always or "", "")
