"""The report of clusters: the cost of a commit in each mode by distance, compared with the model and 1/RTT."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import ClassVar

from howfar.analysis.advice import Advice
from howfar.analysis.cells import Figure
from howfar.analysis.summary import Findings, RunEvidence, Summary
from howfar.experiments.cluster.analysis import ClusterCost, ClusterPoint, ThirdNode, TwoWriters, cluster_cost, verdict
from howfar.experiments.experiment import Experiment, Keys
from howfar.experiments.latency.report import with_limits
from howfar.experiments.replication.arms import rate, rate_interval
from howfar.experiments.replication.frame import flush_line
from howfar.plan.factors import SHORT_ROW
from howfar.report import figures, palette
from howfar.report.charts import Drawable, data, ends, intervals, layer, legend, log_axis, series_looks
from howfar.report.document import Block, Chart, Details, Document, Fields, Table, Text, table_of
from howfar.report.drawing import alt
from howfar.report.frame import frame
from howfar.report.sections import cell_table, columns, trials, written
from howfar.stats.estimate import Part
from howfar.stats.intervals import Resolution


class Cluster(Experiment):
    name = "cluster"
    findings: ClassVar[Keys] = {"cluster": ClusterCost}
    own_model = True

    def analyse(self, evidence: RunEvidence) -> Mapping[str, Part | None]:
        return {"cluster": cluster_cost(evidence.table, str(evidence.workload.get("kind")))}

    def verdict(self, evidence: RunEvidence, findings: Findings) -> str:
        found = findings["cluster"]
        return verdict(found, with_limits) if isinstance(found, ClusterCost) else ""

    def advice(self, evidence: RunEvidence, findings: Findings) -> tuple[Advice, ...] | None:
        found = findings["cluster"]
        return _advice(found, evidence) if isinstance(found, ClusterCost) else None

    def document(self, summary: Summary) -> Document:
        found = summary.the(ClusterCost)
        chart = Chart(
            "cluster",
            "One connection, by distance",
            f"{found.operation.capitalize()}s/s of the fewest connections over the round trip to the second nearest node, with 95 % "
            f"intervals. Horizontal line: the server alone. Dashed: one {found.operation} in as many of these round trips as stated.",
            lambda width: draw(found, width),
        )
        every = Details("All cells", (cell_table(summary, main=False),))
        model = Details("The model", (model_table(found, figures.on_hosts(summary)),))
        below: tuple[Block, ...] = (Text(model_sentence(found)), chart, model, every, *trials(summary))
        tables = (main_table(found, *_real(summary), flush_line(summary)), *third_table(found), *conflict_tables(found))
        return frame(summary, tables, below=below, records=records(found))


def main_table(found: ClusterCost, *notes: str) -> Table:
    several = len({point.threads for point in found.points}) > 1
    fields: Fields[ClusterPoint] = {
        **_who(several),
        f"{found.operation}s/s\n[95 % interval]": lambda p: rate_interval(p.commits_per_s),
        "p50 ms\n[95 % interval]": lambda p: with_limits(p.p50_ms),
        "p99 ms": lambda p: figures.UNKNOWN if p.p99_ms is None else figures.number(p.p99_ms),
        "predicted p50 ms\nerror": _predicted,
    }
    return table_of("", found.points, fields, (*_notes(found.points), *notes), main=True, stack=True)


def model_table(found: ClusterCost, apart: bool = False) -> Table:
    """The basis of the predictions. `apart`: each node is on one of the user's own hosts."""
    large = any(point.row_bytes != SHORT_ROW for point in found.points)
    fields: Fields[ClusterPoint] = {
        **_who(True),
        "RTT ms\nnearest, farthest": lambda p: (
            "" if p.nearest_ms is None or p.farthest_ms is None else f"{p.nearest_ms:.3g}, {p.farthest_ms:.3g}"
        ),
        "1/RTT\nfarthest": lambda p: "" if not p.farthest_ms else f"{rate(1e3 / p.farthest_ms)}/s",
        "agreement ms\nby the model": lambda p: figures.number(p.agreement_ms) if p.agreement_ms else "",
        **(_SENT if large else {}),
        "predicted p50 ms\nerror": _predicted,
    }
    base = "For large rows, and where" if large else "Where"
    shared = " For one connection with what the other nodes and the emulators take of the CPUs that they share."
    note = (
        "RTT: as measured at rest, from the node that is used to the others. Predicted: the agreement at this distance, and the local "
        f"work of the same mode at its shortest distance. {base} there is only one distance, the work of the server alone."
        f"{'' if apart else shared}"
    )
    sending = (
        "Large rows are not predicted: bytes between hosts are not counted."
        if apart
        else "To send: by the link's rate, or by Galera's turns, if they take longer: of a row's pieces (gcs.max_packet_size), as "
        "many as evs.user_send_window are in flight. Here each pair of nodes has a link of its own; a node with one network card "
        "sends to all others over that card."
    )
    return table_of("", found.points, fields, (note, sending) if large else (note,), stack=True)


