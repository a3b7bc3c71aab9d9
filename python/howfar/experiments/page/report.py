"""The experiment on pages, `Pages`, and its report. Sections follow a reader's questions: one machine or two, from when a second one
pays, where a page's time goes, which delays people notice, how well a model predicts it, and the limits of the run."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from operator import itemgetter
from typing import ClassVar

from howfar.analysis.advice import Advice
from howfar.analysis.answer import clauses
from howfar.analysis.cells import CellSummary
from howfar.analysis.summary import Findings, RunEvidence, Summary
from howfar.experiments.experiment import Experiment, Keys
from howfar.experiments.page import charts
from howfar.experiments.page.analysis import page_findings
from howfar.experiments.page.charts import split_arms, time_parts
from howfar.experiments.page.conclusions import (
    answers,
    break_evens,
    model_findings,
    page_advice,
    page_sentences,
    round_trips,
    unresolved_reason,
)
from howfar.experiments.page.findings import (
    AtCpu,
    Crossing,
    PageArm,
    PageChoice,
    PageFindings,
    PageSetting,
    RoundTripCost,
    Route,
    RouteError,
)
from howfar.experiments.page.labels import (
    APPLICATIONS,
    DEGRADED_MS,
    NOTICED_MS,
    crossing_text,
    format_ns,
    in_flight_text,
    location_text,
    predicted_crossing_text,
    prediction_text,
    series_labels,
    service_label,
    setting_labels,
    share_of_pages,
)
from howfar.experiments.page.texts import CAPTIONS, LIMITS, NOTES, REASONS, TEXTS, TITLES
from howfar.findings import Finding, capital, fill, join
from howfar.report.document import (
    Block,
    Bullets,
    Cell,
    Chart,
    Column,
    Details,
    Document,
    Fields,
    Row,
    Table,
    Text,
    make_table,
)
from howfar.report.figures import TOO_CLOSE, TOO_FEW_TRIALS, UNKNOWN, number, percent, ratio, share
from howfar.report.frame import frame
from howfar.report.sections import cell_records, csv_columns, csv_value, trial_blocks
from howfar.services import SERVICES
from howfar.stats.estimate import Estimate, Part
from howfar.stats.histograms import percentile_ms
from howfar.stats.intervals import estimate_text, noise_floor_text
from howfar.stats.resample import figure_text

QUANTILES = (0.9, 0.95, 0.99, 0.999)
"""Quantiles in the latency table, over the pages of all trials. The p50 next to them is computed as in all other tables."""
ROLES = ("application", "visitor", "server", "redis", "memcached", "forwarder", "link")


class Pages(Experiment):
    """One machine or two for a web page."""

    name = "page"
    texts = TEXTS
    findings: ClassVar[Keys] = {"pages": PageFindings}
    own_model = True

    def analyse(self, evidence: RunEvidence) -> Mapping[str, Part | None]:
        return {"pages": page_findings(evidence.table, evidence.floors)}

    def with_sentences(self, finding: Part) -> Part:
        assert isinstance(finding, PageFindings)
        return finding.model_copy(update={"sentences": page_sentences(finding)})

    def without_answer(self, key: str, finding: Part) -> Part | None:
        return finding.model_copy(update={"crossings": ()}) if isinstance(finding, PageFindings) else finding

    def conclude(self, evidence: RunEvidence, findings: Findings) -> tuple[Finding, ...]:
        pages = findings["pages"]
        return answers(pages) if isinstance(pages, PageFindings) else ()

    def explain(self, evidence: RunEvidence, findings: Findings) -> tuple[Finding, ...]:
        pages = findings["pages"]
        causes = round_trips(pages) if isinstance(pages, PageFindings) else ()
        return tuple(cause for cause in causes if cause.id == "round-trips")

    def advice(self, evidence: RunEvidence, findings: Findings) -> tuple[Advice, ...] | None:
        pages = findings["pages"]
        return page_advice(pages) if isinstance(pages, PageFindings) else None

    def document(self, summary: Summary) -> Document:
        findings = summary.require_findings(PageFindings)
        is_answered, levels = not summary.answer.is_missing, findings.headline_levels()
        crossings = findings.headline_crossings()
        other_levels = [choice for choice in findings.choices if choice not in levels]
        other_crossings = (
            [crossing for crossing in findings.crossings if crossing not in crossings] if is_answered else []
        )
        sections: list[tuple[str, Sequence[Block | None]]] = [
            (
                "When a second machine pays",
                (crossings_table(crossings if is_answered else ()), choices_table(findings, levels, is_answered)),
            ),
            ("More findings", (_bullets(findings.sentences[1:] if is_answered else ()), published_table(findings))),
            ("Where the time goes", (_split_chart(findings, is_answered), round_trips_table(findings))),
            ("Latency", (latency_chart(summary, findings),)),
            ("The model", _model_blocks(findings) if is_answered else ()),
            ("CPU", (cpu_table(findings, findings.headline_arms()),)),
            (
                EVERY_ARM,
                (
                    crossings_table(other_crossings),
                    choices_table(findings, other_levels, is_answered),
                    arms_table(findings),
                    cpu_table(findings, findings.arms),
                ),
            ),
            ("Limits of this run", (_bullets(_limits(summary, findings)),)),
        ]
        below = [
            Details(title, nonempty, open=title != EVERY_ARM)
            for title, blocks in sections
            if (nonempty := tuple(block for block in blocks if block is not None))
        ]
        chart, table = _crossing_chart(findings), first_table(summary, findings)
        records_by_arm = page_records(findings)
        return frame(
            summary,
            [] if table is None else [table],
            answer_charts=[] if chart is None else [chart],
            more_blocks=[*below, *trial_blocks(summary)],
            records=[{**record, **records_by_arm.get(str(record["arm"]), {})} for record in cell_records(summary)],
        )


EVERY_ARM = "Every arm"


def _table(
    title: str, rows: Sequence[Row], fields: Fields[Row], notes: Sequence[str] = (), main: bool = False
) -> Table | None:
    """A table. None without rows."""
    return make_table(title, rows, fields, notes, main) if rows else None


def _bullets(lines: Sequence[str]) -> Bullets | None:
    return Bullets(tuple(lines)) if lines else None


def with_interval(estimate: Estimate | None, minimum: float = 0.0) -> str:
    """`105 [102, 108]`, or the value alone if there is no interval. No limit is below `minimum`."""
    return UNKNOWN if estimate is None else estimate_text(estimate, lambda value: number(max(value, minimum)))


# ---------------------------------------------------------------- one machine or two


def first_table(summary: Summary, findings: PageFindings) -> Table | None:
    """The main table: a row for each arm of each page's headline setting."""
    settings, arms = findings.headline_settings(), findings.headline_arms()
    if not arms:
        return None
    low_load_settings = [findings.fewest_in_flight(setting) for setting in settings]
    low_load_arms = {(arm.page, arm.route): arm for setting in low_load_settings for arm in findings.arms_of(setting)}
    fewest_text, most_text = (
        _join_counts({setting.threads for setting in candidates}) for candidates in (low_load_settings, settings)
    )
    choices = _choices_by_key(findings)
    tcp_over_socket_by_setting = {choice.setting: choice.tcp_over_socket for choice in choices.values()}

    def ratio_to_sockets(arm: PageArm) -> str:
        if arm.path == "socket":
            return "1"
        choice = choices.get(_comparison_key(arm))
        return ratio(
            choice.two_over_one
            if choice
            else tcp_over_socket_by_setting.get(arm.setting)
            if arm.machines == 1
            else None
        )

    def p50(arm: PageArm) -> str:
        low_load_arm = low_load_arms.get((arm.page, arm.route))
        p50s = [] if low_load_settings == settings else [number(low_load_arm.p50_ms if low_load_arm else None)]
        return ", ".join([*p50s, number(arm.p50_ms)])

    counts = most_text if low_load_settings == settings else f"{fewest_text}, {most_text}"
    application = join(sorted({APPLICATIONS[setting.subject.application] for setting in settings}))
    notes = [
        fill(NOTES["first"], application=application, fewest=fewest_text, most=most_text, noticed=NOTICED_MS),
        *([NOTES["machines"]] if any(arm.cpu_ms.get("link") for arm in arms) else []),
        *_round_trip_notes(arms),
        *(() if summary.answer.is_missing else _answer_notes(findings)),
        fill(NOTES["shown"], shown=len(arms), cells=len(summary.cells), section=EVERY_ARM),
    ]
    fields: Fields[PageArm] = {
        "": lambda arm: f"{arm.page}: {location_text(arm, findings)}",
        "pages/s": lambda arm: number(arm.pages_per_s.value),
        **({} if summary.answer.is_missing else {"of sockets\n[95 %]": ratio_to_sockets}),
        f"p50 ms at\n{counts}": p50,
        f"over {NOTICED_MS}\nms": lambda arm: share_of_pages(arm.over_noticed),
        "app CPU\nms/page": lambda arm: number(arm.application_cpu_ms),
    }
    return _table("One machine or two?", arms, fields, notes, main=True)


