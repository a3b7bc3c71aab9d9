"""What a run of pages found: one machine or two, where the answer flips, and how well a model predicts it.

The types are public in the report's JSON; `analysis.py` makes them. A *page* is one request to the application. *Pages in flight* is
the factor `threads`: the number of visitors, each of which asks for its next page when it has the last one. One machine: the paths
`socket` and `tcp`; two machines: all others. `turns` counts round trips.

Below the types: which of a run's settings are the *headline* of a page, for the answer, the advice and the first screen.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

from howfar.stats.estimate import Estimate, Part

Application = Literal["php", "engine"]
"""A real one, or the engine's own run of the same round trips."""
Machines = Literal[1, 2]
Better = Literal["one", "two", "not resolved"]


class TurnCost(Part):
    """Round trips to one service in one arm, by the application's own clock. With several pages in flight, this includes waiting for
    each other."""

    service: str
    turns: float
    """A page."""
    mean_us: float
    """Of a round trip, from the first byte sent to the last byte read."""
    connects: float
    """A page."""
    connect_us: float | None
    """None: connections are kept."""
    bytes_to_server: float | None
    bytes_to_client: float | None
    """Of the protocol, a page. None: a real application does not count them."""


class PageArm(Part):
    """One arm: a page, an application, a path, application CPU, and pages in flight."""

    arm: str
    page: str
    application: Application
    path: str
    machines: Machines
    connect: str
    app_cpu_ns: int
    """Requested in addition to what the page needs anyway."""
    threads: int
    pages_per_s: Estimate
    page_ms: Estimate
    """Mean time of a page: pages in flight / pages a second."""
    p50_ms: float
    p95_ms: float
    p99_ms: float
    over_noticed: float
    """Share of pages that took longer than people notice (13 ms)."""
    over_degraded: float
    """Share that took longer than 75 ms, where the experience is degraded."""
    cpu_ms: dict[str, float]
    """CPU a page by role: `application` (PHP, or the engine that runs the script), `visitor`, `server`, `redis`, `memcached`,
    `forwarder`, `link`."""
    own_cpu_ms: float | None
    """What the application itself reports. None: it does not."""
    turns: tuple[TurnCost, ...]
    busy: dict[str, float]
    """Utilisation of each machine's CPUs: `application` and `database`; one machine: `both`."""
    rtt_ns: int | None = None
    """As requested of the link. None: no link."""
    rate_bps: int | None = None
    """As requested of the link."""
    rtt_ms: float | None
    """Of the link at rest. None: no link."""
    predicted_p50_ms: float | None
    """By the model, from other arms only. None: an arm that the model is built from."""
    predicted_error: float | None
    """predicted / measured - 1."""


class PageChoice(Part):
    """One machine or two, for one page at one level of application CPU and of pages in flight."""

    page: str
    connect: str
    application: Application
    app_cpu_ns: int
    app_cpu_total_ms: float
    """What the application computes for a page in all, its own needs included, as measured."""
    threads: int
    path: str
    """To the second machine."""
    rtt_ns: int | None = None
    """As requested of its link. None: the plan does not say."""
    rate_bps: int | None = None
    two_over_one: Estimate
    """Pages a second with two machines over one with sockets, paired by block."""
    tcp_over_socket: Estimate | None
    """One machine: loopback TCP over sockets."""
    better: Better
    predicted: float | None
    """`two_over_one` by the model."""


class Crossing(Part):
    """Where the second machine begins to pay, as application CPU a page grows."""

    page: str
    connect: str
    application: Application
    threads: int
    path: str
    """To the second machine."""
    rtt_ns: int | None = None
    """As requested of its link. None: the plan does not say."""
    rate_bps: int | None = None
    measured_ms: Estimate | None
    """Total application CPU a page where both are equal. None: no crossing within what was measured."""
    always: Literal["one", "two"] | None
    """Where there is none: which one is better at every level, resolved from 1 and beyond the noise floor."""
    predicted_ms: float | None
    """The same by the model. None: the model sees no crossing in its range, or there is no model (`curve_ms` is empty)."""
    predicted_always: Literal["one", "two"] | None = None
    """Where the model sees none: which one it says is better throughout. None: there is no model."""
    swept_ms: tuple[float, float]
    """Least and most total application CPU that was measured."""
    curve_ms: tuple[float, ...]
    curve_ratio: tuple[float, ...]
    """The model's two over one, at each value of `curve_ms`."""
    without_link_cpu_ms: float | None = None
    """The model's crossing if the emulated link took no CPU from the machines. Where two machines would then be ahead throughout: the
    least that the application computes."""
    half_turns_ms: float | None = None
    """The model's crossing if the page did the same with half as many round trips; the same rule."""


class RouteError(Part):
    """The model's error on one route."""

    path: str
    rtt_ns: int | None
    """As requested of its link. None: no link."""
    arms: int
    mean_error: float
    """Of absolute errors."""
    worst_error: float


