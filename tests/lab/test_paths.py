"""The four basic paths with a real server, socat and link: each receipt proves its path."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.lab.howfar_runs import PATHS
from tests.lab.sandboxes import run_lab
from tests.lab.scenario_programs import run_scenario
from tests.lab.undisturbed import unexcused
from tests.rarely import rarely_but

pytestmark = [pytest.mark.lab, pytest.mark.usefixtures("namespaces", "mariadb")]
_TABLES, _SIZE = 2, 1000
_REPEATED = ("socket", "forwarded-socket")
"""These paths have two trials."""


@pytest.fixture(scope="module")
def seen(cache: Path) -> dict[str, Any]:
    request = json.dumps({"tables": _TABLES, "table_size": _SIZE, "connections": 8})
    return run_scenario("paths_scenario", request, *PATHS, *_REPEATED, cache=cache)[0]


def _trials(seen: dict[str, Any], path: str) -> list[dict[str, Any]]:
    found = [trial for trial in seen["trials"] if trial["path"] == path]
    assert len(found) == 1 + (path in _REPEATED)
    return found


@pytest.mark.parametrize("path", PATHS)
def test_each_path_is_as_requested(seen: dict[str, Any], path: str) -> None:
    for trial in _trials(seen, path):
        assert trial["transactions"] > 0
        assert unexcused(trial["violations"]) == []


@pytest.mark.parametrize("path", _REPEATED)
def test_a_server_has_all_pages_in_memory(seen: dict[str, Any], path: str) -> None:
    reads = [trial["receipt"]["server"]["counters"]["pages_read"] for trial in _trials(seen, path)]
    assert min(reads) == 0, "a busy machine may read pages from files in one trial, which voids it, but not in both"


@pytest.mark.parametrize(
    ("path", "family", "host", "roles"),
    [
        ("socket", "unix", "localhost", {"client", "server"}),
        ("tcp", "inet", "127.0.0.1", {"client", "server"}),
        ("remote", "inet", "10.77.0.1", {"client", "server", "link"}),
        ("forwarded-socket", "unix", "localhost", {"client", "server", "forwarder", "link"}),
    ],
)
def test_client_and_server_agree_on_the_path(
    seen: dict[str, Any], path: str, family: str, host: str, roles: set[str]
) -> None:
    for trial in _trials(seen, path):
        assert trial["session"]["address_family"] == family
        assert trial["receipt"]["server"]["session_view"]["host"].partition(":")[0] == host
        assert set(trial["roles"]) == roles


def test_a_forwarded_server_has_no_network(seen: dict[str, Any]) -> None:
    for trial in _trials(seen, "forwarded-socket"):
        assert trial["receipt"]["server"]["facts"]["skip_networking"] == "ON"
        assert trial["receipt"]["server"]["tcp_ports"] == []
        assert trial["session"]["peer_pid"] != trial["receipt"]["server"]["pid"]
    for trial in _trials(seen, "tcp"):
        assert trial["receipt"]["server"]["tcp_ports"] == [3306]


def test_only_paths_over_the_link_have_its_receipt(seen: dict[str, Any]) -> None:
    for trial in seen["trials"]:
        linked = trial["path"] in ("remote", "forwarded-socket")
        assert ("link" in trial["receipt"]) == linked
        assert not linked or trial["receipt"]["link"]["counters"]["to_server"]["segments"] > 0


def test_each_trial_has_a_fresh_server(seen: dict[str, Any]) -> None:
    pids = [trial["receipt"]["server"]["pid"] for trial in seen["trials"]]
    assert len(set(pids)) == len(pids)


def test_every_tcp_session_uses_the_same_congestion_control(seen: dict[str, Any]) -> None:
    for path in ("tcp", "remote"):
        assert {trial["session"]["congestion_control"] for trial in _trials(seen, path)} == {"cubic"}


def test_a_second_start_uses_the_loaded_template(seen: dict[str, Any], cache: Path) -> None:
    loaded = cache / "howfar" / "templates" / "loaded"
    before = {item.name for item in loaded.iterdir()}
    done = run_lab("--tables", str(_TABLES), "--table-size", str(_SIZE), "--", "true", cache=cache)
    assert done.returncode == 0, done.stderr
    assert {item.name for item in loaded.iterdir()} == before
    assert not list(loaded.glob("building-*"))


@pytest.mark.parametrize("path", rarely_but(("tcp", "forwarded-socket"), PATHS))
def test_a_program_without_howfar_finds_the_server(path: str, cache: Path) -> None:
    """A client without howfar connects by the variables and the password file."""
    script = (
        "import os, pymysql; e = os.environ; "
        "c = pymysql.connect(user=e['HOWFAR_USER'], password=open(e['HOWFAR_PASSWORD_FILE']).read(), "
        "database=e['HOWFAR_DATABASE'], unix_socket=e.get('HOWFAR_SOCKET'), host=e.get('HOWFAR_HOST'), "
        "port=int(e.get('HOWFAR_PORT', 0))).cursor(); "
        f"c.execute('SELECT COUNT(*), MIN(LENGTH(c)), MAX(id) FROM sbtest{_TABLES}'); print(c.fetchone())"
    )
    arguments = ("--path", path, "--tables", str(_TABLES), "--table-size", str(_SIZE))
    done = run_lab(*arguments, "--", sys.executable, "-c", script, cache=cache)
    assert done.stdout.strip() == f"({_SIZE}, 119, {_SIZE})", done.stderr


def test_a_companion_runs_on_the_servers_host() -> None:
    script = (
        "until socat -u OPEN:/dev/null TCP:$HOWFAR_HOST:7000 2>/dev/null; do :; done; socat -u TCP:$HOWFAR_HOST:7000 -"
    )
    companion = "socat TCP-LISTEN:7000,fork,reuseaddr 'SYSTEM:ip -brief address show s0'"
    done = run_lab(
        "--path", "remote", "--server", "none", "--on-server", companion, "--", "timeout", "20", "sh", "-c", script
    )
    assert "10.77.0.2/30" in done.stdout, done.stderr
