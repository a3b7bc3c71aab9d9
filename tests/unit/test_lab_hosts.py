"""CPU shares, and how a process is put on a host."""

from __future__ import annotations

import os

from hypothesis import given
from hypothesis import strategies as st

from howfar.lab.network import Host, format_cpus, share_cpus, usable_cpus

_CPUS = st.lists(st.integers(0, 4096), min_size=1, max_size=256, unique=True)


@given(_CPUS)
def test_hosts_get_equal_shares_that_overlap_only_on_one_cpu(cpus: list[int]) -> None:
    shares = share_cpus(cpus)
    assert len(shares.client) == len(shares.server) >= 1
    assert set(shares.client) | set(shares.server) <= set(cpus)
    assert shares.shared == (len(cpus) == 1)
    left = set(cpus) - set(shares.client) - set(shares.server)
    assert len(left) == (len(cpus) % 2 if len(cpus) > 1 else 0)


def test_neighbours_stay_together() -> None:
    shares = share_cpus((0, 4, 1, 5))
    assert shares.server == (0, 4)
    assert shares.client == (1, 5)


def test_usable_cpus_are_those_we_may_use() -> None:
    assert set(usable_cpus()) == os.sched_getaffinity(0)


def test_a_host_with_a_network_is_entered_by_descriptor() -> None:
    launcher = Host("client", 9).launcher((1, 3))
    assert launcher.prefix == ("setsid", "nsenter", "--net=/proc/self/fd/9", "--", "taskset", "-c", "1,3")
    assert launcher.pass_fds == (9,)


def test_without_a_sandbox_each_process_has_its_own_death_signal() -> None:
    launcher = Host("server", None).launcher((0,), foreground=True)
    assert launcher.prefix == ("setpriv", "--pdeathsig", "KILL", "--", "taskset", "-c", "0")
    assert launcher.pass_fds == ()


def test_cpus_are_written_as_taskset_reads_them() -> None:
    assert format_cpus((0, 2, 11)) == "0,2,11"
