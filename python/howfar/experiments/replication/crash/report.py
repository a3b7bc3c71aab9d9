"""The report on crashes: losses of each mode under each fault, the timeline of one crash, and why to trust a loss of zero."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from howfar.analysis.answer import sentence, sentences
from howfar.analysis.summary import Findings, RunEvidence, Summary
from howfar.experiments.experiment import Experiment
from howfar.experiments.replication import frame
from howfar.experiments.replication.arms import mode_name
from howfar.experiments.replication.charts import MODE_STYLES, phase_layers, symlog_ticks
from howfar.experiments.replication.crash.analysis import (
    FAULTS,
    CrashFindings,
    CrashLoss,
    CrashPoint,
    conclude,
    explain,
    join_finding,
    joined,
    lost_before_text,
    max_loss_share,
)
from howfar.experiments.replication.crash.texts import FAULT_TEXTS, TEXTS
from howfar.experiments.replication.factors import LOSSLESS
from howfar.experiments.replication.frame import (
    Record,
    count,
    count_limits,
    fault_name,
    lost_cell,
    mode_verdicts,
    trade_tables,
)
from howfar.experiments.replication.trade import ReplicationFindings, quoted_rows
from howfar.findings import Finding, capital, describe, fill, note
from howfar.report import figures, palette
from howfar.report.charts import PHONE, Drawable, Rows, by_style, data, layer, legend, stacked_bars
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
    plain_columns,
)
from howfar.report.drawing import alt
from howfar.report.sections import csv_columns, csv_limits
from howfar.stats.estimate import Estimate

Typical = tuple[str, CrashLoss, CrashPoint]
"""The label of a mode, its crashes, and the crash with the median loss."""

ROW_HEIGHT = 40
MAX_LANES = 7
"""Maximum number of offsets for dots that would cover each other; the figure on the right has the exact number."""
FIGURES_WIDTH = 150
"""Width of the figures on the right, in pixels. On a phone they are only in the table."""


def mode_labels(losses: Sequence[CrashLoss]) -> list[str]:
    """Labels of rows: the mode if mode and fault together are unique, else the arm's name."""
    modes_and_faults = {(loss.mode, loss.fault) for loss in losses}
    return [mode_name(loss.mode) if len(modes_and_faults) == len(losses) else loss.arm for loss in losses]


def fault_labels(losses: Sequence[CrashLoss]) -> list[str]:
    """Labels of rows: mode and fault if these are unique, else the arm's name."""
    short = [f"{MODE_STYLES[loss.mode].short}, {fault_name(loss.fault)}" for loss in losses]
    return short if len(set(short)) == len(short) else [loss.arm for loss in losses]


