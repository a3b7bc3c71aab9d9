"""Replays recorded pages on another path, against a server that answers with the recorded sizes after the recorded times. No I/O.

The replay keeps the recorded gaps between an answer and the next round trip, not the recorded arrival times.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from howfar.contract.messages import Replayed, ReplayPage, ReplayStep
from howfar.recording.costs import SMALLEST, PathCosts
from howfar.recording.page_costs import CostedPage
from howfar.recording.predict import PathPrediction, Quantiles, predicted_quantiles, quantiles
from howfar.recording.prediction_report import SAME_SHARE, estimate_cell
from howfar.recording.texts import advise, certainty, format_ms, interval, next_step, phrase, setting
from howfar.report.document import (
    AdviceBlock,
    Answer,
    Block,
    Cell,
    Column,
    Document,
    Heading,
    Table,
    Text,
    make_table,
    what_to_do,
)
from howfar.stats.estimate import Estimate, Part
from howfar.stats.intervals import MIN_BLOCKS, are_disjoint
from howfar.units import counted

OPEN_BEFORE = 5000
"""Added to the number of a connection that was open before its page."""
BEHIND_SHARE = 0.02
"""The tool or the server counts as behind the recording if it was late by more than this share of a page's time."""


class ReplayedPage(Part):
    """All replays of pages of one name."""

    name: str
    pages: int
    p50_ms: Estimate
    p95_ms: Estimate
    predicted: Quantiles | None
    """Prediction for the same pages on the same path; None if the prediction for the present path was wrong."""
    client_late: float
    """Delay of the tool's requests relative to the recording, as a share of the pages' time."""
    server_late: float
    """Delay of the server's answers relative to the recording, as a share of the pages' time."""

    @property
    def error(self) -> float | None:
        return None if self.predicted is None else self.predicted.p50_ms.value / self.p50_ms.value - 1

    @property
    def late_end(self) -> str | None:
        """Which end fell behind the recording: `tool` or `server`; None if neither did."""
        late, end = max((self.client_late, "tool"), (self.server_late, "server"))
        return end if late > BEHIND_SHARE else None


class Replay(Part):
    """The replay of a recording on a path."""

    target: str
    rtt_ns: int
    blocks: int
    pages: tuple[ReplayedPage, ...]
    recorded_unix_ns: int | None
    """When the recording began. None: unknown."""


def make_script(page: CostedPage, present: PathCosts) -> ReplayPage:
    """Make the engine's script of a page. Recorded gaps contain the time to connect on the `present` path and the part of a round
    trip that the recorder did not see; both are subtracted. Computing that is slower after a wait is part of path costs and remains in
    the gaps."""
    connect_ns = present.connect_ns.mean()
    resuming_ns = present.resuming_ns.mean()
    steps = []
    numbers: dict[int, int] = {}
    tap_ns_per_trip = (page.page.took_ns - page.took_ns) / len(page.trips)
    server_ns = page.server_ns.mean(axis=0)
    for index, trip in enumerate(page.trips):
        is_new = trip.connection not in numbers
        number = numbers.setdefault(
            trip.connection, len(numbers) if trip.connection in page.opened_connections else OPEN_BEFORE + len(numbers)
        )
        opens = is_new and trip.connection in page.opened_connections
        unseen_ns = max(page.unseen_ns[index] - resuming_ns, 0)
        gap_ns = trip.gap_ns - tap_ns_per_trip - unseen_ns - (connect_ns if opens else 0)
        if trip.ack_wait_ns:
            # The second write of this request waits for an acknowledgement, which is replayed as a round trip of its own.
            wait_ns = max(round(trip.ack_wait_ns - present.smallest_ns.mean()), 0)
            steps.append(ReplayStep(connection=number, opens=opens, gap_ns=max(round(gap_ns), 0), server_ns=wait_ns,
                                    bytes_to_server=SMALLEST[0], bytes_to_client=SMALLEST[1]))  # fmt: skip
            gap_ns, opens = 0.0, False
        steps.append(
            ReplayStep(
                connection=number,
                opens=opens,
                gap_ns=max(round(gap_ns), 0),
                server_ns=max(round(server_ns[index]), 0),
                bytes_to_server=trip.to_server,
                bytes_to_client=trip.to_client,
            )
        )
    last = page.trips[-1]
    return ReplayPage(steps=tuple(steps), rest_ns=max(page.page.ended_ns - last.begun_ns - last.took_ns, 0))


