"""Faults that the scenario sets up before it opens a pair; each is undone on leaving."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from pathlib import Path
from typing import Any
from unittest import mock

from howfar.lab import sandbox
from howfar.lab.cache import cache_home
from howfar.lab.replication import ReplicaSet, replica_set
from howfar.lab.replication.binary_log import BinaryLogReplication
from howfar.lab.replication.dialect import Seed, replication_dialect
from howfar.lab.replication.links import EmulatedReplicationLink
from howfar.lab.replication.member import Member, begin_member
from howfar.lab.servers import ServerContext
from howfar.lab.servers.table_store import LOADED

Links = Sequence[EmulatedReplicationLink]
Context = AbstractContextManager[Any]
SMALL = 4 << 20
"""Bytes: less than any data directory."""
ROOM = 512 << 20
"""Bytes: enough for all files of a primary that has just started, and some more."""


@contextmanager
def cut(links: Links) -> Iterator[None]:
    """The link is cut before anything connects."""
    links[0].cut()
    try:
        yield
    finally:
        links[0].mend()


def port_taken(links: Links) -> Context:
    """The replica's port is already in use."""
    return links[0].host.within(lambda: socket.create_server(("0.0.0.0", 3306)))


def bad_option(links: Links) -> Context:
    """The replica's program refuses to start."""

    def around(name: str, kind: str, context: ServerContext) -> Context:
        dialect = type(replication_dialect(kind))
        assert issubclass(dialect, BinaryLogReplication)
        really = dialect.options
        changed = mock.patch.object(dialect, "options", lambda *arguments: (*really(*arguments), "--no-such-option=1"))
        return nullcontext() if name == "primary" else changed

    return _around_begin(around)


def no_room(links: Links) -> Context:
    """The replica's disk is too small for the data."""

    def around(name: str, kind: str, context: ServerContext) -> Context:
        return nullcontext() if name == "primary" else _disk(context.work, SMALL)

    return _around_begin(around)


@contextmanager
def little_room(links: Links) -> Iterator[None]:
    """The primary's disk has room for its start, but soon fills up."""
    with ExitStack() as ledger:

        def around(name: str, kind: str, context: ServerContext) -> Context:
            if name == "primary":
                ledger.enter_context(_disk(context.work, ROOM))
            return nullcontext()

        with _around_begin(around):
            yield


def dies(links: Links) -> Context:
    """The replica dies before it answers."""

    def begin(seed: Seed, *rest: Any) -> Member:
        member = begin_member(seed, *rest)
        if seed.number:
            member.server.kill()
        return member

    return mock.patch.object(replica_set, "begin_member", begin)


@contextmanager
def damaged(links: Links) -> Iterator[None]:
    """Half of InnoDB's own file is gone from each template that has one."""
    with ExitStack() as ledger:
        for system in list((cache_home() / LOADED).glob("*-1x1000-*/ibdata1")):
            template = system.parent
            kept = cache_home() / f"kept-{template.name}"
            shutil.copytree(template, kept)
            ledger.callback(kept.rename, template)
            ledger.callback(shutil.rmtree, template)
            os.truncate(system, system.stat().st_size // 2)
        yield


def stranger(links: Links) -> Context:
    """The replica has its own history before it follows the primary."""

    def connect(opened: ReplicaSet) -> None:
        opened.replicas[0].write("INSERT INTO sbtest1 (k, c, pad) VALUES (1, 'own', '')", timeout_s=60.0)
        really(opened)

    really = replica_set._connect
    return mock.patch.object(replica_set, "_connect", connect)


def _around_begin(around: Callable[[str, str, ServerContext], Context]) -> Context:
    def begin(seed: Seed, context: ServerContext, program: Any, *rest: Any) -> Member:
        with around(seed.name, program.kind, context):
            return begin_member(seed, context, program, *rest)

    return mock.patch.object(replica_set, "begin_member", begin)


@contextmanager
def _disk(where: Path, size: int) -> Iterator[None]:
    sandbox.mount_memory(where, size)
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(where)], check=True)
        shutil.rmtree(where.parent, ignore_errors=True)


FAULTS: dict[str, Callable[[Links], Context]] = {
    fault.__name__: fault for fault in (cut, port_taken, bad_option, no_room, little_room, dies, damaged, stranger)
}
