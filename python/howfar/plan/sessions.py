"""The sessions that the levels of a cell request: encryption, compression, how often to connect, what the tables hold. No I/O.

The laboratory checks receipts against these, and the runner builds the engine's job from them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, cast

from howfar.plan.factors import COMPRESSION, CONNECT, CONTENT, TLS, Content

TlsVersion = Literal["1.2", "1.3"]
Algorithm = Literal["zlib", "zstd"]
_RESUMED_SUFFIX = "-resumed"


@dataclass(frozen=True)
class SessionSpec:
    """The sessions of a cell."""

    tls: TlsVersion | None = None
    resumption: bool = False
    """Whether later connections may resume the TLS session of an earlier one. Clients do so only if they are set up for it."""
    algorithm: Algorithm | None = None
    level: int | None = None
    """Level of the compression. None: the algorithm's own (zlib 6, zstd 3)."""
    per_transaction: bool = False
    content: Content = "digits"

    @property
    def tls_version(self) -> str | None:
        """Version of TLS as servers name it: `TLSv1.3`."""
        return None if self.tls is None else f"TLSv{self.tls}"


def session_spec(factors: Mapping[str, str | int | float | bool]) -> SessionSpec:
    """The sessions of a cell. Factors that it does not name have their ordinary level."""
    tls = TLS.level_in(factors)
    version = tls.removesuffix(_RESUMED_SUFFIX)
    algorithm, _, strength = COMPRESSION.level_in(factors).partition("-")
    return SessionSpec(
        tls=None if version == "off" else cast(TlsVersion, version),
        resumption=tls.endswith(_RESUMED_SUFFIX),
        algorithm=None if algorithm == "off" else cast(Algorithm, algorithm),
        level=int(strength) if strength else None,
        per_transaction=CONNECT.level_in(factors) == "per-transaction",
        content=cast(Content, CONTENT.level_in(factors)),
    )
