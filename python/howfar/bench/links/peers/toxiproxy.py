"""toxiproxy: a TCP proxy with a latency and a bandwidth "toxic" each way, on the server's host, in front of the echo.

Its latency is per direction in whole milliseconds, its bandwidth is payload in kB/s; the note names what it does not support.
It does not emulate a network: the handshake is not delayed, and each connection has the full bandwidth.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from howfar.bench.links.figures import LinkPoint
from howfar.bench.links.probes import BareCable, ProbedLink
from howfar.bench.meter import wait_until
from howfar.errors import LabError, MissingError
from howfar.lab.cache import cache_home
from howfar.lab.network import SERVER_ADDRESS, ManagedProcess, usable_cpus

PROGRAM: Final = "toxiproxy-server"
MODULE: Final = "github.com/Shopify/toxiproxy/v2/cmd/server@latest"
_GO_PATH: Final = "/usr/local/go/bin:/usr/lib/go/bin"
_API_PORT, _PROXY_PORT = 8474, 8475
_TIMEOUT_S: Final = 20.0
_BUILD_TIMEOUT_S: Final = 600.0


class Toxiproxy:
    NAME = "toxiproxy"
    DELAYS = True

    def find(self) -> str:
        """toxiproxy's name and version. Raises MissingError."""
        program = find_program()
        output = subprocess.run(
            [program, "--version"], capture_output=True, text=True, timeout=_TIMEOUT_S
        ).stdout.strip()
        module_version = _module_version(program)
        return f"toxiproxy {module_version}" if module_version else output or PROGRAM

    @contextmanager
    def open(self, cable: BareCable) -> Iterator[Callable[[LinkPoint], tuple[ProbedLink, str]]]:
        """Start toxiproxy. Raises LabError, MissingError."""
        command = [str(find_program()), "-host", SERVER_ADDRESS, "-port", str(_API_PORT)]
        devnull = subprocess.DEVNULL
        server = ManagedProcess(
            # On all CPUs, like our emulator, not on its host's half.
            cable.server_host.launcher(usable_cpus()),
            command,
            stdin=devnull,
            stdout=devnull,
            stderr=devnull,
            env={**os.environ, "LOG_LEVEL": "error"},
        )
        try:
            api = Api(cable)
            wait_until(lambda: _responds(server, api), "toxiproxy to answer", _TIMEOUT_S)
            yield lambda point: _shape(api, cable, server.pid, point)
        finally:
            server.end()


def find_program() -> Path:
    """The program on PATH, or built into our cache. Raises MissingError."""
    on_path = shutil.which(PROGRAM)
    if on_path is not None:
        return Path(on_path)
    cached = _cached_program()
    if cached.is_file() and os.access(cached, os.X_OK):
        return cached
    raise MissingError(
        f"{PROGRAM} was not found on PATH nor in howfar's cache.",
        "`howfar bench link --against toxiproxy --build-peer` builds it with Go.",
    )


def _cached_program() -> Path:
    return cache_home() / "peers" / PROGRAM


