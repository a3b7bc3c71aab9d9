"""`howfar record` on real servers: it agrees with their counters, forwards every byte, and stores no literal."""

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

from howfar.lab.sandbox import children_of
from howfar.lab.servers import DATABASE, USER
from howfar.recording.recording import Recording, read
from tests.lab.howfar_runs import HOWFAR, run_howfar
from tests.lab.local_servers import LocalServer, run_server
from tests.lab.local_stores import free_port
from tests.lab.sandboxes import wait_until
from tests.rarely import rarely_but

pytestmark = pytest.mark.usefixtures("namespaces")
needs_php = pytest.mark.skipif(shutil.which("php") is None, reason="php is not installed")
needs_capture = pytest.mark.skipif(
    shutil.which("tcpdump") is None or os.geteuid() != 0, reason="needs root and tcpdump (./setup --tests brings it)"
)
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
def server(mariadb: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalServer]:
    with run_server("mariadb", tmp_path_factory.mktemp("r")) as found:
        yield found


def run_record(
    server: LocalServer, out: Path, *command: str, transport: str = "socket", options: tuple[str, ...] = ("--json",)
) -> subprocess.CompletedProcess[str]:
    """Record a command, by default PAGE."""
    to = server.unix.path if transport == "socket" else "{}:{}".format(*server.address)
    environment = {"TO": to, "DB": DATABASE, "DB_USER": USER, "DB_PASSWORD": server.password, "PAGE": PAGE}
    command = command or (sys.executable, "-c", PAGE)
    arguments = ("record", "--server", to, "--out", str(out), *options, "--", *command)
    return run_howfar(*arguments, timeout_s=120, env=environment)


def record(
    server: LocalServer, out: Path, *command: str, transport: str = "socket", options: tuple[str, ...] = ("--json",)
) -> tuple[Recording, str]:
    """`run_record`, which must succeed; returns the recording and stdout."""
    done = run_record(server, out, *command, transport=transport, options=options)
    assert done.returncode == 0, done.stderr
    return read(out), done.stdout


def counted(server: LocalServer) -> Counter[str]:
    rows = server.execute("SHOW GLOBAL STATUS LIKE 'Com_%'")
    found = {str(row["Variable_name"])[4:].lower(): str(row["Value"]) for row in rows}
    return Counter({name: int(value) for name, value in found.items() if value.isdigit()})


@pytest.mark.parametrize("transport", ["socket", "tcp"])
def test_a_recording_agrees_with_the_servers_counters(server: LocalServer, transport: str, tmp_path: Path) -> None:
    out = tmp_path / "a.recording"
    before = counted(server)
    recording, output = record(server, out, transport=transport)
    grown = counted(server) - before
    commands = recording.facts.commands
    # The server also counts the test's own queries: SET at login, and SHOW.
    assert commands["select"] == grown["select"] == 22
    assert commands["set"] in (grown["set_option"], grown["set_option"] - 1)
    assert commands["ping"] == grown["admin_commands"]
    assert commands["commit"] == grown["commit"] == 1
    assert recording.facts.unknown == {}
    assert recording.facts.complete is True
    assert recording.facts.passed is not None and recording.facts.passed.all_passed_on is True
    check_round_trips(recording)
    found = json.loads(output)
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


def test_no_secret_is_anywhere(server: LocalServer, tmp_path: Path) -> None:
    """No secret is in the recording, in files during it, or in the output. An identifier of a statement is not a literal."""
    out = tmp_path / "a.recording"
    watch = (
        PAGE + f"\nimport pathlib; held = b''.join(p.read_bytes() for p in pathlib.Path({str(tmp_path)!r}).iterdir())"
    )
    watch += f"\npathlib.Path({str(tmp_path / 'held')!r}).write_bytes(held)"
    for options in ((), ("--json",)):
        done = run_record(server, out, sys.executable, "-c", watch, options=options)
        assert done.returncode == 0, done.stderr
        held = out.read_bytes() + (tmp_path / "held").read_bytes() + done.stdout.encode() + done.stderr.encode()
        for secret in SECRETS[:2]:
            assert secret.encode() not in held
        assert held.count(b"Zebrafink99") <= 4, "the column's name is recorded, the comment is not"
        assert server.password.encode() not in held
        out.unlink()


