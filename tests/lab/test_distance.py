"""`howfar TARGET` on real servers and on other peers: its report, the server's own counters, and its failures."""

from __future__ import annotations

import itertools
import json
import os
import re
import signal
import socket
import ssl
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from howfar.distance.record import MAX_CONNECTS, MAX_REQUESTS, schema_text
from howfar.lab.servers import DATABASE, USER
from tests.lab import certificates
from tests.lab.howfar_runs import PYTHON_HOWFAR, call_howfar, run_howfar
from tests.lab.listeners import Handler, serve_tcp
from tests.lab.local_servers import SERVERS, LocalServer, run_server
from tests.lab.local_stores import free_port, run_memcached, run_redis
from tests.rarely import rarely_but

pytestmark = pytest.mark.lab
TIMEOUT_S = 60


def measure(*words: str, **environment: str) -> dict[str, Any]:
    """The JSON of a successful measurement."""
    done = call_howfar("--json", *words, env=environment)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    assert found["failure"] is None
    return found


def fail(code: int, *words: str) -> dict[str, str]:
    """The failure in the JSON of a measurement that ends with this exit code."""
    done = call_howfar("--json", *words)
    assert done.returncode == code, done.stderr
    failure: dict[str, str] = json.loads(done.stdout)["failure"]
    return failure


def password_of(server: LocalServer) -> dict[str, str]:
    return {"HOWFAR_PASSWORD": server.password}


@pytest.fixture(scope="module", params=SERVERS)
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalServer]:
    with run_server(request.param, tmp_path_factory.mktemp("s", numbered=True)) as found:
        yield found


def tcp_url(server: LocalServer, **parameters: str) -> str:
    host, port = server.address
    query = "&".join(f"{name.replace('_', '-')}={value}" for name, value in parameters.items())
    return f"mysql://{USER}@{host}:{port}/{DATABASE}" + (f"?{query}" if query else "")


def socket_url(server: LocalServer) -> str:
    return f"mysql://{server.process.socket}?user={USER}&db={DATABASE}"


def read_counters(server: LocalServer) -> dict[str, int]:
    names = ("Connections", "Aborted_connects", "Aborted_clients", "Com_select")
    rows = server.execute(f"SHOW GLOBAL STATUS WHERE Variable_name IN {names}")
    return {str(row["Variable_name"]): int(str(row["Value"])) for row in rows}


@pytest.mark.parametrize("make_url", [tcp_url, socket_url])
def test_the_screen_begins_with_the_answer_and_fits(
    server: LocalServer, make_url: Callable[[LocalServer], str]
) -> None:
    done = run_howfar(make_url(server), env=password_of(server))
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert re.fullmatch(r"(MariaDB|MySQL) [\d.]+ (on|at) \S+ is [\d.,]+ (µs|ms) away\.", lines[0]), lines[0]
    assert len(lines) <= 22 and max(map(len, lines)) <= 80
    assert lines[-1].startswith("Next: howfar ")
    assert server.password not in done.stdout + done.stderr


def test_the_server_counts_the_documented_requests_and_no_aborted_connection(server: LocalServer) -> None:
    before = read_counters(server)
    found = measure(tcp_url(server), HOWFAR_PASSWORD=server.password)
    after = read_counters(server)
    grown = {name: after[name] - before[name] for name in before}
    count, pings = found["request"]["count"], found["ping"]["count"]
    # howfar's connections, and the one that read the counters the second time.
    assert grown["Connections"] == found["connection"]["count"] + 1 <= MAX_CONNECTS
    assert grown["Aborted_connects"] == grown["Aborted_clients"] == 0
    # The first request, the identity, three to find out how many fit into the time, and the measured ones. Pings are no selects.
    assert count + 5 <= grown["Com_select"] <= count + 6
    assert count + pings + 5 <= MAX_REQUESTS


