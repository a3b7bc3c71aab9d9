"""Agents on other hosts: how their errors come back, how long they are waited for, and that a host gets the same howfar."""

from __future__ import annotations

import io
import platform
import subprocess
import tarfile
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.unit.fake_load import events, job

from howfar.contract.messages import Begin, Begun, RttJob, UsageJob
from howfar.contract.receipt import HostReport
from howfar.engine.process import Launcher, run_probe
from howfar.errors import EngineError, LabError, UsageError
from howfar.fleet import ship
from howfar.fleet.clocks import Clocks, Offset
from howfar.fleet.hosts_file import HostSpec
from howfar.fleet.ssh import ask, tail_of_output

pytest.importorskip("ray", reason="Ray is not installed (./setup --tests brings it)")

from ray import exceptions

from howfar.fleet import load, ray_cluster, remote
from howfar.fleet.remote import Agent, HostLost, RemoteHost

HERE = HostSpec(address="10.0.0.2", ssh="local")
MINOR = ".".join(platform.python_version_tuple()[:2])


class _Here:
    """An agent in this process, with the interface of a Ray actor."""

    def __init__(self, agent: Agent) -> None:
        for method in ("run", "create", "call", "drop"):
            asked = SimpleNamespace(remote=getattr(agent, method))
            setattr(self, method, asked)


class _Server:
    def close(self) -> None:
        raise OSError(28, "No space left on device")


def _fails(error: Exception) -> None:
    raise error


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch) -> RemoteHost:
    monkeypatch.setattr(remote, "clear_preload", lambda: None)
    monkeypatch.setattr("ray.get", lambda outcome, timeout: outcome)
    return RemoteHost("b", HERE, _agent=_Here(Agent()))


@pytest.mark.parametrize(
    ("error", "advice"),
    [(OSError(28, "No space left on device"), ""), (RuntimeError("No space left on device"), "Please report this.")],
)
def test_an_error_on_a_host_is_not_its_loss(host: RemoteHost, error: Exception, advice: str) -> None:
    with pytest.raises(LabError, match=r"host b: .*No space left on device") as raised:
        host.within(_fails, error)
    assert not isinstance(raised.value, HostLost) and raised.value.advice == advice
    server = host.create(_Server)
    with pytest.raises(LabError, match="No space left"):
        server.drop()
    server.drop()


def test_what_a_lost_agent_held_is_lost_with_it(host: RemoteHost) -> None:
    server = host.create(_Server)
    host._agent = _Here(Agent())
    with pytest.raises(HostLost, match="host b: its agent was lost"):
        server.call("close")
    server.drop()


