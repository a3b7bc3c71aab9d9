"""The engine's sessions as a cell asks for them."""

from __future__ import annotations

from howfar.engine.messages import Compression, Session, Tls
from howfar.lab.stage import Trust
from howfar.plan.sessions import SessionAsked


def session_of(asked: SessionAsked, trust: Trust | None) -> Session:
    """The server's certificate is always checked."""
    tls = None
    if asked.tls is not None:
        assert trust is not None, "a stage for an encrypted cell has a server with a certificate"
        tls = Tls(
            versions=asked.tls,
            verify="full",
            ca_file=trust.ca_file,
            server_name=trust.server_name,
            resumption=asked.resumption,
        )
    return Session(
        tls=tls,
        compression=Compression(algorithm=asked.algorithm, level=asked.level) if asked.algorithm else None,
        connect="per_transaction" if asked.per_transaction else "persistent",
    )