def analyze(
    costed: Mapping[str, Sequence[CostedPage]],
    blocks: Sequence[Mapping[str, Sequence[Replayed]]],
    prediction: PathPrediction,
    rtt_ns: int,
) -> Replay:
    """Analyze a replay. `blocks`: for each block the replays of the same pages, by name."""
    missed = {page.name for page in prediction.missed}
    pages = []
    for name in blocks[0]:
        times = np.asarray([[page.took_ns for page in block[name]] for block in blocks], dtype=float).T
        measured = quantiles(times)
        total_ns = float(times.sum())
        replayed = [page for block in blocks for page in block[name]]
        predicted = predicted_quantiles(costed[name])
        pages.append(
            ReplayedPage(
                name=name,
                pages=len(times),
                p50_ms=measured.p50_ms,
                p95_ms=measured.p95_ms,
                predicted=None if name in missed else predicted,
                client_late=sum(page.client_late_ns for page in replayed) / total_ns,
                server_late=sum(page.server_late_ns for page in replayed) / total_ns,
            )
        )
    return Replay(
        target=prediction.target,
        rtt_ns=rtt_ns,
        blocks=len(blocks),
        pages=tuple(pages),
        recorded_unix_ns=prediction.recorded_unix_ns,
    )


def document(replay: Replay) -> Document:
    """The report."""
    page = max(replay.pages, key=lambda page: page.p50_ms.value)
    if page.p50_ms.low is None:
        answer, *steps = missing_answer(page.pages, replay.blocks)
        blocks = [answer]
    else:
        steps = what_to_do(_advice(replay.pages))
        blocks = [_answer(replay, page), Heading("Replayed and predicted"), _pages_table(replay)]
    blocks += [Heading("How it was replayed"), Text(phrase("replay/method", blocks=replay.blocks)), *steps]
    settings = setting(
        replay.target,
        phrase("replay/blocks", blocks=replay.blocks, pages=sum(page.pages for page in replay.pages)),
        unix_ns=replay.recorded_unix_ns,
        is_recorded=True,
    )
    return Document("howfar replay", tuple(blocks), (), phrase("replay/question", target=replay.target), settings)


def missing_answer(pages: int, blocks: int) -> list[Block]:
    """That a replay has too few pages or blocks, and the command that gets an answer."""
    step = "blocks" if blocks < MIN_BLOCKS else "pages"
    answer = Answer(phrase("replay/answer/missing", pages=pages, blocks=blocks, needed=MIN_BLOCKS))
    return [answer, *next_step(f"replay/next/{step}", needed=MIN_BLOCKS)]


def _answer(replay: Replay, page: ReplayedPage) -> Answer:
    predicted = None if page.predicted is None else page.predicted.p50_ms
    text = phrase(
        f"replay/answer/{_finding(page)}",
        page=page.name,
        took=format_ms(page.p50_ms.value),
        target=replay.target,
        predicted="" if predicted is None else format_ms(predicted.value),
        share=abs(page.error or 0.0),
    )
    why = ""
    if predicted is not None and predicted.low is not None and predicted.high is not None:
        why = phrase("replay/why", low=format_ms(predicted.low), high=format_ms(predicted.high))
    figures = {"pages": page.pages, "blocks": replay.blocks, "interval": interval(page.p50_ms)}
    sure = phrase("replay/sure", client=page.client_late, server=page.server_late, **figures)
    late_ends = dict.fromkeys(other.late_end for other in replay.pages if other.late_end)
    return Answer(text, why=why, certainty=certainty([sure], (phrase(f"replay/doubt/{end}") for end in late_ends)))


def _finding(page: ReplayedPage) -> str:
    """Whether the prediction was right: whether its interval and the measured one overlap. `wide`: only as one is wide."""
    if page.predicted is None or page.error is None:
        return "unpredicted"
    is_wrong = are_disjoint(page.p50_ms, page.predicted.p50_ms)
    if is_wrong is False and abs(page.error) > SAME_SHARE:
        return "wide"
    if is_wrong is None:
        is_wrong = abs(page.error) >= BEHIND_SHARE
    if not is_wrong:
        return "right"
    return "long" if page.error > 0 else "short"


def _advice(pages: Sequence[ReplayedPage]) -> Iterator[AdviceBlock]:
    behind = [
        phrase(
            f"replay/behind/{page.late_end}",
            page=page.name,
            share=page.client_late if page.late_end == "tool" else page.server_late,
        )
        for page in pages
        if page.late_end is not None
    ]
    yield advise("replay/do/quiet", because=" ".join(behind)) if behind else advise("replay/do/measured")


def _pages_table(replay: Replay) -> Table:
    return make_table(
        "",
        replay.pages,
        {
            "page": lambda page: Cell(page.name, counted(page.pages, "page")),
            "replayed\nms, p50": lambda page: estimate_cell(page.p50_ms),
            "predicted\nms, p50": lambda page: estimate_cell(page.predicted.p50_ms) if page.predicted else "unknown",
            "error": lambda page: "" if page.error is None else f"{page.error:+.1%}",
            "p95\nms": lambda page: estimate_cell(page.p95_ms),
            "predicted\nms, p95": lambda page: estimate_cell(page.predicted.p95_ms) if page.predicted else "unknown",
            Column("tool late", optional=True): lambda page: f"{page.client_late:.1%}",
            Column("server late", optional=True): lambda page: f"{page.server_late:.1%}",
        },
        main=True,
    )
