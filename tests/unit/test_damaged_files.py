"""Damaged run files and recordings are refused with a message, or read as if intact. None yields a different figure."""

from __future__ import annotations

import os
import random
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.unit.damage import KINDS, execute, in_todays_format, recorded
from tests.unit.made_recording import Step, loop, made

from howfar.cli.main import run_command_line
from howfar.errors import NotARunFile, RunFileError
from howfar.recording.recording import Recording
from howfar.recording.recording import read as read_recording
from howfar.store.records import Run
from howfar.store.run_file import RunFile, read_run

SMALL = "aa-mariadb"

CONTRADICTIONS = {
    "queries-quarter": "UPDATE trial SET queries = queries / 4 WHERE number = 0",
    "turns-double": "UPDATE trial SET turns = turns * 2 WHERE number = 0",
    "elapsed-half": "UPDATE trial SET elapsed_ns = elapsed_ns / 2 WHERE number = 0",
    "histogram-count": "UPDATE histogram SET count = count / 2 WHERE trial = 0",
    "interval-transactions": "UPDATE interval SET transactions = transactions + 1000 WHERE trial = 0 AND place = 0",
}
"""One number changed so that others in the file contradict it."""

DEEP = "[" * 100_000 + "]" * 100_000
IMPOSSIBLE = {
    "elapsed-zero": "UPDATE trial SET elapsed_ns = 0",
    "negative": "UPDATE trial SET queries = -5, transactions = -5",
    "huge": "UPDATE trial SET queries = 9223372036854775807, elapsed_ns = 1",
    "infinite": "UPDATE trial SET load_average_1m = 9e999, steal_share = -9e999",
    "receipt-nan": """UPDATE trial SET receipt = '{"link": {"rtt_at_rest_ns": {"p50": NaN}}}'""",
    "receipt-infinite": """UPDATE trial SET receipt = '{"link": {"rtt_at_rest_ns": {"p50": 1e999}}}'""",
    "receipt-shape": """UPDATE trial SET receipt = '{"link": 5, "session": []}'""",
    "receipt-number": """UPDATE trial SET receipt = '{"link": {"rtt_at_rest_ns": {"p50": "soon"}}}'""",
    "receipt-list": "UPDATE trial SET receipt = '[]' WHERE number = 0",
    "receipt-session": "UPDATE trial SET receipt = json_remove(receipt, '$.session.peer_address') WHERE number = 0",
    "environment-shape": "UPDATE run SET environment = json_set(environment, '$.placement', 7)",
    "receipt-deep": f"UPDATE trial SET receipt = '{DEEP}' WHERE number = 0",
    "histogram-broken": "UPDATE histogram SET data = x'1c8493041234'",
    "event-confirming": "INSERT INTO event VALUES (1, 'confirming: nonsense')",
    "event-resumed": """INSERT INTO event VALUES (1, 'resumed: {"trial": "x"}')""",
}
"""Values that no run can have."""

COUNTS = {
    "two-runs": "INSERT INTO run SELECT * FROM run",
    "no-run": "DELETE FROM run",
    "no-arms": "DELETE FROM arm",
    "arm-elsewhere": "UPDATE arm SET place = 13 WHERE place = 0",
    "no-such-arm": "UPDATE trial SET arm = 'another' WHERE number = 1",
    "no-such-trial": "DELETE FROM trial WHERE number = 3",
}

ENDLESS = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n)"
SCHEMAS = {
    "endless-view": f"DROP TABLE event; CREATE VIEW event AS {ENDLESS} SELECT i AS unix_ns, 'x' AS what FROM n",
    "trigger": "CREATE TRIGGER slow AFTER INSERT ON event BEGIN INSERT INTO event SELECT 1, 'x' FROM trial; END",
    "column-less": "ALTER TABLE trial DROP COLUMN told",
    "column-more": "ALTER TABLE event ADD COLUMN why TEXT",
    "table-less": "DROP TABLE interval",
}

