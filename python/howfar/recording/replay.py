"""Replays recorded pages on another path, against a server that answers with the recorded sizes after the recorded times. No I/O.

The replay keeps the recorded gaps between an answer and the next round trip, not the recorded arrival times.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from howfar.contract.messages import Replayed, ReplayPage, ReplayStep
from howfar.recording.costs import SMALLEST, PathCosts
from howfar.recording.page_costs import CostedPage
from howfar.recording.predict import PathPrediction, Quantiles, predicted_quantiles, quantiles
from howfar.recording.prediction_report import estimate_cell, format_estimate
from howfar.report.document import Answer, Block, Cell, Column, Document, Heading, Table, Text, Warnings, make_table
from howfar.stats.estimate import Estimate, Part

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
    return Replay(target=prediction.target, rtt_ns=rtt_ns, blocks=len(blocks), pages=tuple(pages))


def document(replay: Replay) -> Document:
    """The report."""
    blocks: list[Block] = [Answer(_answer_sentence(replay)), Heading("Replayed and predicted"), _pages_table(replay)]
    late_pages = [page for page in replay.pages if page.late_end is not None]
    if late_pages:
        blocks.append(Warnings(tuple(_behind_warning(page) for page in late_pages)))
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
    text = f"{page.name} took {format_estimate(page.p50_ms)} on {replay.target}"
    if page.predicted is not None and page.error is not None:
        text += f"; the prediction was {format_estimate(page.predicted.p50_ms)} ({page.error:+.1%})"
    note = "Neither the tool nor the server was behind." if not any(other.late_end for other in replay.pages) else ""
    return f"{text}. {note}".strip()


def _behind_warning(page: ReplayedPage) -> str:
    is_tool = page.late_end == "tool"
    late_share = page.client_late if is_tool else page.server_late
    return behind_warning(page.name, "this tool" if is_tool else "the server", late_share)


def behind_warning(name: str, end: str, late_share: float) -> str:
    """A warning that `end` (the tool or the server) was late. `late_share`: its delay as a share of the page's time."""
    return (
        f"{name}: {end} was behind the recording by {late_share:.1%} of the time: the replay is too slow by as much. Replay on "
        "a quieter machine."
    )


def _pages_table(replay: Replay) -> Table:
    return make_table(
        "",
        replay.pages,
        {
            "page": lambda page: Cell(page.name, f"{page.pages} pages"),
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
