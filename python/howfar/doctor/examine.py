"""Examines servers: finds them, watches their connections, pings them, and runs the checks. The entry point is `examine`."""

from __future__ import annotations

import os
import ssl
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import howfar
from howfar import quiet_check
from howfar.address.server_address import format_host_port
from howfar.doctor import minimum_latency, procfs
from howfar.doctor.candidates import Candidate, ListenAddress
from howfar.doctor.checks import Context, run_checks
from howfar.doctor.discovery import (
    ConnectionWatch,
    IdentifiedServer,
    SessionFacts,
    WatchedServer,
    WatchResult,
    discover,
    find_ignored_options,
    format_tls_by_listener,
    group_clients,
    identify,
)
from howfar.doctor.findings import (
    FORMAT,
    Client,
    Examination,
    IdleCost,
    Kind,
    Median,
    Rates,
    Server,
    Transport,
    Unseen,
)
from howfar.doctor.proposals import unique_socket_paths
from howfar.doctor.protocols import PROTOCOLS
from howfar.doctor.protocols.session import Counters, Endpoint, GuardedSession, NoValidAnswer, SelfReport, ServerRefused
from howfar.doctor.report import answer
from howfar.doctor.targets import DoctorTarget, Logins, TargetLogin
from howfar.doctor.texts import TRANSPORTS
from howfar.errors import HowfarError, MissingError
from howfar.lab.idle import polling_obstacle

Result = TypeVar("Result")
_NO_REPORT = SelfReport(None, (), (), {})
_BUNDLE_READS = 6
_MIN_COUNTED_CONNECTS = 5
"""Minimum number of connections counted by the server for a note about missed ones."""
_MAX_PROCESSES_PER_USER = 16
"""Maximum number of unnamed processes of one user that are examined, because any account may run processes named mysqld."""


@dataclass
class _ServerState:
    """A server during the examination."""

    server: IdentifiedServer
    session: GuardedSession | None
    session_transport: Transport | None = None
    """Transport of the session."""
    counters_before: Counters | None = None
    counters_after: Counters | None = None
    reported: SelfReport = _NO_REPORT


def examine(targets: Sequence[DoctorTarget], logins: Logins, seconds: float) -> Examination:
    """Examine the named servers, or all servers that are found. Raises MissingError if none of the named ones answers."""
    known_servers, unseen = _identify_named(targets, logins) if targets else _search_servers(logins)
    states = [_ServerState(server, *_open_session(server)) for server in known_servers]
    try:
        with quiet_check.measuring(seconds) as result_of_check:
            watched, programs = _watch(states, seconds)
            machine = result_of_check()
    finally:
        for state in states:
            if state.session is not None:
                state.session.close()
    servers = tuple(_describe_server(key, state, watched, programs) for key, state in enumerate(states))
    is_incomplete = any(
        server.minimum_latency(Transport.SOCKET) is None or server.minimum_latency(Transport.TCP, Transport.TLS) is None
        for server in servers
    )
    process_latencies = minimum_latency.measure_between_processes() if is_incomplete else ()
    paths = unique_socket_paths(servers, [row.path for row in procfs.unix_rows() if row.listens])
    checked_servers = tuple(
        server.model_copy(
            update={"findings": run_checks(Context(server, process_latencies, watched.samples, watched.seconds, path))}
        )
        for server, path in zip(servers, paths, strict=True)
    )
    result = answer(checked_servers, unseen)
    return Examination(
        format=FORMAT,
        howfar_version=howfar.__version__,
        unix_ns=time.time_ns(),
        watched_s=round(watched.seconds, 3),
        samples=watched.samples,
        load_average=os.getloadavg()[0],
        cpus=len(os.sched_getaffinity(0)),
        machine=machine,
        pure_floors=process_latencies,
        servers=checked_servers,
        unseen=unseen,
        question=result.question,
        answer=result.sentence,
    )


