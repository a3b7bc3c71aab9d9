"""From a run's trials to its findings about pages: `page_findings`. Pure.

Arms that differ only in the route are compared, paired by block. The *crossing* is the application CPU per page from which a second
machine pays; each route has its own. It is measured on the logarithm of the ratio of two machines to one at each application CPU,
joined by straight lines over the logarithm of the CPU: the crossing is where these first rise through 0. Its interval is Fieller's:
every CPU at which the blocks' ratio on those lines is not resolved from 1 at 95 %. It needs no crossing in each block, and is open
where no measurement closes it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from itertools import pairwise
from statistics import fmean, median
from typing import Any, Literal, NamedTuple

from pydantic import ValidationError

from howfar.analysis.cells import Floors
from howfar.analysis.published import published_sets
from howfar.experiments.page.arms import ArmTrials, ComparisonKey, longer_ms, page_arms, ratios
from howfar.experiments.page.findings import (
    BAR,
    BEYOND,
    KEPT,
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
from howfar.experiments.page.model import BISECTIONS, SOCKET, ModelRatio, Predictor, bisected, predictors
from howfar.experiments.page.sentences import page_sentences
from howfar.plan.page import PageShape
from howfar.stats import histograms
from howfar.stats.estimate import Estimate
from howfar.stats.intervals import MIN_BLOCKS, Resolution, Threshold, judge_ratio, mean_interval
from howfar.stats.resample import SUFFIX, of_blocks
from howfar.stats.trials import TrialTable

PLAN = "page"
_BETTER: dict[Resolution, Literal["one", "two"]] = {Resolution.SLOWER: "one", Resolution.FASTER: "two"}
_STEPS = 16
"""Points between two levels at which the end of the interval is searched for, before bisection."""
POINTS = 33
"""Points of the model's curve."""
_COARSE = 20
"""Number of bisections for an end of a model's interval: to a millionth of a step."""
_RANGE_SIZE = 100
"""Default where a plan has none, as in sysbench."""
Ratio = Callable[[float], float]
"""The model's ratio of two machines to one, as a function of application CPU."""


def page_findings(table: TrialTable, floors: Floors) -> PageFindings | None:
    """The findings about pages. None: the run has no pages, or no good trial yet."""
    trials = page_arms(table)
    if not trials:
        return None
    grouped: dict[ComparisonKey, list[ArmTrials]] = {}
    for arm in trials:
        grouped.setdefault(arm.key, []).append(arm)
    models = predictors(grouped)
    kept = {_setting(arm): arm for arm in trials if arm.key.connect == KEPT}
    arms = tuple(_arm(arm, models.get(arm.key), kept.get(_setting(arm))) for arm in trials)
    impossible = tuple(arm.arm.name for arm in trials if arm.key in models and models[arm.key].impossible(arm))
    choices, crossings = list[PageChoice](), list[Crossing]()
    for key, alike in grouped.items():
        found, flips = _compared(alike, models.get(key), floors)
        choices += found
        crossings += flips
    findings = PageFindings(
        arms=arms,
        choices=tuple(choices),
        crossings=tuple(crossings),
        model=_model(arms, impossible),
        scripts=_scripts(table.run.info.plan),
        noise_floor=floors.floor(),
        link_noise_floor=floors.floor(over_link=True),
        claims=floors.claims,
        published=_published(choices) if table.run.info.plan_name == PLAN else (),
        sentences=(),
    )
    return findings.model_copy(update={"sentences": page_sentences(findings)})


def _setting(arm: ArmTrials) -> tuple[object, ...]:
    """Key shared by arms that differ only in how they connect."""
    return replace(arm.key, connect=KEPT), arm.route, arm.app_cpu_ns, arm.threads


