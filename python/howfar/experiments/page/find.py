"""All that a run says of pages, put together: `page_findings`. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean

from howfar.analysis.trials import TrialTable
from howfar.experiments.page.arms import PageTrials, page_arms, places
from howfar.experiments.page.choices import crossings, page_choices
from howfar.experiments.page.findings import PageArm, PageFindings, PageModel, WayError
from howfar.experiments.page.foresee import Foresight, foresights
from howfar.experiments.page.machines import Machinery, Processors
from howfar.experiments.page.published import published_rows
from howfar.experiments.page.scripts import page_scripts
from howfar.experiments.page.turns import turn_costs
from howfar.experiments.page.words import page_sentences
from howfar.stats import histograms

NOTICED_NS = 13_000_000
"""People notice a delay from here on; published with set-up C."""
DEGRADED_NS = 75_000_000
"""From here on the experience is degraded."""
BAR = 0.10
"""On p50, of every arm that is foreseen."""


def page_findings(table: TrialTable, floor: float | None) -> PageFindings | None:
    """None: this run is about something else, or has no good trial yet. `floor`: what this session can tell, of throughput."""
    found = page_arms(table)
    if not found:
        return None
    processors = Processors.of(table.run.info)
    grouped = places(found)
    foreseen = foresights(grouped, processors)
    arms = tuple(_arm(arm, processors, foreseen.get(arm.place)) for arm in found)
    choices = page_choices(grouped, foreseen, processors, floor)
    figures = PageFindings(
        arms=arms,
        choices=choices,
        crossings=crossings(grouped, foreseen, processors, floor),
        model=_model(
            arms,
            [
                arm.name
                for arm in found
                if (of := foreseen.get(arm.place)) and arm not in of.made_of and of.impossible(arm)
            ],
        ),
        scripts=page_scripts(table.run.info.plan),
        noise_floor=floor,
        published=published_rows(table.run.info.plan_name, choices),
        sentences=(),
    )
    return figures.model_copy(update={"sentences": page_sentences(figures)})


def page_verdict(found: PageFindings) -> str:
    """The answer of such a run. Empty: its figures say nothing yet."""
    return found.sentences[0] if found.sentences else ""


def _arm(arm: PageTrials, processors: Processors, foresight: Foresight | None) -> PageArm:
    machinery = Machinery(arm, processors)
    merged = histograms.merge(arm.histograms)
    latency = histograms.latency_ms(merged, arm.histograms)
    predicted_s = foresight.p50_s(arm) if foresight is not None else None
    own_s, rtt_s = arm.own_cpu_s, arm.rest_rtt_s
    return PageArm(
        arm=arm.name,
        page=arm.page,
        application=arm.application,
        path=arm.path,
        machines=arm.machines,
        connect=arm.connect,
        app_cpu_ns=arm.app_cpu_ns,
        threads=arm.threads,
        pages_per_s=arm.pages_per_s,
        page_ms=arm.mean_ms,
        p50_ms=arm.p50_s * 1e3,
        p95_ms=latency.p95,
        p99_ms=latency.p99,
        over_noticed=histograms.share_over(merged, NOTICED_NS),
        over_degraded=histograms.share_over(merged, DEGRADED_NS),
        cpu_ms={role: seconds * 1e3 for role, seconds in machinery.cpu_s.items()},
        own_cpu_ms=None if own_s is None else own_s * 1e3,
        turns=turn_costs(arm),
        busy={side.name: min(side.busy, 1.0) for side in machinery.sides},
        rtt_ns=arm.rtt_ns,
        rate_bps=arm.rate_bps,
        rtt_ms=None if rtt_s is None else rtt_s * 1e3,
        predicted_p50_ms=None if predicted_s is None else predicted_s * 1e3,
        predicted_error=None if predicted_s is None else predicted_s / arm.p50_s - 1,
    )


def _model(arms: Sequence[PageArm], impossible: Sequence[str]) -> PageModel:
    errors: Mapping[str, float] = {arm.arm: arm.predicted_error for arm in arms if arm.predicted_error is not None}
    by_way: dict[tuple[str, int | None], list[float]] = {}
    for arm in arms:
        if arm.predicted_error is not None:
            by_way.setdefault((arm.path, arm.rtt_ns), []).append(arm.predicted_error)
    worst = max(errors, key=lambda name: abs(errors[name]), default=None)
    return PageModel(
        arms=len(errors),
        mean_error=fmean(abs(error) for error in errors.values()) if errors else None,
        worst_error=None if worst is None else errors[worst],
        worst_arm=worst,
        within_bar=None if worst is None else abs(errors[worst]) <= BAR,
        by_way=tuple(_way_error(path, rtt_ns, found) for (path, rtt_ns), found in by_way.items()),
        impossible=tuple(impossible),
    )


def _way_error(path: str, rtt_ns: int | None, errors: Sequence[float]) -> WayError:
    return WayError(
        path=path,
        rtt_ns=rtt_ns,
        arms=len(errors),
        mean_error=fmean(abs(error) for error in errors),
        worst_error=max(errors, key=abs),
    )
