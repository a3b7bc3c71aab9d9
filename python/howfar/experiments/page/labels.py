"""Short names of settings, routes and figures, as tables, charts and cards of pages write them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from howfar.experiments.page.findings import (
    Crossing,
    PageArm,
    PageChoice,
    PageFindings,
    Route,
    Setting,
    route_of,
    swept_setting,
)
from howfar.experiments.page.sentences import in_flight
from howfar.report.figures import UNKNOWN, number
from howfar.stats.estimate import Estimate
from howfar.units import format_duration_ns, format_rate_bps

NOTICED_MS, DEGRADED_MS = 13, 75
"""People notice a delay from the first on; from the second on the experience is degraded."""
APPLICATIONS = {"php": "PHP", "engine": "engine's page"}
SERVICES = {"mysql": "MySQL", "redis": "Redis", "memcached": "Memcached"}
MACHINES = {1: "one", 2: "two"}
_PATHS = {"socket": "sockets", "tcp": "TCP", "remote": "network", "forwarded-socket": "forwarded"}


def several(values: Iterable[object]) -> bool:
    return len(set(values)) > 1


def where(arm: PageArm, findings: PageFindings) -> str:
    """`one, sockets`, `two, network`; with several links `two, network 2ms`."""
    routes = [route_of(other) for other in findings.arms if other.machines == 2]
    return f"{MACHINES[arm.machines]}, {_PATHS.get(arm.path, arm.path)}{_link(route_of(arm), routes) if arm.machines == 2 else ''}"


def route_name(found: PageChoice | Crossing, among: Sequence[PageChoice | Crossing]) -> str:
    """`network`; with several links `network 1ms`."""
    return _PATHS.get(found.path, found.path) + _link(route_of(found), [route_of(each) for each in among])


def _link(route: Route, among: Sequence[Route]) -> str:
    """What distinguishes its link from the others: ` 2ms`, ` 2ms 100mbit`."""
    rtt = f" {format_duration_ns(route.rtt_ns)}" if route.rtt_ns and several(each.rtt_ns for each in among) else ""
    rate = f" {format_rate_bps(route.rate_bps)}" if route.rate_bps and several(each.rate_bps for each in among) else ""
    return rtt + rate


def setting_names(settings: Sequence[Setting]) -> list[str]:
    """What distinguishes settings, the page first: `heavy, 4 in flight, PHP`."""
    found = []
    for setting in settings:
        parts = [setting.page]
        if several(each.threads for each in settings):
            parts.append(in_flight(setting.threads))
        if several(each.app_cpu_ns for each in settings):
            parts.append(f"+{format_duration_ns(setting.app_cpu_ns)} CPU" if setting.app_cpu_ns else "+0 CPU")
        if several(each.application for each in settings):
            parts.append(APPLICATIONS[setting.application])
        if several(each.connect for each in settings):
            parts.append("connect a page" if setting.connect != "persistent" else "persistent")
        found.append(", ".join(parts))
    return found


def series_names(found: Sequence[PageChoice | Crossing]) -> list[str]:
    """What distinguishes them apart from the application's CPU: `heavy, 4 in flight`; with several routes `heavy, network 1ms`."""
    names = setting_names([swept_setting(each) for each in found])
    if not several(route_of(each) for each in found):
        return names
    return [f"{name}, {route_name(each, found)}" for name, each in zip(names, found, strict=True)]


def with_limits(found: Estimate) -> str:
    """`105 [102, 108]`, or the value alone if there is no interval."""
    if found.low is None or found.high is None:
        return number(found.value)
    return f"{number(found.value)} [{number(max(found.low, 0.0))}, {number(found.high)}]"


def share_of_pages(value: float) -> str:
    """`0`, `< 0.1 %`, `4.2 %`, `100 %`: all or none only where it is."""
    percent = value * 100
    if value in (0, 1):
        return "100 %" if value else "0"
    if percent < 0.1:
        return "< 0.1 %"
    return f"{percent:.1f} %" if percent < 10 else f"{min(percent, 99):.0f} %"


def path_cpu_ms(arm: PageArm) -> float:
    """CPU a page of everything that takes part; the link's emulator is the instrument and is left out."""
    return sum(cpu for role, cpu in arm.cpu_ms.items() if role != "link")


def busy(arm: PageArm) -> str:
    """`99 %`; of two machines `41 %, 87 %`."""
    found = [arm.busy[machine] for machine in ("both", "application", "database") if machine in arm.busy]
    return ", ".join(f"{value * 100:.0f} %" for value in found) or UNKNOWN