def _round_trip_notes(arms: Sequence[PageArm]) -> list[str]:
    """The round trips of each page, by service."""
    counts_by_page = {arm.page: arm.turns for arm in reversed(arms) if arm.turns}
    return [
        fill(
            NOTES["round-trips"],
            page=page,
            counts=join([f"{cost.turns:.0f} {service_label(cost.service)}" for cost in costs]),
        )
        for page, costs in reversed(counts_by_page.items())
    ]


def _answer_notes(findings: PageFindings) -> Iterable[str]:
    """Why a page of the answer is too close to call, and break-even points with their intervals."""
    for choice in findings.headline_choices():
        if not choice.resolution.is_difference:
            yield fill(NOTES["unclear"], page=choice.page, reason=_reason(findings, choice))
        if (crossing := findings.crossing(choice)) is not None:
            yield fill(NOTES["break-even"], page=choice.page, crossing=crossing_text(crossing))


def _reason(findings: PageFindings, choice: PageChoice) -> str:
    threshold = findings.threshold(2)
    floor = "" if threshold.floor is None else f" of {noise_floor_text(threshold.floor)}"
    return fill(REASONS[unresolved_reason(choice, threshold)], floor=floor, comparisons=threshold.comparisons)


def _better_text(choice: PageChoice) -> str:
    if choice.two_over_one.low is None:
        return TOO_FEW_TRIALS
    return choice.better if choice.resolution.is_difference else TOO_CLOSE


