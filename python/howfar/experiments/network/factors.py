"""The factor of compressed sessions."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Annotated, Any, Literal, cast

from pydantic import BeforeValidator

from howfar.contract.ping_messages import Compression
from howfar.plan.factor import Factor, SessionSetting, SettingDifference
from howfar.plan.quantities import refusal

if TYPE_CHECKING:
    from howfar.contract.messages import Receipt

Algorithm = Literal["zlib", "zstd"]
_PATTERN = re.compile(r"off|zlib(-[1-9])?|zstd(-([1-9]|1[0-9]|2[0-2]))?")


def _check_level(value: Any) -> Any:
    if isinstance(value, str) and not _PATTERN.fullmatch(value):
        raise refusal("compression must be off, zlib, zlib-1 to zlib-9, zstd, or zstd-1 to zstd-22")
    return value


COMPRESSION: Factor[str] = Factor(
    "compression",
    Annotated[str, BeforeValidator(_check_level)],
    default="off",
    implied_level="off",
    label=lambda level: "uncompressed" if level == "off" else str(level),
    short_label=lambda level: "none" if level == "off" else str(level),
    prefers_rows=True,
    sql_only_because="compression is part of MySQL's protocol",
    hides_protocol=True,
    saves_bytes=True,
    moves_limit=True,
)
"""Algorithm and level of compression, as `zstd-3`. The level of zlib is the client's; servers compress their answers at their own."""


def requested_compression(level: str) -> Compression | None:
    """The compression that a level requests. None: off."""
    algorithm, _, strength = level.partition("-")
    if algorithm == "off":
        return None
    return Compression(algorithm=cast(Algorithm, algorithm), level=int(strength) if strength else None)


def compression_difference(requested: Compression | None, session: Receipt) -> SettingDifference | None:
    """The difference if a session was compressed by another algorithm than the requested one; else None."""
    algorithm = None if requested is None else requested.algorithm
    if session.compression == algorithm:
        return None
    algorithms = {"obtained": session.compression or "none", "requested": algorithm or "none"}
    return "session-compression", algorithms


SESSION_SETTINGS = (SessionSetting(COMPRESSION, "compression", requested_compression, compression_difference),)
