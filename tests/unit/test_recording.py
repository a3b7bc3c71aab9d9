"""A recording as values and as a file."""

from __future__ import annotations

import os
import sqlite3
import threading
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from click.testing import CliRunner
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.unit.made_recording import changed, connection_of, costs, digest_of, is_answer_first, round_trip_of

from howfar.cli.predict import predict
from howfar.cli.replay import _first_pages as first_pages
from howfar.contract.messages import PacketsEnded, Recorded, RecordedConnection, RecordedRoundTrip
from howfar.errors import NewerRunFile, NotARunFile, RunFileError, UsageError
from howfar.paths import find_path
from howfar.recording import packets
from howfar.recording.calibration import Placement
from howfar.recording.collecting import CollectedEvents, collect
from howfar.recording.facts import RecordingFacts
from howfar.recording.marks import VARIABLE, Marks, parse_mark, send
from howfar.recording.page_costs import cost_pages
from howfar.recording.path_session import required_protocol, usable_pages
from howfar.recording.recording import KILLED, Recording, RecordingFile, RoundTrip, TimedPage, read
from howfar.recording.summary import RecordingSummary, covered_ns, document, summarise_recording
from howfar.report.document import AdviceBlock, Answer, Warnings


def trip(number: int, begun_ns: int, connection: int = 1, took_ns: int = 100) -> RoundTrip:
    ended_ns = begun_ns + took_ns
    return round_trip_of(
        number, connection, None, begun_ns, begun_ns + 10, ended_ns - 5, ended_ns, 30, 60, 1, "select", 1, -7,
        "operation", 2, False,
    )  # fmt: skip


def recorded(path: Path, pages: tuple[TimedPage, ...], trips: tuple[RoundTrip, ...]) -> RecordingFile:
    file = RecordingFile(path, RecordingFacts(method="tap", floor_ns=20))
    file.add_connections(
        [
            connection_of(1, "mysql", 0, None, 41, 1000, False, 2, 300),
            connection_of(2, "mysql", 0, None, 42, 1000, False, 2, 300),
        ]
    )
    file.add_digests([digest_of(1, "mysql", "SELECT c FROM t WHERE id = ?")])
    file.add_round_trips(trips)
    file.add_pages(pages)
    return file


def test_what_is_written_is_read_with_server_times_and_gaps(tmp_path: Path) -> None:
    path = tmp_path / "a.recording"
    page = TimedPage(1, "/shop", "php", 1.0, 41, 1_000, 2_000)
    file = recorded(path, (page,), (trip(1, 1_050), trip(2, 1_200), trip(3, 1_250), trip(4, 2_500)))
    assert file.assign_pages() == 0
    file.finish(RecordingFacts(unknown={}))
    recording = read(path)
    assert recording.facts.complete is True
    (found,) = recording.pages
    assert [(one.id, one.gap_ns, one.server_ns) for one in found.round_trips] == [(1, 50, 70), (2, 50, 70), (3, 0, 70)]
    assert [one.id for one in recording.round_trips] == [1, 2, 3, 4]
    assert found.took_ns == 1_000
    assert recording.digest_by_id[1].text.endswith("= ?")
    assert path.stat().st_mode & 0o077 == 0
    assert [one.name for one in tmp_path.iterdir()] == ["a.recording"]


def _reported(trip: RoundTrip) -> RecordedRoundTrip:
    """A round trip as an engine reports it."""
    return RecordedRoundTrip(**{name: getattr(trip, name) for name in RecordedRoundTrip.model_fields})