DAMAGES = [
    *(pytest.param(sql, id=f"file-2-{name}") for name, sql in CONTRADICTIONS.items()),
    *(pytest.param(sql, id=f"file-3-{name}") for name, sql in IMPOSSIBLE.items()),
    *(pytest.param(sql, id=f"file-5-{name}") for name, sql in SCHEMAS.items()),
    *(pytest.param(sql, id=f"file-6-{name}") for name, sql in COUNTS.items()),
]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Run]:
    """A small run in today's format, with checksums."""
    return in_todays_format(SMALL, tmp_path_factory.mktemp("whole") / "whole.howfar")


@pytest.fixture
def today(whole: tuple[Path, Run], tmp_path: Path) -> Path:
    return Path(shutil.copy(whole[0], tmp_path / "run.howfar"))


@pytest.fixture
def old(tmp_path: Path) -> Path:
    return recorded(SMALL, tmp_path / "old.howfar")


def said(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str]:
    code = run_command_line([*words])
    shown = capsys.readouterr()
    return code, shown.err


@pytest.mark.parametrize("sql", DAMAGES)
@pytest.mark.parametrize("made", ["today", "old"])
def test_what_a_whole_file_cannot_hold_is_damage(
    made: str, sql: str, request: pytest.FixtureRequest, capsys: pytest.CaptureFixture[str]
) -> None:
    path: Path = request.getfixturevalue(made)
    execute(path, sql)
    code, error = said(capsys, "report", str(path), "--json")
    assert code == RunFileError.exit_code, error
    assert "damaged" in error


@pytest.mark.parametrize(
    "sql",
    [
        "UPDATE run SET seed = seed + 1",
        "UPDATE arm SET name = 'renamed' WHERE place = 1; UPDATE trial SET arm = 'renamed' WHERE arm LIKE '%again%'",
        "UPDATE cpu SET cpu_ns = cpu_ns + 1 WHERE trial = 2 AND place = 0",
        "UPDATE trial SET bytes_to_server = bytes_to_server + 1 WHERE number = 4",
        "DELETE FROM trial WHERE number = (SELECT max(number) FROM trial)",
        "INSERT INTO event VALUES (1, 'created')",
        "UPDATE trial SET checksum = NULL",
        "UPDATE run SET checksum = NULL",
        "PRAGMA user_version = 6",
        "PRAGMA user_version = 3",
        "PRAGMA user_version = 0",
    ],
)
def test_checksums_notice_what_nothing_contradicts(sql: str, today: Path) -> None:
    """[file-2] Checksums cover everything that is read: head, arms, events, each trial with its parts, and the list of trials."""
    execute(today, sql)
    for read in (read_run, RunFile):
        with pytest.raises(RunFileError):
            read(today)