def test_marks_name_pages(server: LocalServer, tmp_path: Path) -> None:
    script = "; ".join(f'{HOWFAR} mark {name} -- {sys.executable} -c "$PAGE"' for name in ("shop", "cart", "shop"))
    recording, _ = record(server, tmp_path / "a.recording", "sh", "-c", script)
    pages = [(page.name, page.method) for page in recording.pages]
    assert pages == [("shop", "mark"), ("cart", "mark"), ("shop", "mark")]
    assert len({len(page.round_trips) for page in recording.pages}) == 1
    assert all(one.page_id for one in recording.round_trips)


def test_unmarked_pages_are_separated_by_pauses(server: LocalServer, tmp_path: Path) -> None:
    """A pause between pages is a thousand times as long as one within a page. If the machine delays the application too
    often, there is one page, and the reason is reported."""
    pages = PAGE.replace(
        "for number in range(20):", "for number in range(160):\n        number % 20 or time.sleep(0.3)"
    )
    command = (sys.executable, "-c", pages.replace("import os", "import time, os"))
    recording, output = record(server, tmp_path / "a.recording", *command, options=("--gaps", "--json"))
    assert all(one.page_id for one in recording.round_trips)
    if recording.facts.unknown:
        assert [page.method for page in recording.pages] == ["command"]
        pytest.skip(f"THIS MACHINE WAS DISTURBED: {recording.facts.unknown}")
    assert {page.method for page in recording.pages} == {"gap"}
    assert len(recording.pages) >= 9, "the login, and eight pages of twenty queries"
    assert all("confidence" in page["unsure"] for page in json.loads(output)["pages"])


def test_a_command_that_makes_no_round_trip_is_refused_and_leaves_no_file(server: LocalServer, tmp_path: Path) -> None:
    done = run_record(server, tmp_path / "a.recording", "true")
    assert done.returncode == 2
    assert "made no round trip through the tap" in done.stderr
    assert not list(tmp_path.iterdir())


def test_the_exit_code_is_the_commands(server: LocalServer, tmp_path: Path) -> None:
    done = run_record(server, tmp_path / "a.recording", "sh", "-c", f'{sys.executable} -c "$PAGE"; exit 5')
    assert done.returncode == 5
    assert json.loads(done.stdout)["exit_code"] == 5


