"""Recorded pages repeated with the user's statements: which are run, when, and what is reported about them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from tests.unit.made_recording import changed, connection_of, digest_of, is_answer_first, round_trip_of

from howfar.contract.messages import Repeated
from howfar.errors import UsageError
from howfar.recording.facts import RecordingFacts
from howfar.recording.recording import Recording, RecordingFile, TimedPage, read
from howfar.recording.repeat import analyze, document, make_script, may_change, split_statements
from howfar.report import terminal

ONE, OTHER, DONE, CHANGE = (
    "SELECT a FROM t WHERE id = ?",
    "SELECT b FROM t WHERE id IN (...)",
    "COMMIT",
    "DELETE FROM t",
)
DIGESTS = {text: number for number, text in enumerate((ONE, OTHER, DONE, CHANGE), 1)}
TAP_NS, UNSEEN_NS = 1000, 500
GIVEN = ("SELECT a FROM t WHERE id = 1", "SELECT a FROM t WHERE id = 2", "SELECT b FROM t WHERE id IN (1, 2)")


def recording(path: Path, pages: Sequence[Sequence[str]]) -> Recording:
    """Each page opens a connection, runs its statements 10 us apart, each for 50 us, and ends 7 us later."""
    facts = RecordingFacts(method="tap", protocol="mysql", tap_ns=TAP_NS, floor_ns=2000, path_ns=2000 + UNSEEN_NS)
    file = RecordingFile(path, facts)
    file.add_connections(connection_of(n, "mysql", 0, None, None, None, False, 1, 0) for n in range(1, len(pages) + 1))
    file.add_digests(digest_of(number, "mysql", text) for text, number in DIGESTS.items())
    trips, found, at, number = [], [], 1_000_000, 0
    for connection, texts in enumerate(pages, 1):
        begun = at
        for text in ("login", *texts):
            number += 1
            phase = "connect" if text == "login" else "operation"
            digest = DIGESTS.get(text)
            command = text.split()[0].lower()
            at += 10_000
            trips.append(
                round_trip_of(
                    number,
                    connection,
                    None,
                    at,
                    at,
                    at + 50_000,
                    at + 50_000,
                    30,
                    60,
                    1,
                    command,
                    digest,
                    None,
                    phase,
                    1,
                    False,
                )
            )
            at += 50_000
        at += 7_000
        found.append(TimedPage(connection, "page", "mark", 1.0, None, begun, at))
        at += 1_000_000
    file.add_round_trips(trips)
    file.add_pages(found)
    assert file.assign_pages() == 0
    file.finish(RecordingFacts(tls=False))
    return read(path)


def test_statements_end_with_their_lines() -> None:
    text = "SELECT ';' ;\n\nSELECT a;b\nFROM t;\nSELECT 3"
    assert split_statements(text) == ("SELECT ';'", "SELECT a;b\nFROM t", "SELECT 3")


def test_what_is_given_is_run_in_turn_and_what_needs_no_literal_is_run_as_recorded(tmp_path: Path) -> None:
    found = recording(tmp_path / "a", [(ONE, "ping", ONE, DONE), (ONE, OTHER)])
    made = make_script(found, GIVEN, (ONE, ONE, OTHER), writes=False)
    assert made.statements == (*GIVEN, DONE)
    assert [[step.statement for step in page.steps] for page in made.pages] == [[None, 0, 1, 3], [None, 0, 2]]
    assert [dict(left) for left in made.left_out] == [{"ping": 1}, {}]


def test_gaps_are_without_what_the_recorder_added_or_did_not_see(tmp_path: Path) -> None:
    (page, _) = make_script(
        recording(tmp_path / "a", [(ONE, "ping", ONE), (ONE,)]), GIVEN, (ONE, ONE, OTHER), False
    ).pages
    gap_ns = 10_000 - TAP_NS - UNSEEN_NS
    assert [step.gap_ns for step in page.steps] == [gap_ns, gap_ns, 2 * gap_ns], "a ping's own time is left out with it"
    assert page.rest_ns == 7000


def test_a_connection_of_a_page_takes_the_place_of_the_page_before(tmp_path: Path) -> None:
    """A thousand pages that connect anew do not keep a thousand connections open. One opened before its page stays open."""
    found = recording(tmp_path / "a", [(ONE,), (ONE,)])
    made = make_script(found, GIVEN, (ONE, ONE, OTHER), False)
    assert [[(step.connection, step.opens) for step in page.steps] for page in made.pages] == [
        [(0, True), (0, False)]
    ] * 2
    kept = replace(found, pages=tuple(replace(page, round_trips=page.round_trips[1:]) for page in found.pages))
    made = make_script(kept, GIVEN, (ONE, ONE, OTHER), False)
    assert [[(step.connection, step.opens) for step in page.steps] for page in made.pages] == [[(5000, False)]] * 2


def test_a_semicolon_at_the_end_of_what_was_recorded_is_no_difference(tmp_path: Path) -> None:
    found = recording(tmp_path / "a", [(ONE, DONE)])
    ended = {number: digest_of(number, "mysql", f"{one.text};") for number, one in found.digest_by_id.items()}
    found = replace(found, digest_by_id=ended)
    made = make_script(found, GIVEN, (ONE, ONE, OTHER), False)
    assert [step.statement for step in made.pages[0].steps] == [None, 0, 3]


def test_a_statement_that_failed_when_it_was_recorded_may_fail_again(tmp_path: Path) -> None:
    found = recording(tmp_path / "a", [(ONE, ONE)])
    (page,) = found.pages
    trips = (*page.round_trips[:2], changed(page.round_trips[2], failed=True))
    made = make_script(replace(found, pages=(replace(page, round_trips=trips),)), GIVEN, (ONE, ONE, OTHER), False)
    assert [step.may_fail for step in made.pages[0].steps] == [False, False, True]


def test_what_a_digest_does_not_show_is_refused(tmp_path: Path) -> None:
    found = recording(tmp_path / "a", [(ONE,)])
    for hidden in (
        "/*!50100 INTO OUTFILE 'x' */",
        "/*M!100100 INTO OUTFILE 'x' */",
        "AND set_config('default_transaction_read_only', 'off', false) = ''",
    ):
        with pytest.raises(UsageError, match=r"may change data: SELECT a FROM t WHERE id = \?$"):
            make_script(found, (f"SELECT a FROM t WHERE id = 1 {hidden}",), (ONE,), False)
    # Accepted: another statement of the file, which no page runs, and words in a literal.
    make_script(
        found,
        (*GIVEN, "SET GLOBAL x = 1", "/*!1 x */ SELECT 1"),
        (ONE, ONE, OTHER, "SET GLOBAL x = ?", "SELECT ?"),
        False,
    )
    make_script(found, ("SELECT a FROM t WHERE id = 'set global read write'",), (ONE,), False)


def test_a_statement_that_is_not_given_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"page \(1 page\) lacks 1 statement: SELECT b FROM t WHERE id IN"):
        make_script(recording(tmp_path / "a", [(ONE, OTHER)]), GIVEN[:2], (ONE, ONE), False)


def test_a_page_that_lacks_a_statement_does_not_stop_the_others(tmp_path: Path) -> None:
    """[app-26] Neither does a statement of such a page that would change data."""
    made = make_script(recording(tmp_path / "a", [(ONE,), (ONE, OTHER), (CHANGE, OTHER)]), GIVEN[:2], (ONE, ONE), False)
    assert [len(page.steps) for page in made.pages] == [2]
    assert len(made.recording.pages) == 1
    assert made.lacking == (f"page (2 pages) lacks 1 statement: {OTHER}",)


def test_statements_that_change_data_are_run_only_when_that_is_wanted(tmp_path: Path) -> None:
    found = recording(tmp_path / "a", [(ONE, CHANGE)])
    with pytest.raises(UsageError, match=r"may change data: DELETE FROM t$"):
        make_script(found, GIVEN, (ONE, ONE, OTHER), writes=False)
    assert CHANGE in make_script(found, GIVEN, (ONE, ONE, OTHER), writes=True).statements


@pytest.mark.parametrize(
    "digest",
    [
        "WITH x AS (INSERT INTO t VALUES (...)) SELECT ?",  # refused by the server, like the next
        "SELECT f(?)",
        "(SELECT a FROM t) UNION (SELECT global, persist FROM t)",
        "SET NAMES utf8mb4",
        "set session transaction isolation level read committed",
        "SET default_transaction_isolation TO ?",
        "SHOW transaction_read_only",
        "select @@session.tx_read_only",
        "START TRANSACTION",
        "BEGIN; SELECT a FROM t WHERE id = ?; COMMIT;",
        "SELECT pg_advisory_unlock_all(); CLOSE ALL; UNLISTEN *; RESET ALL",  # read-only was requested at login, and stays
    ],
)
def test_what_changes_nothing_in_a_read_only_session_is_run(digest: str) -> None:
    assert not may_change(digest)


@pytest.mark.parametrize(
    "digest",
    [
        "INSERT INTO t VALUES (...)",
        "SELECT ?; KILL ?",
        "SELECT ?; COPY t TO PROGRAM ?",
        "START REPLICA",
        "RESET MASTER",
        "BEGIN NOT ATOMIC KILL ?; END",
        "BEGIN READ WRITE",
        "SET transaction_read_only = off",
        "SET SESSION tx_read_only = ?",
        "SET SESSION CHARACTERISTICS AS TRANSACTION READ WRITE",
        "SELECT a FROM t INTO OUTFILE ?",
        "SET GLOBAL max_connections = ?",
        "SET @@global.max_connections = ?",
        "SET @a = ?, GLOBAL max_connections = ?",
        "SET STATEMENT max_statement_time = ? FOR KILL ?",
        "SET DEFAULT ROLE r TO u",
        "SET PASSWORD = ?",
        "CALL f()",
    ],
)
def test_what_a_read_only_session_does_not_prevent_is_refused_before(digest: str) -> None:
    assert may_change(digest)


def test_a_preparation_and_an_empty_statement_run_nothing(tmp_path: Path) -> None:
    found = recording(tmp_path / "a", [(ONE, ONE, OTHER, ONE)])
    (page,) = found.pages
    login, prepared, run, empty, fetched = page.round_trips
    fetched = changed(fetched, command="fetch")
    empty = changed(empty, digest_id=9, command="other")
    trips = (login, changed(prepared, command="prepare"), changed(run, command="execute"), empty, fetched)
    digests = {**found.digest_by_id, 9: digest_of(9, "mysql", ";")}
    found = replace(found, pages=(replace(page, round_trips=trips),), digest_by_id=digests)
    made = make_script(found, GIVEN, (ONE, ONE, OTHER), False)
    assert [step.statement for step in made.pages[0].steps] == [None, 0]
    assert made.left_out == ({"prepare": 1, "other": 1, "fetch": 1},)


def test_a_page_without_statements_is_refused(tmp_path: Path) -> None:
    found = recording(tmp_path / "a", [(ONE,)])
    (page,) = found.pages
    trips = tuple(changed(trip, digest_id=None, phase="operation") for trip in page.round_trips)
    with pytest.raises(UsageError, match=r"page \(1 page\) has no statement"):
        make_script(replace(found, pages=(replace(page, round_trips=trips),)), GIVEN, (ONE, ONE, OTHER), False)


def test_the_report_sets_what_was_repeated_beside_what_was_recorded(tmp_path: Path) -> None:
    found = recording(tmp_path / "a", [(ONE, "ping", ONE)] * 4)
    made = make_script(found, GIVEN, (ONE, ONE, OTHER), False)
    done = [Repeated(took_ns=400_000, opened_ns=(1,), round_trips_ns=(60_000, 80_000), client_late_ns=20_000)] * 4
    whole = analyze(made, [done] * 4, "db1:3306", read_only=True)
    (page,) = whole.pages
    assert (page.repeated.p50_ms.value, page.waiting_ms, page.round_trips) == (0.4, 0.14, 2)
    assert page.recorded.p50_ms.value == pytest.approx((4 * 60_000 + 7000 - 4 * TAP_NS) / 1e6)
    assert page.recorded_waiting_ms == pytest.approx(2 * (50_000 + UNSEEN_NS) / 1e6)
    assert (page.left_out, page.client_late) == ({"ping": 4}, 0.05)
    shown = terminal.render(document(whole), 100, colour=False)
    assert is_answer_first(document(whole)).text.startswith("page took 0.40 ms on db1:3306, and 0.24 ms")
    assert "this tool was behind the recording by 5.0% of the time" in shown
    assert "left out (4 ping, in 4 pages)" in " ".join(shown.split())
    assert "page 0.40 [0.40, 0.40] 0.24" in " ".join(shown.split()), "the interval stands in the table"
    assert "Sessions were read only." in shown
    assert page.recorded_connecting_ms == pytest.approx((50_000 + UNSEEN_NS) / 1e6), "a login of one round trip"
