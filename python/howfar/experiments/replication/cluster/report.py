"""The report on clusters: the time of a commit in each mode by distance, compared with the model and 1/RTT."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import ClassVar

from howfar.analysis.advice import Advice, Parameters
from howfar.analysis.cells import Metric
from howfar.analysis.summary import Findings, RunEvidence, Summary
from howfar.experiments.experiment import Experiment, Keys
from howfar.experiments.replication.arms import mode_name, rate
from howfar.experiments.replication.cluster.analysis import (
    ClusterCost,
    ClusterPoint,
    ThirdNode,
    TwoWriters,
    cluster_cost,
    conclude,
    explain,
)
from howfar.experiments.replication.cluster.texts import TEXTS
from howfar.experiments.replication.factors import SHORT_ROW
from howfar.experiments.replication.frame import flush_line
from howfar.findings import Finding, fill, note
from howfar.report import figures, palette
from howfar.report.charts import (
    PHONE,
    Drawable,
    Rows,
    by_style,
    clip_limits,
    data,
    interval_layers,
    label_layers,
    layer,
    legend,
    log_axis,
    styles,
)
from howfar.report.document import Block, Chart, Column, Details, Document, Fields, Table, Text, make_table
from howfar.report.drawing import alt
from howfar.report.figures import interval_head, with_interval
from howfar.report.frame import frame
from howfar.report.sections import cell_table, csv_columns, csv_value, trial_blocks
from howfar.stats.estimate import Estimate, Part
from howfar.stats.intervals import Resolution, interval_text


class ClusterExperiment(Experiment):
    name = "cluster"
    texts = TEXTS
    is_about_ratios = False
    findings: ClassVar[Keys] = {"cluster": ClusterCost}
    own_model = True

    def analyse(self, evidence: RunEvidence) -> Mapping[str, Part | None]:
        return {"cluster": cluster_cost(evidence.table, evidence.workload)}

    def conclude(self, evidence: RunEvidence, findings: Findings) -> tuple[Finding, ...]:
        cost = findings["cluster"]
        if not isinstance(cost, ClusterCost):
            return ()
        factors = {arm.name: arm.factors for arm in evidence.table.run.info.arms}
        return conclude(cost, lambda arm, ratio: evidence.floors.threshold(factors[arm]).resolve(ratio))

    def explain(self, evidence: RunEvidence, findings: Findings) -> tuple[Finding, ...]:
        cost = findings["cluster"]
        return explain(cost) if isinstance(cost, ClusterCost) else ()

    def advice(self, evidence: RunEvidence, findings: Findings) -> tuple[Advice, ...] | None:
        cost = findings["cluster"]
        return _advice(cost, evidence) if isinstance(cost, ClusterCost) else None

    def document(self, summary: Summary) -> Document:
        cost, answered = summary.require_findings(ClusterCost), not summary.answer.is_missing
        chart = Chart(
            "cluster",
            _chart_title(cost),
            note(TEXTS["rates-caption"], operation=cost.operation),
            lambda width: draw_rates_over_distance(cost, width),
        )
        all_cells = Details("All cells", (cell_table(summary, main=False),))
        model = Details("The model", (Text(model_sentence(cost)), model_table(cost, figures.on_hosts(summary))))
        below: tuple[Block, ...] = (*((model,) if answered else ()), all_cells, *trial_blocks(summary))
        notes = (*_host_notes(summary), flush_line(summary))
        tables = (
            *conflict_tables(cost),
            main_table(cost, *notes, with_model=answered),
            *(third_table(cost) if answered else ()),
        )
        return frame(
            summary, (chart, *tables), more_blocks=below, records=records(cost), is_about_ratios=self.is_about_ratios
        )


def _chart_title(cost: ClusterCost) -> str:
    """The rate at the farthest distance."""
    distant = [point for point in cost.points if point.farthest_ms]
    point = max(distant, key=lambda point: (-point.threads, point.farthest_ms), default=None)
    if point is None:
        return f"{cost.operation.capitalize()}s/s by distance"
    parameters = {"operation": cost.operation, "distances": point.distances_label}
    return fill(TEXTS["rates"], estimate=point.commits_per_s, subject=point.label, **parameters)


def main_table(cost: ClusterCost, *notes: str, with_model: bool = True) -> Table:
    counts = {point.threads for point in cost.points}
    with_model = with_model and any(point.predicted_ms is not None for point in cost.points)
    limits = interval_head(estimate for point in cost.points for estimate in (point.commits_per_s, point.p50_ms))
    fields: Fields[ClusterPoint] = {
        **_key_columns(len(counts) > 1),
        f"{cost.operation}s/s\n{limits}": lambda point: _rate_text(point.commits_per_s),
        f"p50 ms\n{limits}": lambda point: with_interval(point.p50_ms),
        "p99 ms": lambda point: figures.number(point.p99_ms),
        **({"predicted p50 ms,\nits error": _prediction_cell} if with_model else {}),
    }
    of_threads = [note(TEXTS["connections"], threads=min(counts))] if len(counts) > 1 else []
    all_notes = (*of_threads, *(_notes(cost.points) if with_model else ()), *notes)
    return make_table("", cost.points, fields, all_notes, main=True, stack=True)


def _rate_text(rate: Estimate) -> str:
    """Commits/s with an interval that does not go below zero."""
    return with_interval(rate if rate.low is None else rate.model_copy(update={"low": max(0.0, rate.low)}))


def model_table(cost: ClusterCost, has_own_hosts: bool = False) -> Table:
    """The basis of the predictions. `has_own_hosts`: each node is on one of the user's own hosts."""
    large = any(point.row_bytes != SHORT_ROW for point in cost.points)
    fields: Fields[ClusterPoint] = {
        **_key_columns(True),
        "RTT ms\nnearest, farthest": lambda point: (
            ""
            if point.nearest_ms is None or point.farthest_ms is None
            else f"{point.nearest_ms:.3g}, {point.farthest_ms:.3g}"
        ),
        "1/RTT\nfarthest": lambda point: "" if not point.farthest_ms else f"{rate(1e3 / point.farthest_ms)}/s",
        "agreement ms\nby the model": lambda point: figures.number(point.agreement_ms) if point.agreement_ms else "",
        **(_SENDING_COLUMNS if large else {}),
        "predicted p50 ms,\nits error": _prediction_cell,
    }
    predicted = note(TEXTS["predicted"], large=large, short=not large, shared_cpus=not has_own_hosts)
    sending = TEXTS["sending-uncounted" if has_own_hosts else "sending"]
    return make_table("", cost.points, fields, (predicted, sending) if large else (predicted,), stack=True)


