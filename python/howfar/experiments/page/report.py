"""The experiment on pages, `Pages`, and its report. Sections follow a reader's questions: one machine or two, from when a second one
pays, where a page's time goes, which delays people notice, how well a model predicts it, and the limits of the run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import ClassVar

from howfar.analysis.advice import Advice
from howfar.analysis.cells import CellSummary
from howfar.analysis.summary import Findings, RunEvidence, Summary
from howfar.experiments.experiment import Experiment, Keys
from howfar.experiments.page import charts
from howfar.experiments.page.analysis import page_findings
from howfar.experiments.page.charts import split_arms, time_parts
from howfar.experiments.page.findings import (
    AtCpu,
    Crossing,
    PageArm,
    PageChoice,
    PageFindings,
    PageSetting,
    RoundTripCost,
    Route,
)
from howfar.experiments.page.labels import (
    APPLICATIONS,
    DEGRADED_MS,
    NOTICED_MS,
    crossing_text,
    format_ms,
    in_flight_text,
    join_clauses,
    location_text,
    predicted_crossing_text,
    prediction_note,
    prediction_text,
    route_name,
    series_labels,
    setting_labels,
    share_of_pages,
)
from howfar.experiments.page.sentences import page_advice, page_verdict
from howfar.report.document import (
    Block,
    Bullets,
    Card,
    Cell,
    Chart,
    Column,
    Details,
    Document,
    Fields,
    Row,
    Table,
    Text,
    table_of,
)
from howfar.report.figures import UNKNOWN, number, percent, ratio, share
from howfar.report.frame import frame
from howfar.report.sections import cell_records, columns, trials, written
from howfar.services import SERVICES
from howfar.stats.estimate import Estimate, Part
from howfar.stats.histograms import percentile_ms
from howfar.stats.intervals import in_brackets
from howfar.stats.resample import within

QUANTILES = (0.9, 0.95, 0.99, 0.999)
"""Quantiles in the latency table, over the pages of all trials. The p50 next to them is computed as in all other tables."""
ROLES = ("application", "visitor", "server", "redis", "memcached", "forwarder", "link")
BETTER = {"one": "one machine", "two": "two machines", "not resolved": "not resolved"}


class Pages(Experiment):
    """One machine or two for a web page."""

    name = "page"
    findings: ClassVar[Keys] = {"pages": PageFindings}
    own_model = True

    def analyse(self, evidence: RunEvidence) -> Mapping[str, Part | None]:
        return {"pages": page_findings(evidence.table, evidence.floors)}

    def verdict(self, evidence: RunEvidence, findings: Findings) -> str:
        found = findings["pages"]
        return page_verdict(found) if isinstance(found, PageFindings) else ""

    def advice(self, evidence: RunEvidence, findings: Findings) -> tuple[Advice, ...] | None:
        found = findings["pages"]
        return page_advice(found) if isinstance(found, PageFindings) else None

    def document(self, summary: Summary) -> Document:
        findings = summary.the(PageFindings)
        sentences = tuple(sentence for sentence in findings.sentences if sentence not in summary.verdict)
        levels, crossings = findings.headline_levels(), findings.headline_crossings()
        other_tables = (
            choices_table([choice for choice in findings.choices if choice not in levels], tcp=True),
            crossings_table([crossing for crossing in findings.crossings if crossing not in crossings]),
        )
        sections: list[tuple[str, Sequence[Block | None]]] = [
            ("When a second machine pays", (crossings_table(crossings), choices_table(levels))),
            ("More findings", (Bullets(sentences) if sentences else None,)),
            ("Where the time goes", (_split_chart(findings), round_trips_table(findings))),
            ("Latency", (latency_chart(summary, findings),)),
            ("The model", _model_blocks(findings)),
            ("CPU", (cpu_table(findings, findings.headline_arms()),)),
            (EVERY_ARM, (*other_tables, arms_table(findings), cpu_table(findings, findings.arms))),
            ("Limits of this run", (Bullets(limits) if (limits := tuple(_limits(summary, findings))) else None,)),
        ]
        below = [
            Details(title, nonempty, open=title != EVERY_ARM)
            for title, blocks in sections
            if (nonempty := tuple(block for block in blocks if block is not None))
        ]
        records_by_arm = page_records(findings)
        return frame(
            summary,
            [block for block in (_crossing_chart(findings), first_table(findings)) if block is not None],
            cards=cards(findings),
            below=[*below, *trials(summary)],
            records=[{**record, **records_by_arm.get(str(record["arm"]), {})} for record in cell_records(summary)],
        )


EVERY_ARM = "Every arm"


def _table(
    title: str, rows: Sequence[Row], fields: Fields[Row], notes: Sequence[str] = (), main: bool = False
) -> Table | None:
    """A table. None: no rows."""
    return table_of(title, rows, fields, notes, main) if rows else None


def with_limits(found: Estimate) -> str:
    """`105 [102, 108]`, or the value alone if there is no interval."""
    return in_brackets(found, lambda value: number(max(value, 0.0)))


# ---------------------------------------------------------------- one machine or two


def cards(findings: PageFindings) -> tuple[Card, ...]:
    """A card for each page: which choice is better, by how much, and from which application CPU a second machine pays."""
    crossings = {(headline.page, headline.route): headline for headline in findings.headline_crossings()}
    cards = []
    for setting in findings.headline_settings():
        setting_choices = [choice for choice in findings.choices if choice.setting == setting]
        if not setting_choices:
            continue
        choice = setting_choices[0]
        over = (
            f" ({route_name(choice.route, [headline.route for headline in setting_choices])})"
            if len(setting_choices) > 1
            else ""
        )
        meaning = f"two machines{over} serve {ratio(choice.two_over_one)} of its pages per second, {in_flight_text(setting.threads)}"
        lines = []
        if (crossing := crossings.get((choice.page, choice.route))) is not None:
            crossing_clause = f"{crossing_text(crossing)}{prediction_note(crossing)}"
            lines.append(f"application CPU from which the second machine pays: {crossing_clause}")
            if crossing.without_link_cpu_ms is not None and crossing.predicted_always != "two":
                without_emulator = prediction_text(crossing, "without_link_cpu_ms")
                lines.append(f"without the emulator's CPU, by the model: {without_emulator}")
        lines += [script] if (script := findings.scripts.get(choice.page, "")) else []
        cards.append(Card(f"{choice.page} page", BETTER[choice.better], meaning, tuple(lines)))
    return tuple(cards)


def first_table(findings: PageFindings) -> Table | None:
    """The main table: a row for each arm of each page's headline setting."""
    settings = findings.headline_settings()
    quietest = [findings.fewest_in_flight(setting) for setting in settings]
    quietest_arms = {(arm.page, arm.route): arm for setting in quietest for arm in findings.arms_of(setting)}
    fewest, most = ({setting.threads for setting in candidates} for candidates in (quietest, settings))
    in_flight_heads = (
        [_single_count_or(most, "most")]
        if quietest == settings
        else [_single_count_or(fewest, "fewest"), _single_count_or(most, "most")]
    )

    def p50(arm: PageArm) -> str:
        quietest_arm = quietest_arms.get((arm.page, arm.route))
        p50s = [] if quietest == settings else [number(quietest_arm.p50_ms if quietest_arm else None)]
        return ", ".join([*p50s, number(arm.p50_ms)])

    real = " or ".join(sorted({APPLICATIONS[setting.subject.application] for setting in settings}))
    counts = f"{_join(most)} in flight{'' if quietest == settings else f' and {_join(fewest)}'}"
    note = f"Pages of {real}, {counts}. People notice delays from {NOTICED_MS} ms. CPU: without the link's emulator."
    fields: Fields[PageArm] = {
        "": lambda arm: f"{arm.page}: {location_text(arm, findings)}",
        "pages/s\n[95 %]": lambda arm: with_limits(arm.pages_per_s),
        f"p50 ms, in\nflight {', '.join(in_flight_heads)}": p50,
        f"over\n{NOTICED_MS} ms": lambda arm: share_of_pages(arm.over_noticed),
        f"over\n{DEGRADED_MS} ms": lambda arm: share_of_pages(arm.over_degraded),
        "CPU ms\nper page": lambda arm: number(arm.path_cpu_ms),
    }
    return _table("One machine or two?", findings.headline_arms(), fields, (note,), main=True)


