"""Faults during `howfar run`, by the real command: exit code, message with advice, and no loss of measured trials."""

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
from tests.lab.howfar_runs import (
    LOCAL_PATHS,
    RUN_TIMEOUT_S,
    Session,
    assert_completed,
    good_trials,
    run_howfar,
    tiny_plan,
)
from tests.lab.sandboxes import (
    FORBID_NAMESPACES,
    TIMEOUT_S,
    cache_variable,
    machine_state,
    run_lab,
    wait_until,
    write_program,
)
from tests.lab.undisturbed import unexcused
from tests.rarely import rarely_but

pytestmark = [pytest.mark.lab, pytest.mark.usefixtures("mariadb", "namespaces")]
MARIADBD = "/usr/sbin/mariadbd"
PLANS = {
    "local.toml": tiny_plan(LOCAL_PATHS),
    "slow.toml": tiny_plan(LOCAL_PATHS, measure="1s"),
    "few.toml": tiny_plan(LOCAL_PATHS, blocks=2),
    "short.toml": tiny_plan(("socket", "remote"), blocks=2),
    "parted.toml": tiny_plan(blocks=3),
    "forbidden.toml": tiny_plan(blocks=2),
}


@pytest.fixture
def where(tmp_path: Path) -> Path:
    for name, plan in PLANS.items():
        (tmp_path / name).write_text(plan)
    return tmp_path


def _check_error(output: str, *fragments: str) -> None:
    """Check that the output has an error message of howfar, no traceback, and these fragments."""
    assert "Traceback" not in output
    assert any(line.startswith("howfar: ") for line in output.splitlines()), output
    for fragment in fragments:
        assert fragment in output, output


def test_a_server_that_crashes_at_start(where: Path, cache: Path) -> None:
    script = f'case $* in *--version*) exec {MARIADBD} "$@";; *--bootstrap*) exec {MARIADBD} "$@";; esac; echo last words; exit 3'
    server = write_program(where / "server", script)
    done = run_howfar("run", "local.toml", "--server", str(server), cwd=where, cache=cache)
    assert done.returncode == 4
    _check_error(done.stderr, f"{server} ended at start (exit code 3)", "last words", "without a configuration file")
    assert not list(where.glob("*.howfar"))


@pytest.mark.thorough
def test_a_server_that_crashes_in_every_trial_ends_the_run_and_can_be_resumed(where: Path, cache: Path) -> None:
    """A background process kills the shell's pid after the shell has become the server. SIGKILL ends the server at once; after a
    SIGSEGV its crash handler might continue to serve for a while."""
    crash = where / "crash"
    script = (
        f"case $* in *--version*) ;; *buffer-pool-load-at-startup=ON*) [ ! -e {crash} ] || (sleep 0.5; kill -KILL $$) & ;; esac\n"
        f'exec {MARIADBD} "$@"'
    )
    server = write_program(where / "server", script)
    crash.touch()
    arguments = ("run", "slow.toml", "--server", str(server), "--out", "a.howfar", "--seed", "1")
    done = run_howfar(*arguments, cwd=where, cache=cache)
    assert done.returncode == 4, done.stderr
    _check_error(done.stderr, "trials in a row were void, the last because: ", "howfar resume a.howfar")
    run = read_run(where / "a.howfar")
    assert {trial.status for trial in run.trials} == {TrialStatus.VOID}
    assert all(trial.void_reason for trial in run.trials)
    report = run_howfar("report", "a.howfar", cwd=where)
    assert report.returncode == 0, report.stderr
    assert "void" in report.stdout


@pytest.mark.thorough
def test_a_full_disk_keeps_what_was_measured(where: Path, cache: Path) -> None:
    """Uses a file system of 200 KiB in a mount namespace, so that other processes do not see it."""
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
        timeout=RUN_TIMEOUT_S,
        env={**os.environ, **cache_variable(cache)},
    )
    assert done.returncode == 6, done.stderr
    _check_error(done.stderr, "disk full", "df ", "howfar resume ")
    progress = [line for line in done.stderr.splitlines() if line.startswith("block ")]
    assert progress, done.stderr
    assert len(read_run(where / "a.howfar").trials) == len(progress)
    resumed = run_howfar("resume", "a.howfar", cwd=where, cache=cache)
    assert resumed.returncode == 0, resumed.stderr
    assert read_run(where / "a.howfar").stop is StopReason.BLOCKS


@pytest.mark.usefixtures("namespaces_forbidden")
def test_where_namespaces_are_forbidden_the_local_paths_are_measured(where: Path, cache: Path) -> None:
    done = run_howfar("run", "forbidden.toml", "--out", "a.howfar", cwd=where, cache=cache, prefix=FORBID_NAMESPACES)
    assert done.returncode == 0, done.stderr
    _check_error(
        done.stderr, "user.max_user_namespaces to 10000 (it is 0)", "CAP_SYS_ADMIN", "Measuring socket and tcp only."
    )
    run = read_run(where / "a.howfar")
    assert [arm.name for arm in run.info.arms] == ["socket", "socket (again)", "tcp"]
    assert run.stop is StopReason.BLOCKS
    assert run.info.environment.sandbox is False
    assert not any((cache / "howfar" / "work").iterdir())
    resumed = run_howfar("resume", "a.howfar", cwd=where, cache=cache, prefix=FORBID_NAMESPACES)
    assert (resumed.returncode, "Nothing to do" in resumed.stderr) == (0, True)


