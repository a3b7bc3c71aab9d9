"""What receipts report about hosts, and cases in which the clients and the server counted differently."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from tests.unit.fake_lab import finish, receipt

from howfar.analysis.hosts import HostNote, HostsSeen
from howfar.contract.environment import DataFacts, HostFacts, RunEnvironment
from howfar.contract.messages import Classes, KeyValue, LoadJob, Measuring, Ready, Sysbench, UnixTarget
from howfar.contract.receipt import StatementCounts
from howfar.engine.run_load import LoadOutcome
from howfar.fleet.hosts_file import parse_hosts
from howfar.fleet.roles import RoleHosts, assign_hosts, can_swap
from howfar.lab.counts import NOT_COUNTED, compare_counts
from howfar.lab.network import Shares
from howfar.report.frame import host_note_lines
from howfar.runner.loads.transactions import load_facts
from howfar.store.records import MachineLoad
from howfar.store.server_metrics import ServerMetrics
from howfar.testbed import LoadFacts

FILE = """
[hosts.a]
address = "10.0.0.1"
[hosts.b]
address = "10.0.0.2"
[hosts.c]
address = "10.0.0.3"
roles = ["server"]
"""


def test_cpus_shared_by_hosts_are_counted_once() -> None:
    testbed = pytest.importorskip("howfar.fleet.testbed", reason="Ray is not installed (./setup --tests installs it)")

    def load(busy: float | None) -> MachineLoad:
        return MachineLoad(psi_cpu_some_share=0, psi_io_some_share=0, steal_share=0, load_average_1m=0, busy_cpus=busy)

    assert testbed.total_busy_cpus(["x", "y"], [load(0.5), load(2.0)]) == 2.5
    assert testbed.total_busy_cpus(["x", "x"], [load(2.0), load(2.0)]) == 2.0
    assert testbed.total_busy_cpus(["x", "y"], [load(0.5), load(None)]) is None


def _environment(boots: dict[str, str], clients: tuple[str, ...]) -> RunEnvironment:
    """The environment of a testbed of hosts with two CPUs each; the last one has the server."""
    testbed = pytest.importorskip("howfar.fleet.testbed", reason="Ray is not installed (./setup --tests installs it)")
    roles = RoleHosts(clients[0], list(boots)[-1], clients[1:])
    facts = {name: HostFacts(boot_id=boot, cpu_count=2) for name, boot in boots.items()}
    fake_hosts = SimpleNamespace(
        _initial_roles=roles,
        _facts=facts,
        _shares={name: Shares((0, 1), (0, 1)) for name in boots},
        request=SimpleNamespace(placement="machines"),
        _store=SimpleNamespace(data=DataFacts(), descriptors=None),
        distances=(),
        swaps=False,
        warnings=[],
    )
    environment: RunEnvironment = testbed.Hosts.environment(fake_hosts)
    return environment


def test_the_cpus_of_a_load_are_those_of_all_clients() -> None:
    """The load's CPU time is a sum over clients: divided by one client's CPUs, it would make four clients at 25 % look saturated."""
    several = _environment({"a": "1", "b": "2", "c": "3", "s": "4"}, ("a", "b", "c"))
    assert several.client_cpus == [1000, 1001, 2000, 2001, 3000, 3001] and several.server_cpus == [0, 1]
    assert several.cpu_count == 8, "equals the number of CPUs whose utilization is known"
    one = _environment({"a": "1", "s": "2"}, ("a",))
    assert one.client_cpus == [1000, 1001] and one.cpu_count == 4
    only_server = _environment({"s": "1"}, ("s",))
    assert only_server.client_cpus == [0, 1] and only_server.cpu_count == 2
    same = _environment({"a": "1", "b": "1", "s": "1"}, ("a", "b"))
    assert same.client_cpus == [1000, 1001] and same.cpu_count == 2, (
        "the CPUs of a machine with two hosts are counted once"
    )


@pytest.mark.parametrize(
    ("clients", "exclusive", "differ"),
    [(1005, True, False), (994, True, False), (990, True, True), (10, False, False), (1010, False, True)],
)
def test_sums_that_differ_by_more_than_half_a_percent_are_a_violation(
    clients: int, exclusive: bool, differ: bool
) -> None:
    """If others may use the server, only a lower count by the server is a violation."""
    counted, sentences = compare_counts(
        "mysql", ServerMetrics(statements=1000), LoadFacts(answered_statements=clients), exclusive
    )
    assert bool(sentences) == differ
    rule = "equal" if exclusive else "at least"
    assert counted == StatementCounts(of="statements", clients=clients, server=1000, rule=rule)


@pytest.mark.parametrize(
    ("metrics", "facts", "unit", "server"),
    [
        (ServerMetrics(statements=12, requests=40), {"answered_statements": 12}, "statements", 12),
        (ServerMetrics(statements=10, lookup_hits=7), {"answered_statements": 10}, "statements", 10),
        (
            ServerMetrics(commits=9, transactions=10),
            {"answered_statements": 160, "ended_transactions": 10},
            "transactions",
            10,
        ),
        (ServerMetrics(requests=30), {"round_trips": {"mysql": 28}}, "requests", 30),
    ],
    ids=["redis", "memcached", "postgresql", "pages"],
)
def test_the_counts_are_compared_in_the_unit_that_the_server_counts(
    metrics: ServerMetrics, facts: dict[str, Any], unit: str, server: int
) -> None:
    counted, sentences = compare_counts("mysql", metrics, LoadFacts(**facts), True)
    assert isinstance(counted, StatementCounts) and (counted.of, counted.server) == (unit, server) and not sentences


@pytest.mark.parametrize(
    ("metrics", "answered"),
    [(ServerMetrics(), 5), (ServerMetrics(requests=9, commits=5), 5), (ServerMetrics(statements=6), None)],
    ids=["no counter", "other counters", "a lost connection"],
)
def test_incomparable_counts_are_reported_as_not_counted(metrics: ServerMetrics, answered: int | None) -> None:
    assert compare_counts("mysql", metrics, LoadFacts(answered_statements=answered), True) == (NOT_COUNTED, ())


@pytest.mark.parametrize(
    ("workload", "classes", "answered", "ended"),
    [
        (Sysbench(), Classes(read=1400, write=0, other=200), 1650, 103),
        (Sysbench(skip_trx=True), Classes(read=1600, write=0, other=0), 1650, 1650),
        (Sysbench(kind="oltp_delete"), Classes(read=0, write=1500, other=100), 1650, 1650),
        (KeyValue(protocol="resp3", multi_get=1, pipeline=4), Classes(read=0, write=0, other=0), 6600, 6600),
        (KeyValue(protocol="memcached_meta", multi_get=1), Classes(read=0, write=0, other=0), None, None),
    ],
    ids=["transactions", "autocommit", "nothing to delete", "commands", "multi-get counted per key"],
)
def test_answers_are_counted_as_the_server_counts_them(
    workload: Sysbench | KeyValue, classes: Classes, answered: int | None, ended: int | None
) -> None:
    """100 transactions of 16 statements in the window, 50 answers outside it."""
    finished = finish(10**9, 100).model_copy(update={"queries": 1600, "answered": 1650, "classes": classes})
    account = "d" if isinstance(workload, Sysbench) else ""  # key-value stores have no accounts here
    ready = Ready(receipt=receipt("/s"), connections=4, prepared_statements=1, connect_ns=1)
    job = LoadJob(
        target=UnixTarget(path="/s"),
        user=account,
        database=account,
        workload=workload,
        connections=4,
        seed=1,
        warmup_ns=0,
        measure_ns=10**9,
    )
    outcome = LoadOutcome(ready, Measuring(unix_time_ns=0, warmup_transactions=0), (), finished)
    facts = load_facts(outcome, job, commits_per_transaction=0)
    assert (facts.answered_statements, facts.ended_transactions) == (answered, ended)


@pytest.mark.parametrize(("placement", "swap"), [("client=a,server=b", True), ("client=a,server=c", False)])
def test_hosts_swap_only_if_each_may_have_both_roles(placement: str, swap: bool) -> None:
    file = parse_hosts(FILE)
    roles = assign_hosts(file, placement)
    assert can_swap(roles, file) is swap
    assert (roles.swapped.client, roles.swapped.server) == (roles.server, roles.client)


def test_a_host_that_limited_the_load_is_named() -> None:
    def note(**facts: Any) -> HostNote:
        return HostNote(host="b", trials=2, of=9, **facts)

    notes = (note(what="late", most=3e6), note(what="clipped", most=4e6), note(what="limited", most=0.97))
    late, clipped, limited = host_note_lines(HostsSeen(notes=notes, swapped=None, machines=None))
    assert late.startswith("host b began late in 2 of 9 trials, by at most 3ms")
    assert "99th percentile up to 4ms" in clipped and "97% of a CPU" in limited
