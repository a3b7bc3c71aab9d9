"""What differs between key-value stores in the laboratory: command line, what tells of their state, how they see a session.

A `StoreDialect` is stateless; the store and the running server that use it are `key_value_store.py` and `key_value_server.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from howfar.lab.servers import CertificatePaths, Ground
from howfar.lab.servers.lines import Lines

SPARE_CONNECTIONS = 16


@dataclass(frozen=True)
class StoreSettings:
    """How to start one."""

    program: Path
    ground: Ground
    socket: Path | None
    """None: it has no Unix socket."""
    port: int | None
    """None: it has no TCP. With `tls` the port speaks TLS and nothing else."""
    tls: CertificatePaths | None = None

    @property
    def address(self) -> str | None:
        """Where it listens on TCP."""
        if self.port is None:
            return None
        return "0.0.0.0" if self.ground.namespaced else "127.0.0.1"

    @property
    def clients(self) -> int:
        """How many it must let in."""
        return self.ground.connections + SPARE_CONNECTIONS


class StoreDialect(Protocol):
    """One kind of store."""

    kind: str
    port: int
    """Where its clients look for it."""
    has_both: bool
    """It can listen on a Unix socket and on TCP at once."""

    def command_line(self, settings: StoreSettings) -> list[str]: ...

    def version(self, lines: Lines) -> str:
        """It answers, and so: raises LabError when it does not, or speaks another protocol."""
        ...

    def counters(self, lines: Lines) -> dict[str, int]:
        """Now, in one request. `Bytes_received` and `Bytes_sent` as every server here names them; `Questions`, where it has one,
        counts this request too."""
        ...

    def count_keys(self, lines: Lines) -> int:
        """That it holds now."""
        ...

    def others(self, lines: Lines) -> tuple[str, ...]:
        """Where it sees each client but this session: an address with its port, `localhost` over its socket."""
        ...

    def facts(self, lines: Lines) -> dict[str, str]:
        """Settings in force that receipts keep."""
        ...

    def clients_allowed(self, facts: Mapping[str, str]) -> int: ...

    def unlike(self, facts: Mapping[str, str], counters: Mapping[str, int]) -> list[str]:
        """What is not as a trial needs it: data that was thrown out, clients that were turned away, files that are written."""
        ...

    def has_tls(self, lines: Lines) -> bool:
        """Whether TLS was built in."""
        ...

    def view(self, lines: Lines, settings: StoreSettings) -> dict[str, Any]:
        """How it sees this session: `host` (`localhost` over its socket), `ssl_version`, `ssl_cipher`, `listener`."""
        ...
