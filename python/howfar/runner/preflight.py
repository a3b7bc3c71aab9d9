"""Ask this machine and the plan's server what they can do, and fit the plan to it."""

from __future__ import annotations

from howfar.errors import MissingError, PlanError, ServerMissing
from howfar.paths import find_path
from howfar.plan.cells import cells
from howfar.plan.factors import SEMI_SYNC, Level
from howfar.plan.fitting import Fitted, check_keys, check_rows, resumed_in_full, with_rows, without_levels
from howfar.plan.sessions import session_spec
from howfar.plan.types import Plan


def fit(plan: Plan) -> Fitted:
    """The plan without what cannot be had here. The server is started and queried once, then its answer is kept.

    Raises ServerMissing, ServerCrashed, LabError; PlanError when nothing is left.
    """
    _check_server(plan)
    _check_keys(plan)
    if plan.workload.kind == "key_value":
        return Fitted(plan)
    if plan.workload.kind == "page":
        _check_page_servers(plan)
    if not plan.data.fit:
        check_rows(plan, _rows_at_all(plan))
    able = without_levels(plan, _lacking(plan))
    sized = with_rows(able.plan, _most_rows(plan) if plan.data.fit else 0)
    return Fitted(sized.plan, (*able.notes, *sized.notes, *resumed_in_full(sized.plan)))


def _check_server(plan: Plan) -> None:
    """The workload is of its kind. Raises PlanError, ServerMissing, ServerCrashed."""
    from howfar.lab.servers.kinds import KINDS, STORES, find_server

    of_keys = plan.workload.kind == "key_value"
    for server in plan.factors.server:
        kind = server if server in KINDS else find_server(server).kind
        if of_keys == (kind in STORES):
            if KINDS[kind].speaks == "postgresql":
                _check_without_mysql(plan, kind)
            continue
        if of_keys:
            raise PlanError(
                f"{kind} speaks SQL, and the workload of the plan {plan.name} is of keys",
                f"Name a store of keys: {', '.join(STORES)}.",
            )
        raise PlanError(
            f"{kind} stores keys, and the workload of the plan {plan.name} is of SQL",
            "Name a server that speaks SQL, or give the plan the workload key_value.",
        )


def _check_without_mysql(plan: Plan, kind: str) -> None:
    """Of another server of SQL. Raises PlanError."""
    if plan.workload.kind == "page":
        raise PlanError(
            f"the pages of plan {plan.name} ask MariaDB or MySQL, not {kind}", "Name one of them with --server."
        )
    if set(plan.factors.replication) - {"off", "none"}:
        raise PlanError(f"the replication of {kind} is not measured yet", "Name MariaDB or MySQL with --server.")
    encrypted = [cell.factors for cell in cells(plan) if session_spec(cell.factors).tls]
    if any(find_path(str(factors["path"])).by_socket for factors in encrypted):
        raise PlanError(
            f"{kind} encrypts TCP alone, and plan {plan.name} asks for TLS over its Unix socket",
            "Leave those cells out: [[leave_out]] with path and tls.",
        )


def _check_keys(plan: Plan) -> None:
    """Raises PlanError, ServerMissing, ServerCrashed."""
    from howfar.lab.room import memory_at_all
    from howfar.lab.servers.kinds import STORES, find_server

    stores = companions(plan)
    if plan.workload.kind == "key_value":
        stores = tuple(name if name in STORES else find_server(name).kind for name in plan.factors.server[:1])
    if stores:
        check_keys(plan, stores, memory_at_all())


def _check_page_servers(plan: Plan) -> None:
    """All that stands beside the plan's server is here. Raises ServerMissing, ServerCrashed, MissingError."""
    from howfar.lab.php.php_fpm import find_php_fpm
    from howfar.lab.servers.kinds import find_server

    for server in companions(plan):
        find_server(server)
    if "php" in plan.factors.application:
        try:
            find_php_fpm()
        except MissingError as error:
            raise MissingError(
                f"plan {plan.name} asks a real PHP application for pages: {error.message}",
                f'{error.advice} A plan of your own with application = "engine" needs none.',
            ) from error


