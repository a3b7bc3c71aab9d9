"""The report on the cost of an acknowledgement: throughput and the model's prediction, where a commit's time goes, lag, published
figures.

If a run also has crashes or fallbacks, this report includes their sections.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import ClassVar

from howfar.analysis.advice import Advice, Parameters, advise
from howfar.analysis.summary import Findings, RunEvidence, Summary
from howfar.experiments.experiment import Experiment, Keys
from howfar.experiments.replication import charts, frame
from howfar.experiments.replication.analysis import (
    CommitCost,
    ReplicationCost,
    ReplicationCurve,
    acknowledgement_wait_s,
    conclude,
    explain,
    point_at,
)
from howfar.experiments.replication.arms import (
    ALONE,
    ASYNC,
    PUBLISHED_RTT_NS,
    mode_name,
    quoted_distance,
    replication_name,
    server_kind,
    with_mode,
)
from howfar.experiments.replication.crash import report as crash_report
from howfar.experiments.replication.crash.analysis import CrashLoss, joined
from howfar.experiments.replication.factors import CLUSTERS, SEMI_SYNC
from howfar.experiments.replication.fallback import report as fallback_report
from howfar.experiments.replication.frame import (
    Record,
    distance,
    fault_name,
    mode_verdicts,
    trade_tables,
    with_interval,
)
from howfar.experiments.replication.texts import TEXTS
from howfar.experiments.replication.trade import ModeComparison, ReplicationFindings, replication_findings
from howfar.findings import Finding, capital, fill, note
from howfar.report import figures
from howfar.report.document import (
    Block,
    Bullets,
    Cell,
    Chart,
    Column,
    Details,
    Document,
    Fields,
    Table,
    make_table,
    plain_cells,
)
from howfar.report.sections import csv_columns
from howfar.stats.estimate import Part
from howfar.stats.intervals import excludes_one
from howfar.stats.trials import TrialTable
from howfar.store.records import Arm

_MIN_GROWTH_FOR_ADVICE = 4.0
"""Growth of throughput from one connection to many from which the report advises to use more connections."""


def replication_advice(findings: ReplicationFindings, kind: str) -> tuple[Advice, ...]:
    """Advice in the order in which a reader decides: the mode, then what reduces its cost."""
    candidates = (
        _safe_mode_advice(findings, kind),
        _asynchronous_advice(findings, kind),
        _more_connections_advice(findings.cost),
        _monitoring_advice(findings, kind),
        _second_replica_advice(findings, kind),
        _join_advice(findings),
        _cluster_advice(findings),
    )
    return tuple(advice for advice in candidates if advice is not None)


def _safe_mode_advice(findings: ReplicationFindings, kind: str) -> Advice | None:
    """Advice to replicate semi-synchronously, preferably with the wait point that shows no commit before it is safe. Only wait points
    that this run measured and that lost nothing qualify."""
    rows = {row.mode: row for row in _quoted_rows(findings) if row.mode in SEMI_SYNC}
    losses = findings.crash.losses if findings.crash else ()
    lossless_modes = [
        mode for mode in SEMI_SYNC if mode in rows and not any(loss.lost for loss in losses if loss.mode == mode)
    ]
    if not lossless_modes:
        return None
    mode = lossless_modes[0]
    reasons = [_cost_reason(rows[mode], findings), *_crash_reasons(mode, losses)]
    if rows[mode].durability != "strict":
        reasons.append(fill(TEXTS["not-strict"], durability=rows[mode].durability))
    other = next((row for name, row in rows.items() if name != mode), None)
    if other is not None and not losses:
        clause = TEXTS.get(f"{other.mode}-shows", "")
        reasons.append(fill(TEXTS["other-mode"], mode=SEMI_SYNC[other.mode], rate=other.commits_per_s, clause=clause))
    action = fill(TEXTS["safe-mode"], how=configuration(kind).waiting(mode))
    return Advice(
        action=action,
        because=_sentence(reasons),
        lines=configuration(kind).lines(mode),
        id="safe-mode",
        parameters=_mode_figures(rows[mode], losses),
    )


def _asynchronous_advice(findings: ReplicationFindings, kind: str) -> Advice | None:
    row = next((row for row in _quoted_rows(findings) if row.mode == ASYNC), None)
    if row is None:
        return None
    losses = [loss for loss in (findings.crash.losses if findings.crash else ()) if loss.mode == ASYNC]
    worst = max(losses, key=lambda loss: loss.lost_per_crash.value, default=None)
    reasons = [_cost_reason(row, findings)]
    if worst is not None and not worst.lost:
        reasons.append(fill(TEXTS["no-proof"], crashes=sum(loss.crashes for loss in losses)))
    elif worst is not None:
        reasons.append(fill(TEXTS["worst-fault"], fault=fault_name(worst.fault), lost=worst.lost_per_crash))
    elif row.replica_rtt_ns:
        in_flight = row.commits_per_s.value * row.replica_rtt_ns / 2e9
        reasons.append(fill(TEXTS["always-in-flight"], commits=in_flight))
    return Advice(
        action=TEXTS["asynchronous-mode"],
        because=_sentence(reasons),
        lines=configuration(kind).lines(ASYNC),
        id="asynchronous-mode",
        parameters=_mode_figures(row, losses),
    )


def _mode_figures(row: ModeComparison, losses: Sequence[CrashLoss]) -> Parameters:
    """The figures of advice to use a mode: its rate, its cost, and what its crashes lost."""
    figures: Parameters = {
        "mode": row.mode,
        "durability": row.durability,
        "connections": row.threads,
        "rtt_ns": row.replica_rtt_ns or 0,
        "commits_per_s": row.commits_per_s.value,
    }
    if row.cost is not None:
        figures["ratio"] = row.cost.value
    if of_mode := [loss for loss in losses if loss.mode == row.mode]:
        figures["crashes"] = sum(loss.crashes for loss in of_mode)
        figures["most_lost_per_crash"] = max(loss.lost_per_crash.value for loss in of_mode)
    return figures


def _more_connections_advice(cost: ReplicationCost | None) -> Advice | None:
    """Advice to use more connections: a single one waits for each of its commits, many wait at the same time."""
    curves = [curve for curve in cost.curves if curve.mode in SEMI_SYNC and curve.growth] if cost else []
    curve = max(curves, key=lambda candidate: candidate.rest_rtt_ns or 0.0, default=None)
    if curve is None or curve.growth is None or (curve.growth.low or curve.growth.value) < _MIN_GROWTH_FOR_ADVICE:
        return None
    parameters: Parameters = {
        "rtt_ns": curve.replica_rtt_ns or 0,
        "rate": curve.points[0].commits_per_s.value,
        "threads": curve.growth_threads or 0,
        "growth": curve.growth.value,
    }
    because = fill(TEXTS["waits-together"], **parameters)
    return Advice(action=TEXTS["more-connections"], because=because, id="more-connections", parameters=parameters)


def _monitoring_advice(findings: ReplicationFindings, kind: str) -> Advice | None:
    stories = [story for story in findings.fallback if story.degraded_ms is not None]
    if not stories:
        return None
    worst = max(stories, key=lambda story: story.unprotected.value)
    parameters: Parameters = {
        "mode": replication_name(worst.mode),
        "bound": int(worst.lasts_to_end_of_load),
        "commits": worst.stated_unprotected,
    }
    because, lines = fill(TEXTS["without-replica"], **parameters), configuration(kind).timeout_lines()
    return Advice(action=TEXTS["monitor"], because=because, lines=lines, id="monitor", parameters=parameters)


def _second_replica_advice(findings: ReplicationFindings, kind: str) -> Advice | None:
    """Advice to use a second replica, where a primary without a timeout stood still."""
    stories = [story for story in findings.fallback if story.waits_for_ever and story.stood_still]
    if not stories:
        return None
    longest = max(stories, key=lambda story: story.stall_ms.value)
    parameters: Parameters = {
        "mode": replication_name(longest.mode),
        "replicas": longest.replicas,
        "stall_s": longest.stall_ms.value / 1e3,
    }
    return Advice(
        action=TEXTS["second-replica"],
        because=fill(TEXTS["stood-still"], **parameters),
        lines=configuration(kind).second_lines(longest.mode),
        id="second-replica",
        parameters=parameters,
    )


def _join_advice(findings: ReplicationFindings) -> Advice | None:
    """Advice to keep a node's data, where a node without joined more slowly."""
    joins = {loss.fault: loss.back_s for loss in joined(findings.crash.losses if findings.crash else ()) if loss.back_s}
    kept, lost = (joins.get(fault) for fault in ("member-restarts", "member-joins"))
    if kept is None or lost is None or (kept.high or kept.value) >= (lost.low or lost.value):
        return None
    parameters: Parameters = {"with_data_s": kept.value, "without_data_s": lost.value}
    because = fill(TEXTS["kept-data"], **parameters)
    return Advice(action=TEXTS["keep-data"], because=because, id="keep-data", parameters=parameters)


