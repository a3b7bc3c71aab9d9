"""Faults during `howfar run`, through the real command: the exit code, a message with advice, nothing lost."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

from howfar.store.records import StopReason, TrialStatus
from howfar.store.run_file import read_run
from tests.lab.howfar_runs import BLOCKS, LOCAL, LONGEST_S, PATHS, TINY, Session, came_through, run_howfar
from tests.lab.sandboxes import TIMEOUT_S, run_lab, state_of_machine, wait_until
from tests.lab.test_refusals import FORBID
from tests.lab.undisturbed import lasting

pytestmark = [pytest.mark.lab, pytest.mark.usefixtures("mariadb", "namespaces")]
MARIADBD = "/usr/sbin/mariadbd"
SHORT = TINY.replace(PATHS, '["socket", "remote"]').replace(f"blocks = {BLOCKS}", "blocks = 2")
"""One path over the link: six trials."""
FEW = LOCAL.replace(f"blocks = {BLOCKS}", "blocks = 2")
"""The local paths, six trials."""
PARTED = TINY.replace(f"blocks = {BLOCKS}", "blocks = 3")


@pytest.fixture
def where(tmp_path: Path) -> Path:
    (tmp_path / "tiny.toml").write_text(TINY)
    (tmp_path / "local.toml").write_text(LOCAL)
    (tmp_path / "short.toml").write_text(SHORT)
    (tmp_path / "few.toml").write_text(FEW)
    (tmp_path / "parted.toml").write_text(PARTED)
    (tmp_path / "forbidden.toml").write_text(TINY.replace(f"blocks = {BLOCKS}", "blocks = 2"))
    return tmp_path


def _program(path: Path, script: str) -> Path:
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return path


def _clear(output: str, *expected: str) -> None:
    assert "Traceback" not in output
    assert any(line.startswith("howfar: ") for line in output.splitlines()), output
    for word in expected:
        assert word in output, output


def test_a_server_that_is_not_there(where: Path, cache: Path) -> None:
    done = run_howfar(
        "run", "local.toml", "--server", "/nowhere/mariadbd", cwd=where, env={"XDG_CACHE_HOME": str(cache)}
    )
    assert done.returncode == 3
    _clear(done.stderr, "/nowhere/mariadbd is not a program", "Give the path")
    assert not list(where.glob("*.howfar"))


def test_a_server_that_crashes_at_start(where: Path, cache: Path) -> None:
    script = f'case $* in *--version*) exec {MARIADBD} "$@";; *--bootstrap*) exec {MARIADBD} "$@";; esac; echo last words; exit 3'
    server = _program(where / "server", script)
    done = run_howfar("run", "local.toml", "--server", str(server), cwd=where, env={"XDG_CACHE_HOME": str(cache)})
    assert done.returncode == 4
    _clear(done.stderr, f"{server} ended at start (exit code 3)", "last words", "without a configuration file")
    assert not list(where.glob("*.howfar"))


def test_a_server_that_crashes_in_every_trial_ends_the_run_and_can_be_resumed(where: Path, cache: Path) -> None:
    """The shell leaves its pid to a killer and executes the server, so that the server itself dies, and at once: after a SIGSEGV
    its crash handler might continue to serve for a while."""
    crash = where / "crash"
    script = (
        f"case $* in *--version*) ;; *buffer-pool-load-at-startup=ON*) [ ! -e {crash} ] || (sleep 0.5; kill -KILL $$) & ;; esac\n"
        f'exec {MARIADBD} "$@"'
    )
    server = _program(where / "server", script)
    slow = LOCAL.replace('measure = "200ms"', 'measure = "1s"')
    (where / "slow.toml").write_text(slow)
    crash.touch()
    arguments = ("run", "slow.toml", "--server", str(server), "--out", "a.howfar", "--seed", "1")
    done = run_howfar(*arguments, cwd=where, env={"XDG_CACHE_HOME": str(cache)})
    assert done.returncode == 4, done.stderr
    _clear(done.stderr, "trials in a row were void, the last because: ", "howfar resume a.howfar")
    run = read_run(where / "a.howfar")
    assert {trial.status for trial in run.trials} == {TrialStatus.VOID}
    assert all(trial.void_reason for trial in run.trials)
    report = run_howfar("report", "a.howfar", cwd=where)
    assert report.returncode == 0, report.stderr
    assert "void" in report.stdout


def test_a_full_disk_keeps_what_was_measured(where: Path, cache: Path) -> None:
    """Uses a real file system of 200 KiB, in a separate mount namespace: other processes do not see it."""
    full = where / "full"
    full.mkdir()
    script = (
        f"mount -t tmpfs -o size=200k small {full} && "
        f"{Path(sys.executable).with_name('howfar')} run local.toml --out {full}/a.howfar; code=$?; "
        f"ls -A {full} >&2; cp {full}/a.howfar* {where}/; exit $code"
    )
    done = subprocess.run(
        ["unshare", *(() if os.geteuid() == 0 else ("--user", "--map-root-user")), "--mount", "sh", "-c", script],
        capture_output=True,
        text=True,
        cwd=where,
        timeout=LONGEST_S,
        env={**os.environ, "XDG_CACHE_HOME": str(cache)},
    )
    assert done.returncode == 6, done.stderr
    _clear(done.stderr, "disk full", "df ", "howfar resume ")
    progress = [line for line in done.stderr.splitlines() if line.startswith("block ")]
    assert progress, done.stderr
    assert len(read_run(where / "a.howfar").trials) == len(progress)
    resumed = run_howfar("resume", "a.howfar", cwd=where, env={"XDG_CACHE_HOME": str(cache)})
    assert resumed.returncode == 0, resumed.stderr
    assert read_run(where / "a.howfar").stop is StopReason.BLOCKS


def test_where_namespaces_are_forbidden_the_local_paths_are_measured(where: Path, cache: Path) -> None:
    tried = subprocess.run([*FORBID, "true"], capture_output=True, text=True)
    if tried.returncode != 0:
        pytest.skip(f"this machine cannot be made to forbid namespaces: {tried.stderr.strip()}")
    env = {"XDG_CACHE_HOME": str(cache)}
    done = run_howfar("run", "forbidden.toml", "--out", "a.howfar", cwd=where, env=env, prefix=FORBID)
    assert done.returncode == 0, done.stderr
    _clear(
        done.stderr, "user.max_user_namespaces to 10000 (it is 0)", "CAP_SYS_ADMIN", "Measuring socket and tcp only."
    )
    run = read_run(where / "a.howfar")
    assert [arm.name for arm in run.info.arms] == ["socket", "socket (again)", "tcp"]
    assert run.stop is StopReason.BLOCKS
    assert run.info.environment.sandbox is False
    assert not any((cache / "howfar" / "work").iterdir())
    resumed = run_howfar("resume", "a.howfar", cwd=where, env=env, prefix=FORBID)
    assert (resumed.returncode, "Nothing to do" in resumed.stderr) == (0, True)


def test_ctrl_c_ends_in_order_and_resume_goes_on(where: Path, cache: Path) -> None:
    before = state_of_machine()
    session = Session(["run", "short.toml", "--out", "a.howfar"], cache, where)
    try:
        wait_until(lambda: len(session.reported()) >= 2 or session.process.poll() is not None, "two trials")
        os.killpg(session.process.pid, signal.SIGINT)  # as a terminal does: to all foreground processes
        code = session.code()
        wait_until(lambda: not session.marked.pids(), f"the end of {session.marked.pids()}")
    finally:
        session.end()
    assert code == 130, session.say()
    _clear(session.say(), "howfar resume a.howfar")
    assert re.search(r"interrupted; \d+ trials? kept in a\.howfar", session.say())
    assert state_of_machine() == before
    run = read_run(where / "a.howfar")
    assert run.stop is StopReason.INTERRUPTED
    assert sorted(entry.name for entry in where.glob("a.*")) == ["a.howfar"]
    done = run_howfar("resume", "a.howfar", cwd=where, env={"XDG_CACHE_HOME": str(cache)})
    came_through(done.returncode, done.stderr)
    assert f"{len(run.trials)} trials done earlier" in done.stderr
    after = read_run(where / "a.howfar")
    assert after.trials[: len(run.trials)] == run.trials
    good = {(trial.block, trial.position) for trial in after.trials if trial.status is TrialStatus.OK}
    assert len(good) >= 3 * 2 - 2


def test_ctrl_c_while_the_laboratory_is_built(where: Path, cache: Path) -> None:
    session = Session(["run", "short.toml", "--out", "a.howfar"], cache, where)
    try:
        assert session.await_part("howfar-engine link", TIMEOUT_S)
        os.killpg(session.process.pid, signal.SIGINT)
        assert session.code() == 130, session.say()
        wait_until(lambda: not session.marked.pids(), f"the end of {session.marked.pids()}")
    finally:
        session.end()
    _clear(session.say(), "interrupted")
    assert not list(where.glob("*a.howfar*"))


def test_two_runs_at_once_in_one_directory(where: Path, cache: Path) -> None:
    """They share the cache and the default names; each has its own file, and none is lost."""
    sessions = [Session(["run", "few.toml"], cache, where) for _ in range(2)]
    try:
        assert [session.code() for session in sessions] == [0, 0], [session.say() for session in sessions]
    finally:
        for session in sessions:
            session.end()
    files = list(where.glob("*.howfar"))
    assert len(files) == 2
    assert all(read_run(file).stop is StopReason.BLOCKS for file in files)
    assert not list(where.glob(".*"))


@pytest.mark.thorough
def test_caches_with_odd_names(tmp_path_factory: pytest.TempPathFactory) -> None:
    where = tmp_path_factory.mktemp("o")
    odd = where / "mit Leer, (zeichen) ü!"
    done = run_lab(
        *(
            "--path",
            "forwarded-socket",
            "--tables",
            "1",
            "--table-size",
            "100",
            "--",
            "sh",
            "-c",
            'test -S "$HOWFAR_SOCKET"',
        ),
        env={"XDG_CACHE_HOME": str(odd)},
    )
    assert done.returncode == 0, done.stderr
    done = run_lab("--server", "none", "--", "true", env={"XDG_CACHE_HOME": str(where / "a:b")})
    assert done.returncode == 4
    _clear(done.stderr, "has : in its name", "XDG_CACHE_HOME")


def _further(session: Session, trials: int) -> bool:
    return len(session.reported()) > trials or session.process.poll() is not None


def test_the_run_outlives_each_of_its_parts(where: Path, cache: Path) -> None:
    """At most one trial is void per killed part, and states why; the next trial has a new part, and the run completes."""
    session = Session(["run", "parted.toml", "--out", "a.howfar"], cache, where)
    # socat runs in one arm of five: killed early, there is still a block left in which it runs.
    parts = ("howfar-engine link", "socat", "howfar-engine load", "mariadbd", "howfar-engine echo")
    try:
        for number, part in enumerate(parts):
            wait_until(partial(_further, session, 2 * number), "more trials")
            victim = session.await_part(part, TIMEOUT_S)
            if victim is None:
                break
            os.kill(victim, signal.SIGKILL)
        code = session.code()
    finally:
        session.end()
    came_through(code, session.say())
    assert victim is not None, (part, session.say())
    run = read_run(where / "a.howfar")
    assert run.stop is StopReason.BLOCKS
    reasons = [trial.void_reason or "" for trial in run.trials if trial.status is TrialStatus.VOID]
    assert all(reasons)
    assert len(lasting(reasons)) <= len(parts), reasons
    assert len([reason for reason in reasons if "howfar-engine link" in reason]) <= 1, reasons


CUT = """
import os, signal, sys
from howfar.errors import LabError
from howfar.lab import sandbox
if not sandbox.inside():
    sys.exit(sandbox.run_inside())
