"""Replays recorded pages on another path, against a server that answers with the recorded sizes after the recorded times. No I/O.

The replay keeps the recorded gaps between an answer and the next round trip, not the recorded arrival times.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from howfar.contract.messages import Replayed, ReplayPage, ReplayStep
from howfar.recording.costs import SMALLEST, PathCosts
from howfar.recording.layout import CostedPage
from howfar.recording.predict import PathPrediction, Quantiles, predicted_quantiles, quantiles
from howfar.recording.prediction_report import limits, ms, with_interval
from howfar.report.document import Answer, Block, Cell, Column, Document, Heading, Table, Text, Warnings
from howfar.stats.estimate import Estimate, Part

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
    def behind(self) -> str | None:
        """Which end fell behind the recording, `tool` or `server`; None if neither did."""
        late, end = max((self.client_late, "tool"), (self.server_late, "server"))
        return end if late > BEHIND_SHARE else None


class Replay(Part):
    """The replay of a recording on a path."""

    target: str
    rtt_ns: int
    blocks: int
    pages: tuple[ReplayedPage, ...]


def script(page: CostedPage, present: PathCosts) -> ReplayPage:
    """The script of a page for the engine. Recorded gaps contain the time to connect on the `present` path and the part of a round
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
            trip.connection, len(numbers) if trip.connection in page.opened_connections else 5000 + len(numbers)
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
    return Replay(target=prediction.target, rtt_ns=rtt_ns, blocks=len(blocks), pages=tuple(pages))


def document(replay: Replay) -> Document:
    """The report."""
    blocks: list[Block] = [Answer(_answer_sentence(replay)), Heading("Replayed and predicted"), _pages_table(replay)]
    behind = [page for page in replay.pages if page.behind is not None]
    if behind:
        blocks.append(Warnings(tuple(_behind_warning(page) for page in behind)))
    blocks += [
        Heading("How it was replayed"),
        Text(
            f"{replay.blocks} blocks, each with every page once. Gaps between round trips and the server's times are those of the "
            "recording; the server answers as many bytes as were recorded, and no statement is needed."
        ),
    ]
    return Document("howfar replay", tuple(blocks))


def _answer_sentence(replay: Replay) -> str:
    page = max(replay.pages, key=lambda page: page.p50_ms.value)
    text = f"{page.name} took {with_interval(page.p50_ms)} on {replay.target}"
    if page.predicted is not None and page.error is not None:
        text += f"; the prediction was {with_interval(page.predicted.p50_ms)} ({page.error:+.1%})"
    not_late = "Neither the tool nor the server was behind." if not any(other.behind for other in replay.pages) else ""
    return f"{text}. {not_late}".strip()


def _behind_warning(page: ReplayedPage) -> str:
    late = page.client_late if page.behind == "tool" else page.server_late
    return behind_warning(page.name, "this tool" if page.behind == "tool" else "the server", late)


def behind_warning(name: str, end: str, late: float) -> str:
    """A warning that `end` (the tool or the server) was late. `late`: its delay as a share of the page's time."""
    return (
        f"{name}: {end} was behind the recording by {late:.1%} of the time: the replay is too slow by as much. Replay on a quieter "
        "machine."
    )


def _pages_table(replay: Replay) -> Table:
    columns = (
        Column("page", left=True),
        Column("replayed", "ms, p50"),
        Column("predicted", "ms, p50"),
        Column("error"),
        Column("p95", "ms"),
        Column("predicted", "ms, p95"),
        Column("tool late", optional=True),
        Column("server late", optional=True),
    )
    rows = []
    for page in replay.pages:
        predicted = page.predicted
        rows.append(
            (
                Cell(page.name, f"{page.pages} pages"),
                _estimate_cell(page.p50_ms),
                Cell("unknown") if predicted is None else _estimate_cell(predicted.p50_ms),
                Cell("" if page.error is None else f"{page.error:+.1%}"),
                _estimate_cell(page.p95_ms),
                Cell("unknown") if predicted is None else _estimate_cell(predicted.p95_ms),
                Cell(f"{page.client_late:.1%}"),
                Cell(f"{page.server_late:.1%}"),
            )
        )
    return Table("", columns, tuple(rows), main=True)


def _estimate_cell(estimate: Estimate) -> Cell:
    return Cell(ms(estimate.value), limits(estimate))