def test_what_an_engine_reports_is_what_is_written(tmp_path: Path) -> None:
    connection, digest = connection_of(1, "redis", 0, 9, None, 1000, True, 2, 300), digest_of(1, "redis", "GET")
    event = Recorded(
        connections=(connection,),
        digests=(digest,),
        round_trips=(_reported(trip(1, 1_050)),),
    )
    file, into = RecordingFile(tmp_path / "a.recording", RecordingFacts(method="tap", floor_ns=0)), CollectedEvents()
    source = SimpleNamespace(events=lambda: iter([event]))
    collector = threading.Thread(target=collect, args=(source, file, into))  # `collect` lowers its thread's priority
    collector.start()
    collector.join()
    assert (into.stopped, into.round_trips, into.tls, into.protocols) == (None, 1, True, {"redis": 1})
    file.finish(RecordingFacts(unknown={}))
    recording = read(tmp_path / "a.recording")
    assert (recording.connections, recording.digests) == ((connection,), (digest,))
    (found,) = recording.round_trips
    assert _reported(found) == _reported(trip(1, 1_050))


def test_a_round_trip_belongs_to_the_page_of_its_process_before_that_of_all(tmp_path: Path) -> None:
    pages = (
        TimedPage(1, "all", "mark", 1.0, None, 0, 10_000),
        TimedPage(2, "one", "php", 1.0, 41, 1_000, 2_000),
        TimedPage(3, "other", "php", 1.0, 42, 1_000, 2_000),
        TimedPage(4, "threads", "http", 1.0, 42, 1_500, 2_000),
    )
    file = recorded(tmp_path / "a", pages, (trip(1, 1_100), trip(2, 1_100, 2), trip(3, 1_600, 2), trip(4, 3_000, 2)))
    assert file.assign_pages() == 1, "two pages of a process claim the third"
    file.finish(RecordingFacts())
    recording = read(tmp_path / "a")
    assert {one.id: one.page_id for one in recording.round_trips} == {1: 2, 2: 3, 3: None, 4: 1}
    assert {page.name: page.contested for page in recording.pages} == {"all": 0, "one": 0, "other": 1, "threads": 1}
    assert "other" not in cost_pages(recording, costs(20), costs(540)), "which round trips are its own is not known"


def test_a_signal_within_a_transaction_leaves_a_single_file(tmp_path: Path) -> None:
    file = recorded(tmp_path / "a.recording", (), (trip(1, 10),))
    file._db.execute("BEGIN")
    file._db.execute("DELETE FROM round_trips")
    file.close()
    assert len(read(tmp_path / "a.recording").round_trips) == 1
    assert [path.name for path in tmp_path.iterdir()] == ["a.recording"], (
        "a reader of a file in WAL mode leaves two more"
    )


def test_a_message_that_closes_a_connection_belongs_to_the_page_before_it(tmp_path: Path) -> None:
    """The application does not wait for it, and may have ended when it is seen."""
    page = TimedPage(1, "all", "command", 1.0, None, 1_000, 2_000)
    late = [changed(trip(number, 2_100, connection), phase="close") for number, connection in ((2, 1), (3, 2))]
    file = recorded(tmp_path / "a", (page,), (trip(1, 1_100), *late, trip(4, 2_200)))
    assert file.assign_pages() == 0
    file.finish(RecordingFacts())
    assert {one.id: one.page_id for one in read(tmp_path / "a").round_trips} == {1: 1, 2: 1, 3: None, 4: None}


def test_a_connection_without_a_row_has_its_round_trips_in_its_page(tmp_path: Path) -> None:
    """Nothing but its round trips was written of a connection that was open when its source was killed."""
    page = TimedPage(1, "all", "command", 1.0, None, 1_000, 2_000)
    file = recorded(tmp_path / "a", (page,), (trip(1, 1_100), trip(2, 1_200, connection=99)))
    assert file.assign_pages() == 0
    assert [(number, connection, pid) for number, connection, pid, *_ in file.ordered_round_trips()] == [
        (1, 1, 41),
        (2, 99, None),
    ]
    file.finish(RecordingFacts())
    (found,) = read(tmp_path / "a").pages
    assert [(one.id, one.connection_id) for one in found.round_trips] == [(1, 1), (2, 99)]


