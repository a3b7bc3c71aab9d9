"""From a run's trials to its findings about pages: `page_findings`. Pure.

Compared is what differs in nothing but the route, paired by block. The *crossing* is the application CPU a page from which a second
machine pays; each route has its own. Measured: the logarithm of two over one at each application CPU, joined by straight lines over
the logarithm of the CPU; where they first rise through 0 is the crossing. Its interval is Fieller's: every CPU at which the blocks'
ratio on those lines is not resolved from 1 at 95 %. It needs no crossing in each block, and is open where no measurement closes it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from statistics import fmean, median
from typing import Any, Literal

from pydantic import ValidationError

from howfar.analysis.published import published_sets
from howfar.analysis.trials import TrialTable
from howfar.experiments.page.arms import ArmTrials, comparable, page_arms, ratios
from howfar.experiments.page.findings import (
    Better,
    Crossing,
    PageArm,
    PageChoice,
    PageFindings,
    PageModel,
    Route,
    RouteError,
    route_rank,
    setting_of,
)
from howfar.experiments.page.model import ON_SOCKETS, SOCKET, BlockPredictor, Network, Predictor, bisected, predictors
from howfar.experiments.page.sentences import page_sentences
from howfar.plan.page import PageShape
from howfar.stats import histograms
from howfar.stats.estimate import Estimate
from howfar.stats.intervals import Resolution, judge_ratio, mean_interval, resolve

NOTICED_NS = 13_000_000
"""People notice a delay from here on; published with set-up C."""
DEGRADED_NS = 75_000_000
"""From here on the experience is degraded."""
BAR = 0.10
"""The largest error of a predicted p50 that the model should have."""
PLAN = "page"
_BETTER: dict[Resolution, Literal["one", "two"]] = {Resolution.SLOWER: "one", Resolution.FASTER: "two"}
_GRID = 16
"""Points between two levels at which an end of the interval is searched before it is narrowed."""
POINTS = 33
"""Of the model's curve."""
BEYOND = 8.0
"""How many times beyond the measured range the model is evaluated."""
_RANGE_SIZE = 100
"""If a plan does not say; sysbench's."""
_Pair = tuple[ArmTrials, ArmTrials]


def page_findings(table: TrialTable, floor: float | None) -> PageFindings | None:
    """None: this run is about something else, or has no good trial yet. `floor`: the noise floor of throughput."""
    trials = page_arms(table)
    if not trials:
        return None
    grouped = comparable(trials)
    predicted = predictors(grouped)
    arms = tuple(_arm(arm, predicted.get(arm.key)) for arm in trials)
    impossible = [arm.name for arm in trials if (of := predicted.get(arm.key)) is not None and of.impossible(arm)]
    choices, crossings = list[PageChoice](), list[Crossing]()
    for key, alike in grouped.items():
        found, flips = _compared(alike, predicted.get(key), floor)
        choices += found
        crossings += flips
    figures = PageFindings(
        arms=arms,
        choices=tuple(choices),
        crossings=tuple(crossings),
        model=_model(arms, impossible),
        scripts=page_scripts(table.run.info.plan),
        noise_floor=floor,
        published=_published(table.run.info.plan_name, choices),
        sentences=(),
    )
    return figures.model_copy(update={"sentences": page_sentences(figures)})


def _arm(arm: ArmTrials, predictor: Predictor | None) -> PageArm:
    merged = histograms.merge(arm.histograms)
    latency = histograms.latency_ms(merged, arm.histograms)
    predicted_s = predictor.p50_s(arm) if predictor is not None else None
    own_s, rtt_s = arm.own_cpu_s, arm.rest_rtt_s
    return PageArm(
        arm=arm.name,
        page=arm.key.page,
        application=arm.application,
        path=arm.path,
        machines=arm.machines,
        connect=arm.key.connect,
        app_cpu_ns=arm.app_cpu_ns,
        threads=arm.threads,
        pages_per_s=arm.pages_per_s,
        page_ms=arm.mean_ms,
        p50_ms=arm.p50_s * 1e3,
        p95_ms=latency.p95,
        p99_ms=latency.p99,
        over_noticed=histograms.share_over(merged, NOTICED_NS),
        over_degraded=histograms.share_over(merged, DEGRADED_NS),
        cpu_ms={role: seconds * 1e3 for role, seconds in arm.cpu_s.items()},
        own_cpu_ms=None if own_s is None else own_s * 1e3,
        turns=arm.costs(),
        busy={side.name: min(side.busy, 1.0) for side in arm.sides},
        rtt_ns=arm.route.rtt_ns,
        rate_bps=arm.route.rate_bps,
        rtt_ms=None if rtt_s is None else rtt_s * 1e3,
        predicted_p50_ms=None if predicted_s is None else predicted_s * 1e3,
        predicted_error=None if predicted_s is None else predicted_s / arm.p50_s - 1,
    )


