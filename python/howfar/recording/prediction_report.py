"""The report of a prediction: the answer, times by page, suggested changes, and the parts of each page's time. No I/O."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Literal

import numpy as np

from howfar.findings import capital, join
from howfar.recording.changes import PossibleChange
from howfar.recording.other_programs import BusyPrograms, busy_pages_note
from howfar.recording.page_costs import CostedPage, median_pages
from howfar.recording.predict import RESAMPLES, SMALL_WINDOW, PagePrediction, PathPrediction
from howfar.recording.texts import advise, certainty, format_ms, interval, next_step, phrase, rounded_count, setting
from howfar.report import palette
from howfar.report.charts import Drawable, Rows, axis, by_style, data, layer, legend, styles, vconcat
from howfar.report.document import (
    AdviceBlock,
    Answer,
    Block,
    Card,
    Cell,
    Chart,
    Column,
    Details,
    Document,
    Heading,
    Table,
    Text,
    Warnings,
    make_table,
    what_to_do,
)
from howfar.report.drawing import alt
from howfar.stats.estimate import Estimate, Part
from howfar.stats.intervals import MIN_BLOCKS, estimate_text, limits_text
from howfar.units import counted, format_duration_ns

_MAX_CHANGES = 12
"""Number of changes on the first screen."""
_MAX_DIGEST = 90
_NOTABLE_FACTOR = 1.2
"""A warning mentions a small receive buffer if it makes a page take more than this many times as long."""
_MAX_NAMED = 3
"""Maximum number of failing statements, or of reasons for blocks left out, that warnings name."""
SAME_SHARE = 0.05
"""Times are called the same if the interval of one lies within this share of the other."""
_MIN_SHARE = 0.002
"""A change that saves less than this share of its page's time is left out."""
_NOTABLE_CLIPPED_SHARE = 0.1
_SAFE_CHANGES = ("nagle", "loop", "connect", "transaction", "initial", "prepare", "fetch", "bytes")
"""Kinds of changes that need no knowledge of the application: which answers may be old, or which statements wait for which."""


class MeasuredPage(Part):
    """Times of a page that were measured on some path."""

    name: str
    p50_ms: Estimate
    p95_ms: Estimate


class Measurement(Part):
    """The output of `howfar replay --json`."""

    target: str
    rtt_ns: int
    pages: tuple[MeasuredPage, ...]


def format_limits(estimate: Estimate) -> str:
    return limits_text(estimate, format_ms)


def format_estimate(estimate: Estimate) -> str:
    """An estimate as text: `12.3 ms [11.9, 12.8]`."""
    return f"{format_ms(estimate.value)} ms {format_limits(estimate)}".strip()


def document(
    prediction: PathPrediction,
    changes: Sequence[PossibleChange],
    costed: Mapping[str, Sequence[CostedPage]],
    measured: Sequence[Measurement] = (),
) -> Document:
    """The report of a prediction. `costed`: the pages of the recording with their costs, for charts."""
    missed = {page.name for page in prediction.missed}
    shown = [page for page in prediction.pages if page.name not in missed]
    refusals = [_missed_warning(page, prediction) for page in prediction.missed]
    refusals += [phrase("predict/contested", page=name, pages=count) for name, count in prediction.contested.items()]
    refused: list[Block] = [Warnings(tuple(refusals))] if refusals else []
    # Costs from few blocks are no prediction; few pages give one without an interval.
    sure = shown if (prediction.cost_us.n or 0) >= MIN_BLOCKS else []
    steps: list[Block] = []
    if sure:
        notable = [change for change in changes if change.page not in missed and change.target_share >= _MIN_SHARE]
        blocks = [*_answer(prediction, sure, notable), *refused, Heading("Times"), _times_table(shown, prediction)]
        blocks += [*_rtt_table(shown), *_warnings(shown, prediction), *_changes_blocks(notable)]
        for page in shown:
            blocks += _page_blocks(page, prediction, costed[page.name], measured)
    else:
        answer, *steps = _missing_answer(prediction, shown)
        blocks = [answer, *refused]
    blocks += [Heading("How it was predicted"), Text(_method_text(prediction)), *steps]
    return Document(
        "howfar predict",
        tuple(blocks),
        tuple(_csv_record(page) for page in shown),
        phrase("predict/question", target=prediction.target),
        _setting(prediction),
    )