def _arm(arm: ArmTrials, predictor: Predictor | None, kept: ArmTrials | None) -> PageArm:
    """Findings about one arm. `kept`: the same arm with kept connections, perhaps itself."""
    other = None if kept is arm else kept
    merged = histograms.merge(arm.histograms)
    latency = histograms.latency_ms(merged, arm.histograms)
    each_s = predictor.p50_s(arm) if predictor is not None else []
    predicted_s = median(each_s) if each_s else None
    predicted_ms = predicted_s and predicted_s * 1e3
    return PageArm(
        **arm.identity,
        arm=arm.arm.name,
        machines=arm.machines,
        app_cpu_ns=arm.app_cpu_ns,
        pages_per_s=arm.pages_per_s,
        page_ms=arm.mean_ms,
        p50_ms=arm.p50_s * 1e3,
        p95_ms=latency.p95,
        p99_ms=latency.p99,
        over_noticed=histograms.share_over(merged, NOTICED_MS * 10**6),
        over_degraded=histograms.share_over(merged, DEGRADED_MS * 10**6),
        cpu_ms={role: seconds * 1e3 for role, seconds in arm.cpu_s.items()},
        own_cpu_ms=_ms(arm.own_cpu_s),
        turns=arm.costs(),
        busy={side.name: min(side.busy, 1.0) for side in arm.sides},
        rtt_ms=_ms(arm.rest_rtt_s),
        predicted_p50_ms=predicted_ms,
        predicted_p50_ms_interval=of_blocks(predicted_ms or 0.0, [1e3 * each for each in each_s]),
        predicted_error=None if predicted_s is None else predicted_s / arm.p50_s - 1,
        allowed_per_s=arm.allowed_per_s,
        over_kept=_ratio(arm, other) if other is not None else None,
        connecting_ms=longer_ms(arm, other) if other is not None else None,
    )


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else seconds * 1e3


def _model(arms: Sequence[PageArm], impossible: tuple[str, ...]) -> PageModel:
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
        impossible=impossible,
    )


def _scripts(plan: Mapping[str, Any]) -> dict[str, str]:
    """Each page's round trips in a line, by the page's name; empty for a page of a later version."""
    found = {}
    range_size = int(plan.get("workload", {}).get("range_size", _RANGE_SIZE))
    for name, shape in plan.get("pages", {}).items():
        try:
            found[name] = PageShape.model_validate(shape).described(range_size)
        except ValidationError:
            found[name] = ""
    return found


def _published(choices: Sequence[PageChoice]) -> tuple[tuple[str, float, float, float | None], ...]:
    """Published figures with our ratio: that of the real application if there is one, with the fewest pages in flight and the least
    application CPU, because single pages were published."""
    rows = []
    for entry in (entry for entry in published_sets() if entry.plan == PLAN):
        means = {(str(c.factors["page"]), str(c.factors["path"])): c.latency_ms.get("avg") for c in entry.cells}
        for page in dict.fromkeys(page for page, _ in means):
            two, one = means.get((page, "remote")), means.get((page, "socket"))
            if two is not None and one is not None:
                ours = min((choice for choice in choices if choice.page == page), key=_like_published, default=None)
                rows.append((page, two, one, ours.two_over_one.value if ours is not None else None))
    return tuple(rows)


def _like_published(choice: PageChoice) -> tuple[object, ...]:
    application, connect, app_cpu_ns, _ = choice.setting.rank
    return application, connect, choice.threads, app_cpu_ns, choice.route.rank


# ---------------------------------------------------------------- one machine or two


def _compared(
    arms: Sequence[ArmTrials], model: Predictor | None, floors: Floors
) -> tuple[list[PageChoice], list[Crossing]]:
    """Comparisons of arms with the same key: one machine with sockets and two machines, if both were measured in the same block."""
    choices: list[PageChoice] = []
    swept: dict[tuple[Route, int], list[tuple[ArmTrials, ArmTrials]]] = {}
    for one in (arm for arm in arms if arm.route.path == SOCKET):
        alike = [arm for arm in arms if (arm.threads, arm.app_cpu_ns) == (one.threads, one.app_cpu_ns)]
        tcp = next((arm for arm in alike if arm.route.path == "tcp"), None)
        for two in (arm for arm in alike if arm.machines == 2):
            judged = _ratio(two, one)
            if judged is None:
                continue
            better: Better = _BETTER.get(floors.of(two.arm.factors).resolve(judged), "not resolved")
            by_model = model.ratio(two.route, one.threads) if model is not None else None
            each = by_model.beyond_least(model.extra_s(one)) if model and by_model else ()
            predicted = median(each) if each else None
            choices.append(
                PageChoice(
                    **two.identity,
                    app_cpu_ns=one.app_cpu_ns,
                    app_cpu_total_ms=one.computed_s * 1e3,
                    two_over_one=judged,
                    tcp_over_socket=_ratio(tcp, one) if tcp is not None else None,
                    longer_ms=longer_ms(two, one),
                    better=better,
                    predicted=predicted,
                    predicted_interval=of_blocks(predicted or 0.0, each),
                )
            )
            swept.setdefault((two.route, one.threads), []).append((one, two))
    return choices, [_crossing(pairs, model, floors) for pairs in swept.values() if len(pairs) > 1]


