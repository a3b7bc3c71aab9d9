"""The lines that the doctor proposes: complete for the client that moves, reachable for the program that opens a path."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from tests.unit.made_doctor import PORT, SOCKET, client, floor, looked, server

from howfar.doctor import procfs
from howfar.doctor.findings import ANOTHER_ROOT, Change, Client, Kind, SocketFile, Transport
from howfar.doctor.proposals import changes_to_socket
from howfar.services import SERVICES

_FORWARDERS = ("socat", "haproxy", "nginx", "proxysql", "maxscale", "stunnel", "pgbouncer")
_SQL_KINDS = [kind for kind in Kind if SERVICES[kind].account_lines]


def _changes(using: Client, kind: Kind) -> tuple[Change, ...]:
    (finding,) = looked(server(using, kind=kind, floors=(floor(Transport.SOCKET, 1, 1),)))
    return finding.changes


@pytest.mark.parametrize("kind", _SQL_KINDS)
@pytest.mark.parametrize("program", [*_FORWARDERS, "php-fpm8.2", "python3", "orders"])
def test_who_changes_over_to_a_socket_is_accepted_there_first(program: str, kind: Kind) -> None:
    """[doc-1] The account or the line of pg_hba.conf comes before each client's line, whatever program connects."""
    changes = _changes(client(program=program), kind)
    assert changes[0].where.startswith("first, in ") and len(changes) >= 2


@pytest.mark.parametrize("program", _FORWARDERS)
def test_a_line_to_copy_ends_with_what_its_program_reads(program: str) -> None:
    """[doc-1] Where a file allows comments only at the beginning of a line, a trailing remark would be part of the value."""
    for change in _changes(client(program=program), Kind.POSTGRESQL)[1:]:
        assert not any("   " in line or "…" in line for line in change.lines)


@pytest.mark.parametrize("program", ["haproxy", "php-fpm8.2"])
@pytest.mark.parametrize("opens", [SOCKET, None], ids=["a socket that is there", "a new one"])
def test_a_path_is_shown_to_a_program_that_has_another_root(program: str, opens: object) -> None:
    """[doc-2] A chroot gets the folder mounted, a container is to share it; a program that sees all paths needs nothing."""
    listeners = (SOCKET, PORT) if opens else (PORT,)

    def lines(root: str | None) -> list[str]:
        (finding,) = looked(server(client(program=program, root=root, may_use_socket=True), listeners=listeners))
        return [line for change in finding.changes for line in change.lines]

    folder = "/run" if opens else "/run/own"
    assert f"mount --bind {folder} /srv/jail{folder}" in lines("/srv/jail")
    assert f"volume {folder}:{folder}" in lines(ANOTHER_ROOT)
    assert lines("/") == lines(None) and not any("mount" in line or "volume" in line for line in lines("/"))


def test_a_process_has_the_root_of_this_machine() -> None:
    assert procfs.root(os.getpid()) == "/" and procfs.sees_same_file(os.getpid(), "/etc/passwd")
    assert procfs.root(2**22 + 1) is None


def _kept_out(tmp_path: Path, mode: int, group: str) -> tuple[Change, ...]:
    tmp_path.chmod(0o755)
    file = SocketFile(mode=mode, owner="redis", group=group, who="its group")
    socket = SOCKET.model_copy(update={"path": "/run/s.sock", "file": file})
    cache = server(kind=Kind.REDIS, user="daemon", listeners=(socket, PORT))
    return changes_to_socket(cache, [client(user="www-data", may_use_socket=False)], "/run/own/s.sock")


def test_a_client_that_only_lacks_the_group_joins_it(tmp_path: Path) -> None:
    """[doc-3] Nothing that is already so is proposed, nor a restart."""
    changes = _kept_out(tmp_path, 0o770, "daemon")
    assert changes[0].lines == ("usermod -a -G daemon www-data",)
    assert not any(change.restarts for change in changes)


def test_a_mode_that_keeps_the_group_out_is_the_only_line(tmp_path: Path) -> None:
    """[doc-3] The path stays the same, so it is not proposed."""
    changes = _kept_out(tmp_path, 0o700, "daemon")
    assert [change.lines for change in changes if change.restarts] == [("unixsocketperm 770",)]


def test_a_socket_that_moves_leaves_a_link_at_its_old_path(tmp_path: Path) -> None:
    changes = _kept_out(tmp_path, 0o777, "daemon")
    assert ("ln -sf /run/own/s.sock /run/s.sock",) in [change.lines for change in changes]