def _setting(prediction: PathPrediction) -> str:
    pages = sum(page.pages for page in prediction.pages)
    return setting(
        phrase("predict/counts", pages=pages, blocks=prediction.cost_us.n or 0),
        phrase("predict/paths", present=prediction.present, target=prediction.target),
        unix_ns=prediction.recorded_unix_ns,
        is_recorded=True,
    )


def _missing_answer(prediction: PathPrediction, shown: Sequence[PagePrediction]) -> list[Block]:
    """That there is no answer, why, and the command that gets one."""
    blocks = prediction.cost_us.n or 0
    pages = max((page.pages for page in shown), default=0)
    name = "contested" if prediction.contested else "empty"
    causes = [found for page in prediction.missed for found in _busy_programs(page, prediction).items()]
    if prediction.void and (others := prediction.others) is not None and others.disturbed:
        causes.append(("now", others))
    if causes and (prediction.void or not shown):
        when, found = causes[0]
        text = phrase("predict/answer/busy", target=prediction.target, cause=_cause_text(when, found.use_without_pid))
        return [Answer(text), *next_step("predict/next/busy", remedy=_remedy(dict(causes)))]
    if prediction.missed:
        name = "contradictory" if all(_miss_cause(page) == "beyond" for page in prediction.missed) else "changed"
    name = "few" if shown else name
    step = "blocks" if shown else name
    figures = {"target": prediction.target, "present": prediction.present, "needed": MIN_BLOCKS}
    text = phrase(f"predict/answer/{name}", pages=pages, blocks=blocks, **figures)
    return [Answer(text), *next_step(f"predict/next/{step}", **figures)]


def _answer(
    prediction: PathPrediction, pages: Sequence[PagePrediction], changes: Sequence[PossibleChange]
) -> list[Block]:
    """The answer about the slowest page, and the change to make first."""
    page = max(pages, key=lambda page: page.bottom_up.p50_ms.value)
    if page.is_explained is False:
        text = phrase("predict/answer/unexplained", page=page.name, target=prediction.target)
        return [Answer(text), *next_step("predict/next/unexplained")]
    now_ms, there = page.now.p50_ms.value, page.bottom_up.p50_ms
    text = phrase(
        f"predict/answer/{compare(now_ms, there)}",
        page=page.name,
        target=prediction.target,
        now=format_ms(now_ms),
        there=format_ms(there.value),
        low=format_ms(there.low or 0.0),
        high=format_ms(there.high or 0.0),
        ratio=now_ms / there.value,
    )
    first = _first_change(page, changes)
    counts = phrase("predict/counts", pages=page.pages, blocks=prediction.cost_us.n or 0)
    present = phrase("predict/present", error=abs(page.present_error))
    others = [prediction.others.in_blocks] if prediction.others is not None and prediction.others.disturbed else []
    sure = certainty([counts, interval(there), present, *others], _doubts(page, prediction))
    answer = Answer(text, _cards(pages, prediction), _cause(page, first), sure)
    return [answer, *what_to_do(_advice(page, first, prediction))]


def compare(then_ms: float, time: Estimate) -> Literal["times", "change", "same", "between"]:
    """What the interval of a time shows about an earlier one. `times`: there is no interval; `between`: it is too wide to tell."""
    if time.low is None or time.high is None:
        return "times"
    if not time.low <= then_ms <= time.high:
        return "change"
    is_narrow = max(then_ms - time.low, time.high - then_ms) <= SAME_SHARE * then_ms
    return "same" if is_narrow else "between"


