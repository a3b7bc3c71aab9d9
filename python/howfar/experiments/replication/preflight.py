"""What servers support of replication, clusters and faults."""

from __future__ import annotations

from collections.abc import Sequence

from howfar.experiments.replication.factors import SEMI_SYNC, WITHOUT_REPLICA
from howfar.experiments.replication.lab.dialect import replication_dialect
from howfar.experiments.replication.lab.galera import SYNC_WAIT
from howfar.experiments.replication.lab.group import GroupReplication
from howfar.lab.servers.features import find_features
from howfar.lab.servers.galera_programs import find_provider, transfer_obstacle
from howfar.lab.servers.kinds import STORES, find_server
from howfar.lab.servers.program import Program
from howfar.plan.factor import Level
from howfar.plan.fitting import FittedPlan, with_replacements
from howfar.plan.types import Plan
from howfar.runner.preflight import ServerSupport, server_kind


def _servers(plan: Plan) -> int:
    """The primary and its replicas; 1 without replication."""
    return 1 if plan.factors.replication == ("off",) else 1 + max(plan.factors.replicas)


def _with_server_modes(plan: Plan) -> FittedPlan:
    """The plan with the server's own modes of replication in place of other servers'. Raises ServerMissing, ServerCrashed."""
    if set(plan.factors.replication) <= WITHOUT_REPLICA or (kind := server_kind(plan.factors.server[0])) in STORES:
        return FittedPlan(plan)
    return with_replacements(plan, "replication", replication_dialect(kind).replacements)


def _unsupported_levels(plan: Plan) -> dict[str, dict[Level, str]]:
    """Levels of replication that the server does not support, by factor, with the reason."""
    factors = plan.factors
    if set(factors.replication) <= WITHOUT_REPLICA:
        return {}
    program = find_server(factors.server[0])
    dialect, server_name = replication_dialect(program.kind), f"{program.kind} {program.version}"
    acknowledges = dialect.always_acknowledges or find_features(program).semi_sync
    max_wait_for = dialect.max_replicas_to_wait_for
    foreign_modes = set(factors.replication) - WITHOUT_REPLICA - set(dialect.modes)
    return {
        "replication": {
            level: f"{server_name} has no semi-synchronous replication"
            for level in factors.replication
            if level in SEMI_SYNC and not acknowledges
        }
        | {level: reason for level in factors.replication if (reason := cluster_obstacle(program, level)) is not None}
        | dict.fromkeys(foreign_modes, f"a mode of other servers than {server_name}"),
        "fault": _impossible_joins(program, factors.replication),
        "consistency": {
            level: f"Galera has {' and '.join(SYNC_WAIT)}"
            for level in factors.consistency
            if "galera" in factors.replication and level not in SYNC_WAIT
        },
        "durability": {
            level: f"{server_name} has no such durability"
            for level in factors.durability
            if level not in dialect.durabilities
        },
        "wait_for": {
            count: f"{server_name} waits for {max_wait_for} replica at most"
            for count in factors.wait_for
            if max_wait_for and count > max_wait_for
        },
        "replica_compression": {
            level: f"{server_name} compresses replication by {' or '.join(dialect.compressions) or 'nothing'} only"
            for level in factors.replica_compression
            if level != "off" and level not in dialect.compressions
        },
    }


def _impossible_joins(program: Program, modes: Sequence[str]) -> dict[Level, str]:
    """Faults after which a node could not rejoin here because it could not get its data, with the reason."""
    if program.kind == "mysql" and set(GroupReplication.modes) & set(modes) and not find_features(program).clone:
        return {"member-joins": f"{program.kind} {program.version} has no plugin for clone"}
    why = transfer_obstacle() if program.kind == "mariadb" and "galera" in modes else None
    return {} if why is None else dict.fromkeys(("member-restarts", "member-joins"), why)


def cluster_obstacle(program: Program, level: str) -> str | None:
    """Why this server cannot be in a cluster of this level. None: it can, or the level is not a cluster."""
    if level == "galera" and program.kind == "mariadb" and find_provider() is None:
        return "Galera's library was not found (`howfar setup --clusters` installs it)"
    if level.startswith("group") and program.kind == "mysql" and not find_features(program).group_replication:
        return f"{program.kind} {program.version} has no plugin for Group Replication"
    return None


SERVER_SUPPORT = (ServerSupport(_unsupported_levels, _servers, _with_server_modes),)
