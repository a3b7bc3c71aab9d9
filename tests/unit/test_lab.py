"""Parts of the laboratory, without starting one: spinners, commands, forks, hosts, certificates, rows, room."""

from __future__ import annotations

import configparser
import os
import re
import socket
import ssl
import stat
import subprocess
import threading
import time
import zlib
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

from howfar.cli.client_files import client_options
from howfar.cli.lab import NOT_EXECUTABLE, NOT_FOUND, clear_receipt, lab, write_receipt
from howfar.contract.messages import TcpTarget, UnixTarget
from howfar.contract.server_receipt import HopsReceipt
from howfar.contract.violation import violation
from howfar.errors import LabError, UsageError
from howfar.lab import awake as module
from howfar.lab.awake import keep_cpus_awake, run_spinners
from howfar.lab.certificates import make_certificates, pinned_context
from howfar.lab.connected_server import HopWatch, count_children, hop_reader
from howfar.lab.network import Host, format_cpus, share_cpus, usable_cpus
from howfar.lab.servers import CertificatePaths, ready_timeout_s
from howfar.lab.servers.contents import CHUNK_ROWS, find_rows, row_chunk, row_chunks
from howfar.lab.servers.program import Program
from howfar.lab.servers.table_store import LOADED_TEMPLATES, template_name
from howfar.paths.path import Hop
from howfar.plan.factors import Content
from howfar.plan.quantities import RateBps, RttNs, read_option
from howfar.plan.workload import Data
from howfar.runner import preflight
from howfar.runner.preflight import max_possible_rows, memory_limit, rows_in, rows_that_fit, template_sizes


