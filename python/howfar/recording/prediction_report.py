"""The report of a prediction: the answer, times by page, suggested changes, and the parts of each page's time. No I/O."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

import numpy as np

from howfar.recording.changes import PossibleChange, advice
from howfar.recording.page_costs import CostedPage, median_pages
from howfar.recording.predict import PRESENT_MISS_SHARE, SMALL_WINDOW, PagePrediction, PathPrediction
from howfar.report import palette
from howfar.report.charts import Drawable, Rows, axis, by_style, data, layer, legend, styles, vconcat
from howfar.report.document import (
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
_MAX_FAILING = 3
"""Maximum number of failing statements that a page's warnings name."""
_MIN_SHARE = 0.002
"""A change that saves less than this share of its page's time is left out."""
_NOTABLE_CLIPPED_SHARE = 0.1
_TLS = (
    "Over TLS a page may take longer than its interval says, most of all one that connects anew: the application's own TLS library is "
    "not measured (docs/predict.md)."
)


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


def format_ms(value: float) -> str:
    """Format milliseconds with three digits."""
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"


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
    blocks: list[Block] = [Answer(_answer_sentence(prediction, shown, changes), _cards(shown, prediction))]
    if prediction.missed or prediction.contested:
        contested = (_contested_warning(name, count) for name, count in prediction.contested.items())
        blocks.append(Warnings((*(_missed_warning(page, prediction) for page in prediction.missed), *contested)))
    if shown:
        blocks += [Heading("Times"), _times_table(shown, prediction), *_rtt_table(shown), *_warnings(shown, prediction)]
        notable = [change for change in changes if change.page not in missed and change.target_share >= _MIN_SHARE]
        blocks += _changes_blocks(notable)
        for page in shown:
            blocks += _page_blocks(page, prediction, costed[page.name], measured)
    blocks += [Heading("How it was predicted"), Text(_method_text(prediction))]
    return Document("howfar predict", tuple(blocks), tuple(_csv_record(page) for page in shown))


def _answer_sentence(
    prediction: PathPrediction, pages: Sequence[PagePrediction], changes: Sequence[PossibleChange]
) -> str:
    if prediction.contested and not prediction.pages:
        return f"Nothing is predicted for {prediction.target}: pages overlap, so which of them made a round trip is not known."
    if not prediction.pages:
        return "No page of this recording made a round trip: there is nothing to predict."
    if not pages:
        return (
            f"Nothing is predicted for {prediction.target}: even the present path ({prediction.present}) is missed, by more than "
            f"{PRESENT_MISS_SHARE:.0%} of the time there."
        )
    worst = max(pages, key=lambda page: page.bottom_up.p50_ms.value)
    text = f"{worst.name} takes {format_ms(worst.now.p50_ms.value)} ms now"
    if worst.is_explained is False:
        text += f"; on {prediction.target} its two predictions disagree, so none is given."
    else:
        text += f"; on {prediction.target} it would take {format_estimate(worst.bottom_up.p50_ms)}."
    return f"{text} {_first_change_sentence(worst, changes)}".rstrip()


def _first_change_sentence(page: PagePrediction, changes: Sequence[PossibleChange]) -> str:
    """A sentence about the change to make first, one that has no drawback: `nagle`, else the largest `loop`; empty if there is
    none."""
    candidates = [change for change in changes if change.page == page.name and change.kind in ("nagle", "loop")]
    if not candidates or not page.round_trips:
        return ""
    first = max(candidates, key=lambda change: (change.kind == "nagle", change.count))
    saves = f"save {format_ms(first.low_ms)} to {format_ms(first.high_ms)} ms there."
    if first.kind == "nagle":
        return f"{first.count:.0f} of its {page.round_trips:.0f} requests are sent in two writes; TCP_NODELAY would {saves}"
    looped = first.gone + 1
    return f"{looped:.0f} of its {page.round_trips:.0f} round trips are one loop; one request instead would {saves}"


def _contested_warning(name: str, count: int) -> str:
    return (
        f"{name}: {counted(count, 'page')} left out, because round trips in its time may be those of another page: marks or requests "
        "overlap. Record one page at a time."
    )