def _join_counts(counts: set[int]) -> str:
    return join([str(count) for count in sorted(counts)])


def _crossing_chart(findings: PageFindings) -> Chart | None:
    if not findings.swept_levels():
        return None
    layers = {
        "crossing": True,
        "crossing, model": any(crossing.curve_ms for crossing in findings.crossings),
        "crossing, measured": any(crossing.measured_ms for crossing in findings.crossings),
        "crossing, floor": bool(findings.link_noise_floor),
    }
    return Chart(
        name="crossing",
        title=_finding_text(break_evens(findings)) or TITLES["crossing"],
        caption="".join(CAPTIONS[name] for name, applies in layers.items() if applies),
        make=partial(charts.crossing_chart, findings),
        data=choices_table(findings, findings.headline_levels()),
    )


def _finding_text(findings: Sequence[Finding]) -> str:
    """Findings as the title of a chart. Empty without findings."""
    return capital(clauses(findings, TEXTS))


def crossings_table(crossings: Sequence[Crossing]) -> Table | None:
    """The application's CPU per page from which two machines serve more pages than one."""
    names = dict(zip((id(row) for row in crossings), series_labels(crossings), strict=True))
    fields: dict[str | Column, Callable[[Crossing], str | Cell]] = {
        "page": lambda row: names[id(row)],
        "second machine\npays from": crossing_text,
        "predicted": lambda row: predicted_crossing_text(row) or UNKNOWN,
    }
    notes = [NOTES["crossing"]]
    what_if_columns = {"without the\nemulator": "without_link_cpu_ms", "with half the\nround trips": "half_turns_ms"}
    for head, figure in what_if_columns.items():
        if any(getattr(crossing, figure) is not None for crossing in crossings):
            fields[head] = partial(prediction_text, figure=figure)
    if len(fields) > 3:
        notes.append(NOTES["without emulator"])
    fields["measured\nfrom, to"] = lambda row: ", ".join(number(end) for end in row.swept_ms)
    return _table("Application CPU from which a second machine pays", crossings, fields, notes)