def _draw_dots(losses: Sequence[CrashLoss], width: int) -> Drawable | None:
    """Chart of acknowledged commits lost: a dot for each crash, a bar for the prediction, and a triangle for the rows that others saw
    and that were then lost."""
    if not losses:
        return None
    narrow = width < PHONE
    row_labels = fault_labels(losses)
    labelled_losses = list(zip(row_labels, losses, strict=True))
    max_lost = max(_max_drawn(loss) for loss in losses)
    scale = alt.Scale(type="symlog", constant=1, domain=[-0.4, max(max_lost * 1.3, 3)], nice=False)
    ticks = sorted({0.0, *([1.0] if max_lost < 1000 or not narrow else []), *symlog_ticks(max(max_lost, 10))[1:]})
    axis = alt.Axis(values=ticks, format=",d", labelFlush=False)
    title = fill(TEXTS["losses-axis"], phantoms=any(loss.phantoms for loss in losses))
    x, low = (alt.X(f"{field}:Q", scale=scale, axis=axis, title=title) for field in ("lost", "low"))
    y = _row_axis(row_labels, narrow, ", ")
    modes = dict.fromkeys(loss.mode for loss in losses)
    predicted = data([_prediction_row(label, loss) for label, loss in labelled_losses if loss.predicted_lost])
    crash_marks = data(
        [
            {"row": label, "mode": loss.mode, "lost": point.lost, "lane": lane_offset(index)}
            for label, loss in labelled_losses
            for index, point in enumerate(loss.each)
        ]
    ).mark_point(size=36, strokeWidth=1.4, opacity=0.85, filled=False)
    phantom_marks = data(
        [
            {"row": label, "lost": point.phantoms}
            for label, loss in labelled_losses
            for point in loss.each
            if point.phantoms
        ]
    ).mark_point(shape="triangle-down", size=60, filled=True, opacity=0.9, color=palette.SERIES[5])
    layers = [
        predicted.mark_bar(size=34, color=palette.BAND).encode(x=low, x2="high:Q", y=y),
        crash_marks.encode(
            x=x,
            y=y,
            yOffset=alt.YOffset("lane:Q", scale=alt.Scale(domain=[-1.5, 1.5])),
            color=by_style(alt.Color, "mode", {mode: MODE_STYLES[mode].colour for mode in modes}, None),
            shape=by_style(alt.Shape, "mode", {mode: MODE_STYLES[mode].shape for mode in modes}, None),
        ),
        phantom_marks.encode(x=x, y=y),
        predicted.mark_tick(size=34, thickness=2.5, color=palette.INK).encode(x=x, y=y),
    ]
    if not narrow:
        cells = [(label, lost_cell(loss.lost_per_crash, loss.crashes)) for label, loss in labelled_losses]
        figure_rows: Rows = [{"row": label, "text": f"{cell.text} {cell.below}".strip()} for label, cell in cells]
        text = data(figure_rows).mark_text(align="left", fontSize=12, color=palette.INK)
        layers.append(text.encode(x=alt.value(width - FIGURES_WIDTH + 10), y=y, text="text:N"))
    return layer(*layers, width=width - (0 if narrow else FIGURES_WIDTH), height=ROW_HEIGHT * len(losses))


def _row_axis(names: list[str], narrow: bool, separator: str) -> alt.Y:
    """Axis of rows. On a phone a label is split at its separators."""
    label_expression = f"split(datum.label, '{separator}')" if narrow else "datum.label"
    label_width = 130 if narrow else 230
    axis = alt.Axis(labelLimit=label_width, ticks=False, domain=False, labelPadding=8, labelExpr=label_expression)
    return alt.Y("row:N", sort=names, title=None, axis=axis)


def _prediction_row(label: str, loss: CrashLoss) -> dict[str, str | float]:
    predicted_lost = loss.predicted_lost
    assert predicted_lost is not None, "the loss has a prediction"
    low, high = (
        predicted_lost.value if limit is None else limit for limit in (predicted_lost.low, predicted_lost.high)
    )
    return {"row": label, "lost": predicted_lost.value, "low": max(low, 0.0), "high": high}


def _max_drawn(loss: CrashLoss) -> float:
    predicted = (loss.predicted_lost.high or loss.predicted_lost.value) if loss.predicted_lost else 0.0
    return max([loss.most_lost, predicted, *(point.phantoms for point in loss.each)])


def lane_offset(index: int) -> float:
    """Vertical offset of the dot with this index, in lanes: 0, then alternating above and below."""
    step = (index % MAX_LANES + 1) // 2 * 2 / (MAX_LANES - 1)
    return step if index % 2 else -step


# ---------------------------------------------------------------- the last moments

KEPT, LOST, WAITING, TAKEOVER = "acknowledged, kept", "acknowledged, lost", "clients wait", "replica takes over"
STATE_COLOURS = {KEPT: palette.PARTS[1], LOST: palette.SERIES[5], WAITING: palette.MUTED, TAKEOVER: palette.PARTS[0]}


