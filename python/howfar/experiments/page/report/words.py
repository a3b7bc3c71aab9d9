"""Pages in the words of reports: machines, settings, flips; and which of a run's settings stand on the first screen. One place, so
that terminal, page and Markdown agree."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from howfar.experiments.page.findings import Crossing, PageArm, PageChoice, PageFindings, TurnCost
from howfar.experiments.page.sentences import milliseconds as milliseconds
from howfar.report import figures
from howfar.stats.estimate import Estimate
from howfar.units import format_duration_ns, format_rate_bps

NOTICED_MS, DEGRADED_MS = 13, 75
"""People notice a delay from the first on; from the second on the experience is degraded."""

SHORT = {"socket": "sockets", "tcp": "TCP", "remote": "network", "forwarded-socket": "forwarded"}
APPLICATIONS = {"php": "PHP", "engine": "engine's page"}
SERVICES = {"mysql": "MySQL", "redis": "Redis", "memcached": "Memcached"}
MACHINES = {1: "one", 2: "two"}
INSTRUMENT = "link"
"""The role whose CPU is the emulator's: the instrument's own, in no sum."""


@dataclass(frozen=True)
class Setting:
    """All that arms which are compared with each other have in common: they differ in the path alone."""

    page: str
    application: str
    connect: str
    app_cpu_ns: int
    threads: int


def setting_of(arm: PageArm | PageChoice) -> Setting:
    return Setting(arm.page, arm.application, arm.connect, arm.app_cpu_ns, arm.threads)


def arms_of(findings: PageFindings, setting: Setting) -> list[PageArm]:
    """One machine first, in the order of the run."""
    found = [arm for arm in findings.arms if setting_of(arm) == setting]
    return sorted(found, key=lambda arm: arm.machines)


def pages(findings: PageFindings) -> list[str]:
    return list(dict.fromkeys(arm.page for arm in findings.arms))


def chief(findings: PageFindings) -> list[Setting]:
    """Of each page the setting of the first screen: one that was measured on one machine and on two if any was, the real application
    before the engine's, connections that stay, most pages in flight, nothing computed beyond the page's own needs."""
    return [found for page in pages(findings) if (found := _chief_of(findings, page)) is not None]


def _chief_of(findings: PageFindings, page: str) -> Setting | None:
    machines: dict[Setting, set[int]] = {}
    for arm in findings.arms:
        if arm.page == page:
            machines.setdefault(setting_of(arm), set()).add(arm.machines)
    return min(
        machines,
        key=lambda setting: (
            len(machines[setting]) < 2,
            setting.application != "php",
            setting.connect != "persistent",
            setting.app_cpu_ns,
            -setting.threads,
        ),
        default=None,
    )


def alone(findings: PageFindings, setting: Setting) -> Setting:
    """The same with the fewest pages in flight."""
    fewest = min(
        arm.threads
        for arm in findings.arms
        if setting_of(arm)
        == Setting(setting.page, setting.application, setting.connect, setting.app_cpu_ns, arm.threads)
    )
    return Setting(setting.page, setting.application, setting.connect, setting.app_cpu_ns, fewest)


def chief_crossings(findings: PageFindings) -> list[Crossing]:
    """Of each page and way to a second machine that of its chief setting: its number of pages in flight if that was swept, else the
    most that was."""
    found = []
    for setting in chief(findings):
        same = [
            crossing
            for crossing in findings.crossings
            if (crossing.page, crossing.application, crossing.connect)
            == (setting.page, setting.application, setting.connect)
        ]
        for way in dict.fromkeys(way_of(crossing) for crossing in same):
            mine = [crossing for crossing in same if way_of(crossing) == way]
            found.append(max(mine, key=lambda crossing: (crossing.threads == setting.threads, crossing.threads)))
    return found


def chief_choices(findings: PageFindings) -> list[PageChoice]:
    """Of each page's chief application and connections, at any CPU and any number in flight."""
    wanted = {(setting.page, setting.application, setting.connect) for setting in chief(findings)}
    return [choice for choice in findings.choices if (choice.page, choice.application, choice.connect) in wanted]


def where(arm: PageArm, findings: PageFindings) -> str:
    """`one, sockets`, `two, network`, with several links `two, network 2ms`: as short as a row's name needs."""
    links = [(other.rtt_ns, other.rate_bps) for other in findings.arms if other.machines == 2]
    return f"{MACHINES[arm.machines]}, {SHORT.get(arm.path, arm.path)}{_link(arm, links) if arm.machines == 2 else ''}"