def choices_table(findings: PageFindings, choices: Sequence[PageChoice], is_answered: bool = True) -> Table | None:
    """A row for each comparison of one machine and two, by ascending application CPU. `is_answered`: whether the run has an answer;
    without one, the model's figures are left out."""
    order = list(dict.fromkeys((choice.subject, choice.route) for choice in choices))
    choices = sorted(
        choices, key=lambda row: (order.index((row.subject, row.route)), -row.threads, row.app_cpu_total_ms)
    )
    names = dict(zip(map(id, choices), series_labels(choices), strict=True))
    fields: dict[str | Column, Callable[[PageChoice], str | Cell]] = {
        "page": lambda row: names[id(row)],
        "application\nCPU ms": lambda row: number(row.app_cpu_total_ms),
        "two over one\n[95 %]": lambda row: ratio(row.two_over_one),
    }
    if is_answered and any(choice.predicted is not None for choice in choices):
        fields["predicted\n[95 %]"] = lambda row: (
            UNKNOWN if row.predicted is None else figure_text(row.predicted, row.predicted_interval, "{:.2f}".format)
        )
    fields["better"] = _better_text
    if any(choice.longer_ms is not None for choice in choices):
        fields["ms longer\nwith two [95 %]"] = lambda row: with_interval(row.longer_ms, -math.inf)
    if any(choice.tcp_over_socket is not None for choice in choices):
        fields["TCP over\nsockets [95 %]"] = lambda row: ratio(row.tcp_over_socket)
    return _table("Two machines over one", choices, fields, (NOTES["choices"],))


def published_table(findings: PageFindings) -> Table | None:
    fields: Fields[tuple[str, float, float, float | None]] = {
        "page": lambda row: row[0],
        "two machines\nms": lambda row: number(row[1]),
        "one machine\nms": lambda row: number(row[2]),
        "two over\none": lambda row: f"{row[2] / row[1]:.2f}",
        "here": lambda row: f"{row[3]:.2f}",
    }
    rows = [row for row in findings.published if row[3] is not None]
    return _table("Published figures", rows, fields, (NOTES["published"],))


# ---------------------------------------------------------------- where the time goes


def _split_chart(findings: PageFindings, is_answered: bool) -> Chart | None:
    fields: dict[str | Column, Callable[[PageArm], str | Cell]] = {
        "ms per page": lambda arm: f"{arm.page}: {location_text(arm, findings)}"
    }
    for part in charts.PARTS:
        fields[part] = partial(_part_ms, part)
    fields["page"] = lambda arm: number(arm.page_ms.value)
    arms = [arm for arms_of_page in split_arms(findings).values() for arm in arms_of_page]
    arm_on_two_machines = next((arm for arm in arms if arm.machines == 2), None) if is_answered else None
    title = TITLES["split"]
    if arm_on_two_machines is not None:
        spent_ms = sum(ms for part, ms in time_parts(arm_on_two_machines).items() if part in charts.SERVICE_PARTS)
        title = fill(
            TITLES["split-round-trips"],
            page=arm_on_two_machines.page,
            round_trips_ms=spent_ms,
            page_ms=arm_on_two_machines.page_ms.value,
        )
    make = partial(charts.split_chart, findings)
    return Chart("split", title, CAPTIONS["split"], make, _table("", arms, fields)) if arms else None