def _real(summary: Summary) -> Iterator[str]:
    """Notes on a run between hosts."""
    if figures.on_hosts(summary):
        place = summary.environment["place"]
        nodes = ", ".join((place["server"], *place["replicas"]))
        yield (
            f"The links between the nodes (hosts {nodes}) are real: measured before the run, and their round trips before each trial. "
            "Distances are those of the pairs 1-2, 1-3, 2-3 and so on."
        )


def _who(connections: bool) -> Fields[ClusterPoint]:
    found: Fields[ClusterPoint] = {"mode": lambda p: p.label, "distances": lambda p: p.place}
    return {**found, "connections": lambda p: str(p.threads)} if connections else found


def _predicted(point: ClusterPoint) -> str:
    if point.predicted_ms is None:
        return ""
    error = "*" if point.crowded else "" if point.error is None else f" {point.error * 100:+.1f} %"
    return f"{figures.number(point.predicted_ms)}{error}"


_SENT: Fields[ClusterPoint] = {
    "bytes to\neach node": lambda p: "" if p.sent_bytes is None else figures.size(p.sent_bytes),
    "ms to\nsend": lambda p: figures.number(p.sending_ms) if p.sending_ms else "",
}
_TWICE = 1.6
"""Bytes on a link per byte of a row beyond which the row was sent twice; a row that is sent once has far fewer, even with headers."""


def _notes(points: Sequence[ClusterPoint]) -> Iterator[str]:
    large = [p for p in points if p.mode == "galera" and p.row_bytes != SHORT_ROW]
    times = max(((p.sent_bytes or 0.0) / p.row_bytes for p in large), default=0.0)
    if times > _TWICE:
        yield (
            f"Galera sent {times:.1f} times the bytes of a large row to each node: by default (binlog_annotate_row_events = ON), "
            "MariaDB also sends the text of the statement."
        )
    if any(p.predicted_ms is not None and p.error is None and not p.crowded for p in points):
        yield "Without an error: right by construction, as more than nine tenths of it are the counted bytes at the rate that was set."
    if any(p.crowded for p in points):
        yield (
            "* For nodes with CPUs of their own. Here the other nodes and the emulators kept most of this machine's CPUs busy, so the "
            "model is not judged."
        )


def _place_cell(place: ThirdNode) -> str:
    return f"{'' if place.measured else '~'}{with_limits(place.p50_ms)}{'*' if place.beyond else ''}"


def third_table(found: ClusterCost) -> tuple[Table, ...]:
    """Where to put the third node. Empty: no cluster of three was measured with one connection."""
    if not found.third:
        return ()
    labels = list(dict.fromkeys(place.label for place in found.third))
    by_far = {far: {p.label: p for p in found.third if p.far_ms == far} for far in (p.far_ms for p in found.third)}
    near = found.third[0].near_ms

    def cell(label: str) -> Callable[[tuple[float, dict[str, ThirdNode]]], str]:
        return lambda row: _place_cell(row[1][label])

    fields: Fields[tuple[float, dict[str, ThirdNode]]] = {
        "third node at": lambda row: f"{row[0]:g} ms",
        **{f"{label}\np50 ms": cell(label) for label in labels},
    }
    how = (
        f"The p50 of one connection, with {near:g} ms between the first two nodes and the given time from both to the third: "
        "measured, or by the model (~), with its largest error of this run in the interval; without an interval, it was not tested "
        "in this run."
    )
    notes = [how]
    notes += ["* Farther or nearer than any node of this run."] if any(place.beyond for place in found.third) else []
    return (table_of("Where to put the third node", by_far.items(), fields, tuple(notes), stack=True),)


def conflict_tables(found: ClusterCost) -> tuple[Table, ...]:
    """Conflicts between two writers. Empty: only one node is written to."""
    points = [(point, point.writers) for point in found.points if point.writers is not None]
    if not points:
        return ()
    fields: Fields[tuple[ClusterPoint, TwoWriters]] = {
        "two writers": lambda p: f"{p[0].label}, {p[0].place}",
        "connections\non each node": lambda p: str(p[0].threads),
        "commits/s of both\n[95 % interval]": lambda p: rate_interval(p[1].commits_per_s),
        "to own rows\n[95 % interval]": lambda p: "" if p[1].to_own_rows is None else with_limits(p[1].to_own_rows),
        "refused/s\n[95 % interval]": lambda p: with_limits(p[1].refused_per_s),
        "repeated %\n[95 % interval]": lambda p: with_limits(p[1].repeated_percent),
        "second's p50 ms\n[95 % interval]": lambda p: with_limits(p[1].second_p50_ms),
        "trials in which the\nsecond never committed": lambda p: str(p[1].starved),
        "servers counted\nconflicts, aborts": lambda p: (
            f"{p[0].conflicts}, {figures.UNKNOWN if p[1].aborted is None else p[1].aborted}"
        ),
    }
    note = (
        "Refused: errors as clients saw them; each repeats the transaction within the same latency, so p50 and p99 include the "
        "repeats. Repeated: their share of all attempts. Servers counted, over all trials and the warm-up: conflicts found by "
        "certification, and transactions rolled back for another node's that came first. Clients see both, and deadlocks on one node."
    )
    return (table_of("", points, fields, (note,), stack=True),)


