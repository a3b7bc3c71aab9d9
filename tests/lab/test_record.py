"""`howfar record` on real servers: it agrees with their counters, passes every byte on, and keeps no literal anywhere."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pymysql
import pytest

from howfar.lab.servers import DATABASE, USER
from howfar.recording.recording import Recording, read
from tests.lab.servers_here import Running, prepared, short_directory, started
from tests.lab.stores_here import free_port

pytestmark = pytest.mark.usefixtures("namespaces")
HOWFAR = str(Path(sys.executable).with_name("howfar"))
SECRETS = ("Xylophon77", "Quagga4711", "Zebrafink99")
PAGE = """
import os, pymysql
to = os.environ["TO"]
where = {"unix_socket": to} if to.startswith("/") else dict(zip(("host", "port"), (to.split(":")[0], int(to.split(":")[1]))))
line = pymysql.connect(user=os.environ["DB_USER"], password=os.environ["DB_PASSWORD"], database=os.environ["DB"], **where)
with line.cursor() as cursor:
    for number in range(20):
        cursor.execute("SELECT %s, 'Xylophon77' /* Zebrafink99 */", (number,))
    cursor.execute("SET @x = 'Quagga4711'")
    cursor.execute("SELECT 1 WHERE 'Quagga4711' IN (%s, %s, %s)", ("Xylophon77", "b", "c"))
    try:
        cursor.execute("SELECT Zebrafink99 FROM nothing_of_that_name")
    except pymysql.Error:
        pass