def _cause(page: PagePrediction, first: PossibleChange | None) -> str:
    """What its round trips cost, and which of them the first change concerns. Empty: it waits for none."""
    if not page.median_round_trips:
        return ""
    connects_ms = page.median_added_connect_ms
    connects, took = f"predict/why/{'longer' if connects_ms > 0 else 'shorter'}", format_ms(abs(connects_ms))
    text = phrase(
        "predict/why",
        trips=rounded_count(page.median_round_trips),
        each=format_ms(max(page.parts.path_ms - connects_ms, 0.0) / page.median_round_trips),
        connects=phrase(connects, took=took) if connects_ms else "",
        path=format_ms(page.parts.path_ms),
        total=format_ms(page.bottom_up.p50_ms.value),
        path_now=format_ms(page.parts_now.path_ms),
        now=format_ms(page.now.p50_ms.value),
    )
    if first is None or first.kind not in ("nagle", "loop"):
        return text
    reason = phrase(
        f"predict/why/{first.kind}",
        count=rounded_count(first.count),
        looped=rounded_count(first.gone + 1),
        trips=rounded_count(page.round_trips),
        low=format_ms(first.low_ms),
        high=format_ms(first.high_ms),
    )
    return f"{text} {reason}"


def _first_change(page: PagePrediction, changes: Sequence[PossibleChange]) -> PossibleChange | None:
    """The change to make first: TCP_NODELAY, else the largest loop, else the first that surely saves time. None: there is none."""
    candidates = [change for change in changes if change.page == page.name and change.kind in _SAFE_CHANGES]
    ranks = {"nagle": 2, "loop": 1}
    useful = [change for change in candidates if change.low_ms > 0]
    return max(
        useful, key=lambda change: (ranks.get(change.kind, 0), change.kind in ranks and change.count), default=None
    )


def _advice(page: PagePrediction, first: PossibleChange | None, prediction: PathPrediction) -> Iterator[AdviceBlock]:
    is_wide = compare(page.now.p50_ms.value, page.bottom_up.p50_ms) == "between"
    if is_wide and (causes := _busy_programs(page, prediction)):
        yield AdviceBlock(_remedy(causes), f"{_causes_text(causes)}.")
    if first is not None:
        saved = {"low": format_ms(first.low_ms), "high": format_ms(first.high_ms), "page": page.name}
        yield advise("predict/do", change=capital(describe_change(first)), statement=_shorten(first.digest), **saved)


def _doubts(page: PagePrediction, prediction: PathPrediction) -> Iterator[str]:
    """What casts doubt on the prediction, the most serious first."""
    if causes := _busy_programs(page, prediction):
        yield phrase("others/doubt", program=next(iter(causes.values())).name)
    left_out = sum(prediction.left_out.values()) + sum(prediction.contested.values())
    void, missed = len(prediction.void), sum(page.pages for page in prediction.missed)
    found = {
        "void": void > 0,
        "missed": missed > 0,
        "left-out": left_out > 0,
        "overlap": page.overlapped >= 0.5,
        "gaps": page.unsure is not None,
        "cold": page.cold is not None,
        "tls": prediction.encrypted,
    }
    pages = {"missed": missed, "left-out": left_out}
    for name, is_found in found.items():
        if is_found:
            yield phrase(f"predict/doubt/{name}", pages=pages.get(name, 0), blocks=void)


def describe_change(change: PossibleChange) -> str:
    """A change in a few words; docs/predict.md explains each."""
    return phrase(f"change/{change.kind}")


def _cards(pages: Sequence[PagePrediction], prediction: PathPrediction) -> tuple[Card, ...]:
    return tuple(
        Card(
            page.name,
            f"{format_ms(page.now.p50_ms.value)} → {format_ms(page.bottom_up.p50_ms.value)} ms",
            phrase("predict/limits-on", limits=format_limits(page.bottom_up.p50_ms), target=prediction.target).strip(),
            (
                counted(rounded_count(page.round_trips), "round trip", ","),
                f"p95 {format_estimate(page.bottom_up.p95_ms)}",
            ),
        )
        for page in sorted(pages, key=lambda page: -page.bottom_up.p50_ms.value)[:4]
        if page.is_explained is not False
    )