from howfar.lab.laboratory import LabRequest, open_laboratory
from howfar.lab.servers import sql_store
with open_laboratory(LabRequest(tables=1, table_size=1000, paths=("remote",))) as laboratory:
    with laboratory.trial_environment({"path": "remote"}) as environment:
        sql_store._VIEW_TIMEOUT_S, timeout_s = 1.0, sql_store._VIEW_TIMEOUT_S
        connect = sql_store._connected
        def cut(*arguments):
            connection = connect(*arguments)
            os.kill(laboratory.link.pid, signal.SIGKILL)
            return connection
        sql_store._connected = cut
        try:
            environment.server_group.running.session_view(environment.main.target, laboratory.client_host)
        except LabError as error:
            print(error)
    sql_store._VIEW_TIMEOUT_S, sql_store._connected = timeout_s, connect
    with laboratory.trial_environment({"path": "remote"}) as environment:
        print("whole again", environment.main.view.host.partition(":")[0])
"""


def test_a_link_that_dies_while_the_server_is_asked(cache: Path) -> None:
    """A dead link gives no sign of its death: only a timeout ends the wait."""
    done = subprocess.run(
        [sys.executable, "-c", CUT],
        capture_output=True,
        text=True,
        timeout=2 * TIMEOUT_S,
        env={**os.environ, "XDG_CACHE_HOME": str(cache)},
    )
    assert done.returncode == 0, done.stderr
    first, second = done.stdout.splitlines()
    assert "the server runs, but a session at " in first
    assert second == "whole again 10.77.0.1"
