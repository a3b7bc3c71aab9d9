"""What a file of hosts may say, and how it is refused."""

from __future__ import annotations

import pytest

from howfar.errors import LabError, UsageError
from howfar.fleet.clocks import best
from howfar.fleet.hosts_file import parse_cpus, parse_hosts
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
        ("[hosts", "no TOML"),
        ("", "hosts"),
        (TWO.replace("10.0.0.2", "10.0.0.1"), "one address"),
        (TWO.replace("10.0.0.2", "127.0.0.1"), "cannot reach"),
        (TWO.replace("10.0.0.2", "db.example"), "IPv4"),
        (TWO.replace("0-2,8", "0-x"), "list of CPUs"),
        (TWO.replace('"client"', '"king"'), "roles"),
        (TWO.replace("hosts.b", "hosts.B"), "no name"),
        (TWO + 'ssh = "local"', "both this machine"),
        ('address = "10.0.0.9"\n' + TWO, "has the address"),
        (TWO + 'password = "x"', "password"),
    ],
)
def test_what_cannot_be_is_refused_by_name(text: str, word: str) -> None:
    with pytest.raises(UsageError, match=word):
        parse_hosts(text)


def test_the_quickest_ping_bounds_the_offset() -> None:
    # Theirs is 5 s ahead; the answer to the second ping took 3 µs longer to come back than the question there.
    offset = best(
        [(0, 5_000_400_000, 900_000), (1_000_000, 5_001_001_000, 1_005_000), (2_000_000, 5_002_700_000, 2_800_000)]
    )
    assert offset.bound_ns == 2_500
    assert abs(offset.offset_ns - 5_000_000_000) <= offset.bound_ns
    assert offset.is_seen


def test_other_versions_are_refused_and_another_patch_of_python_is_not() -> None:
    ours = {"howfar": "0.1.0", "ray": "2.60.0", "python": "3.11.7"}
    check_versions("b", {**ours, "python": "3.11.2"}, ours)
    for what, theirs in (("howfar", "0.2.0"), ("ray", "2.59.0"), ("python", "3.12.1")):
        with pytest.raises(LabError, match=f"host b has {what} {theirs}"):
            check_versions("b", {**ours, what: theirs}, ours)
