"""Replication, pages and programs on the path between the user's own hosts."""

from __future__ import annotations

from pathlib import Path

import pytest

from howfar.lab.idle import cannot_poll
from howfar.lab.servers.kinds import find_server
from howfar.runner.preflight import no_cluster
from howfar.store.records import Run, TrialStatus
from howfar.store.run_file import read_run
from tests.lab.howfar_runs import came_through, known
from tests.lab.test_hosts import among_hosts, counted, need, needs_hosts

pytestmark = [
    pytest.mark.alone,
    pytest.mark.lab,
    pytest.mark.usefixtures("namespaces", "mariadb"),
    needs_hosts,
]
_TIMING = """
[timing]
warmup = "100ms"
measure = "500ms"
min_blocks = 2
max_blocks = 2
target = "0.1%"
time_budget = "30min"
controls = false
"""
_REPLICATION = f"""
name = "replication"
question = "What does it cost to wait for another host?"
[workload]
kind = "single_row_inserts"
[data]
tables = 1
table_size = 1000
[factors]
path = "socket"
threads = 2
server = "mariadb"
replication = ["none", "async", "after-sync"]
replica_rtt = ["0ms", "85ms"]
replica_rate = "1gbit"
durability = "off"
[baseline]
replication = "none"
{_TIMING}
"""
_CLUSTER = f"""
name = "cluster"
question = "What does it cost to agree with two other hosts?"
[workload]
kind = "single_row_updates"
[data]
tables = 1
table_size = 1000
[factors]
path = "socket"
threads = 1
server = "mariadb"
replication = ["none", "galera"]
replicas = 2
distances = ["same-rack", "two-near-one-far"]
replica_rate = "1gbit"
durability = "off"
[baseline]
replication = "none"
{_TIMING}
"""
_PAGE = f"""
name = "page"
question = "One machine with sockets, or two with a network?"
[workload]
kind = "page"
[data]
tables = 1
table_size = 1000
[keys]
count = 100
[pages.small]
point_selects = 2
redis_gets = 2
memcached_gets = 1
[factors]
page = "small"
application = ["php", "engine"]
path = ["socket", "remote", "forwarded-socket"]
threads = 2
placement = "machines"
[baseline]
path = "socket"
application = "php"
{_TIMING}
"""
_HOPS = f"""
name = "hops"
question = "What does the program on the way cost?"
[workload]
kind = "oltp_point_select"
db_ps_mode = "disable"
[data]
tables = 1
table_size = 1000
[factors]
path = ["remote", "haproxy", "pgbouncer", "pgbouncer-near", "nutcracker"]
threads = 2
connect = ["persistent", "per-transaction"]
[baseline]
path = "remote"
connect = "persistent"
{_TIMING}
"""

_TOGETHER = f"""
name = "together"
question = "Encrypted, compressed, at a rate, with CPUs that poll: does it go together?"
[workload]
kind = "oltp_read_only"
db_ps_mode = "disable"
point_selects = 4
simple_ranges = 0
sum_ranges = 0
order_ranges = 0
distinct_ranges = 0
[data]
tables = 1
table_size = 1000
[factors]
path = ["tcp", "remote"]
threads = 4
tls = "1.3"
compression = "zlib"
load = "100/s"
idle = "polling"
[baseline]
path = "tcp"
{_TIMING}
"""


def _run(cache: Path, directory: Path, plan: str, options: str = "", hosts: tuple[str, ...] = ("a", "b")) -> Run:
    """Run a plan between hosts, with its report."""
    (directory / "plan.toml").write_text(plan)
    command = f"howfar run plan.toml --on hosts.toml {options} --out run.howfar"
    done = among_hosts(cache, directory, f"{command}; howfar report --md run.howfar >report.md", hosts)
    came_through(done.returncode, done.stderr)
    return read_run(directory / "run.howfar")


def _good(run: Run) -> list[str]:
    for trial in run.trials:
        print(trial.arm, trial.status, trial.void_reason)  # shown if the assertion fails
    return [trial.arm for trial in run.trials if trial.status is TrialStatus.OK]


