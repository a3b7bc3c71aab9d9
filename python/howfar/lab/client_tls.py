"""Encryption as a stage's clients are to ask for it."""

from __future__ import annotations

from howfar.engine.messages import Tls
from howfar.lab.stage import Trust
from howfar.plan.sessions import SessionSpec


def client_tls(asked: SessionSpec, trust: Trust | None) -> Tls | None:
    """None: plain, or the server offers none. Its certificate is always checked."""
    if asked.tls is None or trust is None:
        return None
    return Tls(
        versions=asked.tls,
        verify="full",
        ca_file=trust.ca_file,
        server_name=trust.server_name,
        resumption=asked.resumption,
    )
