"""PostgreSQL in the laboratory: every path, TLS, a connection per transaction, writes, a crash. Each receipt proves its cell."""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path
from typing import Any

import pytest

from howfar.errors import PlanError
from howfar.lab.servers import Tables, find_store
from howfar.lab.servers.features import find_features
from howfar.lab.servers.kinds import find_server
from howfar.lab.servers.postgresql import _is_running
from tests.lab.howfar_runs import HOWFAR, PATHS
from tests.lab.local_servers import make_short_directory, prepare_store
from tests.lab.sandboxes import run_lab
from tests.lab.scenario_programs import run_scenario
from tests.lab.undisturbed import unexcused
from tests.rarely import rarely_but

pytestmark = [pytest.mark.lab, pytest.mark.usefixtures("namespaces", "postgresql")]
_TABLES, _SIZE = 2, 1000
_SMALL = ("--server", "postgresql", "--tables", "1", "--table-size", "10")
_ENCRYPTED = {"path": "remote", "tls": "1.3"}
_CONNECTING = {"path": "tcp", "connect": "per-transaction"}
_WRITING = {"path": "socket", "kind": "oltp_read_write"}
_REPEATED = "socket"
"""This path has two trials."""


@pytest.fixture(scope="module")
def seen(cache: Path) -> dict[str, Any]:
    request = json.dumps({"server": "postgresql", "tables": _TABLES, "table_size": _SIZE, "connections": 8})
    cells = [*PATHS, *map(json.dumps, (_ENCRYPTED, _CONNECTING, _WRITING)), _REPEATED]
    return run_scenario("paths_scenario", request, *cells, cache=cache)[0]


def _trials(seen: dict[str, Any], **cell: str) -> list[dict[str, Any]]:
    """The trials of a cell."""
    names = {"path", "tls", "connect", "kind"}
    found = [trial for trial in seen["trials"] if {name: trial[name] for name in names & set(trial)} == cell]
    assert len(found) == 1 + (cell == {"path": _REPEATED})
    return found


def test_every_cell_is_as_requested(seen: dict[str, Any]) -> None:
    for trial in seen["trials"]:
        assert trial["transactions"] > 0, trial
        assert unexcused(trial["violations"]) == [], trial


@pytest.mark.parametrize(
    ("path", "family", "host", "ports"),
    [
        ("socket", "unix", "localhost", [5432]),
        ("tcp", "inet", "127.0.0.1", [5432]),
        ("remote", "inet", "10.77.0.1", [5432]),
        ("forwarded-socket", "unix", "localhost", []),
    ],
)
def test_client_and_server_agree_on_the_path(
    seen: dict[str, Any], path: str, family: str, host: str, ports: list[int]
) -> None:
    for trial in _trials(seen, path=path):
        server = trial["receipt"]["server"]
        assert trial["session"]["address_family"] == family
        assert server["session_view"]["host"] == host
        assert server["tcp_ports"] == ports
        assert server["counters"]["pages_read"] == 0, "all pages are in memory before the load"


def test_client_and_server_report_the_requested_tls_version(seen: dict[str, Any]) -> None:
    for trial in _trials(seen, **_ENCRYPTED):
        assert trial["session"]["tls_version"] == trial["session"]["tls_client_version"] == "TLSv1.3"
        assert trial["receipt"]["server"]["session_view"]["ssl_version"] == "TLSv1.3"


def test_sessions_that_have_ended_are_counted_with_their_cpu_time(seen: dict[str, Any]) -> None:
    """Each session is a process: the server's CPU time would be almost 0 without that of ended processes."""
    for trial in _trials(seen, **_CONNECTING):
        counters = trial["receipt"]["server"]["counters"]
        assert counters["connections"] >= trial["transactions"]
        assert trial["cpu"]["server"] > trial["cpu"]["client"]


def test_the_server_counts_the_commits_of_the_load(seen: dict[str, Any]) -> None:
    for trial in _trials(seen, **_WRITING):
        assert trial["receipt"]["server"]["counters"]["commits"] >= trial["transactions"]
        assert trial["receipt"]["server"]["counters"]["tup_updated"] > 0


def test_a_program_without_howfar_finds_the_server(cache: Path) -> None:
    script = (
        "import os, pg8000.native as n; e = os.environ; "
        "c = n.Connection(e['HOWFAR_USER'], password=open(e['HOWFAR_PASSWORD_FILE']).read(), "
        "database=e['HOWFAR_DATABASE'], host=e['HOWFAR_HOST'], port=int(e['HOWFAR_PORT'])); "
        f"print(c.run('SELECT COUNT(*), MIN(LENGTH(c)), MAX(id) FROM sbtest{_TABLES}'))"
    )
    arguments = ("--server", "postgresql", "--path", "remote", "--tables", str(_TABLES), "--table-size", str(_SIZE))
    done = run_lab(*arguments, "--", sys.executable, "-c", script, cache=cache)
    assert done.stdout.strip() == f"[[{_SIZE}, 119, {_SIZE}]]", done.stderr


