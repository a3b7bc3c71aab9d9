"""From a run's trials to its findings about pages: `page_findings`. No I/O.

Arms that differ only in the route are compared, paired by block. The *crossing* is the application CPU per page from which a second
machine pays; each route has its own. It is found on a curve: the logarithm of the ratio of two machines to one, interpolated linearly
over the logarithm of the application CPU. The crossing is where this curve first rises through 0. Its interval is Fieller's: every CPU
at which the blocks' ratio on the curve does not differ from 1 at 95 % confidence. It does not need a crossing in each block. An end of
the interval is open if no measurement closes it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from itertools import pairwise
from statistics import fmean, median
from typing import Literal, NamedTuple

from howfar.analysis.cells import NoiseFloors
from howfar.analysis.published import published_sets
from howfar.experiments.page.arms import ArmTrials, ComparisonKey, extra_page_ms, page_arms, paired_ratios
from howfar.experiments.page.factors import PAGE
from howfar.experiments.page.findings import (
    ERROR_BAR,
    KEPT_CONNECTIONS,
    MODEL_RANGE_FACTOR,
    Better,
    Crossing,
    OpenInterval,
    PageArm,
    PageChoice,
    PageFindings,
    PageModel,
    Route,
    RouteError,
)
from howfar.experiments.page.labels import DEGRADED_MS, NOTICED_MS
from howfar.experiments.page.model import BISECTIONS, SOCKET, ModelRatio, Predictor, bisect, predictors
from howfar.experiments.page.plan import PAGES
from howfar.plan.factors import PATH
from howfar.plan.types import StoredPlan
from howfar.plan.workload import Workload
from howfar.stats import histograms
from howfar.stats.estimate import Estimate
from howfar.stats.intervals import MIN_BLOCKS, Resolution, Threshold, judge_ratio, mean_interval
from howfar.stats.resample import interval_over_blocks
from howfar.stats.trials import TrialTable

PLAN = "page"
_WINNERS: dict[Resolution, Literal["one", "two"]] = {Resolution.SLOWER: "one", Resolution.FASTER: "two"}
_SEARCH_STEPS = 16
"""Points between two levels that the search for an end of the interval tries before bisection."""
CURVE_POINTS = 33
"""Points of the model's curve."""
_COARSE_BISECTIONS = 20
"""Number of bisections for an end of a model's interval; they find it to a millionth of a search step."""
RatioOfCpu = Callable[[float], float]
"""The model's ratio of two machines to one, as a function of application CPU in milliseconds."""


def page_findings(table: TrialTable, floors: NoiseFloors) -> PageFindings | None:
    """The findings about pages. None if the run has no pages, or no good trial yet."""
    trials = page_arms(table)
    if not trials:
        return None
    arms_by_key: dict[ComparisonKey, list[ArmTrials]] = {}
    for arm in trials:
        arms_by_key.setdefault(arm.key, []).append(arm)
    models = predictors(arms_by_key)
    kept_arms = {_key_without_connect(arm): arm for arm in trials if arm.key.connect == KEPT_CONNECTIONS}
    arms = tuple(_page_arm(arm, models.get(arm.key), kept_arms.get(_key_without_connect(arm))) for arm in trials)
    impossible = tuple(arm.arm.name for arm in trials if arm.key in models and models[arm.key].is_impossible(arm))
    choices, crossings = list[PageChoice](), list[Crossing]()
    for key, key_arms in arms_by_key.items():
        key_choices, key_crossings = _compare_machines(key_arms, models.get(key), floors)
        choices += key_choices
        crossings += key_crossings
    return PageFindings(
        arms=arms,
        choices=tuple(choices),
        crossings=tuple(crossings),
        model=_page_model(arms, impossible),
        scripts=_describe_scripts(table.run.info.stored_plan),
        noise_floor=floors.noise_floor(),
        link_noise_floor=floors.noise_floor(over_link=True),
        comparisons=floors.comparisons,
        published=_published_rows(choices) if table.run.info.plan_name == PLAN else (),
        sentences=(),
    )


def _key_without_connect(arm: ArmTrials) -> tuple[object, ...]:
    """Key shared by arms that differ only in how they connect."""
    return replace(arm.key, connect=KEPT_CONNECTIONS), arm.route, arm.app_cpu_ns, arm.threads


