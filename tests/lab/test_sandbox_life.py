"""However a sandbox dies, none of its processes remains; while it runs, signals and exit codes pass as with a plain command."""

from __future__ import annotations

import contextlib
import os
import pty
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from howfar.lab.sandbox import children_of
from tests.lab.sandboxes import TIMEOUT_S, MarkedLab, lab_command, machine_state, run_lab, wait_until
from tests.rarely import rarely_but

pytestmark = [pytest.mark.lab, pytest.mark.usefixtures("namespaces")]
_SMALL = ("--tables", "1", "--table-size", "100")
_UP = ("--", "sh", "-c", "echo up; exec sleep 600")


@contextlib.contextmanager
def _killed_on_exit(process: subprocess.Popen[Any]) -> Iterator[None]:
    """Kill a process on leaving, and the rest of its group if it leads one."""
    leads_group = os.getpgid(process.pid) == process.pid
    try:
        yield
    finally:
        with contextlib.suppress(ProcessLookupError):  # all have ended
            if leads_group:
                os.killpg(process.pid, signal.SIGKILL)
        process.kill()
        process.wait()


def _find_victim(marked: MarkedLab, parent: int, role: str) -> int:
    """The pid of the outer process, of `unshare`, of its child `inside`, or of a program."""
    if role == "parent":
        return parent
    program = "unshare" if role == "inside" else role
    # A shell may have printed its line before it has executed the command.
    wait_until(lambda: marked.find_pid(program) is not None, f"a process {program}")
    pid = marked.find_pid(program)
    assert pid is not None, f"{program} is not among {marked.pids()}"
    return children_of(pid)[0] if role == "inside" else pid


@pytest.mark.usefixtures("mariadb")
@pytest.mark.parametrize(
    "role",
    rarely_but(("parent", "mariadbd"), ("parent", "unshare", "inside", "mariadbd", "howfar-engine", "sleep")),
)
def test_no_process_remains_when_one_is_killed(role: str, cache: Path) -> None:
    before = machine_state()
    marked = MarkedLab(("--path", "remote", *_SMALL, *_UP), cache)
    process = marked.start()
    with _killed_on_exit(process):
        assert process.stdout is not None
        assert process.stdout.readline() == "up\n"
        os.kill(_find_victim(marked, process.pid, role), signal.SIGKILL)
        if role in ("mariadbd", "howfar-engine"):  # the laboratory outlives a part, until its command ends
            process.terminate()
        assert process.wait(TIMEOUT_S) != 0
        marked.wait_until_gone()
    assert machine_state() == before
    assert not any((cache / "howfar" / "sandbox").iterdir())


@pytest.mark.usefixtures("mariadb")
@pytest.mark.parametrize("processes", rarely_but((2, 5), range(1, 7)))
@pytest.mark.parametrize("role", ["parent", "unshare"])
def test_no_process_remains_after_a_kill_during_the_start(role: str, processes: int, cache: Path) -> None:
    """The moment of the kill is a number of started processes, not of seconds, so that each race occurs on any machine."""
    before = machine_state()
    marked = MarkedLab(("--path", "remote", *_SMALL, *_UP), cache)
    process = marked.start()
    with _killed_on_exit(process):
        wait_until(lambda: len(marked.pids()) >= processes, f"{processes} processes")
        unshare = marked.find_pid("unshare") if role == "unshare" else None
        with contextlib.suppress(ProcessLookupError):  # an `unshare` that only tests permission is short-lived
            os.kill(process.pid if unshare is None else unshare, signal.SIGKILL)
        process.terminate()
        process.wait(TIMEOUT_S)
        marked.wait_until_gone()
    assert machine_state() == before


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


