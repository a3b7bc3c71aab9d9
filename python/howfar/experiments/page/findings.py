"""Findings of a run about pages: one machine or two, where the answer changes, and how well a model predicts it.

They are public in the report's JSON; `analysis.py` creates them. A *page* is one request to the application. *Pages in flight* is the
factor `threads`: the number of visitors, each of which requests its next page when it has received the last one. The paths `socket`
and `tcp` are on one machine; all others lead to a second machine. `turns` counts round trips. The *headline* setting of a page is the
one that the report quotes as the answer for this page.
"""

from __future__ import annotations

from collections import Counter
from typing import Literal, NamedTuple

from pydantic import Field

from howfar.stats.estimate import Estimate, Part
from howfar.stats.intervals import Resolution, Threshold
from howfar.stats.resample import Interval

Application = Literal["php", "engine"]
"""A real application in PHP, or the engine, which makes the same round trips itself."""
Machines = Literal[1, 2]
Better = Literal["one", "two", "not resolved"]
OpenInterval = tuple[float | None, float | None]
"""An interval. A limit of None is open, because no examined value closes it."""
KEPT_CONNECTIONS = "persistent"
"""Connections that stay open from page to page."""
MODEL_RANGE_FACTOR = 8.0
"""Factor beyond the measured range up to which the model is evaluated."""
ERROR_BAR = 0.1
"""The largest error of a predicted p50 that the model should have."""
_PATHS_BY_SIMPLICITY = ("socket", "tcp", "remote", "forwarded-socket")


class Route(NamedTuple):
    """The path, and the link that it crosses, as requested."""

    path: str
    rtt_ns: int | None
    rate_bps: int | None

    @property
    def rank(self) -> tuple[int, int, int]:
        """Sort key. The headline route comes first: the simplest path, then the shortest link, then the fastest."""
        path = _PATHS_BY_SIMPLICITY.index(self.path) if self.path in _PATHS_BY_SIMPLICITY else len(_PATHS_BY_SIMPLICITY)
        return path, self.rtt_ns or 0, -(self.rate_bps or 0)


class Subject(NamedTuple):
    """The part of a setting that is not swept."""

    page: str
    application: Application
    connect: str


class PageSetting(NamedTuple):
    """The levels that arms share if they differ only in the route, so that they can be compared."""

    subject: Subject
    app_cpu_ns: int
    threads: int

    @property
    def rank(self) -> tuple[bool, bool, int, int]:
        """Sort key. The headline setting comes first: real application, kept connections, no additional computation, most pages in
        flight."""
        return (
            self.subject.application != "php",
            self.subject.connect != KEPT_CONNECTIONS,
            self.app_cpu_ns,
            -self.threads,
        )


class PageSeries(NamedTuple):
    """A setting on a route without its application CPU, which a crossing sweeps."""

    subject: Subject
    threads: int
    route: Route


class OnRoute(Part):
    """Base class of findings about one page, application and route."""

    page: str
    application: Application
    connect: str
    threads: int
    path: str
    """The path of an arm; in a comparison or a crossing, that to the second machine."""
    rtt_ns: int | None = None
    """RTT requested of the link. None without a link, or if the plan does not name it."""
    rate_bps: int | None = None
    """Rate requested of the link."""

    @property
    def route(self) -> Route:
        return Route(self.path, self.rtt_ns, self.rate_bps)

    @property
    def subject(self) -> Subject:
        return Subject(self.page, self.application, self.connect)

    @property
    def series(self) -> PageSeries:
        return PageSeries(self.subject, self.threads, self.route)


class AtCpu(OnRoute):
    """A comparison at one level of application CPU."""

    app_cpu_ns: int
    """Application CPU requested in addition to the page's own needs."""

    @property
    def setting(self) -> PageSetting:
        return PageSetting(self.subject, self.app_cpu_ns, self.threads)


class RoundTripCost(Part):
    """Round trips to one service in one arm, by the application's own clock. With several pages in flight, this includes waiting for
    each other."""

    service: str
    turns: float
    """Round trips per page."""
    mean_us: float
    """Mean time of a round trip, from the first byte sent to the last byte read."""
    connects: float
    """Connects per page."""
    connect_us: float | None
    """Mean time of a connect. None if connections are kept."""
    bytes_to_server: float | None
    bytes_to_client: float | None
    """Bytes of the protocol per page. None for a real application, which does not count them."""


