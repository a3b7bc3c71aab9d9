"""Short names of settings, routes and figures, as sentences, tables, charts and cards of pages write them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from howfar.experiments.page.findings import (
    BEYOND,
    AtCpu,
    Crossing,
    OnRoute,
    PageArm,
    PageFindings,
    Route,
)
from howfar.stats.estimate import Estimate
from howfar.stats.resample import SUFFIX, within
from howfar.units import format_duration_ns, format_rate_bps

NOTICED_MS, DEGRADED_MS = 13, 75
"""Delays from which people notice them (published with set-up C), and from which the experience is degraded."""
APPLICATIONS = {"php": "PHP", "engine": "engine's page"}
MACHINES = {1: "one", 2: "two"}
_PATHS = {"socket": "sockets", "tcp": "TCP", "remote": "network", "forwarded-socket": "forwarded"}


def several(values: Iterable[object]) -> bool:
    return len(set(values)) > 1


def where(arm: PageArm, findings: PageFindings) -> str:
    """`one, sockets`, `two, network`; with several links `two, network 2ms`."""
    links = [other.route for other in findings.arms if other.machines == 2] if arm.machines == 2 else []
    return f"{MACHINES[arm.machines]}, {route_name(arm.route, links)}"


def route_name(route: Route, among: Sequence[Route]) -> str:
    """`network`; with several links what distinguishes this one: `network 1ms`, `network 2ms 100mbit`."""
    rtt = f" {format_duration_ns(route.rtt_ns)}" if route.rtt_ns and several(each.rtt_ns for each in among) else ""
    rate = f" {format_rate_bps(route.rate_bps)}" if route.rate_bps and several(each.rate_bps for each in among) else ""
    return _PATHS.get(route.path, route.path) + rtt + rate


def setting_names(found: Sequence[OnRoute]) -> list[str]:
    """What distinguishes settings, the page first: `heavy, 4 in flight, PHP`; for arms also `+10ms CPU`."""
    parts = [[each.page for each in found]]
    if several(each.threads for each in found):
        parts.append([in_flight(each.threads) for each in found])
    requested = [each.app_cpu_ns for each in found if isinstance(each, PageArm)]
    if several(requested):
        parts.append([f"+{format_duration_ns(cpu_ns)} CPU" if cpu_ns else "+0 CPU" for cpu_ns in requested])
    if several(each.application for each in found):
        parts.append([APPLICATIONS[each.application] for each in found])
    if several(each.connect for each in found):
        parts.append(["persistent" if each.connect == "persistent" else "connect per page" for each in found])
    return [", ".join(names) for names in zip(*parts, strict=True)]


def series_names(found: Sequence[AtCpu | Crossing]) -> list[str]:
    """What distinguishes them apart from the application's CPU: `heavy, 4 in flight`; with several routes `heavy, network 1ms`."""
    names, routes = setting_names(found), [each.route for each in found]
    if not several(routes):
        return names
    return [f"{name}, {route_name(route, routes)}" for name, route in zip(names, routes, strict=True)]


def share_of_pages(value: float) -> str:
    """`0`, `< 0.1 %`, `4.2 %`, `100 %`: `0` and `100 %` only if they are exact."""
    percent = value * 100
    if value in (0, 1):
        return "100 %" if value else "0"
    if percent < 0.1:
        return "< 0.1 %"
    return f"{percent:.1f} %" if percent < 10 else f"{min(percent, 99):.0f} %"


def milliseconds(value: float) -> str:
    """`9.1`, `0.24`, `152`: at most three digits."""
    size = abs(value)
    return f"{value:.0f}" if size >= 100 else f"{value:.2g}" if size < 10 else f"{value:.3g}"


def with_interval(found: Estimate, form: Callable[[float], str] = milliseconds) -> str:
    """`38 [36, 40]`; `38 (no interval)`."""
    if found.low is None or found.high is None:
        return f"{form(found.value)} (no interval)"
    return within(found.value, (found.low, found.high), form)


def by_model(crossing: Crossing, figure: str) -> str:
    """A `figure` of a crossing by the model, which must exist: `12 [10, 14.5] ms`; `12 [< 4.9, > 519] ms` where an end is open; `4.9
    ms or less`; `90 [80, 110] ms, beyond what was measured`."""
    value, interval = getattr(crossing, figure), getattr(crossing, f"{figure}{SUFFIX}")
    least, most = crossing.swept_ms[0], crossing.swept_ms[1] * BEYOND
    if interval == (None, value) or (interval is None and value <= least):
        return f"{milliseconds(value)} ms or less"
    text = milliseconds(value)
    if interval is not None:
        low = f"< {milliseconds(min(least, value))}" if interval[0] is None else milliseconds(interval[0])
        high = f"> {milliseconds(most)}" if interval[1] is None else milliseconds(interval[1])
        text += f" [{low}, {high}]"
    return f"{text} ms" + ("" if least <= value <= crossing.swept_ms[1] else ", beyond what was measured")


def in_flight(threads: int) -> str:
    return f"{threads} in flight"


def listed(clauses: Sequence[str]) -> str:
    """`a`, `a and b`, `a, b and c`."""
    return " and ".join(part for part in (", ".join(clauses[:-1]), clauses[-1]) if part)


def pays_from(crossing: Crossing) -> str:
    """The application CPU from which a second machine pays: `38 [31, 45] ms`, `38 [31, > 64.9] ms` if no measurement closes the
    interval; without a crossing, what is known instead."""
    least, most = (milliseconds(end) for end in crossing.swept_ms)
    if (found := crossing.measured_ms) is not None:
        if found.low is None and found.high is None:
            return f"{milliseconds(found.value)} ms (no interval)"
        low = f"< {least}" if found.low is None else milliseconds(found.low)
        high = f"> {most}" if found.high is None else milliseconds(found.high)
        return f"{milliseconds(found.value)} [{low}, {high}] ms"
    known = {"one": f"none up to {most} ms", "two": f"{least} ms or less"}
    return known.get(crossing.always or "", f"not resolved between {least} and {most} ms")


def predicted_from(crossing: Crossing) -> str:
    """The crossing by the model as text: `39 ms`, `none`, `4.9 ms or less`. Empty: no model, or it changes more than once."""
    if crossing.predicted_ms is not None:
        return by_model(crossing, "predicted_ms")
    known = {"one": "none", "two": f"{milliseconds(crossing.swept_ms[0])} ms or less"}
    return known.get(crossing.predicted_always or "", "")


def prediction_note(crossing: Crossing) -> str:
    """The model's crossing in brackets, behind what was measured. Empty: no model, or it changes more than once."""
    predicted = predicted_from(crossing)
    alike = crossing.measured_ms is None and crossing.always and crossing.always == crossing.predicted_always
    return " (as predicted)" if predicted and alike else f" (predicted: {predicted})" if predicted else ""
