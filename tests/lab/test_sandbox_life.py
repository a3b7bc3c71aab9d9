"""However a sandbox dies, nothing of it is left; while it runs, signals and exit codes pass as with a plain command."""

from __future__ import annotations

import contextlib
import os
import pty
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from howfar.lab.sandbox import children_of
from tests.lab.sandboxes import TIMEOUT_S, Marked, lab_command, run_lab, state_of_machine, wait_until
from tests.rarely import rarely_but

pytestmark = [pytest.mark.lab, pytest.mark.usefixtures("namespaces")]
_SMALL = ("--tables", "1", "--table-size", "100")
_UP = ("--", "sh", "-c", "echo up; exec sleep 600")


def _gone(marked: Marked) -> None:
    wait_until(lambda: not marked.pids(), f"the end of {marked.pids()}")


def _victim(marked: Marked, parent: int, who: str) -> int:
    if who == "parent":
        return parent
    if who == "unshare":
        found = marked.pid_of("unshare")
    elif who == "inside":
        unshare = marked.pid_of("unshare")
        assert unshare is not None
        found = int(Path(f"/proc/{unshare}/task/{unshare}/children").read_text().split()[0])
    else:  # a shell may have printed its line and not yet executed the command
        wait_until(lambda: marked.pid_of(who) is not None, f"{who} to be there")
        found = marked.pid_of(who)
    assert found is not None, f"{who} is not among {marked.pids()}"
    return found


@pytest.mark.usefixtures("mariadb")
@pytest.mark.parametrize(
    "who",
    rarely_but(("parent", "inside", "mariadbd"), ("parent", "unshare", "inside", "mariadbd", "howfar-engine", "sleep")),
)
def test_nothing_is_left_when_one_is_killed(who: str, cache: Path) -> None:
    before = state_of_machine()
    marked = Marked(("--path", "remote", *_SMALL, *_UP), cache)
    process = marked.start()
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "up\n"
        os.kill(_victim(marked, process.pid, who), signal.SIGKILL)
        if who in ("mariadbd", "howfar-engine"):  # the laboratory outlives a part, until its command ends
            process.terminate()
        code = process.wait(TIMEOUT_S)
        assert code != 0
        _gone(marked)
    finally:
        process.kill()
        process.wait()
    assert state_of_machine() == before
    assert not any((cache / "howfar" / "sandbox").iterdir())


@pytest.mark.usefixtures("mariadb")
@pytest.mark.parametrize("living", rarely_but((2, 5), range(1, 7)))
@pytest.mark.parametrize("who", ["parent", "unshare"])
def test_nothing_is_left_at_any_moment_of_the_start(who: str, living: int, cache: Path) -> None:
    """Moments are counted in started processes, not in seconds, so that each race occurs on any machine."""
    before = state_of_machine()
    marked = Marked(("--path", "remote", *_SMALL, *_UP), cache)
    process = marked.start()
    try:
        wait_until(lambda: len(marked.pids()) >= living, f"{living} processes")
        unshare = marked.pid_of("unshare") if who == "unshare" else None
        with contextlib.suppress(ProcessLookupError):  # an unshare that only tests permission is short-lived
            os.kill(process.pid if unshare is None else unshare, signal.SIGKILL)
        process.terminate()
        process.wait(TIMEOUT_S)
        _gone(marked)
    finally:
        process.kill()
        process.wait()
    assert state_of_machine() == before


_OUTSIDE = """
import os, sys
from howfar.lab.sandbox import run_forwarding_signals, namespace_flags
sys.exit(run_forwarding_signals(["unshare", *namespace_flags(network=True), "--", sys.executable, "-c", sys.argv[1]], os.environ))
"""
_INSIDE = """
import signal, sys
print("begun", flush=True)
sys.stdin.readline()
signal.signal(signal.SIGTERM, lambda *_: sys.exit(7))
signal.pause()
"""