def _single_count_or(counts: set[int], otherwise: str) -> str:
    return str(min(counts)) if len(counts) == 1 else otherwise


def _join(counts: set[int]) -> str:
    return " and ".join(str(count) for count in sorted(counts))


def _crossing_chart(findings: PageFindings) -> Chart | None:
    if not findings.swept_levels():
        return None
    notes = {
        " Dashed: the model.": any(crossing.curve_ms for crossing in findings.crossings),
        " Diamond: where both are equal, with its interval.": any(
            crossing.measured_ms for crossing in findings.crossings
        ),
        " Grey band: the noise floor.": bool(findings.link_noise_floor),
    }
    return Chart(
        name="crossing",
        title="Pages per second with two machines over one, against the application's CPU per page",
        caption="Points: measured, with 95 % intervals; one machine is the one with sockets."
        + "".join(text for text, applies in notes.items() if applies),
        make=partial(charts.crossing_chart, findings),
        data=choices_table(findings.headline_levels(), tcp=True),
    )


def crossings_table(crossings: Sequence[Crossing]) -> Table | None:
    """The application's CPU per page from which two machines serve more pages than one."""
    names = dict(zip((id(row) for row in crossings), series_labels(crossings), strict=True))
    fields: dict[str | Column, Callable[[Crossing], str | Cell]] = {
        "page": lambda row: names[id(row)],
        "second machine\npays from": crossing_text,
        "predicted": lambda row: predicted_crossing_text(row) or UNKNOWN,
    }
    notes = [
        "Total application CPU per page, in ms: the page's own needs and what it was requested to compute in addition."
    ]
    if any(crossing.without_link_cpu_ms is not None for crossing in crossings):
        fields["without the\nemulator"] = lambda row: (
            UNKNOWN if row.without_link_cpu_ms is None else prediction_text(row, "without_link_cpu_ms")
        )
        notes.append("Without the emulator: by the model, if the emulated link took no CPU from the machines.")
    fields["measured\nfrom, to"] = lambda row: ", ".join(format_ms(end) for end in row.swept_ms)
    return _table("Application CPU from which a second machine pays", crossings, fields, notes)


