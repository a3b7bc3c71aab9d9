"""PostgreSQL in the laboratory: every path, TLS, a connection for each transaction, writes, a crash; each receipt proves its cell."""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path
from typing import Any

import pytest

from howfar.errors import PlanError
from howfar.lab.servers import Tables, find_store
from howfar.lab.servers.features import features
from howfar.lab.servers.kinds import find_server
from howfar.lab.servers.postgresql import _is_running
from tests.lab.programs import answers
from tests.lab.sandboxes import run_lab
from tests.lab.servers_here import prepared, short_directory
from tests.lab.undisturbed import lasting

pytestmark = [pytest.mark.lab, pytest.mark.usefixtures("namespaces", "postgresql")]
_TABLES, _SIZE = 2, 1000
_HOWFAR = str(Path(sys.executable).with_name("howfar"))
_PATHS = ("socket", "tcp", "remote", "forwarded-socket")
_ENCRYPTED = {"path": "remote", "tls": "1.3"}
_CONNECTING = {"path": "tcp", "connect": "per-transaction"}
_WRITING = {"path": "socket", "kind": "oltp_read_write"}


@pytest.fixture(scope="module")
def seen(cache: Path) -> dict[str, Any]:
    request = json.dumps({"server": "postgresql", "tables": _TABLES, "table_size": _SIZE, "connections": 8})
    cells = [*_PATHS, *map(json.dumps, (_ENCRYPTED, _CONNECTING, _WRITING))]
    return answers("scenario", request, *cells, cache=cache)[0]


def _trials(seen: dict[str, Any], **cell: str) -> list[dict[str, Any]]:
    special = {"tls", "connect", "kind"}
    found = [
        trial for trial in seen["trials"] if {name: trial[name] for name in (special | {"path"}) & set(trial)} == cell
    ]
    assert len(found) == 2
    return found


def test_every_cell_works_and_is_what_was_asked(seen: dict[str, Any]) -> None:
    for trial in seen["trials"]:
        assert trial["transactions"] > 0, trial
        assert lasting(trial["violations"]) == [], trial


@pytest.mark.parametrize(
    ("path", "family", "host", "ports"),
    [
        ("socket", "unix", "localhost", [5432]),
        ("tcp", "inet", "127.0.0.1", [5432]),
        ("remote", "inet", "10.77.0.1", [5432]),
        ("forwarded-socket", "unix", "localhost", []),
    ],
)
def test_both_ends_tell_the_same(seen: dict[str, Any], path: str, family: str, host: str, ports: list[int]) -> None:
    for trial in _trials(seen, path=path):
        server = trial["receipt"]["server"]
        assert trial["session"]["address_family"] == family
        assert server["session_view"]["host"] == host
        assert server["tcp_ports"] == ports
        assert server["counters"]["pages_read"] == 0, "all pages are in memory before the load"


def test_tls_is_what_both_ends_negotiated(seen: dict[str, Any]) -> None:
    for trial in _trials(seen, **_ENCRYPTED):
        assert trial["session"]["tls_version"] == trial["session"]["tls_client_version"] == "TLSv1.3"
        assert trial["receipt"]["server"]["session_view"]["ssl_version"] == "TLSv1.3"


def test_sessions_that_have_ended_are_counted_with_their_cpu_time(seen: dict[str, Any]) -> None:
    """Each session is a process: without the time of ended processes the server would seem to need almost none."""
    for trial in _trials(seen, **_CONNECTING):
        counters = trial["receipt"]["server"]["counters"]
        assert counters["connections"] >= trial["transactions"]
        assert trial["cpu"]["server"] > trial["cpu"]["client"]


def test_the_server_counts_the_commits_of_the_load(seen: dict[str, Any]) -> None:
    for trial in _trials(seen, **_WRITING):
        assert trial["receipt"]["server"]["counters"]["commits"] >= trial["transactions"]
        assert trial["receipt"]["server"]["counters"]["tup_updated"] > 0


def test_a_foreign_program_finds_the_server(cache: Path) -> None:
    script = (
        "import os, pg8000.native as n; e = os.environ; "
        "c = n.Connection(e['HOWFAR_USER'], password=open(e['HOWFAR_PASSWORD_FILE']).read(), "
        "database=e['HOWFAR_DATABASE'], host=e['HOWFAR_HOST'], port=int(e['HOWFAR_PORT'])); "
        f"print(c.run('SELECT COUNT(*), MIN(LENGTH(c)), MAX(id) FROM sbtest{_TABLES}'))"
    )
    arguments = ("--server", "postgresql", "--path", "remote", "--tables", str(_TABLES), "--table-size", str(_SIZE))
    done = run_lab(*arguments, "--", sys.executable, "-c", script, env={"XDG_CACHE_HOME": str(cache)})
    assert done.stdout.strip() == f"[[{_SIZE}, 119, {_SIZE}]]", done.stderr