def _ratio(above: ArmTrials, below: ArmTrials) -> Estimate | None:
    found = list(ratios(above, below).values())
    return judge_ratio(found).quoted if found else None


def _crossing(pairs: Sequence[tuple[ArmTrials, ArmTrials]], model: Predictor | None, floors: Floors) -> Crossing:
    """The crossing of pairs that differ in application CPU alone."""
    levels = [Level(one.computed_s * 1e3, ratios(two, one)) for one, two in pairs]
    swept = min(level.cpu_ms for level in levels), max(level.cpu_ms for level in levels)
    two = pairs[0][1]
    measured = Curve(levels, floors.of(two.arm.factors)).found()
    return Crossing(
        **two.identity,
        measured_ms=measured.crossing,
        always=measured.always,
        swept_ms=swept,
        **{"predicted_ms": None, "curve_ms": (), "curve_ratio": ()}
        | (_predicted(model, two, swept) if model is not None else {}),
    )


# ---------------------------------------------------------------- the crossing, measured


class Level(NamedTuple):
    """Measurements at one level of application CPU."""

    cpu_ms: float
    """Total application CPU per page."""
    ratios: Mapping[int, float]
    """Pages per second of two machines over one, by block."""


class Found(NamedTuple):
    """The crossing in milliseconds of application CPU. None: there is none in the measured range."""

    crossing: Estimate | None
    always: Literal["one", "two"] | None = None


class Curve:
    """The ratio of two machines to one as application CPU grows; levels ascend."""

    def __init__(self, levels: Sequence[Level], threshold: Threshold) -> None:
        self._threshold = threshold
        self._levels = sorted((each for each in levels if each.ratios and each.cpu_ms > 0), key=lambda at: at.cpu_ms)
        self._at = [math.log(level.cpu_ms) for level in self._levels]
        self._logs = [{block: math.log(ratio) for block, ratio in level.ratios.items()} for level in self._levels]

    def found(self) -> Found:
        if not self._levels:
            return Found(None)
        judged = [self._judged(log_ms) for log_ms in self._at]
        bracket = next((i for i in range(1, len(judged)) if judged[i - 1].value < 0 <= judged[i].value), None)
        if bracket is None:
            return Found(None, self._always())
        if self._resolves_nothing():
            return Found(None)
        log_ms = bisected(lambda at: self._judged(at).value, self._at[bracket - 1], self._at[bracket])
        steps = _STEPS * max(len(self._at) - 1, 1)
        low, high = (_limit(self._judged, log_ms, end, steps) for end in (self._at[0], self._at[-1]))
        if low is None and high is None and any(each.low is not None for each in judged):
            return Found(None)  # no level is resolved from 1, so the line may cross it anywhere
        return Found(
            Estimate(
                value=math.exp(log_ms),
                low=None if low is None else math.exp(low),
                high=None if high is None else math.exp(high),
            )
        )

    def _resolves_nothing(self) -> bool:
        """Whether no level differs from 1 beyond the noise floor, so that noise alone may make the line cross it."""
        beyond = Threshold(self._threshold.floor, 1)
        quoted = [judge_ratio(list(level.ratios.values())).quoted for level in self._levels]
        known = [ratio for ratio in quoted if ratio.low is not None]
        return bool(known) and not any(beyond.resolve(ratio).is_difference for ratio in known)

    def _always(self) -> Literal["one", "two"] | None:
        """Which is better at every level, each resolved from 1 and beyond the noise floor. None: it differs, or one is not
        resolved."""
        found = {self._threshold.resolve(judge_ratio(list(level.ratios.values())).quoted) for level in self._levels}
        return _BETTER.get(found.pop()) if len(found) == 1 else None

    def _judged(self, log_ms: float) -> Estimate:
        """The log ratio at this CPU, over the blocks that have both ends of the line."""
        after = next((i for i, at in enumerate(self._at) if at >= log_ms), len(self._at) - 1)
        before = max(after - 1, 0)
        width = self._at[after] - self._at[before]
        share = (log_ms - self._at[before]) / width if width > 0 else 1.0
        low, high = self._logs[before], self._logs[after]
        if share <= 0 or share >= 1:
            return mean_interval(list((low if share <= 0 else high).values()))
        both = [(1 - share) * low[block] + share * high[block] for block in high if block in low]
        if not both:
            value = (1 - share) * fmean(low.values()) + share * fmean(high.values())
            return Estimate(value=value, low=None, high=None)
        return mean_interval(both)


