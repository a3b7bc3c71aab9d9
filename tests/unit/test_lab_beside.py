"""Servers beside the main one, without starting one: which are allowed, their sessions, and their part of a receipt."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast, get_args

import pytest
from tests.made import build

from howfar.contract.messages import (
    KeyValue,
    Receipt,
    Service,
    ServiceName,
    TablesDone,
    TcpTarget,
)
from howfar.contract.receipt import IdleReceipt, LinkReceipt, TcpSettings
from howfar.contract.server_receipt import ServerReceipt, SessionView
from howfar.contract.violation import OTHER, Violation, violation
from howfar.engine.process import Launcher
from howfar.errors import LabError, PlanError
from howfar.lab import server_group, trial_environment
from howfar.lab.connected_server import ConnectedServer, ServerProof
from howfar.lab.idle import IdleWatch
from howfar.lab.network import Host
from howfar.lab.server_group import AuxiliaryServers, store_session_spec
from howfar.lab.servers import ServerContext
from howfar.lab.servers.kinds import KINDS
from howfar.lab.trial_environment import LabTrialEnvironment
from howfar.paths import find_path
from howfar.plan.sessions import SessionSpec
from howfar.runner.loads import key_stores as fill
from howfar.store.server_metrics import ServerMetrics
from howfar.testbed import CollectedReceipt, LoadFacts, ServiceEndpoint


@pytest.fixture(autouse=True)
def _kinds_are_names(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes kinds of servers mere names, so that no program is searched for."""

    def found(name: str, tables: object) -> Any:
        program = SimpleNamespace(path=Path("/bin", name))
        return SimpleNamespace(kind=name, version="1", program=program, prepare=lambda context: {})

    monkeypatch.setattr(server_group, "find_store", found)


def _context(work: Path) -> ServerContext:
    return ServerContext(work=work, host=Host("server", None), cpus=(0,), connections=1, namespaced=True)


def test_every_kind_of_server_is_a_service_to_an_application() -> None:
    assert {kind.service for kind in KINDS.values()} <= set(get_args(ServiceName))


@pytest.mark.parametrize(
    ("servers", "main", "expected"),
    [
        (("mariadb",), "mysql", "cannot be added"),
        (("redis",), "redis", "two servers"),
        (("redis", "valkey"), "mariadb", "the application's redis"),
    ],
)
def test_what_cannot_stand_there_is_refused(servers: tuple[str, ...], main: str, expected: str, tmp_path: Path) -> None:
    with pytest.raises(PlanError, match=expected):
        AuxiliaryServers(servers, main, _context(tmp_path))


def test_each_has_a_directory_of_its_own(tmp_path: Path) -> None:
    found = AuxiliaryServers(("valkey", "memcached"), "mariadb", _context(tmp_path))
    assert {path.name for path in tmp_path.iterdir()} == {"redis", "memcached"} == set(found.environment())
    assert found.environment()["redis"] == {"kind": "valkey", "version": "1", "program": "/bin/valkey"}


def test_a_directory_too_deep_for_a_socket_is_refused_at_once(tmp_path: Path) -> None:
    deep = tmp_path / ("x" * 80)
    deep.mkdir()
    with pytest.raises(LabError, match="a Unix socket allows 107"):
        AuxiliaryServers(("memcached",), "mariadb", _context(deep))


def test_a_store_has_no_settings_of_sql_and_its_socket_is_plain() -> None:
    spec = SessionSpec(tls="1.3", resumption=True, per_transaction=True, settings={"compression": "made up"})
    over_tcp, over_socket = (store_session_spec(spec, find_path(path)) for path in ("remote", "forwarded-socket"))
    assert (over_tcp.tls, over_tcp.resumption, over_tcp.settings) == ("1.3", True, {})
    assert (over_socket.tls, over_socket.resumption, over_socket.per_transaction) == (None, False, True)


# ---------------------------------------------------------------- a receipt of three servers


def _session(name: str) -> Receipt:
    """The engine's session with the server of this name."""
    return build(Receipt, peer_address=name)


_ODD = violation(OTHER, text="it is odd")


def _reached(name: str, received: int, *violations: Violation) -> ConnectedServer:
    def collect_proof(session: Receipt | None, *_: object) -> ServerProof:
        violations_found = () if session == _session(name) else (violation(OTHER, text="the session is another one"),)
        metrics = ServerMetrics(bytes_received=received, bytes_sent=0)
        return ServerProof(ServerReceipt(kind=name), None, metrics, (*violations_found, *violations))

    return cast(
        ConnectedServer,
        SimpleNamespace(
            name=name, collect_proof=collect_proof, started=SimpleNamespace(spec=SessionSpec()), view=SessionView()
        ),
    )