def _search_servers(logins: Logins) -> tuple[list[IdentifiedServer], tuple[Unseen, ...]]:
    candidates, unseen = discover()
    processes_by_uid: Counter[int] = Counter()
    servers: list[IdentifiedServer] = []
    for candidate in candidates:
        if candidate.process is not None and not candidate.is_trusted:
            processes_by_uid[candidate.process.uid] += 1
            if processes_by_uid[candidate.process.uid] > _MAX_PROCESSES_PER_USER:
                continue
        if (server := identify(candidate, logins, None)) is not None:
            servers.append(server)
    left_out = tuple(
        Unseen(
            what=f"{count - _MAX_PROCESSES_PER_USER} more processes of {procfs.account(uid)} that are named like servers",
            why=f"at most {_MAX_PROCESSES_PER_USER} of a user are examined",
            how="howfar doctor DSN",
        )
        for uid, count in processes_by_uid.items()
        if count > _MAX_PROCESSES_PER_USER
    )
    return servers, (*unseen, *left_out)


def _identify_named(
    targets: Sequence[DoctorTarget], logins: Logins
) -> tuple[list[IdentifiedServer], tuple[Unseen, ...]]:
    """Identify the named servers; returns those that answer, and notes about the others. Raises MissingError if none answers."""
    candidates, _ = discover()
    answering: list[IdentifiedServer] = []
    unanswered: list[Unseen] = []
    for target in targets:
        server = identify(_candidate_for(target, candidates), logins, target)
        if server is not None and server.endpoints:
            answering.append(server)
        else:
            where = f"{target.kind.shown} server at {target.path or format_host_port(target.host, target.port)}"
            unanswered.append(Unseen(what=f"the {where}", why=_why_silent(target), how=""))
    if not answering:
        raise MissingError(
            f"{unanswered[0].what} does not answer: {unanswered[0].why}",
            "Is the server running, and does it listen there? Without a DSN, howfar doctor searches this machine for servers.",
        )
    return answering, tuple(unanswered)


def _candidate_for(target: DoctorTarget, candidates: Sequence[Candidate]) -> Candidate:
    """Return the candidate that listens at the target, with all its addresses; else a new one with only that address."""
    for candidate in candidates:
        if candidate.kind is target.kind and any(_is_at_target(address, target) for address in candidate.addresses):
            return candidate
    return Candidate(target.kind, None, (ListenAddress(target.path, target.host, target.port),), False)


def _is_at_target(address: ListenAddress, target: DoctorTarget) -> bool:
    if target.path is not None or address.path is not None:
        are_paths = target.path is not None and address.path is not None
        return are_paths and os.path.realpath(str(target.path)) == os.path.realpath(str(address.path))
    assert target.host is not None, "a target has a path or an address"
    if address.port != target.port or address.host == target.host:
        return address.port == target.port
    listens_everywhere = address.dial_host != address.host
    return listens_everywhere and procfs.is_of_this_machine(target.host)


def _why_silent(target: DoctorTarget) -> str:
    try:
        PROTOCOLS[target.kind].greet(
            Endpoint(target.path, target.host, target.port, target.tls), TargetLogin(target.user or "", "")
        )
    except NoValidAnswer as reason:
        return str(reason)
    return "it answered only the second time"


def _open_session(server: IdentifiedServer) -> tuple[GuardedSession | None, Transport | None]:
    """Open a session on the cheapest endpoint that accepts the login; returns it and its transport, both None if no endpoint does."""
    for transport, endpoint in server.endpoints.items():
        try:
            return PROTOCOLS[server.kind].open(endpoint, server.login), transport
        except (ServerRefused, NoValidAnswer):
            continue
    return None, None


def _watch(states: Sequence[_ServerState], seconds: float) -> tuple[WatchResult, dict[int, procfs.Process]]:
    """Watch connections, and read the servers' counters before and after. The doctor opens no connection meanwhile."""
    start_s = time.monotonic()
    for state in states:
        state.counters_before = _read_counters(state)
    watch = ConnectionWatch([_watched_server(key, state.server) for key, state in enumerate(states)])
    watched = watch.watch_for(seconds)
    for state in states:
        state.counters_after = _read_counters(state)
    watched.seconds = time.monotonic() - start_s
    for state in states:
        state.reported = _query_session(state, GuardedSession.report, "its settings and sessions", "") or _NO_REPORT
    return watched, watch.programs