def _missed_warning(page: PagePrediction, prediction: PathPrediction) -> str:
    if (cause := _miss_cause(page)) == "later" and page.later is not None:
        return phrase(
            "predict/missed/later",
            page=page.name,
            now=format_estimate(page.now.p50_ms),
            later=format_estimate(page.later.p50_ms),
            error=page.later_error,
            because=_miss_because(page, prediction, cause),
        )
    return phrase(
        "predict/missed/present",
        page=page.name,
        now=format_ms(page.now.p50_ms.value),
        present=format_ms(page.present.p50_ms.value),
        error=page.present_error,
        reason=_miss_reason(page, prediction, cause),
        because=_miss_because(page, prediction, cause),
    )


def _miss_cause(page: PagePrediction) -> Literal["later", "beyond", "clipped", "shift"]:
    """The main reason for which a page is not predicted. `beyond`: its recording contradicts itself."""
    miss = page.miss
    if abs(page.later_error or 0.0) > abs(page.present_error):
        return "later"
    if miss.beyond_ms >= max(miss.clipped_ms, abs(miss.shift_ms)):
        return "beyond"
    return "clipped" if miss.clipped_ms >= abs(miss.shift_ms) else "shift"


def _busy_programs(page: PagePrediction, prediction: PathPrediction) -> dict[str, BusyPrograms]:
    """Other programs that may have made the prediction wrong, by the time when they were busy."""
    by_time = {"recorded": page.others, "later": page.later_others}
    found = {when: others for when, others in by_time.items() if others is not None and others.disturb_pages}
    by_time = {"calibrated": prediction.others_calibrating, "now": prediction.others}
    return found | {when: others for when, others in by_time.items() if others is not None and others.disturb_blocks}


def _cause_text(when: str, use: str) -> str:
    return phrase(f"predict/while/{when}", use=use)


def _causes_text(causes: Mapping[str, BusyPrograms]) -> str:
    return join([_cause_text(when, found.use) for when, found in causes.items()])


def _remedy(causes: Mapping[str, BusyPrograms]) -> str:
    """What to do about other programs. If they were busy during the prediction only, the recording is good."""
    remedy = "predict" if causes.keys() == {"now"} else "record"
    return phrase(f"predict/quiet/{remedy}", program=next(iter(causes.values())).name)


def _miss_because(page: PagePrediction, prediction: PathPrediction, cause: str) -> str:
    """What the wrong prediction for the present path may be due to, and what to do."""
    if causes := _busy_programs(page, prediction):
        name = "predict/missed/later/busy" if cause == "later" else "predict/missed/busy"
        return phrase(name, causes=_causes_text(causes), remedy=f"{_remedy(causes)}.")
    return phrase(f"predict/missed/{cause}/because")


def _miss_reason(page: PagePrediction, prediction: PathPrediction, cause: str) -> str:
    """The main reason why the prediction for the present path is wrong."""
    floor_us = prediction.floor_us
    if cause == "beyond":
        return phrase("predict/missed/beyond", beyond=format_ms(page.miss.beyond_ms))
    if cause == "clipped":
        when = "now" if floor_us is None else "then"
        idle = phrase(f"predict/idle/{when}", us=prediction.cost_now_us.value if floor_us is None else floor_us)
        return phrase("predict/missed/clipped", share=page.clipped, idle=idle)
    return phrase("predict/missed/shift", before=floor_us or 0.0, now=prediction.floor_now_us or 0.0)