def test_a_lost_host_is_said_without_rays_names_and_the_reason_once(
    host: RemoteHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    process = remote.RemoteProcess(remote.RemoteObject(host, "process-1", 1))

    def lost(outcome: object, timeout: float) -> None:
        raise exceptions.ActorDiedError

    monkeypatch.setattr("ray.get", lost)
    with pytest.raises(HostLost) as ended:
        host.within(_fails, None)
    assert ended.value.message == "host b was lost: its agent died unexpectedly before finishing this task"
    assert process.stderr.read() == "host b was lost"


def test_an_engine_that_says_nothing_is_given_up() -> None:
    silent = Launcher(prefix=("sh", "-c", "exec sleep 60", "sh"))
    with pytest.raises(EngineError, match="did not end within 0 s"):
        run_probe(RttJob(host="10.0.0.2", port=1, count=1), silent, timeout_s=0.1)


class _Engine:
    """Stands in for an engine: one that runs a load, or one that observed processes and has stopped."""

    def __init__(self, order: Any, launcher: Any) -> None:
        self._stopped = isinstance(order, UsageJob)
        self._killed = threading.Event()
        ready, *rest = events(job())
        self._events = iter([ready, Begun(at_ns=0, late_ns=0), *rest])

    def __enter__(self) -> _Engine:
        return self

    def __exit__(self, *_: object) -> None:
        return None

    def send(self, message: Begin) -> None:
        return None

    def kill(self) -> None:
        self._killed.set()

    def read(self) -> Any:
        if not self._stopped:
            return next(self._events)
        assert self._killed.wait(20), "it must be killed"
        raise EngineError("howfar-engine usage died (signal 9)")

    def events(self) -> Iterator[Any]:
        return self._events


def test_a_meter_that_has_stopped_holds_up_no_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(load, "EngineProcess", _Engine)
    monkeypatch.setattr(load, "max_duration_s", lambda job: 0.3)
    launchers = {name: SimpleNamespace(host=RemoteHost(name, HERE)) for name in "ab"}
    told: dict[str, HostReport] = {}
    elsewhere: Mapping[str, Any] = {"b": (launchers["b"], ())}
    quiet = Clocks(Offset(0, 1), Offset(0, 1))
    client = load.LoadHosts(
        launcher=launchers["a"],  # type: ignore[arg-type]
        clocks=lambda host: quiet,
        observed_by_host=elsewhere,
        host_reports=told,
    )
    with pytest.raises(EngineError, match="did not end"):
        load.measure(job(), client, lambda event: None)


def test_a_cluster_that_another_command_uses_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    taken: set[str] = set()
    ended: list[str] = []

    class Named:
        def options(self, **chosen: Any) -> Named:
            self.name = chosen["name"]
            return self

        def remote(self) -> Named:
            if self.name in taken:
                raise ValueError("already taken")
            taken.add(self.name)
            return self

    fake = SimpleNamespace(
        remote=lambda actor: Named(),
        get_runtime_context=lambda: SimpleNamespace(get_node_id=lambda: "0" * 56),
        kill=lambda actor: ended.append(actor.name),
        exceptions=exceptions,
    )
    monkeypatch.setattr(ray_cluster, "ray", fake)
    monkeypatch.setattr(ray_cluster, "_RELEASE_TIMEOUT_S", 0.3)
    cluster = ray_cluster.ExistingCluster("10.0.0.1:6379")
    with ray_cluster._exclude_other_commands(cluster):
        assert not ended
        with pytest.raises(UsageError, match="in use by another command"), ray_cluster._exclude_other_commands(cluster):
            pass
    assert ended == ["driver"]


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home directory whose `bin` is first in PATH."""
    (tmp_path / "bin").mkdir()
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")
    monkeypatch.setattr(ship, "local_ray_version", lambda: "2.0")
    return tmp_path


def _program(file: Path, script: str) -> None:
    file.write_text(f"#!/bin/sh\n{script}")
    file.chmod(0o755)


_PYTHON = """case $1 in
-c) [ VERSION = "$(expr "$2" : '.*"\\([0-9.]*\\)":')" ] || {{ echo "its python3 is VERSION" >&2; exit 1; }};;
-m) case $2 in
  venv) mkdir -p "$3/bin"; cp "$0" "$3/bin/python"; VENV;;
  pip) echo "$@" >>"$HOME/pip.txt";;
