"""Hosts that are joined and released: what keeps them up, who may use them, and which processes end together."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace

import pytest
from tests.rarely import rarely_but

from howfar.errors import LabError, UsageError
from howfar.fleet import cluster as clusters
from howfar.fleet import node
from howfar.fleet.cluster import FileCluster, bring_up, check_paths_visible, enter, keep_up, take_down
from howfar.fleet.guard import parse_message
from howfar.fleet.hosts_file import parse_hosts
from howfar.fleet.node import NodeMessage

TWO = '[hosts.a]\naddress = "10.0.0.1"\nssh = "local"\n[hosts.b]\naddress = "10.0.0.2"\n'
TIMEOUT_S = 20.0
_GUARD = f"""#!{sys.executable}
import json, os, sys, time
directory, lifeline = sys.argv[3:5]
sys.stdin.read()
open(directory + "/environment.json", "w").write(json.dumps(dict(os.environ)))
open(directory + "/state.new", "w").write(json.dumps({{name: {{"state": "started"}} for name in "ab"}}))
os.rename(directory + "/state.new", directory + "/state.json")
if os.read(int(lifeline), 1):
    time.sleep(60)
"""
"""Stands in for the guard; its hosts have started at once."""


def _until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + TIMEOUT_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FileCluster:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "guard").write_text(_GUARD)
    (tmp_path / "guard").chmod(0o755)
    monkeypatch.setattr(clusters, "install_on_host", lambda name, host: None)
    monkeypatch.setattr(clusters, "sys", SimpleNamespace(executable=str(tmp_path / "guard"), argv=["howfar"]))
    return FileCluster(tmp_path / "hosts.toml", parse_hosts(TWO), "10.0.0.1")


def test_the_guard_ends_with_the_command_unless_it_stays(
    cluster: FileCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOWFAR_PASSWORD", "a secret")
    with keep_up(cluster):
        assert cluster.is_up() and not cluster.is_coming_up()
        with pytest.raises(UsageError, match="are up already"), bring_up(cluster):
            pass
    assert not cluster.is_up()
    with pytest.raises(KeyboardInterrupt), bring_up(cluster):
        raise KeyboardInterrupt
    assert not cluster.is_up()
    with bring_up(cluster) as guard:
        guard.stay()
    assert cluster.is_up()
    environment = json.loads((cluster.directory / "environment.json").read_text())
    assert "HOWFAR_PASSWORD" not in environment
    take_down(cluster)
    assert not cluster.is_up()
    guard.process.wait()


def test_while_one_command_joins_hosts_others_do_not(cluster: FileCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    begun, go_on = threading.Event(), threading.Event()

    def slow(name: str, host: object) -> dict[str, object]:
        begun.set()
        assert go_on.wait(TIMEOUT_S)
        return {}

    monkeypatch.setattr(clusters, "install_on_host", slow)
    joined, may_end = threading.Event(), threading.Event()

    def first() -> None:
        with bring_up(cluster):
            joined.set()
            assert may_end.wait(TIMEOUT_S)

    thread = threading.Thread(target=first)
    thread.start()
    assert begun.wait(TIMEOUT_S)
    for other in (
        lambda: take_down(cluster),
        lambda: enter(cluster),
        lambda: keep_up(cluster).__enter__() or enter(cluster),
    ):
        with pytest.raises(UsageError, match="another command is joining"):
            other()
    with pytest.raises(UsageError, match="another command is joining"), bring_up(cluster):
        pass
    go_on.set()
    assert joined.wait(TIMEOUT_S)
    assert cluster.is_up() and set(cluster.state()) == {"a", "b"}, "the others left the first one's files alone"
    may_end.set()
    thread.join()
    assert not cluster.is_up()


def test_hosts_that_could_not_be_joined_may_be_joined_again(
    cluster: FileCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(name: str, host: object) -> None:
        raise LabError(f"host {name} cannot be reached")

    monkeypatch.setattr(clusters, "install_on_host", fail)
    for _ in range(2):
        with pytest.raises(LabError, match="cannot be reached"), bring_up(cluster):
            pass
        assert not cluster.is_up()


def test_hosts_in_use_or_of_a_file_that_changed_are_not_entered(cluster: FileCluster, tmp_path: Path) -> None:
    changed = FileCluster(cluster.path, parse_hosts(TWO.replace("10.0.0.2", "10.0.0.3")), cluster.address)
    with keep_up(cluster):
        with pytest.raises(UsageError, match="has changed"), keep_up(changed):
            enter(changed)
        with (cluster.directory / "used").open("w") as used:
            fcntl.flock(used, fcntl.LOCK_EX)
            with pytest.raises(UsageError, match="in use by another command"):
                enter(cluster)


def test_hosts_in_use_are_taken_down_only_by_force(cluster: FileCluster) -> None:
    with bring_up(cluster) as guard:
        guard.stay()
    with (cluster.directory / "used").open("w") as used:
        fcntl.flock(used, fcntl.LOCK_EX)
        with pytest.raises(UsageError, match="in use by another command") as refused:
            take_down(cluster)
        assert "--force" in refused.value.advice and cluster.is_up()
        take_down(cluster, force=True)
    assert not cluster.is_up()
    guard.process.wait()


def test_a_command_whose_cluster_went_down_names_its_run_file(
    cluster: FileCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(*_: object, **__: object) -> int:
        cluster.record_run_file(Path("mine.howfar"))
        take_down(cluster, force=True)
        return 137

    monkeypatch.setattr(clusters, "_command_inside", lambda cluster: [])
    monkeypatch.setattr(clusters, "run_forwarding_signals", killed)
    with bring_up(cluster) as guard:
        guard.stay()
    with pytest.raises(LabError, match="went down") as ended:
        enter(cluster)
    assert "`howfar resume mine.howfar`" in ended.value.advice
    guard.process.wait()


def test_a_guard_that_has_ended_needs_no_end(cluster: FileCluster) -> None:
    cluster.directory.mkdir(parents=True)
    gone = subprocess.Popen(["true"])
    gone.wait()
    (cluster.directory / "pid").write_text(str(gone.pid))
    with (cluster.directory / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        take_down(cluster)
    with pytest.raises(UsageError, match="are not up"):
        take_down(cluster)


@pytest.mark.parametrize("words", [["run", "--out", "/dev/shm/x.howfar"], ["run", "--out=/dev/shm/x.howfar"]])
def test_files_that_the_sandbox_covers_are_refused(words: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match=r"/dev/shm/x\.howfar is in /dev/shm"):
        check_paths_visible(words)
    check_paths_visible(
        ["run", "paths", "--on", "hosts.toml", "--dsn", "mysql://me@10.0.0.2/shop", "--out", "x.howfar"]
    )
    monkeypatch.chdir("/dev/shm")
    with pytest.raises(UsageError, match="/dev/shm is in"):
        check_paths_visible(["run", "paths", "--on", "/etc/hosts.toml"])


@pytest.mark.parametrize("line", [b"", b"Welcome!\n", b"[]\n", b"12\n", b'"started"\n', b"null\n"])
def test_a_line_that_is_no_object_says_nothing(line: bytes) -> None:
    assert parse_message(line) == NodeMessage()
    assert parse_message(b'{"started": true}\n') == NodeMessage(started=True)


def test_a_child_that_another_thread_has_reaped_ends_no_watch(monkeypatch: pytest.MonkeyPatch) -> None:
    ray, other = subprocess.Popen(["sleep", "60"]), subprocess.Popen(["true"])
    seen: list[int] = []
    real = os.waitid

    def waitid(*arguments: int) -> os.waitid_result | None:
        found = real(*arguments)
        assert found is not None
        seen.append(found.si_pid)
        if found.si_pid == other.pid:
            other.wait()
            ray.kill()
        return found

    monkeypatch.setattr(os, "waitid", waitid)
    node.watch(ray)
    assert seen[-2:] == [other.pid, ray.pid] and ray.returncode == -signal.SIGKILL


_CHILD = """
import os, signal, sys, time
from howfar.lab.kernel import die_with_parent
from howfar.lab.sandbox import install_signal_handlers
die_with_parent()
try:
    install_signal_handlers()
    print("up", flush=True)
    time.sleep(30)