def _host_notes(summary: Summary) -> Iterator[str]:
    """Notes on a run between hosts."""
    if figures.on_hosts(summary):
        roles = summary.environment.roles
        nodes = ", ".join(() if roles is None else (roles.server, *roles.replicas))
        yield note(TEXTS["hosts"], nodes=nodes)


def _key_columns(with_connections: bool) -> Fields[ClusterPoint]:
    fields: Fields[ClusterPoint] = {
        "mode": lambda point: point.label,
        Column("distances", left_aligned=True): lambda point: point.distances_label,
    }
    return {**fields, "connections": lambda point: str(point.threads)} if with_connections else fields


def _prediction_cell(point: ClusterPoint) -> str:
    if point.predicted_ms is None:
        return ""
    error = "*" if point.crowded else "" if point.error is None else f", {point.error * 100:+.1f} %"
    return f"{figures.number(point.predicted_ms)}{error}"


_SENDING_COLUMNS: Fields[ClusterPoint] = {
    "bytes to\neach node": lambda p: "" if p.sent_bytes is None else figures.size(p.sent_bytes),
    "ms to\nsend": lambda p: figures.number(p.sending_ms) if p.sending_ms else "",
}
_MIN_RATIO_IF_SENT_TWICE = 1.6
"""Bytes on a link per byte of a row beyond which the row must have been sent twice; headers alone add far less."""


def _notes(points: Sequence[ClusterPoint]) -> Iterator[str]:
    large_row_points = [point for point in points if point.mode == "galera" and point.row_bytes != SHORT_ROW]
    max_ratio = max(((point.sent_bytes or 0.0) / point.row_bytes for point in large_row_points), default=0.0)
    if max_ratio > _MIN_RATIO_IF_SENT_TWICE:
        yield note(TEXTS["sent-twice"], times=max_ratio)
    if any(point.predicted_ms is not None and point.error is None and not point.crowded for point in points):
        yield note(TEXTS["by-construction"])
    if any(point.crowded for point in points):
        yield note(TEXTS["crowded"])


