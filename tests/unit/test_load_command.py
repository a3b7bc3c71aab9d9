"""`howfar load` as a command, with a made-up engine in place of the real one: exit codes, files, where a password goes."""

from __future__ import annotations

import io
import json
import os
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any, Literal

import pytest
from tests.rarely import rarely_but
from tests.unit import fake_load
from tests.unit.test_other_programs import BUSY, ScriptedWatch

from howfar.address import Secret, ServerAddress
from howfar.cli.load import find_login, write_file
from howfar.cli.main import run_command_line
from howfar.cli.target import numeric_target
from howfar.contract.message import Message
from howfar.contract.messages import (
    Failed,
    TablesDone,
    TablesProgress,
    TcpTarget,
)
from howfar.contract.receipt import ProgramUse
from howfar.engine.process import engine_info
from howfar.errors import EngineError, RunFileError, UsageError
from howfar.load.cmdline import parse_command_line
from howfar.load.result import Result
from howfar.load.search import Goal, RateTrial
from howfar.load.verdict import Stamp
from howfar.other_programs import busiest

SECRET = "correct-horse-7"
SERVER = f"mysql://{fake_load.SOCKET}?user=u&db=d"


@pytest.fixture(autouse=True)
def _alone(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in ("HOWFAR_PASSWORD", "MYSQL_PWD", "HOWFAR_SOCKET", "HOWFAR_HOST", "HOWFAR_PASSWORD_FILE"):
        monkeypatch.delenv(name, raising=False)
    run_beside(monkeypatch, [])
    engine_info.cache_clear()
    yield
    engine_info.cache_clear()


def run_beside(monkeypatch: pytest.MonkeyPatch, script: Sequence[tuple[ProgramUse, ...] | None]) -> None:
    """Run loads beside other programs that are busy as the script says, one entry for each load; then on a quiet machine."""
    watch = ScriptedWatch(script)
    monkeypatch.setattr("howfar.cli.load.watching_programs", lambda measured: nullcontext(watch))


def run(folder: Path, monkeypatch: pytest.MonkeyPatch, *arguments: str, events: list[Message] | None = None) -> int:
    events = fake_load.events(fake_load.job()) if events is None else events
    monkeypatch.setenv("HOWFAR_ENGINE", str(fake_load.fake_engine(folder, events)))
    return run_command_line(["load", SERVER, *arguments])


def given(folder: Path) -> dict[str, Any]:
    job: dict[str, Any] = json.loads((folder / "given.stdin").read_text())
    return job


def test_a_load_that_goes_well(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HOWFAR_PASSWORD", SECRET)
    assert run(tmp_path, monkeypatch, "oltp_read_write", "--threads=2", "--debug", "--report-interval=1") == 0
    out, err = capsys.readouterr()
    assert "100 transactions/s in a closed loop" in out and "no other problem found" in out
    assert f"Unix socket {fake_load.SOCKET}, user u, database d, no TLS, no compression" in err
    assert "--debug has no effect" in err
    assert out.count(" transactions/s  ") == 10, "a line for each interval"
    assert (given(tmp_path)["password"], given(tmp_path)["user"]) == (SECRET, "u")


@pytest.mark.parametrize("source", ["--password-file", "HOWFAR_PASSWORD", "MYSQL_PWD", "--defaults-file"])
def test_a_password_reaches_the_engine_and_nothing_else(
    source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    secret = tmp_path / "secret"
    secret.write_text(f"[client]\npassword={SECRET}\n" if source == "--defaults-file" else f"{SECRET}\n")
    secret.chmod(0o600)
    arguments = [f"{source}={secret}"] if source.startswith("--") else []
    if not arguments:
        monkeypatch.setenv(source, SECRET)
    prometheus, log = tmp_path / "load.prom", tmp_path / "load.hlog"
    files = [f"--prometheus={prometheus}", f"--hdr-log={log}"]
    assert run(tmp_path, monkeypatch, "oltp_read_write", "--json", *arguments, *files) == 0
    out, err = capsys.readouterr()
    assert given(tmp_path)["password"] == SECRET
    for shown in (out, err, (tmp_path / "given.args").read_text(), prometheus.read_text(), log.read_text()):
        assert SECRET not in shown
    assert (tmp_path / "given.args").read_text() == "load\n"
    lines = [json.loads(line) for line in out.splitlines()]
    assert [lines[0]["event"], lines[1]["event"], lines[-2]["event"], lines[-1]["event"]] == [
        "job", "ready", "finished", "summary"
    ]  # fmt: skip


def test_a_password_file_that_others_can_read_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    secret = tmp_path / "secret"
    secret.write_text(SECRET)
    secret.chmod(0o644)
    assert run(tmp_path, monkeypatch, "oltp_read_only", f"--password-file={secret}") == 0
    assert "other users of this machine can read" in capsys.readouterr().err


def test_void_has_an_exit_code_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    events = fake_load.events(fake_load.job(), compression="zlib")
    assert run(tmp_path, monkeypatch, "oltp_read_only", events=events) == 7
    assert "no compression was requested, but zlib was obtained" in capsys.readouterr().out


def test_a_load_that_fails_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    failed = Failed(code="server_error", message="preparing: error 1461 (42000): too many", advice="Raise it.")
    assert run(tmp_path, monkeypatch, "oltp_point_select", "--threads=9", "--tables=3", events=[failed]) == 5
    assert "SET GLOBAL max_prepared_stmt_count = 27;" in capsys.readouterr().err
    assert run(tmp_path, monkeypatch, "oltp_point_select", "--json", events=[failed]) == 5
    last = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert (last["event"], last["code"]) == ("failed", "server_error")


def test_what_the_engine_cannot_use_of_what_was_given_is_the_user_s_mistake(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    failed = Failed(
        code="bad_job", message="reading certificates from ca.pem failed: it holds none", advice="Name one."
    )
    assert run(tmp_path, monkeypatch, "oltp_point_select", events=[failed]) == 2


@pytest.mark.parametrize(("code", "exit_code"), [("connect", 10), ("tls", 10), ("auth", 11), ("protocol", 5)])
def test_what_stands_in_the_way_of_a_load_has_the_exit_codes_of_a_target(
    code: Literal["connect", "tls", "auth", "protocol"], exit_code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    failed = Failed(code=code, message="no", advice="Try.")
    assert run(tmp_path, monkeypatch, "oltp_point_select", events=[failed]) == exit_code


@pytest.mark.parametrize("code", ["server_gone", "stalled"])
def test_a_load_that_fails_prints_its_partial_result(
    code: Literal["server_gone", "stalled"],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    events = [
        *fake_load.events(fake_load.job())[:5],
        Failed(code=code, message="the server is gone", advice="Start it."),
    ]
    assert run(tmp_path, monkeypatch, "oltp_read_write", events=events) == 5
    out, err = capsys.readouterr()
    assert err.index("failed after 3 s of the window: not a result") < err.index("the server is gone")
    assert "300 transactions" in err and "How sure" not in out
    assert run(tmp_path, monkeypatch, "oltp_read_write", "--json", events=events) == 5
    last = [json.loads(line) for line in capsys.readouterr().out.splitlines()[-2:]]
    assert [line["event"] for line in last] == ["partial", "failed"]
    assert last[0]["transactions"] == 300


def test_a_workload_of_ones_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(tmp_path, monkeypatch, "--workload=orders", "--tables=3", "--rand-seed=4", "--db-ps-mode=disable") == 0
    out, err = capsys.readouterr()
    assert "\norders · " in out
    assert "--tables has no effect with --workload" in err and "--rand-seed" not in err
    workload = given(tmp_path)["workload"]
    assert (workload["kind"], workload["db_ps_mode"], given(tmp_path)["seed"]) == ("custom", "disable", 4)


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["oltp_read_only", "--tabels=1"],
        ["oltp_read_only", "--mysql-password=x"],
        ["oltp_read_only", "--mysql-host=h"],
        ["oltp_read_only", "--search=p99"],
        ["oltp_read_only", "--search=p99<1ms", "--rate=5"],
        ["--workload=/nonexistent.toml"],
        ["oltp_read_only", "--password-file=/nonexistent"],
        ["oltp_read_only", "--ask-password"],
    ],
)
def test_mistakes_start_no_engine(arguments: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO())  # no terminal to ask on
    assert run(tmp_path, monkeypatch, *arguments) == 2
    assert not (tmp_path / "given.args").exists()


def test_a_pause_that_would_be_left_out_is_the_users_mistake(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The shop of `orders` has a pause. The built engine rejects it."""
    assert run(tmp_path, monkeypatch, "--workload=orders", "--db-ps-mode=multi") == 2
    assert not (tmp_path / "given.args").exists()
    err = capsys.readouterr().err
    assert "needs statements that are sent one at a time" in err and "Traceback" not in err
    assert run(tmp_path, monkeypatch, "--workload=orders") == 0


@pytest.mark.parametrize("option", ["--prometheus", "--hdr-log"])
@pytest.mark.parametrize("name", ["none/x", "folder"])
def test_a_file_that_cannot_be_written_is_told_before_the_load(
    option: str, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "folder").mkdir()
    assert run(tmp_path, monkeypatch, "oltp_read_only", f"{option}={tmp_path / name}") == 6
    assert not (tmp_path / "given.args").exists()


def test_sysbenchs_report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = [
        "oltp_read_write",
        "--threads=2",
        "--report=sysbench",
        "--report-interval=1",
        "--rand-seed=7",
        "--histogram",
    ]
    assert run(tmp_path, monkeypatch, *arguments) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("howfar ")
    assert "Initializing random number generator from seed (7)." in lines
    assert "Threads started!" in lines
    assert sum(line.startswith("[ ") for line in lines) == 10
    assert "    transactions:                        1000   (100.00 per sec.)" in lines
    assert "Latency histogram (values are in milliseconds)" in lines
    assert given(tmp_path)["seed"] == 7


def test_tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    events: list[Message] = [
        TablesProgress(done=0, total=10, doing="Creating table 'sbtest1'..."),
        TablesProgress(done=5, total=10, doing="Inserting 10 records into 'sbtest1'"),
        TablesProgress(done=9, total=10, doing="Inserting 10 records into 'sbtest1'"),
        TablesDone(rows=10, elapsed_ns=10**9),
    ]
    assert run(tmp_path, monkeypatch, "oltp_read_write", "--table-size=10", "prepare", events=events) == 0
    assert capsys.readouterr().out.splitlines() == [
        "Creating table 'sbtest1'...",
        "Inserting 10 records into 'sbtest1' (50 % of all rows)",
        "Inserting 10 records into 'sbtest1' (90 % of all rows)",
        "prepare done: 10 rows in 1 s",
    ]
    assert (tmp_path / "given.args").read_text() == "tables\n"
    assert given(tmp_path)["action"] == "prepare"


def test_a_search(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """The made-up engine answers every rate alike, with a p99 of 10.9 ms."""
    assert (
        run(tmp_path, monkeypatch, "oltp_read_only", "--search=p99<20ms", "--search-low=50", "--search-high=100") == 0
    )
    out = capsys.readouterr().out
    assert "At least 100 transactions/s: no rate up to that missed p99 < 20ms." in out
    assert "open loop, 100 transactions/s due" in out, "the report of the rate that was found"
    assert run(tmp_path, monkeypatch, "oltp_read_only", "--search=p99<1ms", "--search-low=50") == 0
    assert "Less than " in capsys.readouterr().out


@pytest.mark.parametrize(("layout", "first_line"), [("sysbench", "SQL statistics:"), ("pgbench", "transaction type: ")])
def test_a_search_says_above_a_borrowed_layout_what_it_found(
    layout: str, first_line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["oltp_read_only", "--search-low=50", "--search-high=100", f"--report={layout}"]
    assert run(tmp_path, monkeypatch, *arguments, "--search=p99<20ms") == 0
    lines = capsys.readouterr().out.splitlines()
    (found,) = (number for number, line in enumerate(lines) if line.startswith("At least 100 transactions/s"))
    assert not lines[found - 1] and lines[found + 1].startswith(first_line)
    assert lines[found - 2].startswith("trial "), "below the last trial"
    assert run(tmp_path, monkeypatch, *arguments, "--search=p99<1ms") == 0
    assert capsys.readouterr().out.count("Less than ") == 1


@pytest.mark.parametrize("layout", ["sysbench", "pgbench", "human"])
def test_a_search_with_a_client_short_of_cpu_says_so_in_every_layout(
    layout: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    trials: list[float] = []

    def judge(result: Result, goal: Goal, rate: float) -> RateTrial:
        trials.append(rate)
        return RateTrial(rate, 1, False, f"2.00 ms, {Stamp.CLIENT_LIMITED}" if rate > 150 else "")

    monkeypatch.setattr("howfar.cli.load.judge_trial", judge)
    arguments = ["oltp_read_only", "--search=p99<1ms", "--search-low=100", f"--report={layout}"]
    assert run(tmp_path, monkeypatch, *arguments) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "the highest rate that met p99 < 1ms" in out
    assert f"{len(trials)} trials" in out and "this client was short of CPU" in out


@pytest.mark.parametrize("layout", ["sysbench", "pgbench", "human"])
def test_a_program_that_disturbs_a_load_is_named_in_every_layout(
    layout: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run_beside(monkeypatch, [BUSY])
    assert run(tmp_path, monkeypatch, "oltp_read_only", f"--report={layout}") == 0
    output = capsys.readouterr()
    assert f"{busiest(BUSY)} meanwhile" in " ".join((output.out + output.err).split())
    run_beside(monkeypatch, [BUSY])
    assert run(tmp_path, monkeypatch, "oltp_read_only", "--json") == 0
    summary = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert "disturbed" in summary["stamps"]
    assert summary["other_programs"] == [{"name": "cargo", "pid": 4711, "cpus": 1.0}]


def test_a_search_names_the_program_that_disturbed_a_trial_that_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run_beside(monkeypatch, [BUSY] * 2)
    assert run(tmp_path, monkeypatch, "oltp_read_only", "--search=p99<1ms", "--search-low=50") == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "fails: 10.9 ms, disturbed" in out
    assert f"in a trial that failed, {busiest(BUSY)}" in out and "such as cargo (pid 4711), and search again" in out
    run_beside(monkeypatch, [BUSY] * 100)
    assert run(tmp_path, monkeypatch, "oltp_read_only", "--search=p99<20ms", "--search-low=50", "--search-high=50") == 0
    assert "search again" not in capsys.readouterr().out, "no trial failed"


@pytest.mark.slow
@pytest.mark.parametrize("number", rarely_but([signal.SIGINT], [signal.SIGINT, signal.SIGTERM, signal.SIGHUP]))
def test_an_interrupted_load_leaves_a_partial_answer_and_no_engine(number: signal.Signals, tmp_path: Path) -> None:
    """[rec-15] Whatever the signal."""
    events = fake_load.events(fake_load.job())[:5]
    engine = fake_load.fake_engine(tmp_path, events, then="echo $$ > pid.new; mv pid.new pid; exec sleep 1000")
    source = "import sys; from howfar.cli.main import run_command_line; sys.exit(run_command_line(sys.argv[1:]))"
    process = subprocess.Popen(
        [sys.executable, "-c", source, "load", SERVER, "oltp_read_write", "--report-interval=1"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "HOWFAR_ENGINE": str(engine)},
    )
    assert process.stdout is not None
    for _ in range(3):
        assert "transactions/s" in process.stdout.readline(), "three intervals are shown while it goes on"
    process.send_signal(number)
    out, err = process.communicate(timeout=120)
    assert process.returncode == 128 + number, err
    assert "not a result" in err and "300 transactions" in err
    assert "How sure" not in out
    if (tmp_path / "pid").exists():
        with pytest.raises(ProcessLookupError):
            os.kill(int((tmp_path / "pid").read_text()), 0)


# ---------------------------------------------------------------- where the server is


def test_the_laboratory_is_the_default_where_it_is(tmp_path: Path) -> None:
    notes: list[str] = []
    secret = tmp_path / "password"
    secret.touch(mode=0o600)
    secret.write_text("of-the-laboratory")
    inside = {
        "HOWFAR_SOCKET": "/lab.sock",
        "HOWFAR_USER": "howfar",
        "HOWFAR_DATABASE": "sbtest",
        "HOWFAR_PASSWORD_FILE": str(secret),
        "HOWFAR_PASSWORD": "of-another-server",
    }
    login = find_login(parse_command_line(["oltp_read_only"]), notes.append, inside)
    assert (login.address.socket, login.address.user) == ("/lab.sock", "howfar")
    assert login.password == Secret("of-the-laboratory")
    assert notes == ["using the server and account of `howfar lab`"]
    other = find_login(parse_command_line(["mysql://u@192.0.2.1", "oltp_read_only"]), notes.append, inside)
    assert other.address.host == "192.0.2.1" and other.address.user == "u"
    assert other.password == Secret("of-another-server")


def test_a_laboratory_with_postgresql_is_spoken_to_as_such(tmp_path: Path) -> None:
    notes: list[str] = []
    secret = tmp_path / "pgpass"
    secret.touch(mode=0o600)
    secret.write_text("*:*:*:*:of-the-laboratory\n")
    inside = {
        "HOWFAR_PROTOCOL": "postgresql",
        "HOWFAR_HOST": "10.77.0.2",
        "HOWFAR_PORT": "5432",
        "HOWFAR_USER": "howfar",
        "HOWFAR_PASSWORD": "of-another-server",
        "PGHOST": "10.77.0.2",
        "PGPORT": "5432",
        "PGUSER": "howfar",
        "PGDATABASE": "sbtest",
        "PGPASSFILE": str(secret),
        "PGSSLMODE": "disable",
    }
    login = find_login(parse_command_line(["oltp_read_only"]), notes.append, inside)
    assert (login.address.protocol, login.address.host, login.address.port) == ("postgresql", "10.77.0.2", 5432)
    assert login.password == Secret("of-the-laboratory")
    assert notes == ["using the server and account of `howfar lab`"]


def test_names_and_addresses() -> None:
    assert numeric_target(ServerAddress(host="::1", port=5), lambda _: None) == TcpTarget(host="::1", port=5)
    local = numeric_target(ServerAddress(host="localhost", port=1), lambda _: None) if _single("localhost") else None
    assert local is None or isinstance(local, TcpTarget), "localhost is never the socket"
    with pytest.raises(UsageError, match="longer than 107"):
        numeric_target(ServerAddress(socket="/" + "x" * 108), lambda _: None)


def _single(host: str) -> bool:
    import socket

    return len({entry[4][0] for entry in socket.getaddrinfo(host, 1, type=socket.SOCK_STREAM)}) == 1


def test_of_several_addresses_the_first_that_answers_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """[cli-11] A client that connects by name also waits for the dead addresses, which no figure includes."""
    import socket

    listener = socket.create_server(("127.0.0.1", 0))
    port = listener.getsockname()[1]
    numbers = ("127.0.0.2", "127.0.0.1")
    monkeypatch.setattr("howfar.cli.target.resolve_host", lambda address: numbers)
    notes: list[str] = []
    with listener:
        assert numeric_target(ServerAddress(host="db", port=port), notes.append) == TcpTarget(
            host="127.0.0.1", port=port
        )
    (said,) = notes
    assert said.startswith("db has 2 addresses; 127.0.0.1 is the first that answers, after 0.")
    assert "client that connects by name" in said
    with pytest.raises(EngineError, match=r"127\.0\.0\.2: .*; 127\.0\.0\.1: "):
        numeric_target(ServerAddress(host="db", port=port), notes.append)


def test_files_are_whole_or_not_there(tmp_path: Path) -> None:
    target = tmp_path / "x.prom"
    write_file(target, "a\n")
    write_file(target, "b\n")
    assert target.read_text() == "b\n"
    assert stat.S_IMODE(target.stat().st_mode) == 0o644
    assert [path.name for path in tmp_path.iterdir()] == ["x.prom"]
    with pytest.raises(RunFileError, match="cannot be written"):
        write_file(tmp_path / "none" / "x.prom", "a\n")
    assert not (tmp_path / "none").exists()


def test_the_help_has_every_option_under_its_group(capsys: pytest.CaptureFixture[str]) -> None:
    from howfar.load.options import GROUPS, OPTIONS

    assert run_command_line(["load", "--help"]) == 0
    out = capsys.readouterr().out
    for group in GROUPS:
        assert f"\n{group}:\n" in out
    for option in OPTIONS:
        assert option.same_as or f"--{option.name}" in out


@pytest.mark.parametrize("words", [["oltp_read_only"], ["oltp_read_only", "--mysql-port=3307"]])
def test_a_server_by_default_is_reached_otherwise_than_by_sysbench_and_that_is_said(words: list[str]) -> None:
    """[cli-6]"""
    notes: list[str] = []
    with suppress(EngineError):
        find_login(parse_command_line(words), notes.append, {})
    assert any("sysbench takes the socket" in note for note in notes), notes