def _part_ms(part: str, arm: PageArm) -> str:
    return number(time_parts(arm)[part])


def round_trips_table(findings: PageFindings) -> Table | None:
    """Microseconds per round trip, with a column for each path. Rows are from the arms with the least load of each page, application
    and kind of connections."""
    arms_by_label = [
        {location_text(arm, findings): arm for arm in findings.arms_of(setting) if arm.turns}
        for setting in findings.least_loaded_settings().values()
    ]
    arms_by_label = [arms for arms in arms_by_label if arms]
    columns = list(dict.fromkeys(name for arms in arms_by_label for name in arms))
    columns.sort(key=lambda column: not column.startswith("one"))  # stable: paths stay in the run's order
    rows: list[list[str]] = []
    for name, arms in zip(
        setting_labels([next(iter(arms.values())) for arms in arms_by_label]), arms_by_label, strict=True
    ):
        for service in dict.fromkeys(cost.service for arm in arms.values() for cost in arm.turns):
            costs = [_cost_of_service(arms.get(column), service) for column in columns]
            known_costs = [cost for cost in costs if cost is not None]
            row_label = f"{name}: {service_label(service)}"
            rows.append(
                [row_label, f"{known_costs[0].turns:.4g}", *(number(cost.mean_us if cost else None) for cost in costs)]
            )
            if any(cost.connect_us is not None for cost in known_costs):
                connect_cells = [number(cost.connect_us if cost else None) for cost in costs]
                rows.append(
                    [f"{row_label} connect", f"{max(cost.connects for cost in known_costs):.3g}", *connect_cells]
                )
    notes = [NOTES["clock"]]
    if any(arm.application == "php" and arm.connect == "persistent" for arms in arms_by_label for arm in arms.values()):
        services = {cost.service for arms in arms_by_label for arm in arms.values() for cost in arm.turns}
        checked = [service_label(name) for name in SERVICES if name in services & {"mysql", "redis"}]
        notes.append(fill(NOTES["kept"], targets=join(checked)))
    rest_rtts_us = {
        number(arm.rtt_ms * 1e3) for arms in arms_by_label for arm in arms.values() if arm.rtt_ms is not None
    }
    if rest_rtts_us:
        notes.append(fill(NOTES["rest"], us=join(sorted(rest_rtts_us))))
    two_lines = (column.replace("one, ", "one machine\n").replace("two, ", "two machines\n") for column in columns)
    heads = ["µs per round trip\nto", "round trips\nper page", *two_lines]
    fields: Fields[list[str]] = {head: itemgetter(index) for index, head in enumerate(heads)}
    return _table("What a round trip costs", rows, fields, notes)


def _cost_of_service(arm: PageArm | None, service: str) -> RoundTripCost | None:
    return next((cost for cost in arm.turns if cost.service == service), None) if arm else None


def latency_chart(summary: Summary, findings: PageFindings) -> Chart | None:
    curves = {cell.arm: [(point.quantile, point.ms) for point in cell.latency_curve] for cell in summary.cells}
    arms, cells = findings.headline_arms(), {cell.arm: cell for cell in summary.cells}
    if not any(curves.get(arm.arm) for arm in arms):
        return None
    fields: dict[str | Column, Callable[[PageArm], str | Cell]] = {
        "ms": lambda arm: f"{arm.page}, {in_flight_text(arm.threads)}: {location_text(arm, findings)}",
        "p50": lambda arm: number(arm.p50_ms),
    }
    for quantile in QUANTILES:
        fields[f"{quantile * 100:g} %"] = partial(_percentile_ms, cells, quantile)
    fields[f"over {NOTICED_MS} ms"] = lambda arm: share_of_pages(arm.over_noticed)
    fields[f"over {DEGRADED_MS} ms"] = lambda arm: share_of_pages(arm.over_degraded)
    return Chart(
        name="latency",
        title=TITLES["latency"],
        caption=fill(CAPTIONS["latency"], noticed=NOTICED_MS, degraded=DEGRADED_MS),
        make=partial(charts.latency_chart, findings, curves),
        data=_table("", arms, fields),
    )