def _cards(pages: Sequence[PagePrediction], prediction: PathPrediction) -> tuple[Card, ...]:
    return tuple(
        Card(
            page.name,
            f"{format_ms(page.now.p50_ms.value)} → {format_ms(page.bottom_up.p50_ms.value)} ms",
            f"{format_limits(page.bottom_up.p50_ms)} on {prediction.target}".strip(),
            (f"{page.round_trips:.0f} round trips", f"p95 {format_estimate(page.bottom_up.p95_ms)}"),
        )
        for page in sorted(pages, key=lambda page: -page.bottom_up.p50_ms.value)[:4]
        if page.is_explained is not False
    )


def _missed_warning(page: PagePrediction, prediction: PathPrediction) -> str:
    if page.later is not None and abs(page.later_error or 0.0) > abs(page.present_error):
        return (
            f"{page.name}: {format_estimate(page.now.p50_ms)} as recorded, {format_estimate(page.later.p50_ms)} as recorded again "
            f"({page.later_error:+.0%}): the application or its server has changed, or other programs took the processors. Other "
            "paths are not predicted. Record again while the machine does what it will do later."
        )
    return (
        f"{page.name}: {format_ms(page.now.p50_ms.value)} ms as recorded, {format_ms(page.present.p50_ms.value)} ms as predicted "
        f"for the same path ({page.present_error:+.0%}). Other paths are not predicted: {_miss_reason(page, prediction)}"
    )


def _miss_reason(page: PagePrediction, prediction: PathPrediction) -> str:
    """A sentence: the main cause of the wrong prediction for the present path, and what to do."""
    miss = page.miss
    if miss.beyond_ms >= max(miss.clipped_ms, abs(miss.shift_ms)):
        return (
            f"its round trips last {format_ms(miss.beyond_ms)} ms longer together than the page, so times or marks of this recording "
            "are wrong. Record again with this version."
        )
    if miss.clipped_ms >= abs(miss.shift_ms):
        return (
            f"{page.clipped:.0%} of its round trips took less than one without work ({_idle_round_trip_text(prediction)}): the "
            "machine is slower now than when it was recorded, or the recording is from another one. Record again, or predict on a "
            "quieter machine."
        )
    before, now = prediction.floor_us or 0.0, prediction.floor_now_us or 0.0
    return (
        f"a round trip without work took {before:.0f} µs when it was recorded and takes {now:.0f} µs now, by the same measure. Record "
        "again, or predict on a quieter machine."
    )


def _idle_round_trip_text(prediction: PathPrediction) -> str:
    if prediction.floor_us is None:
        return f"{prediction.cost_now_us.value:.0f} µs"
    return f"{prediction.floor_us:.0f} µs when it was recorded"


