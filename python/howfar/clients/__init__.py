"""Clients of databases for all that is not measured: counters, settings, the preparation of data, and what the doctor asks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

Row = dict[str, Any]
"""A row by column name."""


@dataclass(frozen=True)
class Consent:
    """The user's consent to send a server the password itself instead of a proof of it; the same rule as for `howfar load`."""

    fetch_server_key: bool = False
    cleartext_password: bool = False


NO_CONSENT = Consent()
OWN_SERVER = Consent(fetch_server_key=True, cleartext_password=True)
"""For a server that howfar started with a password of its own."""