def test_the_record_has_all_parts(server: LocalServer) -> None:
    found = measure(tcp_url(server), HOWFAR_PASSWORD=server.password)
    assert found["path"]["kind"] == "loopback" and found["path"]["between"] == []
    assert [step["name"] for step in found["connection"]["steps"]][:2] == ["connect", "greeting"]
    assert 0 < found["network_ns"] <= found["request"]["p50_ns"]
    assert len(found["request"]["samples_ns"]) == found["request"]["count"]
    assert [page["requests"] for page in found["pages"]] == [10, 60, 200]


def test_a_wrong_password_is_tried_once_and_refused(server: LocalServer) -> None:
    before = read_counters(server)["Aborted_connects"]
    done = call_howfar("--json", tcp_url(server), env={"HOWFAR_PASSWORD": "not-this-one"})
    assert done.returncode == 11
    failure = json.loads(done.stdout)["failure"]
    assert failure["step"] == "login" and failure["advice"]
    assert "not-this-one" not in done.stdout + done.stderr
    assert read_counters(server)["Aborted_connects"] - before == 1


def test_a_violated_limit_has_its_own_exit_code(server: LocalServer) -> None:
    assert call_howfar("--fail-if", "p50>0ms", tcp_url(server), env=password_of(server)).returncode == 9
    assert call_howfar("--fail-if", "p50>10s", tcp_url(server), env=password_of(server)).returncode == 0


def test_a_limit_of_p99_is_measured_with_enough_requests(server: LocalServer) -> None:
    words = ("--strict", "--fail-if", "p99>10s", tcp_url(server))
    done = call_howfar("--json", *words, env=password_of(server))
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["request"]["count"] == 368
    few = call_howfar("--count", "100", *words, env=password_of(server))
    assert few.returncode == 2 and "--count 368" in few.stderr


def test_bandwidth_is_one_answer_of_8_mib(server: LocalServer) -> None:
    found = measure("--bandwidth", tcp_url(server), HOWFAR_PASSWORD=server.password)
    if found["bandwidth"] is None:
        pytest.skip("max_allowed_packet of this server is smaller than the answer")
    assert 8 * 2**20 <= found["bandwidth"]["bytes"] <= 8.1 * 2**20


def test_a_watch_ends_after_its_count_with_a_summary(server: LocalServer) -> None:
    words = ("--watch", "--interval", "10ms", "--count", "20", tcp_url(server))
    done = call_howfar(*words, env=password_of(server))
    assert done.returncode == 0, done.stderr
    # A busy machine may skip some requests, but loses none.
    summary = re.search(r"^20 requests: (\d+) answered, 0 lost, (\d+) skipped", done.stdout, re.MULTILINE)
    assert summary and int(summary[1]) + int(summary[2]) == 20, done.stdout
    lines = call_howfar("--json", *words, env=password_of(server)).stdout.splitlines()
    assert 0 < len(lines) <= 20 and all(json.loads(line)["latency_ns"] > 0 for line in lines)
    assert {json.loads(line)["target"] for line in lines} == {tcp_url(server)}
    schema = Draft202012Validator(json.loads(schema_text()))
    assert all(schema.is_valid(json.loads(line)) for line in lines) and not schema.is_valid({"latency_ns": 1})


# ---------------------------------------------------------------- the other servers


def test_redis_counts_the_documented_requests(tmp_path: Path) -> None:
    with run_redis(tmp_path) as store:
        found = measure(f"redis://127.0.0.1:{store.port}")
        # The first request, three to find out how many fit into the time, and the measured ones.
        assert store.calls("get") == found["request"]["count"] + 4
        assert store.calls("ping") == found["ping"]["count"]
        assert store.calls("set") == 0
        assert found["product"].startswith("Redis ")
        local = measure(f"redis://{store.unix.path}")
        assert local["path"]["kind"] == "socket" and local["network_ns"] is None


def test_a_redis_with_a_password_is_refused_without_and_measured_with_it(tmp_path: Path) -> None:
    with run_redis(tmp_path, "--requirepass", "sesame") as store:
        target = f"redis://127.0.0.1:{store.port}"
        refused = call_howfar(target)
        assert refused.returncode == 11 and "NOAUTH" in refused.stderr
        assert measure(target, REDISCLI_AUTH="sesame")["request"]["refusal"] is None
        done = call_howfar("--json", f"redis://:sesame@127.0.0.1:{store.port}")
        assert done.returncode == 0 and "sesame" not in done.stdout + done.stderr