line.ping()
line.commit()
line.close()
"""


@pytest.fixture(scope="module")
def server(mariadb: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    work = short_directory(tmp_path_factory.mktemp("r"))
    with started(prepared("mariadb", work)) as running:
        yield running


def record(
    server: Running, to: str, out: Path, *command: str, options: tuple[str, ...] = ("--json",)
) -> subprocess.CompletedProcess[str]:
    environment = {"TO": to, "DB": DATABASE, "DB_USER": USER, "DB_PASSWORD": server.password, "PAGE": PAGE}
    command = command or (sys.executable, "-c", PAGE)
    arguments = [
        HOWFAR,
        "record",
        "--server",
        to,
        "--out",
        str(out),
        *options,
        "--",
        *command,
    ]
    return subprocess.run(arguments, env={**os.environ, **environment}, capture_output=True, text=True, timeout=120)


def address(server: Running, kind: str) -> str:
    host, port = server.address
    return str(server.server.socket) if kind == "socket" else f"{host}:{port}"


def counted(server: Running) -> Counter[str]:
    rows = server.execute("SHOW GLOBAL STATUS LIKE 'Com_%'")
    found = {str(row["Variable_name"])[4:].lower(): str(row["Value"]) for row in rows}
    return Counter({name: int(value) for name, value in found.items() if value.isdigit()})


@pytest.mark.parametrize("kind", ["socket", "tcp"])
def test_what_is_recorded_is_what_the_server_counted(server: Running, kind: str, tmp_path: Path) -> None:
    out = tmp_path / "a.recording"
    before = counted(server)
    done = record(server, address(server, kind), out)
    assert done.returncode == 0, done.stderr
    grown = counted(server) - before
    recording = read(out)
    commands = recording.facts.commands
    # The server also counts the test's own queries: a login's SET, and SHOW.
    assert commands["select"] == grown["select"] == 22
    assert commands["set"] in (grown["set_option"], grown["set_option"] - 1)
    assert commands["ping"] == grown["admin_commands"]
    assert commands["commit"] == grown["commit"] == 1
    assert recording.facts.unknown == {}
    assert recording.facts.complete is True
    assert recording.facts.passed is not None and recording.facts.passed.all_passed_on is True
    check_round_trips(recording)
    found = json.loads(done.stdout)
    assert found["round_trips"] == sum(one.is_answered for one in recording.round_trips)
    assert 0 < found["pages"][0]["waiting"]["value"] < 1


def check_round_trips(recording: Recording) -> None:
    (connection,) = recording.connections
    assert (connection.protocol, connection.login_round_trips) == ("mysql", 2)
    (page,) = recording.pages
    assert page.method == "command"
    assert len(page.round_trips) == len(recording.round_trips)
    looped = [one for one in page.round_trips if digest(recording, one.digest_id) == "SELECT ?, ?"]
    assert len(looped) == 20
    assert len({one.keys for one in looped}) == 20
    assert {one.rows for one in looped} == {1}
    (folded,) = [one for one in page.round_trips if "IN" in digest(recording, one.digest_id)]
    assert digest(recording, folded.digest_id) == "SELECT ? WHERE ? IN (...)"
    assert [one.failed for one in page.round_trips].count(True) == 1
    assert page.round_trips[-1].command == "quit"
    for one in page.round_trips:
        assert one.begun_ns <= one.sent_ns <= one.answered_ns <= one.ended_ns


def digest(recording: Recording, number: int | None) -> str:
    return recording.digest_by_id[number].text if number else ""


def test_no_secret_is_anywhere(server: Running, tmp_path: Path) -> None:
    """No secret is in files that recording leaves or makes meanwhile, or in its output. A bare word of a statement is no literal."""
    out = tmp_path / "a.recording"
    watch = (
        PAGE + f"\nimport pathlib; held = b''.join(p.read_bytes() for p in pathlib.Path({str(tmp_path)!r}).iterdir())"
    )
    watch += f"\npathlib.Path({str(tmp_path / 'held')!r}).write_bytes(held)"
    for options in ((), ("--json",)):
        done = record(server, address(server, "socket"), out, sys.executable, "-c", watch, options=options)
        assert done.returncode == 0, done.stderr
        held = out.read_bytes() + (tmp_path / "held").read_bytes() + done.stdout.encode() + done.stderr.encode()
        for secret in SECRETS[:2]:
            assert secret.encode() not in held
        assert held.count(b"Zebrafink99") <= 4, "the column's name, never the comment"
        assert server.password.encode() not in held
        out.unlink()


def test_marks_name_pages(server: Running, tmp_path: Path) -> None:
    script = "; ".join(f'{HOWFAR} mark {name} -- {sys.executable} -c "$PAGE"' for name in ("shop", "cart", "shop"))
    out = tmp_path / "a.recording"
    done = record(server, address(server, "socket"), out, "sh", "-c", script)
    assert done.returncode == 0, done.stderr
    recording = read(out)
    assert [(page.name, page.method) for page in recording.pages] == [
        ("shop", "mark"),
        ("cart", "mark"),
        ("shop", "mark"),
    ]
    assert len({len(page.round_trips) for page in recording.pages}) == 1
    assert all(one.page_id for one in recording.round_trips)


def test_pages_that_nothing_marks_are_what_lies_between_rests(server: Running, tmp_path: Path) -> None:
    """A rest is a thousand times as long as a pause. If the machine delays the application too often, there is one page, and the
    reason is reported."""
    whole = PAGE.replace(
        "for number in range(20):", "for number in range(240):\n        number % 20 or time.sleep(0.4)"
    )
    out = tmp_path / "a.recording"
    command = (sys.executable, "-c", whole.replace("import os", "import time, os"))
    done = record(server, address(server, "socket"), out, *command, options=("--gaps", "--json"))
    assert done.returncode == 0, done.stderr
    recording = read(out)
    assert all(one.page_id for one in recording.round_trips)
    if recording.facts.unknown:
        assert [page.method for page in recording.pages] == ["command"]
        pytest.skip(f"THIS MACHINE WAS DISTURBED: {recording.facts.unknown}")
    assert {page.method for page in recording.pages} == {"gap"}
    assert len(recording.pages) >= 13, "the login, and twelve times twenty"
    assert all("confidence" in page["unsure"] for page in json.loads(done.stdout)["pages"])


def test_a_command_that_makes_no_round_trip_is_refused_and_leaves_no_file(server: Running, tmp_path: Path) -> None:
    out = tmp_path / "a.recording"
    done = record(server, address(server, "socket"), out, "true")
    assert done.returncode == 2
    assert "made no round trip through the tap" in done.stderr
    assert not list(tmp_path.iterdir())


def test_the_exit_code_is_the_command_s(server: Running, tmp_path: Path) -> None:
    out = tmp_path / "a.recording"
    done = record(server, address(server, "socket"), out, "sh", "-c", f'{sys.executable} -c "$PAGE"; exit 5')
    assert done.returncode == 5
    assert json.loads(done.stdout)["exit_code"] == 5


HTTP_PAGE = """
import http.server, os, socket, threading, urllib.request
whole = compile(os.environ["PAGE"], "page", "exec")
class Page(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        self.do_GET()
    def do_GET(self):
        exec(whole, {})
        self.close_connection = True
        self.send_response(200); self.end_headers(); self.wfile.write(b"done")
server = http.server.HTTPServer(("127.0.0.1", int(os.environ["HTTP_PORT"])), Page)
threading.Thread(target=server.serve_forever, daemon=True).start()
for path in ("/shop?token=Quagga4711", "/cart/17?view=all&token=Quagga4711", "/shop"):
    assert urllib.request.urlopen(f"http://{os.environ['HOWFAR_HTTP']}{path}").read() == b"done"
where = os.environ["HOWFAR_HTTP"].split(":")
with socket.create_connection((where[0], int(where[1]))) as line:
    line.sendall(b"POST /confess HTTP/1.1\\r\\nExpect: 100-continue\\r\\nContent-Length: 17\\r\\n\\r\\n")
    assert b" 100 " in line.recv(1000)
    line.sendall(b"GET /Quagga4711\\n.")
    assert b" 200 " in line.recv(1000)
"""


@pytest.mark.parametrize(("page_by", "cart"), [((), "/cart/*"), (("--page-by", "view,/17"), "/cart/17?view=all")])
def test_requests_of_http_are_pages(
    page_by: tuple[str, ...], cart: str, server: Running, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """[app-10] Parameters and parts with a digit are kept if requested."""
    out = tmp_path / "a.recording"
    port = free_port()
    monkeypatch.setenv("HTTP_PORT", str(port))
    options = ("--json", "--http", f"127.0.0.1:{port}", *page_by)
    done = record(server, address(server, "socket"), out, sys.executable, "-c", HTTP_PAGE, options=options)
    assert done.returncode == 0, done.stderr
    recording = read(out)
    assert [(page.name, page.method) for page in recording.pages] == [
        ("/shop", "http"),
        (cart, "http"),
        ("/shop", "http"),
        ("POST /confess", "http"),
    ]
    # A `quit` is not awaited: it may reach the tap after the other tap has forwarded the page.
    assert len({sum(one.is_answered for one in page.round_trips) for page in recording.pages}) == 1
    assert all(one.page_id for one in recording.round_trips if one.is_answered)
    assert recording.facts.protocol == "mysql"
    assert b"Quagga" not in out.read_bytes()


def test_in_a_laboratory_its_server_is_recorded_and_where_both_ran(mariadb: None, tmp_path: Path) -> None:
    login = (
        "unix_socket=e['HOWFAR_SOCKET'], user=e['HOWFAR_USER'], password=open(e['HOWFAR_PASSWORD_FILE']).read().strip()"
    )
    application = f"import os, pymysql; e = os.environ; pymysql.connect({login}).ping()"
    out = tmp_path / "a.recording"
    recording = [HOWFAR, "record", "--out", str(out), "--", sys.executable, "-c", application]
    laboratory = [HOWFAR, "lab", "--path", "socket", "--tables", "1", "--table-size", "100", "--", *recording]
    done = subprocess.run(laboratory, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    facts = read(out).facts
    assert facts.commands["login"] == 1
    if len(os.sched_getaffinity(0)) > 1:
        assert not set(facts.cpus.application or ()) & set(facts.cpus.server or ())


@pytest.mark.parametrize(
    ("options", "command", "expected"),
    [
        (("--server", "gone.sock/"), ("true",), "gone.sock does not exist"),
        (("--server", "./file"), ("true",), "is a file"),
        (("--server", "127.0.0.1:1"), ("no-such-command",), "no-such-command: No such file or directory"),
        (("--server", "127.0.0.1:1", "--pcap", "file"), (), "it is neither pcap nor pcapng"),
        (("--server", "127.0.0.1:1", "--pcap", "empty"), (), "it is shorter than a head"),
    ],
)
def test_what_cannot_be_recorded_is_refused_with_its_cause(
    options: tuple[str, ...], command: tuple[str, ...], expected: str, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("neither a socket nor packets")
    (tmp_path / "empty").touch()
    arguments = [HOWFAR, "record", *options, *(("--", *command) if command else ())]
    done = subprocess.run(arguments, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert expected in done.stderr
    assert not list(tmp_path.glob("*.recording*"))


def test_packets_say_the_same_without_a_tap(server: Running, tmp_path: Path) -> None:
    """Records the interface while tcpdump captures it, and then the file that tcpdump wrote of the same packets."""
    if shutil.which("tcpdump") is None or os.geteuid() != 0:
        pytest.skip("needs root and tcpdump (./setup --tests brings it)")
    to, out, dump = address(server, "tcp"), tmp_path / "a.recording", tmp_path / "dump.pcap"
    port = to.rpartition(":")[2]
    with subprocess.Popen(
        ["tcpdump", "-i", "lo", "-U", "-B", "16384", "-w", str(dump), "-Z", "root", f"tcp port {port}"],
        stderr=subprocess.PIPE,
    ) as capture:
        assert capture.stderr is not None
        assert any(b"listening" in line for line in iter(capture.stderr.readline, b""))
        before = counted(server)
        done = record(server, to, out, options=("--interface", "lo", "--json"))
        assert done.returncode == 0, done.stderr
        grown = counted(server) - before
        time.sleep(1.5)  # tcpdump buffers, and gives no sign when it writes
        capture.terminate()
    live = read(out)
    again = tmp_path / "b.recording"
    arguments = [HOWFAR, "record", "--pcap", str(dump), "--server", to, "--out", str(again), "--json"]
    done = subprocess.run(arguments, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    for recording in (live, read(again)):
        assert recording.facts.commands["select"] == grown["select"] == 22
        assert recording.facts.unknown == {}
        assert [digest(recording, one.digest_id) for one in recording.round_trips].count("SELECT ?, ?") == 20
        assert [one.command for one in recording.round_trips][-1] == "quit"
    assert (live.facts.capture_cpus or 0) > 0 and read(again).facts.capture_cpus is None
    assert live.pages[0].method == "command"
    assert len(live.pages[0].round_trips) == len(live.round_trips)
    for path in (out, again):
        assert SECRETS[0].encode() not in path.read_bytes()


@contextlib.contextmanager
def capturing(to: str, out: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A recorder of packets on `lo` in its own process group that reacts to Ctrl-C, like a command of a shell with a terminal."""
    arguments = ["--interface", "lo", "--server", to, "--out", str(out), "--json"]
    command = ["env", "--default-signal=INT", HOWFAR, "record", *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, process_group=0) as recorder:
        assert recorder.stderr is not None
        assert any(b"recording packets" in line for line in iter(recorder.stderr.readline, b""))
        try:
            yield recorder
        finally:
            recorder.kill()


@pytest.mark.skipif(shutil.which("tcpdump") is None or os.geteuid() != 0, reason="needs root and tcpdump")
@pytest.mark.parametrize("is_whole", [True, False])
def test_connections_that_are_open_at_the_end_are_recorded(is_whole: bool, server: Running, tmp_path: Path) -> None:
    """Ctrl-C reaches the process group, and the reader of packets writes what it has. After a lost capture, `complete` is false."""
    host, port = server.address
    with (
        capturing(f"{host}:{port}", tmp_path / "a.recording") as recorder,
        contextlib.closing(pymysql.connect(host=host, port=port, user=USER, password=server.password)) as line,
        line.cursor() as cursor,
    ):
        for number in range(20):
            cursor.execute("SELECT %s", (number,))
        if not is_whole:
            time.sleep(1.5)  # tcpdump buffers, and gives no sign when it writes
            (capture,) = children(recorder.pid, "tcpdump")
            os.kill(int(capture), signal.SIGTERM)
            ended_before(60, capture)
        os.killpg(recorder.pid, signal.SIGINT)
        said = recorder.communicate(timeout=60)[1]
    assert recorder.returncode == 0, said.decode()
    recording = read(tmp_path / "a.recording")
    assert [one.command for one in recording.round_trips].count("select") == 20
    assert [one.protocol for one in recording.connections] == ["mysql"]
    assert len(recording.pages[0].round_trips) == len(recording.round_trips)
    assert recording.facts.complete is is_whole
    assert ("tcpdump ended before" in str(recording.facts.stopped)) is not is_whole


@pytest.mark.skipif(shutil.which("tcpdump") is None or os.geteuid() != 0, reason="needs root and tcpdump")
def test_a_killed_recorder_of_packets_leaves_no_capture(tmp_path: Path) -> None:
    """On a port without packets tcpdump writes nothing, so it does not notice that its reader is gone."""
    with capturing(f"127.0.0.1:{free_port()}", tmp_path / "a.recording") as recorder:
        (capture,) = children(recorder.pid, "tcpdump")
    ended_before(60, capture)


def children(parent: int, name: str) -> list[str]:
    listed = Path(f"/proc/{parent}/task/{parent}/children").read_text().split()
    return [pid for pid in listed if Path(f"/proc/{pid}/comm").read_text().strip() == name]


def ended_before(timeout_s: float, pid: str) -> None:
    deadline = time.monotonic() + timeout_s
    while runs(pid):
        assert time.monotonic() < deadline, "it does not end"
        time.sleep(0.01)


def runs(pid: str) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


_CONTROLLER = """<?php
$db = new mysqli(null, getenv("DB_USER"), getenv("DB_PASSWORD"), getenv("DB"), 0, getenv("TO"));
for ($i = 0; $i < ($_GET["page"] === "list" ? 9 : 2); $i++) { $db->query("SELECT $i")->fetch_all(); }
http_response_code($_GET["page"] === "broken" ? 500 : 200);
"""
_REQUESTS = """
import subprocess, sys, time, urllib.error, urllib.request
port, folder, *addresses = sys.argv[1:]
server = subprocess.Popen(["php", "-S", f"127.0.0.1:{port}", *folder.split()], stderr=subprocess.DEVNULL)
for address in addresses:
    for _ in range(400):
        try:
            urllib.request.urlopen(f"http://127.0.0.1:{port}/{address}").read()
        except urllib.error.HTTPError:
            pass
        except OSError:
            time.sleep(0.05)
            continue
        break
server.terminate()
"""


def _php_pages(server: Running, out: Path, folder: str, addresses: list[str], *options: str) -> tuple[Recording, str]:
    """Record pages of PHP's own server; returns the recording and stderr."""
    if shutil.which("php") is None:
        pytest.skip("php is not installed")
    command = (sys.executable, "-c", _REQUESTS, str(free_port()), folder, *addresses)
    done = record(server, address(server, "socket"), out, *command, options=("--php", *options))
    assert done.returncode == 0, done.stderr
    return read(out), done.stderr


def test_pages_of_a_front_controller_are_told_apart_and_a_server_error_is_known(
    server: Running, tmp_path: Path
) -> None:
    """[app-9] [app-10] They are distinguished by a named parameter; other parameters leave no trace."""
    (tmp_path / "index.php").write_text(_CONTROLLER)
    addresses = [f"index.php?page={name}&key=Xylophon77" for name in ("list", "item", "item", "broken")]
    pages, said = _php_pages(server, tmp_path / "a.recording", f"-t {tmp_path}", addresses, "--page-by", "page,title")
    counted = Counter((page.name, page.failed) for page in pages.pages)
    assert counted == {
        ("/index.php?page=list", False): 1,
        ("/index.php?page=item", False): 2,
        ("/index.php?page=broken", True): 1,
    }
    assert "1 of 1 pages /index.php?page=broken" in said
    assert b"Xylophon77" not in (tmp_path / "a.recording").read_bytes()


def test_a_router_script_of_phps_own_server_is_named_as_the_reason(server: Running, tmp_path: Path) -> None:
    """[app-16] The message claims only what was observed, and names what works."""
    (tmp_path / "router.php").write_text(_CONTROLLER)
    pages, _ = _php_pages(server, tmp_path / "a.recording", f"{tmp_path}/router.php", ["x?page=list"])
    (unknown,) = [reason for reason in pages.facts.unknown if "--php" in reason]
    assert "no script marked one" in unknown and "--http" in unknown
    assert [page.method for page in pages.pages] == ["command"]


@pytest.mark.parametrize(
    ("code", "exit_code"),
    [
        pytest.param("register_shutdown_function(function () { exit; });", 0, id="app-15"),
        pytest.param("exit(3);", 3, id="exit"),
        pytest.param("throw new Exception('x');", 255, id="exception"),
    ],
)
def test_a_php_page_is_marked_however_it_ends(code: str, exit_code: int, server: Running, tmp_path: Path) -> None:
    """[app-15] It is marked once, with its round trips."""
    if shutil.which("php") is None:
        pytest.skip("php is not installed")
    queries = _CONTROLLER.replace('$_GET["page"]', '"item"')
    (tmp_path / "page.php").write_text(f"{queries}\n{code}\n")
    out = tmp_path / "a.recording"
    done = record(
        server, address(server, "socket"), out, "php", str(tmp_path / "page.php"), options=("--php", "--json")
    )
    assert done.returncode == exit_code, done.stderr
    (page,) = read(out).pages
    assert page.method == "php" and [one.command for one in page.round_trips].count("select") == 2


def test_a_php_page_marks_itself(server: Running, tmp_path: Path) -> None:
    if shutil.which("php") is None:
        pytest.skip("php is not installed")
    page = """<?php
    $db = new mysqli(null, getenv("DB_USER"), getenv("DB_PASSWORD"), getenv("DB"), 0, getenv("TO"));
    for ($i = 0; $i < 7; $i++) { $db->query("SELECT $i, 'Xylophon77'")->fetch_all(); }
    register_shutdown_function(fn() => $db->query("SELECT 'at the end'"));
    """
    (tmp_path / "page.php").write_text(page)
    out = tmp_path / "a.recording"
    script = f"for i in 1 2 3; do php {tmp_path}/page.php; done"
    done = record(server, address(server, "socket"), out, "sh", "-c", script, options=("--php", "--json"))
    assert done.returncode == 0, done.stderr
    recording = read(out)
    assert [(page.name, page.method) for page in recording.pages] == [("page.php", "php")] * 3
    for marked in recording.pages:
        assert [one.command for one in marked.round_trips].count("select") == 8