def _percentile_ms(cells: Mapping[str, CellSummary], quantile: float, arm: PageArm) -> str:
    cell = cells.get(arm.arm)
    return number(percentile_ms(cell.latency_ms, cell.latency_curve, quantile) if cell else None)


# ---------------------------------------------------------------- the model, CPU


def _model_blocks(findings: PageFindings) -> list[Block | None]:
    arms = [arm for arm in findings.arms if arm.predicted_p50_ms is not None]
    if not arms:
        return [Text(NOTES["no model"])]
    fields: Fields[PageArm] = {
        "page": lambda arm: arm.arm,
        "p50 ms": lambda arm: number(arm.p50_ms),
        "predicted [95 %]": lambda arm: figure_text(arm.predicted_p50_ms or 0.0, arm.predicted_p50_ms_interval, number),
        "error": lambda arm: percent(arm.predicted_error, signed=True),
    }
    chart = Chart(
        name="prediction",
        title=_finding_text([*model_findings(findings.model)]),
        caption=CAPTIONS["prediction"],
        make=partial(charts.prediction_chart, findings),
        data=_table("", arms, fields),
    )
    routes: Fields[RouteError] = {
        "path": lambda route: route.path,
        "RTT": lambda route: UNKNOWN if route.rtt_ns is None else format_ns(route.rtt_ns),
        "cells": lambda route: str(route.arms),
        "mean error": lambda route: percent(route.mean_error),
        "largest": lambda route: percent(route.worst_error, signed=True),
    }
    return [
        chart,
        _table("Predicted and measured", arms, fields, (NOTES["model"],)),
        _table("Errors by path", findings.model.by_way, routes),
    ]


def cpu_table(findings: PageFindings, arms: Sequence[PageArm]) -> Table | None:
    """CPU per page by role, and how busy the machines were."""
    roles = {role for arm in arms for role in arm.cpu_ms}
    names = {
        arm.arm: f"{name}: {location_text(arm, findings)}" for name, arm in zip(setting_labels(arms), arms, strict=True)
    }
    fields: dict[str | Column, Callable[[PageArm], str | Cell]] = {"CPU ms per page": lambda arm: names[arm.arm]}
    for role in (*(role for role in ROLES if role in roles), *sorted(roles - set(ROLES))):
        head = "link's\nemulator" if role == "link" else role
        fields[head] = partial(_cpu_ms, role)
    fields["all"] = lambda arm: number(arm.path_cpu_ms)
    fields["CPUs\nbusy"] = _busy_text
    return _table("CPU by role", arms if roles else (), fields, (NOTES["busy"],))


def _cpu_ms(role: str, arm: PageArm) -> str:
    return number(arm.cpu_ms.get(role))


def _busy_text(arm: PageArm) -> str:
    """`99 %`; of two machines `41 %, 87 %`."""
    shares = [arm.busy[machine] for machine in ("both", "application", "database") if machine in arm.busy]
    return ", ".join(f"{value * 100:.0f} %" for value in shares) or UNKNOWN


def arms_table(findings: PageFindings) -> Table | None:
    fields: dict[str | Column, Callable[[PageArm], str | Cell]] = {
        "page": lambda arm: arm.arm,
        "pages/s [95 %]": lambda arm: with_interval(arm.pages_per_s),
        "ms per page [95 %]": lambda arm: with_interval(arm.page_ms),
        "p50 / p95 / p99": lambda arm: " / ".join(number(value) for value in (arm.p50_ms, arm.p95_ms, arm.p99_ms)),
        f"over {NOTICED_MS} ms": lambda arm: share_of_pages(arm.over_noticed),
        f"over {DEGRADED_MS} ms": lambda arm: share_of_pages(arm.over_degraded),
        "own CPU ms": lambda arm: number(arm.own_cpu_ms),
        "CPU ms": lambda arm: number(arm.path_cpu_ms),
        "CPUs allow pages/s [95 %]": lambda arm: with_interval(arm.allowed_per_s),
    }
    if any(arm.connecting_ms is not None for arm in findings.arms):
        fields["connecting adds ms [95 %]"] = lambda arm: with_interval(arm.connecting_ms)
    return _table("", findings.arms, fields)