def companions(plan: Plan) -> tuple[str, ...]:
    """Kinds of the stores that the plan's pages need; Valkey where it is and Redis is not."""
    from howfar.lab.servers.kinds import find_server

    if plan.workload.kind != "page":
        return ()
    needed = {service for page in plan.factors.page for service in plan.pages[page].by_service}
    found = []
    if "redis" in needed:
        try:
            find_server("redis")
            found.append("redis")
        except ServerMissing as lacking:
            try:
                find_server("valkey")
            except ServerMissing:
                raise lacking from None
            found.append("valkey")
    if "memcached" in needed:
        found.append("memcached")
    return tuple(found)


def _rows_at_all(plan: Plan) -> int:
    from howfar.lab.room import rows_at_all

    return rows_at_all(plan.data)


def _most_rows(plan: Plan) -> int:
    from howfar.lab.room import rows_that_fit
    from howfar.lab.servers.kinds import find_server

    servers = 1 if plan.factors.replication == ("off",) else 1 + max(plan.factors.replicas)
    return rows_that_fit(plan.data, plan.factors.content, find_server(plan.factors.server[0]), servers)


def _lacking(plan: Plan) -> dict[str, dict[Level, str]]:
    """Levels that server or machine has not, with the reason."""
    return {**_of_sessions(plan), **_of_replication(plan), **_of_machine(plan)}


def _of_machine(plan: Plan) -> dict[str, dict[Level, str]]:
    from howfar.lab.idle import cannot_poll

    reason = cannot_poll() if "polling" in plan.factors.idle else None
    return {} if reason is None else {"idle": {"polling": reason}}


def _of_replication(plan: Plan) -> dict[str, dict[Level, str]]:
    from howfar.lab.replication.dialect import replication_dialect
    from howfar.lab.servers.features import features
    from howfar.lab.servers.kinds import find_server

    factors = plan.factors
    if set(factors.replication) <= {"off", "none"}:
        return {}
    program = find_server(factors.server[0])
    dialect, who = replication_dialect(program.kind), f"{program.kind} {program.version}"
    able, most = features(program).semi_sync, dialect.most_to_wait_for
    return {
        "replication": {
            level: f"{who} has no semi-synchronous replication"
            for level in factors.replication
            if level in SEMI_SYNC and not able
        },
        "wait_for": {
            count: f"{who} waits for {most} replica at most" for count in factors.wait_for if most and count > most
        },
        "replica_compression": {
            level: f"{who} compresses replication by {' or '.join(dialect.compressions)} only"
            for level in factors.replica_compression
            if level != "off" and level not in dialect.compressions
        },
    }


def _of_sessions(plan: Plan) -> dict[str, dict[Level, str]]:
    """Of the encryption and compression of sessions."""
    from howfar.lab.servers.features import features
    from howfar.lab.servers.kinds import KINDS, find_server

    algorithms = {level: session_spec({"compression": level}).algorithm for level in plan.factors.compression}
    versions = {level: session_spec({"tls": level}).tls for level in plan.factors.tls}
    if not (any(algorithms.values()) or any(versions.values())):
        return {}
    program = find_server(plan.factors.server[0])
    found = features(program)
    who = f"{program.kind} {program.version}"
    only = f"only {' and '.join(found.compression)}" if found.compression else "its protocol has no compression"
    resumed = (
        ()
        if KINDS[program.kind].resumes_tls
        else tuple(level for level in plan.factors.tls if session_spec({"tls": level}).resumption)
    )
    return {
        "compression": {
            level: f"{who} has no {algorithm}, {only}"
            for level, algorithm in algorithms.items()
            if algorithm and algorithm not in found.compression
        },
        "tls": dict.fromkeys(resumed, f"{who} resumes no TLS session")
        | {level: f"{who} was built without TLS" for level, version in versions.items() if version and not found.tls},
    }