def _environment(monkeypatch: pytest.MonkeyPatch, carried: int, others: int = 0) -> LabTrialEnvironment:
    """An environment over a link that carried `carried` bytes to the server."""
    monkeypatch.setattr(trial_environment, "link_receipt", lambda *_: LinkReceipt())
    direction = SimpleNamespace(packets=9, wire_bytes=carried)
    link = SimpleNamespace(counters=lambda: SimpleNamespace(to_server=direction, to_client=direction))
    server_group = SimpleNamespace(
        collect_receipt=lambda load: CollectedReceipt(), peer_traffic=lambda: ServerMetrics(bytes_received=others)
    )
    values: dict[str, Any] = dict.fromkeys(LabTrialEnvironment.__dataclass_fields__)
    values |= {"main": _reached("mysql", 500_000), "server_group": server_group, "tcp": TcpSettings()}
    values |= {"auxiliary_servers": (_reached("redis", 300_000), _reached("memcached", 200_000, _ODD))}
    values |= {"link": link, "rtt_at_rest": "measured", "idle": IdleWatch("as-found", ())}
    return LabTrialEnvironment(**values)


GOOD = LoadFacts(sessions={name: _session(name) for name in ("mysql", "redis", "memcached")})


def test_what_is_wrong_with_one_beside_is_said_under_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    collected = _environment(monkeypatch, 10**7).collect_receipt(None, GOOD)
    assert collected.violations == (_ODD.at("memcached"),)
    assert collected.receipt.services == {name: ServerReceipt(kind=name) for name in ("redis", "memcached")}
    assert collected.receipt.server is not None and collected.receipt.server.kind == "mysql"


def test_without_sessions_of_each_the_one_given_is_the_main_servers(monkeypatch: pytest.MonkeyPatch) -> None:
    accused = _environment(monkeypatch, 10**7).collect_receipt(_session("mysql")).violations
    assert [each.subject for each in accused] == ["redis", "memcached", "memcached"]


@pytest.mark.parametrize(("carried", "others", "accused"), [(999_000, 0, 0), (900_000, 0, 1), (900_000, 50_000, 0)])
def test_the_link_must_have_carried_the_bytes_of_all(
    carried: int, others: int, accused: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More than any single server counted is not enough; the main server's traffic with others than the load is not required."""
    found = _environment(monkeypatch, carried, others).collect_receipt(None, GOOD).violations
    assert sum(each.id == "link-carried-too-little" for each in found) == accused


@pytest.mark.parametrize(("session", "accused"), [(None, 0), (_session("mysql"), 1)])
def test_of_a_load_that_was_not_finished_too_the_cpus_must_have_polled(
    session: Receipt | None, accused: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as a load with a fault. Without a session, halts date from before the load, when polling had not been requested yet."""
    environment = _environment(monkeypatch, 10**7)
    monkeypatch.setattr(trial_environment, "view_receipt", lambda view: SessionView())
    monkeypatch.setattr(environment.main, "mismatches", lambda session: (), raising=False)
    monkeypatch.setattr(environment.server_group, "precheck", CollectedReceipt, raising=False)
    seen = IdleReceipt(level="polling", driver=None, governor=None, limit_us=0, halts_per_s={"1": 900.0})
    monkeypatch.setattr(environment, "idle", SimpleNamespace(collect_receipt=lambda: seen))
    begun = environment.precheck(session)
    assert begun.receipt.idle == seen
    assert len(begun.violations) == accused and all(each.id == "cpu-slept" for each in begun.violations)


# ---------------------------------------------------------------- filling


@pytest.mark.parametrize(("held", "fine"), [(1000, True), (999, False)])
def test_a_store_is_filled_when_it_says_so_itself(held: int, fine: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    class Engine:
        def __init__(self, job: object, launcher: Launcher) -> None: ...

        def __enter__(self) -> Engine:
            return self

        def __exit__(self, *_: object) -> None: ...

        def events(self) -> Iterator[TablesDone]:
            yield TablesDone(rows=1000, elapsed_ns=1)

    monkeypatch.setattr(fill, "EngineProcess", Engine)
    place = ServiceEndpoint(
        Service(user="", database="", target=TcpTarget(host="127.0.0.1", port=6379)),
        "redis",
        "7",
        1,
        count_keys=lambda: held,
    )
    keys = KeyValue(protocol="resp3", keys=1000)
    if fine:
        assert fill.fill_keys(place, keys, Launcher()) == 1000
    else:
        with pytest.raises(LabError, match="holds 999 keys, but 1000 were set"):
            fill.fill_keys(place, keys, Launcher())
