"""What can be a limit."""

from __future__ import annotations

from enum import StrEnum


class Resource(StrEnum):
    """What can be a limit. Closed: a report can explain each."""

    CLIENT_CPU = "client CPU"
    """Then the figures are about the load generator."""
    SERVER_CPU = "server CPU"
    FORWARDER_CPU = "forwarder CPU"
    INSTRUMENT_CPU = "instrument CPU"
    """The emulator of the link took the processors: a larger machine would give more."""
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
    """Transactions fail: the figures are about them too."""
    INVALID = "invalid"
    """Other programs have the machine."""
    NOT_ESTABLISHED = "not established"


NOT_THE_PATH = frozenset({Resource.ERRORS, Resource.INVALID})
"""Figures with such a limit say nothing of a path, nor of what is compared on it."""