def _page_arm(arm: ArmTrials, predictor: Predictor | None, same_arm_kept: ArmTrials | None) -> PageArm:
    """Findings about one arm. `same_arm_kept`: the same arm with kept connections, perhaps itself."""
    kept_arm = None if same_arm_kept is arm else same_arm_kept
    merged = histograms.merge(arm.histograms)
    latency = histograms.latency_ms(merged, arm.histograms)
    block_p50s_s = predictor.p50_s(arm) if predictor is not None else []
    predicted_s = median(block_p50s_s) if block_p50s_s else None
    predicted_ms = predicted_s and predicted_s * 1e3
    return PageArm(
        **dict(arm.on_route),
        arm=arm.arm.name,
        machines=arm.machines,
        app_cpu_ns=arm.app_cpu_ns,
        pages_per_s=arm.pages_per_s,
        page_ms=arm.mean_ms,
        p50_ms=arm.p50_s * 1e3,
        p95_ms=latency.p95,
        p99_ms=latency.p99,
        over_noticed=histograms.share_above(merged, NOTICED_MS * 10**6),
        over_degraded=histograms.share_above(merged, DEGRADED_MS * 10**6),
        cpu_ms={role: seconds * 1e3 for role, seconds in arm.cpu_s.items()},
        own_cpu_ms=_to_ms(arm.own_cpu_s),
        turns=arm.round_trip_costs(),
        busy={machine.name: min(machine.busy, 1.0) for machine in arm.machine_uses},
        rtt_ms=_to_ms(arm.rest_rtt_s),
        predicted_p50_ms=predicted_ms,
        predicted_p50_ms_interval=interval_over_blocks(
            predicted_ms or 0.0, [1e3 * seconds for seconds in block_p50s_s]
        ),
        predicted_error=None if predicted_s is None else predicted_s / arm.p50_s - 1,
        allowed_per_s=arm.allowed_per_s,
        over_kept=_paired_ratio(arm, kept_arm) if kept_arm is not None else None,
        connecting_ms=extra_page_ms(arm, kept_arm) if kept_arm is not None else None,
    )


def _to_ms(seconds: float | None) -> float | None:
    return None if seconds is None else seconds * 1e3


def _page_model(arms: Sequence[PageArm], impossible: tuple[str, ...]) -> PageModel:
    errors = {arm.arm: arm.predicted_error for arm in arms if arm.predicted_error is not None}
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
        within_bar=None if worst is None else abs(errors[worst]) <= ERROR_BAR,
        by_way=tuple(
            RouteError(
                path=path,
                rtt_ns=rtt_ns,
                arms=len(route_errors),
                mean_error=fmean(abs(error) for error in route_errors),
                worst_error=max(route_errors, key=abs),
            )
            for (path, rtt_ns), route_errors in by_route.items()
        ),
        impossible=impossible,
    )


def _describe_scripts(plan: StoredPlan) -> dict[str, str]:
    """Each page's round trips as a line of text, by the page's name; empty for a page that only a later version knows."""
    range_size = (plan.workload or Workload()).range_size
    return {name: shape.describe(range_size) if shape else "" for name, shape in (PAGES.of_stored(plan) or {}).items()}


def _published_rows(choices: Sequence[PageChoice]) -> tuple[tuple[str, float, float, float | None], ...]:
    """Published figures, with our ratio for the same page. Ours is that of the real application if there is one, with the fewest pages
    in flight and the least application CPU, because the published figures are for single pages."""
    rows = []
    for entry in (entry for entry in published_sets() if entry.plan == PLAN):
        means = {
            (PAGE.level_in(cell.factors), PATH.level_in(cell.factors)): cell.latency_ms.get("avg")
            for cell in entry.cells
        }
        for page in dict.fromkeys(page for page, _ in means):
            two_ms, one_ms = means.get((page, "remote")), means.get((page, "socket"))
            if two_ms is not None and one_ms is not None:
                our_choice = min(
                    (choice for choice in choices if choice.page == page), key=_published_rank, default=None
                )
                rows.append((page, two_ms, one_ms, our_choice.two_over_one.value if our_choice is not None else None))
    return tuple(rows)


