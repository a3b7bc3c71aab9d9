"""The installed `howfar` as a separate process: bad input, terminals, closed and full streams."""

from __future__ import annotations

import os
import pty
import re
import shutil
import sqlite3
import subprocess
from contextlib import suppress
from pathlib import Path

import pytest

from howfar.runner.run import execute_run
from howfar.store.records import FORMAT_VERSION
from howfar.store.run_file import create
from tests.lab.howfar_runs import HOWFAR, call_howfar, run_howfar
from tests.lab.sandboxes import TIMEOUT_S
from tests.rarely import rarely_but
from tests.unit.fake_lab import fake_info, fakes

pytestmark = [pytest.mark.skipif(not Path(HOWFAR).exists(), reason="the command howfar is not installed here")]
MALFORMED = 'name = "mine"\nquestion = Which?\n'
WRONG_FIELD = """
name = "mine"
question = "Which?"
[workload]
kind = "oltp_read_only"
[factors]
path = ["socket", "tcp"]
rtt = "-1ms"
[baseline]
path = "socket"
"""


@pytest.fixture(scope="module")
def where(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with a good run file and bad files, which no test changes."""
    tmp_path = tmp_path_factory.mktemp("command")
    laboratory, _, instruments = fakes()
    with create(tmp_path / "good.howfar", fake_info()) as file:
        execute_run(file, laboratory, laboratory.clock(), instruments)
    create(tmp_path / "empty.howfar", fake_info()).close()
    shutil.copy(tmp_path / "good.howfar", tmp_path / "newer.howfar")
    with sqlite3.connect(tmp_path / "newer.howfar") as db:
        db.execute(f"PRAGMA user_version = {FORMAT_VERSION + 1}")
    (tmp_path / "text.howfar").write_text("no SQLite")
    (tmp_path / "malformed.toml").write_text(MALFORMED)
    (tmp_path / "wrong.toml").write_text(WRONG_FIELD)
    return tmp_path


BAD = [
    (("run", "nope"), 2, "there is no plan 'nope'", "paths"),
    (("run", "malformed.toml"), 2, "malformed.toml:2:12: malformed TOML", "quotes"),
    (("run", "wrong.toml"), 2, "wrong.toml:8: factors.rtt = '-1ms'", "Correct that line"),
    (("run", "--rtt", "10"), 2, "'10' is not a duration", "--rtt"),
    (("run", "--rtt=-1ms"), 2, "never negative", "--rtt"),
    (("run", "--rtt", "nan"), 2, "'nan' is not a duration", "--rtt"),
    (("run", "--rate", "fast"), 2, "'fast' is not a rate", "--rate"),
    (("run", "--rate", "nan"), 2, "'nan' is not a rate", "--rate"),
    (("run", "--rate=-1gbit"), 2, "-1gbit", "--rate"),
    (("run", "--quick", "--time-budget", "1s"), 2, "a time budget of 1s is too short", "Give at least --time-budget"),
    (("run", "--server", "/nowhere/mariadbd"), 3, "/nowhere/mariadbd is not a program", "Give the path"),
    (("run", "--out", "no/where.howfar"), 6, "there is no directory no", "--out"),
    (("run", "--out", "good.howfar"), 6, "already exists", "howfar resume good.howfar"),
    (("report", "text.howfar"), 6, "text.howfar is not a howfar run file", "howfar run"),
    (("resume", "text.howfar"), 6, "text.howfar is not a howfar run file", "howfar run"),
    (("report", "newer.howfar"), 6, f"newer.howfar has format {FORMAT_VERSION + 1}", "newer howfar"),
    (("resume", "newer.howfar"), 6, f"newer.howfar has format {FORMAT_VERSION + 1}", "newer howfar"),
    (("lab", "--distances", "three-zones", "--", "true"), 2, "--distances applies to replicas", "Add --replication"),
    (("lab", "--replication", "foo", "--", "true"), 2, "'galera', 'group'", "--help"),
    (("lab", "--replication", "none", "--", "true"), 2, "means no replication", "galera"),
    (
        ("lab", "--replication", "async", "--distances", "same-rack", "--replica-rtt", "1ms", "--", "true"),
        2,
        "both say",
        "one",
    ),
    (("lab", "--server", "redis", "--replication", "async", "--", "true"), 2, "howfar does not replicate redis", "SQL"),
    (("lab", "--replication", "group", "--", "true"), 2, "a mode of other servers", "Modes of mariadb: async"),
    (("run", "cluster", "--distances", "same-rack;nowhere"), 2, "'nowhere' is not a distance", "--distances"),
    *(
        (("lab", *words, "--server", "none", "--", "true"), 2, expected, "")
        for words, expected in (
            (("--rtt", "10"), "is not a duration"),
            (("--rtt", "-1ms"), "never negative"),
            (("--rtt", "nan"), "is not a duration"),
            (("--rate", "fast"), "is not a rate"),
            (("--rate", "0gbit"), "carries nothing"),
            (("--path", "pigeon"), "pigeon"),
            (("--placement", "here"), "here"),
        )
    ),
]


@pytest.mark.parametrize(("arguments", "code", "expected", "advice"), BAD)
def test_bad_input(
    where: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], code: int, expected: str, advice: str
) -> None:
    before = sorted(where.iterdir())
    monkeypatch.chdir(where)
    done = call_howfar(*arguments)
    message, _, rest = done.stderr.partition("\n")
    assert (done.returncode, done.stdout) == (code, ""), done.stderr
    assert message.startswith("howfar: ")
    assert expected in message
    assert advice in rest
    assert "Traceback" not in rest
    assert sorted(where.iterdir()) == before


def test_a_command_of_the_laboratory_that_is_missing(where: Path) -> None:
    done = run_howfar("lab", "--server", "none", "--", "no-such-program", cwd=where)
    assert (done.returncode, done.stdout) == (127, ""), done.stderr
    assert done.stderr.startswith("howfar: the program no-such-program was not found")


def test_a_removed_current_directory(tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    script = f'cd "{gone}" && rmdir "{gone}" && exec "{HOWFAR}" run --quick'
    done = subprocess.run(["sh", "-c", script], capture_output=True, text=True, timeout=TIMEOUT_S)
    assert done.returncode == 6
    assert done.stderr.startswith("howfar: the current directory has been removed\n")


def test_a_directory_that_cannot_be_written(tmp_path: Path) -> None:
    """Uses a read-only mount, because file permissions do not stop root from writing into a directory."""
    namespaces = ("unshare", *(() if os.geteuid() == 0 else ("--user", "--map-root-user")), "--mount")
    script = (
        f'mount -t tmpfs -o ro none "{tmp_path}/ro" && cd "{tmp_path}" && exec "{HOWFAR}" run --quick --out ro/a.howfar'
    )
    (tmp_path / "ro").mkdir()
    if subprocess.run([*namespaces, "true"], capture_output=True).returncode != 0:
        pytest.skip("this machine does not allow mounts")
    done = subprocess.run([*namespaces, "sh", "-c", script], capture_output=True, text=True, timeout=TIMEOUT_S)
    assert done.returncode == 6, done.stderr
    assert done.stderr.startswith("howfar: the directory ro cannot be written to\n  Choose")


def test_a_run_without_a_trial_is_shown(where: Path, tmp_path: Path) -> None:
    for form in ((), (f"--html={tmp_path}/x.html",)):
        done = call_howfar("report", str(where / "empty.howfar"), *form)
        assert done.returncode == 0, done.stderr
        assert "Traceback" not in done.stderr


def _closing(*descriptors: int) -> tuple[str, ...]:
    """The prefix of a command that starts with these streams closed."""
    return ("sh", "-c", " ".join(['exec "$@"', *(f"{descriptor}>&-" for descriptor in descriptors)]), "sh")


@pytest.mark.parametrize("closed", [0, 1, 2])
def test_a_closed_stream(where: Path, closed: int) -> None:
    done = run_howfar("run", "nope", cwd=where, prefix=_closing(closed))
    assert done.returncode == 2
    assert ("there is no plan" in done.stderr) == (closed != 2)
    assert run_howfar("plans", cwd=where, prefix=_closing(closed)).returncode == (6 if closed == 1 else 0)


def test_a_complete_run_is_not_resumed_even_with_closed_streams(where: Path) -> None:
    """The run file is not written to, even if it gets the descriptor of a closed stream."""
    before = (where / "good.howfar").read_bytes()
    done = call_howfar("resume", str(where / "good.howfar"))
    assert done.returncode == 0 and "Nothing to do: the run is complete" in done.stderr
    done = run_howfar("resume", "good.howfar", cwd=where, prefix=_closing(0, 1, 2))
    assert done.returncode == 6 and not done.stderr
    assert (where / "good.howfar").read_bytes() == before


@pytest.mark.parametrize("arguments", [("plans",), ("--help",), ("report", "good.howfar")])
def test_a_full_stdout(where: Path, arguments: tuple[str, ...]) -> None:
    if not Path("/dev/full").exists():
        pytest.skip("no /dev/full here")
    with Path("/dev/full").open("w") as full:
        done = subprocess.run([HOWFAR, *arguments], stdout=full, stderr=subprocess.PIPE, text=True, cwd=where)
    assert done.returncode == 6
    assert done.stderr.startswith("howfar: writing the output failed: No space left on device\n")


def _on_a_terminal(columns: int, where: Path, variables: dict[str, str], *arguments: str) -> str:
    """The command's output on a terminal of that width."""
    master, slave = pty.openpty()
    os.set_blocking(master, True)
    environment = {key: value for key, value in os.environ.items() if key not in ("COLUMNS", "NO_COLOR", "TERM")}
    process = subprocess.Popen(
        ["sh", "-c", f'stty cols {columns} && exec "$@"', "sh", HOWFAR, *arguments],
        stdin=slave,
        stdout=slave,
        stderr=slave,
        cwd=where,
        env={**environment, **variables},
    )
    os.close(slave)
    output = b""
    with suppress(OSError):  # a terminal that no process has open
        while part := os.read(master, 65536):
            output += part
    os.close(master)
    assert process.wait(60) == 0
    return output.decode()


@pytest.mark.parametrize("columns", rarely_but((60,), (60, 80)))
@pytest.mark.parametrize(
    ("variables", "plain"),
    [({"TERM": "dumb"}, True), ({"TERM": "xterm", "NO_COLOR": "1"}, True), ({"TERM": "xterm"}, False)],
)
def test_terminals(where: Path, columns: int, variables: dict[str, str], plain: bool) -> None:
    output = _on_a_terminal(columns, where, variables, "report", "good.howfar")
    assert ("\x1b" not in output) == plain
    lines = re.sub(r"\x1b\[[0-9;]*m", "", output).split("\r\n")
    assert max(len(line) for line in lines) <= columns
    assert any("forwarded" in line for line in lines)
