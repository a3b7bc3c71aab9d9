"""What a path accepts as its session: everything that could differ is checked."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import click
import pytest
from tests.made import build
from tests.shipped import skip_without_workload

from howfar.cli.hop_binary import hop_binary_option
from howfar.contract.server_receipt import HopsReceipt, SessionReceipt, SessionView
from howfar.contract.violation import violation
from howfar.errors import MissingError, PlanError, UsageError
from howfar.lab.connected_server import view_receipt
from howfar.paths import PATHS, ClientEndpoint, find_path, path_names, reason_not_carried
from howfar.paths.path import Path as NetworkPath
from howfar.paths.path import PathContext, find_program
from howfar.paths.user_proxies import USER_PROXIES, UserProxy
from howfar.plan.fitting import without_levels
from howfar.plan.sessions import SessionSpec
from howfar.plan.types import Plan
from howfar.runner import preflight
from howfar.runner.preflight import _check_paths, _uncarried_paths, _without_uncarried_paths

_SOCKET = ClientEndpoint(socket="/w/s.sock", peer_pid=77)
_REMOTE = ClientEndpoint(host="10.77.0.2", port=3306, expected_client_host="10.77.0.1", server_port=3306)
_GOOD_SOCKET = build(SessionReceipt, address_family="unix", peer_address="/w/s.sock", peer_pid=77)
_GOOD_REMOTE = build(SessionReceipt, address_family="inet", peer_address="10.77.0.2:3306")


def test_the_session_of_the_path_is_accepted() -> None:
    assert _GOOD_SOCKET.violations(_SOCKET, SessionSpec()) == ()
    assert _GOOD_REMOTE.violations(_REMOTE, SessionSpec()) == ()


@pytest.mark.parametrize(
    ("endpoint", "good", "change"),
    [
        (_SOCKET, _GOOD_SOCKET, {"address_family": "inet"}),
        (_SOCKET, _GOOD_SOCKET, {"peer_pid": 78}),
        (_SOCKET, _GOOD_SOCKET, {"peer_pid": None}),
        (_SOCKET, _GOOD_SOCKET, {"peer_address": "/w/other.sock"}),
        (_SOCKET, _GOOD_SOCKET, {"tls_version": "TLSv1.3"}),
        (_REMOTE, _GOOD_REMOTE, {"peer_address": "127.0.0.1:3306"}),
        (_REMOTE, _GOOD_REMOTE, {"address_family": "unix"}),
    ],
)
def test_any_other_session_is_a_violation(
    endpoint: ClientEndpoint, good: SessionReceipt, change: dict[str, Any]
) -> None:
    assert len(good.model_copy(update=change).violations(endpoint, SessionSpec())) == 1


def test_a_session_is_what_the_cell_asks_for() -> None:
    spec = SessionSpec(tls="1.3")
    good = _GOOD_REMOTE.model_copy(update={"tls_version": "TLSv1.3", "tls_client_version": "TLSv1.3"})
    assert good.violations(_REMOTE, spec) == ()
    for change in (
        {"tls_version": "TLSv1.2"},
        {"tls_client_version": None},
        {"tls_version": None},
    ):
        assert len(good.model_copy(update=change).violations(_REMOTE, spec)) == 1
    view = SessionView(host="10.77.0.1:51234", ssl_version="TLSv1.3", ssl_cipher="x", compression="OFF")
    assert view.violations(_REMOTE, spec) == ()
    for version in ("", "TLSv1.2"):
        assert len(view.model_copy(update={"ssl_version": version}).violations(_REMOTE, spec)) == 1


def test_the_servers_own_view_is_compared_too() -> None:
    good = SessionView(host="10.77.0.1:51234", ssl_version="", ssl_cipher="", compression="OFF")
    assert good.violations(_REMOTE, SessionSpec()) == ()
    for change in ({"host": "localhost"}, {"ssl_version": "TLSv1.3"}, {"compression": "ON"}):
        assert len(good.model_copy(update=change).violations(_REMOTE, SessionSpec())) == 1


def test_paths_are_found_by_name() -> None:
    assert path_names()[:6] == ("socket", "tcp", "remote", "forwarded-socket", "haproxy", "sidecar")
    assert all(name == find_path(name).name for name in path_names())
    with pytest.raises(PlanError):
        find_path("pigeon")


def test_whose_socket_is_forwarded_has_no_network_and_only_clients_on_a_second_machine_cross_the_link() -> None:
    assert {path.name for path in PATHS.values() if not path.networking} == {"forwarded-socket", "ssh"}
    assert all(path.crosses_link == (path.machines == 2) for path in PATHS.values())
    assert all(path.by_socket for path in PATHS.values() if not path.networking)


def test_a_server_that_a_hop_does_not_read_is_no_end_of_its_path() -> None:
    assert (
        reason_not_carried(find_path("pgbouncer"), ("mysql",))
        == "it carries postgresql only, and the server speaks mysql"
    )
    assert reason_not_carried(find_path("pgbouncer"), ("postgresql",)) is None
    assert reason_not_carried(find_path("remote"), ("mysql", "redis")) is None


def test_a_receipt_does_not_say_of_a_compressed_load_that_a_session_beside_it_is_not() -> None:
    view = SessionView(host="10.77.0.1:51234", ssl_version="TLSv1.3", ssl_cipher="x", compression="OFF")
    kept = view_receipt(view)
    assert "compression" not in kept.as_json() and kept.ssl_version == "TLSv1.3"
    assert kept.of is not None and "beside the load's" in kept.of


def test_a_hop_that_was_passed_by_is_found() -> None:
    carried = {"connections": 9, "connections_most": 8, "bytes_to_server": 1, "bytes_to_client": 1}
    assert HopsReceipt(carried={"client_side": carried}, connections=8).violations() == ()
    assert HopsReceipt(carried={"client_side": carried}).violations() == ()
    assert HopsReceipt(carried={"client_side": carried}, connections=9).violations() == (
        violation("hop-connections", hop="client side", carried=8, connections=9),
    )
    for direction in ("bytes_to_server", "bytes_to_client"):
        (found,) = HopsReceipt(carried={"client_side": {**carried, direction: 0}}, connections=8).violations()
        assert found == violation("hop-carried-nothing", hop="client side", quantity=direction.replace("_", " "))


def test_where_the_most_at_once_is_not_counted_all_connections_are() -> None:
    carried = {"connections": 7, "bytes_to_server": 1, "bytes_to_client": 1}
    assert HopsReceipt(carried={"server_side": carried}, connections=7).violations() == ()
    (found,) = HopsReceipt(carried={"server_side": carried}, connections=8).violations()
    assert found == violation("hop-connections", hop="server side", carried=7, connections=8)


@pytest.mark.parametrize("given", USER_PROXIES, ids=lambda given: given.name)
def test_the_configuration_of_a_given_proxy_names_both_ends(given: UserProxy) -> None:
    names = ("file", "work", "listen", "port", "server", "server_port", "user", "password", "database", "pool")
    facts = {name: f"<{name}>" for name in names}
    configuration = given.configuration.format(**facts)
    assert all(f"<{name}>" in configuration for name in ("listen", "port", "server", "server_port"))
    assert configuration.count("{") == configuration.count("}") and "<password>" not in "".join(given.arguments).format(
        **facts
    )


def _plan(factors: dict[str, Any], **more: Any) -> Plan:
    path = {"path": factors["path"][0]}
    fields = {"name": "hop", "question": "?", "workload": {}, "factors": factors, "baseline": path, **more}
    return Plan.model_validate(fields)


def test_a_path_that_does_not_carry_the_servers_protocol_is_left_out_and_the_last_one_refused() -> None:
    plan = _plan({"path": ["remote", "tcp", "pgbouncer"], "server": "mariadb"})
    left = without_levels(plan, {"path": _uncarried_paths(plan)})
    assert left.plan.factors.path == ("remote", "tcp")
    assert left.notes == ("left out: path pgbouncer: it carries postgresql only, and the server speaks mysql",)
    alone = _plan({"path": ["remote", "pgbouncer"], "server": "mariadb"})
    with pytest.raises(PlanError, match="nothing is left to compare"):
        without_levels(alone, {"path": _uncarried_paths(alone)})


def test_a_plan_of_which_one_path_is_left_is_refused_although_it_varies_more() -> None:
    skip_without_workload("key_value")
    plan = _plan(
        {"path": ["remote", "pgbouncer"], "server": "redis", "load": ["closed", "300/s"]},
        workload={"kind": "key_value"},
        baseline={"path": "remote", "load": "closed"},
    )
    with pytest.raises(PlanError, match=r"no path of plan .* is left to compare with remote"):
        _without_uncarried_paths(plan)


@pytest.mark.parametrize(
    ("factors", "workload", "why"),
    [
        ({"tls": ["off", "1.3"]}, {"db_ps_mode": "disable"}, "hides it there by TLS 1.3"),
        ({}, {}, "prepares its statements"),
    ],
)
def test_sessions_that_a_pooler_does_not_let_through_are_refused(
    monkeypatch: pytest.MonkeyPatch, factors: dict[str, Any], workload: dict[str, Any], why: str
) -> None:
    monkeypatch.setattr(preflight, "check_programs", lambda path: None)
    plan = _plan({"path": ["remote", "pgbouncer"], "server": "postgresql", **factors}, workload=workload)
    with pytest.raises(PlanError, match=why):
        _check_paths(plan)


def test_a_given_program_is_taken_and_what_is_none_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("howfar.paths.path._chosen_programs", {})
    (tmp_path / "envoy").write_text("#!/bin/sh\n")
    (tmp_path / "envoy").chmod(0o755)
    command = click.Command("lab")
    hop_binary_option(command)
    for wrong in ("pigeon=/bin/true", "envoy", f"envoy={tmp_path}"):
        with pytest.raises(UsageError):
            command.make_context("lab", ["--hop-binary", wrong])
    command.make_context("lab", ["--hop-binary", f"envoy={tmp_path / 'envoy'}"])
    assert find_program("envoy") == str(tmp_path / "envoy")
    with pytest.raises(MissingError, match="pigeon was not found"):
        find_program("pigeon")


class _Context:
    """Stands in for a `PathContext` as far as a movable path needs it, with a separate host for the program."""

    def __init__(self, hop_address: str | None) -> None:
        self.hop_address = hop_address
        self.work, self.hop_port, self.server_port, self.service = Path("/w"), 23307, 23306, "redis"
        self.user = self.password = self.database = "sb"
        self.loopback_address, self.client_address, self.server_address = "127.0.0.1", "10.0.0.1", "10.0.0.2"
        self.sides: set[str] = set()
        self.written = ""

    def run_on(self, side: str, function: Any) -> Any:
        self.sides.add(side)
        return 100  # a program, its version, and how many files it may open

    def write(self, side: str, name: str, text: str) -> Path:
        self.sides.add(side)
        self.written += text
        return self.work / name

    def start(self, side: str, command: Any, log: str, *, as_user: int = 0) -> Any:
        self.sides.add(side)
        return SimpleNamespace(pid=1)

    def query(self, sql: str) -> list[dict[str, Any]]:
        return [{"rolpassword": "SCRAM"}]

    def wait_until(self, process: Any, log: str, ready: Any) -> None: ...


_MOVABLE = [path for path in PATHS.values() if path.movable]


@pytest.mark.parametrize("path", _MOVABLE, ids=lambda path: path.name)
def test_a_program_with_a_host_of_its_own_is_there_and_nowhere_else(path: NetworkPath) -> None:
    context = _Context("10.0.0.3")
    endpoint = path.open(cast(PathContext, context))
    assert context.sides == {"hop"} and [hop.label for hop in endpoint.hops] == ["hop_side"]
    assert (endpoint.host, endpoint.port, endpoint.expected_client_host) == ("10.0.0.3", 23307, "10.0.0.3")
    assert endpoint.server_port == 23306
    assert all(address in context.written for address in ("10.0.0.3", "10.0.0.2")) and "10.0.0.1" not in context.written


@pytest.mark.parametrize("path", _MOVABLE, ids=lambda path: path.name)
def test_without_one_it_is_where_the_path_says(path: NetworkPath) -> None:
    context = _Context(None)
    endpoint = path.open(cast(PathContext, context))
    (side,) = context.sides
    addresses = {"client": ("127.0.0.1", "10.0.0.1"), "server": ("10.0.0.2", "127.0.0.1")}
    assert (endpoint.host, endpoint.expected_client_host) == addresses[side]


def test_only_a_program_that_is_alone_and_has_tcp_on_both_sides_is_movable() -> None:
    assert {path.name for path in _MOVABLE} >= {"haproxy", "nutcracker", "pgbouncer-tcp", "envoy", "proxysql"}
    assert all(len(path.hops) == 1 and path.crosses_link and not path.by_socket for path in _MOVABLE)
    assert "pgbouncer-near" not in {path.name for path in _MOVABLE}, "its clients use its socket"