def _read_counters(state: _ServerState) -> Counters | None:
    return _query_session(state, GuardedSession.counters, "its counters", "an account that may read them")


def _query_session(
    state: _ServerState, request: Callable[[GuardedSession], Result], subject: str, remedy: str
) -> Result | None:
    """Return the result of `request`. None if the session is closed, or if the server does not answer, which is noted in `unseen`."""
    if state.session is None or state.session.is_closed:
        return None
    try:
        return request(state.session)
    except ServerRefused as why:
        unseen = Unseen(what=subject, why=str(why), how=remedy)
    except NoValidAnswer as why:
        unseen = Unseen(what=subject, why=str(why), how="")
    if unseen not in state.server.unseen:
        state.server.unseen.append(unseen)
    return None


def _watched_server(key: int, server: IdentifiedServer) -> WatchedServer:
    ports: dict[int, frozenset[str]] = {}
    for listener in server.listeners:
        if listener.port is not None and listener.host is not None:
            is_on_all_interfaces = listener.host in ("0.0.0.0", "::") or ports.get(listener.port) == frozenset()
            ports[listener.port] = (
                frozenset() if is_on_all_interfaces else ports.get(listener.port, frozenset()) | {listener.host}
            )
    return WatchedServer(key, ports, frozenset(server.bound_paths))


def _describe_server(
    key: int, state: _ServerState, watched: WatchResult, programs: dict[int, procfs.Process]
) -> Server:
    server = state.server
    measured, reasons = minimum_latency.measure(PROTOCOLS[server.kind], server.endpoints, server.login)
    idle_cost = _idle_cost(server, [floor.transport for floor in measured])
    session_facts = SessionFacts(
        sessions=state.reported.sessions,
        listeners=server.listeners,
        never_tls=_never_uses_tls(state),
        socket=next(
            (listener.path for listener in server.listeners if listener.path and listener.state == "works"), None
        ),
    )
    clients = group_clients(list(watched.holders[key].values()), programs, session_facts)
    rates = _compute_rates(state, watched)
    return Server(
        kind=server.kind,
        name=server.name,
        pid=server.process.pid if server.process is not None else None,
        user=procfs.account(server.process.uid) if server.process is not None else None,
        named=server.target is not None,
        logged_in=state.session is not None,
        listeners=tuple(server.listeners),
        listeners_complete=server.is_certain or _configures_no_socket(state.reported),
        tls=format_tls_by_listener(server.listeners),
        compression=server.compression,
        config_file=state.reported.config_file,
        socket_connections=_count_socket_connections(key, state, watched),
        rates=rates,
        sessions=state.reported.counted[0] if state.reported.counted is not None else None,
        idle_sessions=state.reported.counted[1] if state.reported.counted is not None else None,
        cluster=state.reported.cluster,
        clients=clients,
        floors=measured,
        idle=idle_cost,
        bundle_ns=_measure_bundle_read() if any(client.bundle_looks for client in clients) else None,
        ignored=find_ignored_options(server),
        findings=(),
        unseen=(*server.unseen, *_note_unseen(state, reasons), *_note_uncaught(rates, clients, watched.seconds)),
    )


def _note_uncaught(rates: Rates | None, clients: Sequence[Client], seconds: float) -> list[Unseen]:
    """Note connections that the server counted but the doctor did not see, if they are at least half of those counted."""
    counted_connects = round(rates.connects * seconds) if rates is not None else 0
    missed_connects = counted_connects - sum(client.connects_seen for client in clients)
    if counted_connects < _MIN_COUNTED_CONNECTS or 2 * missed_connects < counted_connects:
        return []
    return [
        Unseen(
            what=f"which programs opened {missed_connects} of the {counted_connects} connections that the server counted",
            why="they are over the socket, or ended between two samples",
            how=f"howfar doctor --watch {max(10 * seconds, 30):.0f}",
        )
    ]


