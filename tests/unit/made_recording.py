"""Computed recordings: pages of an application whose round trips, gaps and server times are known exactly; and what every report
about them begins with."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.unit.rendered import is_short

from howfar.contract.messages import RecordedConnection, RecordedDigest, RecordedRoundTrip
from howfar.recording.costs import CostBlock, PathCosts, Sizes
from howfar.recording.facts import RecordingFacts
from howfar.recording.recording import Recording, RecordingFile, RoundTrip, TimedPage, read
from howfar.report.document import Answer, Document

SIZES = Sizes(to_server=(16, 1000), to_client=(8, 1000, 100_000))
TAP_NS = 12_000
FLOOR_NS = 20_000


@dataclass(frozen=True)
class Step:
    """One round trip of a page."""

    text: str
    keys: int | None = 0
    gap_ns: int = 100_000
    server_ns: int = 80_000
    to_server: int = 60
    to_client: int = 300
    phase: str = "operation"
    command: str = "query"
    failed: bool = False
    sending_ns: int = 0


def connection_of(*values: Any) -> RecordedConnection:
    """A connection of the values of its row."""
    return RecordedConnection(**dict(zip(RecordedConnection.model_fields, values, strict=True)))


def digest_of(number: int, protocol: str, text: str) -> RecordedDigest:
    return RecordedDigest(id=number, protocol=protocol, text=text)


def round_trip_of(number: int, connection: int, page: int | None, *values: Any) -> RoundTrip:
    """A round trip of the values of its row, without derived values."""
    columns = dict(zip(RecordedRoundTrip.model_fields, (number, connection, *values), strict=True))
    return RoundTrip(**columns, page_id=page)


def changed(trip: RoundTrip, **values: Any) -> RoundTrip:
    return trip.model_copy(update=values)


def loop(count: int, text: str = "SELECT name FROM author WHERE id = ?") -> list[Step]:
    return [Step(text, keys=1000 + number) for number in range(count)]


def costs(
    smallest_us: float, *, label: str = "socket", rtt_ns: int = 0, blocks: int = 6, noise: float = 0.0, seed: int = 3,
    connect_us: float = 30.0, encrypted: bool = False,
) -> PathCosts:  # fmt: skip
    """A path on which 1 kB more in either direction costs 1 µs."""
    chance = random.Random(seed)
    found = []
    for _ in range(blocks):
        base = smallest_us * 1e3 * (1 + chance.gauss(0, noise))
        answers = [base + (size - 8) for size in SIZES.to_client]
        requests = [base + (size - 16) for size in SIZES.to_server[1:]]
        found.append(CostBlock(cost_ns=(*answers, *requests), connect_ns=connect_us * 1e3))
    return PathCosts(label=label, sizes=SIZES, blocks=tuple(found), link_rtt_ns=rtt_ns, encrypted=encrypted)


def made(
    path: Path,
    steps: Sequence[Step],
    *,
    name: str = "front",
    pages: int = 30,
    jitter: float = 0.05,
    connect: bool = False,
    path_ns: int = FLOOR_NS,
    tap_ns: int = TAP_NS,
    seed: int = 5,
    cold: float = 1.0,
    transport: str = "unix",
) -> Recording:
    """A recording at `path`. `cold` multiplies the application's computing time in the first page.

    `path_ns`: cost of a round trip on the present path without the tap; the tap adds `tap_ns`, on the application's side."""
    chance = random.Random(seed)
    texts = sorted({step.text for step in steps})
    digests = [digest_of(number, "mysql", text) for number, text in enumerate(texts, 1)]
    connections: list[RecordedConnection] = []
    trips: list[RoundTrip] = []
    found: list[TimedPage] = []
    now = 1_000_000_000
    for number in range(1, pages + 1):
        begun, connection = now, number if connect else 1
        if connect or number == 1:
            opened = begun if connect else begun - 1000
            logins = sum(step.phase == "connect" for step in steps)
            connections.append(connection_of(connection, "mysql", opened, None, 77, 33, False, logins, 0))
        for step in steps:
            now += round(step.gap_ns * max(1 + chance.gauss(0, jitter), 0) * (cold if number == 1 else 1)) + tap_ns
            sending, sent = now, now + step.sending_ns
            took = path_ns + round(step.server_ns * max(1 + chance.gauss(0, jitter), 0))
            took += (step.to_server - 16) + (step.to_client - 8)
            now = sent + took
            trips.append(
                round_trip_of(
                    len(trips) + 1, connection, number, sending, sent, now, now, step.to_server, step.to_client, 1,
                    step.command, texts.index(step.text) + 1, step.keys, step.phase,
                    None, step.failed,
                )
            )  # fmt: skip
        found.append(TimedPage(number, name, "mark", 1.0, 77, begun, now))
        now += 5_000_000
    facts = RecordingFacts(floor_ns=FLOOR_NS, tap_ns=tap_ns, transport=transport, tls=None, method="tap")
    file = RecordingFile(path, facts)
    file.add_connections(connections)
    file.add_digests(digests)
    file.add_pages(found)
    file.add_round_trips(trips)
    file.finish(RecordingFacts())
    return read(path)


def is_answer_first(report: Document) -> Answer:
    """Assert that the report has a question, and begins with a short answer and how sure it is."""
    answer = report.blocks[0]
    assert isinstance(answer, Answer)
    assert report.question.endswith("?")
    is_short(report.question)
    is_short(answer.text)
    assert answer.certainty and answer.text.endswith(".") and not answer.text.startswith("No answer")
    return answer