def build() -> Path:
    """Fetch toxiproxy with Go and build it into our cache. Raises MissingError, LabError."""
    go = shutil.which("go") or shutil.which("go", path=_GO_PATH)
    if go is None:
        raise MissingError(f"the program go was not found, and toxiproxy is built with it (go install {MODULE})")
    target = _cached_program()
    build_folder = target.parent / "building"
    build_folder.mkdir(parents=True, exist_ok=True)
    try:
        completed = subprocess.run(
            [go, "install", MODULE],
            env={**os.environ, "GOBIN": str(build_folder)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=_BUILD_TIMEOUT_S,
        )
    except subprocess.TimeoutExpired as error:
        raise LabError(f"`go install {MODULE}` took more than {_BUILD_TIMEOUT_S:.0f} s", "Try again later.") from error
    if completed.returncode != 0:
        raise LabError(f"`go install {MODULE}` failed: {completed.stdout.strip()[-500:]}")
    # Moved when complete, so that no other process finds a partial program.
    (build_folder / "server").replace(target)
    shutil.rmtree(build_folder, ignore_errors=True)
    return target


def _module_version(program: Path) -> str | None:
    """The version that Go recorded; a program built by `go install` reports its version as `git`."""
    go = shutil.which("go") or shutil.which("go", path=_GO_PATH)
    if go is None:
        return None
    completed = subprocess.run([go, "version", "-m", str(program)], capture_output=True, text=True, timeout=_TIMEOUT_S)
    for line in completed.stdout.splitlines():
        fields = line.split()
        if fields[:1] == ["mod"] and len(fields) > 2 and fields[1].endswith("toxiproxy/v2"):
            return fields[2]
    return None


def _responds(server: ManagedProcess, api: Api) -> bool:
    if not server.alive():
        raise LabError("toxiproxy ended before it answered", f"Try `{PROGRAM} -host 127.0.0.1` by hand.")
    with contextlib.suppress(OSError):
        return bool(api.request("GET", "/version"))
    return False


class Api:
    """toxiproxy's HTTP interface, used from its host."""

    def __init__(self, cable: BareCable) -> None:
        self._host = cable.server_host

    def request(self, method: str, path: str, body: Mapping[str, object] | None = None) -> bytes:
        """Send a request and return the answer. Raises OSError; LabError if toxiproxy refuses it."""

        def exchange() -> tuple[int, bytes]:
            connection = http.client.HTTPConnection(SERVER_ADDRESS, _API_PORT, timeout=_TIMEOUT_S)
            with contextlib.closing(connection):
                connection.request(method, path, None if body is None else json.dumps(body))
                response = connection.getresponse()
                return response.status, response.read()

        status, content = self._host.run(exchange)
        if status >= 400:
            raise LabError(f"toxiproxy refused {method} {path}: {content[:300].decode(errors='replace')}")
        return content


@dataclass(frozen=True)
class Toxic:
    """An effect of the proxy on one direction."""

    type: str
    stream: str
    attributes: dict[str, int]

    @property
    def body(self) -> dict[str, object]:
        """The body of the request that adds it."""
        return {"name": f"{self.type}_{self.stream}", "toxicity": 1.0, **vars(self)}


def toxics(point: LinkPoint) -> tuple[list[Toxic], str]:
    """The proxy's toxics and a note. The RTT is rounded to whole milliseconds; of an odd number, the larger half is downstream."""
    rtt_ms = round(point.rtt_ms)
    requested_toxics: list[Toxic] = []
    for stream, latency in (("upstream", rtt_ms // 2), ("downstream", rtt_ms - rtt_ms // 2)):
        if latency:
            requested_toxics.append(Toxic("latency", stream, {"latency": latency, "jitter": 0}))
        if point.expected_gbit is not None:
            requested_toxics.append(Toxic("bandwidth", stream, {"rate": round(point.expected_gbit * 1e6 / 8)}))
    if rtt_ms == point.rtt_ms:
        return requested_toxics, ""
    return requested_toxics, f"requested {rtt_ms} ms: it supports whole ms only"


def _shape(api: Api, cable: BareCable, pid: int, point: LinkPoint) -> tuple[ProbedLink, str]:
    """A new proxy with its toxics, so that nothing of the previous one remains."""
    requested, note = toxics(point)
    try:
        if b'"link"' in api.request("GET", "/proxies"):
            api.request("DELETE", "/proxies/link")
        upstream = f"{SERVER_ADDRESS}:{cable.echo_port}"
        listen = f"{SERVER_ADDRESS}:{_PROXY_PORT}"
        api.request("POST", "/proxies", {"name": "link", "listen": listen, "upstream": upstream, "enabled": True})
        for toxic in requested:
            api.request("POST", "/proxies/link/toxics", toxic.body)
    except (OSError, http.client.HTTPException) as error:
        raise LabError(f"toxiproxy did not answer: {error}") from error
    return cable.probed_link(_PROXY_PORT, pid), note