HTTP_PAGE = """
import http.server, os, socket, threading, urllib.request
code = compile(os.environ["PAGE"], "page", "exec")
class Page(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        self.do_GET()
    def do_GET(self):
        exec(code, {})
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


@pytest.mark.parametrize(
    ("page_by", "cart"),
    [
        pytest.param((), "/cart/*", marks=pytest.mark.thorough),
        (("--page-by", "view,/17"), "/cart/17?view=all"),
    ],
)
def test_http_requests_are_pages(
    page_by: tuple[str, ...], cart: str, server: LocalServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """[app-10] Parameters and path segments with a digit are kept if requested."""
    out = tmp_path / "a.recording"
    port = free_port()
    monkeypatch.setenv("HTTP_PORT", str(port))
    options = ("--json", "--http", f"127.0.0.1:{port}", *page_by)
    recording, _ = record(server, out, sys.executable, "-c", HTTP_PAGE, options=options)
    assert {page.method for page in recording.pages} == {"http"}
    assert [page.name for page in recording.pages] == ["/shop", cart, "/shop", "POST /confess"]
    # The client does not wait for its `quit`, which may reach the tap after the other tap has forwarded the page.
    assert len({sum(one.is_answered for one in page.round_trips) for page in recording.pages}) == 1
    assert all(one.page_id for one in recording.round_trips if one.is_answered)
    assert recording.facts.protocol == "mysql"
    assert b"Quagga" not in out.read_bytes()


def test_in_a_laboratory_its_server_and_the_cpus_of_both_sides_are_recorded(mariadb: None, tmp_path: Path) -> None:
    login = (
        "unix_socket=e['HOWFAR_SOCKET'], user=e['HOWFAR_USER'], password=open(e['HOWFAR_PASSWORD_FILE']).read().strip()"
    )
    application = f"import os, pymysql; e = os.environ; pymysql.connect({login}).ping()"
    out = tmp_path / "a.recording"
    recording = [HOWFAR, "record", "--out", str(out), "--", sys.executable, "-c", application]
    done = run_howfar("lab", "--path", "socket", "--tables", "1", "--table-size", "100", "--", *recording)
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
    done = run_howfar("record", *options, *(("--", *command) if command else ()), cwd=tmp_path)
    assert done.returncode == 2
    assert expected in done.stderr
    assert not list(tmp_path.glob("*.recording*"))


@needs_capture
def test_packets_give_the_same_recording_as_the_server_counts(server: LocalServer, tmp_path: Path) -> None:
    """Records from the interface while tcpdump captures it, and then from the file that tcpdump wrote of the same packets."""
    out, dump = tmp_path / "a.recording", tmp_path / "dump.pcap"
    host, port = server.address
    with subprocess.Popen(
        ["tcpdump", "-i", "lo", "-U", "-B", "16384", "-w", str(dump), "-Z", "root", f"tcp port {port}"],
        stderr=subprocess.PIPE,
    ) as capture:
        assert capture.stderr is not None
        assert any(b"listening" in line for line in iter(capture.stderr.readline, b""))
        before = counted(server)
        live, _ = record(server, out, transport="tcp", options=("--interface", "lo", "--json"))
        grown = counted(server) - before
        time.sleep(1.5)  # tcpdump buffers, and when it writes cannot be observed
        capture.terminate()
    from_file = tmp_path / "b.recording"
    done = run_howfar("record", "--pcap", str(dump), "--server", f"{host}:{port}", "--out", str(from_file), "--json")
    assert done.returncode == 0, done.stderr
    for recording in (live, read(from_file)):
        assert recording.facts.commands["select"] == grown["select"] == 22
        assert recording.facts.unknown == {}
        assert [digest(recording, one.digest_id) for one in recording.round_trips].count("SELECT ?, ?") == 20
        assert [one.command for one in recording.round_trips][-1] == "quit"
    assert (live.facts.capture_cpus or 0) > 0 and read(from_file).facts.capture_cpus is None
    assert live.pages[0].method == "command"
    assert len(live.pages[0].round_trips) == len(live.round_trips)
    for path in (out, from_file):
        assert SECRETS[0].encode() not in path.read_bytes()


@contextlib.contextmanager
def capturing(to: str, out: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A recorder of packets on `lo`, in its own process group and with the default action for Ctrl-C, as in a terminal."""
    arguments = ["--interface", "lo", "--server", to, "--out", str(out), "--json"]
    command = ["env", "--default-signal=INT", HOWFAR, "record", *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, process_group=0) as recorder:
        assert recorder.stderr is not None
        assert any(b"recording packets" in line for line in iter(recorder.stderr.readline, b""))
        try:
            yield recorder
        finally:
            recorder.kill()


@needs_capture
@pytest.mark.parametrize("is_complete", rarely_but((False,), (True, False)))
def test_connections_that_are_open_at_the_end_are_recorded(
    is_complete: bool, server: LocalServer, tmp_path: Path
) -> None:
    """Ctrl-C ends the recording, which has all packets so far. If the capture ended earlier, `complete` is false."""
    host, port = server.address
    with (
        capturing(f"{host}:{port}", tmp_path / "a.recording") as recorder,
        contextlib.closing(pymysql.connect(host=host, port=port, user=USER, password=server.password)) as line,
        line.cursor() as cursor,
    ):
        for number in range(20):
            cursor.execute("SELECT %s", (number,))
        if not is_complete:
            time.sleep(1.5)  # tcpdump buffers, and when it writes cannot be observed
            capture = find_child(recorder.pid, "tcpdump")
            os.kill(capture, signal.SIGTERM)
            wait_until(lambda: not is_running(capture), "tcpdump's end")
        os.killpg(recorder.pid, signal.SIGINT)
        errors = recorder.communicate(timeout=60)[1]
    assert recorder.returncode == 0, errors.decode()
    recording = read(tmp_path / "a.recording")
    assert [one.command for one in recording.round_trips].count("select") == 20
    assert [one.protocol for one in recording.connections] == ["mysql"]
    assert len(recording.pages[0].round_trips) == len(recording.round_trips)
    assert recording.facts.complete is is_complete
    assert ("tcpdump ended before" in str(recording.facts.stopped)) is not is_complete


@needs_capture
def test_a_killed_recorder_of_packets_leaves_no_capture(tmp_path: Path) -> None:
    """On a port without packets tcpdump writes nothing, and so does not notice that its reader has ended."""
    with capturing(f"127.0.0.1:{free_port()}", tmp_path / "a.recording") as recorder:
        capture = find_child(recorder.pid, "tcpdump")
    wait_until(lambda: not is_running(capture), "tcpdump's end")


