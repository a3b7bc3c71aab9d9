"""What a hosts file may contain, and how errors in it are refused."""

from __future__ import annotations

import threading

import pytest
from click.testing import CliRunner
from tests.shipped import skip_without

from howfar.cli.run import run
from howfar.errors import LabError, UsageError
from howfar.fleet.clocks import ClockServer, choose_best_offset, read_clocks
from howfar.fleet.hosts_file import parse_cpus, parse_hosts
from howfar.fleet.roles import (
    RoleHosts,
    add_client_role,
    assign_hosts,
    can_swap,
    check_hop,
    with_clients,
    with_replicas,
)
from howfar.fleet.ship import check_versions

TWO = """
[hosts.a]
address = "10.0.0.1"
ssh = "local"
roles = ["client"]
[hosts.b]
address = "10.0.0.2"
cpus = "0-2,8"
"""


def test_a_file_says_who_may_be_what() -> None:
    file = parse_hosts(TWO)
    assert file.with_role("client") == ("a", "b") and file.with_role("server") == ("b",)
    assert file.hosts["a"].is_local and not file.hosts["b"].is_local
    assert parse_cpus("0-2,8") == (0, 1, 2, 8)


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("[hosts", "hosts.toml:1: malformed TOML"),
        ("", "hosts"),
        (TWO.replace("10.0.0.2", "10.0.0.1"), "one address"),
        (TWO.replace("10.0.0.2", "127.0.0.1"), "cannot reach"),
        (TWO.replace("10.0.0.2", "db.example"), "IPv4"),
        (TWO.replace("0-2,8", "0-x"), "list of CPUs"),
        (TWO.replace('"client"', '"king"'), "roles"),
        (TWO.replace("hosts.b", "hosts.B"), "no name"),
        (TWO + 'ssh = "local"', "both this machine"),
        (TWO + 'ssh = "root@\'x"', "no list of arguments"),
        (TWO + "zone = 1", "zone"),
        ('address = "10.0.0.9"\n' + TWO, "has the address"),
        (TWO + 'password = "x"', r"no key hosts\.b\.password"),
        (TWO.replace('address = "10.0.0.2"', 'adress = "10.0.0.2"'), r"no key hosts\.b\.adress"),
        (TWO.replace("10.0.0.2", "db.example"), r"hosts\.b\.address: give an IPv4 address"),
    ],
)
def test_what_cannot_be_is_refused_by_name(text: str, word: str) -> None:
    with pytest.raises(UsageError, match=word):
        parse_hosts(text)


def test_a_clock_that_is_closed_leaves_no_thread() -> None:
    earlier = set(threading.enumerate())
    clock = ClockServer("127.0.0.1")
    (serving,) = set(threading.enumerate()) - earlier
    read_clocks("127.0.0.1", clock.port)
    clock.close()
    serving.join(10)
    assert not serving.is_alive()


def test_the_quickest_ping_bounds_the_offset() -> None:
    # Their clock is 5 s ahead; the answer to the second ping took 3 µs longer than the question.
    offset = choose_best_offset(
        [(0, 5_000_400_000, 900_000), (1_000_000, 5_001_001_000, 1_005_000), (2_000_000, 5_002_700_000, 2_800_000)]
    )
    assert offset.bound_ns == 2_500
    assert abs(offset.offset_ns - 5_000_000_000) <= offset.bound_ns
    assert offset.is_significant


def test_other_versions_are_refused_and_another_patch_of_python_is_not() -> None:
    ours = {"howfar": "0.1.0", "ray": "2.60.0", "python": "3.11.7"}
    check_versions("b", {**ours, "python": "3.11.2"}, ours)
    for what, theirs in (("howfar", "0.2.0"), ("ray", "2.59.0"), ("python", "3.12.1")):
        with pytest.raises(LabError, match=f"host b has {what} {theirs}"):
            check_versions("b", {**ours, what: theirs}, ours)


def test_who_may_be_both_is_left_for_the_other_role() -> None:
    assert assign_hosts(parse_hosts(TWO), None) == RoleHosts(client="a", server="b")
    assert assign_hosts(parse_hosts(TWO), "server=b") == RoleHosts(client="a", server="b")
    both = TWO.replace('roles = ["client"]\n', "")
    assert assign_hosts(parse_hosts(both), "client=b") == RoleHosts(client="b", server="a")


def test_who_is_named_for_something_else_is_taken_last() -> None:
    file = parse_hosts(THREE)
    assert assign_hosts(file, "server=a,replica=b") == RoleHosts("c", "a", replicas=("b",))
    assert assign_hosts(file, None, clients="a,b") == RoleHosts("a", "c")