def _idle_cost(server: IdentifiedServer, measured: Sequence[Transport]) -> IdleCost | None:
    """Measure the cost of idle states, on the cheapest transport that was measured; only for a server on this machine."""
    transport = next(
        (candidate for candidate in (Transport.SOCKET, Transport.TCP, Transport.TLS) if candidate in measured), None
    )
    if server.process is None or transport is None:
        return None
    why = polling_obstacle()
    if why is None:
        try:
            return minimum_latency.measure_idle_cost(
                PROTOCOLS[server.kind], transport, server.endpoints[transport], server.login
            )
        except (HowfarError, ServerRefused, NoValidAnswer, OSError) as error:
            why = str(error)
    server.unseen.append(Unseen(what="what waking idle CPUs costs", why=why, how="run as root, on the machine itself"))
    return None


def _count_socket_connections(key: int, state: _ServerState, watched: WatchResult) -> int | None:
    """Return the number of connections over the socket, without the doctor's own."""
    if not any(listener.path is not None for listener in state.server.listeners):
        return None
    own_count = state.session_transport in (Transport.SOCKET, Transport.SOCKET_TLS)
    return max(watched.socket_connections[key] - own_count, 0)


def _configures_no_socket(report: SelfReport) -> bool:
    """Whether the server's settings were read and configure no socket."""
    return "" in (report.settings.get("socket"), report.settings.get("unixsocket"))


def _never_uses_tls(state: _ServerState) -> bool:
    if all(listener.tls == "none" for listener in state.server.listeners):
        return True
    return state.counters_after is not None and state.counters_after.tls_connects == 0


def _compute_rates(state: _ServerState, watched: WatchResult) -> Rates | None:
    if state.session is None or state.counters_before is None or state.counters_after is None:
        return None
    return state.counters_after.rates(state.counters_before, watched.seconds, state.session.statements_by_counters)


def _measure_bundle_read() -> Median:
    """Measure the CPU time to create a TLS context without a named authority, which reads this machine's CA bundle."""
    times_ns = []
    for _ in range(_BUNDLE_READS):
        start_ns = time.thread_time_ns()
        ssl.create_default_context()
        times_ns.append(float(time.thread_time_ns() - start_ns))
    return minimum_latency.make_median(times_ns)


def _login_advice(server: IdentifiedServer) -> str:
    """Return the command that makes a login possible. A password is sent only to a trusted server, or to one that the user named."""
    endpoint = next(iter(server.endpoints.values()))
    where = endpoint.where
    if server.kind is Kind.REDIS:
        consent = "" if endpoint.is_local else "?allow-cleartext-password=1"
        scheme = "rediss" if endpoint.tls else "redis"
        dsn_argument = "" if server.is_trusted and not consent else f" {scheme}://{where}{consent}"
        return f"HOWFAR_REDIS_PASSWORD=… howfar doctor{dsn_argument}"
    if server.kind is Kind.MEMCACHED:
        return ""
    if server.is_trusted and server.login.password:
        return "another account or password for --user and --password-file"
    if server.is_trusted:
        return "howfar doctor --user USER --password-file FILE"
    scheme, query = server.kind.value, "?user=USER"
    if server.kind.names_socket_directory and endpoint.path is not None:
        folder, _, name = endpoint.path.rpartition("/")
        where, query = "", f"/?host={folder}&port={name.rpartition('.')[2]}&user=USER"
    dsn = f"{scheme}://{where}{query}" if endpoint.path is not None else f"{scheme}://USER@{where}/"
    return f"howfar doctor {dsn} --password-file FILE"


def _note_unseen(state: _ServerState, reasons: Mapping[Transport, tuple[str, str]]) -> list[Unseen]:
    server = state.server
    hidden = list(state.reported.hidden)
    if state.session is None and server.endpoints:
        why = next(iter(server.refusals.values()), "no login").rstrip(".")
        how = _login_advice(server) if server.remedy is None else server.remedy
        hidden.insert(0, ("its counters, its sessions and its floor", why, how))
    else:
        hidden = [(f"the floor of {TRANSPORTS[transport]}", *reason) for transport, reason in reasons.items()] + hidden
    return [Unseen(what=what, why=why, how=how) for what, why, how in hidden]
