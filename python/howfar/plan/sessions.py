"""The sessions that the levels of a cell request: TLS, how often to connect, what the tables hold, and what slices add. No I/O.

The laboratory checks receipts against these, and the runner builds the engine's job from them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal, cast

from howfar.plan.factor import SettingDifference
from howfar.plan.factors import CONNECT, CONTENT, SESSION_SETTINGS, TLS, Content

TlsVersion = Literal["1.2", "1.3"]
_RESUMED_SUFFIX = "-resumed"


@dataclass(frozen=True)
class SessionSpec:
    """The sessions of a cell."""

    tls: TlsVersion | None = None
    resumption: bool = False
    """Whether later connections may resume the TLS session of an earlier one. Clients do so only if they are set up for it."""
    per_transaction: bool = False
    content: Content = "digits"
    settings: Mapping[str, object] = field(default_factory=dict)
    """Fields of the engine's session that slices' settings request."""

    @property
    def tls_version(self) -> str | None:
        """Version of TLS as servers name it: `TLSv1.3`."""
        return None if self.tls is None else f"TLSv{self.tls}"

    def setting_differences(self, session: object) -> Iterator[SettingDifference]:
        """The difference of each of `settings` that the engine's receipt `session` does not show."""
        for setting in SESSION_SETTINGS:
            if (difference := setting.difference(self.settings.get(setting.field), session)) is not None:
                yield difference


def session_spec(factors: Mapping[str, str | int | float | bool]) -> SessionSpec:
    """The sessions of a cell. Factors that it does not name have their implied level."""
    tls = TLS.level_in(factors)
    version = tls.removesuffix(_RESUMED_SUFFIX)
    requested = {setting.field: setting.request(setting.factor.level_in(factors)) for setting in SESSION_SETTINGS}
    return SessionSpec(
        tls=None if version == "off" else cast(TlsVersion, version),
        resumption=tls.endswith(_RESUMED_SUFFIX),
        per_transaction=CONNECT.level_in(factors) == "per-transaction",
        content=cast(Content, CONTENT.level_in(factors)),
        settings={name: value for name, value in requested.items() if value is not None},
    )
