"""The load generators that `howfar bench engine` can compare with, by the value of `--against`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from howfar.bench.peers import BareSysbenchPeer, PeerProgram, SysbenchPeer
from howfar.bench.pgbench import BarePgbenchPeer, PgbenchPeer

ENGINE_PEERS: Final[Mapping[str, PeerProgram]] = {
    "sysbench": SysbenchPeer(),
    "pgbench": PgbenchPeer(),
    "bare": BareSysbenchPeer(),
}
_OTHER_PEERS: Final[Mapping[str, tuple[PeerProgram, ...]]] = {"bare": (BarePgbenchPeer(),)}
"""Peers of the same name for other kinds of server."""


def find_engine_peer(peer_name: str, server: str | None) -> PeerProgram:
    """The peer of this name that supports `server`, or else the name's default peer."""
    return next((peer for peer in _OTHER_PEERS.get(peer_name, ()) if peer.server == server), ENGINE_PEERS[peer_name])
