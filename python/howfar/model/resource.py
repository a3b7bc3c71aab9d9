"""Resources that can limit throughput."""

from __future__ import annotations

from enum import StrEnum


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
    """Commits wait for a replica."""
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