def test_memcached(tmp_path: Path) -> None:
    with run_memcached(tmp_path) as store:
        found = measure(f"memcached://{store.unix.path}")
        assert found["product"].startswith("Memcached ") and found["request"]["count"] == 326


def test_the_protocol_of_a_silent_port_is_found_by_asking(tmp_path: Path) -> None:
    with run_redis(tmp_path) as store:
        done = call_howfar("--json", f"127.0.0.1:{store.port}")
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout)["product"].startswith("Redis ") and "redis://" in done.stderr


# ---------------------------------------------------------------- peers that are not servers


def silence(connection: socket.socket) -> None:
    connection.recv(1)
    threading.Event().wait(TIMEOUT_S)


def hang_up(connection: socket.socket) -> None:
    connection.close()


def text(connection: socket.socket) -> None:
    connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n\x1b[2J\x1b]0;owned\x07")


def endless(connection: socket.socket) -> None:
    while True:
        connection.sendall(b"\x00" * 65536)


def drip(connection: socket.socket) -> None:
    while True:
        connection.sendall(b"\x4a")
        time.sleep(0.05)


@pytest.mark.parametrize("scheme", ["mysql", "postgresql", "redis", "memcached"])
@pytest.mark.parametrize("handle", [silence, hang_up, text, endless, drip])
def test_a_peer_that_is_not_a_server_is_left_within_the_timeout(scheme: str, handle: Handler) -> None:
    with serve_tcp(handle) as port:
        began = time.monotonic()
        account = "" if scheme == "memcached" else "u:pass-word@"
        done = call_howfar("--json", "--timeout", "300ms", f"{scheme}://{account}127.0.0.1:{port}")
        assert done.returncode in (10, 11), done.stderr
        failure = json.loads(done.stdout)["failure"]
        assert failure["message"] and failure["advice"]
        assert "pass-word" not in done.stdout + done.stderr
        assert "\x1b" not in done.stdout + done.stderr
        # At most four steps have 300 ms each; the limit allows for a busy machine.
        assert time.monotonic() - began < 30


@pytest.mark.parametrize(
    ("target", "code", "fragment"),
    [
        ("mysql://u@127.0.0.1:{port}/", 10, "refused"),
        ("mysql://u@no-such-host.invalid/", 10, "not known"),
        ("mysql:///tmp/no-such-socket.sock?user=u", 10, "No such file"),
        ("pyproject.toml", 2, ""),
        ("bareword", 2, ""),
    ],
)
def test_the_error_of_an_unreachable_target_is_short(target: str, code: int, fragment: str) -> None:
    done = call_howfar(target.format(port=free_port()))
    assert done.returncode == code, done.stderr
    assert fragment in done.stderr and "Traceback" not in done.stderr
    assert len(done.stderr.splitlines()) <= 4


# ---------------------------------------------------------------- interrupted, and an outage


class Gate:
    """Forwards connections to a server and closes after `max_queries`: then it withholds the server's answers."""

    def __init__(self, server: LocalServer, max_queries: int) -> None:
        self.is_shut = threading.Event()
        self.client_ended = threading.Event()
        """The client ended the connection whose answer was withheld."""
        self.last_bytes = b""
        """What the client sent on that connection after the query."""
        self._server, self._queries_left = server, max_queries

    def handle(self, connection: socket.socket) -> None:
        upstream = socket.create_connection(self._server.address)
        threading.Thread(target=self._answers, args=(upstream, connection), daemon=True).start()
        while data := connection.recv(65536):
            if self.is_shut.is_set():
                self.last_bytes += data
            self._queries_left -= b"SELECT 1" in data
            if self._queries_left < 0:
                self.is_shut.set()
            upstream.sendall(data)
        if self.is_shut.is_set():
            self.client_ended.set()
        with suppress(OSError):  # the server may have closed it after the client's goodbye
            upstream.shutdown(socket.SHUT_WR)

    def _answers(self, upstream: socket.socket, connection: socket.socket) -> None:
        with suppress(OSError), upstream:
            while data := upstream.recv(65536):
                if not self.is_shut.is_set():
                    connection.sendall(data)
            connection.shutdown(socket.SHUT_WR)