def _published_rank(choice: PageChoice) -> tuple[object, ...]:
    application, connect, app_cpu_ns, _ = choice.setting.rank
    return application, connect, choice.threads, app_cpu_ns, choice.route.rank


# ---------------------------------------------------------------- one machine or two


def _compare_machines(
    arms: Sequence[ArmTrials], predictor: Predictor | None, floors: NoiseFloors
) -> tuple[list[PageChoice], list[Crossing]]:
    """Compare one machine with sockets to two machines, for arms with the same key that were measured in the same block."""
    choices: list[PageChoice] = []
    pairs_by_series: dict[tuple[Route, int], list[tuple[ArmTrials, ArmTrials]]] = {}
    for one in (arm for arm in arms if arm.route.path == SOCKET):
        comparable = [arm for arm in arms if (arm.threads, arm.app_cpu_ns) == (one.threads, one.app_cpu_ns)]
        tcp = next((arm for arm in comparable if arm.route.path == "tcp"), None)
        for two in (arm for arm in comparable if arm.machines == 2):
            ratio = _paired_ratio(two, one)
            if ratio is None:
                continue
            better: Better = _WINNERS.get(floors.threshold(two.arm.factors).resolve(ratio), "not resolved")
            model_ratio = predictor.ratio(two.route, one.threads) if predictor is not None else None
            predicted_ratios = (
                model_ratio.ratios_with_extra_cpu(predictor.extra_cpu_s(one)) if predictor and model_ratio else ()
            )
            predicted = median(predicted_ratios) if predicted_ratios else None
            choices.append(
                PageChoice(
                    **dict(two.on_route),
                    app_cpu_ns=one.app_cpu_ns,
                    app_cpu_total_ms=one.application_cpu_s * 1e3,
                    two_over_one=ratio,
                    tcp_over_socket=_paired_ratio(tcp, one) if tcp is not None else None,
                    longer_ms=extra_page_ms(two, one),
                    better=better,
                    predicted=predicted,
                    predicted_interval=interval_over_blocks(predicted or 0.0, predicted_ratios),
                )
            )
            pairs_by_series.setdefault((two.route, one.threads), []).append((one, two))
    return choices, [
        _summarise_crossing(pairs, predictor, floors) for pairs in pairs_by_series.values() if len(pairs) > 1
    ]


def _paired_ratio(numerator: ArmTrials, denominator: ArmTrials) -> Estimate | None:
    values = list(paired_ratios(numerator, denominator).values())
    return judge_ratio(values).reported if values else None


def _summarise_crossing(
    pairs: Sequence[tuple[ArmTrials, ArmTrials]], predictor: Predictor | None, floors: NoiseFloors
) -> Crossing:
    """The crossing of pairs of arms (one machine, two machines) that differ only in application CPU."""
    levels = [CpuLevel(one.application_cpu_s * 1e3, paired_ratios(two, one)) for one, two in pairs]
    swept_ms = min(level.cpu_ms for level in levels), max(level.cpu_ms for level in levels)
    two = pairs[0][1]
    measured = MeasuredCurve(levels, floors.threshold(two.arm.factors)).find_crossing()
    crossing = partial(
        Crossing, **dict(two.on_route), measured_ms=measured.crossing, always=measured.always, swept_ms=swept_ms
    )
    full_model, half_model = (
        predictor.ratio(two.route, two.threads, share) if predictor else None for share in (1.0, 0.5)
    )
    if full_model is None:
        return crossing(predicted_ms=None, curve_ms=(), curve_ratio=())
    ratio, bounds_ms = cache(full_model.ratio_at), (full_model.min_cpu_ms, swept_ms[1] * MODEL_RANGE_FACTOR)
    curve_ms = tuple(_log_grid(*swept_ms, CURVE_POINTS))
    predicted_ms, without_link = model_crossing(ratio, *bounds_ms), full_model.without_link_cpu()
    without_link_ms, half_turns_ms = (
        _min_cpu_that_pays(model_ratio, *bounds_ms) for model_ratio in (without_link, half_model)
    )
    return crossing(
        predicted_ms=predicted_ms,
        predicted_ms_interval=_crossing_interval(full_model, predicted_ms, *bounds_ms),
        predicted_always=model_always(ratio, *bounds_ms),
        curve_ms=curve_ms,
        curve_ratio=tuple(ratio(cpu_ms) for cpu_ms in curve_ms),
        without_link_cpu_ms=without_link_ms,
        without_link_cpu_ms_interval=_crossing_interval(without_link, without_link_ms, *bounds_ms),
        half_turns_ms=half_turns_ms,
        half_turns_ms_interval=_crossing_interval(half_model, half_turns_ms, *bounds_ms),
    )