def _model(arms: Sequence[PageArm], impossible: Sequence[str]) -> PageModel:
    errors: Mapping[str, float] = {arm.arm: arm.predicted_error for arm in arms if arm.predicted_error is not None}
    by_route: dict[tuple[str, int | None], list[float]] = {}
    for arm in arms:
        if arm.predicted_error is not None:
            by_route.setdefault((arm.path, arm.rtt_ns), []).append(arm.predicted_error)
    worst = max(errors, key=lambda name: abs(errors[name]), default=None)
    return PageModel(
        arms=len(errors),
        mean_error=fmean(abs(error) for error in errors.values()) if errors else None,
        worst_error=None if worst is None else errors[worst],
        worst_arm=worst,
        within_bar=None if worst is None else abs(errors[worst]) <= BAR,
        by_way=tuple(
            RouteError(
                path=path,
                rtt_ns=rtt_ns,
                arms=len(found),
                mean_error=fmean(abs(error) for error in found),
                worst_error=max(found, key=abs),
            )
            for (path, rtt_ns), found in by_route.items()
        ),
        impossible=tuple(impossible),
    )


def page_scripts(plan: Mapping[str, Any]) -> dict[str, str]:
    """Each page's round trips in a line, by the page's name. Empty: a plan without pages."""
    shapes, workload = plan.get("pages"), plan.get("workload")
    if not isinstance(shapes, Mapping):
        return {}
    size = workload.get("range_size", _RANGE_SIZE) if isinstance(workload, Mapping) else _RANGE_SIZE
    return {str(name): _script(shape, int(size)) for name, shape in shapes.items()}


def _script(shape: object, range_size: int) -> str:
    """Empty: a later version's page."""
    try:
        return PageShape.model_validate(shape).described(range_size)
    except ValidationError:
        return ""


def _published(plan_name: str, choices: Sequence[PageChoice]) -> tuple[tuple[str, float, float, float | None], ...]:
    """Empty: of another plan, whose pages only have the same names."""
    if plan_name != PLAN:
        return ()
    rows = []
    for entry in (entry for entry in published_sets() if entry.plan == PLAN):
        means = {(str(c.factors["page"]), str(c.factors["path"])): c.latency_ms.get("avg") for c in entry.cells}
        for page in dict.fromkeys(page for page, _ in means):
            two, one = means.get((page, "remote")), means.get((page, "socket"))
            if two is not None and one is not None:
                ours = _like_published(choices, page)
                rows.append((page, two, one, ours.two_over_one.value if ours is not None else None))
    return tuple(rows)


def _like_published(choices: Sequence[PageChoice], page: str) -> PageChoice | None:
    """The real application's if there is one, with the fewest pages in flight and the least application CPU: single pages were
    published."""

    def rank(choice: PageChoice) -> tuple[object, ...]:
        application, connect, app_cpu_ns, _ = setting_of(choice).rank
        return application, connect, choice.threads, app_cpu_ns, route_rank(choice)

    return min((choice for choice in choices if choice.page == page), key=rank, default=None)


# ---------------------------------------------------------------- one machine or two


def _compared(
    arms: Sequence[ArmTrials], model: Predictor | None, floor: float | None
) -> tuple[list[PageChoice], list[Crossing]]:
    """Of arms with one key: one machine with sockets and two, wherever both were measured in one block."""
    choices: list[PageChoice] = []
    swept: dict[tuple[Route, int], list[_Pair]] = {}
    for one in (arm for arm in arms if arm.path == SOCKET):
        alike = [arm for arm in arms if (arm.threads, arm.app_cpu_ns) == (one.threads, one.app_cpu_ns)]
        tcp = next((arm for arm in alike if arm.path == "tcp"), None)
        for two in (arm for arm in alike if arm.machines == 2):
            judged = _ratio(two, one)
            if judged is not None:
                tcp_over_socket = _ratio(tcp, one) if tcp is not None else None
                choices.append(_choice(one, two, judged, tcp_over_socket, model, floor))
                swept.setdefault((two.route, one.threads), []).append((one, two))
    return choices, [_crossing(pairs, model, floor) for pairs in swept.values() if len(pairs) > 1]


def _ratio(above: ArmTrials, below: ArmTrials) -> Estimate | None:
    found = list(ratios(above, below).values())
    return judge_ratio(found).quoted if found else None