except KeyboardInterrupt:
    time.sleep(0.2)
    os._exit(7)
"""
_BETWEEN = """
import os, signal, subprocess, sys
signal.signal(signal.SIGINT, signal.SIG_DFL)
child = subprocess.Popen([sys.executable, "-c", sys.argv[1]])
os._exit(child.wait())
"""
"""Behaves like nsenter, which a signal kills together with its child."""


@pytest.mark.slow
@pytest.mark.parametrize("kill", [os.kill, os.killpg])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_is_for_the_command_inside(kill: Callable[[int, int], None], number: signal.Signals) -> None:
    program = (
        "import os, sys; from howfar.lab.sandbox import run_forwarding_signals; "
        f"sys.exit(run_forwarding_signals([sys.executable, '-c', {_BETWEEN!r}, {_CHILD!r}], os.environ, block_signals=True))"
    )
    command = ["env", "--default-signal=INT", sys.executable, "-c", program]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, start_new_session=True)
    try:
        assert process.stdout is not None and process.stdout.readline() == b"up\n"
        kill(process.pid, number)
        assert process.wait(TIMEOUT_S) == 7
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


@pytest.mark.slow
def test_the_guard_ends_itself_when_its_lifeline_does() -> None:
    program = (
        "import os, signal, sys, threading; from howfar.fleet import guard; "
        "signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM}); "
        "threading.Thread(target=guard._follow_lifeline, args=(int(sys.argv[1]),), daemon=True).start(); "
        "print('up', flush=True); sys.exit(3 if signal.sigtimedwait({signal.SIGTERM}, 1.0) else 4)"
    )

    def ended(word: bytes) -> int:
        heard, lifeline = os.pipe()
        process = subprocess.Popen(
            [sys.executable, "-c", program, str(heard)], pass_fds=(heard,), stdout=subprocess.PIPE
        )
        os.close(heard)
        assert process.stdout is not None and process.stdout.readline() == b"up\n"
        os.write(lifeline, word)
        os.close(lifeline)
        return process.wait(TIMEOUT_S)

    assert (ended(b""), ended(b"\n")) == (3, 4)


@pytest.mark.slow
@pytest.mark.parametrize("unbuffered", rarely_but([""], ["", "1"]))
def test_what_holds_our_stderr_goes_on_writing_there_when_rays_output_goes_to_a_file(
    unbuffered: str, tmp_path: Path
) -> None:
    """The screen of a run opened its stream before the hosts were joined."""
    script = """
import os, sys
from pathlib import Path
from howfar.fleet.ray_driver import redirect_stderr
held = sys.stderr
redirect_stderr(Path(sys.argv[1]))
print("held", file=held)
print("new", file=sys.stderr)
os.write(2, b"of Ray")
"""
    pytest.importorskip("ray", reason="Ray is not installed: ./setup --hosts brings it")
    log = tmp_path / "log"
    environment = {**os.environ, "PYTHONUNBUFFERED": unbuffered}
    done = subprocess.run([sys.executable, "-c", script, log], capture_output=True, text=True, env=environment)
    assert (done.returncode, done.stderr, log.read_text()) == (0, "held\nnew\n", "of Ray")