def _cluster_advice(findings: ReplicationFindings) -> Advice | None:
    """Advice to rely on the acknowledgements of a cluster that lost none in any fault."""
    losses = [loss for loss in (findings.crash.losses if findings.crash else ()) if loss.mode in CLUSTERS]
    if not losses or any(loss.lost for loss in losses):
        return None
    parameters: Parameters = {
        "mode": replication_name(losses[0].mode),
        "crashes": sum(loss.crashes for loss in losses),
        "commits": sum(loss.acknowledged for loss in losses),
    }
    because = fill(TEXTS["cluster-lost-none"], **parameters)
    return Advice(action=TEXTS["cluster"], because=because, id="cluster", parameters=parameters)


def _quoted_rows(findings: ReplicationFindings) -> list[ModeComparison]:
    """Rows at exactly the quoted distance."""
    distance = quoted_distance([row.replica_rtt_ns for row in findings.trade])
    return [row for row in findings.trade if row.replica_rtt_ns == distance]


def _cost_reason(row: ModeComparison, findings: ReplicationFindings) -> str:
    text = fill(TEXTS["rate"], threads=row.threads, rate=row.commits_per_s)
    if row.replica_rtt_ns:
        text += fill(TEXTS["over"], rtt_ns=row.replica_rtt_ns)
    if row.cost is not None and excludes_one(row.cost):
        reference = next((other.mode for other in findings.trade if other.cost is None), ALONE)
        text += fill(TEXTS["relative"], ratio=row.cost, reference=with_mode(reference))
    return text