def test_doctor_examines_the_server_at_the_end_of_the_path(cache: Path) -> None:
    """The server is in a network namespace that the doctor cannot inspect."""
    arguments = ("--server", "postgresql", "--path", "remote", "--tables", "1", "--table-size", "10")
    doctor = (_HOWFAR, "doctor", "--json", "--watch", "0.2")
    done = run_lab(*arguments, "--", *doctor, env={"XDG_CACHE_HOME": str(cache)})
    (server,) = json.loads(done.stdout)["servers"]
    assert server["named"] and server["logged_in"] and server["kind"] == "postgresql", done.stderr
    assert [floor["transport"] for floor in server["floors"]] == ["tcp"]


def test_a_session_that_the_server_ends_while_it_rests_is_told_with_the_servers_reason(cache: Path) -> None:
    load = f"{_HOWFAR} load --threads 1 --rate 0.001 --time 60 --tables 1 --table-size 10 oltp_point_select"
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
    arguments = ("--server", "postgresql", "--path", "socket", "--tables", "1", "--table-size", "10")
    done = run_lab(*arguments, "--", "sh", "-c", script, env={"XDG_CACHE_HOME": str(cache)})
    assert done.returncode == 5, done.stderr
    assert "ended the session: error 57P01" in done.stderr, done.stderr


def test_sessions_that_the_server_ends_again_and_again_make_a_load_fail(cache: Path) -> None:
    """They are opened again each time, and the server's reason is reported."""
    ends = (
        "import os, pg8000.native as n; e = os.environ; "
        "n.Connection(e['HOWFAR_USER'], password=open(e['HOWFAR_PASSWORD_FILE']).read(), database=e['HOWFAR_DATABASE'], "
        "unix_sock=e['HOWFAR_SOCKET']).run('ALTER ROLE CURRENT_USER SET idle_session_timeout = 20')"
    )
    load = f"{_HOWFAR} load --threads 1 --rate 4 --time 4 --tables 1 --table-size 10 --on-disconnect reconnect --json"
    script = f"{shlex.join([sys.executable, '-c', ends])} && {load} oltp_point_select"
    arguments = ("--server", "postgresql", "--path", "socket", "--tables", "1", "--table-size", "10")
    done = run_lab(*arguments, "--", "sh", "-c", script, env={"XDG_CACHE_HOME": str(cache)})
    *_, finished, summary = map(json.loads, done.stdout.splitlines())
    assert "failing" in summary["stamps"], done.stderr
    assert finished["reconnects"] > 0 and "57P05" in finished["lost"]["last"]["message"]


@pytest.mark.parametrize("path", ["socket", "forwarded-socket"])
def test_libpqs_own_variables_lead_there(cache: Path, path: str) -> None:
    arguments = ("--server", "postgresql", "--path", path, "--tables", "1", "--table-size", "10")
    script = "import os; e = os.environ; print(e['PGHOST'], e['PGPORT'], e['PGUSER'], e['PGDATABASE'], "
    script += (
        "open(e['PGPASSFILE']).read(), os.readlink(e['PGHOST'] + '/.s.PGSQL.' + e['PGPORT']) == e['HOWFAR_SOCKET'])"
    )
    done = run_lab(*arguments, "--", sys.executable, "-c", script, env={"XDG_CACHE_HOME": str(cache)})
    directory, port, user, database, password, same = done.stdout.split()
    assert same == "True"
    assert (port, user, database) == ("5432", "howfar", "sbtest")
    assert password.startswith("*:*:sbtest:howfar:") and directory.startswith("/")


def test_a_crash_leaves_no_process_and_the_next_start_has_the_data(
    cache: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Runs without a sandbox, so also as an ordinary user who runs the tests."""
    store = prepared("postgresql", short_directory(tmp_path_factory.mktemp("s", numbered=True)), tables=Tables(1, 100))
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


def test_what_it_can_do_is_found_by_asking_it() -> None:
    able = features(find_server("postgresql"))
    assert able.compression == () and not able.semi_sync and not able.clone


def test_content_that_it_would_send_as_digits_is_refused() -> None:
    with pytest.raises(PlanError, match="incompressible"):
        find_store("postgresql", Tables(1, 100, ("incompressible",)))


def test_a_command_gets_an_encrypted_session(cache: Path) -> None:
    asks = "select version from pg_stat_ssl where pid = pg_backend_pid()"
    tables = ("--tables", "1", "--table-size", "10")
    environment = {"XDG_CACHE_HOME": str(cache)}
    link = ("--server", "postgresql", "--path", "tcp", "--tls", "1.2")
    done = run_lab(*link, *tables, "--", "psql", "-Atc", asks, env=environment)
    assert (done.returncode, done.stdout.strip()) == (0, "TLSv1.2"), done.stderr
