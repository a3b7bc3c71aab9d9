"""Real applications on the client's host. A slice registers each in its module `hosts`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cache

from howfar.fleet.remote import RemoteHost
from howfar.lab.application import RunningApplication
from howfar.lab.connected_server import ConnectedServer
from howfar.lab.network import Cpus
from howfar.slices import collect

Start = Callable[[RemoteHost, Cpus, int, Sequence[ConnectedServer], ExitStack], RunningApplication]
"""Starts an application on a host, on CPUs, with a number of child processes, for these servers, and has the stack end it. Raises
LabError, MissingError."""


@dataclass(frozen=True)
class HostApplication:
    """How a kind of real application is started on a host."""

    name: str
    """The level of the factor `application`."""
    start: Start


@cache
def host_applications() -> dict[str, HostApplication]:
    """All kinds, by name."""
    return {kind.name: kind for kind in collect("hosts", "APPLICATIONS", HostApplication)}
