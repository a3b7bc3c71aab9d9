"""The peers of `howfar bench engine`, by the word that `--against` takes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from howfar.bench.peers import BareSysbenchPeer, PeerProgram, SysbenchPeer
from howfar.bench.pgbench import BarePgbenchPeer, PgbenchPeer

CLIENTS: Final[Mapping[str, PeerProgram]] = {
    "sysbench": SysbenchPeer(),
    "pgbench": PgbenchPeer(),
    "bare": BareSysbenchPeer(),
}
_OTHER_PEERS: Final[Mapping[str, tuple[PeerProgram, ...]]] = {"bare": (BarePgbenchPeer(),)}
"""Peers for other kinds of server."""


def find_client(against: str, server: str | None) -> PeerProgram:
    """The peer of this name for a kind of server, or for its own kind."""
    return next((peer for peer in _OTHER_PEERS.get(against, ()) if peer.server == server), CLIENTS[against])