def _times_table(shown: Sequence[PagePrediction], prediction: PathPrediction) -> Table:
    def cell(estimate: Estimate, page: PagePrediction) -> Cell:
        return estimate_cell(estimate, page.is_explained is not False)

    def connects(page: PagePrediction) -> str:
        return counted(round(page.connects), "connect") if page.connects >= 0.5 else ""

    hint = "By slope: give --slope FILE, from `howfar slope --json` of the same page, for a second prediction."
    return make_table(
        "",
        shown,
        {
            "page": lambda page: Cell(page.name, counted(page.pages, "page")),
            "round trips": lambda page: Cell(f"{page.round_trips:.0f}", connects(page)),
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
    lines = [f"{reason} ({counted(count, 'page')}, in no figure)." for reason, count in prediction.left_out.items()]
    for page in shown:
        if page.is_explained is False:
            lines.append(
                f"{page.name}: not explained. Bottom-up {format_estimate(page.bottom_up.p50_ms)}, by slope "
                f"{format_estimate(page.slope.p50_ms if page.slope else page.bottom_up.p50_ms)}: "
                f"{format_ms(page.residual_ms or 0)} ms apart, more than both intervals. Round trips that overlap, a cache or a "
                "timeout do that."
            )
        lines += [note for note in (page.unsure, page.cold) if note]
        lines += [
            f"{page.name}: {failed:,} of {counted(runs, 'run')} of {_shorten(text)} failed; there is no advice about them."
            for text, (failed, runs) in list(page.failing.items())[:_MAX_FAILING]
        ]
        if page.small_window_ms and page.small_window_ms > _NOTABLE_FACTOR * page.bottom_up.p50_ms.value:
            lines.append(
                f"{page.name}: with a receive buffer of {SMALL_WINDOW >> 10} kB in the application it would take "
                f"{format_ms(page.small_window_ms)} ms. Its size is not recorded; the kernel's own grows as needed."
            )
        if page.pages < MIN_BLOCKS:
            lines.append(f"{page.name}: fewer than {MIN_BLOCKS} pages allow no interval.")
        if page.clipped > _NOTABLE_CLIPPED_SHARE:
            lines.append(
                f"{page.name}: {page.clipped:.0%} of the round trips took less than one without work; their server time counts as 0, "
                "so the page may be predicted too long."
            )
        if page.overlapped >= 0.5:
            lines.append(
                f"{page.name}: {page.overlapped:.0f} round trips overlap others, so its interval reaches from the longest chain of "
                "one connection to the recorded order. Which of them wait for others is not known; `howfar slope` measures it."
            )
    if prediction.void:
        lines.append(f"{counted(len(prediction.void), 'block')} left out: {prediction.void[-1]}.")
    if prediction.encrypted:
        lines.append(_TLS)
    if prediction.unplaced:
        lines.append(f"{prediction.unplaced} round trips of the recording belong to no page.")
    return [Warnings(tuple(lines))] if lines else []


def _changes_blocks(changes: Sequence[PossibleChange]) -> list[Block]:
    if not changes:
        return []
    notes = (
        "Minimum: path costs only. Maximum: also the time of server and application for what is left out.",
        "Rows overlap and do not add up. None is certain: only its author knows what the application can do without.",
    )
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
            Column("what", left_aligned=True): advice,
            Column("where", left_aligned=True, can_be_shortened=True): lambda change: _shorten(change.digest),
            Column("saves", "ms per page"): lambda change: f"{format_ms(change.low_ms)} to {format_ms(change.high_ms)}",
            Column("times", "per page"): lambda change: f"{change.count:.0f}",
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
            f"The median page, now and on {prediction.target}",
            "Each row is a round trip: what the application does before it, the path, the server.",
            partial(waterfall_chart, costed, prediction.target),
        )
    )
    if page.curve_ms:
        rows = tuple(
            (Cell(format_duration_ns(rtt_ns)), Cell(format_ms(time))) for rtt_ns, time in page.curve_ms.items()
        )
        points = [(measurement.rtt_ns, measured_page.p50_ms) for measurement, measured_page in measurements]
        blocks.append(
            Chart(
                f"rtt-{page.name}",
                "Predicted time over RTT",
                "The line is predicted; points were measured, with their intervals.",
                partial(rtt_chart, page.curve_ms, points),
                Table("", (Column("RTT", left_aligned=True), Column("ms")), rows),
            )
        )
    return [Details(f"{page.name}: where the time goes", tuple(blocks), open=True)]


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
        is_target = measurement.target == prediction.target
        predicted = page.bottom_up.p50_ms.value if is_target else page.curve_ms.get(measurement.rtt_ns)
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
    text = (
        f"A round trip of the smallest size, with pauses as recorded, costs {prediction.cost_now_us.value:.0f} µs on "
        f"{prediction.present} and {prediction.cost_us.value:.0f} µs on {prediction.target}, measured in "
        f"{counted(prediction.cost_us.n or 0, 'block')} on this machine just now; connecting there takes "
        f"{prediction.connect_us.value:.0f} µs. Each page is its own time (gaps), the server's time, and the cost of each of its "
        "round trips by its sizes; an answer that fills the window of a new connection waits for more rounds."
    )
    text += (
        f" In the costs is what waiting does to the computing after it, of application and server, whose caches others use meanwhile: "
        f"{prediction.resuming_us.value:+.0f} µs there, by a program that is not yours."
    )
    if prediction.tap_us is None:
        text += " What the recorder added is not known: it is in the application's time."
    elif prediction.tap_us.value:
        added = prediction.tap_us
        text += f" What the recorder added, {estimate_text(added, '{:.0f}'.format)} µs per round trip, is subtracted."
    waking = (
        f", these {abs(prediction.resuming_us.value):.0f} µs and {prediction.waking_us:.0f} µs per round trip (how much longer the "
        "link takes to CPUs that sleep, which yours may or may not do)"
        if prediction.waking_us
        else ""
    )
    return text + (
        f" Intervals are of another run: 2000 resamples of pages and blocks{waking}, and from the time as recorded to the time of the "
        "present path now. They have no error of the method in them; what that was in tests with applications is in docs/predict.md."
    )


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