def _crash_reasons(mode: str, losses: tuple[CrashLoss, ...]) -> list[str]:
    mode_losses = [loss for loss in losses if loss.mode == mode]
    acknowledged, crashes = (sum(getattr(loss, name) for loss in mode_losses) for name in ("acknowledged", "crashes"))
    reasons = [fill(TEXTS["none-lost"], acknowledged=acknowledged, crashes=crashes)] if mode_losses else []
    phantoms = sum(loss.phantoms for loss in losses if loss.mode == "after-commit")
    return [*reasons, *([fill(TEXTS["phantoms"], phantoms=phantoms)] if mode == "after-sync" and phantoms else [])]


def _sentence(reasons: list[str]) -> str:
    return capital("; ".join(reasons)) + "."


class ReplicationExperiment(Experiment):
    """The experiment on replication. It also finds the results of crashes and fallbacks in the same run, because one table compares
    the costs and losses of all modes."""

    name = "replication"
    texts = TEXTS
    is_about_ratios = False
    findings: ClassVar[Keys] = {"replication": ReplicationFindings}
    own_model = True

    def acknowledgement_s(self, table: TrialTable, arm: Arm) -> float | None:
        return acknowledgement_wait_s(table, arm)

    def analyse(self, evidence: RunEvidence) -> Mapping[str, Part | None]:
        return {"replication": replication_findings(evidence.table)}

    def conclude(self, evidence: RunEvidence, findings: Findings) -> tuple[Finding, ...]:
        """The answer about the cost; empty if the run also has crashes or fallbacks, and so asks about these."""
        found = findings["replication"]
        if not isinstance(found, ReplicationFindings) or found.cost is None or found.crash or found.fallback:
            return ()
        return conclude(
            found.cost, lambda arm, other: evidence.floors.compare(evidence.table, arm, other).is_difference
        )

    def explain(self, evidence: RunEvidence, findings: Findings) -> tuple[Finding, ...]:
        found = findings["replication"]
        if not isinstance(found, ReplicationFindings) or found.cost is None:
            return ()
        return explain(found.cost.curves)

    def advice(self, evidence: RunEvidence, findings: Findings) -> tuple[Advice, ...] | None:
        replication = findings["replication"]
        if not isinstance(replication, ReplicationFindings):
            return None
        info = evidence.table.run.info
        own_advice = replication_advice(replication, server_kind(info, info.arms[0]))
        if replication.cost is None:
            return own_advice
        return (*own_advice, *advise(evidence.cells, evidence.table, evidence.floors, limits=False))

    def applies(self, summary: Summary) -> bool:
        """Whether commits without a fault were measured."""
        findings = summary.find_findings(ReplicationFindings)
        return findings is not None and findings.cost is not None

    def document(self, summary: Summary) -> Document:
        findings = summary.require_findings(ReplicationFindings)
        assert findings.cost is not None, "the experiment applies only to runs with costs"
        cost, crash, answered = findings.cost, findings.crash, not summary.answer.is_missing
        cost = cost if answered else _without_model(cost)
        tables = trade_tables(findings, summary)
        main: list[Block] = [*_throughput_section(cost, answered), *tables[:1]]
        blocks = [
            *mode_verdicts(findings, summary, tables[1:]),
            *_model_section(summary, cost, main),
            *_split_section(cost),
        ]
        if crash is not None and crash.losses:
            crash = crash if answered else crash_report.without_predictions(crash)
            blocks += [crash_report.dot_chart(crash), *crash_report.sections(crash)]
        blocks += [*fallback_report.sections(findings.fallback), *_lag_section(cost)]
        records = _records(findings.cost)
        for records_by_arm in (
            crash_report.records(findings.crash) if findings.crash else {},
            fallback_report.records(findings.fallback),
        ):
            records |= {arm: records.get(arm, {}) | record for arm, record in records_by_arm.items()}
        return frame.document(summary, main, blocks, records)


