"""Targets of runs on hosts: the user's own server, and nodes of an existing Ray cluster."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from tests.shipped import load_shipped

from howfar.cli import on_hosts
from howfar.cli.on_hosts import HostOptions, check_plan, find_roles, find_user_server
from howfar.cli.run import run
from howfar.errors import HowfarError, LabError, PlanError, UsageError
from howfar.fleet import cluster as clusters
from howfar.fleet.hosts_file import parse_hosts
from howfar.fleet.roles import RoleHosts, set_role
from howfar.plan.load import Override, load_plan

pytest.importorskip("ray", reason="Ray is not installed (./setup --tests brings it)")

from howfar.fleet.load import LateStart
from howfar.fleet.ray_cluster import hosts_from_nodes, parse_cluster_address
from howfar.fleet.scale_out import SERVICE_NS, ScaleOutLoad, client_counts, compare_division, repeat_if_late
from howfar.fleet.user_server import UserServer, find_server_host

FOUR = "".join(f'[hosts.{name}]\naddress = "10.0.0.{number}"\n' for number, name in enumerate("abcd", 1))
TWO = '[hosts.a]\naddress = "10.0.0.1"\n[hosts.b]\naddress = "10.0.0.2"\n'


def _given(dsn: str) -> UserServer:
    found = find_user_server(HostOptions("hosts.toml", dsn=dsn), print)
    assert found is not None
    return found


def test_a_dsn_is_an_address_and_an_account_without_its_password(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOWFAR_PASSWORD", "a secret")
    given = _given("mysql://me@10.0.0.2:3307/shop")
    assert (given.address, given.port, given.database, given.login.user) == ("10.0.0.2", 3307, "shop", "me")
    assert given.login.password == "a secret" and "a secret" not in repr(given)
    assert not given.login.consent.fetch_server_key, "the key of whoever answers is taken only where its owner says so"
    assert find_server_host(given, parse_hosts(TWO)) == "b"


def test_a_server_by_its_name_is_on_the_host_that_has_its_address(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "socket.getaddrinfo", lambda host, port, **_: [(2, 1, 6, "", ({"db.example": "10.0.0.2"}[host], port))]
    )
    assert find_server_host(_given("mysql://me@db.example/shop"), parse_hosts(TWO)) == "b"


@pytest.mark.parametrize(
    ("dsn", "word"),
    [
        ("mysql://me:secret@10.0.0.2/shop", "password"),
        ("mysql:///run/mysqld/mysqld.sock?user=me", "IPv4 address"),
        ("mysql://me@10.0.0.2/shop?ssl-mode=REQUIRED", "plain"),
        ("mysql://me@[::1]/shop", "IPv4 address"),
    ],
)
def test_a_server_that_other_hosts_cannot_reach_alike_is_refused(dsn: str, word: str) -> None:
    with pytest.raises(UsageError, match=word):
        _given(dsn)


def test_a_server_on_none_of_the_hosts_is_refused() -> None:
    with pytest.raises(UsageError, match=r"no host .* 10\.9\.9\.9"):
        find_server_host(_given("mysql://me@10.9.9.9/shop"), parse_hosts(TWO))


@pytest.mark.parametrize(
    ("name", "word"),
    [
        ("compression", "contents"),
        ("encryption", "plain sessions"),
        ("cluster-reads", "replicate"),
    ],
)
def test_what_needs_a_server_of_howfars_own_is_refused(name: str, word: str) -> None:
    assert_needs_own_server(name, word)


def assert_needs_own_server(name: str, word: str) -> None:
    with pytest.raises(PlanError, match=word):
        check_plan(load_shipped(name).plan, _given("mysql://me@10.0.0.2/shop"))


SHARED = Override("--path", ("factors", "path"), ("remote",))


@pytest.mark.parametrize(
    ("place", "clients", "overrides", "word"),
    [
        (None, "a,x", [SHARED], "no host is called 'x'"),
        ("client=x", None, [], "no host is called 'x'"),
        ("server=b", "a,c", [], "path remote only"),
        ("server=b", "a,c,d", [SHARED], "share 2 connections"),
    ],
)
def test_roles_that_cannot_be_are_refused_before_a_host_is_joined(
    place: str | None, clients: str | None, overrides: list[Override], word: str, tmp_path: Path
) -> None:
    (tmp_path / "hosts.toml").write_text(FOUR)
    words = [word for each in overrides for word in (each.option, each.option_value)]
    words += [] if place is None else ["--place", place]
    words += [] if clients is None else ["--clients", clients]
    answer = CliRunner().invoke(run, ["paths", "--quick", "--on", str(tmp_path / "hosts.toml"), *words])
    assert isinstance(answer.exception, HowfarError) and word in answer.exception.message


def test_a_command_that_joins_the_hosts_itself_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(clusters, "keep_up", lambda cluster: nullcontext())
    monkeypatch.setattr(clusters, "enter", lambda cluster: 0)
    (tmp_path / "hosts.toml").write_text(TWO)
    for is_up in (False, True):
        monkeypatch.setattr(clusters.FileCluster, "is_up", lambda self, is_up=is_up: is_up)
        assert on_hosts.enter_cluster(str(tmp_path / "hosts.toml"))[1] == 0
        assert ("joining 2 hosts for this command only" in capsys.readouterr().err) is not is_up


def test_the_example_of_several_clients_is_one() -> None:
    plan = load_plan("paths", True, [SHARED]).plan
    assert find_roles(plan, parse_hosts(FOUR), None, "a,c", None) == RoleHosts("a", "b", other_clients=("c",))


def test_a_role_that_is_taken_is_not_given_twice() -> None:
    assert set_role("client=a", "server", "b") == "client=a,server=b"
    with pytest.raises(UsageError, match="the server is on host b"):
        set_role("server=a", "server", "b")


@pytest.mark.parametrize("option", ["--place", "--clients", "--dsn", "--password-file"])
def test_what_goes_with_hosts_needs_hosts(option: str) -> None:
    answer = CliRunner().invoke(run, ["paths", option, "x"])
    assert isinstance(answer.exception, UsageError) and "--on" in answer.exception.advice


def test_a_program_of_this_machine_is_none_of_a_hosts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("howfar.paths.path._chosen_programs", {})
    answer = CliRunner().invoke(run, ["hops", "--on", "hosts.toml", "--hop-binary", "haproxy=/bin/true"])
    assert isinstance(answer.exception, UsageError) and "PATH of the host" in answer.exception.advice


def test_clients_double_up_to_all() -> None:
    assert [client_counts(number) for number in (1, 2, 4, 6)] == [(1,), (1, 2), (1, 2, 4), (1, 2, 4, 6)]


def _node(address: str, name: str, *resources: str, alive: bool = True) -> dict[str, Any]:
    return {
        "Alive": alive,
        "NodeManagerAddress": address,
        "NodeManagerHostname": name,
        "Resources": dict.fromkeys(resources, 1.0),
    }


def test_nodes_are_hosts_by_name_with_the_roles_that_their_resources_name() -> None:
    file = hosts_from_nodes(
        [
            _node("10.0.0.3", "db.example", "role:server"),
            _node("10.0.0.1", "load"),
            _node("10.0.0.2", "load"),
            _node("10.0.0.4", "gone", alive=False),
            _node("10.0.0.5", "between", "role:hop", "role:application"),
        ]
    )
    assert file.hosts["between"].roles == ("hop", "application")
    assert {name: host.address for name, host in file.hosts.items()} == {
        "node-10-0-0-1": "10.0.0.1",
        "node-10-0-0-2": "10.0.0.2",
        "db": "10.0.0.3",
        "between": "10.0.0.5",
    }
    assert file.hosts["db"].roles == ("server",) and "client" in file.hosts["node-10-0-0-1"].roles


def test_a_node_that_has_no_name_of_its_own_takes_none_of_another() -> None:
    """A name made from the address stays with its node, whatever nodes join or leave."""
    names = {"10.0.0.1": "load", "10.0.0.2": "node-1", "10.0.0.3": "load", "10.0.0.4": "node-10-0-0-1"}
    file = hosts_from_nodes([_node(address, name) for address, name in names.items()])
    assert {name: host.address for name, host in file.hosts.items()} == {
        "node-10-0-0-1": "10.0.0.1",
        "node-1": "10.0.0.2",
        "node-10-0-0-3": "10.0.0.3",
        "node-10-0-0-4": "10.0.0.4",
    }


@pytest.mark.parametrize(
    "nodes",
    [
        [],
        [_node("10.0.0.1", "a")],
        [_node("127.0.0.1", "a"), _node("10.0.0.2", "b")],
        [_node("10.0.0.1", "a", "role:king"), _node("10.0.0.2", "b")],
    ],
)
def test_a_cluster_without_two_nodes_that_reach_each_other_is_refused(nodes: list[dict[str, Any]]) -> None:
    with pytest.raises(LabError):
        hosts_from_nodes(nodes)


@pytest.mark.parametrize("where", ["ray://", "ray://host", "ray://host:port"])
def test_an_address_is_host_and_port(where: str) -> None:
    with pytest.raises(UsageError, match="ray://"):
        parse_cluster_address(where)


def _load(p50_ns: int = 1, p99_ns: int = 1) -> ScaleOutLoad:
    return ScaleOutLoad(1.0, p50_ns, p99_ns, 0.1, 0.1, 0, 0, None, 0.0)


def test_connections_divided_over_clients_have_the_times_of_one_client_block_by_block() -> None:
    ones = [_load(round(5e6 * slow), round(6e6 * slow)) for slow in (1.0, 1.1, 1.3, 1.05)]
    four = [_load(round(5e6 * slow), round(6.6e6 * slow)) for slow in (1.0, 1.1, 1.3, 1.05)]
    found = compare_division(4, 64, {(SERVICE_NS, 1): ones, (SERVICE_NS, 4): four}, Counter({(SERVICE_NS, 4): 2}))
    assert (found.clients, found.connections, found.void) == (4, 64, 2)
    assert found.p50.value == pytest.approx(1, abs=1e-6) and found.p99.value == pytest.approx(1.1, rel=1e-6)
    assert found.p50.low is not None and found.p99.low is not None, "the blocks' own slowness is in no ratio"
    assert found.p50_ns == pytest.approx(5.375e6) and found.p99_ns == pytest.approx(6.45e6)


def test_a_measurement_that_a_host_began_late_is_made_again() -> None:
    load = _load()

    def late(times: int) -> Callable[[], ScaleOutLoad]:
        fates = iter([LateStart("host b began 86.8 ms late", "")] * times)

        def measured() -> ScaleOutLoad:
            for fate in fates:
                raise fate
            return load

        return measured

    assert repeat_if_late(late(0)) == (load, 0) and repeat_if_late(late(3)) == (load, 3)
    with pytest.raises(LateStart, match="host b"):
        repeat_if_late(late(4))


def test_a_server_is_named_once() -> None:
    with pytest.raises(UsageError, match="--dsn and --server both name a server"):
        on_hosts.check_options(HostOptions("hosts.toml", None, None, "mysql://u@10.0.0.2/d", None), (), {"--server"})
