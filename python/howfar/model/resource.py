"""Resources that can limit throughput."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from howfar.store.records import Trial


class Resource(StrEnum):
    """A resource that can limit throughput. The set is closed, so that a report can explain each."""

    CLIENT_CPU = "client CPU"
    """The figures describe the load generator."""
    SERVER_CPU = "server CPU"
    FORWARDER_CPU = "forwarder CPU"
    INSTRUMENT_CPU = "instrument CPU"
    """The link's emulator used up the processors: a larger machine would give more throughput."""
    ONE_THREAD = "one thread"
    LINK_TO_CLIENT = "link to client"
    LINK_TO_SERVER = "link to server"
    RECEIVE_WINDOW = "receive window"
    SEND_BUFFER = "send buffer"
    LOSS = "loss"
    COMMIT = "commit"
    ACKNOWLEDGEMENT = "acknowledgement"
    """Commits wait for another server."""
    LOCK = "lock"
    SERVER_WAIT = "wait in the server"
    LATENCY = "latency"
    ERRORS = "server errors"
    """Transactions fail, so that the figures include errors."""
    INVALID = "invalid"
    """Other programs use the machine."""
    NOT_ESTABLISHED = "not established"

    @property
    def id(self) -> str:
        """Its id in templates: `link-to-client`."""
        return self.name.lower().replace("_", "-")


NOT_THE_PATH = frozenset({Resource.ERRORS, Resource.INVALID})
"""Limits with which figures describe neither a path nor what is compared on it."""
LINKS = frozenset({Resource.LINK_TO_CLIENT, Resource.LINK_TO_SERVER})
"""The directions of a link that can be full."""


@dataclass(frozen=True)
class Acknowledgement:
    """The acknowledgement of another server that commits wait for: its names in texts, and how servers measure the waits. A slice
    registers it in its module `waits`."""

    part: str
    """Name of the part of a transaction's time."""
    mean_wait_s: Callable[[Sequence[Trial]], float | None]
    """Mean wait as servers measured it; a group of commits may wait once. None: they measured none."""
    limit: str
    """Template of the limit, with its `share` of a transaction's time, and `wait_ns`."""
    measured: str
    """Template of the fact that servers measured waits of `wait_ns`."""
    unmeasured: str
    """The fact that they measured none."""
    nearer: str
    """The change to servers at half the distance."""
    more_waits: str
    """The change to more commits that wait at the same time."""
    no_wait: str
    """The change to commits that do not wait."""
    no_help: str
    """A change that would not help."""
    untestable: str
    """Why the limit cannot be tested."""
    action: str
    """Advice against the limit."""