def _times_table(shown: Sequence[PagePrediction], prediction: PathPrediction) -> Table:
    def cell(estimate: Estimate, page: PagePrediction) -> Cell:
        return estimate_cell(estimate, page.is_explained is not False)

    def connects(page: PagePrediction) -> str:
        return counted(round(page.connects), "connect") if page.connects >= 0.5 else ""

    hint = phrase("predict/slope-hint")
    return make_table(
        "",
        shown,
        {
            "page": lambda page: Cell(page.name, counted(page.pages, "page")),
            "round trips": lambda page: Cell(f"{rounded_count(page.round_trips):,}", connects(page)),
            "now\nms": lambda page: estimate_cell(page.now.p50_ms),
            "present path\npredicted": lambda page: Cell(
                format_ms(page.present.p50_ms.value), f"{page.present_error:+.1%}"
            ),
            Column(prediction.target, "ms, p50"): lambda page: cell(page.bottom_up.p50_ms, page),
            "by slope\nms, p50": lambda page: "unknown" if page.slope is None else cell(page.slope.p50_ms, page),
            "p95\nms": lambda page: cell(page.bottom_up.p95_ms, page),
        },
        (hint,) if any(page.slope is None for page in shown) else (),
        main=True,
    )


def _rtt_table(shown: Sequence[PagePrediction]) -> list[Block]:
    rtts = list(shown[0].at_rtt)
    if not rtts:
        return []
    columns = (Column("p50 at RTT", left_aligned=True), *(Column(format_duration_ns(rtt_ns), "ms") for rtt_ns in rtts))
    rows = tuple((Cell(page.name), *(estimate_cell(page.at_rtt[rtt_ns].p50_ms) for rtt_ns in rtts)) for page in shown)
    return [Table("", columns, rows, main=True)]


def estimate_cell(estimate: Estimate, explained: bool = True) -> Cell:
    return Cell(format_ms(estimate.value) if explained else f"({format_ms(estimate.value)})", format_limits(estimate))


def _warnings(shown: Sequence[PagePrediction], prediction: PathPrediction) -> list[Block]:
    lines = [phrase("predict/left-out", reason=reason, pages=count) for reason, count in prediction.left_out.items()]
    for page in shown:
        lines += _page_warnings(page)
    if prediction.void:
        counts = Counter(prediction.void).most_common(_MAX_NAMED)
        reasons = "; ".join(phrase("predict/void/reason", reason=reason, blocks=blocks) for reason, blocks in counts)
        lines.append(phrase("predict/void", blocks=len(prediction.void), reasons=reasons))
    if prediction.encrypted:
        lines.append(phrase("predict/tls"))
    if prediction.unplaced:
        lines.append(phrase("predict/unplaced", trips=prediction.unplaced))
    return [Warnings(tuple(lines))] if lines else []


def _page_warnings(page: PagePrediction) -> Iterator[str]:
    if page.is_explained is False and page.slope is not None:
        yield phrase(
            "predict/unexplained",
            page=page.name,
            bottom_up=format_estimate(page.bottom_up.p50_ms),
            slope=format_estimate(page.slope.p50_ms),
            residual=format_ms(abs(page.residual_ms or 0.0)),
        )
    yield from filter(None, (page.unsure, page.cold, busy_pages_note(page.name, page.others)))
    for text, (failed, runs) in list(page.failing.items())[:_MAX_NAMED]:
        yield phrase("predict/failing", page=page.name, failed=failed, runs=runs, statement=_shorten(text))
    if page.small_window_ms and page.small_window_ms > _NOTABLE_FACTOR * page.bottom_up.p50_ms.value:
        yield phrase("predict/window", page=page.name, kib=SMALL_WINDOW >> 10, took=format_ms(page.small_window_ms))
    if page.pages < MIN_BLOCKS:
        yield phrase("predict/few-pages", page=page.name, needed=MIN_BLOCKS)
    if page.clipped > _NOTABLE_CLIPPED_SHARE:
        yield phrase("predict/clipped", page=page.name, share=page.clipped)
    if page.overlapped >= 0.5:
        yield phrase("predict/overlapped", page=page.name, trips=rounded_count(page.overlapped))