def _choice(
    one: ArmTrials,
    two: ArmTrials,
    judged: Estimate,
    tcp_over_socket: Estimate | None,
    model: Predictor | None,
    floor: float | None,
) -> PageChoice:
    better: Better = _BETTER.get(resolve(judged, floor), "not resolved")
    return PageChoice(
        page=one.key.page,
        connect=one.key.connect,
        application=one.application,
        app_cpu_ns=one.app_cpu_ns,
        app_cpu_total_ms=one.computed_s * 1e3,
        threads=one.threads,
        path=two.path,
        rtt_ns=two.route.rtt_ns,
        rate_bps=two.route.rate_bps,
        two_over_one=judged,
        tcp_over_socket=tcp_over_socket,
        better=better,
        predicted=_predicted(model, one, two) if model is not None else None,
    )


def _predicted(model: Predictor, one: ArmTrials, two: ArmTrials) -> float | None:
    extra_s = (one.app_cpu_ns - model.least_ns) / 1e9
    found = []
    for block in model.usable(two.route, one.threads):
        networks = [block.network(route, one.threads, extra_s) for route in (ON_SOCKETS, two.route)]
        if networks[0] is not None and networks[1] is not None:
            found.append(networks[0].cycle_s(one.threads) / networks[1].cycle_s(one.threads))
    return median(found) if found else None


def _crossing(pairs: Sequence[_Pair], model: Predictor | None, floor: float | None) -> Crossing:
    """Of pairs that differ in application CPU alone."""
    levels = [Level(one.computed_s * 1e3, ratios(two, one)) for one, two in pairs]
    measured = Curve(levels, floor).found()
    swept = (min(level.cpu_ms for level in levels), max(level.cpu_ms for level in levels))
    _, two = pairs[0]
    found = Crossing(
        page=two.key.page,
        connect=two.key.connect,
        application=two.application,
        threads=two.threads,
        path=two.path,
        rtt_ns=two.route.rtt_ns,
        rate_bps=two.route.rate_bps,
        measured_ms=measured.crossing,
        always=measured.always,
        predicted_ms=None,
        swept_ms=swept,
        curve_ms=(),
        curve_ratio=(),
    )
    blocks = model.usable(two.route, two.threads) if model is not None else []
    return found.model_copy(update=_ModelCurve(blocks, two.route, two.threads).crossing(swept)) if blocks else found


# ---------------------------------------------------------------- the crossing, measured


@dataclass(frozen=True)
class Level:
    """What was measured at one application CPU."""

    cpu_ms: float
    """In all, a page."""
    ratios: Mapping[int, float]
    """Pages a second of two machines over one, by block."""


@dataclass(frozen=True)
class Found:
    """The crossing in milliseconds of application CPU. None: there is none in the measured range."""

    crossing: Estimate | None
    always: Literal["one", "two"] | None


class Curve:
    """Two over one, as application CPU grows; levels ascend."""

    def __init__(self, levels: Sequence[Level], floor: float | None) -> None:
        """`floor`: the noise floor of throughput."""
        self._floor = floor
        self._levels = sorted(
            (each for each in levels if each.ratios and each.cpu_ms > 0), key=lambda level: level.cpu_ms
        )
        self._at = [math.log(level.cpu_ms) for level in self._levels]

    def found(self) -> Found:
        if not self._levels:
            return Found(None, None)
        means = [self._judged(log_ms).value for log_ms in self._at]
        bracket = next((i for i in range(1, len(means)) if means[i - 1] < 0 <= means[i]), None)
        if bracket is None:
            return Found(None, self._always())
        log_ms = bisected(lambda at: self._judged(at).value, self._at[bracket - 1], self._at[bracket])
        low, high = (self._limit(log_ms, ends) for ends in (self._at[0], self._at[-1]))
        if low is None and high is None and self._has_intervals:
            return Found(None, None)  # no level is resolved from 1, so the line may cross it anywhere
        return Found(
            Estimate(
                value=math.exp(log_ms),
                low=None if low is None else math.exp(low),
                high=None if high is None else math.exp(high),
            ),
            None,
        )

    @property
    def _has_intervals(self) -> bool:
        """More than one block."""
        return any(self._judged(log_ms).low is not None for log_ms in self._at)

    def _always(self) -> Literal["one", "two"] | None:
        """Only if each level is resolved from 1, and beyond the noise floor."""
        found = {resolve(judge_ratio(list(level.ratios.values())).quoted, self._floor) for level in self._levels}
        return _BETTER.get(next(iter(found))) if len(found) == 1 else None

    def _judged(self, log_ms: float) -> Estimate:
        """The log ratio there, over the blocks that have both ends of the line."""
        after = next((i for i, at in enumerate(self._at) if at >= log_ms), len(self._at) - 1)
        before = max(after - 1, 0)
        width = self._at[after] - self._at[before]
        share = (log_ms - self._at[before]) / width if width > 0 else 1.0
        low, high = self._levels[before].ratios, self._levels[after].ratios
        if share <= 0 or share >= 1:
            only = low if share <= 0 else high
            return mean_interval([math.log(ratio) for ratio in only.values()])
        both = [block for block in high if block in low]
        if not both:
            ends = [mean_interval([math.log(ratio) for ratio in each.values()]).value for each in (low, high)]
            return Estimate(value=(1 - share) * ends[0] + share * ends[1], low=None, high=None)
        return mean_interval([(1 - share) * math.log(low[block]) + share * math.log(high[block]) for block in both])

    def _limit(self, log_ms: float, end: float) -> float | None:
        """The farthest point towards `end` that is still not resolved from 1. None: `end` itself is not."""

        def resolved(at: float) -> bool:
            judged = self._judged(at)
            return judged.low is not None and judged.high is not None and not judged.low <= 0 <= judged.high

        steps = _GRID * max(len(self._at) - 1, 1)
        inside = log_ms
        for step in range(1, steps + 1):
            at = log_ms + (end - log_ms) * step / steps
            if resolved(at):
                return bisected(lambda x: 1.0 if resolved(x) else -1.0, inside, at)
            inside = at
        return None