def typical_crashes(losses: Sequence[CrashLoss]) -> list[Typical]:
    """The crash with the median loss of each mode, under the fault that lost most. Empty: nothing was lost."""
    worst = max(losses, key=lambda loss: loss.lost_per_crash.value, default=None)
    fault_losses = [loss for loss in losses if worst is not None and loss.fault == worst.fault and loss.each]
    typical = [
        (label, loss, sorted(loss.each, key=lambda point: point.lost)[len(loss.each) // 2])
        for label, loss in zip(mode_labels(fault_losses), fault_losses, strict=True)
    ]
    return typical if any(point.lost for _, _, point in typical) else []


def draw_timeline(drawn: Sequence[Typical], width: int) -> Drawable | None:
    """Chart of one crash of each mode under the same fault: when commits were acknowledged, and which of them were lost."""
    if not drawn:
        return None
    narrow = width < PHONE
    first_lost_ms = min(point.first_lost_ms for _, _, point in drawn if point.first_lost_ms is not None)
    end_ms = max(point.dead_ms + point.promotion_ms for _, _, point in drawn)
    begin_ms = min(first_lost_ms * 1.15, first_lost_ms - (end_ms - first_lost_ms) * 0.15)
    bars = [row for mark_labels, _, point in drawn for row in _phase_rows(mark_labels, point, begin_ms)]
    for bar in bars:
        fits = len(bar["text"]) * 6.5 < (bar["to"] - bar["from"]) * width / (end_ms - begin_ms)
        bar["text"] = bar["text"] if fits and not narrow else ""
    scale = alt.Scale(domain=[begin_ms, end_ms * 1.02], nice=False)
    x = alt.X("from:Q", scale=scale, axis=alt.Axis(tickCount=6, format=",d", grid=False), title="ms from the fault on")
    y = _row_axis([mark_labels for mark_labels, _, _ in drawn], narrow, " ")
    key = legend(2 if narrow else 4, 200, symbolType="square", offset=24)
    shown_states = {
        state: colour for state, colour in STATE_COLOURS.items() if any(bar["state"] == state for bar in bars)
    }
    dead_ms = drawn[0][2].dead_ms
    marks: Rows = [{"from": 0.0, "text": "fault"}]
    marks += [{"from": dead_ms, "text": "primary dead"}] if dead_ms > (end_ms - begin_ms) * 0.05 else []
    mark_labels = data(marks).mark_text(color=palette.INK, fontSize=11, dy=-6, y=0, baseline="bottom")
    layers = [
        *phase_layers(bars, x, y, by_style(alt.Color, "state", shown_states, key), 20),
        data(marks).mark_rule(color=palette.INK, strokeWidth=1.5, strokeDash=[4, 3]).encode(x=x),
        mark_labels.encode(x=x, text="text:N"),
    ]
    return layer(*layers, width=width, height=34 * len(drawn))


def _phase_rows(row: str, point: CrashPoint, begin_ms: float) -> Rows:
    """Phases after the fault: an asynchronous primary continues to acknowledge; in other modes clients wait."""
    dead_ms = max(point.dead_ms, 0.0)
    first_lost_ms = point.first_lost_ms
    phases = [(KEPT, begin_ms, min(first_lost_ms or 0.0, 0.0), "")]
    if first_lost_ms is not None:
        phases.append((LOST, first_lost_ms, dead_ms, f"{point.lost:,} lost"))
    elif dead_ms > 0:
        phases.append((WAITING, 0.0, dead_ms, f"{point.unknown:,} clients wait"))
    phases.append((TAKEOVER, dead_ms, dead_ms + point.promotion_ms, f"{point.promotion_ms:.0f} ms"))
    return [
        {"row": row, "state": state, "from": start, "to": end, "text": text}
        for state, start, end, text in phases
        if end > start
    ]


LOSSES = "What a crash loses"


class Crash(Experiment):
    """The experiment on crashes. Its findings are part of those of replication."""

    name = "crash"
    texts = TEXTS
    is_about_ratios = False

    def conclude(self, evidence: RunEvidence, findings: Findings) -> tuple[Finding, ...]:
        found = findings["replication"]
        if not isinstance(found, ReplicationFindings) or found.crash is None:
            return ()
        rows = quoted_rows(found.trade)
        return conclude(
            found.crash.losses, {row.mode: row.lost_per_crash for row in reversed(rows) if row.lost_per_crash}
        )

    def explain(self, evidence: RunEvidence, findings: Findings) -> tuple[Finding, ...]:
        found = findings["replication"]
        answer = next(iter(self.conclude(evidence, findings)), None)
        if not isinstance(found, ReplicationFindings) or found.crash is None or answer is None:
            return ()
        return explain(found.crash.losses, answer)

    def applies(self, summary: Summary) -> bool:
        findings = summary.find_findings(ReplicationFindings)
        return findings is not None and findings.crash is not None

    def document(self, summary: Summary) -> Document:
        findings = summary.require_findings(ReplicationFindings)
        assert findings.crash is not None, "the experiment applies only to runs with crashes"
        crash = without_predictions(findings.crash) if summary.answer.is_missing else findings.crash
        tables, chart = trade_tables(findings, summary), dot_chart(crash)
        if joins := joined(crash.losses):
            table = join_table(joins)
            main: list[Block] = [_join_chart(joins, table), table]
            blocks = [*sections(crash, chart), *mode_verdicts(findings, summary, tables)]
            return frame.document(summary, main, blocks, records(findings.crash))
        blocks = [*sections(crash), *mode_verdicts(findings, summary, tables[1:])]
        proofs = [describe(proof, TEXTS) for proof in _ruled_out(crash.losses)[-1:]]
        return frame.document(summary, [chart, *tables[:1]], blocks, records(findings.crash), proofs)


def without_predictions(crash: CrashFindings) -> CrashFindings:
    """The measured losses only."""
    return crash.model_copy(
        update={"losses": tuple(loss.model_copy(update={"predicted_lost": None}) for loss in crash.losses)}
    )


def sections(crash: CrashFindings, *charts: Chart) -> list[Block]:
    """All sections. The first has these `charts`; the chart of all losses is among them, unless it is elsewhere."""
    losses = [loss for loss in crash.losses if loss.crashes]
    if not losses:
        return []
    blocks: list[Block] = [Details(LOSSES, (Bullets(crash.sentences), *charts, loss_table(losses)), open=True)]
    if drawn := typical_crashes(losses):
        blocks.append(Details("One crash, moment by moment", (_moments_chart(drawn),), open=True))
    return [*blocks, Details("Why trust these losses?", (Bullets(evidence(losses)),), open=True)]


_MEMBER_COLUMNS: Fields[CrashLoss] = {
    Column("commits/s", "meanwhile", optional=True): lambda loss: _estimate_cell(loss.meanwhile),
    Column("synchronized", "after s", optional=True): lambda loss: _estimate_cell(loss.back_s),
}
"""Columns for faults of a member that is not the primary."""
_JOIN_COLUMNS: Fields[CrashLoss] = {
    Column("fetched by", optional=True): lambda loss: (
        figures.UNKNOWN if loss.join is None else " or ".join(loss.join.how)
    ),
    Column("MB", optional=True): lambda loss: _estimate_cell(
        loss.join.received_bytes.scaled(1e-6) if loss.join else None
    ),
    Column("link busy", "%", optional=True): lambda loss: (
        figures.UNKNOWN if loss.join is None else f"{loss.join.link_busy.value * 100:.0f}"
    ),
}
"""Columns for a node that joins."""


def join_table(losses: Sequence[CrashLoss]) -> Table:
    """What it costs when a node joins: a row for each way of joining."""
    fields: Fields[CrashLoss] = {
        Column("a node joins", left_aligned=True): lambda loss: fault_name(loss.fault),
        "synchronized\nafter s": lambda loss: _estimate_cell(loss.back_s),
        **_JOIN_COLUMNS,
        "s without\na commit": lambda loss: _estimate_cell(loss.stall_s),
        "commits/s\nmeanwhile": lambda loss: _estimate_cell(loss.meanwhile),
    }
    names = ("join-rows", "rate-meanwhile", "received")
    return make_table("When a node joins", losses, fields, [note(TEXTS[name]) for name in names], main=True)


def _join_chart(losses: Sequence[CrashLoss], table: Table) -> Chart:
    bars: Rows = [
        {"arm": fault_name(loss.fault), "part": "join", "value": loss.back_s.value} for loss in losses if loss.back_s
    ]
    title = sentence([join_finding(loss) for loss in losses], TEXTS).removesuffix(".")
    return Chart("joins", title, note(TEXTS["joins-caption"]), partial(_draw_joins, bars), table)


def _draw_joins(bars: Rows, width: int) -> Drawable:
    ends: Rows = [bar | {"text": f"{figures.number(bar['value'])} s"} for bar in bars]
    colours = {"join": palette.PARTS[0]}
    names = [bar["arm"] for bar in bars]
    return stacked_bars(bars, names, colours, "s until synchronized", width, size=26, ends=ends, with_legend=False)


def loss_table(losses: Sequence[CrashLoss]) -> Table:
    """A row for each mode and fault, over all its crashes."""
    names = dict(zip((loss.arm for loss in losses), mode_labels(losses), strict=True))
    columns_by_kind: dict[bool, Fields[CrashLoss]] = {
        True: {
            "s without\na commit": lambda loss: _estimate_cell(loss.stall_s),
            **(_MEMBER_COLUMNS if any(loss.meanwhile for loss in losses) else {}),
            **(_JOIN_COLUMNS if any(loss.join for loss in losses) else {}),
            "by a node\ncut off": lambda loss: figures.UNKNOWN if loss.by_itself is None else f"{loss.by_itself:,}",
        },
        False: {"predicted": _predicted_cell} if any(loss.predicted_lost for loss in losses) else {},
    }
    fields: Fields[CrashLoss] = {
        "mode": lambda loss: names[loss.arm],
        Column("fault", left_aligned=True): lambda loss: fault_name(loss.fault),
        Column("commits", "per s", optional=True): lambda loss: figures.number(loss.commits_per_s.value),
        "lost per\ncrash": lambda loss: lost_cell(loss.lost_per_crash, loss.crashes),
        **columns_by_kind[any(loss.stall_s for loss in losses)],
        "applied,\nnot acknowledged": lambda loss: f"{loss.done_untold:,}",
        "others read,\nthen lost": lambda loss: f"{loss.phantoms:,}",
    }
    return make_table(LOSSES, losses, fields, loss_notes(losses), stack=True)


def _estimate_cell(estimate: Estimate | None) -> Cell:
    return Cell(figures.number(estimate.value if estimate else None), count_limits(estimate))


def predicted(loss: CrashLoss) -> str:
    """Predicted loss: `4,791`; `≲ 70` if only the order of magnitude of the maximum is known; `0` if nothing may be lost; a dash
    without a prediction."""
    predicted_lost = loss.predicted_lost
    if predicted_lost is None:
        return "0" if loss.mode in LOSSLESS else figures.UNKNOWN
    return f"{'' if FAULTS[loss.fault].cut_off else '≲ '}{count(predicted_lost.value)}"


def _predicted_cell(loss: CrashLoss) -> Cell:
    return Cell(predicted(loss), count_limits(loss.predicted_lost))


def loss_notes(losses: Sequence[CrashLoss]) -> tuple[str, ...]:
    faults = dict.fromkeys(loss.fault for loss in losses)
    crashes = {loss.crashes for loss in losses}
    not_back = sum(loss.not_back for loss in losses)
    notes = {
        "rows": {"crashes": max(crashes), "uneven": int(len(crashes) > 1)},
        "without-commit": {} if any(loss.stall_s for loss in losses) else None,
        "rate-meanwhile": {} if any(loss.meanwhile for loss in losses) else None,
        "not-back": {"trials": not_back} if not_back else None,
        "received": {} if any(loss.join for loss in losses) else None,
    }
    return (
        *(f"{capital(fault_name(fault))}: {FAULT_TEXTS[fault].text}." for fault in faults if FAULT_TEXTS[fault].text),
        *(note(TEXTS[name], **each) for name, each in notes.items() if each is not None),
    )


def dot_chart(crash: CrashFindings) -> Chart:
    losses = [loss for loss in crash.losses if loss.crashes]
    caption = note(
        TEXTS["losses-caption"],
        predicted=any(loss.predicted_lost for loss in losses),
        phantoms=any(loss.phantoms for loss in losses),
    )
    rows = tuple(
        plain_cells(
            label, f"{loss.acknowledged:,}", f"{loss.lost:,}", " ".join(f"{point.lost:,}" for point in loss.each)
        )
        for label, loss in zip(fault_labels(losses), losses, strict=True)
    )
    return Chart(
        "losses",
        _dots_title(losses),
        caption,
        partial(_draw_dots, losses),
        Table("", plain_columns("mode, fault", "acknowledged in all", "lost in all", "lost, crash by crash"), rows),
    )


def _dots_title(losses: Sequence[CrashLoss]) -> str:
    worst = max(losses, key=lambda loss: loss.most_lost, default=None)
    if worst is None or not worst.most_lost:
        return capital(TEXTS["nothing-lost"])
    mode, fault = mode_name(worst.mode), fault_name(worst.fault)
    return capital(fill(TEXTS["most-lost"], most=worst.most_lost, subject=mode, fault=fault))


def _moments_chart(drawn: Sequence[Typical]) -> Chart:
    fields: Fields[Typical] = {
        "mode": lambda row: mode_name(row[1].mode),
        "trial": lambda row: str(row[2].trial),
        "lost": lambda row: f"{row[2].lost:,}",
        "first lost, ms": lambda row: figures.number(row[2].first_lost_ms),
        "primary dead, ms": lambda row: figures.number(row[2].dead_ms),
        "takeover, ms": lambda row: figures.number(row[2].promotion_ms),
        "clients without an answer": lambda row: f"{row[2].unknown:,}",
    }
    return Chart(
        "moments",
        "The last moments of one crash of each mode, from the fault on",
        note(TEXTS["moments-caption"], fault=fault_name(drawn[0][1].fault)),
        partial(draw_timeline, drawn),
        make_table("", drawn, fields),
    )


# ---------------------------------------------------------------- evidence


def evidence(losses: Sequence[CrashLoss]) -> tuple[str, ...]:
    acknowledged, lost, void = (
        sum(getattr(loss, name) for loss in losses) for name in ("acknowledged", "lost", "void_crashes")
    )
    findings = (
        _machine_failure(losses),
        *_ruled_out(losses),
        Finding(id="can-find" if lost else "cannot-show", parameters={"lost": lost}),
        Finding(id="accounts", parameters={"acknowledged": acknowledged}),
        Finding(id="void", parameters={"crashes": void}),
    )
    return sentences(findings, TEXTS)


def _machine_failure(losses: Sequence[CrashLoss]) -> Finding:
    machine_losses = [loss for loss in losses if FAULTS[loss.fault].like_machine_failure]
    if not machine_losses:
        return Finding(id="no-machine-failure")
    clauses = [
        fill(
            TEXTS["machine-failure-loss"],
            subject=mode_name(mode),
            before=" and ".join(lost_before_text(loss) for loss in machine_losses if loss.mode == mode),
            crashes=sum(loss.crashes for loss in machine_losses if loss.mode == mode),
        )
        for mode in sorted({loss.mode for loss in machine_losses})
    ]
    return Finding(id="machine-failure", parameters={"losses": "; ".join(clauses)})


def _ruled_out(losses: Sequence[CrashLoss]) -> list[Finding]:
    """Which shares of crashes with a loss a loss of zero rules out, for one row and for all modes that should lose nothing."""
    without_loss = [loss for loss in losses if not loss.lost]
    if not without_loss:
        return []
    crashes = max(loss.crashes for loss in without_loss)
    findings = [Finding(id="rule-out", parameters={"crashes": crashes, "share": max_loss_share(crashes)})]
    lossless = [loss for loss in without_loss if loss.mode in LOSSLESS]
    if len(lossless) > 1:
        crashes, acknowledged = (sum(getattr(loss, name) for loss in lossless) for name in ("crashes", "acknowledged"))
        together = {"crashes": crashes, "acknowledged": acknowledged, "share": max_loss_share(crashes)}
        findings.append(Finding(id="rule-out-together", parameters=together))
    return findings


# ---------------------------------------------------------------- records

_COLUMNS = """mode fault threads replica_rtt_ns commits_per_s crashes void_crashes acknowledged lost lost_per_crash share_that_may_lose
crashes_with_loss most_lost predicted_lost done_untold seen_early phantoms promotion_ms stall_s by_itself
meanwhile back_s"""


def records(crash: CrashFindings) -> dict[str, Record]:
    lost_counts = {
        loss.arm: {
            "lost_least": min((point.lost for point in loss.each), default=""),
            "lost_most": max((point.lost for point in loss.each), default=""),
        }
        for loss in crash.losses
    }
    return {loss.arm: csv_columns(loss, _COLUMNS) | _join_record(loss) | lost_counts[loss.arm] for loss in crash.losses}


def _join_record(loss: CrashLoss) -> Record:
    if loss.join is None:
        return {}
    fetched = {"join_how": " or ".join(loss.join.how), "join_link_busy": loss.join.link_busy.value}
    return fetched | csv_limits("join_bytes", loss.join.received_bytes)