def find_child(parent: int, name: str) -> int:
    (pid,) = [pid for pid in children_of(parent) if Path(f"/proc/{pid}/comm").read_text().strip() == name]
    return pid


def is_running(pid: int) -> bool:
    """Whether a process exists and is not a zombie."""
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


def _php_pages(
    server: LocalServer, out: Path, folder: str, addresses: list[str], *options: str
) -> tuple[Recording, str]:
    """Record pages of PHP's own server; returns the recording and stderr."""
    command = (sys.executable, "-c", _REQUESTS, str(free_port()), folder, *addresses)
    done = run_record(server, out, *command, options=("--php", *options))
    assert done.returncode == 0, done.stderr
    return read(out), done.stderr


@needs_php
def test_pages_of_a_front_controller_are_distinguished_and_a_server_error_is_reported(
    server: LocalServer, tmp_path: Path
) -> None:
    """[app-9] [app-10] A named parameter distinguishes pages; other parameters are not recorded."""
    (tmp_path / "index.php").write_text(_CONTROLLER)
    addresses = [f"index.php?page={name}&key=Xylophon77" for name in ("list", "item", "item", "broken")]
    recording, errors = _php_pages(
        server, tmp_path / "a.recording", f"-t {tmp_path}", addresses, "--page-by", "page,title"
    )
    pages = Counter((page.name, page.failed) for page in recording.pages)
    assert pages == {
        ("/index.php?page=list", False): 1,
        ("/index.php?page=item", False): 2,
        ("/index.php?page=broken", True): 1,
    }
    assert "1 of 1 pages /index.php?page=broken" in errors
    assert b"Xylophon77" not in (tmp_path / "a.recording").read_bytes()


@needs_php
def test_a_router_script_of_phps_own_server_is_named_as_the_reason(server: LocalServer, tmp_path: Path) -> None:
    """[app-16] The message claims only what was observed, and names an option that works."""
    (tmp_path / "router.php").write_text(_CONTROLLER)
    recording, _ = _php_pages(server, tmp_path / "a.recording", f"{tmp_path}/router.php", ["x?page=list"])
    (unknown,) = [reason for reason in recording.facts.unknown if "--php" in reason]
    assert "no script marked one" in unknown and "--http" in unknown
    assert [page.method for page in recording.pages] == ["command"]


@needs_php
@pytest.mark.parametrize(
    ("code", "exit_code"),
    [
        pytest.param("register_shutdown_function(function () { exit; });", 0, id="app-15"),
        pytest.param("exit(3);", 3, id="exit", marks=pytest.mark.thorough),
        pytest.param("throw new Exception('x');", 255, id="exception", marks=pytest.mark.thorough),
    ],
)
def test_a_php_page_is_marked_however_it_ends(code: str, exit_code: int, server: LocalServer, tmp_path: Path) -> None:
    """[app-15] It is marked once, with its round trips."""
    queries = _CONTROLLER.replace('$_GET["page"]', '"item"')
    (tmp_path / "page.php").write_text(f"{queries}\n{code}\n")
    out = tmp_path / "a.recording"
    done = run_record(server, out, "php", str(tmp_path / "page.php"), options=("--php", "--json"))
    assert done.returncode == exit_code, done.stderr
    (page,) = read(out).pages
    assert page.method == "php" and [one.command for one in page.round_trips].count("select") == 2


@needs_php
def test_a_php_page_marks_itself(server: LocalServer, tmp_path: Path) -> None:
    page = """<?php
    $db = new mysqli(null, getenv("DB_USER"), getenv("DB_PASSWORD"), getenv("DB"), 0, getenv("TO"));
    for ($i = 0; $i < 7; $i++) { $db->query("SELECT $i, 'Xylophon77'")->fetch_all(); }
    register_shutdown_function(fn() => $db->query("SELECT 'at the end'"));
    """
    (tmp_path / "page.php").write_text(page)
    script = f"for i in 1 2 3; do php {tmp_path}/page.php; done"
    recording, _ = record(server, tmp_path / "a.recording", "sh", "-c", script, options=("--php", "--json"))
    assert [(page.name, page.method) for page in recording.pages] == [("page.php", "php")] * 3
    for marked in recording.pages:
        assert [one.command for one in marked.round_trips].count("select") == 8
