"""The user's own server as the target of a run between hosts. It is queried for the facts that its account may see, but never
started, configured or stopped.

A session cannot show the server's CPU time, whether its data is in memory, and whether other clients use it: these facts stay
unknown.
"""

from __future__ import annotations

import ssl
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, cast

from howfar.clients import Consent
from howfar.contract.environment import DataFacts
from howfar.contract.ping_messages import Target, TcpTarget
from howfar.contract.server_receipt import ServerReceipt, SessionView
from howfar.contract.violation import Violation
from howfar.doctor.findings import Kind
from howfar.doctor.protocols import PROTOCOLS
from howfar.doctor.protocols.session import Endpoint, NoValidAnswer, ServerRefused, SqlSession
from howfar.doctor.targets import TargetLogin
from howfar.errors import LabError, PlanError, UsageError
from howfar.fleet.hosts_file import HostsFile
from howfar.fleet.server_facts import RunningFacts, StoreFacts
from howfar.lab.connected_server import NO_PID
from howfar.lab.environment import allow_descriptors
from howfar.lab.server_group import replicas_spec
from howfar.lab.servers import GAUGES, CertificatePaths, Tables, address_parts
from howfar.lab.servers.sql_store import convert_counters
from howfar.load.job import LoadLogin
from howfar.paths.path import Row
from howfar.plan.cells import combinations
from howfar.plan.factors import hiding_levels
from howfar.plan.sessions import SessionSpec
from howfar.plan.types import Plan
from howfar.plan.workload import WORKLOADS

_NO_SOCKET = Path("/nonexistent")
_UNKNOWN_FACTS = ("the server's CPU time", "whether its data was in memory", "whether others used it meanwhile")


@dataclass(frozen=True)
class UserServer:
    """Address, protocol and account of the user's own server."""

    kind: Kind
    address: str
    port: int
    database: str
    login: TargetLogin


def user_server_from_dsn(load_login: LoadLogin) -> UserServer:
    """The server that the option `--dsn` names. Raises UsageError."""
    address, target = load_login.address, load_login.target
    if not isinstance(target, TcpTarget) or ":" in target.host:
        raise UsageError(
            "--dsn must name the server by its IPv4 address or host name: the other hosts reach it by that",
            "Example: mysql://user@10.0.0.2:3306/sbtest.",
        )
    if address.ssl_mode not in (None, "DISABLED", "PREFERRED") or address.compression is not None:
        raise UsageError(
            "between hosts, sessions with a server of your own are plain: a plan has no TLS or compression from a DSN",
            "`howfar load` measures that server with both.",
        )
    assert address.user is not None and address.database is not None, "the address of a login is complete"
    kind = Kind.POSTGRESQL if address.protocol == "postgresql" else Kind.MYSQL
    consent = Consent(fetch_server_key=address.fetch_server_key is True)
    login = TargetLogin(address.user, load_login.password.reveal(), consent, address.database)
    return UserServer(kind, target.host, target.port, address.database, login)


def find_server_host(user_server: UserServer, file: HostsFile) -> str:
    """Name of the host on which the server runs. Raises UsageError."""
    for name, host in file.hosts.items():
        if host.address == user_server.address:
            return name
    raise UsageError(
        f"no host of the file has the server's address {user_server.address}",
        "Add that host: a probe there measures what lies between client and server, and local paths begin there. "
        "`howfar load` needs the server alone.",
    )


def check_plan_for_user_server(plan: Plan) -> None:
    """Refuse a plan that needs a server started by howfar. Raises PlanError."""
    factors, unsupported = plan.factors, ""
    if factors.content != ("digits",):
        unsupported = "tables with other contents than sysbench's"
    elif WORKLOADS[plan.workload.kind].creates_tables:
        unsupported = "a table that is created again for each trial"
    elif WORKLOADS[plan.workload.kind].used_keys:
        unsupported = "a key-value store"
    elif replicas_spec(plan) is not None:
        unsupported = "replicated servers, which are started again for each trial"
    elif hidden_by := dict.fromkeys(level for cell in combinations(plan) for level in hiding_levels(cell)):
        unsupported = f"sessions with {' and '.join(hidden_by)}"
    if unsupported:
        raise PlanError(
            f"plan {plan.name} needs {unsupported}, but your own server is used as it is, over plain sessions",
            "Leave out --dsn: howfar then starts a server of its own.",
        )


