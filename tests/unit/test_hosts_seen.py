"""What receipts say of hosts, and where the clients and the server counted differently."""

from __future__ import annotations

from typing import Any

import pytest

from howfar.analysis.hosts import HostNote, HostsSeen
from howfar.fleet.hosts_file import parse_hosts
from howfar.fleet.place import find_place, may_swap
from howfar.fleet.testbed import count_violations
from howfar.report.frame import host_lines

FILE = """
[hosts.a]
address = "10.0.0.1"
[hosts.b]
address = "10.0.0.2"
[hosts.c]
address = "10.0.0.3"
roles = ["server"]
"""


@pytest.mark.parametrize(("counted", "answered", "void"), [(1000, 1005, False), (1000, 994, False), (1000, 990, True)])
def test_sums_that_differ_by_more_than_half_a_percent_are_a_violation(counted: int, answered: int, void: bool) -> None:
    assert bool(count_violations({"Com_stmt_execute": counted}, answered)) == void


@pytest.mark.parametrize(
    ("counters", "answered"), [({}, 5), ({"Com_stmt_execute": 0}, 5), ({"Com_stmt_execute": 9}, None)]
)
def test_what_is_not_counted_proves_nothing(counters: dict[str, int], answered: int | None) -> None:
    assert count_violations(counters, answered) == ()


@pytest.mark.parametrize(("word", "swap"), [("client=a,server=b", True), ("client=a,server=c", False)])
def test_only_hosts_that_may_be_both_swap_roles(word: str, swap: bool) -> None:
    file = parse_hosts(FILE)
    place = find_place(file, word)
    assert may_swap(place, file) is swap
    assert (place.swapped.client, place.swapped.server) == (place.server, place.client)


def test_a_host_that_held_the_load_back_is_named() -> None:
    def note(**facts: Any) -> HostNote:
        return HostNote(host="b", trials=2, of=9, **facts)

    notes = (note(what="late", most=3e6), note(what="clipped", most=4e6), note(what="limited", most=0.97))
    late, clipped, limited = host_lines(HostsSeen(notes=notes, swapped=None, machines=None))
    assert late.startswith("host b began late in 2 of 9 trials, by 3ms at most")
    assert "4ms at the worst" in clipped and "97% of a CPU" in limited