class PageArm(AtCpu):
    """One arm: a page, an application, a path, application CPU, and pages in flight."""

    arm: str
    machines: Machines
    pages_per_s: Estimate
    page_ms: Estimate
    """Mean time of a page: pages in flight / pages per second."""
    p50_ms: float
    p95_ms: float
    p99_ms: float
    over_noticed: float
    """Share of pages that took longer than people notice (13 ms)."""
    over_degraded: float
    """Share of pages that took longer than 75 ms, from which the experience is degraded."""
    cpu_ms: dict[str, float]
    """CPU per page by role: `application` (PHP, or the engine that runs the script), `visitor`, `server`, `redis`, `memcached`,
    `forwarder`, `link`."""
    own_cpu_ms: float | None
    """CPU per page that the application itself reports. None if it reports none."""
    turns: tuple[RoundTripCost, ...]
    busy: dict[str, float]
    """Utilisation of each machine's CPUs: `application` and `database`; one machine: `both`."""
    rtt_ms: float | None
    """Unloaded RTT of the link. None without a link."""
    predicted_p50_ms: float | None
    """Predicted p50, from other arms only. None if the model is built from this arm, or cannot predict it."""
    predicted_p50_ms_interval: Interval | None = None
    """Interval of the predictions over the blocks, like every interval of the model's figures in this file."""
    predicted_error: float | None
    """predicted / measured - 1."""
    allowed_per_s: Estimate | None = None
    """Pages per second that the processors of its busier machine would allow, by their utilisation in each block."""
    over_kept: Estimate | None = None
    """Pages per second over those of the same arm with kept connections, paired by block. None if this arm keeps its connections,
    or if there is no such arm."""
    connecting_ms: Estimate | None = None
    """How much longer a page takes than with kept connections, paired by block."""

    @property
    def application_cpu_ms(self) -> float:
        """CPU per page of the application: as it reports itself, or else as measured of its processes."""
        return self.own_cpu_ms if self.own_cpu_ms is not None else self.cpu_ms.get("application", 0.0)

    @property
    def path_cpu_ms(self) -> float:
        """CPU per page of all roles except the link's emulator, which is part of the instrument."""
        return sum(cpu for role, cpu in self.cpu_ms.items() if role != "link")

    @property
    def emulator_cpus(self) -> float:
        """CPUs that the link's emulator kept busy."""
        return self.cpu_ms.get("link", 0.0) * self.pages_per_s.value / 1e3


class PageChoice(AtCpu):
    """One machine or two, for one page at one level of application CPU and of pages in flight."""

    app_cpu_total_ms: float
    """Total CPU that the application uses per page, including its own needs, as measured."""
    two_over_one: Estimate
    """Ratio of pages per second of two machines to one machine with sockets, paired by block."""
    tcp_over_socket: Estimate | None
    """Ratio of pages per second of loopback TCP to sockets, on one machine."""
    longer_ms: Estimate | None = None
    """How much longer a page takes on two machines, paired by block."""
    better: Better
    predicted: float | None
    """`two_over_one` by the model."""
    predicted_interval: Interval | None = None

    @property
    def resolution(self) -> Resolution:
        """Whether two machines are faster or slower than one."""
        winners = {"one": Resolution.SLOWER, "two": Resolution.FASTER}
        return winners.get(self.better, Resolution.NOT_RESOLVED)


class Crossing(OnRoute):
    """The application CPU per page from which a second machine pays."""

    measured_ms: Estimate | None
    """Total application CPU per page at which one machine and two are equal. None without a crossing in the measured range."""
    always: Literal["one", "two"] | None
    """If there is no crossing: which choice is better at every level, significantly and beyond the noise floor. None if neither."""
    predicted_ms: float | None
    """The crossing by the model. None if the model has none in its range, or if there is no model (`curve_ms` is empty)."""
    predicted_ms_interval: OpenInterval | None = None
    """Interval in which the blocks' ratios by the model do not differ significantly from 1. None if there are too few blocks."""
    predicted_always: Literal["one", "two"] | None = None
    """If the model has no crossing: which choice is better throughout, by the model. None without a model, or if that changes."""
    swept_ms: tuple[float, float]
    """Minimum and maximum of the total application CPU that was measured."""
    curve_ms: tuple[float, ...]
    curve_ratio: tuple[float, ...]
    """The model's ratio of two machines to one, at each value of `curve_ms`."""
    without_link_cpu_ms: float | None = None
    """The model's crossing if the emulated link took no CPU from the machines. If two machines would then be better throughout: the
    least that the application computes."""
    without_link_cpu_ms_interval: OpenInterval | None = None
    half_turns_ms: float | None = None
    """The model's crossing if the page needed half as many round trips. If two machines would then be better throughout: the least
    that the application computes."""
    half_turns_ms_interval: OpenInterval | None = None


class RouteError(Part):
    """The model's error on one route."""

    path: str
    rtt_ns: int | None
    """RTT requested of its link. None without a link."""
    arms: int
    mean_error: float
    """Mean of the absolute errors."""
    worst_error: float


class PageModel(Part):
    """The model's error, over the arms from which it is not built."""

    arms: int
    mean_error: float | None
    worst_error: float | None
    worst_arm: str | None
    within_bar: bool | None
    """Whether every predicted p50 is within 10 % of the measured one."""
    by_way: tuple[RouteError, ...] = ()
    impossible: tuple[str, ...] = ()
    """Arms without a prediction, because a single page from which the model would be built was faster than its parts can be."""