class HostedUserServer:
    """Runs on the server's host, in place of a `serving.HostedStore`: queries the user's own server."""

    def __init__(self, user_server: UserServer, tables: Tables, connections: int) -> None:
        descriptors, login = allow_descriptors(connections), user_server.login
        self._user_server = user_server
        with self._session() as session:
            properties = session.rows(_VERSION_QUERIES[user_server.kind])[0]
            version, comment, directory = (str(value or "") for value in properties)
            kind = _product_kind(user_server.kind, version, comment)
            self._socket = _find_socket(user_server, directory)
            _check_tables(session, user_server, tables)
        data = DataFacts(given=True, tables=tables.count, table_size=tables.size)
        self.facts = StoreFacts(kind, version, login.user, login.password, user_server.database, data, descriptors)

    @contextmanager
    def _session(self) -> Iterator[SqlSession]:
        user_server = self._user_server
        with _session(user_server, Endpoint(None, user_server.address, user_server.port)) as session:
            yield session

    def certificate_paths(self) -> CertificatePaths:
        raise PlanError("a path with encryption needs a server that howfar starts", "Leave out --dsn.")

    def start(self, path_name: str, spec: SessionSpec) -> RunningFacts:
        """Start nothing, because the server runs already; returns its facts, and how to probe a session."""
        port, probe = self._user_server.port, partial(_view_session, self._user_server)
        return RunningFacts(self.facts.kind, self.facts.version, NO_PID, port, self._socket or _NO_SOCKET, probe)

    def call_server(self, method: str, arguments: tuple[Any, ...]) -> Any:
        return getattr(self, method)(*arguments)

    def snapshot(self) -> dict[str, int]:
        """Return the counters that the account may read."""
        with suppress(ServerRefused), self._session() as session:
            counters = {str(name): int(value) for name, value in session.rows(_COUNTER_QUERIES[self._user_server.kind])}
            return convert_counters(counters) if self._user_server.kind is Kind.MYSQL else counters
        return {}

    def collect_receipt(
        self, before: Mapping[str, int], commits: int | None
    ) -> tuple[ServerReceipt, tuple[Violation, ...]]:
        after = self.snapshot()
        counters = {name: after[name] - before[name] for name in after if name in before and name not in GAUGES}
        return ServerReceipt(kind=self.facts.kind, given=True, counters=counters, unknown=list(_UNKNOWN_FACTS)), ()

    def query(self, sql: str) -> list[Row]:
        raise PlanError("a path that configures its server needs one that howfar starts", "Leave out --dsn.")

    def alive(self) -> bool:
        with suppress(LabError), self._session():
            return True
        return False

    def check_alive(self) -> None:
        with self._session():
            return

    def stop(self) -> None:
        """Do nothing: the server is not ours to stop."""

    close = stop


@contextmanager
def _session(user_server: UserServer, endpoint: Endpoint) -> Iterator[SqlSession]:
    """Log in. Raises LabError if that fails; a statement that the server refuses raises `ServerRefused`."""
    try:
        session = cast(SqlSession, PROTOCOLS[user_server.kind].open(endpoint, user_server.login))
    except (ServerRefused, NoValidAnswer) as error:
        raise LabError(
            f"the server at {endpoint.where} refuses the login of {user_server.login.user}: {error}",
            "Does `howfar load DSN` reach it from that host?",
        ) from error
    try:
        yield session
    except NoValidAnswer as error:
        raise LabError(f"the server at {endpoint.where} stopped answering: {error}") from error
    finally:
        session.close()


def _view_session(user_server: UserServer, target: Target, _: ssl.SSLContext | None) -> SessionView:
    """See `lab.servers.SessionProbe`; runs on the client's host."""
    with _session(user_server, Endpoint(*address_parts(target))) as session:
        return SessionView(host=str(session.rows(_CLIENT_HOST_QUERIES[user_server.kind])[0][0]), ssl_version="")


def _product_kind(kind: Kind, version: str, comment: str) -> str:
    if kind is Kind.POSTGRESQL:
        return "postgresql"
    return "mariadb" if "mariadb" in f"{version} {comment}".lower() else "mysql"


def _find_socket(user_server: UserServer, reported_path: str) -> Path | None:
    """Return the server's Unix socket, or None. `reported_path`: its path as MySQL reports it. PostgreSQL reports the path to few
    accounts, but the kernel lists all sockets, and the name of PostgreSQL's contains the port."""
    if user_server.kind is Kind.POSTGRESQL:
        name = f"/.s.PGSQL.{user_server.port}"
        entries = Path("/proc/net/unix").read_text().split()
        reported_path = next((entry for entry in entries if entry.endswith(name) and entry.startswith("/")), "")
    return Path(reported_path) if reported_path and Path(reported_path).is_socket() else None


def _check_tables(session: SqlSession, user_server: UserServer, tables: Tables) -> None:
    """Check that the tables that the plan reads exist and are large enough. Raises LabError."""
    schema = "" if user_server.kind is Kind.POSTGRESQL else f"`{user_server.database.replace('`', '``')}`."
    fill_advice = (
        f"Fill it: `howfar load DSN oltp_read_only --tables={tables.count} --table-size={tables.size} prepare`."
    )
    for number in range(1, tables.count + 1):
        try:
            max_id = int(session.rows(f"SELECT max(id) FROM {schema}sbtest{number}")[0][0] or 0)
        except ServerRefused as error:
            raise LabError(f"the server's table sbtest{number} cannot be read: {error}", fill_advice) from error
        if max_id < tables.size:
            raise LabError(
                f"the server's table sbtest{number} ends at id {max_id}, and the plan reads {tables.size}", fill_advice
            )


_VERSION_QUERIES = {
    Kind.MYSQL: "SELECT version(), @@version_comment, @@socket",
    Kind.POSTGRESQL: "SELECT current_setting('server_version'), '', ''",
}
_CLIENT_HOST_QUERIES = {
    Kind.MYSQL: "SELECT HOST FROM information_schema.processlist WHERE ID = CONNECTION_ID()",
    Kind.POSTGRESQL: "SELECT coalesce(host(client_addr), 'localhost') FROM pg_stat_activity WHERE pid = pg_backend_pid()",
}
_COUNTER_QUERIES = {
    Kind.MYSQL: "SHOW GLOBAL STATUS WHERE Variable_name IN ('Questions', 'Bytes_received', 'Bytes_sent', 'Connections', "
    "'Com_select', 'Com_insert', 'Com_update', 'Com_delete', 'Com_begin', 'Com_commit', 'Qcache_hits', 'Handler_commit', "
    "'Innodb_buffer_pool_reads')",
    # Sessions report it late, so it cannot be compared with the clients' own count.
    Kind.POSTGRESQL: "SELECT 'commits', xact_commit FROM pg_stat_database WHERE datname = current_database()",
}
