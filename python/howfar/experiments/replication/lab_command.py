"""Options of `howfar lab` for a primary with replicas."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import click

from howfar.cli.client_files import client_options, write_secret
from howfar.cli.lab_groups import GroupOptions
from howfar.contract.ping_messages import UnixTarget
from howfar.errors import UsageError
from howfar.experiments.replication.factors import (
    CONSISTENCY,
    DISTANCES,
    REPLICA_RATE_BPS,
    REPLICA_RTT_NS,
    REPLICAS,
    REPLICATION,
    WITHOUT_REPLICA,
)
from howfar.experiments.replication.lab.dialect import replication_dialect
from howfar.experiments.replication.lab.member import Member
from howfar.experiments.replication.lab.replicated_group import ReplicatedGroup
from howfar.lab.server_group import ServerGroup
from howfar.lab.servers import USER
from howfar.lab.servers.kinds import STORES, find_server
from howfar.plan.factor import FactorLevels
from howfar.plan.load import Override, load_plan
from howfar.plan.types import Plan

_OPTIONS = (
    click.option(
        "--replication",
        metavar="MODE",
        help="Give the server replicas, each on a host of its own, in this mode, such as async, galera or group.",
    ),
    click.option(
        "--replicas", metavar="N", help="With --replication, the number of servers besides the primary.  [default: 2]"
    ),
    click.option(
        "--distances",
        metavar="LEVEL",
        help="With --replication, how far apart the servers are, such as three-zones or 1ms,20ms,30ms.  [default: three-zones]",
    ),
    click.option(
        "--replica-rtt",
        metavar="TIME",
        help="Instead of --distances, the same round trip time between any two servers.",
    ),
    click.option(
        "--replica-rate",
        metavar="RATE",
        help="With --replication, the bandwidth between any two servers.  [default: 1gbit]",
    ),
    click.option("--consistency", metavar="LEVEL", help="Consistency level of a cluster.  [default: eventual]"),
)
_NAMES = ("replication", "replicas", "distances", "replica_rtt", "replica_rate", "consistency")
"""Names of the parameters: keys of factors."""


def _read(values: Mapping[str, str | None], server: str) -> Plan | None:
    """A plan of one cell, so that options get the same checks and messages as a plan file. None without --replication. Raises
    UsageError, PlanError, ServerMissing."""
    mode, levels = values["replication"], {name: values[name] for name in _NAMES if name != "replication"}
    given_levels = {name: level for name, level in levels.items() if level is not None}
    if mode in WITHOUT_REPLICA:
        raise UsageError(
            f"--replication {mode} means no replication", "Leave it out, or choose a mode such as async or galera."
        )
    if mode is None:
        if given_levels:
            raise UsageError(
                f"--{_option(next(iter(given_levels)))} applies to replicas, and there are none",
                "Add --replication MODE.",
            )
        return None
    if {"distances", "replica_rtt"} <= set(given_levels):
        raise UsageError(
            "--distances and --replica-rtt both say how far apart the servers are", "Give only one of them."
        )
    chosen_levels = {"distances": "even" if "replica_rtt" in given_levels else "three-zones", **given_levels}
    chosen_levels |= {"replication": mode, "server": server, "threads": "1"}
    overrides = [
        Override(f"--{_option(name)}", ("factors", name), _parse_level(level)) for name, level in chosen_levels.items()
    ]
    plan = load_plan("cluster", overrides=overrides).plan
    from howfar.runner.preflight import unsupported_levels  # which imports the modules that execute runs

    program = find_server(server)
    if program.kind in STORES:
        raise UsageError(
            f"howfar does not replicate {program.kind}", "Leave out --replication, or choose a server that speaks SQL."
        )
    option_texts = {
        "replication": f"--replication {mode}",
        "consistency": f"--consistency {levels[CONSISTENCY.name]}",
    }
    unsupported = unsupported_levels(plan)
    for factor, option in option_texts.items():
        for reason in unsupported.get(factor, {}).values():
            modes = f"Modes of {program.kind}: {', '.join(replication_dialect(program.kind).modes)}."
            raise UsageError(
                f"{option} is not available: {reason}", modes if factor == "replication" else "Choose another level."
            )
    return plan


def _parse_level(level: str) -> str | int:
    return int(level) if level.isascii() and level.isdigit() else level


def _option(name: str) -> str:
    return name.replace("_", "-")


def _variables(group: ServerGroup, work: Path, has_option_files: bool) -> dict[str, str]:
    if not isinstance(group, ReplicatedGroup):
        return {}
    variables: dict[str, str] = {}
    for replica in group.replica_set.replicas:
        variables |= _replica_variables(replica, work, has_option_files)
    return variables


def _replica_variables(replica: Member, work: Path, has_option_files: bool) -> dict[str, str]:
    """Variables of a replica: its socket; for MySQL and MariaDB an option file, because its password differs from the primary's."""
    prefix = f"HOWFAR_{replica.name.upper()}"
    variables = {f"{prefix}_SOCKET": str(replica.server.socket)}
    if has_option_files:
        target = UnixTarget(path=str(replica.server.socket))
        options = write_secret(work / f"{replica.name}.cnf", client_options(USER, replica.server.password, target))
        variables[f"{prefix}_CLIENT_CNF"] = str(options)
    return variables


def _describe(factors: FactorLevels) -> str:
    """The replication as text: `replication Galera, 2 replicas, three zones, replica link 1gbit`."""
    factors_shown = (REPLICATION, REPLICAS, DISTANCES, REPLICA_RTT_NS, REPLICA_RATE_BPS)
    labels = (factor.label(factors[factor.name]) for factor in factors_shown if factor.name in factors)
    return f"replication {', '.join(labels)}" if REPLICATION.name in factors else ""


GROUP_OPTIONS = (GroupOptions(_OPTIONS, _NAMES, _read, _describe, _variables),)