def _resolved(judged: Estimate) -> bool:
    return judged.low is not None and judged.high is not None and not judged.low <= 0 <= judged.high


def _limit(
    judged: Callable[[float], Estimate], log_ms: float, end: float, steps: int, bisections: int = BISECTIONS
) -> float | None:
    """The farthest point towards `end` whose log ratio is still not resolved from 0. None: `end` itself is not."""
    inside = log_ms
    for step in range(1, steps + 1):
        at = log_ms + (end - log_ms) * step / steps
        if _resolved(judged(at)):
            return bisected(lambda x: 1.0 if _resolved(judged(x)) else -1.0, inside, at, bisections)
        inside = at
    return None


# ---------------------------------------------------------------- the crossing, by the model


def _predicted(model: Predictor, two: ArmTrials, swept: tuple[float, float]) -> dict[str, Any]:
    """The model's fields of a `Crossing`; none where it has no answer."""
    found, half = (model.ratio(two.route, two.threads, share) for share in (1.0, 0.5))
    if found is None:
        return {}
    ratio, ends = cache(found.at), (found.least_ms, swept[1] * BEYOND)
    curve_ms = tuple(_grid(*swept, POINTS))
    free = found.without_link_cpu()
    crossings = {
        "predicted_ms": (found, model_crossing(ratio, *ends)),
        "without_link_cpu_ms": (free, _pays_from(free, *ends)),
        "half_turns_ms": (half, _pays_from(half, *ends)),
    }
    return {
        **{name: at_ms for name, (_, at_ms) in crossings.items()},
        **{f"{name}{SUFFIX}": _limits(of, at_ms, *ends) for name, (of, at_ms) in crossings.items()},
        "predicted_always": model_always(ratio, *ends),
        "curve_ms": curve_ms,
        "curve_ratio": tuple(ratio(cpu_ms) for cpu_ms in curve_ms),
    }


def _limits(found: ModelRatio | None, at_ms: float | None, least_ms: float, most_ms: float) -> OpenInterval | None:
    """Fieller's interval of the model's crossing, as for the measured one: every application CPU at which the blocks' ratios by the
    model are not resolved from 1. None: too few blocks, or no crossing."""
    if found is None or at_ms is None or len(found.blocks) < MIN_BLOCKS:
        return None

    def judged(log_ms: float) -> Estimate:
        return mean_interval([math.log(ratio) for ratio in found.each_at(math.exp(log_ms))])

    at = math.log(at_ms)
    if at_ms <= least_ms and _resolved(judged(at)):
        return None, at_ms
    low, high = (_limit(judged, at, math.log(end), 2 * _STEPS, _COARSE) for end in (least_ms, most_ms))
    return None if low is None else math.exp(low), None if high is None else math.exp(high)


def model_crossing(ratio: Ratio, least_ms: float, most_ms: float) -> float | None:
    """The first application CPU at which the model's ratio rises through 1. None: not in this range."""
    for low, high in pairwise(_grid(least_ms, most_ms, 4 * POINTS)):
        if ratio(low) < 1 <= ratio(high):
            return bisected(lambda cpu_ms: ratio(cpu_ms) - 1, low, high)
    return None


def model_always(ratio: Ratio, least_ms: float, most_ms: float) -> Literal["one", "two"] | None:
    """Whether one machine or two are better throughout the range, by the model. None: it changes."""
    found = [ratio(cpu_ms) for cpu_ms in _grid(least_ms, most_ms, 4 * POINTS)]
    return "two" if min(found) >= 1 else "one" if max(found) < 1 else None


def _pays_from(found: ModelRatio | None, least_ms: float, most_ms: float) -> float | None:
    """The least application CPU at which two machines are better. None: at none in this range."""
    if found is None:
        return None
    ratio = cache(found.at)
    return least_ms if ratio(least_ms) >= 1 else model_crossing(ratio, least_ms, most_ms)


def _grid(low: float, high: float, points: int) -> list[float]:
    """Points evenly spaced on the logarithm; the ends are exact."""
    if high <= low:
        return [low]
    inner = [low * (high / low) ** (step / (points - 1)) for step in range(1, points - 1)]
    return [low, *inner, high]