class PageFindings(Part):
    arms: tuple[PageArm, ...]
    choices: tuple[PageChoice, ...]
    crossings: tuple[Crossing, ...]
    model: PageModel
    """The model of real pages, from the engine's page on each path and the real page on sockets."""
    scripts: dict[str, str]
    """The round trips of each page as one line of text, by the page's name."""
    noise_floor: float | None = None
    """Noise floor of throughput in this session; a smaller difference is not resolved."""
    link_noise_floor: float | None = None
    """Noise floor of two machines: the larger of `noise_floor` and that of the A/A arm over the link."""
    comparisons: int = Field(1, alias="claims")
    """Number of comparisons of the run: each is tested at a confidence of 1 - 5 % / comparisons."""
    published: tuple[tuple[str, float, float, float | None], ...]
    """Rows published for set-up C: the page, its ms on two machines and on one, and our ratio of two machines to one for that page."""
    sentences: tuple[str, ...]
    """The findings in text; the first sentence is the answer."""

    def threshold(self, machines: Machines) -> Threshold:
        return Threshold(self.link_noise_floor if machines == 2 else self.noise_floor, self.comparisons)

    def arms_of(self, setting: PageSetting) -> list[PageArm]:
        """Arms with this setting: those on one machine first, in the order of the run."""
        return sorted((arm for arm in self.arms if arm.setting == setting), key=lambda arm: arm.machines)

    def pair(self, choice: PageChoice) -> tuple[PageArm, PageArm] | None:
        """The arms that a choice compares: one machine with sockets, and two."""
        by_route = {arm.route: arm for arm in reversed(self.arms_of(choice.setting))}
        one = next((arm for route, arm in by_route.items() if route.path == "socket"), None)
        two = by_route.get(choice.route)
        return None if one is None or two is None else (one, two)

    def crossing(self, choice: PageChoice) -> Crossing | None:
        """The crossing of the series to which a choice belongs."""
        return next((crossing for crossing in self.crossings if crossing.series == choice.series), None)

    def fewest_in_flight(self, setting: PageSetting) -> PageSetting:
        """The same setting with the fewest pages in flight that were measured."""
        compared_levels = setting.subject, setting.app_cpu_ns
        return min(
            (arm.setting for arm in self.arms if (arm.subject, arm.app_cpu_ns) == compared_levels),
            key=lambda candidate: candidate.threads,
        )

    def headline_choices(self, threads: int | None = None) -> list[PageChoice]:
        """One choice for each page, in the order of the plan. `threads`: only choices with this number of pages in flight."""
        choices_by_page: dict[str, PageChoice] = {}
        for choice in self.choices:
            if threads in (None, choice.threads):
                choices_by_page[choice.page] = min(choices_by_page.get(choice.page, choice), choice, key=_rank)
        return list(choices_by_page.values())

    def headline_settings(self) -> list[PageSetting]:
        """One setting for each page: that of its headline choice; without one, the first by rank, preferably a setting that was
        measured on one machine and on two."""
        headline_settings = {choice.setting for choice in self.headline_choices()}
        machines_by_setting: dict[PageSetting, set[int]] = {}
        for arm in self.arms:
            machines_by_setting.setdefault(arm.setting, set()).add(arm.machines)
        settings_by_page: dict[str, PageSetting] = {}
        for setting in sorted(
            machines_by_setting,
            key=lambda setting: (setting not in headline_settings, len(machines_by_setting[setting]) < 2, setting.rank),
        ):
            settings_by_page.setdefault(setting.subject.page, setting)
        return [settings_by_page[page] for page in dict.fromkeys(arm.page for arm in self.arms)]

    def headline_arms(self) -> list[PageArm]:
        return [arm for setting in self.headline_settings() for arm in self.arms_of(setting)]

    def headline_levels(self) -> list[PageChoice]:
        """Choices with each page's headline application and connections, at any application CPU and any number of pages in flight."""
        subjects = {setting.subject for setting in self.headline_settings()}
        return [choice for choice in self.choices if choice.subject in subjects]

    def swept_levels(self) -> list[PageChoice]:
        """Headline levels of the series that have at least two, because one point is no curve."""
        choices = self.headline_levels()
        levels_by_series = Counter(choice.series for choice in choices)
        return [choice for choice in choices if levels_by_series[choice.series] > 1]

    def headline_crossings(self) -> list[Crossing]:
        """For each page and route, the crossing of the headline setting. If none has its number of pages in flight, the one with the
        most."""
        crossings: dict[tuple[Subject, Route], Crossing] = {}
        for setting in self.headline_settings():
            for crossing in (c for c in self.crossings if c.subject == setting.subject):
                best = crossings.get((crossing.subject, crossing.route), crossing)
                crossings[crossing.subject, crossing.route] = max(
                    best, crossing, key=lambda c: (c.threads == setting.threads, c.threads)
                )
        return list(crossings.values())

    def least_loaded_settings(self) -> dict[Subject, PageSetting]:
        """For each page, application and kind of connections, the setting with the least additional CPU and then the fewest pages in
        flight."""
        settings: dict[Subject, PageSetting] = {}
        for arm in self.arms:
            settings[arm.subject] = min(settings.get(arm.subject, arm.setting), arm.setting)
        return settings


def _rank(choice: PageChoice) -> tuple[object, ...]:
    return choice.setting.rank, choice.route.rank