class PageModel(Part):
    """The model's error on arms that it is not built from."""

    arms: int
    mean_error: float | None
    worst_error: float | None
    worst_arm: str | None
    within_bar: bool | None
    """Every p50 within 10 %."""
    by_way: tuple[RouteError, ...] = ()
    impossible: tuple[str, ...] = ()
    """Arms without a prediction, because a single page that the model would be built from was faster than its parts can be."""


class PageFindings(Part):
    arms: tuple[PageArm, ...]
    choices: tuple[PageChoice, ...]
    crossings: tuple[Crossing, ...]
    model: PageModel
    """Of real pages, predicted from the engine's page on each path and the real page on sockets."""
    scripts: dict[str, str]
    """Each page in a line: its round trips."""
    noise_floor: float | None = None
    """Of throughput, in this session; a smaller difference is not resolved."""
    published: tuple[tuple[str, float, float, float | None], ...]
    """Of set-up C: the page, its ms on two machines and on one, and our two over one for the corresponding page."""
    sentences: tuple[str, ...]
    """The findings in text; the first sentence answers "one machine or two?"."""


# ---------------------------------------------------------------- settings, routes and headlines


class Route(NamedTuple):
    """The path, and the link that it crosses, as requested."""

    path: str
    rtt_ns: int | None
    rate_bps: int | None


@dataclass(frozen=True)
class Setting:
    """What arms that are compared with each other have in common: they differ in the route alone."""

    page: str
    application: str
    connect: str
    app_cpu_ns: int
    threads: int

    @property
    def subject(self) -> tuple[str, str, str]:
        """Page, application and connections: all that is not swept."""
        return self.page, self.application, self.connect

    @property
    def rank(self) -> tuple[bool, bool, int, int]:
        """The headline is the least: real application, kept connections, nothing computed in addition, most pages in flight."""
        return self.application != "php", self.connect != "persistent", self.app_cpu_ns, -self.threads


def setting_of(of: PageArm | PageChoice) -> Setting:
    return Setting(of.page, of.application, of.connect, of.app_cpu_ns, of.threads)


def swept_setting(of: PageChoice | Crossing) -> Setting:
    """The setting without its application CPU, which a crossing sweeps."""
    return Setting(of.page, of.application, of.connect, 0, of.threads)


def route_of(of: PageArm | PageChoice | Crossing) -> Route:
    return Route(of.path, of.rtt_ns, of.rate_bps)


_PLAINEST = ("socket", "tcp", "remote", "forwarded-socket")


def route_rank(of: PageArm | PageChoice) -> tuple[int, int, int]:
    """The headline is the least: the plainest path, the shortest link, the fastest."""
    path = _PLAINEST.index(of.path) if of.path in _PLAINEST else len(_PLAINEST)
    return path, of.rtt_ns or 0, -(of.rate_bps or 0)


def headline_choices(choices: Iterable[PageChoice]) -> list[PageChoice]:
    """One of each page, in the order of the plan."""
    found: dict[str, PageChoice] = {}
    for choice in choices:
        known = found.get(choice.page)
        if known is None or _choice_rank(choice) < _choice_rank(known):
            found[choice.page] = choice
    return list(found.values())


def _choice_rank(choice: PageChoice) -> tuple[object, ...]:
    return setting_of(choice).rank, route_rank(choice)


def pair_of(arms: Iterable[PageArm], choice: PageChoice) -> tuple[PageArm, PageArm] | None:
    """What a choice compares: one machine with sockets, and two."""
    alike = [arm for arm in arms if setting_of(arm) == setting_of(choice)]
    one = next((arm for arm in alike if arm.path == "socket"), None)
    two = next((arm for arm in alike if route_of(arm) == route_of(choice)), None)
    return None if one is None or two is None else (one, two)


def crossing_of(crossings: Iterable[Crossing], choice: PageChoice) -> Crossing | None:
    """The crossing that a choice is a level of."""
    wanted = swept_setting(choice), route_of(choice)
    return next((each for each in crossings if (swept_setting(each), route_of(each)) == wanted), None)


def headline_settings(findings: PageFindings) -> list[Setting]:
    """One of each page: that of its headline choice, else the least by rank, first of those that both one and two machines have."""
    chosen = {setting_of(choice) for choice in headline_choices(findings.choices)}
    machines: dict[Setting, set[int]] = {}
    for arm in findings.arms:
        machines.setdefault(setting_of(arm), set()).add(arm.machines)
    found: dict[str, Setting] = {}
    for setting in sorted(machines, key=lambda each: (each not in chosen, len(machines[each]) < 2, each.rank)):
        found.setdefault(setting.page, setting)
    return [found[page] for page in dict.fromkeys(arm.page for arm in findings.arms)]


def arms_of(findings: PageFindings, setting: Setting) -> list[PageArm]:
    """One machine first, in the order of the run."""
    return sorted((arm for arm in findings.arms if setting_of(arm) == setting), key=lambda arm: arm.machines)


def fewest_in_flight(findings: PageFindings, setting: Setting) -> Setting:
    """The same setting with the fewest pages in flight that were measured."""
    return min(
        (found for arm in findings.arms if replace(found := setting_of(arm), threads=setting.threads) == setting),
        key=lambda found: found.threads,
    )
