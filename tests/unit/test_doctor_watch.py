"""The doctor's watch over connections: those that come and go between two looks are reported as connections, not as a process."""

from __future__ import annotations

import pytest
from tests.unit.made_doctor import PORT, client, looked, server

from howfar.doctor import procfs
from howfar.doctor.discovery import ConnectionWatch, SessionFacts, WatchedServer, group_clients
from howfar.doctor.examine import _note_uncaught
from howfar.doctor.findings import Client, Rates
from howfar.doctor.procfs import ESTABLISHED, TIME_WAIT, Process, TcpRow

_SERVER = ("127.0.0.1", 3306)


def _rows(state: str, port: int, uid: int = 0, inode: int = 0, far: str = "127.0.0.1") -> list[TcpRow]:
    """Both ends of a connection; once it has ended, the kernel keeps one."""
    ends = [
        TcpRow(_SERVER, (far, port), state, uid if state == TIME_WAIT else 27, 0),
        TcpRow((far, port), _SERVER, state, uid, inode),
    ]
    return ends if state == ESTABLISHED else ends[:1]


def _watched(
    monkeypatch: pytest.MonkeyPatch, *looks: list[TcpRow], held: dict[int, set[int]] | None = None
) -> tuple[Client, ...]:
    watch = ConnectionWatch([WatchedServer(0, {3306: frozenset()}, frozenset())])
    monkeypatch.setattr(procfs, "processes", lambda: iter([Process(7, "php-fpm8.2", 33, ())]))
    monkeypatch.setattr(procfs, "process", lambda pid: Process(pid, "php-fpm8.2", 33, ()))
    monkeypatch.setattr(procfs, "socket_inodes", lambda pid: (held or {}).get(pid, set()))
    monkeypatch.setattr(procfs, "open_files", lambda pid: [])
    monkeypatch.setattr(procfs, "is_of_this_machine", lambda address: address == "127.0.0.1")
    for rows in looks:
        monkeypatch.setattr(procfs, "tcp_rows", lambda rows=rows: rows)
        seen = watch.watch_for(0)
    sight = SessionFacts(sessions=(), listeners=(PORT,), never_tls=True, socket=None)
    return group_clients(list(seen.holders[0].values()), watch.programs, sight)


def test_connections_that_ended_are_not_called_a_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """[doc-4] Their processes may still run, and be named a few lines above."""
    (found,) = _watched(monkeypatch, _rows(ESTABLISHED, 40000, uid=33, inode=5))
    assert found.description == "connections that ended before they were identified (www-data)"
    says = {each.text for each in looked(server(found.model_copy(update={"may_use_socket": True})))}
    assert any("identified (www-data) connect over TCP" in each for each in says)


def test_programs_of_the_account_are_tried_for_a_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    """[doc-4] After one search of all processes, those of the connection's account are searched at each look."""
    held: dict[int, set[int]] = {}
    first, second = _rows(ESTABLISHED, 40000, 33, 5), _rows(ESTABLISHED, 40001, 33, 6)
    monkeypatch.setattr("howfar.doctor.discovery._FULL_SEARCH_S", float("inf"))
    held[7] = {6}
    found = _watched(monkeypatch, first, second, held=held)
    assert {each.program for each in found} >= {"php-fpm8.2"}


def test_what_came_and_went_between_two_looks_is_a_client(monkeypatch: pytest.MonkeyPatch) -> None:
    """[doc-5] The kernel lists it for a minute; its account is unknown, so the finding is a note."""
    before, after = (
        _rows(TIME_WAIT, 39999),
        [*_rows(TIME_WAIT, 39999), *_rows(TIME_WAIT, 40000), *_rows(TIME_WAIT, 40001)],
    )
    (found,) = _watched(monkeypatch, before, after, after)
    assert (found.program, found.user, found.local, found.connects_seen) == ("not caught", None, True, 2)
    (finding,) = looked(server(found))
    assert (finding.check, finding.severity) == ("loopback-tcp", "note")
    (far,) = _watched(monkeypatch, [], _rows(TIME_WAIT, 40000, far="192.0.2.1"))
    assert (far.local, far.address) == (False, "192.0.2.1")


def test_a_connection_that_was_seen_is_not_counted_again_when_it_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    (found,) = _watched(monkeypatch, _rows(ESTABLISHED, 40000, 33, 5), _rows(TIME_WAIT, 40000), held={7: {5}})
    assert (found.program, found.connects_seen) == ("php-fpm8.2", 1)


def test_counters_that_contradict_what_was_seen_are_reported() -> None:
    """[doc-5] If no client was seen that made the connects, the advice is to watch longer."""
    rates = Rates(connects=22, statements=110, tls_connects=None)
    (unseen,) = _note_uncaught(rates, [], 3.0)
    assert "66 of the 66 connections" in unseen.what and unseen.how == "howfar doctor --watch 30"
    assert _note_uncaught(rates, [client(connects_seen=60)], 3.0) == _note_uncaught(None, [], 3.0) == []
    assert _note_uncaught(Rates(connects=0.5, statements=1, tls_connects=None), [], 3.0) == []