def test_a_signal_waits_until_the_inside_has_a_handler() -> None:
    """The kernel drops signals for which the first process of a namespace has no handler."""
    process = subprocess.Popen(
        [sys.executable, "-c", _OUTSIDE, _INSIDE], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with _killed_on_exit(process):
        assert process.stdin is not None and process.stdout is not None
        assert process.stdout.readline() == "begun\n"
        process.terminate()
        wait_until(lambda: not _pending(process.pid) & 1 << signal.SIGTERM - 1, "the signal to be taken")
        process.stdin.write("go\n")
        process.stdin.flush()
        assert process.wait(TIMEOUT_S) == 7


def test_the_signal_that_ended_the_command_is_in_the_exit_code() -> None:
    assert run_lab("--server", "none", "--", "sh", "-c", "kill -9 $$").returncode == 128 + 9


def test_the_command_has_the_callers_standard_streams_and_returns_its_exit_code() -> None:
    done = subprocess.run(
        lab_command("--server", "none", "--", "sh", "-c", "cat; exit 7"),
        input="through\n",
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
    )
    assert (done.stdout, done.returncode) == ("through\n", 7)


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
    with _killed_on_exit(process):
        assert process.stdout is not None
        assert process.stdout.readline() == "up\n"
        os.write(master, b"\x03")
        assert process.stdout.read() == "got\n"
        assert process.wait(TIMEOUT_S) == 5
        os.close(master)


@pytest.mark.parametrize(
    ("kill", "number"),
    [
        (os.kill, signal.SIGTERM),
        pytest.param(os.kill, signal.SIGINT, marks=pytest.mark.thorough),
        (os.killpg, signal.SIGTERM),
    ],
)
def test_a_signal_to_the_outside_or_to_the_whole_group_is_handled_once(
    kill: Callable[[int, int], None], number: signal.Signals
) -> None:
    """`timeout` signals the group: command, inside and outside each receive a signal, and the outside forwards its own."""
    script = 'trap "echo received; exit 6" TERM; echo up; while :; do sleep 0.1; done'
    process = subprocess.Popen(
        lab_command("--server", "none", "--", "sh", "-c", script),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    with _killed_on_exit(process):
        assert process.stdout is not None and process.stderr is not None
        assert process.stdout.readline() == "up\n"
        kill(process.pid, number)
        assert process.stdout.read() == "received\n"
        assert "Traceback" not in process.stderr.read()
        assert process.wait(TIMEOUT_S) == 6


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)], ids=["INT", "TERM", "HUP"]
)
def test_the_exit_code_is_that_of_the_received_signal(number: signal.Signals, code: int) -> None:
    """The inside gets a SIGTERM for each of these, and ends as after Ctrl-C."""
    inside = 'trap "exit 130" TERM; echo up; while :; do sleep 0.05; done'
    intermediate = f"bash -c '{inside}' & wait $!"
    script = (
        "import os, sys\nfrom howfar.lab.sandbox import run_forwarding_signals\n"
        f"sys.exit(run_forwarding_signals(['bash', '-c', {intermediate!r}], os.environ))"
    )
    command = ("env", f"--default-signal={number.name[3:]}", sys.executable, "-c", script)
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True)
    with _killed_on_exit(process):
        assert process.stdout is not None
        assert process.stdout.readline() == "up\n"
        os.kill(process.pid, number)
        assert process.wait(TIMEOUT_S) == code


def test_a_signal_before_the_inside_exists_reaches_it() -> None:
    """The intermediate program starts its child only after it has read a line."""
    intermediate = "read line; sleep 600 & wait $!"
    script = (
        "import os, sys\nfrom howfar.lab.sandbox import run_forwarding_signals\n"
        f"sys.exit(run_forwarding_signals(['bash', '-c', {intermediate!r}], os.environ))"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, start_new_session=True
    )
    with _killed_on_exit(process):
        wait_until(lambda: bool(children_of(process.pid)), "the intermediate program")
        os.kill(process.pid, signal.SIGINT)
        # The signal is no longer pending, and the program has no child yet.
        wait_until(lambda: not _pending(process.pid) & 1 << signal.SIGINT - 1, "the signal to be taken")
        assert process.stdin is not None
        process.stdin.write(b"\n")
        process.stdin.close()
        assert process.wait(TIMEOUT_S) == 128 + signal.SIGTERM


@pytest.mark.parametrize(("handler", "code"), [("SIG_IGN", 7), ("SIG_DFL", 128 + signal.SIGTERM)])
def test_a_hangup_ends_the_inside_unless_it_was_started_to_ignore_it(handler: str, code: int) -> None:
    """SIGHUP is ignored as under nohup. The command exits by itself, with 7, when it reads a line."""
    intermediate = "sh -c 'echo up; read line; exit 7'; exit $?"
    script = f"""import os, signal, sys
from howfar.lab.sandbox import run_forwarding_signals
signal.signal(signal.SIGHUP, signal.{handler})
sys.exit(run_forwarding_signals(['bash', '-c', {intermediate!r}], os.environ))"""
    process = subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    with _killed_on_exit(process):
        assert process.stdin is not None and process.stdout is not None
        assert process.stdout.readline() == "up\n"
        os.kill(process.pid, signal.SIGHUP)
        if handler == "SIG_IGN":
            for _ in range(2):  # once it has taken a second one, the outside has handled the first
                wait_until(lambda: not _pending(process.pid) & 1 << signal.SIGHUP - 1, "the signal to be taken")
                os.kill(process.pid, signal.SIGHUP)
            process.stdin.write("\n")
            process.stdin.flush()
        assert process.wait(TIMEOUT_S) == code


def _pending(pid: int) -> int:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1], 16) for line in lines if line.startswith("ShdPnd:"))


def test_the_inside_is_process_1_and_has_only_a_loopback() -> None:
    script = (
        "import os, sys; from howfar.lab import sandbox; "
        "sys.exit(sandbox.run_inside()) if not sandbox.inside() else None; "
        "print(os.getpid(), sorted(os.listdir('/proc/sys/net/ipv4/conf')))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=TIMEOUT_S)
    assert done.stdout.strip() == "1 ['all', 'default', 'lo']", done.stderr