def test_doctor_examines_the_server_at_the_end_of_the_path(cache: Path) -> None:
    """The server is in another network namespace, which the doctor cannot inspect."""
    done = run_lab(*_SMALL, "--path", "remote", "--", HOWFAR, "doctor", "--json", "--watch", "0.2", cache=cache)
    (server,) = json.loads(done.stdout)["servers"]
    assert server["named"] and server["logged_in"] and server["kind"] == "postgresql", done.stderr
    assert [floor["transport"] for floor in server["floors"]] == ["tcp"]


def test_an_idle_session_that_the_server_ends_is_reported_with_the_servers_reason(cache: Path) -> None:
    load = f"{HOWFAR} load --threads 1 --rate 0.001 --time 60 --tables 1 --table-size 10 oltp_point_select"
    # The session is idle once it has answered the load's last query about it, which reads pg_stat_ssl.
    ending = (
        "import os, time, pg8000.native as n; e = os.environ; "
        "c = n.Connection(e['HOWFAR_USER'], password=open(e['HOWFAR_PASSWORD_FILE']).read(), "
        "database=e['HOWFAR_DATABASE'], unix_sock=e['HOWFAR_SOCKET']); "
        "[None for _ in range(3000) if not c.run('SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
        "WHERE query LIKE $$%pg_stat_ssl%$$ AND state = $$idle$$ AND state_change < now() - interval $$300 ms$$') "
        "and not time.sleep(0.01)]"
    )
    script = f"{load} & pid=$!; {shlex.join([sys.executable, '-c', ending])} & wait $pid; code=$?; kill $!; exit $code"
    done = run_lab(*_SMALL, "--path", "socket", "--", "sh", "-c", script, cache=cache)
    assert done.returncode == 5, done.stderr
    assert "ended the session: error 57P01" in done.stderr, done.stderr


def test_a_load_whose_sessions_are_ended_repeatedly_is_failing(cache: Path) -> None:
    """Sessions are opened again each time, and the server's reason is reported."""
    limit = (
        "import os, pg8000.native as n; e = os.environ; "
        "n.Connection(e['HOWFAR_USER'], password=open(e['HOWFAR_PASSWORD_FILE']).read(), database=e['HOWFAR_DATABASE'], "
        "unix_sock=e['HOWFAR_SOCKET']).run('ALTER ROLE CURRENT_USER SET idle_session_timeout = 20')"
    )
    load = f"{HOWFAR} load --threads 1 --rate 8 --time 2 --tables 1 --table-size 10 --on-disconnect reconnect --json"
    script = f"{shlex.join([sys.executable, '-c', limit])} && {load} oltp_point_select"
    done = run_lab(*_SMALL, "--path", "socket", "--", "sh", "-c", script, cache=cache)
    *_, finished, summary = map(json.loads, done.stdout.splitlines())
    assert "failing" in summary["stamps"], done.stderr
    assert finished["reconnects"] > 0 and "57P05" in finished["lost"]["last"]["message"]


@pytest.mark.parametrize("path", rarely_but(("forwarded-socket",), ("socket", "forwarded-socket")))
def test_libpqs_variables_locate_the_server(cache: Path, path: str) -> None:
    script = (
        "import os; e = os.environ; print(e['PGHOST'], e['PGPORT'], e['PGUSER'], e['PGDATABASE'], "
        "open(e['PGPASSFILE']).read(), os.readlink(e['PGHOST'] + '/.s.PGSQL.' + e['PGPORT']) == e['HOWFAR_SOCKET'])"
    )
    done = run_lab(*_SMALL, "--path", path, "--", sys.executable, "-c", script, cache=cache)
    directory, port, user, database, password, same = done.stdout.split()
    assert same == "True"
    assert (port, user, database) == ("5432", "howfar", "sbtest")
    assert password.startswith("*:*:sbtest:howfar:") and directory.startswith("/")


def test_a_crash_leaves_no_process_and_the_next_start_has_the_data(
    cache: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Runs without a sandbox, and so also if an ordinary user runs the tests."""
    store = prepare_store(
        "postgresql", make_short_directory(tmp_path_factory.mktemp("s", numbered=True)), tables=Tables(1, 100)
    )
    server = store.start(networking=True)
    children = Path(f"/proc/{server.pid}/task/{server.pid}/children").read_text().split()
    server.query("UPDATE sbtest1 SET k = 0")
    server.kill()
    assert children and not [pid for pid in children if _is_running(int(pid))]
    again = store.start(networking=False)
    try:
        assert again.query("SELECT count(*) AS n FROM sbtest1 WHERE k = 0")[0]["n"] == 100
    finally:
        again.stop()


def test_its_features_are_found() -> None:
    features = find_features(find_server("postgresql"))
    assert features.compression == () and not features.semi_sync and not features.clone


def test_binary_content_that_it_would_send_as_hex_digits_is_refused() -> None:
    with pytest.raises(PlanError, match="incompressible"):
        find_store("postgresql", Tables(1, 100, ("incompressible",)))


def test_a_command_gets_an_encrypted_session(cache: Path) -> None:
    query = "select version from pg_stat_ssl where pid = pg_backend_pid()"
    done = run_lab(*_SMALL, "--path", "tcp", "--tls", "1.2", "--", "psql", "-Atc", query, cache=cache)
    assert (done.returncode, done.stdout.strip()) == (0, "TLSv1.2"), done.stderr