def _changes_blocks(changes: Sequence[PossibleChange]) -> list[Block]:
    if not changes:
        return []
    notes = (phrase("changes/range"), phrase("changes/sum"))
    first = _changes_table(changes[:_MAX_CHANGES], notes)
    if len(changes) <= _MAX_CHANGES:
        return [Heading("What to change"), first]
    smaller = _changes_table(changes[_MAX_CHANGES : 5 * _MAX_CHANGES], ())
    return [Heading("What to change"), first, Details("Smaller savings", (smaller,))]


def _changes_table(changes: Sequence[PossibleChange], notes: tuple[str, ...]) -> Table:
    return make_table(
        "",
        changes,
        {
            Column("what", left_aligned=True): describe_change,
            Column("where", left_aligned=True, can_be_shortened=True): lambda change: _shorten(change.digest),
            Column("saves", "ms per page"): lambda change: f"{format_ms(change.low_ms)} to {format_ms(change.high_ms)}",
            Column("times", "per page"): lambda change: f"{rounded_count(change.count):,}",
            Column("page", left_aligned=True, can_be_shortened=True): lambda change: change.page,
        },
        notes,
        stack=True,
    )


def _shorten(digest: str) -> str:
    text = " ".join(digest.split())
    return text if len(text) <= _MAX_DIGEST else text[: _MAX_DIGEST - 1] + "…"


def _page_blocks(
    page: PagePrediction, prediction: PathPrediction, costed: Sequence[CostedPage], measured: Sequence[Measurement]
) -> list[Block]:
    present_parts, target_parts = page.parts_now, page.parts
    times = (
        ("application", present_parts.application_ms, target_parts.application_ms),
        ("server", present_parts.server_ms, target_parts.server_ms),
        ("path", present_parts.path_ms, target_parts.path_ms),
        ("p50", page.now.p50_ms.value, page.bottom_up.p50_ms.value),
    )
    parts = Table(
        "",
        (Column("", left_aligned=True), Column("now", "ms"), Column(prediction.target, "ms")),
        tuple((Cell(name), Cell(format_ms(before)), Cell(format_ms(after))) for name, before, after in times),
    )
    blocks: list[Block] = [parts]
    measurements = [
        (measurement, measured_page)
        for measurement in measured
        for measured_page in measurement.pages
        if measured_page.name == page.name
    ]
    if measurements:
        blocks.append(_errors_table(page, measurements, prediction))
    blocks.append(
        Chart(
            f"waterfall-{page.name}",
            phrase("predict/waterfall", target=prediction.target),
            phrase("predict/waterfall/caption"),
            partial(waterfall_chart, costed, prediction.target),
        )
    )
    if page.curve_ms:
        rows = tuple(
            (Cell(format_duration_ns(rtt_ns)), Cell(format_ms(time))) for rtt_ns, time in page.curve_ms.items()
        )
        points = [
            (measurement.rtt_ns, measured_page.p50_ms)
            for measurement, measured_page in measurements
            if _is_on_curve(measurement, prediction)
        ]
        blocks.append(
            Chart(
                f"rtt-{page.name}",
                phrase("predict/by-rtt"),
                phrase("predict/by-rtt/caption"),
                partial(rtt_chart, page.curve_ms, points),
                Table("", (Column("RTT", left_aligned=True), Column("ms")), rows),
            )
        )
    return [Details(phrase("predict/page", page=page.name), tuple(blocks), open=True)]


def _is_on_curve(measurement: Measurement, prediction: PathPrediction) -> bool:
    """Whether the path of a measurement differs from the predicted one in nothing but its RTT, like all paths of the curve."""

    def without_rtt(label: str) -> list[str]:
        return [part for part in label.split(", ") if not part.startswith("RTT ")]

    return without_rtt(measurement.target) == without_rtt(prediction.target)