def test_what_a_killed_recorder_leaves_says_that_it_is_not_complete(tmp_path: Path) -> None:
    file = recorded(tmp_path / "a", (), (trip(1, 1_000),))
    recording = read(tmp_path / "a")
    assert (recording.facts.complete, recording.facts.stopped) == (False, KILLED)
    assert len(recording.round_trips) == 1
    file.close()


def test_what_a_killed_recorder_leaves_has_the_pages_that_were_marked(tmp_path: Path) -> None:
    page = TimedPage(1, "/shop", "php", 1.0, 41, 1_000, 2_000)
    file = recorded(tmp_path / "a", (page,), (trip(1, 1_050), trip(2, 2_500)))
    recording = usable_pages(read(tmp_path / "a"))
    assert [one.id for one in recording.pages[0].round_trips] == [1]
    file.add_pages([TimedPage(2, "/cart", "php", 1.0, 41, 1_000, 2_000)])
    assert [page.contested for page in read(tmp_path / "a").pages] == [1, 1], "two pages of a process claim it"
    file.add_pages([TimedPage(2, "/cart", "php", 1.0, 41, 8_000, 9_000)])
    file.add_pages([TimedPage(1, "/shop", "php", 1.0, 41, 1_000, 9_000)])
    with pytest.raises(UsageError, match="has no whole page"):
        usable_pages(read(tmp_path / "a"))
    file.close()


