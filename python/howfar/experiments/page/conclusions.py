"""What the figures about pages show, as findings: the answer, its causes, and the advice that follows."""

from __future__ import annotations

import math
from collections.abc import Iterable

from howfar.analysis.advice import Advice, Parameters
from howfar.analysis.answer import sentence, sentences
from howfar.experiments.page.findings import ERROR_BAR, Crossing, PageArm, PageChoice, PageFindings, PageModel
from howfar.experiments.page.labels import crossing_text, service_label
from howfar.experiments.page.texts import ADVICE, KEEPING, KEEPING_SQL, SOCKET_LINES, TEXTS
from howfar.findings import Finding, Quantity, fill, join
from howfar.services import SERVICES
from howfar.stats.estimate import Estimate
from howfar.stats.intervals import Resolution, Threshold, excludes_one, excludes_zero, interval_text

_EXAMPLE_WORKERS = 20
"""Workers of a common PHP pool, for an example."""


def answers(findings: PageFindings) -> tuple[Finding, ...]:
    """Which is better for each page, and from which application CPU a second machine pays."""
    choices = findings.headline_choices()
    if not choices:
        return (Finding(id="no-pair"),)
    is_resolved = any(choice.resolution.is_difference for choice in choices)
    compared = [
        Finding(
            id="difference" if choice.resolution.is_difference else "unclear" if is_resolved else "all-unclear",
            subject=choice.page,
            metric=Quantity.THROUGHPUT,
            estimate=choice.two_over_one,
            verdict=choice.resolution,
        )
        for choice in choices
    ]
    compared.sort(key=lambda finding: finding.id != "difference")
    return (*compared, *break_evens(findings))


def break_evens(findings: PageFindings) -> tuple[Finding, ...]:
    """For each page, from which application CPU a second machine pays."""
    crossings = (findings.crossing(choice) for choice in findings.headline_choices())
    return tuple(finding for crossing in crossings if crossing for finding in _describe_break_even(crossing))


def _describe_break_even(crossing: Crossing) -> Iterable[Finding]:
    """The break-even point of one page. Empty if it is not resolved."""
    measured, (min_ms, max_ms) = crossing.measured_ms, crossing.swept_ms
    if measured is not None:
        if measured.low is not None or measured.high is not None:
            parameters = {"cpu_ms": measured.value}
            yield Finding(
                id="break-even",
                subject=crossing.page,
                metric=Quantity.PAGE_CPU,
                estimate=measured,
                parameters=parameters,
            )
    elif crossing.always is not None:
        name, cpu_ms = ("never-gains", max_ms) if crossing.always == "one" else ("always-gains", min_ms)
        yield Finding(id=name, subject=crossing.page, parameters={"cpu_ms": cpu_ms})


def unresolved_reason(choice: PageChoice, threshold: Threshold) -> str:
    """Id of the reason why neither one machine nor two is better."""
    ratio = choice.two_over_one
    if ratio.low is None:
        return "no-interval"
    if not excludes_one(ratio):
        return "includes-1"
    if threshold.floor is None:
        return "no-floor"
    return "within-floor" if abs(math.log(ratio.value)) < math.log1p(threshold.floor) else "chance"


# ---------------------------------------------------------------- causes


def causes(findings: PageFindings) -> tuple[Finding, ...]:
    """What explains the answer."""
    return (
        *_compare_tcp(findings),
        *round_trips(findings),
        *_connecting_costs(findings),
        *_worker_limits(findings),
        *model_findings(findings.model),
        *_unpredicted_cells(findings.model),
    )


def page_sentences(findings: PageFindings) -> tuple[str, ...]:
    """The answer and its causes in text. Empty if there are too few blocks for an answer."""
    if findings.choices and all(choice.two_over_one.low is None for choice in findings.choices):
        return ()
    return (sentence(answers(findings), TEXTS), *sentences(causes(findings), TEXTS))


def _compare_tcp(findings: PageFindings) -> Iterable[Finding]:
    for choice in findings.headline_choices():
        if (ratio := choice.tcp_over_socket) is not None:
            verdict = findings.threshold(1).resolve(ratio)
            name = "tcp" if verdict.is_difference else "tcp-unclear"
            yield Finding(id=name, subject=choice.page, metric=Quantity.THROUGHPUT, estimate=ratio, verdict=verdict)


