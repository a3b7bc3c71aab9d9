"""Pages that send requests over several connections at once: simulated at two RTTs, the second predicted from the first."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.made_recording import connection_of, costs, digest_of, round_trip_of

from howfar.recording.changes import find_changes
from howfar.recording.facts import RecordingFacts
from howfar.recording.page_costs import cost_pages
from howfar.recording.predict import PagePrediction, analyze
from howfar.recording.prediction_report import document
from howfar.recording.recording import Recording, RoundTrip, TimedPage
from howfar.report import terminal

NOW_NS = 20_000
Work = tuple[int, int]
"""The application's time before a round trip, and the server's time in it."""


def simulated(workers: list[list[Work]], rtt_ns: int, first: Work | None, last: Work | None) -> TimedPage:
    """A page; `first` and `last` use the first connection: all workers wait for `first`, and `last` waits for all workers."""
    trips: list[RoundTrip] = []

    def ask(connection: int, at_ns: int, work: Work) -> int:
        begun = at_ns + work[0]
        ended = begun + rtt_ns + work[1]
        trips.append(
            round_trip_of(len(trips) + 1, connection, 1, begun, begun, ended, ended, 16, 8, 1, "select", 1, len(trips), "operation",
                      None, False)
        )  # fmt: skip
        return ended

    begin = ask(1, 0, first) if first else 0
    ends = []
    for connection, works in enumerate(workers, 1):
        at = begin
        for work in works:
            at = ask(connection, at, work)
        ends.append(at)
    end = ask(1, max(ends), last) if last else max(ends)
    return TimedPage(
        1, "front", "mark", 1.0, 7, 0, end, round_trips=tuple(sorted(trips, key=lambda trip: trip.begun_ns))
    )


def recorded(*pages: TimedPage) -> Recording:
    connections = {number: connection_of(number, "mysql", -1, None, 7, None, False, 0, 0) for number in range(1, 7)}
    facts = RecordingFacts(transport="tcp", floor_ns=0, tap_ns=0)
    trips = tuple(trip for page in pages for trip in page.round_trips)
    return Recording(
        facts, (), (), trips, pages, {1: digest_of(1, "mysql", "SELECT a FROM t WHERE id = ?")}, connections
    )


def predicted(page: TimedPage, rtt_ns: int) -> PagePrediction:
    (found,) = analyze(recorded(page), costs(NOW_NS / 1e3), costs(rtt_ns / 1e3, rtt_ns=rtt_ns)).pages
    return found


work = st.tuples(st.integers(0, 400_000), st.integers(0, 400_000))


@settings(deadline=None)
@given(
    workers=st.lists(st.lists(work, min_size=1, max_size=6), min_size=2, max_size=6),
    rtt_ns=st.integers(NOW_NS, 50_000_000),
    first=st.none() | work,
    last=st.none() | work,
)
def test_what_overlaps_is_predicted_as_a_range_that_holds_the_truth(
    workers: list[list[Work]], rtt_ns: int, first: Work | None, last: Work | None
) -> None:
    """[app-6]"""
    page = predicted(simulated(workers, NOW_NS, first, last), rtt_ns)
    truth = simulated(workers, rtt_ns, first, last).took_ns / 1e6
    found = page.bottom_up.p50_ms
    if page.overlapped:
        assert found.low is not None and found.high is not None
        assert found.low - 1e-6 <= truth <= found.high + 1e-6
        assert found.low <= found.value <= found.high


def test_five_workers_of_ten_round_trips_are_no_fifty() -> None:
    """[app-6] Pauses of 1 ms hide at an RTT of 20 µs that the workers overlap at 20 ms; one overlapping pair shows that they can."""
    workers = [[(1_000_000 + 8_000 * number, 5_000)] * 10 for number in range(5)]
    page = predicted(simulated(workers, NOW_NS, None, None), 20_000_000)
    assert page.overlapped
    truth = simulated(workers, 20_000_000, None, None).took_ns / 1e6
    assert page.bottom_up.p50_ms.low == pytest.approx(truth, rel=0.06)


def test_round_trips_in_sequence_have_no_range(tmp_path: Path) -> None:
    page = simulated([[(100_000, 50_000)] * 5], NOW_NS, None, None)
    found = predicted(page, 5_000_000)
    assert found.bottom_up.p50_ms.low is None, "one page allows no interval"
    assert found.bottom_up.p50_ms.value == pytest.approx(5 * 5.15)


def test_the_report_says_why_it_is_a_range_and_what_is_sure_to_be_saved() -> None:
    recording = recorded(simulated([[(200_000 * (1 + number), 50_000)] * 6 for number in range(3)], NOW_NS, None, None))
    now, far = costs(NOW_NS / 1e3), costs(5000, rtt_ns=5_000_000)
    found, laid = analyze(recording, now, far), cost_pages(recording, now, far)
    report = terminal.render(document(found, find_changes(laid), laid), 100, colour=False)
    assert "longest chain of one connection" in " ".join(report.split())
    for one in find_changes(laid):
        assert one.low_ms <= 5 * 5 + 0.1, "a chain has six round trips"