def choices_table(choices: Sequence[PageChoice], tcp: bool = False) -> Table | None:
    """A row for each comparison of one machine and two, by ascending application CPU. `tcp`: also TCP against sockets on one
    machine."""
    order = list(dict.fromkeys((choice.subject, choice.route) for choice in choices))
    choices = sorted(
        choices, key=lambda row: (order.index((row.subject, row.route)), -row.threads, row.app_cpu_total_ms)
    )
    names = dict(zip((id(row) for row in choices), series_labels(choices), strict=True))
    fields: dict[str | Column, Callable[[PageChoice], str | Cell]] = {
        "page": lambda row: names[id(row)],
        "application\nCPU ms": lambda row: number(row.app_cpu_total_ms),
        "two over one\n[95 %]": lambda row: ratio(row.two_over_one),
        "predicted\n[95 %]": lambda row: (
            UNKNOWN if row.predicted is None else within(row.predicted, row.predicted_interval, "{:.2f}".format)
        ),
        "better": lambda row: row.better,
    }
    if tcp:
        fields["TCP over\nsockets [95 %]"] = lambda row: ratio(row.tcp_over_socket)
    note = (
        "Pages per second, paired by block; one machine is the one with sockets. Not resolved: the interval includes 1, or the "
        "difference is smaller than the noise floor."
    )
    return _table("Two machines over one", choices, fields, (note,))


# ---------------------------------------------------------------- where the time goes