@contextmanager
def start(*words: str, **environment: str) -> Iterator[subprocess.Popen[str]]:
    """A running `howfar`."""
    process = subprocess.Popen(
        ["env", "--default-signal=INT,HUP", *PYTHON_HOWFAR, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env={**os.environ, **environment}, start_new_session=True,
    )  # fmt: skip
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


_COM_QUIT = b"\1\0\0\0\1"
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGKILL)
_USUAL_SIGNALS = ((False, signal.SIGINT), (True, signal.SIGTERM), (True, signal.SIGHUP), (False, signal.SIGKILL))
"""Whether the command watches, and the signal."""


@pytest.mark.parametrize("case", rarely_but(_USUAL_SIGNALS, itertools.product((False, True), _SIGNALS)))
def test_a_signal_during_a_request_ends_the_session_with_a_goodbye(
    server: LocalServer, case: tuple[bool, signal.Signals]
) -> None:
    watches, number = case
    watch = ("--watch", "--interval", "10ms") if watches else ()
    before = read_counters(server)["Aborted_clients"]
    gate = Gate(server, max_queries=8)
    with serve_tcp(gate.handle) as port:
        target = tcp_url(server, ssl_mode="DISABLED").replace(str(server.address[1]), str(port), 1)
        with start(*watch, target, HOWFAR_PASSWORD=server.password) as process:
            assert gate.is_shut.wait(TIMEOUT_S)
            process.send_signal(number)
            out, err = process.communicate(timeout=TIMEOUT_S)
            assert gate.client_ended.wait(TIMEOUT_S)
    interrupted = 0 if watch and number == signal.SIGINT else 128 + number
    assert process.returncode == (-number if number == signal.SIGKILL else interrupted), err
    assert gate.last_bytes == _COM_QUIT
    if number != signal.SIGKILL:
        assert "answered, 0 lost" in out if watch else (out, err) == ("", "howfar: interrupted\n")
    assert read_counters(server)["Aborted_clients"] == before


def reply_nil(connection: socket.socket) -> None:
    """Answer like a Redis without keys."""
    lines = iter(connection.makefile("rb"))
    for line in lines:
        for _ in range(int(line[1:])):
            next(lines), next(lines)
        connection.sendall(b"$-1\r\n")


def test_an_outage_has_its_lost_requests_and_its_end() -> None:
    lines: list[dict[str, Any]] = []

    def read_until(process: subprocess.Popen[str], is_last: Callable[[dict[str, Any]], bool]) -> None:
        assert process.stdout is not None
        for text in process.stdout:
            lines.append(json.loads(text))
            if is_last(lines[-1]):
                return
        raise AssertionError(lines)

    with ExitStack() as stack:
        with serve_tcp(reply_nil) as port:
            process = stack.enter_context(start("--watch", "--interval", "10ms", "--json", f"redis://127.0.0.1:{port}"))
            read_until(process, lambda line: line["latency_ns"] is not None)
        read_until(process, lambda line: line.get("lost") == "no connection")
        with serve_tcp(reply_nil, port):
            read_until(process, lambda line: "outage" in line)
            process.send_signal(signal.SIGINT)
            process.communicate(timeout=TIMEOUT_S)
    outage, lost = lines[-1], [line for line in lines[:-1] if line["lost"] is not None]
    assert (process.returncode, outage["outage"], outage["lost"], outage["why"]) == (
        0, "unreachable", len(lost), lost[0]["lost"],
    )  # fmt: skip
    assert lost[0]["at"] == outage["began"] < outage["ended"]
    assert (len(lost) - 1) * 10_000_000 <= outage["took_ns"] < (len(lost) + 1) * 10_000_000


