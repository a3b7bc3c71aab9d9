"""`howfar` as an ordinary user in a container, without capabilities and with 256 MiB.

The container's root is read-only; it has no /sys, no HOME or TERM, and no directory for temporary files. The servers are outside, on
the same loopback interface and on Unix sockets."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

import pytest

import howfar
from howfar.engine.process import find_engine
from howfar.errors import MissingError
from howfar.lab.servers import DATABASE, USER
from tests.lab.howfar_runs import PYTHON_HOWFAR
from tests.lab.local_servers import LocalServer, make_short_directory, require_server, run_server
from tests.lab.local_stores import run_memcached, run_redis

pytestmark = pytest.mark.lab
MAX_BYTES = 256 * 2**20
TIMEOUT_S = 120
ENTER = """
set -eu
root=$1 folders=$2; shift 2
mount -t tmpfs -o mode=755 none "$root"
for folder in $folders; do
    mkdir -p "$root$folder"
    mount --bind "$folder" "$root$folder"
    mount -o remount,bind,ro "$root$folder"
done
for link in bin sbin lib lib64; do [ ! -L "/$link" ] || cp -P "/$link" "$root/"; done
mkdir -p "$root/dev" "$root/proc" "$root/tmp"
for device in null urandom; do
    : >"$root/dev/$device"
    mount --bind "/dev/$device" "$root/dev/$device"
done
mount -t proc none "$root/proc"
mount -o remount,ro "$root"
exec /usr/sbin/chroot "$root" "$@"
"""
AS_NOBODY = "setpriv --reuid nobody --regid nogroup --clear-groups --bounding-set=-all --inh-caps=-all --no-new-privs"


@dataclass(frozen=True)
class Container:
    """A container in which `folders` are visible in addition to the system's programs."""

    root: Path
    folders: tuple[Path, ...]

    def run(self, *command: str, **environment: str) -> subprocess.CompletedProcess[str]:
        folders = " ".join(str(folder) for folder in dict.fromkeys((Path("/usr"), Path("/etc"), *self.folders)))
        unshare = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "--propagation", "private"]
        inside = [*AS_NOBODY.split(), "prlimit", f"--as={MAX_BYTES}", "--", *command]
        return subprocess.run(
            [*unshare, "sh", "-c", ENTER, "sh", str(self.root), folders, *inside],
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            env={"PATH": "/usr/bin:/bin:/usr/sbin:/sbin", **environment},
        )

    def howfar(self, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
        package = str(Path(howfar.__file__).parents[1])
        return self.run(*PYTHON_HOWFAR, *words, PYTHONPATH=package, HOWFAR_ENGINE=str(find_engine()), **environment)


@pytest.fixture(scope="module")
def container_with(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Container]:
    """A function that makes a container in which some folders are also visible; skips tests if no container can be made."""
    if os.geteuid() != 0:
        pytest.skip("only root can become an ordinary user and mount a container's root")
    root = tmp_path_factory.mktemp("root")
    python = (Path(sys.base_prefix), Path(sys.prefix), Path(howfar.__file__).parents[1], find_engine().parent)

    def make(*folders: Path) -> Container:
        container = Container(root, (*python, *folders))
        done = container.run("cat", "/proc/self/status")
        if done.returncode != 0:
            pytest.skip(f"no container can be made here: {done.stderr.strip()}")
        status = dict(line.split(":\t", 1) for line in done.stdout.splitlines())
        assert "0" not in status["Uid"].split()
        assert all(int(status[name], 16) == 0 for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"))
        return container

    return make


@dataclass(frozen=True)
class OutsideServer:
    """A server outside of a container, and its addresses."""

    container: Container
    targets: tuple[str, ...]
    password: str = ""

    def howfar(self, *words: str) -> subprocess.CompletedProcess[str]:
        secret = {name: self.password for name in ("HOWFAR_PASSWORD", "PGPASSWORD") if self.password}
        return self.container.howfar(*words, **secret)


def sql_targets(kind: str, server: LocalServer) -> tuple[str, str]:
    (host, port), socket = server.address, server.unix.path
    if kind == "postgresql":
        folder = quote(socket.rpartition("/")[0], safe="")
        return f"postgresql://{USER}@{host}:{port}/{DATABASE}", f"postgresql://{USER}@{folder}:{port}/{DATABASE}"
    return f"mysql://{USER}@{host}:{port}/{DATABASE}", f"mysql://{socket}?user={USER}&db={DATABASE}"


@pytest.fixture(scope="module", params=["mariadb", "postgresql", "redis", "memcached"])
def served(
    request: pytest.FixtureRequest, container_with: Callable[..., Container], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[OutsideServer]:
    parent = make_short_directory(tmp_path_factory.mktemp("s", numbered=True))  # anybody may enter it
    if request.param in ("redis", "memcached"):
        with (run_redis if request.param == "redis" else run_memcached)(parent) as store:
            Path(store.unix.path).chmod(0o777)
            tcp = () if store.tcp is None else (f"{request.param}://{store.tcp.host}:{store.tcp.port}",)
            yield OutsideServer(container_with(parent), (*tcp, f"{request.param}://{store.unix.path}"))
        return
    require_server(request.param)
    with run_server(request.param, parent) as server:
        yield OutsideServer(container_with(parent), sql_targets(request.param, server), server.password)


def test_the_distance_is_measured_in_a_container(served: OutsideServer) -> None:
    for target in served.targets:
        done = served.howfar("--json", target)
        assert done.returncode == 0, done.stderr
        found = json.loads(done.stdout)
        assert found["failure"] is None and found["request"]["count"] > 0 and found["product"]


def test_the_screen_and_a_watch_are_shown_in_a_container(served: OutsideServer) -> None:
    target = served.targets[0]
    screen = served.howfar(target)
    assert screen.returncode == 0, screen.stderr
    assert re.match(r"\S+ [\d.]+ (on|at) \S+ is [\d.,]+ (µs|ms) away\.", screen.stdout)
    watch = served.howfar("--watch", "--count", "3", "--interval", "10ms", target)
    assert watch.returncode == 0, watch.stderr
    assert " 0 lost" in watch.stdout


def test_a_load_runs_in_a_container(served: OutsideServer) -> None:
    if not served.password:
        pytest.skip("this server has no tables to load")
    words = ("--tables", "1", "--table-size", "100", "--time", "1")
    done = served.howfar("load", served.targets[0], "oltp_point_select", *words)
    assert done.returncode == 0, done.stderr


def test_without_a_target_it_examines_the_container(container_with: Callable[..., Container]) -> None:
    done = container_with().howfar()
    assert done.returncode == 0, done.stderr
    assert "Next: " in done.stdout


def test_a_command_that_needs_a_temporary_file_reports_that_none_can_be_written(
    container_with: Callable[..., Container],
) -> None:
    done = container_with().howfar("report", "--example")
    assert done.returncode == MissingError.exit_code, done.stderr
    assert "TMPDIR" in done.stderr and "a bug in howfar" not in done.stderr