# ---------------------------------------------------------------- the crossing, measured


class CpuLevel(NamedTuple):
    """Measurements at one level of application CPU."""

    cpu_ms: float
    """Total application CPU per page."""
    ratios: Mapping[int, float]
    """Pages per second of two machines over one, by block."""


class MeasuredCrossing(NamedTuple):
    """The crossing in milliseconds of application CPU. `crossing` is None if there is none in the measured range; `always` is then the
    better choice at all levels, if there is one."""

    crossing: Estimate | None
    always: Literal["one", "two"] | None = None


class MeasuredCurve:
    """The measured ratio of two machines to one, as a function of application CPU."""

    def __init__(self, levels: Sequence[CpuLevel], threshold: Threshold) -> None:
        self._threshold = threshold
        self._levels = sorted(
            (level for level in levels if level.ratios and level.cpu_ms > 0), key=lambda level: level.cpu_ms
        )
        self._log_cpu_of_levels = [math.log(level.cpu_ms) for level in self._levels]
        self._log_ratios = [{block: math.log(ratio) for block, ratio in level.ratios.items()} for level in self._levels]

    def find_crossing(self) -> MeasuredCrossing:
        if not self._levels:
            return MeasuredCrossing(None)
        estimates = [self._log_ratio_at(log_cpu_ms) for log_cpu_ms in self._log_cpu_of_levels]
        rising_level = next(
            (i for i in range(1, len(estimates)) if estimates[i - 1].value < 0 <= estimates[i].value), None
        )
        if rising_level is None:
            return MeasuredCrossing(None, self._winner_at_all_levels())
        if self._resolves_nothing():
            return MeasuredCrossing(None)
        log_cpu_ms = bisect(
            lambda log_ms: self._log_ratio_at(log_ms).value,
            self._log_cpu_of_levels[rising_level - 1],
            self._log_cpu_of_levels[rising_level],
        )
        steps = _SEARCH_STEPS * max(len(self._log_cpu_of_levels) - 1, 1)
        low, high = (
            _interval_end(self._log_ratio_at, log_cpu_ms, end, steps)
            for end in (self._log_cpu_of_levels[0], self._log_cpu_of_levels[-1])
        )
        if low is None and high is None and any(estimate.low is not None for estimate in estimates):
            return MeasuredCrossing(None)  # no level differs from 1 significantly, so the curve may cross it anywhere
        return MeasuredCrossing(
            Estimate(
                value=math.exp(log_cpu_ms),
                low=None if low is None else math.exp(low),
                high=None if high is None else math.exp(high),
            )
        )

    def _resolves_nothing(self) -> bool:
        """Whether no level differs from 1 beyond the noise floor, so that noise alone may make the curve cross 1."""
        single_test = Threshold(self._threshold.floor, 1)
        ratios = [judge_ratio(list(level.ratios.values())).reported for level in self._levels]
        with_interval = [ratio for ratio in ratios if ratio.low is not None]
        return bool(with_interval) and not any(single_test.resolve(ratio).is_difference for ratio in with_interval)

    def _winner_at_all_levels(self) -> Literal["one", "two"] | None:
        """Which choice is better at every level, significantly and beyond the noise floor. None if levels differ, or if one of them is
        not significant."""
        resolutions = {
            self._threshold.resolve(judge_ratio(list(level.ratios.values())).reported) for level in self._levels
        }
        return _WINNERS.get(resolutions.pop()) if len(resolutions) == 1 else None

    def _log_ratio_at(self, log_cpu_ms: float) -> Estimate:
        """The log ratio at this CPU, interpolated between two levels, over the blocks that have both of them."""
        after = next(
            (i for i, level_log_cpu_ms in enumerate(self._log_cpu_of_levels) if level_log_cpu_ms >= log_cpu_ms),
            len(self._log_cpu_of_levels) - 1,
        )
        before = max(after - 1, 0)
        width = self._log_cpu_of_levels[after] - self._log_cpu_of_levels[before]
        share = (log_cpu_ms - self._log_cpu_of_levels[before]) / width if width > 0 else 1.0
        low, high = self._log_ratios[before], self._log_ratios[after]
        if share <= 0 or share >= 1:
            return mean_interval(list((low if share <= 0 else high).values()))
        block_log_ratios = [(1 - share) * low[block] + share * high[block] for block in high if block in low]
        if not block_log_ratios:
            value = (1 - share) * fmean(low.values()) + share * fmean(high.values())
            return Estimate(value=value, low=None, high=None)
        return mean_interval(block_log_ratios)