esac;;
esac
"""


def _python(file: Path, version: str, venv: str = "true") -> None:
    _program(file, _PYTHON.replace("{{", "{").replace("}}", "}").replace("VERSION", version).replace("VENV", venv))


def _environments(home: Path) -> list[str]:
    return sorted(path.name for path in (home / ship._HOME).glob("environment-*"))


def test_an_environment_is_made_once_with_the_python_of_this_version(home: Path) -> None:
    _python(home / "bin" / f"python{MINOR}", MINOR)
    _python(home / "bin" / "python3", "3.1")
    for _ in range(2):
        ship._make_environment("b", HERE)
    assert _environments(home) == [f"environment-{ship._environment_digest()}"]
    assert len((home / "pip.txt").read_text().splitlines()) == 1 and "ray==2.0" in (home / "pip.txt").read_text()


def test_another_python_is_refused_before_anything_is_installed(home: Path) -> None:
    for name in (f"python{MINOR}", "python3"):
        _python(home / "bin" / name, "3.1")
    with pytest.raises(LabError, match=r"its python3 is 3\.1"):
        ship._make_environment("b", HERE)
    assert _environments(home) == []
    _python(home / "bin" / f"python{MINOR}", MINOR)
    ship._make_environment("b", HERE)
    assert len(_environments(home)) == 1


def test_an_environment_of_another_python_is_made_again(home: Path) -> None:
    there = home / ship._HOME / f"environment-{ship._environment_digest()}" / "bin"
    there.mkdir(parents=True)
    _python(there / "python", "3.1")
    _python(home / "bin" / f"python{MINOR}", MINOR)
    ship._make_environment("b", HERE)
    assert MINOR in (there / "python").read_text() and len(_environments(home)) == 1


def test_the_reason_that_venv_gives_on_its_output_is_shown_and_nothing_is_left(home: Path) -> None:
    _python(home / "bin" / f"python{MINOR}", MINOR, venv='echo "apt install python3-venv"; exit 1')
    with pytest.raises(LabError, match="apt install python3-venv"):
        ship._make_environment("b", HERE)
    assert _environments(home) == []


def test_a_copy_that_fails_leaves_nothing(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        archive.addfile(tarfile.TarInfo("howfar/__init__.py"))
    monkeypatch.setattr(ship, "build_archive", lambda: ("0.1.0-abc", packed.getvalue()))
    greeted: list[str] = []
    monkeypatch.setattr(ship, "_check_start", lambda name, host: greeted.append(name))
    _program(home / "bin" / "tar", 'touch "$4/half"; echo "No space left on device" >&2; exit 2')
    with pytest.raises(LabError, match="No space left on device"):
        ship.install_on_host("b", HERE)
    assert not list((home / ship._HOME).iterdir())
    (home / "bin" / "tar").unlink()
    for _ in range(2):
        ship.install_on_host("b", HERE)
    assert greeted == ["b", "b"]
    assert [path.name for path in (home / ship._HOME).iterdir()] == ["0.1.0-abc"]
    assert (home / ship._HOME / "0.1.0-abc" / "howfar" / "__init__.py").exists()


def test_an_address_that_a_host_does_not_have_is_refused_before_ray_starts_there(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ship, "build_archive", lambda: ("0.1.0-abc", b""))
    monkeypatch.setattr(ship, "check_versions", lambda name, there, ours: None)
    ship._check_start("b", HostSpec.model_construct(address="127.0.0.1", ssh="local"))
    with pytest.raises(LabError, match=r"192\.0\.2\.1 is on no interface of host b"):
        ship._check_start("b", HostSpec(address="192.0.2.1", ssh="local"))


def test_what_a_program_said_begins_with_a_line() -> None:
    long = "WARNING: " + "x" * 390
    assert (
        tail_of_output(f"{long}\n{long}\nERROR: no matching distribution\n".encode())
        == "ERROR: no matching distribution"
    )
    assert tail_of_output(b"y" * 1000) == "y" * 400 and tail_of_output(b"") == "it said nothing"


@pytest.mark.parametrize(
    ("why", "advice"),
    [
        ("ssh: connect to host 10.0.0.2 port 22: Connection refused", "sshd listen"),
        ("ssh: connect to host 10.0.0.2 port 22: Connection timed out", "sshd listen"),
        ("ssh: connect to host 10.0.0.2 port 22: No route to host", "sshd listen"),
        ("root@10.0.0.2: Permission denied (publickey).", "without a password"),
    ],
)
def test_a_host_that_is_not_there_is_no_matter_of_keys(home: Path, why: str, advice: str) -> None:
    _program(home / "bin" / "ssh", f"echo '{why}' >&2; exit 255")
    with pytest.raises(LabError) as refused:
        ask("b", HostSpec(address="10.0.0.2"), ["true"])
    assert why in refused.value.message and advice in refused.value.advice


def test_ssh_gets_no_password(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOWFAR_PASSWORD", "a secret")
    done: subprocess.CompletedProcess[bytes] = ask("b", HERE, ["env"])
    assert b"HOME=" in done.stdout and b"a secret" not in done.stdout