@pytest.mark.parametrize("ends_early", [False, True])
def test_a_capture_that_ended_early_says_so(ends_early: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Reader(SimpleNamespace):
        def __init__(self, *_: object) -> None:
            seen = Recorded(connections=(), digests=(), round_trips=(_reported(trip(1, 1_050)),))
            ended = PacketsEnded(
                packets=9, skipped={}, missing=0, unknown={}, commands={}, repeated_syns=0, repeated_syns_ns=0
            )
            super().__init__(events=lambda: iter([seen, ended]), cpu_s=lambda: 0.0)

    class Dump(nullcontext["Dump"]):
        def __init__(self, *_: object) -> None:
            super().__init__(self)

        def cpu_s(self) -> float:
            return 0.0

        def is_capturing(self) -> bool:
            return not ends_early

        def end(self) -> int:
            return 0

    monkeypatch.setattr(packets, "PacketReader", Reader)
    monkeypatch.setattr(packets, "Tcpdump", Dump)
    requested = packets.PacketsRequest(3306, None, tmp_path / "a", interface="lo", seconds=0)
    assert packets.record(requested, lambda _: None) == 0
    facts = read(tmp_path / "a").facts
    assert facts.complete is not ends_early
    assert ("tcpdump ended before" in (facts.stopped or "")) is ends_early


def test_marks_are_taken_as_they_come(monkeypatch: pytest.MonkeyPatch) -> None:
    with Marks() as marks:
        monkeypatch.setenv(VARIABLE, marks.address)
        send(41, 100, 200, "mark", "one")
        taken: list[TimedPage] = []
        while not taken:
            taken = marks.take()
        send(41, 300, 400, "mark", "two")
    assert [page.name for page in taken] == ["one"]
    assert [(page.id, page.name) for page in marks.pages] == [(1, "one"), (2, "two")]


def test_a_placement_holds_where_its_cpus_are() -> None:
    here = Placement.of_processes(os.getpid())
    assert here.application == here.server == tuple(sorted(os.sched_getaffinity(0)))
    assert here.without_missing_cpus() == here
    assert Placement(application=(100_000,)).without_missing_cpus() == Placement()
    assert RecordingFacts().cpus.without_missing_cpus() == Placement()
    assert sorted(os.sched_getaffinity(0)) == list(here.application or ())


def test_a_program_that_reads_a_protocol_is_predicted_only_for_recordings_of_it(tmp_path: Path) -> None:
    def spoken(path: str, protocol: str) -> str:
        file = tmp_path / f"{path}-{protocol}"
        recorded(file, (), (trip(1, 1_000),)).finish(RecordingFacts(protocol=protocol))
        return required_protocol(find_path(path), read(file))

    assert spoken("remote", "mysql") == spoken("stunnel", "unknown") == "sizes"
    assert spoken("pgbouncer", "postgresql") == "postgresql"
    assert [spoken("nutcracker", protocol) for protocol in ("redis", "memcached")] == ["redis", "memcached"]
    with pytest.raises(
        UsageError, match="reads the protocol of postgresql, and the protocol of the recording is mysql"
    ):
        spoken("pgbouncer", "mysql")
    with pytest.raises(UsageError, match="the server of predictions and replays does not speak"):
        spoken("proxysql", "mysql")


def test_tls_is_refused_where_it_ends_on_the_way(tmp_path: Path) -> None:
    recorded(tmp_path / "a", (), (trip(1, 1_000),)).finish(RecordingFacts(protocol="postgresql"))
    found = CliRunner().invoke(predict, [str(tmp_path / "a"), "--path", "pgbouncer", "--tls", "1.3"])
    assert isinstance(found.exception, UsageError) and "does not carry TLS" in found.exception.message


def test_a_replay_takes_the_first_pages_that_are_surely_their_own(tmp_path: Path) -> None:
    names = ("/a", "/b", "/a", "/b", "/a", "/a")
    pages = tuple(
        TimedPage(at, name, "http", 1.0, 41, at * 1_000, at * 1_000 + 900) for at, name in enumerate(names, 1)
    )
    silent = changed(trip(4, 4_050), sent_ns=4_060, answered_ns=4_060, ended_ns=4_060)
    trips = (*(trip(at, at * 1_000 + 50) for at in (1, 2, 3)), silent, *(trip(at, at * 1_000 + 50) for at in (5, 6)))
    file = recorded(tmp_path / "a", pages, trips)
    file.assign_pages()
    file.finish(RecordingFacts())
    recording = read(tmp_path / "a")
    doubtful = tuple(replace(page, contested=int(page.id == 1)) for page in recording.pages)
    chosen = first_pages(replace(recording, pages=doubtful), 2)
    assert [page.id for page in chosen.pages] == [2, 3, 5], "/a twice and /b once: 1 is contested, 4 has no answer"
    with pytest.raises(UsageError, match="no page of this recording has round trips that are surely its own"):
        first_pages(replace(recording, pages=(doubtful[0], doubtful[3])), 2)


def test_a_file_that_cannot_be_begun_is_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise RunFileError("no space")

    monkeypatch.setattr(RecordingFile, "set_facts", full)
    with pytest.raises(RunFileError):
        RecordingFile(tmp_path / "a", RecordingFacts())
    assert not list(tmp_path.iterdir())


def test_what_is_no_recording_is_refused(tmp_path: Path) -> None:
    text, other = tmp_path / "text", tmp_path / "other"
    text.write_text("no database " * 100)
    with sqlite3.connect(other) as db:
        db.execute("CREATE TABLE facts (a)")
    for path in (text, other):
        with pytest.raises(NotARunFile):
            read(path)
    with pytest.raises(RunFileError):
        read(tmp_path / "none")
    with pytest.raises(RunFileError):
        RecordingFile(text, RecordingFacts())
    RecordingFile(tmp_path / "new", RecordingFacts()).close()
    with sqlite3.connect(tmp_path / "new") as db:
        db.execute("PRAGMA user_version = 9")
    with pytest.raises(NewerRunFile):
        read(tmp_path / "new")


def _page_names() -> list[tuple[str, ...]]:
    """Rows of `--page-by`, address and name; crates/record tests the same table."""
    lines = (Path(__file__).parents[1] / "data/page_names.tsv").read_text().splitlines()
    return [tuple(line.split("\t")) for line in lines if not line.startswith("#")]


@pytest.mark.parametrize(("page_by", "address", "name"), _page_names())
def test_parameters_that_tell_pages_apart_stay_if_they_are_asked_for(page_by: str, address: str, name: str) -> None:
    """[app-10] They are dropped by default, because of what they may contain."""
    page = parse_mark(1, f"page 41 100 200 php:200 {address}", page_by.split(",") if page_by else ())
    assert page is not None and page.name == name


@pytest.mark.parametrize(
    ("method", "failed"),
    [
        ("php:500", True),
        ("php:404", False),
        ("php:000", None),
        ("http:5xx", True),
        ("http:2xx", False),
        ("http", None),
        ("mark", None),
    ],
)
def test_a_page_that_a_server_error_answered_has_failed(method: str, failed: bool | None, tmp_path: Path) -> None:
    """[app-9] The status is as its sender reports it, also after it was stored."""
    page = parse_mark(1, f"page 41 100 200 {method} /shop")
    assert page is not None and page.failed is failed and page.name == "/shop"
    file = RecordingFile(tmp_path / "a", RecordingFacts())
    file.add_pages([page])
    file.finish(RecordingFacts())
    assert [one.failed for one in read(tmp_path / "a").pages] == [failed]


def test_a_mark_groups_by_what_is_the_same_and_keeps_no_query() -> None:
    marked = parse_mark(1, "page 41 100 200 php /post/4711/comments?token=secret")
    assert marked is not None
    assert (marked.name, marked.pid, marked.took_ns) == ("/post/*/comments", 41, 100)
    named = parse_mark(1, "page 0 100 200 mark shop 2")
    assert named is not None
    assert (named.name, named.pid) == ("shop 2", None)
    for text in ("", "page", "page 1 200 100 php /", "page 1 2 3 other x", "page 1 2 99999999999999999999 php /"):
        assert parse_mark(1, text) is None


@pytest.mark.parametrize(
    ("facts", "said"),
    [
        (RecordingFacts(method="tap", tap_ns=40), "recording itself took at least 16 %"),  # four times 40 of 1000 ns
        (RecordingFacts(method="tap", tap_ns=4), ""),
        (RecordingFacts(method="tap", tap_ns=None), ""),
        (RecordingFacts(method="packets", tap_ns=0, capture_cpus=0.07), "capturing packets kept 7.0 % of a CPU busy"),
        (RecordingFacts(method="packets", tap_ns=0, capture_cpus=0.02), ""),
        (RecordingFacts(method="pcap", tap_ns=0, capture_cpus=None), ""),
    ],
)
def test_how_sure_the_answer_is_includes_what_recording_cost_where_it_was_much(
    facts: RecordingFacts, said: str, tmp_path: Path
) -> None:
    page = TimedPage(1, "/shop", "php", 1.0, 41, 1_000, 2_000)
    trips = tuple(trip(number, 1_000 + 200 * number) for number in range(1, 5))
    file = recorded(tmp_path / "a.recording", (page,), trips)
    file.assign_pages()
    file.finish(facts)
    answer = is_answer_first(document(summarise_recording(read(tmp_path / "a.recording")), "a.recording"))
    assert said in str(answer.certainty)
    assert any(word in str(answer.certainty) for word in ("itself", "capturing")) is bool(said)


def test_a_recording_without_a_page_has_no_answer_and_no_advice(tmp_path: Path) -> None:
    for name, trips in (("none", ()), ("outside", (trip(1, 1_000),))):
        report = document(_summarized(tmp_path / name, (), trips), "a")
        answer, *others = report.blocks
        assert isinstance(answer, Answer) and answer.text.startswith("No answer") and not answer.why
        assert not any(isinstance(block, AdviceBlock) for block in others)
        assert "howfar record" in str(others[-1])


def test_overlapping_times_count_once_and_end_with_the_page() -> None:
    page = TimedPage(1, "/", "http", 1.0, 41, 20, 450)
    assert covered_ns([(0, 100), (50, 150), (400, 500)], page) == 180


def _summarized(
    path: Path, pages: tuple[TimedPage, ...], trips: tuple[RoundTrip, ...], tap_ns: int = 0
) -> RecordingSummary:
    file = recorded(path, pages, trips)
    file.assign_pages()
    file.finish(RecordingFacts(tap_ns=tap_ns))
    return summarise_recording(read(path))


def test_a_wait_that_goes_on_after_the_page_is_the_pages_up_to_its_end(tmp_path: Path) -> None:
    """[rec-2]"""
    pages = (
        TimedPage(1, "/page", "http", 1.0, 41, 1_000, 2_000),
        TimedPage(2, "/user", "http", 1.0, 41, 900_000, 902_000),
    )
    found = _summarized(tmp_path / "a", pages, (trip(1, 1_500, took_ns=800_000), trip(2, 900_000, took_ns=1_010)))
    assert [page.waiting.value for page in found.pages] == [0.49, 0.5]


def test_a_page_that_cannot_be_true_is_left_out_with_the_reason(tmp_path: Path) -> None:
    """[rec-2]"""
    pages = tuple(
        TimedPage(number, name, "http", 1.0, 41, 10_000 * number, 10_000 * number + took)
        for number, name, took in ((1, "/good", 1_000), (2, "/set", 1_000), (3, "/back", -1_000), (4, "/tap", 5))
    )
    backwards = changed(trip(2, 20_100), sent_ns=20_000)
    found = _summarized(tmp_path / "a", pages, (trip(1, 10_100), backwards, trip(3, 40_000)), tap_ns=10)
    assert [page.name for page in found.pages] == ["/good"]
    assert {one.name: one.reason for one in found.left_out} == {
        "/set": "a round trip in it ends before it begins",
        "/back": "it ends before it begins",
        "/tap": "by its own measure the tap added more than the page took",
    }
    assert "/set: 1 page in no page's figure" in _said(found)
    assert [page.name for page in usable_pages(read(tmp_path / "a")).pages] == ["/good", "/tap"]


def test_a_page_that_failed_is_in_no_figure_and_is_named(tmp_path: Path) -> None:
    """[app-9]"""
    pages = tuple(
        TimedPage(number, "/", "http", 1.0, 41, 10_000 * number, 10_000 * number + 1_000, failed=number == 2)
        for number in (1, 2, 3)
    )
    trips = tuple(trip(number, 10_000 * number + 100) for number in (1, 2, 3))
    found = _summarized(tmp_path / "a", pages, trips)
    assert (found.pages[0].count, found.left_out[0].count, found.left_out[0].reason) == (
        2,
        1,
        "answered with a server error, 5xx",
    )
    whole = usable_pages(read(tmp_path / "a"))
    assert ([page.id for page in whole.pages], sum(whole.left_out.values())) == ([1, 3], 1)


def _said(found: RecordingSummary) -> str:
    return " ".join(
        text for block in document(found, "a").blocks if isinstance(block, Warnings) for text in block.lines
    )


def test_the_time_to_send_is_shown_apart_and_nagle_is_named(tmp_path: Path) -> None:
    """[rec-11]"""
    ms = 1_000_000
    page = TimedPage(1, "/", "http", 1.0, 41, 0, 100 * ms)
    slow = changed(trip(1, 10 * ms), sent_ns=50 * ms, answered_ns=50 * ms, ended_ns=51 * ms, bytes_to_server=40)
    found = _summarized(tmp_path / "a", (page,), (slow, changed(slow, id=2, bytes_to_server=100_000)))
    (only,) = found.pages
    assert (only.waiting.value, only.sending.value, found.nagle) == (0.01, 0.4, 1)
    assert found.statements[0].waited_ms == 2
    advice = [block for block in document(found, "a").blocks if isinstance(block, AdviceBlock)]
    assert "Nagle" in advice[0].because and "40 %" in _said(found)


def test_a_goodbye_is_no_round_trip(tmp_path: Path) -> None:
    """[rec-13]"""
    quit = round_trip_of(2, 1, None, 1_500, 1_500, 1_500, 1_500, 5, 0, 1, "quit", None, None, "close", None, False)
    found = _summarized(tmp_path / "a", (TimedPage(1, "/", "http", 1.0, 41, 0, 9_000),), (trip(1, 1_050), quit))
    assert found.round_trips == found.pages[0].round_trips.value == 1


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.lists(st.tuples(st.integers(0, 900), *[st.integers(0, 500)] * 3, st.integers(1, 2)), max_size=8),
    st.integers(-10, 1_000),
)
def test_no_share_exceeds_its_whole(times: list[tuple[int, int, int, int, int]], took: int) -> None:
    """[rec-2] For any round trips, whenever they begin and end."""
    trips = tuple(
        changed(
            trip(number, begun, connection), sent_ns=begun + a, answered_ns=begun + a + b, ended_ns=begun + a + b + c
        )
        for number, (begun, a, b, c, connection) in enumerate(times, 1)
    )
    page = TimedPage(
        1, "/", "mark", 1.0, None, 100, 100 + took, round_trips=tuple(sorted(trips, key=lambda one: one.begun_ns))
    )
    facts = RecordingFacts(method="tap", tap_ns=40, protocol="mysql")
    found = summarise_recording(Recording(facts=facts, round_trips=trips, pages=(page,)))
    assert len(found.pages) + len(found.left_out) == 1
    for one in found.pages:
        assert one.recording is not None
        shares = (one.waiting.value, one.sending.value, one.recording.value)
        assert all(0 <= share <= 1 for share in shares) and shares[0] + shares[1] <= 1