def _errors_table(
    page: PagePrediction, measurements: Sequence[tuple[Measurement, MeasuredPage]], prediction: PathPrediction
) -> Table:
    columns = (
        Column("run on", left_aligned=True),
        Column("measured", "ms, p50"),
        Column("predicted", "ms, p50"),
        Column("error"),
    )
    rows = []
    for measurement, measured_page in measurements:
        curve_ms = page.curve_ms if _is_on_curve(measurement, prediction) else {}
        is_target = measurement.target == prediction.target
        predicted = page.bottom_up.p50_ms.value if is_target else curve_ms.get(measurement.rtt_ns)
        rows.append(
            (
                Cell(measurement.target),
                Cell(format_ms(measured_page.p50_ms.value), format_limits(measured_page.p50_ms)),
                Cell("unknown" if predicted is None else format_ms(predicted)),
                Cell("" if predicted is None else f"{predicted / measured_page.p50_ms.value - 1:+.1%}"),
            )
        )
    return Table("", columns, tuple(rows))


def _method_text(prediction: PathPrediction) -> str:
    resuming_us, added = prediction.resuming_us.value, prediction.tap_us
    texts = [
        phrase(
            "predict/method",
            now_us=prediction.cost_now_us.value,
            present=prediction.present,
            there_us=prediction.cost_us.value,
            target=prediction.target,
            blocks=prediction.cost_us.n or 0,
            connect_us=prediction.connect_us.value,
            resuming_us=resuming_us,
        )
    ]
    if added is None:
        texts.append(phrase("predict/method/tap-unknown"))
    elif added.value:
        texts.append(phrase("predict/method/tap", added=estimate_text(added, "{:.0f}".format)))
    waking = phrase("predict/method/waking", resuming_us=abs(resuming_us), waking_us=prediction.waking_us)
    texts.append(phrase("predict/method/interval", resamples=RESAMPLES, waking=waking if prediction.waking_us else ""))
    return " ".join(texts)


def _csv_record(page: PagePrediction) -> dict[str, object]:
    estimates = {"now": page.now, "predicted": page.bottom_up, "slope": page.slope}
    record: dict[str, object] = {"page": page.name, "round_trips": page.round_trips}
    for name, quantiles in estimates.items():
        for quantile in ("p50_ms", "p95_ms"):
            estimate: Estimate | None = None if quantiles is None else getattr(quantiles, quantile)
            record |= {
                f"{name}_{quantile}": estimate and estimate.value,
                f"{name}_{quantile}_low": estimate and estimate.low,
                f"{name}_{quantile}_high": estimate and estimate.high,
            }
    return record


def as_json(prediction: PathPrediction, changes: Sequence[PossibleChange]) -> dict[str, object]:
    """The prediction as JSON values. Each page has `p50_ms` and `p95_ms` by predictor, null if its present time was missed."""
    missed = {page.name for page in prediction.missed}

    def by_predictor(page: PagePrediction, quantile: str) -> dict[str, object]:
        predictors = {"bottom_up": page.bottom_up, "slope": page.slope}
        return {
            name: None if quantiles is None or page.name in missed else getattr(quantiles, quantile).model_dump()
            for name, quantiles in predictors.items()
        }

    pages = [
        {
            **page.model_dump(exclude={"bottom_up", "slope", "curve_ms", "at_rtt"}),
            "present_error": page.present_error,
            "p50_ms": by_predictor(page, "p50_ms"),
            "p95_ms": by_predictor(page, "p95_ms"),
            "explained": page.is_explained,
            "residual_ms": page.residual_ms,
            "missed": page.name in missed,
            "at_rtt": {}
            if page.name in missed
            else {format_duration_ns(rtt_ns): times.model_dump() for rtt_ns, times in page.at_rtt.items()},
            "by_rtt_ms": {}
            if page.name in missed
            else {format_duration_ns(rtt_ns): p50_ms for rtt_ns, p50_ms in page.curve_ms.items()},
        }
        for page in prediction.pages
    ]
    return {
        **prediction.model_dump(exclude={"pages"}),
        "pages": pages,
        "changes": [change.model_dump() for change in changes if change.page not in missed],
    }