def _spinners() -> set[int]:
    """Descendants of this process that run in the idle scheduling class."""
    found: set[int] = set()
    left = [os.getpid()]
    while left:
        pid = left.pop()
        try:
            children = [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
        except OSError:
            continue
        left += children
        found |= {child for child in children if _policy(child) == os.SCHED_IDLE}
    return found


def _policy(pid: int) -> int | None:
    try:
        return os.sched_getscheduler(pid)
    except ProcessLookupError:
        return None


def test_processors_are_kept_awake_and_let_go(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "polling_obstacle", lambda: "this one is no root")
    cpu = min(os.sched_getaffinity(0))
    before = _spinners()
    with keep_cpus_awake([cpu]):
        deadline = time.monotonic() + 20
        while not (found := _spinners() - before):
            assert time.monotonic() < deadline, "no spinner came"
            time.sleep(0.01)
        assert all(os.sched_getaffinity(pid) == {cpu} for pid in found if _policy(pid) is not None)
    deadline = time.monotonic() + 20
    while _spinners() - before:
        assert time.monotonic() < deadline, "a spinner stayed"
        time.sleep(0.01)


@pytest.mark.skipif(not Path("/proc/self/autogroup").exists(), reason="this kernel does not group processes by session")
def test_spinners_are_of_one_light_group_also_without_root(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without root, the weight of only one group may be lowered per 100 ms, so ten groups would have to wait."""
    monkeypatch.setattr(module, "polling_obstacle", lambda: "this one is no root")
    without_root = ("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "--inh-caps=-all")
    prefix = without_root if os.geteuid() == 0 else ()

    def start(_: object, *others: Any) -> AbstractContextManager[None]:
        return run_spinners([prefix], *others)

    monkeypatch.setattr(module, "run_spinners", start)
    cpus = sorted(os.sched_getaffinity(0))[:2]
    before = _spinners()
    with keep_cpus_awake(cpus), keep_cpus_awake(cpus):
        deadline = time.monotonic() + 20
        while len(found := _spinners() - before) < 2 * len(cpus):
            assert time.monotonic() < deadline, f"{len(found)} spinners came"
            time.sleep(0.01)
        groups = {Path(f"/proc/{pid}/autogroup").read_text() for pid in found}
    assert len(groups) == 2
    assert all("nice 19" in group for group in groups), groups


def test_nothing_spins_where_idle_cpus_can_poll(monkeypatch: pytest.MonkeyPatch) -> None:
    held: list[str] = []

    @contextmanager
    def hold() -> Iterator[None]:
        held.append("on")
        yield
        held.append("off")

    monkeypatch.setattr(module, "polling_obstacle", lambda: None)
    monkeypatch.setattr(module, "keep_polling", hold)
    before = _spinners()
    with keep_cpus_awake([min(os.sched_getaffinity(0))]):
        assert (held, _spinners()) == (["on"], before)
    assert held == ["on", "off"]


def test_nothing_is_left_of_one_that_does_not_pass_signals_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It acts as `timeout` does for a moment after its fork: ended by a signal, it would leave its child behind."""
    names = tmp_path / "names"
    deaf = tmp_path / "timeout"
    deaf.write_text(f"#!/bin/sh\nsleep 60 &\necho $$ $! >{names}.new && mv {names}.new {names}\nwait\n")
    deaf.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    with run_spinners([()], 60):
        deadline = time.monotonic() + 20
        while not names.exists():
            assert time.monotonic() < deadline, "it did not start"
            time.sleep(0.01)
    deadline = time.monotonic() + 20
    for pid in map(int, names.read_text().split()):
        while _alive(pid):
            assert time.monotonic() < deadline, f"{pid} stayed"
            time.sleep(0.01)


def _alive(pid: int) -> bool:
    """Whether the process runs; a zombie that has not been reaped yet does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


# ---------------------------------------------------------------- the command


_TCP = TcpTarget(host="10.77.0.2", port=3306)


@pytest.mark.parametrize(
    ("option", "text", "quantity", "expected"),
    [
        ("--rtt", "99s", RttNs, "more than 10s"),
        ("--rtt", "10", RttNs, "is not a duration"),
        ("--rate", "1kbit", RateBps, "less than 1mbit"),
        ("--rate", "1000gbit", RateBps, "more than 100gbit"),
    ],
)
def test_what_a_plan_may_not_ask_the_laboratory_may_not_either(
    option: str, text: str, quantity: object, expected: str
) -> None:
    with pytest.raises(UsageError) as caught:
        read_option(option, text, quantity, "howfar lab")
    assert caught.value.message.startswith(f"{option} {text}: ")
    assert expected in caught.value.message


def test_what_a_plan_may_ask_is_taken() -> None:
    assert read_option("--rtt", "0.2ms", RttNs, "howfar lab") == 200_000
    assert read_option("--rate", "1gbit", RateBps, "howfar lab") == 10**9


def test_a_command_that_cannot_be_run_is_named_before_anything_is_built(tmp_path: Path) -> None:
    plain = tmp_path / "plain"
    plain.write_text("no program")
    for command, code, expected in (
        ("no-such-program", NOT_FOUND, "was not found"),
        (str(tmp_path / "nothing"), NOT_FOUND, "was not found"),
        (str(plain), NOT_EXECUTABLE, "cannot be executed"),
        (str(tmp_path), NOT_EXECUTABLE, "cannot be executed"),
    ):
        done = CliRunner().invoke(lab, ["--server", "none", "--", command])
        assert done.exit_code == code
        assert f"the program {command} {expected}" in done.output


def test_servers_beside_none_are_refused() -> None:
    done = CliRunner().invoke(lab, ["--server", "none", "--beside", "redis", "--", "true"])
    assert isinstance(done.exception, UsageError) and "--beside adds" in done.exception.message


@given(st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=1))
def test_an_option_file_keeps_any_password(password: str) -> None:
    (line,) = [line for line in client_options("u", password, _TCP).splitlines() if line.startswith("password=")]
    value = line.partition("=")[2]
    assert value[0] == value[-1] == '"'
    assert re.sub(r"\\(.)", r"\1", value[1:-1]) == password


def test_an_option_file_leads_where_the_path_does() -> None:
    def read(text: str) -> dict[str, str | None]:
        parser = configparser.ConfigParser(allow_no_value=True)
        parser.read_string(text)
        return dict(parser["client"])

    assert read(client_options("u", "p", _TCP)) == {
        "user": '"u"',
        "password": '"p"',
        "protocol": "tcp",
        "host": '"10.77.0.2"',
        "port": "3306",
        "loose-skip-ssl": None,
    }
    local = read(client_options("u", "p", UnixTarget(path="/w/my s.sock")))
    assert (local["protocol"], local["socket"]) == ("socket", '"/w/my s.sock"')


def test_a_place_that_is_none_is_told_first(tmp_path: Path) -> None:
    clear_receipt(tmp_path / "new.json")
    assert not (tmp_path / "new.json").exists()
    (tmp_path / "file").touch()
    clear_receipt(tmp_path / "file")
    (tmp_path / "file").touch()
    for place, why in (
        (tmp_path / "none" / "x", "No such file"),
        (tmp_path, "Is a directory|Permission"),
        (tmp_path / "file" / "x", "Not a directory"),
    ):
        with pytest.raises(UsageError, match=why):
            clear_receipt(place)


def test_the_exit_code_of_the_command_outlives_a_receipt_that_failed(tmp_path: Path) -> None:
    gone = tmp_path / "gone" / "x"
    assert write_receipt(7, gone, {}) == 7
    assert write_receipt(0, gone, {}) == LabError.exit_code
    assert write_receipt(0, tmp_path / "x", {"a": 1}) == 0
    assert (tmp_path / "x").read_text() == '{\n  "a": 1\n}\n'


def test_an_older_receipt_goes_first(tmp_path: Path) -> None:
    """Whatever ends the run early, another run's verdict is not found in its place."""
    receipt = tmp_path / "old.json"
    receipt.write_text('{"verdict": {"valid": true}}')
    clear_receipt(receipt)
    assert not receipt.exists()


# ---------------------------------------------------------------- a forwarder's processes are counted while they live


class _Child:
    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.pid = process.pid
        self.poll = process.poll
        self.alive = lambda: process.poll() is None


def _watch(name: str, process: subprocess.Popen[str]) -> HopWatch:
    sample = hop_reader(Hop(name, _Child(process), forks=True))
    assert sample is not None
    return HopWatch({name: sample})


@pytest.mark.skipif(count_children(os.getpid()) is None, reason="this kernel does not list a process's children")
def test_the_most_children_at_once_are_kept_after_they_have_gone() -> None:
    script = "sleep 100 & sleep 100 & sleep 100 & echo up; read line; kill %1 %2 %3; wait; echo gone; read line"
    with subprocess.Popen(
        ["bash", "-mc", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as parent:
        assert parent.stdin is not None
        assert parent.stdout is not None
        assert parent.stdout.readline() == "up\n"
        watch = _watch("server_side", parent)
        print("go", file=parent.stdin, flush=True)
        assert parent.stdout.readline() == "gone\n"
        assert count_children(parent.pid) == 0
        assert watch.finish() == watch.finish() == {"server_side": {"processes": 3}}
        parent.stdin.close()


def test_a_process_that_is_gone_is_unknown() -> None:
    process = subprocess.Popen(["true"], text=True)
    process.wait()
    assert count_children(process.pid) is None
    assert _watch("client_side", process).finish() == {"client_side": {}}


def test_fewer_processes_than_connections_are_a_violation_and_unknown_is_not() -> None:
    assert HopsReceipt(max_processes={"server_side": 8, "client_side": 9}, connections=8).violations() == ()
    assert HopsReceipt(max_processes={"server_side": None}, connections=8).violations() == ()
    assert HopsReceipt(max_processes={"server_side": 0}, connections=None).violations() == ()
    (found,) = HopsReceipt(max_processes={"server_side": 8, "client_side": 7}, connections=8).violations()
    assert found == violation("hop-processes", hop="client side", processes=7, connections=8)


# ---------------------------------------------------------------- cpu shares, and how a process is put on a host


_CPUS = st.lists(st.integers(0, 4096), min_size=1, max_size=256, unique=True)


@given(_CPUS)
def test_hosts_get_equal_shares_that_overlap_only_on_one_cpu(cpus: list[int]) -> None:
    shares = share_cpus(cpus)
    assert len(shares.client) == len(shares.server) >= 1
    assert set(shares.client) | set(shares.server) <= set(cpus)
    assert shares.overlap == (len(cpus) == 1)
    left = set(cpus) - set(shares.client) - set(shares.server)
    assert len(left) == (len(cpus) % 2 if len(cpus) > 1 else 0)


def test_neighbours_stay_together() -> None:
    shares = share_cpus((0, 4, 1, 5))
    assert shares.server == (0, 4)
    assert shares.client == (1, 5)


def test_usable_cpus_are_those_we_may_use() -> None:
    assert set(usable_cpus()) == os.sched_getaffinity(0)


def test_a_host_with_a_network_is_entered_by_descriptor() -> None:
    launcher = Host("client", 9).launcher((1, 3))
    assert launcher.prefix == ("setsid", "nsenter", "--net=/proc/self/fd/9", "--", "taskset", "-c", "1,3")
    assert launcher.pass_fds == (9,)


def test_without_a_sandbox_each_process_has_its_own_death_signal() -> None:
    launcher = Host("server", None).launcher((0,), foreground=True)
    assert launcher.prefix == ("setpriv", "--pdeathsig", "KILL", "--", "taskset", "-c", "0")
    assert launcher.pass_fds == ()


def test_cpus_are_written_as_taskset_reads_them() -> None:
    assert format_cpus((0, 2, 11)) == "0,2,11"


# ---------------------------------------------------------------- certificates of a laboratory, judged by python's own tls


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> CertificatePaths:
    return make_certificates(tmp_path_factory.mktemp("certificates"), ("127.0.0.1", "10.77.0.2", "fd00:77::2"))


def shake_hands(server: CertificatePaths, client: ssl.SSLContext, name: str) -> str | None:
    """Shake hands over a pair of sockets; returns the negotiated version. Raises ssl.SSLError."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(server.certificate, server.key)
    near, far = socket.socketpair()

    def serve() -> None:
        try:
            with context.wrap_socket(far, server_side=True) as wrapped:
                wrapped.recv(1)
        except OSError:
            far.close()

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        with near, client.wrap_socket(near, server_hostname=name) as wrapped:
            return wrapped.version()
    finally:
        thread.join()


@pytest.mark.parametrize("name", ["127.0.0.1", "10.77.0.2", "fd00:77::2", "localhost"])
@pytest.mark.parametrize("version", ["TLSv1.2", "TLSv1.3"])
def test_the_server_is_believed_by_each_of_its_names(made: CertificatePaths, name: str, version: str) -> None:
    assert shake_hands(made, pinned_context(made, version), name) == version


def test_the_server_is_believed_by_a_client_that_is_strict(made: CertificatePaths) -> None:
    """As Python is by default from 3.13 on: RFC 5280 requires the identifiers of both keys."""
    strict = pinned_context(made, "TLSv1.3")
    strict.verify_flags |= ssl.VERIFY_X509_STRICT
    assert shake_hands(made, strict, "127.0.0.1") == "TLSv1.3"


def test_another_name_and_another_laboratory_are_not(made: CertificatePaths, tmp_path: Path) -> None:
    with pytest.raises(ssl.SSLCertVerificationError):
        shake_hands(made, pinned_context(made, "TLSv1.3"), "10.77.0.1")
    other = make_certificates(tmp_path, ("127.0.0.1",))
    with pytest.raises(ssl.SSLCertVerificationError):
        shake_hands(made, pinned_context(other, "TLSv1.3"), "127.0.0.1")


def test_the_key_is_nobody_elses(made: CertificatePaths) -> None:
    assert stat.S_IMODE(made.key.stat().st_mode) == 0o600


# ---------------------------------------------------------------- generated rows


DIGITS = find_rows("digits")

_LINE = re.compile(r"(\d{10})\t(\d{10})\t(\d{11}(?:-\d{11}){9})\t(\d{11}(?:-\d{11}){4})")


@settings(max_examples=20)
@given(st.integers(1, 10**9), st.integers(1, 200), st.integers(1, 10**9))
def test_every_row_has_sysbenchs_form(first: int, count: int, size: int) -> None:
    lines = row_chunk(DIGITS, first, count, size).decode("ascii").splitlines()
    assert len(lines) == count
    for number, line in enumerate(lines, start=first):
        match = _LINE.fullmatch(line)
        assert match is not None, line
        assert int(match[1]) == number
        assert 1 <= int(match[2]) <= size
        assert (len(match[3]), len(match[4])) == (119, 59)


def test_rows_are_the_same_each_time_and_differ_among_themselves() -> None:
    assert row_chunk(DIGITS, 1, 50, 1000) == row_chunk(DIGITS, 1, 50, 1000)
    pads = {line.rsplit(b"\t", 1)[1] for line in row_chunk(DIGITS, 1, 50, 1000).splitlines()}
    assert len(pads) == 50


@pytest.mark.parametrize("size", [1, 100, CHUNK_ROWS, CHUNK_ROWS + 1])
def test_chunks_make_the_whole_table(size: int) -> None:
    chunks = list(row_chunks(DIGITS, size))
    assert sum(chunk.count(b"\n") for chunk in chunks) == size
    assert int(chunks[-1].splitlines()[-1].split(b"\t")[0]) == size


def test_digits_are_even() -> None:
    """100 rows x 165 digits = 16500; each digit 1650 times, standard deviation sqrt(16500 x 0.09) = 39: five of them are allowed."""
    text = b"".join(b"".join(line.split(b"\t")[2:]) for line in row_chunk(DIGITS, 1, 100, 100).splitlines())
    for digit in b"0123456789":
        assert abs(text.count(digit) - 1650) < 200


def values(content: Content, count: int) -> list[tuple[bytes, bytes]]:
    """`c` and `pad` of rows as the server will store them."""
    found = []
    for line in row_chunk(find_rows(content), 1, count, count).splitlines():
        _, _, c, pad = line.split(b"\t")
        found.append(
            (bytes.fromhex(c.decode()), bytes.fromhex(pad.decode())) if content == "incompressible" else (c, pad)
        )
    return found


@pytest.mark.parametrize("content", ["digits", "text", "incompressible"])
def test_every_content_fills_the_columns_alike(content: Content) -> None:
    """Answers have the same length whatever their content; CHAR would drop a trailing space."""
    rows = values(content, 500)
    assert {(len(c), len(pad)) for c, pad in rows} == {(119, 59)}
    assert len(set(rows)) == 500
    assert content == "incompressible" or not any(value.endswith(b" ") for row in rows for value in row)


@pytest.mark.parametrize(("content", "ratio"), [("digits", 0.52), ("text", 0.41), ("incompressible", 1.0)])
def test_each_content_compresses_as_its_file_says(content: Content, ratio: float) -> None:
    """Compressed in frames of 16 KiB, as servers send it, with zlib at their level."""
    stream = b"".join(c for c, _ in values(content, 2000))
    frames = [stream[start : start + 16384] for start in range(0, len(stream), 16384)]
    assert sum(len(zlib.compress(frame, 6)) for frame in frames) / len(stream) == pytest.approx(ratio, abs=0.01)


def test_text_is_plain_sentences() -> None:
    prose = b" ".join(c for c, _ in values("text", 2000)).decode("ascii")
    assert re.fullmatch(r"[A-Za-z .]+", prose)
    words = [word for word in re.split(r"[ .]+", prose.lower()) if word]
    assert 0.10 < words.count("the") / len(words) < 0.16, "1 / (1 + 1/2 + ... + 1/1146) = 0.131"


# ---------------------------------------------------------------- how large tables may be on this machine


GIB = 2**30
PROGRAM = Program(kind="mariadb", path=Path("/fake/mariadbd"), version="10.11.6", key="mariadb-10.11.6-ab")
PUBLISHED = Data(tables=20, table_size=10_000_000, fit=True)


def test_the_published_tables_fit_in_a_large_machine() -> None:
    """20 x 10 million rows of 250 bytes: 50 GB of files, 62.5 GB of buffer pool."""
    assert rows_in(120 * GIB, 100 * GIB, 20, 1) >= 10_000_000
    assert rows_in(100 * GIB, 100 * GIB, 20, 1) < 10_000_000
    assert rows_in(120 * GIB, 40 * GIB, 20, 1) < 10_000_000


@pytest.mark.parametrize(("memory", "disk"), [(0, 10**12), (GIB, 10**12), (10**12, 0)])
def test_where_there_is_no_room_nothing_fits(memory: int, disk: int) -> None:
    assert rows_in(memory, disk, 20, 1) == 0


def test_each_content_is_kept_apart() -> None:
    disk = 4 * 10**9
    assert rows_in(10**12, disk, 1, 2) == rows_in(10**12, disk, 1, 1) // 2


def test_a_template_that_is_there_needs_no_more_disk() -> None:
    assert rows_in(10**12, 0, 20, 1, kept=(1000, 5_000_000)) == 5_000_000
    in_memory = rows_in(10 * GIB, 10**12, 20, 1)
    assert rows_in(10 * GIB, 0, 20, 1, kept=(1000, in_memory + 1)) == 1000, "but memory"


@pytest.mark.parametrize(("there", "rows"), [((), 0), (("digits",), 0), (("digits", "text"), 2_000_000)])
def test_only_the_very_templates_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, there: tuple[Content, ...], rows: int
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(preflight, "memory_bytes", lambda what: 10**12)
    monkeypatch.setattr(preflight, "memory_limit", lambda membership, root: float("inf"))
    monkeypatch.setattr("shutil.disk_usage", lambda path: type("Usage", (), {"free": 0}))
    shelf = tmp_path / "howfar" / LOADED_TEMPLATES
    other = Program(kind="mariadb", path=Path("/fake/mariadbd"), version="11.4.2", key="mariadb-11.4.2-cd")
    for content in there:
        (shelf / template_name(PROGRAM, 20, 2_000_000, find_rows(content))).mkdir(parents=True)
        (shelf / template_name(PROGRAM, 20, 3_000_000, find_rows(content))).mkdir()  # a size that would not be chosen
        (shelf / template_name(PROGRAM, 10, 5_000_000, find_rows(content))).mkdir()
        (shelf / template_name(other, 20, 5_000_000, find_rows(content))).mkdir()
    contents: tuple[Content, ...] = ("digits", "text")
    assert rows_that_fit(PUBLISHED, contents, PROGRAM) == rows
    assert template_sizes(shelf, PROGRAM, 20, contents) == ((2_000_000, 3_000_000) if rows else ())


@pytest.mark.parametrize(
    ("membership", "file"),
    [
        ("0::/", "memory.max"),
        ("0::/a/b", "a/memory.max"),
        ("0::/of/outside", "memory.max"),
        ("4:memory:/a\n0::/", "memory/a/memory.limit_in_bytes"),
        ("4:cpu,cpuacct:/x\n3:memory:/of/outside", "memory/memory.limit_in_bytes"),
    ],
)
def test_a_control_group_limits_also_from_above(tmp_path: Path, membership: str, file: str) -> None:
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "a" / "b" / "memory.max").write_text("max\n")
    limit = tmp_path / file
    limit.parent.mkdir(parents=True, exist_ok=True)
    limit.write_text("4294967296\n")
    assert memory_limit(membership, tmp_path) == 4 * GIB


def test_without_a_limit_there_is_none(tmp_path: Path) -> None:
    assert memory_limit("0::/", tmp_path) == float("inf")


@pytest.mark.parametrize(
    ("total", "limit", "available"), [(64, 1000, 64), (1000, 64, 1000), (1000, 1000, 64 * 0.7 / 0.9)]
)
def test_the_scarcest_of_the_machine_its_group_and_what_is_free_decides(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, total: float, limit: float, available: float
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    memory = {"MemTotal": total * GIB, "MemAvailable": available * GIB}
    monkeypatch.setattr(preflight, "memory_bytes", memory.__getitem__)
    monkeypatch.setattr(preflight, "memory_limit", lambda membership, root: limit * GIB)
    monkeypatch.setattr("shutil.disk_usage", lambda path: type("Usage", (), {"free": 10**14}))
    found = rows_that_fit(PUBLISHED, ("digits",), PROGRAM)
    assert found == pytest.approx(rows_in(64 * GIB * 0.7, 10**14, 20, 1), rel=1e-3)


def test_a_server_has_time_to_read_its_tables() -> None:
    assert ready_timeout_s(0) == 60
    assert ready_timeout_s(62_500_000_000) > 62.5e9 / 100e6, "a disk of 100 MB/s"


@pytest.mark.parametrize("scarce", ["MemTotal", "MemAvailable", "limit"])
def test_more_than_the_servers_pool_has_room_for_is_too_much_whatever_lies_on_disk(
    monkeypatch: pytest.MonkeyPatch, scarce: str
) -> None:
    """20 tables of 250 bytes per row, and a quarter more for the pool: 6250 bytes for one row of each table."""

    def size(what: str) -> int:
        return 64 * 10**9 if what == scarce else 10**15

    monkeypatch.setattr(preflight, "memory_bytes", size)
    monkeypatch.setattr(preflight, "memory_limit", lambda membership, root: size("limit"))
    assert max_possible_rows(PUBLISHED) == 64 * 10**9 // 6250