def test_ctrl_c_ends_a_run_cleanly_and_resume_continues_it(where: Path, cache: Path) -> None:
    before = machine_state()
    with Session(["run", "short.toml", "--out", "a.howfar"], cache, where) as session:
        wait_until(lambda: len(session.reported_trials()) >= 2 or session.has_ended(), "two trials")
        os.killpg(session.process.pid, signal.SIGINT)  # a terminal signals all foreground processes
        code = session.wait()
        session.marked.wait_until_gone()
    assert code == 130, session.output()
    _check_error(session.output(), "howfar resume a.howfar")
    assert re.search(r"interrupted; \d+ trials? kept in a\.howfar", session.output())
    assert machine_state() == before
    run = read_run(where / "a.howfar")
    assert run.stop is StopReason.INTERRUPTED
    assert sorted(entry.name for entry in where.glob("a.*")) == ["a.howfar"]
    done = run_howfar("resume", "a.howfar", cwd=where, cache=cache)
    assert_completed(done.returncode, done.stderr)
    assert f"{len(run.trials)} trials done earlier" in done.stderr
    after = read_run(where / "a.howfar")
    assert after.trials[: len(run.trials)] == run.trials
    assert len({(trial.block, trial.position) for trial in good_trials(after)}) >= 3 * 2 - 2


def test_ctrl_c_during_the_start_leaves_no_file(where: Path, cache: Path) -> None:
    with Session(["run", "short.toml", "--out", "a.howfar"], cache, where) as session:
        assert session.wait_for_pid("howfar-engine link", TIMEOUT_S)
        os.killpg(session.process.pid, signal.SIGINT)
        assert session.wait() == 130, session.output()
        session.marked.wait_until_gone()
    _check_error(session.output(), "interrupted")
    assert not list(where.glob("*a.howfar*"))


@pytest.mark.thorough
def test_two_simultaneous_runs_in_one_directory_are_complete(where: Path, cache: Path) -> None:
    """They share the cache and the default file names. Each writes its own complete file."""
    with Session(["run", "few.toml"], cache, where) as one, Session(["run", "few.toml"], cache, where) as other:
        assert (one.wait(), other.wait()) == (0, 0), (one.output(), other.output())
    files = list(where.glob("*.howfar"))
    assert len(files) == 2
    assert all(read_run(file).stop is StopReason.BLOCKS for file in files)
    assert not list(where.glob(".*"))


@pytest.mark.thorough
def test_a_cache_name_may_have_any_character_but_a_colon(tmp_path_factory: pytest.TempPathFactory) -> None:
    where = tmp_path_factory.mktemp("o")
    odd = where / "mit Leer, (zeichen) ü!"
    options = ("--path", "forwarded-socket", "--tables", "1", "--table-size", "100")
    done = run_lab(*options, "--", "sh", "-c", 'test -S "$HOWFAR_SOCKET"', cache=odd)
    assert done.returncode == 0, done.stderr
    done = run_lab("--server", "none", "--", "true", cache=where / "a:b")
    assert done.returncode == 4
    _check_error(done.stderr, "has : in its name", "XDG_CACHE_HOME")


PARTS = ("howfar-engine link", "socat", "howfar-engine load", "mariadbd", "howfar-engine echo")
"""Processes of a run. socat runs in only one of five arms, so it is killed early, while a block with this arm is still to come."""
ONE_PART, EACH_PART = ("few.toml", PARTS[2:3]), ("parted.toml", PARTS)


def _has_more_trials(session: Session, trials: int) -> bool:
    return len(session.reported_trials()) > trials or session.has_ended()


@pytest.mark.parametrize("case", rarely_but([ONE_PART], [ONE_PART, EACH_PART]), ids=["load", "each"])
def test_the_run_outlives_each_of_its_parts(case: tuple[str, tuple[str, ...]], where: Path, cache: Path) -> None:
    """At most one trial is void per killed part, with a reason. The next trial has a new part, and the run completes."""
    plan, parts = case
    with Session(["run", plan, "--out", "a.howfar"], cache, where) as session:
        for number, part in enumerate(parts):
            wait_until(partial(_has_more_trials, session, 2 * number), "more trials")
            victim = session.wait_for_pid(part, TIMEOUT_S)
            if victim is None:
                break
            os.kill(victim, signal.SIGKILL)
        code = session.wait()
    assert_completed(code, session.output())
    assert victim is not None, (part, session.output())
    run = read_run(where / "a.howfar")
    assert run.stop is StopReason.BLOCKS
    reasons = [trial.void_reason or "" for trial in run.trials if trial.status is TrialStatus.VOID]
    assert all(reasons)
    assert len(unexcused(reasons)) <= len(parts), reasons
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
        connect = sql_store._connect
        def cut(*arguments):
            connection = connect(*arguments)
            os.kill(laboratory.link.pid, signal.SIGKILL)
            return connection
        sql_store._connect = cut
        try:
            environment.server_group.running.session_view(environment.main.target, laboratory.client_host)
        except LabError as error:
            print(error)
    sql_store._VIEW_TIMEOUT_S, sql_store._connect = timeout_s, connect
    with laboratory.trial_environment({"path": "remote"}) as environment:
        print("connected again", environment.main.view.host.partition(":")[0])
"""


def test_a_link_that_dies_during_a_session_ends_in_a_timeout(cache: Path) -> None:
    """No packet tells the session that its link is dead: only a timeout ends the wait."""
    done = subprocess.run(
        [sys.executable, "-c", CUT],
        capture_output=True,
        text=True,
        timeout=2 * TIMEOUT_S,
        env={**os.environ, **cache_variable(cache)},
    )
    assert done.returncode == 0, done.stderr
    first, second = done.stdout.splitlines()
    assert "the server runs, but a session at " in first
    assert second == "connected again 10.77.0.1"