@pytest.mark.thorough
def test_a_commit_waits_for_a_replica_on_another_host(cache: Path, tmp_path: Path) -> None:
    run = _run(cache, tmp_path, _REPLICATION, "--place client=a,server=b,replica=c", ("a", "b", "c"))
    assert len(set(_good(run))) == 4, "three modes over the one link that is there, and the baseline again"
    for trial in (trial for trial in run.trials if trial.status is TrialStatus.OK):
        mode = next(arm.factors["replication"] for arm in run.info.arms if arm.name == trial.arm)
        pair = known(trial.receipt.replication)
        assert ("replica1" in pair.links) == (mode != "none")
        assert counted(trial).rule == "at least", "its position is asked for meanwhile"
        assert ("c" in known(known(trial.receipt.idle).hosts)) == (mode != "none")
        roles = {use.role for use in known(trial.measured).cpu if use.cpu_ns > 0}
        assert {"client", "server"} <= roles
        if mode == "after-sync":
            assert "replica" in roles and pair.links["replica1"].real
            window = known(pair.window)
            before, after = (known(known(snapshot).primary) for snapshot in (window.before, window.after))
            assert known(after.yes_tx) > known(before.yes_tx)
    assert "to the replica is measured" in str(run.info.environment.not_as_requested)
    assert "semi-sync" in (tmp_path / "report.md").read_text()


@pytest.mark.thorough
def test_the_client_s_host_is_the_replica_where_there_is_no_third(cache: Path, tmp_path: Path) -> None:
    run = _run(cache, tmp_path, _REPLICATION.replace('"none", "async", "after-sync"', '"none", "after-commit"'))
    assert len(set(_good(run))) == 3
    roles = known(run.info.environment.roles)
    assert roles.replicas == [roles.client]


@pytest.mark.thorough
@pytest.mark.parametrize(("kind", "modes"), [("mariadb", {"galera"}), ("mysql", {"group", "group-leader"})])
def test_three_hosts_agree_on_each_commit_over_the_links_that_are_there(
    cache: Path, tmp_path: Path, kind: str, modes: set[str]
) -> None:
    need(kind)
    program = find_server(kind)
    if any(no_cluster(program, mode) for mode in modes):
        pytest.skip("no library for a cluster (./setup --clusters)")
    run = _run(
        cache,
        tmp_path,
        _CLUSTER,
        f"--server {program.path} --place client=c,server=b,replica=c,replica=a",
        ("a", "b", "c"),
    )
    assert len(set(_good(run))) == 2 + len(modes), "one distance, and the baseline again"
    agreed = {arm.name for arm in run.info.arms if arm.factors["replication"] in modes}
    for trial in (trial for trial in run.trials if trial.arm in agreed and trial.status is TrialStatus.OK):
        assert trial.measured is not None and trial.measured.transactions > 0
        cluster = known(trial.receipt.replication)
        assert set(cluster.links) == {"replica1", "replica2", "replica1-replica2"}
        assert all(link.real and known(link.rest_rtt_ns) > 0 for link in cluster.links.values())
        window, writers = known(cluster.window), known(trial.receipt.writers)
        nodes = known(window.after).nodes
        assert [node.name for node in nodes] == ["primary", "replica1", "replica2"]
        assert not any(node.unlike for node in nodes)
        assert known(window.counted)["primary"]["ordered"] >= trial.measured.transactions
        assert all(writers.commits <= rows <= known(writers.answered) for rows in writers.rows.values())
    (level,) = {arm.factors["distances"] for arm in run.info.arms if arm.name in agreed}
    assert str(level).count(",") == 2 and "are measured, not set" in str(run.info.environment.not_as_requested)
    assert {(link.from_host, link.to_host) for link in run.info.environment.distances} == {
        ("c", "b"),
        ("a", "b"),
        ("a", "c"),
    }
    report = (tmp_path / "report.md").read_text()
    assert "are real" in report and "predicted" in report


@pytest.mark.thorough
def test_pages_are_served_by_one_host_or_by_two(cache: Path, tmp_path: Path) -> None:
    need("redis", "memcached", "php")
    run = _run(cache, tmp_path, _PAGE, "--place application=a,server=b")
    assert len(set(_good(run))) == 7, "two applications on three paths, and the baseline again"
    for trial in (trial for trial in run.trials if trial.status is TrialStatus.OK):
        assert trial.measured is not None
        assert set(trial.receipt.services) == {"redis", "memcached"}
        assert counted(trial).of == "requests"
        roles = {use.role for use in trial.measured.cpu if use.cpu_ns > 0}
        assert {"server", "redis", "memcached", "client"} <= roles
        assert ("application" in roles) == (trial.receipt.application is not None)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("server", "paths", "counts"),
    [
        ("postgresql", {"haproxy", "pgbouncer", "pgbouncer-near"}, ("transactions", "at least")),
        ("redis", {"haproxy", "nutcracker"}, ("statements", "equal")),
        ("memcached", {"haproxy", "nutcracker"}, ("statements", "equal")),
    ],
)
def test_poolers_are_measured_between_hosts(
    cache: Path, tmp_path: Path, server: str, paths: set[str], counts: tuple[str, str]
) -> None:
    need(server)
    run = _run(cache, tmp_path, _HOPS, f"--server {server} --place client=a,server=b")
    good = _good(run)
    assert {str(arm.factors["path"]) for arm in run.info.arms if arm.name in good} == {"remote", *paths}
    for trial in (trial for trial in run.trials if trial.status is TrialStatus.OK):
        if trial.receipt.forwarder is not None and trial.receipt.forwarder.at_once:
            (carried,) = trial.receipt.forwarder.carried.values()
            (most,) = trial.receipt.forwarder.at_once.values()
            kept = "persistent" in trial.arm  # connections that are not kept may be missed
            assert carried["bytes_to_server"] > 0 and (most["to_clients"] > 0 or not kept)
        assert (counted(trial).of, counted(trial).rule) == counts