# ---------------------------------------------------------------- limits of the run


def _limits(summary: Summary, findings: PageFindings) -> list[str]:
    """Sentences on the limits of this run, computed from its figures."""
    sentences, cpus = [], summary.machine_cpus or 0
    # The strongest objection: the emulator takes CPU time from both machines, which a network card would not.
    if arms_with_emulator := [arm for arm in findings.arms if arm.machines == 2 and arm.cpu_ms.get("link")]:
        arm = max(arms_with_emulator, key=lambda entry: entry.emulator_cpus)
        figures = {"cpus": arm.emulator_cpus, "of_cpus": f" of {cpus}" if cpus else "", "arm": arm.arm}
        link, others = number(arm.cpu_ms["link"]), number(arm.path_cpu_ms)
        sentences.append(fill(LIMITS["emulator"], **figures, link=link, others=others))
    if cpus >= 2:
        sentences.append(fill(LIMITS["half"], own=cpus // 2))
    if arms_with_visitor := [arm for arm in findings.arms if arm.cpu_ms.get("visitor")]:
        arm = max(arms_with_visitor, key=lambda entry: entry.cpu_ms["visitor"] / entry.path_cpu_ms)
        visitor = arm.cpu_ms["visitor"]
        figures = {"share": share(visitor / arm.path_cpu_ms), "visitor": number(visitor), "arm": arm.arm}
        sentences.append(fill(LIMITS["visitor"], **figures))
    if threads := {arm.threads for arm in findings.arms}:
        visitors = _join_counts(threads)
        sentences.append(fill(LIMITS["closed-loop"], visitors=visitors, noticed=NOTICED_MS, degraded=DEGRADED_MS))
    return sentences


# ---------------------------------------------------------------- records


def page_records(findings: PageFindings) -> dict[str, dict[str, object]]:
    """Additional columns of the cells' records, by arm. An arm with two machines includes the comparison with one machine."""
    choices = _choices_by_key(findings)
    return {arm.arm: _arm_record(arm) | _choice_record(choices.get(_comparison_key(arm))) for arm in findings.arms}


def _choices_by_key(findings: PageFindings) -> dict[tuple[PageSetting, Route], PageChoice]:
    return {_comparison_key(choice): choice for choice in reversed(findings.choices)}


def _comparison_key(comparison: AtCpu) -> tuple[PageSetting, Route]:
    return comparison.setting, comparison.route


def _arm_record(arm: PageArm) -> dict[str, object]:
    column_names = (
        "page application machines app_cpu_ns pages_per_s page_ms p50_ms over_noticed over_degraded own_cpu_ms"
    )
    figures: dict[str, float | None] = {
        **{f"{role}_cpu_ms": cpu for role, cpu in arm.cpu_ms.items()},
        **{f"{machine}_busy": share for machine, share in arm.busy.items()},
    }
    for cost in arm.turns:
        round_trips = {"turn_us" if name == "mean_us" else name: value for name, value in cost if name != "service"}
        figures |= {f"{cost.service}_{name}": value for name, value in round_trips.items()}
    return (
        csv_columns(arm, column_names, over_noticed="share_over_13_ms", over_degraded="share_over_75_ms")
        | {name: csv_value(value) for name, value in figures.items()}
        | csv_columns(arm, "rtt_ms predicted_p50_ms predicted_error")
    )


def _choice_record(choice: PageChoice | None) -> dict[str, object]:
    if choice is None:
        return {}
    column_names = "app_cpu_total_ms two_over_one predicted tcp_over_socket better"
    return csv_columns(choice, column_names, predicted="two_over_one_predicted")