def _find_costliest_page(findings: PageFindings) -> tuple[PageChoice, PageArm, Estimate, float] | None:
    """The page with the most round trips, with one in flight: its comparison, its arm on two machines, how much longer it takes there,
    and its number of round trips. None if it does not take longer."""
    candidates = [
        (choice, pair[1], choice.longer_ms, sum(cost.turns for cost in pair[1].turns))
        for choice in findings.headline_choices(threads=1)
        if choice.longer_ms is not None and (pair := findings.pair(choice)) is not None
    ]
    costliest = max(candidates, key=lambda candidate: candidate[-1], default=None)
    return None if costliest is None or costliest[-1] < 1 or costliest[2].value <= 0 else costliest


def round_trips(findings: PageFindings) -> tuple[Finding, ...]:
    """How much longer the round trips of the costliest page take on two machines."""
    if (costliest := _find_costliest_page(findings)) is None:
        return ()
    _, arm, longer, count = costliest
    return (
        Finding(
            id="round-trips" if excludes_zero(longer) else "round-trips-unclear",
            subject=arm.page,
            metric=Quantity.ADDED_PAGE_TIME,
            estimate=longer,
            parameters={"round_trips": count, "each_ms": longer.value / count},
        ),
    )


def _connecting_costs(findings: PageFindings) -> Iterable[Finding]:
    """Real pages that open connections for each page, and how much longer they take than with kept connections, if that is resolved.
    They are on sockets or on the simplest route to a second machine, with the fewest pages in flight."""
    arms_by_page: dict[tuple[str, int], PageArm] = {}
    for arm in sorted(findings.arms, key=lambda entry: (entry.threads, entry.app_cpu_ns, entry.route.rank)):
        if arm.application == "php" and arm.path != "tcp" and arm.connecting_ms is not None:
            arms_by_page.setdefault((arm.page, arm.machines), arm)
    for arm in arms_by_page.values():
        if (verdict := findings.threshold(arm.machines).resolve(arm.over_kept)) is Resolution.SLOWER:
            location = "sockets" if arm.machines == 1 else "two machines"
            parameters: dict[str, str | int | float] = {"location": location, "threads": arm.threads}
            yield Finding(
                id="connecting",
                subject=arm.page,
                metric=Quantity.ADDED_PAGE_TIME,
                estimate=arm.connecting_ms,
                verdict=verdict,
                parameters=parameters,
            )


def _worker_limits(findings: PageFindings) -> Iterable[Finding]:
    """Two limits of throughput: PHP workers, and processors, both estimated from a single page in flight."""
    pairs = [pair for choice in findings.headline_choices(threads=1) if (pair := findings.pair(choice)) is not None]
    pairs = [pair for pair in pairs if pair[0].application == "php"]
    if not pairs:
        return
    one, two = max(pairs, key=lambda pair: pair[1].page_ms.value)
    parameters: dict[str, str | int | float] = {"workers": _EXAMPLE_WORKERS}
    parameters |= {name: _EXAMPLE_WORKERS * 1e3 / arm.page_ms.value for name, arm in (("one", one), ("two", two))}
    if one.allowed_per_s is None or two.allowed_per_s is None:
        yield Finding(id="workers", subject=one.page, parameters=parameters)
    else:
        parameters |= {"cpus_one": one.allowed_per_s.value, "cpus_two": two.allowed_per_s.value}
        yield Finding(id="workers-and-cpus", subject=one.page, parameters=parameters)


def model_findings(model: PageModel) -> Iterable[Finding]:
    """How well the model predicts real pages. Empty if it predicts none."""
    if model.mean_error is not None and model.worst_error is not None:
        parameters = {"cells": model.arms, "mean": model.mean_error, "worst": abs(model.worst_error), "bar": ERROR_BAR}
        yield Finding(id="model" if model.within_bar else "model-misses", parameters=parameters)


def _unpredicted_cells(model: PageModel) -> Iterable[Finding]:
    """The number of cells without a prediction. Empty if there are none."""
    if model.impossible:
        yield Finding(id="impossible", parameters={"cells": len(model.impossible)})


# ---------------------------------------------------------------- advice


def page_advice(findings: PageFindings) -> tuple[Advice, ...]:
    """Advice in the order in which a reader decides; each piece is based on a resolved figure."""
    return (
        *_machines_advice(findings, "one"),
        *_machines_advice(findings, "two"),
        *_sockets_advice(findings),
        *_round_trips_advice(findings),
        *_keeping_advice(findings),
    )


_MACHINES_ADVICE = {"one": "one-machine", "two": "two-machines"}
"""Ids of advice by where pages are better."""