ERRORS = {
    "memcached": b"SERVER_ERROR out of memory storing object\r\n",
    "redis": b"-LOADING Redis is loading the dataset in memory\r\n",
    "": b"-MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'.\r\n",
}


@contextmanager
def serve_errors(error: bytes, after: int = 0) -> Iterator[int]:
    """A store that answers all requests with an error, except the first `after` GETs, for which it has no key."""

    def handle(connection: socket.socket) -> None:
        lines = iter(connection.makefile("rb"))
        answered = 0
        for line in lines:
            words = [line.strip().lower()]
            if line.startswith(b"*"):
                words = [(next(lines), next(lines))[1].strip().lower() for _ in range(int(line[1:]))]
            connection.sendall(b"$-1\r\n" if words[0] == b"get" and answered < after else error)
            answered += words[0] == b"get"

    with serve_tcp(handle) as port:
        yield port


@pytest.mark.parametrize("kind", ERRORS)
def test_error_replies_are_a_failure_and_not_measured(kind: str) -> None:
    error = ERRORS[kind].decode().strip().lstrip("-")
    with serve_errors(ERRORS[kind]) as port:
        done = call_howfar(
            "--json", "--fail-if", "p50>10s", f"{kind}://127.0.0.1:{port}" if kind else f"127.0.0.1:{port}"
        )
    found = json.loads(done.stdout)
    assert done.returncode == 11, done.stderr
    assert (found["request"], found["passed"], found["failure"]["code"]) == (None, None, "server_error")
    assert error in done.stderr and error in found["failure"]["message"] and found["first_request_ns"] > 0


def test_errors_after_good_answers_are_noticed() -> None:
    with serve_errors(ERRORS["redis"], after=100) as port:
        done = call_howfar(f"redis://127.0.0.1:{port}")
        assert done.returncode == 11 and "LOADING" in done.stderr
    with serve_errors(ERRORS["redis"], after=4) as port:
        words = ("--watch", "--interval", "10ms", "--count", "6", f"redis://127.0.0.1:{port}")
        lines = [json.loads(line) for line in call_howfar("--json", *words).stdout.splitlines()]
    *lines, outage = lines
    errors = [line["lost"] for line in lines if line["latency_ns"] is None]
    assert errors and all("LOADING" in error for error in errors) and len(errors) < len(lines)
    assert (outage["outage"], outage["ended"], outage["lost"]) == ("errors", None, len(errors))


# ---------------------------------------------------------------- unexpected peers, bare addresses, and outputs


def test_another_kind_of_server_is_not_measured_as_memcached(tmp_path: Path) -> None:
    with run_redis(tmp_path) as store:
        failure = fail(10, f"memcached://127.0.0.1:{store.port}")
    assert failure["code"] == "other_protocol" and "redis://" in failure["advice"]


BANNERS = {
    "MySQL": b"J\0\0\0\x0a5.5.5-10.11.6-MariaDB\0" + bytes(60),
    "SSH": b"SSH-2.0-OpenSSH_9.2p1\r\n",
    "HTTP": b"HTTP/1.1 400 Bad Request\r\n\r\n",
    "mail": b"220 mail.example ESMTP\r\n",
}


@pytest.mark.parametrize("product", BANNERS)
@pytest.mark.parametrize(
    "target", ["postgres://u@{}/d", "redis://{}", "rediss://{}", "memcached://{}", "mysql://u@{}/", "{}"]
)
def test_a_server_is_recognised_by_its_first_bytes(target: str, product: str) -> None:
    if product == "MySQL" and not target.startswith(("postgres", "redis", "memcached")):
        return  # its greeting is the expected one

    def greet(connection: socket.socket) -> None:
        connection.sendall(BANNERS[product])
        silence(connection)

    with serve_tcp(greet) as port:
        failure = fail(10, "--timeout", "1s", target.format(f"127.0.0.1:{port}"))
    assert failure["code"] == "other_protocol" and product in failure["message"]