Link = tuple[int | None, int | None]
"""As it was asked for: RTT and rate."""
Way = tuple[str, int | None, int | None]


def way_of(found: PageArm | PageChoice | Crossing) -> Way:
    """What tells two arms apart that differ in nothing but where a page's servers are."""
    return found.path, found.rtt_ns, found.rate_bps


def _link(found: PageArm | PageChoice | Crossing, among: Sequence[Link]) -> str:
    """What tells its link from the others: ` 2ms`, ` 2ms 100mbit`."""
    rtts, rates = zip(*among, strict=True)
    at = f" {format_duration_ns(found.rtt_ns)}" if found.rtt_ns and several(rtts) else ""
    return at + (f" {format_rate_bps(found.rate_bps)}" if found.rate_bps and several(rates) else "")


def by_way(found: PageChoice | Crossing, among: Sequence[PageChoice | Crossing]) -> str:
    """The way to its second machine: `network`, where there are several links `network 1ms`."""
    links = [(each.rtt_ns, each.rate_bps) for each in among]
    return f"{SHORT.get(found.path, found.path)}{_link(found, links)}"


def series(found: Sequence[PageChoice | Crossing]) -> list[str]:
    """What tells them apart but for the application's CPU: `heavy, 4 in flight`, with several ways to a second machine
    `heavy, network 1ms`."""
    settings = [Setting(each.page, each.application, each.connect, 0, each.threads) for each in found]
    apart = several(way_of(each) for each in found)
    return [
        name + (f", {by_way(each, found)}" if apart else "") for name, each in zip(names(settings), found, strict=True)
    ]


def cost_of(arm: PageArm | None, service: str) -> TurnCost | None:
    return next((cost for cost in arm.turns if cost.service == service), None) if arm else None


def in_flight(threads: int) -> str:
    """Of `pages`, `4 in flight`."""
    return f"{threads} in flight"


def ms(value: float | None) -> str:
    return figures.number(value)


def with_limits(found: Estimate | None) -> str:
    """`105 [102, 108]`, the value alone where there is no interval."""
    if found is None:
        return figures.UNKNOWN
    if found.low is None or found.high is None:
        return figures.number(found.value)
    return f"{figures.number(found.value)} [{figures.number(max(found.low, 0.0))}, {figures.number(found.high)}]"


def share(value: float) -> str:
    """Of pages: `0`, `< 0.1 %`, `4.2 %`, `100 %`."""
    percent = value * 100
    if value in (0, 1):
        return "100 %" if value else "0"
    if percent < 0.1:
        return "< 0.1 %"
    return f"{percent:.1f} %" if percent < 10 else f"{min(percent, 99):.0f} %"  # 100 %: every page


def path_cpu_ms(arm: PageArm) -> float:
    """CPU a page of all that take part; the emulator of the link does not."""
    return sum(cpu for role, cpu in arm.cpu_ms.items() if role != INSTRUMENT)


def flips_at(crossing: Crossing) -> str:
    """`38 [31, 45] ms`, `38 [31, > 64.9] ms` where nothing measured closes the interval; without a crossing what is known instead."""
    least, most = crossing.swept_ms
    if (found := crossing.measured_ms) is not None:
        if found.low is None and found.high is None:
            return f"{milliseconds(found.value)} ms (no interval)"
        low = f"< {milliseconds(least)}" if found.low is None else milliseconds(found.low)
        high = f"> {milliseconds(most)}" if found.high is None else milliseconds(found.high)
        return f"{milliseconds(found.value)} [{low}, {high}] ms"
    match crossing.always:
        case "one":
            return f"not up to {milliseconds(most)} ms"
        case "two":
            return f"below {milliseconds(least)} ms"
        case None:
            return "not resolved"


def foreseen_at(crossing: Crossing) -> str:
    """`39 ms`; `nowhere`, or with which two are ahead from the least on; `-` without a model."""
    if crossing.predicted_ms is not None:
        return f"{milliseconds(crossing.predicted_ms)} ms"
    match crossing.predicted_always:
        case "one":
            return "nowhere"
        case "two":
            return f"below {milliseconds(crossing.swept_ms[0])} ms"
        case None:
            return figures.UNKNOWN


def several(values: Iterable[object]) -> bool:
    return len(set(values)) > 1


def names(settings: Sequence[Setting]) -> list[str]:
    """What tells settings apart, the page first: `heavy, 4 in flight, PHP`."""
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
