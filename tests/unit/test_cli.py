"""The command line on the fake laboratory: exit codes, messages, files, widths. No process, no namespace."""

from __future__ import annotations

import csv
import errno
import json
import os
import pwd
import re
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import click
import pytest
from jsonschema import Draft202012Validator
from tests.rarely import rarely_but
from tests.shipped import skip_without
from tests.unit.fake_lab import FakeEngine, FakeLaboratory, fakes
from tests.unit.rendered import GOLDEN, is_golden

from howfar.cli import session
from howfar.cli.exit_codes import EXIT_CODES
from howfar.cli.main import cli, run_command_line
from howfar.contract.messages import LoadJob
from howfar.engine.process import engine_info
from howfar.errors import LabError, MissingError, SandboxForbidden, ServerMissing
from howfar.lab.cache import cache_home, work_directory
from howfar.store.records import FORMAT_VERSION
from howfar.store.run_file import read_run

PROGRAM = "import sys; from howfar.cli import main; sys.exit(main())"
Howfar = Callable[..., tuple[int, str, str]]


@pytest.fixture
def laboratory(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> tuple[FakeLaboratory, FakeEngine]:
    """The fake laboratory and engine of the runs in these tests, which start in an empty directory."""
    fake, engine, instruments = fakes()
    from contextlib import nullcontext

    monkeypatch.setattr(session, "check_machine", lambda plan: None)
    monkeypatch.setattr(session, "enter_sandbox", lambda leave: None)
    monkeypatch.setattr(session, "open_testbed", lambda plan, begins: nullcontext(fake))
    monkeypatch.setattr(session, "instruments", lambda: instruments)
    monkeypatch.setattr("time.monotonic_ns", fake.clock)
    monkeypatch.setattr(
        "howfar.lab.idle.polling_obstacle", lambda: None
    )  # whether or not this kernel has an idle driver
    monkeypatch.setattr("howfar.report.html._draw", lambda *_: "<svg></svg>")  # commands are tested, not pictures
    monkeypatch.chdir(tmp_path)
    return fake, engine


@pytest.fixture
def howfar(capsys: pytest.CaptureFixture[str]) -> Howfar:
    def call(*arguments: str) -> tuple[int, str, str]:
        code = run_command_line(arguments)
        captured = capsys.readouterr()
        assert "Traceback" not in captured.out + captured.err or os.environ.get("HOWFAR_DEBUG")
        return code, captured.out, captured.err

    return call


Lab = tuple[FakeLaboratory, FakeEngine]


def test_run_reports_and_leaves_two_files(laboratory: Lab, howfar: Howfar, tmp_path: Path) -> None:
    code, out, err = howfar("run", "paths", "--quick", "--seed", "5")
    assert code == 0, err
    files = sorted(tmp_path.iterdir())
    assert [path.suffix for path in files] == [".howfar", ".html"]
    assert all(path.name.startswith("howfar-paths-") for path in files)
    run = read_run(files[0])
    assert (run.info.seed, run.info.command) == (5, ("howfar", "run", "paths", "--seed", "5"))
    for word in (
        "forwarded-socket",
        "0.25",
        files[0].name,
        files[1].name,
        "The full plan:      howfar run paths --full\n",
    ):
        assert word in out, word
    assert "after block 8 of about 8" in err
    assert re.search(r"^Done in .* s, 8 blocks: every interval is as narrow as requested\.$", err, re.MULTILINE)
    assert "\x1b" not in out + err


def test_options_reach_the_run(laboratory: Lab, howfar: Howfar, tmp_path: Path) -> None:
    options = ["--rtt", "10ms", "--rate", "100mbit", "--threads", "4", "--placement", "machines", "--target", "8%"]
    code, _, err = howfar("run", "--quick", *options, "--out", "x.howfar", "--html", "y.html")
    assert code == 0, err
    run = read_run(tmp_path / "x.howfar")
    assert (tmp_path / "y.html").exists()
    remote = next(arm for arm in run.info.arms if arm.name == "remote")
    assert remote.factors == {
        "path": "remote",
        "threads": 4,
        "placement": "machines",
        "server": "mariadb",
        "rtt_ns": 10_000_000,
        "rate_bps": 100_000_000,
        "idle": "polling",
    }
    assert {job.connections for job in laboratory[1].jobs} == {4, 1}, "one: the pair of controls"
    assert run.info.plan["timing"]["target_half_width"] == 0.08
    assert set(options) < set(run.info.command)


BAD = [
    (("run", "nope"), 2, "there is no plan 'nope'", "paths"),
    (("run", "no.toml"), 2, "cannot read the plan no.toml", "howfar plans"),
    (("run", "--rtt", "10"), 2, "--rtt 10: '10' is not a duration", "--rtt"),
    (("run", "--rtt", "nan"), 2, "'nan' is not a duration", "--rtt"),
    (("run", "--rtt=-1ms"), 2, "never negative", "--rtt"),
    (("run", "--rtt", "1min"), 2, "more than 10s", "--rtt"),
    (("run", "--rate", "fast"), 2, "--rate fast: 'fast' is not a rate", "--rate"),
    (("run", "--rate", "0gbit"), 2, "a rate of zero carries nothing", "--rate"),
    (("run", "--rate", "1kbit"), 2, "less than 1mbit", "--rate"),
    (("run", "--threads", "0"), 2, "--threads 0: at least one connection", "--threads"),
    (("run", "--threads", "two"), 2, "'two' is not a valid integer", "--help"),
    (("run", "--placement", "moon"), 2, "'moon' is not one of", "--help"),
    (("run", "--seed=-1"), 2, "-1 is not in the range", "--help"),
    (("run", "--time-budget", "20s", "--quick"), 2, "too short", "--time-budget"),
    (("run", "--frobnicate"), 2, "no such option", "--help"),
    (("frobnicate",), 2, "no such command", "howfar help"),
    (("report",), 2, "no run file was named", "--example"),
    (("report", "--example", "moon"), 2, "there is no example run of 'moon'", "paths"),
    (("report", "text.howfar", "--example"), 2, "both the file text.howfar and an example", "Choose"),
    (("report", "no.howfar"), 6, "No such file", "Check"),
    (("resume", "no.howfar"), 6, "No such file", "Check"),
    (("report", "text.howfar"), 6, "not a howfar run file", "howfar run"),
    (("resume", "text.howfar"), 6, "not a howfar run file", "howfar run"),
    (("compare", "text.howfar", "text.howfar"), 6, "not a howfar run file", "howfar run"),
    (("report", "text.howfar", "--md", "--csv"), 2, "more than one format", "--md"),
    (("run", "--out", "text.howfar"), 6, "already exists", "howfar resume"),
    (("run", "--out", "no/where.howfar"), 6, "there is no directory", "--out"),
    (("run", "--quick", "--html", "no/where.html"), 6, "there is no directory no for the HTML page", "name another"),
    (("run", "--quick", "--out", "new.html"), 2, "both the run file and the HTML page", "--html"),
    (("run", "--quick", "--out", "./a.howfar", "--html", "a.howfar"), 2, "both the run file", "--html"),
    (("run", "--quick", "--html", "."), 6, "is a directory", "--html"),
    (("resume", "text.howfar", "--time-budget", "10"), 2, "'10' is not a duration", "--time-budget"),
    (("resume", "text.howfar", "--target", "90%"), 2, "decides nothing", "--target"),
]


@pytest.mark.parametrize(("arguments", "code", "expected", "advice"), BAD)
def test_bad_input_is_answered_with_a_message(
    laboratory: Lab, howfar: Howfar, tmp_path: Path, arguments: tuple[str, ...], code: int, expected: str, advice: str
) -> None:
    (tmp_path / "text.howfar").write_text("no SQLite")
    got, out, err = howfar(*arguments)
    message, _, rest = err.partition("\n")
    assert (got, out) == (code, "")
    assert message.startswith("howfar: ")
    assert expected in message
    assert advice in rest
    assert laboratory[0].staged == [], "nothing is built before the arguments are understood"
    assert [entry.name for entry in tmp_path.iterdir()] == ["text.howfar"]


def test_a_newer_run_file(laboratory: Lab, howfar: Howfar) -> None:
    assert howfar("run", "--quick", "--out", "a.howfar")[0] == 0
    with sqlite3.connect("a.howfar") as db:
        db.execute(f"PRAGMA user_version = {FORMAT_VERSION + 1}")
    for command in ("report", "resume"):
        code, out, err = howfar(command, "a.howfar")
        assert (code, out) == (6, "")
        assert f"format {FORMAT_VERSION + 1}" in err
        assert "newer howfar" in err


def test_ctrl_c_then_resume(laboratory: Lab, howfar: Howfar, tmp_path: Path) -> None:
    _, engine = laboratory

    def interrupt(job: LoadJob) -> None:
        if len(engine.jobs) == 13:
            raise KeyboardInterrupt

    engine.before = interrupt
    code, out, err = howfar("run", "--quick", "--out", "a.howfar")
    assert (code, out) == (130, "")
    assert "12 trials kept in a.howfar" in err
    assert "To continue: howfar resume a.howfar" in err
    code, out, err = howfar("resume", "a.howfar")
    assert code == 0, err
    assert "12 trials done earlier" in err
    assert len(read_run(tmp_path / "a.howfar").trials) == 56
    code, _, err = howfar("resume", "a.howfar")
    assert (code, "Nothing to do: the run is complete" in err) == (0, True)
    assert len(engine.jobs) == 57


def test_an_arm_that_stays_void_is_an_error_of_the_laboratory(laboratory: Lab, howfar: Howfar) -> None:
    laboratory[0].trouble = lambda path, number: ("TLS is on",) if path == "tcp" else ()
    code, out, err = howfar("run", "--quick", "--out", "a.howfar")
    assert (code, out) == (4, "")
    assert "tcp: 6 trials in a row were void, the last because: TLS is on" in err
    assert "howfar resume a.howfar" in err
    code, out, _ = howfar("report", "a.howfar")
    assert code == 0
    assert "TLS is on" in out


def test_a_run_whose_every_trial_was_void_is_exit_7(laboratory: Lab, howfar: Howfar) -> None:
    laboratory[0].trouble = lambda path, number: ("TLS is on",)
    laboratory[0].staging_ns = 20 * 10**9
    code, out, err = howfar("run", "--quick", "--time-budget", "140s", "--out", "a.howfar")
    assert (code, "TLS is on" in out) == (7, True), err
    assert howfar("resume", "a.howfar")[0] == 7, "nothing to do, and still nothing valid"
    assert howfar("report", "a.howfar")[0] == 0


@pytest.mark.parametrize("error", [ServerMissing("no mariadbd", "apt"), MissingError("no engine", "setup")])
def test_what_the_machine_lacks_is_exit_3(
    laboratory: Lab, howfar: Howfar, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, error: MissingError
) -> None:
    def missing(plan: object, begins: object) -> None:
        raise error

    monkeypatch.setattr(session, "open_testbed", missing)
    code, out, err = howfar("run", "--quick")
    assert (code, out, err) == (3, "", f"howfar: {error.message}\n  {error.advice}\n")
    assert list(tmp_path.iterdir()) == []


def test_without_namespaces_the_local_paths_are_measured(
    laboratory: Lab, howfar: Howfar, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def forbidden(leave: object) -> None:
        raise SandboxForbidden("this machine does not let howfar create namespaces", "Run as root.")

    monkeypatch.setattr(session, "enter_sandbox", forbidden)
    code, _, err = howfar("run", "--quick", "--out", "a.howfar")
    assert code == 0
    assert "does not let howfar create namespaces" in err
    assert "Run as root." in err
    assert "Measuring socket and tcp only." in err
    info = read_run(tmp_path / "a.howfar").info
    assert [arm.name for arm in info.arms] == ["socket", "socket (again)", "tcp"]
    (left_out,) = info.environment.not_as_requested
    assert left_out == "left out: path remote, forwarded-socket: this machine does not let howfar create namespaces"


def test_report_formats(laboratory: Lab, howfar: Howfar, tmp_path: Path) -> None:
    assert howfar("run", "--quick", "--out", "a.howfar", "--html", "b.html")[0] == 0
    document = json.loads(howfar("report", "a.howfar", "--json")[1])
    assert next(cell["arm"] for cell in document["cells"]) == "socket"
    assert (
        document["question"]
        == document["answer"]["question"]
        == "What do TCP and a second machine cost, compared with the socket?"
    )
    rows = list(csv.DictReader(howfar("report", "a.howfar", "--csv")[1].splitlines()))
    assert len(rows) == 5
    assert howfar("report", "a.howfar", "--md")[1].startswith(
        "# What do TCP and a second machine cost, compared with the socket?\n\nquick paths"
    )
    assert howfar("report", "a.howfar", "--html")[1] == "a.html\n"
    assert howfar("report", "a.howfar", "--html=c.html")[1] == "c.html\n"
    assert (tmp_path / "a.html").read_text() == (tmp_path / "c.html").read_text()


@pytest.mark.parametrize("columns", [60, 80])
def test_narrow_terminals_without_colour(
    laboratory: Lab, howfar: Howfar, monkeypatch: pytest.MonkeyPatch, columns: int
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setenv("TERM", "dumb")
    monkeypatch.setenv("NO_COLOR", "1")
    assert howfar("run", "--quick", "--out", "a.howfar")[0] == 0
    for command in (
        ("report", "a.howfar"),
        ("report", "a.howfar", "--no-colour"),
        ("compare", "a.howfar", "a.howfar"),
        ("plans",),
    ):
        code, out, err = howfar(*command)
        assert code == 0, err
        assert "\x1b" not in out
        too_long = [line for line in out.splitlines() if len(line) > columns]
        assert not too_long, too_long


def test_compare_says_what_differs(laboratory: Lab, howfar: Howfar) -> None:
    assert howfar("run", "--quick", "--out", "a.howfar")[0] == 0
    laboratory[1].jitter = lambda job: 0.5
    assert howfar("run", "--quick", "--out", "b.howfar", "--threads", "4")[0] == 0
    code, out, _ = howfar("compare", "a.howfar", "b.howfar")
    assert code == 0
    assert out.startswith("Do these two runs give the same result?") and "0.50" in out
    assert "other factor levels" in out and "time per transaction" in out
    code, out, err = howfar("compare", "a.howfar", "a.howfar", "b.howfar")
    assert (code, "two files hold the same run" in err, "third run" in out) == (0, True, True)
    assert howfar("compare", "a.howfar")[0] == 2


def test_a_comparison_in_each_form(laboratory: Lab, howfar: Howfar) -> None:
    assert howfar("run", "--quick", "--out", "a.howfar")[0] == 0
    assert howfar("run", "--quick", "--out", "b.howfar")[0] == 0
    values = json.loads(howfar("compare", "a.howfar", "b.howfar", "--json")[1])
    assert values["question"] == values["answer"]["question"] == "Do these two runs give the same result?"
    assert values["answer"]["sentence"] and [run["file"] for run in values["runs"]] == ["a.howfar", "b.howfar"]
    (compared,) = values["compared_with_first"]
    rows = list(csv.DictReader(howfar("compare", "a.howfar", "b.howfar", "--csv")[1].splitlines()))
    assert [row["arm"] for row in rows] == [arm["arm"] for arm in compared["arms"]]
    assert {row["run"] for row in rows} == {"second"} and all(float(row["ratio"]) > 0 for row in rows)
    assert howfar("compare", "a.howfar", "b.howfar", "--md")[1].startswith("# Do these two runs give the same result?")
    assert howfar("compare", "a.howfar", "b.howfar", "--html")[1] == "a-compared.html\n"
    assert howfar("compare", "a.howfar", "b.howfar", "--html=c.html")[1] == "c.html\n"
    assert howfar("compare", "a.howfar", "b.howfar", "--json", "--md")[0] == 2


def test_the_reports_of_several_runs_are_shown_side_by_side(laboratory: Lab, howfar: Howfar) -> None:
    names = ["a.howfar", "b.howfar", "c.howfar"]
    for name in names:
        assert howfar("run", "--quick", "--out", name)[0] == 0
    answers = [json.loads(howfar("report", name, "--json")[1])["answer"] for name in names]
    code, out, err = howfar("report", *names)
    assert code == 0, err
    words = " ".join(out.split())
    assert all(f"{name}" in words and answer["sentence"] in words for name, answer in zip(names, answers, strict=True))
    assert "second run" in words and "third run" in words
    values = json.loads(howfar("report", *names, "--json")[1])
    assert [run["answer"] for run in values["runs"]] == answers
    assert howfar("report", *names, "--example")[0] == 2


def test_plans_lists_what_and_how_long(howfar: Howfar, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    code, out, _ = howfar("plans")
    assert code == 0
    for word in ("paths", "What do TCP and a second machine cost, ", "--full", "5 min   2.0 h"):
        assert word in out
    assert all(len(line) <= 80 for line in out.splitlines())
    code, out, _ = howfar("plans", "paths")
    assert code == 0
    for word in (
        "socket, tcp, remote, forwarded-socket",
        "By default: 4 min to 5 min",
        "With --full: ",
        "published test",
    ):
        assert word in out


def test_a_bug_is_one_line_and_a_trace(
    laboratory: Lab, howfar: Howfar, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def broken(plan: object, begins: object) -> None:
        raise ZeroDivisionError("oh")

    monkeypatch.setattr(session, "open_testbed", broken)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    code, _, err = howfar("run", "--quick")
    assert code == 70
    assert "a bug in howfar: ZeroDivisionError: oh; the trace is in" in err
    (trace,) = tmp_path.glob("howfar-trace-*.txt")
    assert "ZeroDivisionError" in trace.read_text()
    monkeypatch.setenv("HOWFAR_DEBUG", "1")
    assert "Traceback" in howfar("run", "--quick")[2]


@pytest.mark.parametrize(
    ("arguments", "heavy"),
    [
        (["--help"], ["scipy", "numpy", "altair", "pydantic", "rich"]),
        (["run", "nope"], ["scipy", "numpy", "altair", "vl_convert", "rich"]),
        (["report", "--example", "--csv"], ["altair", "vl_convert"]),  # [cli-9]
    ],
)
def test_a_command_loads_only_what_it_needs(arguments: list[str], heavy: list[str]) -> None:
    script = (
        f"import sys; from howfar.cli.main import run_command_line as r; r({arguments}); "
        f"print([m for m in {heavy} if m in sys.modules])"
    )
    output = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    assert output.endswith("[]\n")
    assert arguments != ["--help"] or "130  interrupted" in output


def test_version(howfar: Howfar) -> None:
    code, out, _ = howfar("--version")
    assert (code, out.splitlines()[0]) == (0, "howfar 0.1.0")
    assert [line.split()[0] for line in out.splitlines()] == ["howfar", "engine", "wheel", "commit", "docs"]


def test_version_without_an_engine(howfar: Howfar, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "howfar-engine").write_text("#!/bin/sh\nexit 2\n")
    (tmp_path / "howfar-engine").chmod(0o755)
    monkeypatch.setenv("HOWFAR_ENGINE", str(tmp_path / "howfar-engine"))
    engine_info.cache_clear()
    code, out, _ = howfar("--version")
    assert code == 0
    assert "engine unknown: " in out
    assert "\ncommit unknown\n" in out


@pytest.mark.slow
def test_a_reader_that_went_away_is_no_error_message() -> None:
    script = "import sys; from howfar.cli import main; sys.argv = ['howfar', 'plans']; sys.exit(main())"
    read_end, write_end = os.pipe()
    os.close(read_end)
    ran = subprocess.run([sys.executable, "-c", script], stdout=write_end, stderr=subprocess.PIPE, text=True)
    os.close(write_end)
    assert (ran.returncode, ran.stderr) == (141, "")


def test_runs_of_one_second_have_each_a_file(
    laboratory: Lab, howfar: Howfar, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("time.strftime", lambda *_: "20261121T201500Z")
    assert [howfar("run", "--quick", "--seed", "5", "--time-budget", "10min")[0] for _ in range(2)] == [0, 0]
    names = sorted(file.name for file in tmp_path.glob("*.howfar"))
    assert names == ["howfar-paths-20261121T201500Z-2.howfar", "howfar-paths-20261121T201500Z.howfar"]


def surface(command: click.Command, name: str) -> Iterator[str]:
    """A command with its arguments and options, and those of its subcommands, a line each."""
    context = click.Context(command, info_name=name)
    words = (
        "/".join(each.opts + each.secondary_opts) if isinstance(each, click.Option) else each.human_readable_name
        for each in command.params
        if not getattr(each, "hidden", False)
    )
    yield " ".join((name, *words))
    if isinstance(command, click.Group):
        for inner in command.list_commands(context):
            found = command.get_command(context, inner)
            assert found is not None
            yield from surface(found, f"{name} {inner}")


def test_commands_options_and_exit_codes_stay_as_they_are() -> None:
    skip_without("replication")
    codes = [f"{code:<4} {says}" for code, says in EXIT_CODES]
    is_golden(GOLDEN / "commands.txt", "\n".join((*surface(cli, "howfar"), "", *codes, "")))


@pytest.mark.parametrize("number", [errno.EACCES, errno.EROFS, errno.ENOSPC])
def test_a_file_out_of_reach_is_no_bug(number: int, howfar: Howfar, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object) -> None:
        raise OSError(number, os.strerror(number), "/srv/run.howfar")

    monkeypatch.setattr(type(cli), "invoke", fails)
    code, _, err = howfar("report", "run.howfar")
    assert code == 6 and f"/srv/run.howfar: {os.strerror(number)}" in err


def test_a_cache_of_somebody_else_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr("howfar.lab.cache.os.access", lambda *_: False)
    assert cache_home() == tmp_path / "howfar", "what is in it can be read"
    with pytest.raises(LabError, match="is not writable"), work_directory(0):
        pass


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (("lab", "--server", "none", "--path", "haproxy", "--", "true"), "the path haproxy needs a server"),
        (("lab", "--server", "none", "--tls", "1.3", "--path", "tcp", "--", "true"), "--tls needs a server"),
        (("record", "--pcap", __file__, "--time", "5s"), "--time is for recording live traffic"),
        (("record", "--yes", "--", "true"), "--yes confirms the drop-in file"),
        (("load", "mysql://me@db..example/x", "oltp_read_only"), "the host db..example is not known"),
    ],
)
def test_what_would_be_ignored_is_refused(arguments: tuple[str, ...], word: str, howfar: Howfar) -> None:
    code, _, err = howfar(*arguments)
    assert code == 2 and word in " ".join(err.split())


def test_another_encoding_has_the_nearest_characters_and_loses_no_report() -> None:
    """`≥` and `µ` are in every report."""
    script = "from howfar.cli.screen import open_streams; open_streams(); print('≥ 3 µs')"
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, check=True)
    assert done.stdout == b">= 3 us\n"


def test_the_home_directory_is_that_of_the_account(howfar: Howfar, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a sandbox, an ordinary user's process is root, whose home directory it cannot write."""
    monkeypatch.setenv("HOME", "")
    howfar("plans")
    assert os.environ["HOME"] == pwd.getpwuid(os.getuid()).pw_dir


@pytest.mark.parametrize(
    ("error", "threads", "code", "says"),
    [
        (KeyboardInterrupt(), True, 130, "interrupted"),
        (KeyboardInterrupt(), False, 12, "not have enough threads"),  # [cli-8] OpenBLAS sends SIGINT to its own process
        (MemoryError(), True, 12, "not have enough memory"),  # [cli-9]
        (ImportError("libx.so: failed to map segment from shared object"), True, 12, "not have enough memory"),
        (OSError(errno.ENOMEM, "Cannot allocate memory"), True, 12, "not have enough memory"),
        (RuntimeError("can't start new thread"), True, 12, "not have enough memory"),
        (ImportError("no name x in howfar.plan", name="howfar.plan"), True, 70, "a bug in howfar"),
        (
            ModuleNotFoundError("No module named 'numpy'", name="numpy"),
            True,
            3,
            "this installation of howfar is incomplete",
        ),
    ],
)
def test_a_lack_of_memory_or_threads_is_called_that(
    error: BaseException, threads: bool, code: int, says: str, howfar: Howfar, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object) -> None:
        raise error

    def cannot(*_: object) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(type(cli), "invoke", fails)
    if not threads:
        monkeypatch.setattr("threading.Thread.start", cannot)
    got, _, err = howfar("report", "run.howfar")
    assert (got, says in err) == (code, True), err


@pytest.mark.parametrize(
    ("line", "code", "name"),
    [
        ("--json nosuch", 2, "usage"),
        ("--json --bogus 127.0.0.1:1", 2, "usage"),
        ("--json --fail-if fast 127.0.0.1:1", 2, "usage"),
        ("--json --timeout fast 127.0.0.1:1", 2, "usage"),
        ("--json mysql://u:sesame@db/x?bogus=1", 2, "usage"),
        ("--json --watch --interval 1ms redis://127.0.0.1:1", 2, "usage"),
        ("--json --watch redis://no-such-host.invalid", 10, "unreachable"),
        ("--json --watch redis://127.0.0.1:1", 10, "connect"),
        ("--json redis://no-such-host.invalid", 10, "name"),
        ("--json --prometheus missing/x.prom redis://127.0.0.1:1", 6, "connect"),
        ("doctor --json mysql://u@no-such-host.invalid", 2, "usage"),
        ("load --json nothing", 2, "usage"),
        ("slope --json --blocks 0 -- true", 2, "usage"),
        ("record --json --pcap missing.pcap", 2, "usage"),
    ],
)
def test_with_json_every_ending_prints_an_object(line: str, code: int, name: str, howfar: Howfar) -> None:
    from howfar.distance.record import schema_text

    got, out, err = howfar(*line.split())
    printed = json.loads(out)
    Draft202012Validator(json.loads(schema_text())).validate(printed)
    assert (got, printed["exit_code"], printed["failure"]["code"]) == (code, code, name), err
    assert " ".join(printed["failure"]["message"].split()) in " ".join(err.split())
    assert "sesame" not in out + err


def test_the_json_of_a_wrapped_program_is_its_own(howfar: Howfar) -> None:
    assert howfar("slope", "--blocks", "0", "--", "true", "--json")[:2] == (2, "")


@pytest.mark.slow
@pytest.mark.parametrize(
    "words",
    rarely_but(
        ["links --json", "nosuch --json"], ["version", "plans", "links --json", "--json 127.0.0.1:1", "nosuch --json"]
    ),
)
@pytest.mark.parametrize("redirection", [">&-", ">/dev/full"])
def test_a_result_that_cannot_be_written_is_an_error(words: str, redirection: str) -> None:
    done = subprocess.run(
        ["sh", "-c", f'"$0" -c "$1" {words} {redirection}', sys.executable, PROGRAM], capture_output=True, text=True
    )
    assert done.returncode == 6 and "writing the output failed" in done.stderr, done.stderr


@pytest.mark.slow
def test_a_closed_stdout_does_not_change_an_ending_without_output() -> None:
    done = subprocess.run(["sh", "-c", '"$0" -c "$1" nosuch >&-', sys.executable, PROGRAM], capture_output=True)
    assert done.returncode == 2


@pytest.mark.slow
@pytest.mark.parametrize(
    "kilobytes", rarely_but([110_000], [20_000, 110_000, 150_000, 180_000, 240_000, 300_000, 400_000])
)
def test_a_limit_of_memory_ends_with_its_own_code_or_changes_nothing(kilobytes: int) -> None:
    """[cli-9]"""
    command = f'ulimit -v {kilobytes}; exec "$0" -c "{PROGRAM}" report --example --csv'
    done = subprocess.run(["sh", "-c", command, sys.executable], capture_output=True, text=True, timeout=60)
    assert done.returncode in (0, 12), done.stderr
    assert "Traceback" not in done.stderr and ("not have enough memory" in done.stderr) is bool(done.returncode)


@pytest.mark.slow
@pytest.mark.parametrize("files", rarely_but([8], [6, 8]))
def test_a_limit_of_open_files_is_called_that(files: int) -> None:
    command = f'ulimit -n {files}; exec "$0" -c "{PROGRAM}" --json redis://127.0.0.1:1'
    done = subprocess.run(["sh", "-c", command, sys.executable], capture_output=True, text=True)
    assert done.returncode == 12 and "ulimit -n" in done.stderr and "setup" not in done.stderr
    assert json.loads(done.stdout)["failure"]["code"] == "resources"


def test_the_package_runs_as_a_module() -> None:
    shown = subprocess.run([sys.executable, "-m", "howfar", "help"], capture_output=True, text=True)
    assert shown.returncode == 0 and shown.stdout.startswith("Usage: howfar")