def test_a_connection_that_was_not_understood_has_no_vote(tmp_path: Path) -> None:
    """[cap-2]"""
    unknown = RecordedConnection(
        id=1,
        protocol="unknown",
        opened_ns=0,
        closed_ns=1,
        pid=None,
        uid=None,
        tls=False,
        login_round_trips=0,
        login_ns=0,
    )
    for others, expected in (((), "unknown"), ((replace_protocol(unknown, "postgresql"),), "postgresql")):
        event = Recorded(connections=(unknown, unknown, *others), digests=(), round_trips=())
        into, file = CollectedEvents(), RecordingFile(tmp_path / expected, RecordingFacts())
        source = SimpleNamespace(events=lambda event=event: iter([event]))
        collector = threading.Thread(target=collect, args=(source, file, into))
        collector.start()
        collector.join()
        file.close()
        assert into.facts({}, 0).protocol == expected


def replace_protocol(connection: RecordedConnection, protocol: str) -> RecordedConnection:
    return connection.model_copy(update={"protocol": protocol})


@pytest.mark.parametrize(
    ("skipped", "seen", "said"),
    [
        ({"UDP": 1474, "ARP": 3}, 0, "of 1,477 packets, 1,474 are UDP, 3 are ARP"),
        ({"of link type 147": 9}, 2, "of 11 packets, 9 are of link type 147, 2 are of its connections"),
        ({f"reason {number}": number for number in range(1, 8)}, 0, "3 are others"),
        ({}, 0, "there were no packets"),
    ],
)
def test_what_was_seen_instead_is_named_by_count(
    skipped: dict[str, int], seen: int, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """[cap-4] [cap-5]"""
    ended = PacketsEnded(
        packets=seen, skipped=skipped, missing=0, unknown={}, commands={}, repeated_syns=0, repeated_syns_ns=0
    )
    reader = SimpleNamespace(events=lambda: iter([ended]), cpu_s=lambda: 0.0)
    monkeypatch.setattr(packets, "PacketReader", lambda *_: reader)
    with pytest.raises(UsageError, match="no round trip to port 3306 was seen") as refused:
        packets.record(packets.PacketsRequest(3306, None, tmp_path / "a", file=tmp_path / "b"), lambda _: None)
    assert said in str(refused.value)
