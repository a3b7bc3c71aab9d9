"""Groups of servers on the user's hosts. A slice registers each kind in its module `hosts`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol

from howfar.contract.receipt import LinkReceipt
from howfar.fleet.ray_driver import HostLink
from howfar.fleet.remote import RemoteHost
from howfar.fleet.serving import ServerOrder
from howfar.lab.network import Cpus
from howfar.lab.request import ReplicasSpec
from howfar.lab.server_group import ServerGroup
from howfar.plan.factor import Level
from howfar.slices import collect


class OpenHostGroups(Protocol):
    """What the groups of all trials share, such as hosts and links."""

    def open_group(
        self, factors: Mapping[str, Level], prepare: tuple[str, ...], kind: str
    ) -> AbstractContextManager[ServerGroup]:
        """Start the servers that a cell requires, and verify them. `kind`: of the servers. Raises LabError, PlanError."""


LinkBetween = Callable[[RemoteHost, RemoteHost], tuple[HostLink, LinkReceipt]]
"""Returns the open link from one host to another, and the measured facts about it."""
Open = Callable[[ServerOrder, RemoteHost, Sequence[tuple[RemoteHost, Cpus]], LinkBetween], OpenHostGroups]
"""Opens what the groups share. Arguments: how to start the main server, its host, the other servers' hosts with their CPUs, and the
links. Raises LabError, ServerMissing, ServerCrashed."""


@dataclass(frozen=True)
class HostGroupKind:
    """How a kind of group of servers is started on hosts."""

    name: str
    """As in `ReplicasSpec.kind`."""
    open: Open


def host_group_kind(spec: ReplicasSpec) -> HostGroupKind:
    """The kind of group of these servers."""
    return next(kind for kind in collect("hosts", "SERVER_GROUPS", HostGroupKind) if kind.name == spec.kind)