@pytest.mark.thorough
@pytest.mark.parametrize(("server", "mode"), [("mariadb", "text"), ("mysql", "prepared")])
def test_encryption_compression_a_rate_and_polling_go_together(
    cache: Path, tmp_path: Path, server: str, mode: str
) -> None:
    need(server)
    plan = _TOGETHER if mode == "text" else _TOGETHER.replace('db_ps_mode = "disable"\n', "")
    run = _run(cache, tmp_path, plan, f"--server {server} --place client=a,server=b")
    assert len(set(_good(run))) == 3
    cannot = cannot_poll()
    assert ("(host a)" in str(run.info.environment.not_as_requested)) == bool(cannot)
    for trial in (trial for trial in run.trials if trial.status is TrialStatus.OK):
        session, hosts = known(trial.receipt.session), known(trial.receipt.hosts)
        assert (session.tls_version, session.compression) == ("TLSv1.3", "zlib")
        assert known(trial.receipt.arrivals).per_s == 100
        assert session.protocol_mode == mode and counted(trial).rule == "equal"
        idle = known(known(trial.receipt.idle).hosts)
        assert set(idle) == {hosts.client, hosts.server}
        levels = {host.level for host in idle.values()}
        assert levels == {"as-found" if cannot else "polling"}


_HOP = _HOPS.replace(', "pgbouncer", "pgbouncer-near", "nutcracker"', ', "pgbouncer-tcp", "nutcracker"').replace(
    ', "per-transaction"]', "]"
)


@pytest.mark.parametrize(
    ("server", "path"),
    [
        ("mariadb", "haproxy"),
        pytest.param("postgresql", "pgbouncer-tcp", marks=pytest.mark.thorough),
        pytest.param("redis", "nutcracker", marks=pytest.mark.thorough),
    ],
)
def test_a_program_in_between_has_a_host_of_its_own(cache: Path, tmp_path: Path, server: str, path: str) -> None:
    need(server)
    place = "--place client=a,hop=c,server=b"
    run = _run(cache, tmp_path, _HOP, f"--server {server} --path remote,{path} {place}", ("a", "b", "c"))
    assert {str(arm.factors["path"]) for arm in run.info.arms if arm.name in _good(run)} == {"remote", path}
    a, b, c = (f"10.78.0.{number}" for number in (10, 11, 12))
    for trial in (trial for trial in run.trials if trial.status is TrialStatus.OK):
        assert trial.measured is not None and trial.measured.transactions > 0
        receipt, moved = trial.receipt, trial.arm.startswith(path)
        hosts, view = known(receipt.hosts), known(known(receipt.server).session_view)
        assert hosts.hop == ("c" if moved else None)
        assert set(hosts.start) == ({"a", "b", "c"} if moved else {"a", "b"})
        assert known(view.host).partition(":")[0] == (c if moved else a)
        assert known(receipt.session).peer_address.partition(":")[0] == (c if moved else b)
        if moved:
            assert known(receipt.forwarder).carried["hop_side"]["bytes_to_server"] > 0
            assert {use.role for use in trial.measured.cpu if use.cpu_ns > 0} >= {"client", "server", "forwarder"}
            whole = known(receipt.link)
            parts = known(whole.links)
            assert [(link.from_host, link.to_host) for link in parts] == [("a", "c"), ("c", "b")]
            assert known(whole.rest_rtt_ns) == sum(known(link.rest_rtt_ns) for link in parts)
    assert {(link.from_host, link.to_host) for link in run.info.environment.distances} == {
        ("a", "b"),
        ("a", "c"),
        ("c", "b"),
    }
    assert "the links to the hop and from it are measured" in str(run.info.environment.not_as_requested)