def _without_model(cost: ReplicationCost) -> ReplicationCost:
    """The measured figures only."""
    nothing = {"predicted": None, "predicted_error": None}
    curves = tuple(
        curve.model_copy(update={"points": tuple(point.model_copy(update=nothing) for point in curve.points)})
        for curve in cost.curves
    )
    return cost.model_copy(update={"curves": curves, "mean_error": None, "worst_error": None, "sentences": ()})


def _throughput_section(cost: ReplicationCost, answered: bool) -> list[Block]:
    """The chart of throughput. Empty with one number of connections, for which the table suffices."""
    points = [point for curve in cost.curves for point in curve.points]
    if len({point.threads for point in points}) < 2:
        return []
    has_published = PUBLISHED_RTT_NS in charts.sorted_distances(cost.curves) and bool(cost.published)
    predicted = any(point.predicted for point in points)
    caption = note(TEXTS["throughput-caption"], predicted=predicted, published=has_published)
    title = _growth_title(cost) if answered else TEXTS["growth-unknown"]
    return [Chart("commits", capital(title), caption, partial(charts.draw_throughput, cost), throughput_matrix(cost))]


def _growth_title(cost: ReplicationCost) -> str:
    """What connections make of the wait, in the mode that is advised at the quoted distance."""
    quoted = quoted_distance(charts.sorted_distances(cost.curves))
    curves = [curve for curve in cost.curves if curve.regime and curve.replica_rtt_ns == quoted]
    curve = min(curves, key=lambda curve: tuple(SEMI_SYNC).index(curve.mode), default=None)
    if curve is None:
        return TEXTS["growth-unknown"]
    return fill(TEXTS[str(curve.regime)], threads=curve.growth_threads, estimate=curve.growth)


def _model_section(summary: Summary, cost: ReplicationCost, main: Sequence[Block]) -> list[Block]:
    notes = [note for block in main if isinstance(block, Table) for note in block.notes]
    sentences = tuple(sentence for sentence in cost.sentences if sentence not in notes)
    tables = [
        throughput_matrix(cost),
        *([published_table(cost, figures.published_sources(summary))] if cost.published else []),
    ]
    return [Details("Model and published figures" if sentences else "Further figures", (Bullets(sentences), *tables))]