# ---------------------------------------------------------------- the crossing, by the model


class _ModelCurve:
    """Two over one as a function of application CPU, in milliseconds a page: the median over the blocks that can be predicted."""

    def __init__(self, blocks: Sequence[BlockPredictor], route: Route, threads: int) -> None:
        self._blocks, self._route, self._threads = blocks, route, threads
        self._least_s = [block.least_cpu_s(threads) for block in blocks]

    def crossing(self, swept: tuple[float, float]) -> dict[str, object]:
        """The model's fields of a `Crossing`."""
        ends = max(self._least_s) * 1e3, swept[1] * BEYOND
        curve_ms, curve_ratio = model_curve(self._as_it_is, *swept)
        return {
            "predicted_ms": model_crossing(self._as_it_is, *ends),
            "predicted_always": model_always(self._as_it_is, *ends),
            "curve_ms": curve_ms,
            "curve_ratio": curve_ratio,
            "without_link_cpu_ms": pays_from(partial(self._ratio, change=_without_link_cpu), *ends),
            "half_turns_ms": pays_from(partial(self._ratio, change=self._half), *ends),
        }

    def _as_it_is(self, cpu_ms: float) -> float:
        return self._ratio(cpu_ms, lambda block, network: network)

    def _half(self, block: BlockPredictor, network: Network) -> Network:
        return block.fewer_round_trips(network, self._route, self._threads, 0.5)

    def _ratio(self, cpu_ms: float, change: Callable[[BlockPredictor, Network], Network]) -> float:
        found = []
        for block, least_s in zip(self._blocks, self._least_s, strict=True):
            extra_s = cpu_ms / 1e3 - least_s
            one = block.network(ON_SOCKETS, self._threads, extra_s)
            two = block.network(self._route, self._threads, extra_s)
            assert one is not None and two is not None, "only blocks that can be predicted"
            found.append(one.cycle_s(self._threads) / change(block, two).cycle_s(self._threads))
        return median(found)


def _without_link_cpu(_: BlockPredictor, network: Network) -> Network:
    return network.without_link_cpu()


def model_crossing(ratio: Callable[[float], float], least_ms: float, most_ms: float) -> float | None:
    """The first application CPU at which the model's two over one is 1 and rises. None: not in this range."""
    grid = _grid(least_ms, most_ms, 4 * POINTS)
    for low, high in pairwise(grid):
        if ratio(low) < 1 <= ratio(high):
            return bisected(lambda cpu_ms: ratio(cpu_ms) - 1, low, high)
    return None


def model_always(ratio: Callable[[float], float], least_ms: float, most_ms: float) -> Literal["one", "two"] | None:
    """Which one the model has ahead throughout. None: it changes."""
    found = [ratio(cpu_ms) for cpu_ms in _grid(least_ms, most_ms, 4 * POINTS)]
    return "two" if min(found) >= 1 else "one" if max(found) < 1 else None


def pays_from(ratio: Callable[[float], float], least_ms: float, most_ms: float) -> float | None:
    """The least application CPU at which two machines are ahead. None: at none in this range."""
    return least_ms if ratio(least_ms) >= 1 else model_crossing(ratio, least_ms, most_ms)


def model_curve(
    ratio: Callable[[float], float], least_ms: float, most_ms: float
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Application CPU, and the ratio at each."""
    grid = _grid(least_ms, most_ms, POINTS)
    return tuple(grid), tuple(ratio(cpu_ms) for cpu_ms in grid)


def _grid(low: float, high: float, points: int) -> list[float]:
    """Evenly on the logarithm; the ends exactly."""
    if high <= low:
        return [low]
    inner = [low * (high / low) ** (step / (points - 1)) for step in range(1, points - 1)]
    return [low, *inner, high]
