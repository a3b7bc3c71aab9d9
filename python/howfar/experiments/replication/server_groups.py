"""Primaries with their replicas as the servers of environments in the laboratory."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack

from howfar.errors import PlanError
from howfar.experiments.replication.factors import CLUSTERS
from howfar.experiments.replication.lab import ReplicaSetContext
from howfar.experiments.replication.lab.replicated_group import (
    Replication,
    is_replicated,
    node_links,
    replication_spec,
)
from howfar.lab.link import LinkSpec
from howfar.lab.request import ReplicasSpec
from howfar.lab.server_group import GroupKind, LabResources
from howfar.lab.servers import Tables
from howfar.plan.factor import FactorLevels
from howfar.plan.types import Plan

REPLICAS = "replicas"
"""Name of this kind of group."""


def _spec(replicated: Sequence[FactorLevels]) -> ReplicasSpec:
    links = [link for factors in replicated for link in node_links(factors).values()]
    specs = [replication_spec(factors) for factors in replicated]
    return ReplicasSpec(
        REPLICAS,
        max_replicas=max(spec.replicas for spec in specs),
        mesh=any(spec.cluster for spec in specs),
        link=links[0] if links else LinkSpec(0, None),
    )


def _open(resources: LabResources, spec: ReplicasSpec, stack: ExitStack) -> Replication:
    request = resources.request
    context = ReplicaSetContext(
        resources.work, resources.network, resources.shares, request.connections, request.backend, request.tcp
    )
    return Replication(context, resources.program, Tables(request.tables, request.table_size), spec, stack)


def _check_for_hosts(plan: Plan) -> None:
    if missing_need := _unavailable_need(plan):
        raise PlanError(
            f"plan {plan.name} needs {missing_need}, which your own hosts do not provide yet",
            "The laboratory (without --on) provides them.",
        )
    if set(CLUSTERS) & set(plan.factors.replication) and len(plan.factors.replicas) > 1:
        raise PlanError(
            f"plan {plan.name} compares clusters of several sizes, but the links of only one are measured",
            "Name one number of replicas.",
        )


def _unavailable_need(plan: Plan) -> str:
    """What a plan needs that hosts do not provide; empty if nothing."""
    if set(plan.factors.fault) - {"none"}:
        return "links that can be cut and servers that can be broken"
    if set(plan.factors.writers) - {"one"}:
        return "clients on two nodes of a cluster"
    return ""


SERVER_GROUPS = (GroupKind(REPLICAS, is_replicated, _spec, _check_for_hosts, _open),)