def _third_node_cell(third_node: ThirdNode) -> str:
    return f"{'' if third_node.measured else '~'}{with_interval(third_node.p50_ms)}{'*' if third_node.beyond else ''}"


def third_table(cost: ClusterCost) -> tuple[Table, ...]:
    """Where to put the third node. Empty: no cluster of three was measured with one connection."""
    if not cost.third:
        return ()
    labels = list(dict.fromkeys(third_node.label for third_node in cost.third))
    by_far_ms = {
        far_ms: {third_node.label: third_node for third_node in cost.third if third_node.far_ms == far_ms}
        for far_ms in (third_node.far_ms for third_node in cost.third)
    }
    near_ms = cost.third[0].near_ms

    def cell(label: str) -> Callable[[tuple[float, dict[str, ThirdNode]]], str]:
        return lambda row: _third_node_cell(row[1][label])

    fields: Fields[tuple[float, dict[str, ThirdNode]]] = {
        "third node at": lambda row: f"{row[0]:g} ms",
        **{f"{label}\np50 ms": cell(label) for label in labels},
    }
    notes = [note(TEXTS["third-node"], near_ms=near_ms)]
    notes += [note(TEXTS["beyond"])] if any(third_node.beyond for third_node in cost.third) else []
    return (make_table("Where to put the third node", by_far_ms.items(), fields, tuple(notes), stack=True),)


def conflict_tables(cost: ClusterCost) -> tuple[Table, ...]:
    """Conflicts between two writers. Empty: only one node is written to."""
    points = [(point, point.writers) for point in cost.points if point.writers is not None]
    if not points:
        return ()
    several = len({point.distances_label for point, _ in points}) > 1
    limits = interval_head(writers.commits_per_s for _, writers in points)

    def distances(point: ClusterPoint) -> str:
        return f", {point.distances_label}" if several else ""

    fields: Fields[tuple[ClusterPoint, TwoWriters]] = {
        "two writers": lambda pair: f"{mode_name(pair[0].mode)}, {pair[1].rows.replace('-', ' ')}{distances(pair[0])}",
        "connections\non each node": lambda pair: str(pair[0].threads),
        f"commits/s of both\n{limits}": lambda pair: _rate_text(pair[1].commits_per_s),
        Column("to own rows", limits): lambda pair: (
            "" if pair[1].to_own_rows is None else interval_text(pair[1].to_own_rows)
        ),
        f"refused/s\n{limits}": lambda pair: with_interval(pair[1].refused_per_s),
        f"repeated %\n{limits}": lambda pair: with_interval(pair[1].repeated_percent),
        f"second's p50 ms\n{limits}": lambda pair: with_interval(pair[1].second_p50_ms),
        "trials in which the\nsecond never committed": lambda pair: str(pair[1].starved),
        "servers counted\nconflicts, aborts": lambda pair: (
            f"{pair[0].conflicts}, {figures.UNKNOWN if pair[1].aborted is None else pair[1].aborted}"
        ),
    }
    return (make_table("", points, fields, (TEXTS["conflicts-caption"],), stack=True),)


def model_sentence(cost: ClusterCost) -> str:
    if cost.mean_error is None or cost.worst_error is None:
        return note(TEXTS["no-model"])
    return note(TEXTS["model"], operation=cost.operation, mean=cost.mean_error, worst=cost.worst_error)


_IDEAL_ROUND_TRIPS = (1.0, 1.5, 2.0)
"""Round trips of a commit if all nodes are equally far apart: of a majority; of Galera; of Group Replication if it also waits for the
turns of idle members."""


