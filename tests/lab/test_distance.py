"""`howfar TARGET` on real servers and on peers that are no servers: what it reports, what the server counts, and how it fails."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import ssl
import subprocess
import sys
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
from tests.lab.servers_here import SERVERS, Running, prepared, short_directory, started
from tests.lab.stores_here import free_port, memcached, redis

pytestmark = pytest.mark.lab
HOWFAR = [sys.executable, "-c", "import sys; from howfar.cli import main; sys.exit(main())"]
MAX_S = 60


def howfar(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*HOWFAR, *words], capture_output=True, text=True, timeout=MAX_S, env={**os.environ, **environment}
    )


def measured(*words: str, **environment: str) -> dict[str, Any]:
    done = howfar("--json", *words, **environment)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    assert found["failure"] is None
    return found


@pytest.fixture(scope="module", params=SERVERS)
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    work = short_directory(tmp_path_factory.mktemp("s", numbered=True))
    with started(prepared(request.param, work)) as running:
        yield running


def url(running: Running, **parameters: str) -> str:
    host, port = running.address
    query = "&".join(f"{name.replace('_', '-')}={value}" for name, value in parameters.items())
    return f"mysql://{USER}@{host}:{port}/{DATABASE}" + (f"?{query}" if query else "")


def by_socket(running: Running) -> str:
    return f"mysql://{running.server.socket}?user={USER}&db={DATABASE}"


def status(running: Running) -> dict[str, int]:
    names = (
        "Connections",
        "Aborted_connects",
        "Aborted_clients",
        "Questions",
        "Bytes_sent",
        "Com_select",
        "Com_admin_commands",
    )
    rows = running.execute(f"SHOW GLOBAL STATUS WHERE Variable_name IN {names}")
    return {str(row["Variable_name"]): int(str(row["Value"])) for row in rows}


@pytest.mark.parametrize("of", [url, by_socket])
def test_the_screen_begins_with_the_answer_and_fits(server: Running, of: Callable[[Running], str]) -> None:
    done = howfar(of(server), HOWFAR_PASSWORD=server.password)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert re.fullmatch(r"(MariaDB|MySQL) [\d.]+ (on|at) \S+ is [\d.,]+ (µs|ms) away\.", lines[0]), lines[0]
    assert len(lines) <= 22 and max(map(len, lines)) <= 80
    assert lines[-1].startswith("Next: howfar ")
    assert server.password not in done.stdout + done.stderr


def test_the_server_counts_what_is_documented_and_nothing_aborted(server: Running) -> None:
    before = status(server)
    found = measured(url(server), HOWFAR_PASSWORD=server.password)
    after = status(server)
    grown = {name: after[name] - before[name] for name in before}
    count, pings = found["request"]["count"], found["ping"]["count"]
    # Ours, and the connection that read the counters the second time.
    assert grown["Connections"] == found["connection"]["count"] + 1 <= MAX_CONNECTS
    assert grown["Aborted_connects"] == grown["Aborted_clients"] == 0
    # The first request, the identity, three that determine how many fit into the time, and the measured ones; pings are counted
    # separately, if at all.
    assert count + 5 <= grown["Com_select"] <= count + 6
    assert count + pings + 5 <= MAX_REQUESTS


def test_every_part_of_the_record_is_there(server: Running) -> None:
    found = measured(url(server), HOWFAR_PASSWORD=server.password)
    assert found["path"]["kind"] == "loopback" and found["path"]["between"] == []
    assert [step["name"] for step in found["connection"]["steps"]][:2] == ["connect", "greeting"]
    assert 0 < found["network_ns"] <= found["request"]["p50_ns"]
    assert len(found["request"]["samples_ns"]) == found["request"]["count"]
    assert [page["requests"] for page in found["pages"]] == [10, 60, 200]


def test_a_wrong_password_is_tried_once_and_refused(server: Running) -> None:
    before = status(server)["Aborted_connects"]
    done = howfar("--json", url(server), HOWFAR_PASSWORD="not-this-one")
    assert done.returncode == 11
    failure = json.loads(done.stdout)["failure"]
    assert failure["step"] == "login" and failure["advice"]
    assert "not-this-one" not in done.stdout + done.stderr
    assert status(server)["Aborted_connects"] - before == 1


def test_a_limit_ends_with_its_own_exit_code(server: Running) -> None:
    assert howfar("--fail-if", "p50>0ms", url(server), HOWFAR_PASSWORD=server.password).returncode == 9
    assert howfar("--fail-if", "p50>10s", url(server), HOWFAR_PASSWORD=server.password).returncode == 0


def test_a_limit_of_p99_is_measured_with_as_many_requests_as_it_needs(server: Running) -> None:
    words = ("--strict", "--fail-if", "p99>10s", url(server))
    done = howfar("--json", *words, HOWFAR_PASSWORD=server.password)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["request"]["count"] == 368
    few = howfar("--count", "100", *words, HOWFAR_PASSWORD=server.password)
    assert few.returncode == 2 and "--count 368" in few.stderr


def test_bandwidth_is_one_answer_of_8_mib(server: Running) -> None:
    found = measured("--bandwidth", url(server), HOWFAR_PASSWORD=server.password)
    if found["bandwidth"] is None:
        pytest.skip("max_allowed_packet of this server is smaller than the answer")
    assert 8 * 2**20 <= found["bandwidth"]["bytes"] <= 8.1 * 2**20


def test_a_watch_ends_after_its_count_with_a_summary(server: Running) -> None:
    words = ("--watch", "--interval", "10ms", "--count", "20", url(server))
    done = howfar(*words, HOWFAR_PASSWORD=server.password)
    assert done.returncode == 0, done.stderr
    # A busy machine may be late for some: they are reported as skipped, and none is lost.
    said = re.search(r"^20 requests: (\d+) answered, 0 lost, (\d+) skipped", done.stdout, re.MULTILINE)
    assert said and int(said[1]) + int(said[2]) == 20, done.stdout
    lines = howfar("--json", *words, HOWFAR_PASSWORD=server.password).stdout.splitlines()
    assert 0 < len(lines) <= 20 and all(json.loads(line)["latency_ns"] > 0 for line in lines)
    assert {json.loads(line)["target"] for line in lines} == {url(server)}
    schema = Draft202012Validator(json.loads(schema_text()))
    assert all(schema.is_valid(json.loads(line)) for line in lines) and not schema.is_valid({"latency_ns": 1})


# ---------------------------------------------------------------- the other servers


def test_redis_counts_what_is_documented(tmp_path: Path) -> None:
    with redis(tmp_path) as store:
        assert store.tcp is not None
        found = measured(f"redis://127.0.0.1:{store.tcp.port}")
        # The first request, three that determine how many fit into the time, and the measured ones.
        assert store.counted("get") == found["request"]["count"] + 4
        assert store.counted("ping") == found["ping"]["count"]
        assert store.counted("set") == 0
        assert found["product"].startswith("Redis ")
        local = measured(f"redis://{store.unix.path}")
        assert local["path"]["kind"] == "socket" and local["network_ns"] is None


def test_a_redis_with_a_password_is_refused_without_and_measured_with_it(tmp_path: Path) -> None:
    with redis(tmp_path, "--requirepass", "sesame") as store:
        assert store.tcp is not None
        target = f"redis://127.0.0.1:{store.tcp.port}"
        refused = howfar(target)
        assert refused.returncode == 11 and "NOAUTH" in refused.stderr
        assert measured(target, REDISCLI_AUTH="sesame")["request"]["refusal"] is None
        given = howfar("--json", f"redis://:sesame@127.0.0.1:{store.tcp.port}")
        assert given.returncode == 0 and "sesame" not in given.stdout + given.stderr


def test_memcached(tmp_path: Path) -> None:
    with memcached(tmp_path) as store:
        found = measured(f"memcached://{store.unix.path}")
        assert found["product"].startswith("Memcached ") and found["request"]["count"] == 326


def test_a_port_that_says_nothing_is_asked_what_it_speaks(tmp_path: Path) -> None:
    with redis(tmp_path) as store:
        assert store.tcp is not None
        done = howfar("--json", f"127.0.0.1:{store.tcp.port}")
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout)["product"].startswith("Redis ") and "redis://" in done.stderr


# ---------------------------------------------------------------- peers that are no server


@contextmanager
def peer(speak: Callable[[socket.socket], None], port: int = 0) -> Iterator[int]:
    """A listener on loopback that handles each connection with `speak`."""
    listening = socket.create_server(("127.0.0.1", port))
    listening.settimeout(MAX_S)
    kept: list[socket.socket] = []

    def serve() -> None:
        while True:
            try:
                connection, _ = listening.accept()
            except OSError:
                return
            kept.append(connection)
            threading.Thread(target=guarded, args=(connection,), daemon=True).start()

    def guarded(connection: socket.socket) -> None:
        with suppress(OSError):
            speak(connection)

    threading.Thread(target=serve, daemon=True).start()
    try:
        yield listening.getsockname()[1]
    finally:
        for one in (listening, *kept):
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)  # also where a thread waits for it
            one.close()


def silence(connection: socket.socket) -> None:
    connection.recv(1)
    threading.Event().wait(MAX_S)


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
@pytest.mark.parametrize("speak", [silence, hang_up, text, endless, drip])
def test_a_peer_that_is_no_server_ends_within_its_limit(scheme: str, speak: Callable[[socket.socket], None]) -> None:
    with peer(speak) as port:
        began = time.monotonic()
        account = "" if scheme == "memcached" else "u:pass-word@"
        done = howfar("--json", "--timeout", "1s", f"{scheme}://{account}127.0.0.1:{port}")
        assert done.returncode in (10, 11), done.stderr
        failure = json.loads(done.stdout)["failure"]
        assert failure["message"] and failure["advice"]
        assert "pass-word" not in done.stdout + done.stderr
        assert "\x1b" not in done.stdout + done.stderr
        # Each of at most four steps has a second; the rest allows for a busy machine.
        assert time.monotonic() - began < 30


def test_what_cannot_be_reached_says_what_was_tried_and_what_to_do() -> None:
    for target, code, says in (
        (f"mysql://u@127.0.0.1:{free_port()}/", 10, "refused"),
        ("mysql://u@no-such-host.invalid/", 10, "not known"),
        ("mysql:///tmp/no-such-socket.sock?user=u", 10, "No such file"),
        ("pyproject.toml", 2, ""),
        ("bareword", 2, ""),
    ):
        done = howfar(target)
        assert done.returncode == code, (target, done.stderr)
        assert says in done.stderr and "Traceback" not in done.stderr
        assert len(done.stderr.splitlines()) <= 4


# ---------------------------------------------------------------- interrupted, and an outage


class Gate:
    """Forwards connections to a server, until it is shut: then it holds back the answers."""

    def __init__(self, server: Running, passes: int) -> None:
        self.is_shut = threading.Event()
        self.ended = threading.Event()
        """The client ended the connection whose answer was held back."""
        self.last = b""
        """What the client sent on it after that request."""
        self._server, self._left = server, passes

    def speak(self, connection: socket.socket) -> None:
        upstream = socket.create_connection(self._server.address)
        threading.Thread(target=self._answers, args=(upstream, connection), daemon=True).start()
        while data := connection.recv(65536):
            if self.is_shut.is_set():
                self.last += data
            self._left -= b"SELECT 1" in data
            if self._left < 0:
                self.is_shut.set()
            upstream.sendall(data)
        if self.is_shut.is_set():
            self.ended.set()
        with suppress(OSError):  # the server may have closed it upon the goodbye
            upstream.shutdown(socket.SHUT_WR)

    def _answers(self, upstream: socket.socket, connection: socket.socket) -> None:
        with suppress(OSError), upstream:
            while data := upstream.recv(65536):
                if not self.is_shut.is_set():
                    connection.sendall(data)
            connection.shutdown(socket.SHUT_WR)


@contextmanager
def begun(*words: str, **environment: str) -> Iterator[subprocess.Popen[str]]:
    """A running `howfar`."""
    process = subprocess.Popen(
        ["env", "--default-signal=INT,HUP", *HOWFAR, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env={**os.environ, **environment}, start_new_session=True,
    )  # fmt: skip
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


_COM_QUIT = b"\1\0\0\0\1"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGKILL])
@pytest.mark.parametrize("watch", [(), ("--watch", "--interval", "10ms")], ids=["once", "watch"])
def test_a_signal_in_the_middle_of_a_request_ends_with_a_goodbye(
    server: Running, watch: tuple[str, ...], number: int
) -> None:
    before = status(server)["Aborted_clients"]
    gate = Gate(server, passes=8)
    with peer(gate.speak) as port:
        target = url(server, ssl_mode="DISABLED").replace(str(server.address[1]), str(port), 1)
        with begun(*watch, target, HOWFAR_PASSWORD=server.password) as process:
            assert gate.is_shut.wait(MAX_S)
            process.send_signal(number)
            out, err = process.communicate(timeout=MAX_S)
            assert gate.ended.wait(MAX_S)
    interrupted = 0 if watch and number == signal.SIGINT else 128 + number
    assert process.returncode == (-number if number == signal.SIGKILL else interrupted), err
    assert gate.last == _COM_QUIT
    if number != signal.SIGKILL:
        assert "answered, 0 lost" in out if watch else (out, err) == ("", "howfar: interrupted\n")
    assert status(server)["Aborted_clients"] == before


def missing(connection: socket.socket) -> None:
    """Answer like a Redis without keys."""
    lines = iter(connection.makefile("rb"))
    for line in lines:
        for _ in range(int(line[1:])):
            next(lines), next(lines)
        connection.sendall(b"$-1\r\n")


def test_an_outage_is_lost_requests_with_the_time_at_which_the_server_was_back() -> None:
    lines: list[dict[str, Any]] = []

    def read_until(process: subprocess.Popen[str], is_last: Callable[[dict[str, Any]], bool]) -> None:
        assert process.stdout is not None
        for text in process.stdout:
            lines.append(json.loads(text))
            if is_last(lines[-1]):
                return
        raise AssertionError(lines)

    with ExitStack() as ends:
        with peer(missing) as port:
            process = ends.enter_context(begun("--watch", "--interval", "10ms", "--json", f"redis://127.0.0.1:{port}"))
            read_until(process, lambda line: line["latency_ns"] is not None)
        read_until(process, lambda line: line.get("lost") == "no connection")
        with peer(missing, port):
            read_until(process, lambda line: "outage" in line)
            process.send_signal(signal.SIGINT)
            process.communicate(timeout=MAX_S)
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
def refusing(error: bytes, after: int = 0) -> Iterator[int]:
    """A store that answers every request with an error, except the first `after` GETs, for which it has no key."""

    def speak(connection: socket.socket) -> None:
        lines = iter(connection.makefile("rb"))
        answered = 0
        for line in lines:
            words = [line.strip().lower()]
            if line.startswith(b"*"):
                words = [(next(lines), next(lines))[1].strip().lower() for _ in range(int(line[1:]))]
            connection.sendall(b"$-1\r\n" if words[0] == b"get" and answered < after else error)
            answered += words[0] == b"get"

    with peer(speak) as port:
        yield port


@pytest.mark.parametrize("kind", ERRORS)
def test_a_server_that_answers_with_errors_is_not_measured_as_if_it_answered(kind: str) -> None:
    error = ERRORS[kind].decode().strip().lstrip("-")
    with refusing(ERRORS[kind]) as port:
        done = howfar("--json", "--fail-if", "p50>10s", f"{kind}://127.0.0.1:{port}" if kind else f"127.0.0.1:{port}")
    found = json.loads(done.stdout)
    assert done.returncode == 11, done.stderr
    assert (found["request"], found["passed"], found["failure"]["code"]) == (None, None, "server_error")
    assert error in done.stderr and error in found["failure"]["message"] and found["first_request_ns"] > 0


def test_errors_after_good_answers_are_noticed() -> None:
    with refusing(ERRORS["redis"], after=100) as port:
        done = howfar(f"redis://127.0.0.1:{port}")
        assert done.returncode == 11 and "LOADING" in done.stderr
    with refusing(ERRORS["redis"], after=4) as port:
        words = ("--watch", "--interval", "10ms", "--count", "6", f"redis://127.0.0.1:{port}")
        lines = [json.loads(line) for line in howfar("--json", *words).stdout.splitlines()]
    *lines, outage = lines
    errors = [line["lost"] for line in lines if line["latency_ns"] is None]
    assert errors and all("LOADING" in one for one in errors) and len(errors) < len(lines)
    assert (outage["outage"], outage["ended"], outage["lost"]) == ("errors", None, len(errors))


# ---------------------------------------------------------------- unexpected peers, bare addresses, and outputs


def test_another_kind_of_server_is_not_measured_as_memcached(tmp_path: Path) -> None:
    with redis(tmp_path) as store:
        assert store.tcp is not None
        done = howfar("--json", f"memcached://127.0.0.1:{store.tcp.port}")
    assert done.returncode == 10
    failure = json.loads(done.stdout)["failure"]
    assert failure["code"] == "other_protocol" and "redis://" in failure["advice"]


BANNERS = {
    "MySQL": b"J\0\0\0\x0a5.5.5-10.11.6-MariaDB\0" + bytes(60),
    "SSH": b"SSH-2.0-OpenSSH_9.2p1\r\n",
    "HTTP": b"HTTP/1.1 400 Bad Request\r\n\r\n",
    "mail": b"220 mail.example ESMTP\r\n",
}


@pytest.mark.parametrize("what", BANNERS)
@pytest.mark.parametrize(
    "target", ["postgres://u@{}/d", "redis://{}", "rediss://{}", "memcached://{}", "mysql://u@{}/", "{}"]
)
def test_a_server_is_recognised_by_its_first_bytes(target: str, what: str) -> None:
    if what == "MySQL" and not target.startswith(("postgres", "redis", "memcached")):
        return  # its greeting is what was expected

    def greet(connection: socket.socket) -> None:
        connection.sendall(BANNERS[what])
        silence(connection)

    with peer(greet) as port:
        done = howfar("--json", "--timeout", "1s", target.format(f"127.0.0.1:{port}"))
    failure = json.loads(done.stdout)["failure"]
    assert (done.returncode, failure["code"]) == (10, "other_protocol"), done.stderr
    assert what in failure["message"]


@contextmanager
def tls_peer(folder: Path) -> Iterator[int]:
    """A peer that completes TLS handshakes and closes other connections, as Redis does on its TLS port."""
    pair = certificates.make(folder).server
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pair.certificate, pair.key)

    def speak(connection: socket.socket) -> None:
        with connection, context.wrap_socket(connection, server_side=True) as channel:
            channel.recv(1)

    with peer(speak) as port:
        yield port


@pytest.mark.parametrize(
    ("target", "instead"),
    [("redis://{}", "rediss://"), ("memcached://{}", "memcacheds://"), ("{}", "rediss://"),
     ("postgres://u@{}/d", "sslnegotiation=direct")],
)  # fmt: skip
def test_a_server_that_expects_tls_is_named(target: str, instead: str, tmp_path: Path) -> None:
    with tls_peer(tmp_path) as port:
        done = howfar("--json", target.format(f"127.0.0.1:{port}"))
    failure = json.loads(done.stdout)["failure"]
    assert (done.returncode, failure["code"]) == (10, "other_protocol"), done.stderr
    assert "TLS" in failure["message"] and instead in failure["advice"]


@pytest.mark.parametrize("scheme", ["rediss", "mysql", "postgresql"])
def test_a_server_that_waits_for_another_protocol_is_named(scheme: str, tmp_path: Path) -> None:
    account = "" if scheme == "rediss" else "u:pass-word@"
    with redis(tmp_path) as store:
        assert store.tcp is not None
        done = howfar("--json", "--timeout", "500ms", f"{scheme}://{account}127.0.0.1:{store.tcp.port}")
    failure = json.loads(done.stdout)["failure"]
    assert (done.returncode, failure["code"]) == (10, "other_protocol"), done.stderr
    assert "Redis" in failure["message"] and "redis://" in failure["advice"]


def test_an_address_of_no_kind_where_nothing_listens_is_unreachable() -> None:
    done = howfar("--json", f"127.0.0.1:{free_port()}")
    assert done.returncode == 10, done.stderr
    failure = json.loads(done.stdout)["failure"]
    assert failure["step"] == "connect" and "refused" in failure["message"]


@pytest.mark.parametrize("name", ["", "missing/x.prom"])
def test_a_file_that_cannot_be_written_does_not_cost_the_measurement(name: str, tmp_path: Path) -> None:
    with redis(tmp_path) as store:
        assert store.tcp is not None
        done = howfar("--json", "--prometheus", str(tmp_path / name), f"redis://127.0.0.1:{store.tcp.port}")
    assert done.returncode == 6 and "cannot be written" in done.stderr
    assert json.loads(done.stdout)["request"]["count"] > 0


@pytest.mark.parametrize(("speak", "code"), [(silence, "protocol"), (text, "other_protocol")])
def test_a_bare_address_that_is_no_server_is_a_failure_of_its_own(
    speak: Callable[[socket.socket], None], code: str
) -> None:
    with peer(speak) as port:
        done = howfar("--json", "--timeout", "300ms", f"127.0.0.1:{port}")
    found = json.loads(done.stdout)
    assert (done.returncode, found["exit_code"], found["failure"]["code"]) == (10, 10, code), done.stderr
    assert found["target"] == f"127.0.0.1:{port}"


@pytest.mark.parametrize("kind", ["", "redis"])
def test_an_error_of_several_lines_is_one_line(kind: str) -> None:
    forged = b"-ERR\thowever\x1b[2J\x85howfar: a line that\xe2\x80\xa8howfar: is no line\r\n"
    with refusing(forged) as port:
        done = howfar(f"{kind}://127.0.0.1:{port}" if kind else f"127.0.0.1:{port}")
    assert done.returncode == 11 and re.search("[\x00-\x09\x0b-\x1f\x7f-\x9f\u2028]", done.stderr) is None
    assert not any(line.startswith(("howfar: a", "howfar: is")) for line in done.stderr.splitlines())


@pytest.mark.parametrize("words", [("--timeout", "1us"), ("--timeout", "9ms", "--watch")])
def test_a_limit_shorter_than_a_handshake_is_refused(words: tuple[str, ...]) -> None:
    done = howfar(*words, f"redis://127.0.0.1:{free_port()}")
    assert done.returncode == 2 and "10ms" in done.stderr and "firewall" not in done.stderr


def test_two_formats_on_one_output_are_refused() -> None:
    assert howfar("--json", "--csv", "redis://127.0.0.1:1").returncode == 2