@contextmanager
def tls_peer(folder: Path) -> Iterator[int]:
    """A peer that completes TLS handshakes and closes other connections, as Redis does on its TLS port."""
    pair = certificates.make_certificates(folder).server
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pair.certificate, pair.key)

    def handle(connection: socket.socket) -> None:
        with connection, context.wrap_socket(connection, server_side=True) as channel:
            channel.recv(1)

    with serve_tcp(handle) as port:
        yield port


@pytest.mark.parametrize(
    ("target", "instead"),
    [("redis://{}", "rediss://"), ("memcached://{}", "memcacheds://"), ("{}", "rediss://"),
     ("postgres://u@{}/d", "sslnegotiation=direct")],
)  # fmt: skip
def test_a_server_that_expects_tls_is_named(target: str, instead: str, tmp_path: Path) -> None:
    with tls_peer(tmp_path) as port:
        failure = fail(10, target.format(f"127.0.0.1:{port}"))
    assert failure["code"] == "other_protocol" and "TLS" in failure["message"] and instead in failure["advice"]


@pytest.mark.parametrize("scheme", ["rediss", "mysql", "postgresql"])
def test_a_server_of_another_protocol_is_named(scheme: str, tmp_path: Path) -> None:
    account = "" if scheme == "rediss" else "u:pass-word@"
    with run_redis(tmp_path) as store:
        failure = fail(10, "--timeout", "500ms", f"{scheme}://{account}127.0.0.1:{store.port}")
    assert failure["code"] == "other_protocol" and "Redis" in failure["message"] and "redis://" in failure["advice"]


def test_a_bare_address_without_a_listener_is_unreachable() -> None:
    failure = fail(10, f"127.0.0.1:{free_port()}")
    assert failure["step"] == "connect" and "refused" in failure["message"]


@pytest.mark.parametrize("name", ["", "missing/x.prom"])
def test_a_file_that_cannot_be_written_does_not_lose_the_measurement(name: str, tmp_path: Path) -> None:
    with run_redis(tmp_path) as store:
        done = call_howfar("--json", "--prometheus", str(tmp_path / name), f"redis://127.0.0.1:{store.port}")
    assert done.returncode == 6 and "cannot be written" in done.stderr
    assert json.loads(done.stdout)["request"]["count"] > 0


@pytest.mark.parametrize(("handle", "code"), [(silence, "protocol"), (text, "other_protocol")])
def test_a_bare_address_without_a_server_is_a_failure(handle: Handler, code: str) -> None:
    with serve_tcp(handle) as port:
        done = call_howfar("--json", "--timeout", "300ms", f"127.0.0.1:{port}")
    found = json.loads(done.stdout)
    assert (done.returncode, found["exit_code"], found["failure"]["code"]) == (10, 10, code), done.stderr
    assert found["target"] == f"127.0.0.1:{port}"


@pytest.mark.parametrize("kind", ["", "redis"])
def test_an_error_of_several_lines_is_printed_as_one_line(kind: str) -> None:
    forged = b"-ERR\thowever\x1b[2J\x85howfar: a line that\xe2\x80\xa8howfar: is no line\r\n"
    with serve_errors(forged) as port:
        done = call_howfar(f"{kind}://127.0.0.1:{port}" if kind else f"127.0.0.1:{port}")
    assert done.returncode == 11 and re.search("[\x00-\x09\x0b-\x1f\x7f-\x9f\u2028]", done.stderr) is None
    assert not any(line.startswith(("howfar: a", "howfar: is")) for line in done.stderr.splitlines())


@pytest.mark.parametrize("words", [("--timeout", "1us"), ("--timeout", "9ms", "--watch")])
def test_a_limit_shorter_than_a_handshake_is_refused(words: tuple[str, ...]) -> None:
    done = call_howfar(*words, f"redis://127.0.0.1:{free_port()}")
    assert done.returncode == 2 and "10ms" in done.stderr and "firewall" not in done.stderr


def test_two_formats_on_one_output_are_refused() -> None:
    assert call_howfar("--json", "--csv", "redis://127.0.0.1:1").returncode == 2