def model_sentence(found: ClusterCost) -> str:
    if found.mean_error is None or found.worst_error is None:
        return "The model predicts nothing here: it needs each mode at two distances, or a primary alone."
    return (
        f"The model predicts the p50 of a {found.operation} with a mean error of {found.mean_error * 100:.1f} % "
        f"(worst {found.worst_error * 100:.1f} %)."
    )


_ROUNDS = (1.0, 1.5, 2.0)
"""Round trips of a commit at equal distances: to a majority, with Galera, and with the turns of idle members (Group Replication)."""


def draw(found: ClusterCost, width: int) -> Drawable | None:
    few = min(point.threads for point in found.points)
    shown = [p for p in found.points if p.threads == few]
    far = [p.second_ms for p in shown if p.second_ms]
    if not far:
        return None
    room = (min(far) / 1.3, max(far) * 1.3)
    fast = [p.commits_per_s.value for p in shown]
    heights = (min(*fast, 1e3 / room[1] / max(_ROUNDS)) / 1.2, max(fast) * 1.5)
    rows = [
        {"series": p.label, "rtt": p.second_ms, "tps": p.commits_per_s.value, **ends(p.commits_per_s, heights)}
        for p in shown
    ]
    names = list(dict.fromkeys(str(row["series"]) for row in rows))
    key = legend(3, 320)
    colour, shape = series_looks(names, key)
    x = log_axis(alt.X, "rtt", "round trip to the second nearest node, ms", room)
    y, low = (log_axis(alt.Y, field, f"{found.operation}s/s", heights) for field in ("tps", "low"))
    ideal = [
        {"rtt": rtt, "tps": 1e3 / rtt / rounds, "text": "1/RTT" if rounds == 1 else f"1/({rounds:g} RTT)"}
        for rounds in _ROUNDS
        for rtt in room
    ]
    near = [row for row in rows if row["rtt"]]
    line = data(ideal).mark_line(clip=True, strokeDash=[4, 3], strokeWidth=1.1, color=palette.MORE[0])
    text = data(ideal[1::2]).mark_text(align="left", dx=4, fontSize=10, color=palette.MORE[0])
    return layer(
        line.encode(x=x, y=y, detail="text:N"),
        text.encode(x=x, y=y, text="text:N"),
        data([row for row in rows if not row["rtt"]]).mark_rule(strokeWidth=1.9).encode(y=y, color=colour),
        data(near).mark_line(strokeWidth=1.9).encode(x=x, y=y, color=colour),
        *intervals(near, x, y, low, size=60, colour=colour, shape=shape),
        width=width,
        height=300,
    )


def _advice(found: ClusterCost, evidence: RunEvidence) -> tuple[Advice, ...]:
    """Advice where a commit waits for the turns of idle members."""
    few = min(point.threads for point in found.points)
    ordinary = (few, "eventual", SHORT_ROW)
    at = {
        (p.mode, p.place): p
        for p in found.points
        if p.writers is None and (p.threads, p.consistency, p.row_bytes) == ordinary
    }
    pairs = [
        (p, at[("group-leader", where)])
        for (mode, where), p in at.items()
        if mode == "group" and ("group-leader", where) in at
    ]
    compare = partial(evidence.floors.compare, evidence.table, figure=Figure.P50)
    resolved = [(p, q) for p, q in pairs if compare(q.arm, p.arm) is Resolution.SLOWER]  # its p50 is less
    if not resolved or found.operation == "read":
        return ()
    slow, fast = max(resolved, key=lambda pair: pair[0].p50_ms.value / pair[1].p50_ms.value)
    return (
        Advice(
            action="Set group_replication_paxos_single_leader = ON on every member, and bootstrap the group again.",
            because=f"Over {slow.place}, the median commit takes {with_limits(fast.p50_ms)} ms with it and "
            f"{with_limits(slow.p50_ms)} ms without it, because each commit then also waits for every idle member's turn.",
        ),
    )


def records(found: ClusterCost) -> list[dict[str, object]]:
    """One line of CSV per arm."""
    return [
        columns(p, "arm mode consistency distances row_bytes")
        | {"rate_bps": written(p.rate_bps)}
        | columns(p, "threads commits_per_s p50_ms p99_ms nearest_ms second_ms farthest_ms agreement_ms")
        | columns(p, "predicted_ms error")
        | {"flow_control": written(p.flow_control), "conflicts": p.conflicts}
        for p in found.points
    ]