_PARTS = ("application", "path", "server")
_ROW_HEIGHT = 2.2
_MIN_HEIGHT, _MAX_HEIGHT = 90, 420
_MAX_TRIPS = 400


def waterfall_chart(pages: Sequence[CostedPage], target: str, width: int) -> Drawable | None:
    """A chart of the page of median time, on both paths, with one scale."""
    page = median_pages(pages, lambda page: page.took_ns)[-1]
    trip_count = min(len(page.trips), _MAX_TRIPS)
    rows = {
        "now": _bars(page, page.path.present_cost_ns.mean(axis=0), trip_count),
        target: _bars(page, page.path.target_cost_ns.mean(axis=0), trip_count),
    }
    longest = max(float(bars[-1]["end"]) for bars in rows.values())
    height = min(max(round(_ROW_HEIGHT * trip_count), _MIN_HEIGHT), _MAX_HEIGHT)
    colours = styles(_PARTS, palette.PARTS)
    panels = []
    for number, (name, bars) in enumerate(rows.items()):
        shown_legend = legend(3) if number == 0 else None
        chart = (
            data(bars)
            .mark_bar(height=max(height / trip_count, 1.0))
            .encode(
                x=axis(alt.X, "start", f"ms, {name}", (0, longest)),
                x2="end:Q",
                y=axis(alt.Y, "row", None, (trip_count, 0), labels=False, ticks=False, grid=False),
                color=by_style(alt.Color, "part", colours, shown_legend),
            )
            .properties(width=width, height=height)
        )
        panels.append(chart)
    return vconcat(*panels, spacing=18)


def _bars(page: CostedPage, path_ns: np.ndarray, count: int) -> Rows:
    server_ns = page.server_ns.mean(axis=0)
    bars: Rows = []
    start_ms = 0.0
    for row in range(count):
        for part, took_ns in (
            ("application", page.application_gaps_ns[row]),
            ("path", path_ns[row]),
            ("server", server_ns[row]),
        ):
            end_ms = start_ms + float(took_ns) / 1e6
            bars.append({"row": row + 0.5, "start": round(start_ms, 3), "end": round(end_ms, 3), "part": part})
            start_ms = end_ms
    return bars


def rtt_chart(curve_ms: Mapping[int, float], points: Sequence[tuple[int, Estimate]], width: int) -> Drawable | None:
    """A chart of predicted times over RTT as a line, and measured times as points; None if there is no line."""
    line = [{"rtt": rtt_ns / 1e6, "ms": time} for rtt_ns, time in curve_ms.items() if time > 0]
    if not line:
        return None
    measured = [
        {
            "rtt": rtt_ns / 1e6,
            "ms": estimate.value,
            "low": estimate.value if estimate.low is None else estimate.low,
            "high": estimate.value if estimate.high is None else estimate.high,
        }
        for rtt_ns, estimate in points
        if rtt_ns > 0
    ]
    times = [row["ms"] for row in (*line, *measured)]
    x = axis(alt.X, "rtt", "RTT, ms", (line[0]["rtt"], line[-1]["rtt"]), log=10)
    domain = (min(times) * 0.8, max(times) * 1.25)
    y = axis(alt.Y, "ms", "ms", domain, log=10)
    parts: list[Drawable] = [data(line).mark_line(strokeWidth=2, color=palette.SERIES[0]).encode(x=x, y=y)]
    if measured:
        low = axis(alt.Y, "low", "ms", domain, log=10)
        parts.append(data(measured).mark_rule(color=palette.SERIES[1]).encode(x=x, y=low, y2="high:Q"))
        parts.append(data(measured).mark_point(filled=True, size=60, color=palette.SERIES[1]).encode(x=x, y=y))
    return layer(*parts, width=width, height=260)