def throughput_matrix(cost: ReplicationCost) -> Table:
    """Commits/s by number of connections (rows), and by mode and distance (columns). The model's error follows each figure."""
    threads = cost.threads
    heads = [Column("connections", left_aligned=True)]
    for label, curve in charts.name_curves(cost.curves):
        extra = label.removeprefix(mode_name(curve.mode)).removeprefix(", ")
        lower = " ".join(part for part in (distance(curve.replica_rtt_ns), extra) if part)
        heads.append(Column(charts.MODE_STYLES[curve.mode].short, lower))
    rows = tuple(
        plain_cells(str(threads_count), *(_with_error(point_at(curve, threads_count)) for curve in cost.curves))
        for threads_count in threads
    )
    points = [point for curve in cost.curves for point in curve.points]
    predicted = sum(point.predicted is not None for point in points)
    errors = note(TEXTS["prediction-errors"], predicted=predicted, figures=len(points))
    return Table("Commits/s by connections", tuple(heads), rows, (errors,) if predicted else ())


def _with_error(point: CommitCost | None) -> str:
    if point is None:
        return figures.UNKNOWN
    error_text = (
        "" if point.predicted_error is None else f"{round(point.predicted_error * 100):+d} %".replace("+0", "0")
    )
    return f"{figures.number(point.commits_per_s.value)}{error_text:>6}"


def _split_section(cost: ReplicationCost) -> list[Block]:
    rtts = charts.sorted_distances(cost.curves)
    quoted = quoted_distance(rtts)
    tables = [split_table(cost, rtt) for rtt in sorted(rtts, key=lambda rtt: (rtt != quoted, rtt or 0))]
    if not tables[0].rows:
        return []
    title = fill(TEXTS["splits"], rtt=distance(quoted) if quoted is not None else "")
    chart = Chart(
        "split",
        capital(_split_title(cost, quoted)),
        TEXTS["split-caption"],
        partial(charts.draw_split, cost),
        tables[0],
    )
    return [Details(title, (chart, *tables), open=True)]


def _split_title(cost: ReplicationCost, rtt_ns: int | None) -> str:
    """The round trips of the commit that takes most of them."""
    points = [
        (point.rtts, point, curve)
        for curve in cost.curves
        for point in curve.points
        if point.rtts is not None and curve.replica_rtt_ns == rtt_ns
    ]
    if not points:
        return TEXTS["split-unknown"]
    rtts, point, curve = max(points, key=lambda found: found[0].value)
    return fill(TEXTS["split"], subject=mode_name(curve.mode), threads=point.threads, estimate=rtts)


def split_table(cost: ReplicationCost, rtt_ns: int | None) -> Table:
    """The parts of a commit's time at one distance, including curves without a distance."""
    labelled_curves = [
        (label, curve) for label, curve in charts.name_curves(cost.curves) if curve.replica_rtt_ns in (None, rtt_ns)
    ]
    number = figures.number
    labels = {point.arm: label for label, curve in labelled_curves for point in curve.points}
    fields: dict[str | Column, Callable[[CommitCost], str | Cell]] = {
        "mode": lambda point: labels[point.arm],
        "connections": lambda point: str(point.threads),
        "commits/s [95 %]": lambda point: with_interval(point.commits_per_s),
        "ms per commit": lambda point: number(point.commit_ms),
        "p50 / p99": lambda point: f"{number(point.p50_ms)} / {number(point.p99_ms)}",
        "local work": lambda point: Cell(number(point.local_ms), figures.interval_line(point.local_ms_interval)),
        "wire": lambda point: number(point.wire_ms if point.rtts else None),
        "waiting": lambda point: number(point.waiting_ms if point.rtts else None),
        "round trips [95 %]": lambda point: figures.ratio(point.rtts),
        "commits per group": lambda point: number(point.group),
    }
    if cost.mean_error is not None:
        fields["predicted"] = lambda point: Cell(
            number(point.predicted), figures.interval_line(point.predicted_interval)
        )
        fields["error"] = lambda point: figures.percent(point.predicted_error, signed=True)
    title = f"A commit at {distance(rtt_ns)}" if rtt_ns is not None else "A commit"
    return make_table(title, [point for _, curve in labelled_curves for point in curve.points], fields)