def test_a_signal_waits_until_the_inside_can_take_it() -> None:
    """The kernel drops signals for which the first process of a namespace has no handler."""
    process = subprocess.Popen(
        [sys.executable, "-c", _OUTSIDE, _INSIDE], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdin is not None and process.stdout is not None
        assert process.stdout.readline() == "begun\n"
        process.terminate()
        wait_until(lambda: not _pending(process.pid) & 1 << signal.SIGTERM - 1, "the signal to be taken")
        process.stdin.write("go\n")
        process.stdin.flush()
        assert process.wait(TIMEOUT_S) == 7
    finally:
        process.kill()
        process.wait()


def test_the_exit_code_of_the_command_is_given_back() -> None:
    assert run_lab("--server", "none", "--", "sh", "-c", "exit 7").returncode == 7
    assert run_lab("--server", "none", "--", "sh", "-c", "kill -9 $$").returncode == 128 + 9


def test_standard_streams_are_the_callers() -> None:
    done = subprocess.run(
        lab_command("--server", "none", "--", "cat"),
        input="through\n",
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
    )
    assert done.stdout == "through\n"


def test_ctrl_c_reaches_the_command_once() -> None:
    master, slave = pty.openpty()
    script = 'trap "echo got; exit 5" INT; echo up; while :; do sleep 0.1; done'
    process = subprocess.Popen(
        # If the tests run in the background, SIGINT may be ignored, which shells pass on.
        [
            *("env", "--default-signal=INT", "setsid", "--ctty", "--wait"),
            *lab_command("--server", "none", "--", "sh", "-c", script),
        ],
        stdin=slave,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    os.close(slave)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "up\n"
        os.write(master, b"\x03")
        assert process.stdout.read() == "got\n"
        assert process.wait(TIMEOUT_S) == 5
    finally:
        process.kill()
        process.wait()
        os.close(master)


@pytest.mark.parametrize(
    ("kill", "number"), [(os.kill, signal.SIGTERM), (os.kill, signal.SIGINT), (os.killpg, signal.SIGTERM)]
)
def test_a_signal_to_the_outside_alone_or_to_the_whole_group_is_taken_once(
    kill: Callable[[int, int], None], number: signal.Signals
) -> None:
    """`timeout` signals the group: the command, the inside and the outside get one each, and the outside forwards its own."""
    script = 'trap "echo told; exit 6" TERM; echo up; while :; do sleep 0.1; done'
    process = subprocess.Popen(
        lab_command("--server", "none", "--", "sh", "-c", script),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        assert process.stdout is not None and process.stderr is not None
        assert process.stdout.readline() == "up\n"
        kill(process.pid, number)
        assert process.stdout.read() == "told\n"
        assert "Traceback" not in process.stderr.read()
        assert process.wait(TIMEOUT_S) == 6
    finally:
        process.kill()
        process.wait()


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)], ids=["INT", "TERM", "HUP"]
)
def test_the_exit_code_is_that_of_the_signal_that_ended_it(number: signal.Signals, code: int) -> None:
    """The inside gets a SIGTERM for each of these, and ends as after Ctrl-C."""
    inside = 'trap "exit 130" TERM; echo up; while :; do sleep 0.05; done'
    between = f"bash -c '{inside}' & wait $!"
    script = (
        "import os, sys\nfrom howfar.lab.sandbox import run_forwarding_signals\n"
        f"sys.exit(run_forwarding_signals(['bash', '-c', {between!r}], os.environ))"
    )
    command = ("env", f"--default-signal={number.name[3:]}", sys.executable, "-c", script)
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "up\n"
        os.kill(process.pid, number)
        assert process.wait(TIMEOUT_S) == code
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def test_a_signal_that_comes_before_the_inside_is_there_reaches_it() -> None:
    """The program in between has no child until it reads a line."""
    between = "read line; sleep 600 & wait $!"
    script = (
        "import os, sys\nfrom howfar.lab.sandbox import run_forwarding_signals\n"
        f"sys.exit(run_forwarding_signals(['bash', '-c', {between!r}], os.environ))"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, start_new_session=True
    )
    try:
        wait_until(lambda: bool(children_of(process.pid)), "the program in between")
        os.kill(process.pid, signal.SIGINT)
        # The signal is no longer pending, and the program has no child yet.
        wait_until(lambda: not _pending(process.pid) & 1 << signal.SIGINT - 1, "the signal to be taken")
        assert process.stdin is not None
        process.stdin.write(b"\n")
        process.stdin.close()
        assert process.wait(TIMEOUT_S) == 128 + signal.SIGTERM
    finally:
        with contextlib.suppress(ProcessLookupError):  # all have ended
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


@pytest.mark.parametrize(("handler", "code"), [("SIG_IGN", 7), ("SIG_DFL", 128 + signal.SIGTERM)])
def test_a_hang_up_ends_the_inside_unless_it_was_started_to_ignore_it(handler: str, code: int) -> None:
    """SIGHUP is ignored as under nohup. The command exits by itself, with 7, when it reads a line."""
    between = "sh -c 'echo up; read line; exit 7'; exit $?"
    script = f"""import os, signal, sys
from howfar.lab.sandbox import run_forwarding_signals
signal.signal(signal.SIGHUP, signal.{handler})
sys.exit(run_forwarding_signals(['bash', '-c', {between!r}], os.environ))"""
    process = subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        assert process.stdin is not None and process.stdout is not None
        assert process.stdout.readline() == "up\n"
        os.kill(process.pid, signal.SIGHUP)
        if handler == "SIG_IGN":
            for _ in range(2):  # once a second one is taken, the outside has handled the first
                wait_until(lambda: not _pending(process.pid) & 1 << signal.SIGHUP - 1, "the signal to be taken")
                os.kill(process.pid, signal.SIGHUP)
            process.stdin.write("\n")
            process.stdin.flush()
        assert process.wait(TIMEOUT_S) == code
    finally:
        with contextlib.suppress(ProcessLookupError):  # all have ended
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _pending(pid: int) -> int:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1], 16) for line in lines if line.startswith("ShdPnd:"))


def test_the_inside_is_the_first_process_with_only_a_loopback_of_its_own() -> None:
    script = (
        "import os, sys; from howfar.lab import sandbox; "
        "sys.exit(sandbox.run_inside()) if not sandbox.inside() else None; "
        "print(os.getpid(), sorted(os.listdir('/proc/sys/net/ipv4/conf')))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=TIMEOUT_S)
    assert done.stdout.strip() == "1 ['all', 'default', 'lo']", done.stderr