def _is_resolved(log_ratio: Estimate) -> bool:
    """Whether an interval excludes 0."""
    return log_ratio.low is not None and log_ratio.high is not None and not log_ratio.low <= 0 <= log_ratio.high


def _interval_end(
    judge: Callable[[float], Estimate], start: float, end: float, steps: int, bisections: int = BISECTIONS
) -> float | None:
    """The point between `start` and `end` from which the log ratio differs significantly from 0. None if not even at `end`."""
    last_inside = start
    for step in range(1, steps + 1):
        position = start + (end - start) * step / steps
        if _is_resolved(judge(position)):
            return bisect(lambda point: 1.0 if _is_resolved(judge(point)) else -1.0, last_inside, position, bisections)
        last_inside = position
    return None


# ---------------------------------------------------------------- the crossing, by the model


def _crossing_interval(
    model_ratio: ModelRatio | None, crossing_ms: float | None, min_ms: float, max_ms: float
) -> OpenInterval | None:
    """Fieller's interval of the model's crossing, as for the measured one: every application CPU at which the blocks' ratios by the
    model do not differ significantly from 1. None with too few blocks, or without a crossing."""
    if model_ratio is None or crossing_ms is None or len(model_ratio.blocks) < MIN_BLOCKS:
        return None

    def judge(log_cpu_ms: float) -> Estimate:
        return mean_interval([math.log(ratio) for ratio in model_ratio.ratios_at(math.exp(log_cpu_ms))])

    log_crossing = math.log(crossing_ms)
    if crossing_ms <= min_ms and _is_resolved(judge(log_crossing)):
        return None, crossing_ms
    low, high = (
        _interval_end(judge, log_crossing, math.log(end), 2 * _SEARCH_STEPS, _COARSE_BISECTIONS)
        for end in (min_ms, max_ms)
    )
    return None if low is None else math.exp(low), None if high is None else math.exp(high)


def model_crossing(ratio: RatioOfCpu, min_ms: float, max_ms: float) -> float | None:
    """The first application CPU at which the model's ratio rises through 1. None if it does not in this range."""
    for low, high in pairwise(_log_grid(min_ms, max_ms, 4 * CURVE_POINTS)):
        if ratio(low) < 1 <= ratio(high):
            return bisect(lambda cpu_ms: ratio(cpu_ms) - 1, low, high)
    return None


def model_always(ratio: RatioOfCpu, min_ms: float, max_ms: float) -> Literal["one", "two"] | None:
    """Whether one machine or two are better throughout the range, by the model. None if that changes."""
    ratios = [ratio(cpu_ms) for cpu_ms in _log_grid(min_ms, max_ms, 4 * CURVE_POINTS)]
    return "two" if min(ratios) >= 1 else "one" if max(ratios) < 1 else None


def _min_cpu_that_pays(model_ratio: ModelRatio | None, min_ms: float, max_ms: float) -> float | None:
    """The least application CPU in this range at which two machines are better. None if they never are."""
    if model_ratio is None:
        return None
    ratio = cache(model_ratio.ratio_at)
    return min_ms if ratio(min_ms) >= 1 else model_crossing(ratio, min_ms, max_ms)


def _log_grid(low: float, high: float, points: int) -> list[float]:
    """Points evenly spaced on a logarithmic scale, including both ends exactly."""
    if high <= low:
        return [low]
    inner = [low * (high / low) ** (step / (points - 1)) for step in range(1, points - 1)]
    return [low, *inner, high]