def _split_chart(findings: PageFindings) -> Chart | None:
    fields: dict[str | Column, Callable[[PageArm], str | Cell]] = {
        "ms per page": lambda arm: f"{arm.page}: {location_text(arm, findings)}"
    }
    for part in charts.PARTS:
        fields[part] = partial(_part_ms, part)
    fields["page"] = lambda arm: number(arm.page_ms.value)
    arms = [arm for arms_of_page in split_arms(findings).values() for arm in arms_of_page]
    chart = Chart(
        name="split",
        title="What a page's time is made of, by path",
        caption=(
            "By the application's own clock. A round trip is counted from its first byte sent to its last byte read, including the "
            "application's work for it. The rest is the page's own code, the visitor's path to it, and waiting for a CPU."
        ),
        make=partial(charts.split_chart, findings),
        data=_table("", arms, fields),
    )
    return chart if arms else None


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
            row_label = f"{name}: {SERVICES[service].label}"
            rows.append(
                [row_label, f"{known_costs[0].turns:.4g}", *(number(cost.mean_us if cost else None) for cost in costs)]
            )
            if any(cost.connect_us is not None for cost in known_costs):
                connect_cells = [number(cost.connect_us if cost else None) for cost in costs]
                rows.append(
                    [f"{row_label} connect", f"{max(cost.connects for cost in known_costs):.3g}", *connect_cells]
                )
    notes = ["From the first byte sent to the last byte read, by the application's own clock; fewest pages in flight."]
    if any(arm.application == "php" and arm.connect == "persistent" for arms in arms_by_label for arm in arms.values()):
        services = {cost.service for arms in arms_by_label for arm in arms.values() for cost in arm.turns}
        targets = "to MySQL, one to Redis" if "mysql" in services else "to Redis"
        notes.append(f"PHP checks whether a kept connection still works: one more round trip {targets}.")
    rest_us = {number(arm.rtt_ms * 1e3) for arms in arms_by_label for arm in arms.values() if arm.rtt_ms is not None}
    if rest_us:
        notes.append(
            f"At rest the link takes {join_clauses(sorted(rest_us))} µs; the rest is waking processors and waiting for them."
        )
    heads = ["µs per round trip\nto", "round trips\nper page", *(_two_line_head(column) for column in columns)]
    fields: Fields[list[str]] = {head: partial(_field_at, index) for index, head in enumerate(heads)}
    return _table("What a round trip costs", rows, fields, notes)


def _field_at(index: int, row: list[str]) -> str:
    return row[index]


def _cost_of_service(arm: PageArm | None, service: str) -> RoundTripCost | None:
    return next((cost for cost in arm.turns if cost.service == service), None) if arm else None


def _two_line_head(column: str) -> str:
    one, _, rest = column.partition(", ")
    return f"{one} machine{'' if one == 'one' else 's'}\n{rest}"


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
        title="How long pages take, by path, and what people notice",
        caption=(
            f"At 99 %, one page in a hundred took longer. Dotted: {NOTICED_MS} ms, from which people notice a delay, and "
            f"{DEGRADED_MS} ms, from which the experience is degraded."
        ),
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
        return [Text("No arm has a prediction: it takes real pages on sockets and the engine's page on each path.")]
    fields: Fields[PageArm] = {
        "page": lambda arm: arm.arm,
        "p50 ms": lambda arm: number(arm.p50_ms),
        "predicted [95 %]": lambda arm: within(arm.predicted_p50_ms or 0.0, arm.predicted_p50_ms_interval, number),
        "error": lambda arm: percent(arm.predicted_error, signed=True),
    }
    note = "Predicted from the real page on sockets, the engine's page on each path, and the link's RTT at rest."
    chart = Chart(
        name="prediction",
        title="The model's error at each page, against its median time",
        caption="On the dashed line the model is right; above it the page was faster than predicted. The grey band is ±10 %.",
        make=partial(charts.prediction_chart, findings),
        data=_table("", arms, fields),
    )
    return [chart, _table("Predicted and measured", arms, fields, (note,))]


def _arm_labels(arms: Sequence[PageArm], findings: PageFindings) -> dict[str, str]:
    """Labels by arm: what distinguishes the arm from the others, and its location."""
    return {
        arm.arm: f"{name}: {location_text(arm, findings)}" for name, arm in zip(setting_labels(arms), arms, strict=True)
    }


def cpu_table(findings: PageFindings, arms: Sequence[PageArm]) -> Table | None:
    """CPU per page by role, and how busy the machines were."""
    roles = {role for arm in arms for role in arm.cpu_ms}
    names = _arm_labels(arms, findings)
    fields: dict[str | Column, Callable[[PageArm], str | Cell]] = {"CPU ms per page": lambda arm: names[arm.arm]}
    for role in (*(role for role in ROLES if role in roles), *sorted(roles - set(ROLES))):
        head = "link's\nemulator" if role == "link" else role
        fields[head] = partial(_cpu_ms, role)
    fields["CPUs\nbusy"] = _busy_text
    note = "CPUs busy: of the one machine; of two, the application's and the servers'."
    return _table("CPU by role", arms if roles else (), fields, (note,))


def _cpu_ms(role: str, arm: PageArm) -> str:
    return number(arm.cpu_ms.get(role))