def draw_rates_over_distance(cost: ClusterCost, width: int) -> Drawable | None:
    min_threads = min(point.threads for point in cost.points)
    shown_points = [point for point in cost.points if point.threads == min_threads]
    second_rtts_ms = [point.second_ms for point in shown_points if point.second_ms]
    if not second_rtts_ms:
        return None
    x_domain = (min(second_rtts_ms) / 1.3, max(second_rtts_ms) * 1.3)
    rates = [point.commits_per_s.value for point in shown_points]
    y_domain = (min(*rates, 1e3 / x_domain[1] / max(_IDEAL_ROUND_TRIPS)) / 1.2, max(rates) * 1.5)
    rows = [
        {
            "series": point.label,
            "rtt": point.second_ms,
            "tps": point.commits_per_s.value,
            **clip_limits(point.commits_per_s, y_domain),
        }
        for point in shown_points
    ]
    names = list(dict.fromkeys(str(row["series"]) for row in rows))
    ideals = {_ideal_name(round_trips): 1e3 / x_domain[1] / round_trips for round_trips in _IDEAL_ROUND_TRIPS}
    colours = styles(names, palette.SERIES) | dict.fromkeys(ideals, palette.MUTED)
    colour = by_style(alt.Color, "series", colours, legend(1, 320, values=names) if width < PHONE else None)
    shape = by_style(alt.Shape, "series", styles(names, palette.SHAPES), None)
    x = log_axis(alt.X, "rtt", "round trip to the second nearest node, ms", x_domain)
    y, low = (log_axis(alt.Y, field, f"{cost.operation}s/s", y_domain) for field in ("tps", "low"))
    ideal_rows: Rows = [
        {
            "rtt": rtt,
            "tps": 1e3 / rtt / round_trips,
            "text": _ideal_name(round_trips),
        }
        for round_trips in _IDEAL_ROUND_TRIPS
        for rtt in x_domain
    ]
    rows_with_rtt = [row for row in rows if row["rtt"]]
    ideal_line = data(ideal_rows).mark_line(clip=True, strokeDash=[4, 3], strokeWidth=1.1, color=palette.MUTED)
    ends = ideals | {point.label: point.commits_per_s.value for point in shown_points if width >= PHONE}
    labels: Rows = [
        {"series": name, "text": name, "rtt": x_domain[1], "place": tps}
        for name, tps in ends.items()
        if y_domain[0] <= tps <= y_domain[1]
    ]
    place = log_axis(alt.Y, "place", f"{cost.operation}s/s", y_domain)
    return layer(
        ideal_line.encode(x=x, y=y, detail="text:N"),
        data([row for row in rows if not row["rtt"]]).mark_rule(strokeWidth=1.9).encode(y=y, color=colour),
        data(rows_with_rtt).mark_line(strokeWidth=1.9).encode(x=x, y=y, color=colour),
        *interval_layers(rows_with_rtt, x, y, low, size=60, colour=colour, shape=shape),
        *label_layers(labels, x, place, colour, y_domain, 300),
        width=width,
        height=300,
    )


def _ideal_name(round_trips: float) -> str:
    return "1/RTT" if round_trips == 1 else f"1/({round_trips:g} RTT)"


def _advice(cost: ClusterCost, evidence: RunEvidence) -> tuple[Advice, ...]:
    """Advice for Group Replication if its commits wait for the turns of idle members."""
    min_threads = min(point.threads for point in cost.points)
    ordinary = (min_threads, "eventual", SHORT_ROW)
    points = {
        (point.mode, point.distances_label): point
        for point in cost.points
        if point.writers is None and (point.threads, point.consistency, point.row_bytes) == ordinary
    }
    pairs = [
        (point, points[("group-leader", distances)])
        for (mode, distances), point in points.items()
        if mode == "group" and ("group-leader", distances) in points
    ]
    compare = partial(evidence.floors.compare, evidence.table, metric=Metric.P50)
    significant = [
        (point, leader_point)
        for point, leader_point in pairs
        if compare(leader_point.arm, point.arm) is Resolution.SLOWER
    ]  # its p50 is less
    if not significant or cost.operation == "read":
        return ()
    without_leader, with_leader = max(significant, key=lambda pair: pair[0].p50_ms.value / pair[1].p50_ms.value)
    parameters: Parameters = {
        "distances": without_leader.distances_label,
        "with_ms": with_leader.p50_ms.value,
        "without_ms": without_leader.p50_ms.value,
    }
    because = fill(TEXTS["single-leader-because"], **parameters)
    return (Advice(action=TEXTS["single-leader"], because=because, id="single-leader", parameters=parameters),)


def records(cost: ClusterCost) -> list[dict[str, object]]:
    """One line of CSV per arm."""
    return [
        csv_columns(point, "arm mode consistency distances row_bytes")
        | {"rate_bps": csv_value(point.rate_bps)}
        | csv_columns(point, "threads commits_per_s p50_ms p99_ms nearest_ms second_ms farthest_ms agreement_ms")
        | csv_columns(point, "predicted_ms error")
        | {"flow_control": csv_value(point.flow_control), "conflicts": point.conflicts}
        for point in cost.points
    ]