@pytest.mark.parametrize(
    "sql",
    [
        "UPDATE run SET environment = json_set(environment, '$.cpus', 'x')",
        "UPDATE run SET plan = json_set(plan, '$.timing', 7)",
    ],
)
def test_a_value_of_an_old_file_that_makes_no_report_is_no_bug(
    sql: str, old: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """[file-3] Without checksums, a wrong shape deep in such a value shows only when it is used."""
    execute(old, sql)
    code, error = said(capsys, "report", str(old), "--json")
    assert code in (0, RunFileError.exit_code), error
    assert "no checksums" in error


def test_a_whole_file_has_no_note(today: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert said(capsys, "report", str(today), "--json") == (0, "")


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda path: path.write_bytes(path.read_bytes()[: path.stat().st_size * 2 // 3]), "is damaged"),
        (lambda path: path.write_bytes(b""), "is empty"),
        (lambda path: path.write_bytes(b"X" + path.read_bytes()[1:]), "its beginning is damaged"),
    ],
    ids=["cut", "empty", "header"],
)
def test_the_advice_fits_what_is_known_of_the_file(
    change: Callable[[Path], object], says: str, today: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """[file-7]"""
    change(today)
    code, error = said(capsys, "report", str(today))
    assert (code, says in error) == (RunFileError.exit_code, True), error


@pytest.mark.parametrize("command", [["report"], ["compare", "{}"], ["resume"], ["confirm"], ["predict"], ["replay"]])
def test_a_pipe_is_refused_before_it_is_opened(
    command: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """[file-8]"""
    pipe = tmp_path / "pipe.howfar"
    os.mkfifo(pipe)
    code, error = said(capsys, *(word.format(pipe) for word in command), str(pipe))
    assert code == RunFileError.exit_code
    assert "not a regular file" in error


def test_a_name_goes_through_as_the_system_has_it(today: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """[file-9]"""
    odd = Path(os.fsdecode(os.fsencode(today.parent) + b"/not-utf-8-\xff ?#%.howfar"))
    today.rename(odd)
    assert said(capsys, "report", str(odd))[0] == 0
    RunFile(odd).close()


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Recording]:
    """A recording of 20 pages, with its checksum."""
    path = tmp_path_factory.mktemp("kept") / "shop.recording"
    steps = [Step("SELECT id FROM shop", keys) for keys in (0, 1)] + loop(5)
    return path, made(path, steps, pages=20, connect=True)


@pytest.fixture
def recording(kept: tuple[Path, Recording], tmp_path: Path) -> Path:
    return Path(shutil.copy(kept[0], tmp_path / "shop.recording"))


@pytest.mark.parametrize(
    "sql",
    [
        pytest.param("UPDATE round_trips SET ended_ns = ended_ns + 1 WHERE id = 3", id="file-2-time"),
        pytest.param("UPDATE digests SET text = 'SELECT 1'", id="file-2-statement"),
        pytest.param("UPDATE facts SET value = '0' WHERE name = 'floor_ns'", id="file-2-fact"),
        pytest.param("UPDATE pages SET name = 'other' WHERE id = 1", id="file-2-page"),
        pytest.param("DELETE FROM facts WHERE name = 'checksum'", id="file-2-checksum"),
        pytest.param("UPDATE facts SET value = '{' WHERE name = 'complete'", id="file-3-json"),
        pytest.param(f"UPDATE facts SET value = '{DEEP}' WHERE name = 'complete'", id="file-3-deep"),
        pytest.param(f"DROP TABLE pages; CREATE VIEW pages AS {ENDLESS} SELECT i AS id FROM n", id="file-5-view"),
        pytest.param("PRAGMA user_version = 0", id="file-3-format"),
    ],
)
def test_a_damaged_recording_is_refused(sql: str, recording: Path, capsys: pytest.CaptureFixture[str]) -> None:
    execute(recording, sql)
    for command in (["report"], ["predict", "--path", "tcp"], ["replay", "--path", "tcp"]):
        code, error = said(capsys, *command, str(recording))
        assert (code, "is damaged" in error) == (RunFileError.exit_code, True), error


@pytest.mark.parametrize(
    "sql",
    [
        "UPDATE round_trips SET sent_ns = begun_ns - 1 WHERE id = 3",
        "UPDATE round_trips SET digest_id = 99 WHERE id = 3",
        "UPDATE round_trips SET phase = 'other' WHERE id = 3",
        "UPDATE pages SET ended_ns = begun_ns - 1 WHERE id = 1",
        "UPDATE pages SET confidence = 9e999 WHERE id = 1",
    ],
)
def test_a_recording_without_an_end_is_checked_for_what_cannot_be(sql: str, recording: Path) -> None:
    """[file-3] A recording left by a killed recorder has no checksum."""
    execute(
        recording, "DELETE FROM facts WHERE name = 'checksum'; UPDATE facts SET value = 'false' WHERE name = 'complete'"
    )
    assert not read_recording(recording).is_verified
    execute(recording, sql)
    with pytest.raises(NotARunFile, match="is impossible"):
        read_recording(recording)


@pytest.mark.parametrize("form", [[], ["--json"], ["--md"]], ids=str)
def test_a_recording_is_shown_again(form: list[str], recording: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """[file-12]"""
    assert run_command_line(["report", str(recording), *form]) == 0
    assert "front" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("command", "file", "says"),
    [
        (["compare", "{run}", "{recording}"], "recording", "is a recording, not a run file"),
        (["resume", "{recording}"], "recording", "is a recording, not a run file"),
        (["confirm", "{recording}"], "recording", "is a recording, not a run file"),
        (["predict", "{run}", "--path", "tcp"], "run", "is a run file, not a recording"),
        (["replay", "{run}", "--path", "tcp"], "run", "is a run file, not a recording"),
        (["run", "{recording}"], "recording", "is a recording, not a plan"),
        (["run", "{run}"], "run", "is a run file, not a plan"),
        (["plans", "{recording}"], "recording", "is a recording, not a plan"),
        (
            ["record", "--pcap", "{recording}", "--server", "10.0.0.1:5432"],
            "recording",
            "is a recording, not a capture",
        ),
        (["predict", "{recording}", "--path", "tcp", "--measured", "{run}"], "run", "is a run file"),
        (["load", "mysql://u@127.0.0.1:1/d", "--workload={run}"], "run", "is a run file"),
        (["report", "{page}"], "page", "is an HTML page, not a run file"),
        (["report", "{json}"], "json", "is JSON, not a run file"),
    ],
)
def test_each_file_that_howfar_writes_is_recognised(
    command: list[str], file: str, says: str, today: Path, recording: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """[file-12]"""
    page, facts = today.with_suffix(".html"), today.with_suffix(".json")
    page.write_text("<!DOCTYPE html>\n<html>")
    facts.write_text('{"report_version": 1}' + " " * 1000)
    files = {"run": today, "recording": recording, "page": page, "json": facts}
    code, error = said(capsys, *(word.format(**files) for word in command))
    assert code in (2, RunFileError.exit_code), error
    assert f"{files[file]} {says}" in error


Reader = Callable[[Path], object]


def tally(path: Path, read: Reader, count: int, seed: int) -> Counter[str]:
    """Count the outcomes of random damage: refused, or the same as before. Any other outcome is named."""
    content, known, found = path.read_bytes(), read(path), Counter[str]()
    for number in range(count):
        damage = KINDS[number % len(KINDS)]
        path.write_bytes(content)
        damage(path, random.Random(f"{seed}/{number}"))
        try:
            now = read(path)
        except RunFileError as error:
            assert error.message and error.advice, "says what, and what to do"
            found["refused"] += 1
        except Exception as error:
            found[f"bug by {damage.__name__}, {number}: {error!r}"] += 1
        else:
            found["the same" if now == known else f"another by {damage.__name__}, {number}"] += 1
    return found


@pytest.mark.parametrize("count", [100, pytest.param(1000, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    ("made_of", "read"), [("today", read_run), ("recording", read_recording)], ids=["run", "recording"]
)
def test_random_damage_is_noticed_or_harmless(
    made_of: str, read: Reader, count: int, request: pytest.FixtureRequest
) -> None:
    """[file-3] A file that reads the same gives the same report; one that reads differently would silently change figures."""
    found = tally(request.getfixturevalue(made_of), read, count, seed=count)
    assert set(found) <= {"refused", "the same"}, found
    assert found["refused"] > count / 2, "most of it does harm"


@pytest.mark.slow
def test_random_damage_of_an_old_file_is_no_bug(old: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """[file-3] An old file has no checksums, so a figure that changed comes with a note that says so."""
    content = old.read_bytes()
    for number in range(100):
        old.write_bytes(content)
        KINDS[number % len(KINDS)](old, random.Random(number))
        code, error = said(capsys, "report", str(old), "--json")
        assert code == RunFileError.exit_code or (code == 0 and "no checksums" in error), (number, code, error)


def test_other_files_are_no_run_files(tmp_path: Path) -> None:
    other = tmp_path / "notes.txt"
    other.write_text("text " * 1000)
    with pytest.raises(NotARunFile, match="is not a howfar run file"):
        read_run(other)