def _lag_section(cost: ReplicationCost) -> list[Block]:
    curves = [curve for curve in cost.curves if curve.replica_rtt_ns is not None and curve.lag]
    if not curves:
        return []
    fields: Fields[ReplicationCurve] = {
        "mode": lambda curve: curve.label,
        "transactions\nbehind, median": lambda curve: figures.whole_number(curve.lag_p50),
        "most": lambda curve: figures.whole_number(curve.lag_max),
        "heartbeat\nage, ms": lambda curve: figures.number(curve.heartbeat_p50_ms),
    }
    note, title = TEXTS["lag-caption"], TEXTS["lag-title"]
    chart = Chart("lag", title, note, partial(charts.draw_lag, cost), make_table("", curves, fields))
    return [Details("How far behind is the replica?", (chart, make_table("Lag", curves, fields, (note,))))]


def published_table(cost: ReplicationCost, sources: Sequence[str]) -> Table:
    published_unreplicated = next((per_s for mode, per_s, _ in cost.published if mode == ALONE), None)
    our_unreplicated = next((ours for mode, _, ours in cost.published if mode == ALONE), None)
    fields: Fields[tuple[str, float, float | None]] = {
        fill(TEXTS["published-head"], rtt=distance(PUBLISHED_RTT_NS)): lambda row: mode_name(row[0]),
        "published inserts/s": lambda row: figures.number(row[1]),
        "of no replica": lambda row: _fraction_of(row[1], published_unreplicated),
        "ours": lambda row: figures.number(row[2]),
        "of no replica, ours": lambda row: _fraction_of(row[2], our_unreplicated),
    }
    notes = (
        *(f"Source: {source}." for source in sources),
        "On other machines: without an acknowledgement, compare the ratios, not the rates.",
        note(TEXTS["published-durability"], durability=cost.curves[0].durability),
    )
    return make_table("Published figures", cost.published, fields, notes)


def _fraction_of(value: float | None, base: float | None) -> str:
    return figures.number(value / base) if value is not None and base else figures.UNKNOWN


# ---------------------------------------------------------------- records


def _records(cost: ReplicationCost) -> dict[str, Record]:
    point_columns = "commit_ms local_ms wire_ms waiting_ms rtts group predicted predicted_error"
    renamed = {"rtts": "round_trips", "group": "commits_per_group", "predicted": "predicted_commits_per_s"}
    return {
        point.arm: csv_columns(curve, "mode")
        | csv_columns(point, point_columns, **renamed)
        | csv_columns(curve, "lag_p50 lag_max heartbeat_p50_ms")
        for curve in cost.curves
        for point in curve.points
    }


TIMEOUT_MS = 3_600_000
"""One hour. With a shorter timeout a primary could soon acknowledge commits that no replica has, without anyone noticing."""


def configuration(kind: str) -> PostgresqlConf | MyCnf:
    return PostgresqlConf() if kind == "postgresql" else MyCnf(kind)


class PostgresqlConf:
    """PostgreSQL's configuration. `mode` is a level of the factor `replication` that has a replica. PostgreSQL identifies a replica by
    the `application_name` with which it connects."""

    def waiting(self, mode: str) -> str:
        """The mode in advice."""
        return f"synchronously with synchronous_commit = {SEMI_SYNC[mode]}"

    def lines(self, mode: str) -> tuple[str, ...]:
        """Both files, one after the other."""
        return (
            "# the primary's postgresql.conf",
            *self._primary(mode, "replica1"),
            "# the replica's, beside an empty file standby.signal",
            "# primary_conninfo = '… application_name=replica1'",
        )

    def timeout_lines(self) -> tuple[str, ...]:
        """Lines that set the timeout; none for a mode that never falls back."""
        return ()

    def second_lines(self, mode: str) -> tuple[str, ...]:
        """Lines with which a commit waits for any one of two replicas."""
        return (
            "# the primary's postgresql.conf",
            *self._primary(mode, "replica1, replica2"),
            "# monitor both: SELECT application_name, sync_state",
            "# FROM pg_stat_replication WHERE state = 'streaming'",
        )

    def _primary(self, mode: str, names: str) -> tuple[str, ...]:
        if mode not in SEMI_SYNC:
            return ("synchronous_commit = local", "synchronous_standby_names = ''")
        return (
            f"synchronous_commit = {SEMI_SYNC[mode]}",
            f"synchronous_standby_names = 'ANY 1 ({names})'",
            "# without a replica every commit waits for ever; a wait",
            "# that is cancelled ends with a warning, and no replica has it",
        )


