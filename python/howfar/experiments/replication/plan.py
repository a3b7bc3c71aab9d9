"""The workloads whose commits wait for other servers, and the checks of plans with replication."""

from __future__ import annotations

from itertools import product
from typing import TYPE_CHECKING

from howfar.experiments.replication.distances import fits, pairs
from howfar.experiments.replication.factors import (
    CLUSTER_FAULTS,
    CLUSTER_ONLY_FAULTS,
    CLUSTERS,
    REPLICA_FACTORS,
    ROW_BYTES,
    SEMI_SYNC,
    SHORT_ROW,
    SYNCHRONOUS_COMMIT_OFF,
    WITHOUT_REPLICA,
)
from howfar.paths import is_direct
from howfar.plan.factors import CLOSED, FACTORS, factor_refusal
from howfar.plan.kinds import WorkloadKind
from howfar.plan.quantities import refusal
from howfar.units import format_size_bytes

if TYPE_CHECKING:
    from howfar.plan.types import Plan, StoredPlan

MINORITY_OF_TWO = 4
"""Minimum number of replicas with which two nodes of a cluster are a minority."""
FALLBACK_NS = 25_000_000_000
"""The shortest window for a replica that leaves and returns under the servers' own timeout of 10 s."""
INSERTS, UPDATES = "single_row_inserts", "single_row_updates"
"""Names of the kinds of workload."""


def _check_replication(plan: Plan) -> None:
    factors, without_replica = plan.factors, set(plan.factors.replication) <= WITHOUT_REPLICA
    if without_replica and factors.fault != ("none",):
        raise factor_refusal(
            "fault", "a fault needs a replica that takes over: name a mode of replication that has one"
        )
    meaningless = [
        *(REPLICA_FACTORS if without_replica else ()),
        *(("durability",) if factors.replication == ("off",) else ()),
    ]
    for name in meaningless:
        factor = FACTORS[name]
        if getattr(factors, name) != (factor.default,):
            raise factor_refusal(name, f"{factor.key} does not apply without replication: name a mode that has it")
    if set(factors.replication) & set(SEMI_SYNC) and min(factors.wait_for) > max(factors.replicas):
        raise factor_refusal(
            "wait_for", f"a commit cannot wait for {min(factors.wait_for)} of {max(factors.replicas)} replicas"
        )
    for level, replicas in product(factors.distances, factors.replicas):
        if not fits(level, replicas + 1):
            raise factor_refusal(
                "distances", f"distances {level!r}: {replicas + 1} servers have {len(pairs(replicas + 1))} pairs"
            )


def _check_workload(plan: Plan) -> None:
    if plan.factors.fault != ("none",) and plan.workload.kind != INSERTS:
        raise factor_refusal(
            "fault", f"a fault needs the workload {INSERTS}: its clients log the keys that are looked for"
        )
    if plan.factors.row_bytes != (ROW_BYTES.implied_level,) and plan.workload.kind != INSERTS:
        raise factor_refusal("row_bytes", f"the size of a row applies only to the workload {INSERTS}")


def _check_writers(plan: Plan) -> None:
    factors = plan.factors
    if factors.writers == ("one",):
        return
    if plan.workload.kind != UPDATES:
        raise factor_refusal(
            "writers", f"two writers need the workload {UPDATES}: only there is it known whose row is whose"
        )
    if not all(is_direct(path, 1, by_socket=True) for path in factors.path) or factors.load != (CLOSED,):
        raise factor_refusal(
            "writers", "two writers are clients on their nodes' own machines, in a closed loop: path = 'socket'"
        )


def _check_faults(plan: Plan) -> None:
    faults, clusters = set(plan.factors.fault), set(plan.factors.replication) & set(CLUSTERS)
    if clusters and faults - set(CLUSTER_FAULTS):
        raise factor_refusal("fault", f"the faults of a cluster are {', '.join(CLUSTER_FAULTS)}")
    if clusters and faults != {"none"} and min(plan.factors.replicas) < 2:
        raise factor_refusal(
            "replicas", "no cluster of two nodes goes on without one of them: give it replicas = 2 or more"
        )
    if "partition" in faults and min(plan.factors.replicas) < MINORITY_OF_TWO:
        raise factor_refusal(
            "replicas", f"partition cuts two nodes off from the majority: give it replicas = {MINORITY_OF_TWO}"
        )
    single_primary_modes = set(plan.factors.replication) - WITHOUT_REPLICA - clusters
    if single_primary_modes and (cluster_only := faults & set(CLUSTER_ONLY_FAULTS)):
        raise factor_refusal(
            "fault",
            f"{', '.join(sorted(cluster_only))} needs a cluster, and {', '.join(sorted(single_primary_modes))} is not one",
        )
    if "replica-leaves" not in plan.factors.fault:
        return
    if set(plan.factors.replication) & {"async", SYNCHRONOUS_COMMIT_OFF}:
        raise factor_refusal(
            "fault", "replica-leaves needs an acknowledgement to fall back from: asynchronous replication has none"
        )
    if plan.timing.measure_ns < FALLBACK_NS:
        raise refusal(
            f"replica-leaves needs measure = '{FALLBACK_NS // 10**9}s' or more: the replica leaves, is away beyond the "
            "servers' timeout, and returns",
            "timing",
            "measure",
        )


def _describe_inserts(plan: StoredPlan) -> str:
    lengths = plan.levels_of(ROW_BYTES)
    row = "short row" if set(lengths) == {SHORT_ROW} else f"row of {' or '.join(map(format_size_bytes, lengths))}"
    return f"{INSERTS}: one {row} per transaction, autocommit, into an empty table"


def _describe_updates(_: StoredPlan) -> str:
    return f"{UPDATES}: one row updated per transaction, autocommit, the same one by all clients of a node"


CHECKS = (_check_replication, _check_workload, _check_writers, _check_faults)
WORKLOADS = (
    # One row per transaction into a separate table, keys drawn by the clients, autocommit.
    WorkloadKind(INSERTS, creates_tables=True, describe=_describe_inserts),
    # Each transaction adds one to a row, the same for all clients of a node.
    WorkloadKind(UPDATES, creates_tables=True, describe=_describe_updates),
)
