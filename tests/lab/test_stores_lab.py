"""Redis and Memcached as servers of the laboratory: each path is as requested, and plain text is never taken for TLS."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from howfar.errors import PlanError, ServerCrashed
from howfar.lab.servers import Tables
from tests.lab import certificates
from tests.lab.local_servers import make_short_directory, prepare_store, require_server
from tests.lab.sandboxes import run_lab
from tests.lab.scenario_programs import run_scenario
from tests.lab.stores_scenario import KEYS
from tests.lab.undisturbed import unexcused

pytestmark = [pytest.mark.lab, pytest.mark.usefixtures("namespaces")]
CASES = ("socket", "tcp", "tcp:1.3", "remote", "remote:1.2", "forwarded-socket", "socket:1.3")
KINDS = ("redis", "memcached", *(("valkey",) if shutil.which("valkey-server") else ()))
PORTS = {"redis": [6379], "memcached": [11211]}


@pytest.fixture(scope="module", params=KINDS)
def name(request: pytest.FixtureRequest) -> str:
    require_server(request.param)
    return str(request.param)


@pytest.fixture(scope="module")
def seen(name: str, cache: Path) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = run_scenario("stores_scenario", name, *CASES, cache=cache)[0]["trials"]
    return found


def test_each_path_is_as_requested_and_client_and_server_counts_agree(seen: dict[str, dict[str, Any]]) -> None:
    for case in CASES[:6]:
        trial, (_, _, tls) = seen[case], case.partition(":")
        assert unexcused(trial["violations"]) == [], case
        server = trial["receipt"]["server"]
        counters, view, door = server["counters"], server["session_view"], server["door"]
        assert (counters["lookup_hits"], counters["lookup_misses"]) == (trial["gets"], trial["misses"])
        assert trial["gets"] > trial["misses"] == 0 and trial["filled"] == KEYS
        assert counters["cmd_set" if server["kind"] == "memcached" else "cmdstat_set"] == trial["sets"] + KEYS
        assert counters["bytes_sent"] > trial["bytes"]["to_client"]
        assert (door["plain"], door["tls"] is not None, view["ssl_version"]) == (
            not tls,
            bool(tls),
            f"TLSv{tls}" if tls else None,
        )


def test_the_server_listens_only_where_the_path_needs_it(name: str, seen: dict[str, dict[str, Any]]) -> None:
    port, both = PORTS.get(name, PORTS["redis"]), name != "memcached"
    server = {case: seen[case]["receipt"]["server"] for case in CASES[:6]}
    assert server["forwarded-socket"]["tcp_ports"] == [] and len(server["forwarded-socket"]["sockets"]) == 1
    assert server["remote"]["tcp_ports"] == server["remote:1.2"]["tcp_ports"] == port
    assert bool(server["remote"]["sockets"]) == both and bool(server["socket"]["tcp_ports"]) == both
    assert server["remote"]["session_view"]["host"].startswith("10.77.0.1:")
    assert server["remote"]["listen_queue"] >= 4096


def test_tls_on_a_socket_is_found_to_be_plain_text(seen: dict[str, dict[str, Any]]) -> None:
    for case in CASES[6:]:
        assert "accepts unencrypted connections" in seen[case]["refused"]


def test_the_receipt_reports_that_a_socket_is_not_encrypted(
    name: str, authority: certificates.Certificates, tmp_path: Path
) -> None:
    """Memcached with `-Z` and `-s` starts without a warning and does not encrypt."""
    store = prepare_store(name, make_short_directory(tmp_path), tables=Tables(0, 0))
    server = store.start(networking=False, tls=authority.server, transport="socket")
    try:
        if name == "memcached":
            assert server.collect_receipt(server.snapshot())[0].facts["ssl_enabled"] == "yes", (
                "Memcached itself claims TLS"
            )
        found = server.collect_receipt(server.snapshot())[1]
        assert [each.id for each in found] == ["no-tls-at-address", "plain-text-at-address"]
        with pytest.raises(PlanError):
            server.query("SELECT 1")
        os.kill(server.pid, 9)
        with pytest.raises(ServerCrashed):
            server.snapshot()
    finally:
        server.stop()


def test_a_failed_start_is_reported(name: str, authority: certificates.Certificates, tmp_path: Path) -> None:
    store = prepare_store(name, make_short_directory(tmp_path), tables=Tables(0, 0))
    paths = authority.server
    broken = type(paths)(paths.ca, tmp_path / "none", paths.key)
    with pytest.raises(ServerCrashed, match="at start"):
        store.start(networking=True, tls=broken, transport="tcp")


def test_a_command_finds_the_store(name: str) -> None:
    if name == "memcached":
        script = (
            'env | grep -c "HOWFAR_USER\\|HOWFAR_CLIENT_CNF"; ss -Hxl src "$HOWFAR_SOCKET" | wc -l; ls "$HOWFAR_SOCKET"'
        )
        done = run_lab("--server", name, "--", "sh", "-c", script)
        assert (done.returncode, done.stdout.split()[:2]) == (0, ["0", "1"]), done.stderr
    else:
        script = 'test -r "$HOWFAR_CA_FILE" && echo "$HOWFAR_HOST:$HOWFAR_PORT"'
        done = run_lab("--server", name, "--tls", "1.3", "--path", "tcp", "--", "sh", "-c", script)
        assert (done.returncode, done.stdout.strip()) == (0, "127.0.0.1:6379"), done.stderr
    assert f"{name} " in done.stderr and "empty" in done.stderr
