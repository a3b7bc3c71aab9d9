"""Replication, pages, proxies and poolers on the user's own hosts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from howfar.experiments.replication.preflight import cluster_obstacle
from howfar.lab.idle import polling_obstacle
from howfar.lab.servers.kinds import find_server
from howfar.store.records import Run
from howfar.store.run_file import read_run
from tests.lab.howfar_runs import ONE_TABLE, POINT_SELECT, assert_completed, good_trials, plan_toml, require, timing
from tests.lab.test_hosts import counted, needs_hosts, run_on_hosts, skip_unless_installed

pytestmark = [pytest.mark.alone, pytest.mark.lab, pytest.mark.usefixtures("namespaces", "mariadb"), needs_hosts]
_TIMING = timing(2)
_REPLICATION = {
    "path": "socket",
    "threads": 2,
    "server": "mariadb",
    "replica_rtt": ["0ms", "85ms"],
    "replica_rate": "1gbit",
    "durability": "off",
}
_CLUSTER = plan_toml(
    "cluster",
    workload={"kind": "single_row_updates"},
    data=ONE_TABLE,
    factors={
        "path": "socket",
        "threads": 1,
        "server": "mariadb",
        "replication": ["none", "galera"],
        "replicas": 2,
        "distances": ["same-rack", "two-near-one-far"],
        "replica_rate": "1gbit",
        "durability": "off",
    },
    baseline={"replication": "none"},
    timing=_TIMING,
)
_PAGE = plan_toml(
    "page",
    workload={"kind": "page"},
    data=ONE_TABLE,
    keys={"count": 100},
    **{"pages.small": {"point_selects": 2, "redis_gets": 2, "memcached_gets": 1}},
    factors={
        "page": "small",
        "application": ["php", "engine"],
        "path": ["socket", "remote", "forwarded-socket"],
        "threads": 2,
        "placement": "machines",
    },
    baseline={"path": "socket", "application": "php"},
    timing=_TIMING,
)


def _replication_plan(*modes: str) -> str:
    return plan_toml(
        "replication",
        workload={"kind": "single_row_inserts"},
        data=ONE_TABLE,
        factors={**_REPLICATION, "replication": modes},
        baseline={"replication": "none"},
        timing=_TIMING,
    )


def _hops_plan(paths: Sequence[str], *connect: str) -> str:
    return plan_toml(
        "hops",
        workload={"kind": "oltp_point_select", "db_ps_mode": "disable"},
        data=ONE_TABLE,
        factors={"path": paths, "threads": 2, "connect": connect},
        baseline={"path": "remote", "connect": "persistent"},
        timing=_TIMING,
    )


def _combined_plan(workload: Mapping[str, object]) -> str:
    return plan_toml(
        "together",
        workload={**POINT_SELECT, "point_selects": 4, "skip_trx": False, **workload},
        data=ONE_TABLE,
        factors={
            "path": ["tcp", "remote"],
            "threads": 4,
            "tls": "1.3",
            "compression": "zlib",
            "load": "100/s",
            "idle": "polling",
        },
        baseline={"path": "tcp"},
        timing=_TIMING,
    )


def _run(cache: Path, directory: Path, plan: str, options: str = "", hosts: tuple[str, ...] = ("a", "b")) -> Run:
    """Run a plan on hosts and write its report."""
    (directory / "plan.toml").write_text(plan)
    command = f"howfar run plan.toml --on hosts.toml {options} --out run.howfar"
    done = run_on_hosts(cache, directory, f"{command}; howfar report --md run.howfar >report.md", hosts)
    assert_completed(done.returncode, done.stderr)
    return read_run(directory / "run.howfar")


def _good_arms(run: Run) -> set[str]:
    """The arms of the good trials; prints all trials, which is shown if an assertion fails."""
    for trial in run.trials:
        print(trial.arm, trial.status, trial.void_reason)
    return {trial.arm for trial in good_trials(run)}


@pytest.mark.thorough
def test_a_commit_waits_for_a_replica_on_another_host(cache: Path, tmp_path: Path) -> None:
    run = _run(
        cache,
        tmp_path,
        _replication_plan("none", "async", "after-sync"),
        "--place client=a,server=b,replica=c",
        ("a", "b", "c"),
    )
    assert len(_good_arms(run)) == 4, "three modes over the one real link, and the baseline again"
    for trial in good_trials(run):
        mode = next(arm.factors["replication"] for arm in run.info.arms if arm.name == trial.arm)
        pair = require(trial.receipt.replication)
        assert ("replica1" in pair.links) == (mode != "none")
        assert counted(trial).rule == "at least", "the replica's position is queried meanwhile"
        assert ("c" in require(require(trial.receipt.idle).hosts)) == (mode != "none")
        roles = {use.role for use in require(trial.measured).cpu if use.cpu_ns > 0}
        assert {"client", "server"} <= roles
        if mode == "after-sync":
            assert "replica" in roles and pair.links["replica1"].real
            window = require(pair.window)
            before, after = (require(require(snapshot).primary) for snapshot in (window.before, window.after))
            assert require(after.yes_tx) > require(before.yes_tx)
    assert "to the replica is measured" in str(run.info.environment.not_as_requested)
    assert "semi-sync" in (tmp_path / "report.md").read_text()


@pytest.mark.thorough
def test_the_clients_host_is_the_replica_if_there_is_no_third_host(cache: Path, tmp_path: Path) -> None:
    run = _run(cache, tmp_path, _replication_plan("none", "after-commit"))
    assert len(_good_arms(run)) == 3
    roles = require(run.info.environment.roles)
    assert roles.replicas == [roles.client]


@pytest.mark.thorough
@pytest.mark.parametrize(("kind", "modes"), [("mariadb", {"galera"}), ("mysql", {"group", "group-leader"})])
def test_three_hosts_form_a_cluster_over_their_real_links(
    cache: Path, tmp_path: Path, kind: str, modes: set[str]
) -> None:
    skip_unless_installed(kind)
    program = find_server(kind)
    if any(cluster_obstacle(program, mode) for mode in modes):
        pytest.skip("no library for a cluster (./setup --clusters)")
    run = _run(
        cache,
        tmp_path,
        _CLUSTER,
        f"--server {program.path} --place client=c,server=b,replica=c,replica=a",
        ("a", "b", "c"),
    )
    assert len(_good_arms(run)) == 2 + len(modes), "one distance, and the baseline again"
    cluster_arms = {arm.name for arm in run.info.arms if arm.factors["replication"] in modes}
    for trial in (trial for trial in good_trials(run) if trial.arm in cluster_arms):
        assert trial.measured is not None and trial.measured.transactions > 0
        cluster = require(trial.receipt.replication)
        assert set(cluster.links) == {"replica1", "replica2", "replica1-replica2"}
        assert all(link.real and require(link.rest_rtt_ns) > 0 for link in cluster.links.values())
        window, writers = require(cluster.window), require(trial.receipt.writers)
        nodes = require(window.after).nodes
        assert [node.name for node in nodes] == ["primary", "replica1", "replica2"]
        assert not any(node.mismatches for node in nodes)
        assert require(window.counted)["primary"]["ordered"] >= trial.measured.transactions
        assert all(writers.commits <= rows <= require(writers.answered) for rows in writers.rows.values())
    (level,) = {arm.factors["distances"] for arm in run.info.arms if arm.name in cluster_arms}
    assert str(level).count(",") == 2 and "are measured, not emulated" in str(run.info.environment.not_as_requested)
    assert {(link.from_host, link.to_host) for link in run.info.environment.distances} == {
        ("c", "b"),
        ("a", "b"),
        ("a", "c"),
    }
    report = (tmp_path / "report.md").read_text()
    assert "are real" in report


@pytest.mark.thorough
def test_pages_are_served_by_one_host_or_by_two(cache: Path, tmp_path: Path) -> None:
    skip_unless_installed("redis", "memcached", "php")
    run = _run(cache, tmp_path, _PAGE, "--place application=a,server=b")
    assert len(_good_arms(run)) == 7, "two applications on three paths, and the baseline again"
    for trial in good_trials(run):
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
    skip_unless_installed(server)
    plan = _hops_plan(
        ["remote", "haproxy", "pgbouncer", "pgbouncer-near", "nutcracker"], "persistent", "per-transaction"
    )
    run = _run(cache, tmp_path, plan, f"--server {server} --place client=a,server=b")
    good = _good_arms(run)
    assert {str(arm.factors["path"]) for arm in run.info.arms if arm.name in good} == {"remote", *paths}
    for trial in good_trials(run):
        if trial.receipt.forwarder is not None and trial.receipt.forwarder.at_once:
            (carried,) = trial.receipt.forwarder.carried.values()
            (most,) = trial.receipt.forwarder.at_once.values()
            kept = "persistent" in trial.arm  # sampling may miss connections of one transaction
            assert carried["bytes_to_server"] > 0 and (most["to_clients"] > 0 or not kept)
        assert (counted(trial).of, counted(trial).rule) == counts


@pytest.mark.thorough
@pytest.mark.parametrize(("server", "mode"), [("mariadb", "text"), ("mysql", "prepared")])
def test_encryption_compression_a_rate_and_polling_work_together(
    cache: Path, tmp_path: Path, server: str, mode: str
) -> None:
    skip_unless_installed(server)
    plan = _combined_plan({"db_ps_mode": "disable"} if mode == "text" else {})
    run = _run(cache, tmp_path, plan, f"--server {server} --place client=a,server=b")
    assert len(_good_arms(run)) == 3
    cannot = polling_obstacle()
    assert ("(host a)" in str(run.info.environment.not_as_requested)) == bool(cannot)
    for trial in good_trials(run):
        session, hosts = require(trial.receipt.session), require(trial.receipt.hosts)
        assert (session.tls_version, session.compression) == ("TLSv1.3", "zlib")
        assert require(trial.receipt.arrivals).per_s == 100
        assert session.protocol_mode == mode and counted(trial).rule == "equal"
        idle = require(require(trial.receipt.idle).hosts)
        assert set(idle) == {hosts.client, hosts.server}
        levels = {host.level for host in idle.values()}
        assert levels == {"as-found" if cannot else "polling"}


_HOP = _hops_plan(["remote", "haproxy", "pgbouncer-tcp", "nutcracker"], "persistent")


@pytest.mark.parametrize(
    ("server", "path"),
    [
        ("mariadb", "haproxy"),
        pytest.param("postgresql", "pgbouncer-tcp", marks=pytest.mark.thorough),
        pytest.param("redis", "nutcracker", marks=pytest.mark.thorough),
    ],
)
def test_a_hop_may_have_its_own_host(cache: Path, tmp_path: Path, server: str, path: str) -> None:
    skip_unless_installed(server)
    place = "--place client=a,hop=c,server=b"
    run = _run(cache, tmp_path, _HOP, f"--server {server} --path remote,{path} {place}", ("a", "b", "c"))
    assert {str(arm.factors["path"]) for arm in run.info.arms if arm.name in _good_arms(run)} == {"remote", path}
    a, b, c = (f"10.78.0.{number}" for number in (10, 11, 12))
    for trial in good_trials(run):
        assert trial.measured is not None and trial.measured.transactions > 0
        receipt, uses_hop = trial.receipt, trial.arm.startswith(path)
        hosts, view = require(receipt.hosts), require(require(receipt.server).session_view)
        assert hosts.hop == ("c" if uses_hop else None)
        assert set(hosts.start) == ({"a", "b", "c"} if uses_hop else {"a", "b"})
        assert require(view.host).partition(":")[0] == (c if uses_hop else a)
        assert require(receipt.session).peer_address.partition(":")[0] == (c if uses_hop else b)
        if uses_hop:
            assert require(receipt.forwarder).carried["hop_side"]["bytes_to_server"] > 0
            assert {use.role for use in trial.measured.cpu if use.cpu_ns > 0} >= {"client", "server", "forwarder"}
            link = require(receipt.link)
            parts = require(link.links)
            assert [(part.from_host, part.to_host) for part in parts] == [("a", "c"), ("c", "b")]
            assert require(link.rest_rtt_ns) == sum(require(part.rest_rtt_ns) for part in parts)
    assert {(link.from_host, link.to_host) for link in run.info.environment.distances} == {
        ("a", "b"),
        ("a", "c"),
        ("c", "b"),
    }
    assert "the links to the hop and from it are measured" in str(run.info.environment.not_as_requested)
