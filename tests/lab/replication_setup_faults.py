"""Faults that the replication scenario sets up before it opens a replica set, as contexts that undo them."""

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

from howfar.experiments.replication.lab import ReplicaSet, replica_set
from howfar.experiments.replication.lab.binary_log import BinaryLogReplication
from howfar.experiments.replication.lab.dialect import Seed, replication_dialect
from howfar.experiments.replication.lab.links import EmulatedReplicationLink
from howfar.experiments.replication.lab.member import Member, start_member
from howfar.lab import sandbox
from howfar.lab.cache import cache_home
from howfar.lab.servers import ServerContext
from howfar.lab.servers.table_store import LOADED_TEMPLATES

Links = Sequence[EmulatedReplicationLink]
Context = AbstractContextManager[Any]
TOO_SMALL = 4 << 20
"""Bytes: less than any data directory."""
SMALL = 512 << 20
"""Bytes: slightly more than the files of a primary that has just started."""


@contextmanager
def cut(links: Links) -> Iterator[None]:
    """The link is cut before servers connect."""
    links[0].cut()
    try:
        yield
    finally:
        links[0].restore()


def port_taken(links: Links) -> Context:
    """The replica's port is already in use."""
    return links[0].host.run(lambda: socket.create_server(("0.0.0.0", 3306)))


def bad_option(links: Links) -> Context:
    """The replica's program refuses to start."""

    def wrap(name: str, kind: str, context: ServerContext) -> Context:
        dialect = type(replication_dialect(kind))
        assert issubclass(dialect, BinaryLogReplication)
        original = dialect.options
        changed = mock.patch.object(
            dialect, "options", lambda *arguments: (*original(*arguments), "--no-such-option=1")
        )
        return nullcontext() if name == "primary" else changed

    return _wrap_begin_member(wrap)


def replica_disk_too_small(links: Links) -> Context:
    """The replica's disk is too small for the data."""

    def wrap(name: str, kind: str, context: ServerContext) -> Context:
        return nullcontext() if name == "primary" else _disk(context.work, TOO_SMALL)

    return _wrap_begin_member(wrap)


@contextmanager
def small_primary_disk(links: Links) -> Iterator[None]:
    """The primary's disk is large enough for its start, but fills up soon."""
    with ExitStack() as stack:

        def wrap(name: str, kind: str, context: ServerContext) -> Context:
            if name == "primary":
                stack.enter_context(_disk(context.work, SMALL))
            return nullcontext()

        with _wrap_begin_member(wrap):
            yield


def replica_dies(links: Links) -> Context:
    """The replica dies before it accepts connections."""

    def begin(seed: Seed, *rest: Any) -> Member:
        member = start_member(seed, *rest)
        if seed.number:
            member.server.kill()
        return member

    return mock.patch.object(replica_set, "start_member", begin)


@contextmanager
def damaged_template(links: Links) -> Iterator[None]:
    """Each template loses half of InnoDB's system file."""
    with ExitStack() as stack:
        for system in list((cache_home() / LOADED_TEMPLATES).glob("*-1x1000-*/ibdata1")):
            template = system.parent
            backup = cache_home() / f"backup-{template.name}"
            shutil.copytree(template, backup)
            stack.callback(backup.rename, template)
            stack.callback(shutil.rmtree, template)
            os.truncate(system, system.stat().st_size // 2)
        yield


def diverged_replica(links: Links) -> Context:
    """The replica has its own transactions before it follows the primary."""

    def connect(opened: ReplicaSet) -> None:
        opened.replicas[0].write("INSERT INTO sbtest1 (k, c, pad) VALUES (1, 'own', '')", timeout_s=60.0)
        original(opened)

    original = replica_set._connect
    return mock.patch.object(replica_set, "_connect", connect)


def _wrap_begin_member(wrap: Callable[[str, str, ServerContext], Context]) -> Context:
    def begin(seed: Seed, context: ServerContext, program: Any, *rest: Any) -> Member:
        with wrap(seed.name, program.kind, context):
            return start_member(seed, context, program, *rest)

    return mock.patch.object(replica_set, "start_member", begin)


@contextmanager
def _disk(where: Path, size: int) -> Iterator[None]:
    sandbox.mount_memory(where, size)
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(where)], check=True)
        shutil.rmtree(where.parent, ignore_errors=True)


FAULTS: dict[str, Callable[[Links], Context]] = {
    fault.__name__: fault
    for fault in (
        *(cut, port_taken, bad_option, replica_disk_too_small, small_primary_disk),
        *(replica_dies, damaged_template, diverged_replica),
    )
}