_BINARY_LOG = {
    "mariadb": ("log-bin = binlog", "log-slave-updates = ON", "gtid-strict-mode = ON"),
    "mysql": ("log-bin = binlog", "gtid-mode = ON", "enforce-gtid-consistency = ON"),
}
_DURABLE = ("sync-binlog = 1", "innodb-flush-log-at-trx-commit = 1")
_READ_ONLY = {"mariadb": "read-only = ON", "mysql": "super-read-only = ON"}
_SIDE_NAMES = {"mariadb": ("master", "slave"), "mysql": ("source", "replica")}
STATUS = {"mariadb": "Rpl_semi_sync_master_status", "mysql": "Rpl_semi_sync_source_status"}


class MyCnf:
    """MariaDB's or MySQL's configuration. `mode` is a level of the factor `replication` with a replica."""

    def __init__(self, kind: str) -> None:
        self._kind = kind
        self._primary, self._replica = _SIDE_NAMES[kind]

    def waiting(self, mode: str) -> str:
        """The mode in advice."""
        return f"semi-synchronously with {SEMI_SYNC[mode]}"

    def lines(self, mode: str) -> tuple[str, ...]:
        """Both files, one after the other."""
        primary, replica = self.primary_lines(mode), self.replica_lines(mode)
        return ("# the primary's file", *primary, "# the replica's file, without the lines above", *replica)

    def primary_lines(self, mode: str) -> tuple[str, ...]:
        lines = ("[mysqld]", "server-id = 1", *_BINARY_LOG[self._kind], *_DURABLE)
        if mode not in SEMI_SYNC:
            return lines
        return (
            *lines,
            *self._plugin(self._primary),
            f"rpl-semi-sync-{self._primary}-enabled = ON",
            f"rpl-semi-sync-{self._primary}-wait-point = {SEMI_SYNC[mode]}",
            "# milliseconds. Without a replica every commit waits",
            "# this long, then continues without it silently",
            f"rpl-semi-sync-{self._primary}-timeout = {TIMEOUT_MS}",
        )

    def replica_lines(self, mode: str) -> tuple[str, ...]:
        lines = ("[mysqld]", "server-id = 2", _READ_ONLY[self._kind], *_BINARY_LOG[self._kind], *_DURABLE)
        if mode not in SEMI_SYNC:
            return lines
        return (
            *lines,
            *self._plugin(self._replica),
            f"rpl-semi-sync-{self._replica}-enabled = ON",
            "# once promoted, with a replica: no read-only,",
            f"# and the rpl-semi-sync-{self._primary} lines of the primary",
        )

    def timeout_lines(self) -> tuple[str, ...]:
        """Lines that keep a primary from falling back, and a query that shows whether it has."""
        return (
            "# the primary's file",
            "[mysqld]",
            *self._plugin(self._primary),
            f"rpl-semi-sync-{self._primary}-timeout = {TIMEOUT_MS}",
            "# monitor it: unless ON, no replica is up to date",
            f"# SHOW GLOBAL STATUS LIKE '{STATUS[self._kind]}'",
        )

    def second_lines(self, mode: str) -> tuple[str, ...]:
        """No lines: by default, a commit waits for only one acknowledgement."""
        return ()

    def _plugin(self, side: str) -> tuple[str, ...]:
        """The line that loads the plugin. MySQL refuses options of a plugin that is not loaded; MariaDB has both plugins built in."""
        return (f"plugin-load-add = semisync_{side}.so",) if self._kind == "mysql" else ()
