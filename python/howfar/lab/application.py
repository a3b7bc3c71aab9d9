"""Real applications between the client and an environment's servers. A slice registers each in its module `application`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Protocol

from howfar.contract.messages import Observed, ServiceName
from howfar.engine.process import Launcher
from howfar.lab.connected_server import ConnectedServer
from howfar.slices import collect
from howfar.testbed import Application


class RunningApplication(Application, Protocol):
    """An application that is ready for its script."""

    @property
    def observed_process(self) -> Observed: ...


Open = Callable[[Path, Launcher, int, Sequence[ConnectedServer]], AbstractContextManager[RunningApplication]]
"""Starts an application with a directory, by a launcher, with a number of child processes, for these servers; the main one is first.
Raises LabError."""


@dataclass(frozen=True)
class InstalledApplication:
    """A real application that is installed here."""

    description: str
    """Program and version, as `PHP-FPM 8.2`."""
    open: Open


@dataclass(frozen=True)
class ApplicationKind:
    """A kind of real application."""

    name: str
    """The level of the factor `application`."""
    find: Callable[[ServiceName], InstalledApplication]
    """Finds it, with what it needs to use this service. Raises MissingError."""


@cache
def application_kinds() -> dict[str, ApplicationKind]:
    """All kinds, by name."""
    return {kind.name: kind for kind in collect("application", "APPLICATIONS", ApplicationKind)}