def _busy_text(arm: PageArm) -> str:
    """`99 %`; of two machines `41 %, 87 %`."""
    shares = [arm.busy[machine] for machine in ("both", "application", "database") if machine in arm.busy]
    return ", ".join(f"{value * 100:.0f} %" for value in shares) or UNKNOWN


def arms_table(findings: PageFindings) -> Table | None:
    fields: Fields[PageArm] = {
        "page": lambda arm: arm.arm,
        "pages/s [95 %]": lambda arm: with_limits(arm.pages_per_s),
        "ms per page [95 %]": lambda arm: with_limits(arm.page_ms),
        "p50 / p95 / p99": lambda arm: " / ".join(number(value) for value in (arm.p50_ms, arm.p95_ms, arm.p99_ms)),
        f"over {NOTICED_MS} ms": lambda arm: share_of_pages(arm.over_noticed),
        f"over {DEGRADED_MS} ms": lambda arm: share_of_pages(arm.over_degraded),
        "own CPU ms": lambda arm: number(arm.own_cpu_ms),
        "CPU ms": lambda arm: number(arm.path_cpu_ms),
    }
    return _table("", findings.arms, fields)


# ---------------------------------------------------------------- limits of the run


def _limits(summary: Summary, findings: PageFindings) -> list[str]:
    """Sentences on the limits of this run, computed from its figures."""
    sentences = []
    # The strongest objection: the emulator takes CPU time from both machines, which a network card would not.
    if two := [arm for arm in findings.arms if arm.machines == 2 and arm.cpu_ms.get("link")]:
        arm = max(two, key=lambda cpus: cpus.emulator_cpus)
        of = f" of {summary.machine_cpus}" if summary.machine_cpus else ""
        sentences.append(
            f"Both machines are on one computer, and the emulated link between them uses its CPUs: up to {arm.emulator_cpus:.2f}{of} "
            f"({arm.arm}), {number(arm.cpu_ms['link'])} ms per page in addition to {number(arm.path_cpu_ms)} ms of everything else. "
            "Two real machines perform better than shown here."
        )
    if summary.machine_cpus and summary.machine_cpus >= 2:
        cpus = summary.machine_cpus // 2
        sentences.append(
            f"Each machine has {cpus} CPU{'' if cpus == 1 else 's'}, half of this computer's; a second machine doubles them. This run "
            "does not say from when two larger machines pay, which need more pages in flight to be saturated."
        )
    if visited := [arm for arm in findings.arms if arm.cpu_ms.get("visitor")]:
        most = max(visited, key=lambda arm: arm.cpu_ms["visitor"] / arm.path_cpu_ms)
        sentences.append(
            "The visitor speaks FastCGI to PHP-FPM on the application's machine, as a web server does, and uses at most "
            f"{share(most.cpu_ms['visitor'] / most.path_cpu_ms)} of a page's CPU ({number(most.cpu_ms['visitor'])} ms, {most.arm}). "
            "There is no HTTP and no TLS to the visitor."
        )
    if threads := {arm.threads for arm in findings.arms}:
        sentences.append(
            f"A closed loop of {_join(threads)} visitors without pauses: one shows how long a page takes, several show what a machine "
            "can serve. Visitors who arrive at random wait longer near saturation than the shares over "
            f"{NOTICED_MS} and {DEGRADED_MS} ms say."
        )
    return sentences


# ---------------------------------------------------------------- records


def page_records(findings: PageFindings) -> dict[str, dict[str, object]]:
    """Additional columns of the cells' records, by arm. An arm with two machines includes the comparison with one machine."""
    choices: dict[tuple[PageSetting, Route], PageChoice] = {
        _comparison_key(choice): choice for choice in reversed(findings.choices)
    }
    return {arm.arm: _arm_record(arm) | _choice_record(choices.get(_comparison_key(arm))) for arm in findings.arms}


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
        columns(arm, column_names, over_noticed="share_over_13_ms", over_degraded="share_over_75_ms")
        | {name: written(value) for name, value in figures.items()}
        | columns(arm, "rtt_ms predicted_p50_ms predicted_error")
    )


def _choice_record(choice: PageChoice | None) -> dict[str, object]:
    if choice is None:
        return {}
    column_names = "app_cpu_total_ms two_over_one predicted tcp_over_socket better"
    return columns(choice, column_names, predicted="two_over_one_predicted")