def _figures_of(finding: Finding) -> Parameters:
    """The figures of advice that a finding supports."""
    estimate: Parameters = {} if finding.estimate is None else {"estimate": finding.estimate.value}
    return {"page": finding.subject, **estimate, **finding.parameters}


def _machines_advice(findings: PageFindings, better: str) -> Iterable[Advice]:
    if choices := [choice for choice in findings.headline_choices() if choice.better == better]:
        reasons = [text for choice in choices for text in _reasons(findings, choice)]
        pages = join([choice.page for choice in choices])
        parameters: Parameters = {"pages": pages}
        for choice in choices:
            parameters[f"{choice.page}_cpu_ms"] = choice.app_cpu_total_ms
            parameters[f"{choice.page}_two_over_one"] = choice.two_over_one.value
        yield Advice(
            action=fill(ADVICE[better], pages=pages),
            because=" ".join(dict.fromkeys(reasons)),
            id=_MACHINES_ADVICE[better],
            parameters=parameters,
        )


def _reasons(findings: PageFindings, choice: PageChoice) -> Iterable[str]:
    """How far a page is from the point at which the answer changes."""
    crossing, page_needs = findings.crossing(choice), {"page": choice.page, "own": choice.app_cpu_total_ms}
    if crossing is None:
        yield fill(ADVICE["needs"], **page_needs)
        return
    if crossing.measured_ms is not None:
        yield fill(ADVICE["needs, crossing"], **page_needs, crossing=crossing_text(crossing))
    else:
        levels = [other for other in findings.choices if other.series == crossing.series]
        best = max(levels, key=lambda other: other.two_over_one.value)
        ratio = interval_text(best.two_over_one)
        yield fill(ADVICE["needs, best"], **page_needs, cpu_ms=best.app_cpu_total_ms, ratio=ratio)
    if choice.better == "one" and crossing.without_link_cpu_ms is not None:
        # The emulator uses the processors of the two machines, so advice against two machines has to mention it.
        limits = crossing.without_link_cpu_ms_interval
        is_beyond = limits is not None and (limits[0] or 0.0) <= choice.app_cpu_total_ms
        yield ADVICE["beyond" if is_beyond else "near"]


def _services_used(findings: PageFindings) -> list[str]:
    """The services that the pages use, in the order in which tables list them."""
    used = {cost.service for arm in findings.arms for cost in arm.turns}
    return [name for name in SERVICES if name in used]


def _sockets_advice(findings: PageFindings) -> Iterable[Advice]:
    slower = [
        finding for finding in _compare_tcp(findings) if finding.verdict is Resolution.SLOWER and finding.estimate
    ]
    if slower:
        costliest = min(slower, key=lambda finding: finding.estimate.value if finding.estimate else 1.0)
        services = _services_used(findings)
        php = next((php for name in services if (php := SERVICES[name].php)), None) or SERVICES["mysql"].php
        _, how, line = php or ("", "", "")
        lines = (line for name in services for line in SOCKET_LINES.get(name, ()))
        yield Advice(
            action=fill(ADVICE["sockets"], how=how),
            because=sentence((costliest,), TEXTS),
            id="page-sockets",
            parameters=_figures_of(costliest),
            lines=("# PHP, PDO; `howfar doctor` finds this machine's path", line, *lines),
        )


def _round_trips_advice(findings: PageFindings) -> Iterable[Advice]:
    """Advice to save round trips, if one machine is faster for the page with the most of them, by a resolved figure."""
    costliest = _find_costliest_page(findings)
    for finding in round_trips(findings):
        if finding.id == "round-trips" and costliest is not None and costliest[0].better == "one":
            names = [cost.service for cost in costliest[1].turns]
            ways = [f"{service_label(name)}: {SERVICES[name].fewer_round_trips}" for name in names]
            action = fill(ADVICE["round-trips"], page=finding.subject, ways="; ".join(ways))
            because = sentence((finding,), TEXTS)
            yield Advice(action=action, because=because, id="page-round-trips", parameters=_figures_of(finding))


def _keeping_advice(findings: PageFindings) -> Iterable[Advice]:
    if costs := list(_connecting_costs(findings)):
        costliest = max(costs, key=lambda finding: finding.estimate.value if finding.estimate else 0.0)
        ways = dict.fromkeys(KEEPING.get(name, KEEPING_SQL) for name in _services_used(findings))
        yield Advice(
            action=fill(ADVICE["keep"], ways=", ".join(ways)),
            because=sentence((costliest,), TEXTS),
            id="keep-connections",
            parameters=_figures_of(costliest),
        )
