"""Advice about made-up pages: which change is named, for which round trips, and that no saving exceeds its page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.made_recording import FLOOR_NS, Step, costs, digest_of, is_answer_first, loop, made, round_trip_of

from howfar.recording.changes import PossibleChange, find_changes
from howfar.recording.facts import NameCost, RecordingFacts
from howfar.recording.kinds import TripKind, classify_round_trip
from howfar.recording.page_costs import cost_pages
from howfar.recording.predict import analyze
from howfar.recording.prediction_report import document
from howfar.recording.recording import Recording, RecordingFile, TimedPage, read
from howfar.recording.replay import make_script
from howfar.recording.summary import document as summary_document
from howfar.recording.summary import summarise_recording
from howfar.report import terminal

NOW = costs(FLOOR_NS / 1e3)
FAR = costs(540, label="remote, RTT 0.5ms", rtt_ns=500_000, noise=0.01, connect_us=560)
AUTHOR, COUNT = "SELECT name FROM author WHERE id = ?", "SELECT count(*) FROM comment WHERE post = ?"


def prepare(text: str) -> Step:
    return Step(text, command="prepare")


def run(text: str, keys: int) -> Step:
    return Step(text, keys=keys, command="execute")


def advised(steps: Sequence[Step], folder: Path, pages: int = 1) -> list[PossibleChange]:
    return find_changes(cost_pages(made(folder / "a.recording", steps, pages=pages), NOW, FAR))


def found_changes(recording: Recording, kind: str) -> list[PossibleChange]:
    return [one for one in find_changes(cost_pages(recording, NOW, FAR)) if one.kind == kind]


@pytest.mark.parametrize(
    ("steps", "right"),
    [
        pytest.param([Step(AUTHOR, keys=at % 10) for at in range(20)], {("loop", AUTHOR, 20)}, id="app-1-few-parents"),
        pytest.param(
            [step for at in range(25) for step in (Step(AUTHOR, keys=at % 10), Step(COUNT, keys=at))],
            {("loop", AUTHOR, 25), ("loop", COUNT, 25)},
            id="app-1-two-in-turn",
        ),
        pytest.param([Step(AUTHOR, keys=at % 2) for at in range(6)], {("memo", AUTHOR, 4)}, id="app-1-two-keys"),
        pytest.param(
            [step for at in (1, 2, 3) for step in (prepare(AUTHOR), run(AUTHOR, at))],
            {("loop", AUTHOR, 3), ("prepare", AUTHOR, 3)},
            id="app-2",
        ),
        pytest.param(
            [prepare(COUNT), run(COUNT, 11), run(COUNT, 12)], {("prepare", COUNT, 1)}, id="app-3-one-prepare-two-runs"
        ),
        pytest.param(
            [Step(AUTHOR, keys=7), *[Step(AUTHOR, keys=7, command="fetch") for _ in range(19)]],
            {("fetch", AUTHOR, 19)},
            id="app-5-portal",
        ),
        pytest.param(
            [Step("DECLARE c CURSOR FOR SELECT a FROM t"), *[Step("FETCH FORWARD ? FROM c") for _ in range(5)]],
            {("fetch", "FETCH FORWARD ? FROM c", 5)},
            id="app-5-named-cursor",
        ),
        pytest.param(
            [run(AUTHOR, 7), *[Step("fetch", keys=None, command="fetch") for _ in range(5)]],
            {("fetch", "fetch", 5)},
            id="app-5-cursor-of-mysql",
        ),
        pytest.param([Step("SELECT * FROM no_such_table", failed=True)] * 5, set(), id="app-9-failed"),
        pytest.param([Step("SET PASSWORD = ?")], set(), id="app-19-account"),
        pytest.param([Step("SET GLOBAL max_connections = ?")], set(), id="app-19-server"),
        pytest.param([Step("SET @total = ?")], set(), id="app-19-variable"),
        pytest.param([Step("SET SESSION sql_mode = ?")], {("initial", "SET SESSION sql_mode = ?", 1)}, id="app-19-session"),
        pytest.param([Step("SELECT nextval(?)")] * 2, set(), id="not-the-same-answer"),
        pytest.param([Step("WITH a AS (DELETE FROM t RETURNING id) SELECT id FROM a")] * 2, set(), id="a-read-that-writes"),
    ],
)  # fmt: skip
def test_advice_depends_on_what_a_round_trip_did(
    steps: list[Step], right: set[tuple[str, str, float]], tmp_path: Path
) -> None:
    """[app-1] [app-2] [app-3] [app-5] [app-9] [app-19]"""
    assert {(one.kind, one.digest, one.count) for one in advised(steps, tmp_path)} == right


def test_a_loop_goes_with_what_prepares_and_closes_its_statement(tmp_path: Path) -> None:
    """[app-2] PDO on PostgreSQL: 20 x prepare, execute, DEALLOCATE. A single request instead leaves one of each."""
    close = Step("DEALLOCATE pdo_stmt_?", command="deallocate")
    steps = [step for at in range(20) for step in (prepare(AUTHOR), run(AUTHOR, at), close)]
    found = {one.kind: one for one in advised(steps, tmp_path)}
    assert found.keys() == {"loop", "prepare"}
    assert (found["loop"].count, found["loop"].gone) == (20, 57)
    assert (found["prepare"].count, found["prepare"].gone) == (20, 40)
    assert found["loop"].low_ms > 57 * 0.5 > found["prepare"].low_ms > 40 * 0.5


def test_variables_that_are_set_in_turn_are_no_keys(tmp_path: Path) -> None:
    """[app-19] `SET @a = ?` before each EXECUTE fetches nothing."""
    steps = [step for at in range(12) for step in (Step("SET @a = ?", keys=at), Step("EXECUTE s USING @a", keys=0))]
    assert {one.kind for one in advised(steps, tmp_path)} == {"pipeline"}


def test_a_run_of_statements_has_one_row_whatever_its_length(tmp_path: Path) -> None:
    """[app-20]"""
    steps = [Step(f"SELECT a FROM t{number} WHERE id = ?", keys=1) for number in range(22)]
    shorter, longer = made(tmp_path / "s.recording", steps[:21]), made(tmp_path / "l.recording", steps)
    laid = {"front": [page for one in (shorter, longer) for page in cost_pages(one, NOW, FAR)["front"]]}
    (one,) = (one for one in find_changes(laid) if one.kind == "pipeline")
    assert one.count == 21.5


def test_an_answer_of_several_rounds_of_slow_start_could_have_fewer_bytes(tmp_path: Path) -> None:
    """[app-25] 319 kB take five rounds: four RTTs of waiting, less the time in which bytes are sent meanwhile."""
    far = costs(20_000, label="remote", rtt_ns=20_000_000)
    laid = cost_pages(made(tmp_path / "b.recording", [Step("SELECT body", to_client=319_000)], pages=1), NOW, far)
    (one,) = find_changes(laid)
    assert (one.kind, one.count) == ("bytes", 1)
    assert 60 < one.low_ms < 80
    assert one.high_ms > one.low_ms


def test_a_request_in_two_writes_waits_for_a_round_trip_more(tmp_path: Path) -> None:
    """[app-23] 20 requests at 50 ms: each waits 40 ms and two round trips, and the advice is TCP_NODELAY, not the loop."""
    far = costs(50_000, label="remote", rtt_ns=50_000_000)
    steps = [Step(AUTHOR, keys=at, sending_ns=40_000_000) for at in range(20)]
    recording = made(tmp_path / "t.recording", steps, pages=4, transport="tcp")
    found, laid = analyze(recording, NOW, far), cost_pages(recording, NOW, far)
    (page,) = found.pages
    each_ms = 40 + 2 * 50 + 0.08 + 0.1
    assert page.bottom_up.p50_ms.value == pytest.approx(20 * each_ms, rel=0.005)
    assert page.parts_now.server_ms == pytest.approx(20 * 0.08, rel=0.1)
    assert page.curve_ms[100_000_000] == pytest.approx(20 * (each_ms + 100), rel=0.005)
    first, *others = find_changes(laid)
    assert (first.kind, first.count) == ("nagle", 20)
    assert first.low_ms == pytest.approx(20 * 90, rel=0.01)
    assert all(one.high_ms < 20 * 51 for one in others)
    answer = is_answer_first(document(found, find_changes(laid), laid))
    assert "TCP_NODELAY" in answer.why and "loop" not in answer.why
    assert sum(step.server_ns for step in make_script(laid["front"][0], NOW).steps) == pytest.approx(
        20 * 40.08e6, rel=0.01
    )
    (near,) = analyze(recording, NOW, NOW.model_copy(update={"by_socket": True})).pages
    assert near.bottom_up.p50_ms.value == pytest.approx(20 * 0.2, rel=0.05)


def test_a_socket_has_no_acknowledgement_to_wait_for(tmp_path: Path) -> None:
    recording = made(tmp_path / "u.recording", [Step(AUTHOR, sending_ns=40_000_000)], pages=1)
    assert [trip.ack_wait_ns for page in cost_pages(recording, NOW, FAR)["front"] for trip in page.trips] == [0]


@settings(deadline=None, max_examples=40)
@given(
    steps=st.lists(
        st.builds(
            Step,
            text=st.sampled_from([AUTHOR, COUNT, "SET NAMES ?", "BEGIN", "COMMIT", "UPDATE t SET a = ?"]),
            keys=st.integers(0, 4),
            gap_ns=st.integers(0, 3_000_000),
            server_ns=st.integers(0, 3_000_000),
            to_client=st.sampled_from([8, 3000, 90_000]),
            command=st.sampled_from(["query", "prepare", "fetch"]),
            failed=st.booleans(),
        ),
        min_size=1,
        max_size=25,
    ),
    jitter=st.floats(0, 0.6),
    pages=st.integers(1, 7),
    connect=st.booleans(),
)
def test_no_saving_exceeds_its_page(
    steps: list[Step], jitter: float, pages: int, connect: bool, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """[app-14]"""
    path = tmp_path_factory.mktemp("made") / "a.recording"
    recording = made(path, steps, pages=pages, jitter=jitter, connect=connect)
    whole_ms = analyze(recording, NOW, FAR).pages[0].bottom_up.p50_ms.value
    for one in find_changes(cost_pages(recording, NOW, FAR)):
        assert 0 <= one.low_ms <= one.high_ms <= max(whole_ms, 0)


@pytest.mark.parametrize(
    ("command", "text", "kind"),
    [
        ("query", "START TRANSACTION", TripKind.BEGIN),
        ("query", "ROLLBACK TO SAVEPOINT a", TripKind.CONTROL),
        ("query", "rollback", TripKind.END),
        ("query", "BEGIN; SELECT a FROM t", TripKind.OTHER),
        ("query", "SET NAMES ?; SET autocommit = ?", TripKind.SETTING),
        ("query", "SET a = ?, GLOBAL b = ?", TripKind.OTHER),
        ("query", "SET @@session.a = ?", TripKind.SETTING),
        ("query", "SET LOCAL a = ?", TripKind.OTHER),
        ("query", "(SELECT a FROM t) UNION (SELECT a FROM u)", TripKind.READ),
        ("query", "SELECT a FROM t FOR UPDATE", TripKind.OTHER),
        ("query", "SELECT ?", TripKind.SETTING),
        ("query", "SELECT random, uuid FROM t WHERE uuid = ?", TripKind.READ),
        ("query", "SELECT a FROM t ORDER BY RAND()", TripKind.OTHER),
        ("get", "get", TripKind.READ),
        ("select", "select", TripKind.SETTING),
        ("set", "set", TripKind.OTHER),
        ("query", ";", TripKind.OTHER),
    ],
)
def test_a_kind_is_decided_by_the_whole_statement(command: str, text: str, kind: TripKind) -> None:
    assert classify_round_trip("operation", command, text) is kind


def test_a_login_that_encryption_hides_is_a_lower_bound(tmp_path: Path) -> None:
    """[rec-12] Round trips that may belong to the login count only in the upper bound of what a kept connection saves."""
    seen = [Step("login", phase="connect"), Step("login", phase="connect")]
    plain = made(tmp_path / "a.recording", [*seen, Step(AUTHOR)], connect=True)
    hidden = made(tmp_path / "b.recording", [*seen, Step("data", phase="hidden"), Step(AUTHOR)], connect=True)
    (known,), (bound,) = (found_changes(one, "connect") for one in (plain, hidden))
    assert known.digest == "connect and log in (2.0 round trips of login)"
    assert bound.digest == "connect and log in (at least 2.0 round trips of login)"
    assert bound.high_ms - bound.low_ms > known.high_ms - known.low_ms + 0.5


def test_statements_are_told_by_page(tmp_path: Path) -> None:
    """Where there are several pages, each statement has its count per page."""
    file = RecordingFile(tmp_path / "a.recording", RecordingFacts())
    file.add_digests([digest_of(1, "mysql", AUTHOR), digest_of(2, "mysql", COUNT)])
    file.add_pages([TimedPage(1, "/a", "mark", 1.0, 7, 0, 1000), TimedPage(2, "/a", "mark", 1.0, 7, 2000, 3000)])
    file.add_pages([TimedPage(3, "/b", "mark", 1.0, 7, 4000, 5000)])
    where = [(1, 100, 1), (1, 200, 1), (1, 300, 2), (2, 2100, 1), (3, 4100, 2), (None, 9000, 2)]
    file.add_round_trips(
        [
            round_trip_of(
                at,
                1,
                page,
                begun,
                begun + 1,
                begun + 50,
                begun + 60,
                9,
                9,
                1,
                "query",
                digest,
                1,
                "operation",
                1,
                False,
            )
            for at, (page, begun, digest) in enumerate(where, 1)
        ]
    )
    file.finish(RecordingFacts())
    found = summarise_recording(read(tmp_path / "a.recording"))
    assert {(one.page, one.text): (one.count, one.each) for one in found.statements} == {
        ("/a", AUTHOR): (3, 1.5),
        ("/a", COUNT): (1, 0.5),
        ("/b", COUNT): (1, 1.0),
        (None, COUNT): (1, None),
    }
    text = terminal.render(summary_document(found, "a.recording"), 100, colour=False)
    assert "a page" in text and "none" in text


def test_what_the_recorder_took_away_or_the_network_lost_is_said(tmp_path: Path) -> None:
    """[rec-18] [cap-1] The lookup of a name and a dead first address; a connect whose SYN was repeated."""
    cost = NameCost(lookup_ns=3_100_000, addresses=["::1", "127.0.0.1"], first_address_ns=1_000_000_000)
    facts = RecordingFacts(names={"db": cost}, repeated_syns=1, repeated_syns_ns=1_000_100_000)
    recording = made(tmp_path / "a.recording", loop(3), pages=3)
    recording = replace(recording, facts=recording.facts.updated(facts))
    text = " ".join(
        terminal.render(summary_document(summarise_recording(recording), "a.recording"), 100, colour=False).split()
    )
    assert "names the server db" in text and "3.10 ms for the lookup, and 1,000 ms for its first address, ::1" in text
    assert "1 connect had to be asked for again" in text and "that cost 1,000 ms in all" in text


def test_what_a_prepare_does_not_know_hides_no_key(tmp_path: Path) -> None:
    """[app-4] The keys of a statement are those of its executions."""
    steps = [Step(AUTHOR, keys=None, command="prepare"), run(AUTHOR, 1), run(AUTHOR, 2), run(AUTHOR, 1)]
    (one,) = summarise_recording(made(tmp_path / "k.recording", steps, pages=1)).statements
    assert (one.keys, one.count) == (2, 4)


def test_a_loop_is_found_with_what_one_query_saves(tmp_path: Path) -> None:
    recording = made(tmp_path / "l.recording", [*loop(94), *loop(10, "SELECT * FROM tag WHERE post = ?")])
    most, other = found_changes(recording, "loop")
    assert (most.count, other.count) == (94, 10)
    assert "author" in most.digest
    assert most.low_ms == pytest.approx(93 * 0.54, rel=0.05)
    assert most.high_ms == pytest.approx(93 * (0.54 + 0.08 + 0.1), rel=0.05)


def test_statements_round_one_statement_are_found(tmp_path: Path) -> None:
    steps = [Step("BEGIN"), Step("UPDATE counter SET n = n + ? WHERE id = ?", keys=4), Step("COMMIT")]
    (one,) = found_changes(made(tmp_path / "t.recording", steps), "transaction")
    assert one.count == 1
    assert one.low_ms == pytest.approx(2 * 0.54, rel=0.05)


def test_repeats_within_and_between_pages_differ(tmp_path: Path) -> None:
    same = Step("SELECT value FROM settings WHERE name = ?", keys=9)
    recording = made(tmp_path / "r.recording", [same, Step("SELECT ? FROM t WHERE id = ?", keys=2), same, same])
    (memo,) = found_changes(recording, "memo")
    assert memo.count == 2
    assert {one.digest for one in found_changes(recording, "cache")} == {same.text, "SELECT ? FROM t WHERE id = ?"}


def test_a_pipeline_is_only_a_candidate(tmp_path: Path) -> None:
    steps = [Step(f"SELECT a FROM t{number} WHERE id = ?", keys=number) for number in range(5)]
    (one,) = found_changes(made(tmp_path / "p.recording", steps), "pipeline")
    assert one.low_ms == 0
    assert one.high_ms == pytest.approx(4 * 0.54, rel=0.05)


@pytest.mark.parametrize("width", [80, 100, 140])
def test_what_to_change_is_one_table_however_long_its_texts_are(width: int, tmp_path: Path) -> None:
    """[cli-10]"""
    long = "SELECT " + ", ".join(f"column_{number}" for number in range(30)) + " FROM t WHERE id = ?"
    steps = [*loop(5, long), *loop(5), Step("SET NAMES ?")]
    name = "/a/page/with/a/name/that/is/longer/than/any/screen/is/wide/and/goes/on"
    recording = made(tmp_path / "n.recording", steps, pages=4, name=name)
    found, laid = analyze(recording, NOW, FAR), cost_pages(recording, NOW, FAR)
    lines = terminal.render(document(found, find_changes(laid), laid), width, colour=False).splitlines()
    table = lines[lines.index("What to change") + 1 :]
    assert all(word in table[0] for word in ("what", "where", "saves", "times", "page"))
    rows = table[3 : table.index("", 1)] if "" in table[1:] else table[3:]
    assert sum("one request for all keys" in row and "/a/page" in row for row in rows) == 2
    assert all(len(line) <= width for line in lines)