@pytest.mark.parametrize(
    ("word", "what"),
    [
        ("server=a", "may not be the server"),
        ("client=c", "no host is called 'c'"),
        ("hop=a", "may not be the hop"),
        ("hop=b", "no host .* left to be the server"),
        ("hop=b,hop=b", "names hop twice"),
        ("application=a", "the plan has none"),
        ("client", "not of the form"),
        ("client=b", "no host .* left to be the server"),
    ],
)
def test_a_place_that_cannot_be_is_refused(word: str, what: str) -> None:
    with pytest.raises(UsageError, match=what):
        assign_hosts(parse_hosts(TWO), word)


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        (("--on", "hosts.toml", "--rtt", "1ms"), "between your own hosts it is measured"),
        (("--on", "hosts.toml", "--rate", "1gbit"), "between your own hosts it is measured"),
        (("--on", "hosts.toml", "--replica-rtt", "1ms"), "between your own hosts it is measured"),
        (("--on", "hosts.toml", "--distances", "three-zones"), "between your own hosts it is measured"),
        (("--place", "client=a"), "--on"),
    ],
)
def test_a_real_link_is_not_set(arguments: tuple[str, ...], what: str) -> None:
    if {"--replica-rtt", "--distances"} & set(arguments):
        skip_without("replication")
    done = CliRunner().invoke(run, ["paths", *arguments], standalone_mode=False)
    assert isinstance(done.exception, UsageError) and what in done.exception.message + done.exception.advice


THREE = "".join(f'[hosts.{name}]\naddress = "10.0.0.{number}"\n' for number, name in enumerate("abc", 1))


@pytest.mark.parametrize(
    ("word", "count", "local", "replicas"),
    [
        (None, 0, True, ()),
        (None, 1, False, ("c",)),
        (None, 2, True, ("c", "a")),
        ("client=a,server=c", 1, False, ("b",)),
        ("replica=a,server=b", 1, True, ("a",)),
    ],
)
def test_replicas_are_on_hosts_of_their_own_the_clients_last(
    word: str | None, count: int, local: bool, replicas: tuple[str, ...]
) -> None:
    file = parse_hosts(THREE)
    assert with_replicas(assign_hosts(file, word), file, count, local).replicas == replicas


@pytest.mark.parametrize(
    ("word", "count", "local"),
    [
        ("replica=b,server=b", 1, True),
        ("replica=a,client=a", 1, False),
        ("replica=c", 0, True),
        ("replica=c", 2, True),
        (None, 2, False),
    ],
)
def test_a_replica_without_a_host_is_refused(word: str | None, count: int, local: bool) -> None:
    file = parse_hosts(THREE)
    with pytest.raises(UsageError):
        with_replicas(assign_hosts(file, word), file, count, local)


@pytest.mark.parametrize(
    ("word", "chosen"),
    [
        ("hop=a", RoleHosts("b", "c", hop="a")),
        ("client=a,hop=c,server=b", RoleHosts("a", "b", hop="c")),
        (None, RoleHosts("a", "b")),
    ],
)
def test_a_hop_has_a_host_only_where_it_is_named(word: str | None, chosen: RoleHosts) -> None:
    file = parse_hosts(THREE)
    found = assign_hosts(file, word)
    assert found == chosen and can_swap(found, file) == (chosen.hop is None)
    assert with_clients(found, file, found.client) == chosen, "as a run that goes on names them"
    check_hop(found, ["remote", "haproxy"])


@pytest.mark.parametrize(
    ("word", "paths"),
    [
        ("hop=b,server=b", ["haproxy"]),
        ("hop=a,client=a", ["haproxy"]),
        ("hop=c,replica=c", ["haproxy"]),
        ("hop=c", ["remote", "sidecar", "pgbouncer", "forwarded-socket", "ssh"]),
    ],
)
def test_a_hop_without_a_host_or_a_program_is_refused(word: str, paths: list[str]) -> None:
    with pytest.raises(UsageError):
        check_hop(assign_hosts(parse_hosts(THREE), word), paths)


def test_no_hop_is_a_replica_or_a_further_client() -> None:
    file = parse_hosts(THREE)
    place = assign_hosts(file, "hop=c")
    for names in ("a,c", "c"):
        with pytest.raises(UsageError):
            with_clients(place, file, names)
    with pytest.raises(UsageError, match="0 hosts are left"):
        with_replicas(place, file, 1, is_local_only=False)


def test_the_client_of_pages_is_an_application() -> None:
    text = TWO.replace('"client"', '"application"')
    file = add_client_role(parse_hosts(text))
    for word in (None, "application=a,server=b", "client=a", "application=a"):
        assert assign_hosts(file, word, is_application=True) == RoleHosts("a", "b")
    assert assign_hosts(add_client_role(parse_hosts(TWO)), "application=a", is_application=True) == RoleHosts("a", "b")
    with pytest.raises(UsageError, match="the plan has none"):
        assign_hosts(parse_hosts(text), "application=a")
    with pytest.raises(UsageError, match="left to be the server"):
        assign_hosts(parse_hosts(text), None)
    with pytest.raises(UsageError, match="twice"):
        assign_hosts(file, "application=a,client=b", is_application=True)
