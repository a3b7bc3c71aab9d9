"""Runs of pages and of keys, with the engine's pages and PHP's: what each trial's counts prove.

Speeds are not checked, except that a page takes at least its round trips."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from pathlib import Path

import pytest

from howfar.store.records import Measured, Run, StopReason, Trial, TrialStatus
from howfar.store.run_file import read_run
from tests.lab.howfar_runs import (
    LONG_RTT,
    ONE_TABLE,
    assert_completed,
    call_howfar,
    good_trials,
    plan_toml,
    require,
    run_howfar,
    timing,
)
from tests.lab.local_php import require_php
from tests.lab.local_servers import require_server
from tests.lab.undisturbed import skip_if_disturbed, unexcused

pytestmark = [pytest.mark.lab, pytest.mark.usefixtures("namespaces", "mariadb")]
RTT_NS = 20_000_000
CPU_NS = 5_000_000
PAGES = plan_toml(
    workload={"kind": "page", "range_size": 10},
    data=ONE_TABLE,
    keys={"count": 200},
    **{
        "pages.small": {
            "rounds": 2,
            "point_selects": 1,
            "simple_ranges": 1,
            "sums": 1,
            "redis_gets": 1,
            "redis_multi_gets": 1,
            "memcached_gets": 1,
        }
    },
    factors={
        "path": ["socket", "remote"],
        "page": "small",
        "application": ["php", "engine"],
        "app_cpu": "5ms",
        "threads": 2,
        "placement": "machines",
        "rtt": LONG_RTT,
    },
    baseline={"path": "socket", "application": "php"},
    **{"[leave_out]": {"path": "socket", "application": "engine"}},
    # A remote page takes 12 round trips of 20 ms, on a busy machine much longer.
    timing=timing(2, "50ms", "1200ms"),
)
ROUND_TRIPS = {"mysql": 6, "redis": 4, "memcached": 2}
KEYS_READ = {"redis": 22, "memcached": 2}


def make_keys_plan(server: str) -> str:
    return plan_toml(
        workload={"kind": "key_value"},
        keys={"count": 500, "get": 3, "set": 1, "multi_get": 1},
        factors={"path": "tcp", "server": server, "threads": 2},
        baseline={"path": "tcp"},
        timing=timing(2, "50ms", "200ms"),
    )


def measure(plan: str, where: Path, cache: Path) -> tuple[Run, Path]:
    """Run a plan of two blocks. howfar itself repeats trials that this machine disturbed."""
    where.mkdir(exist_ok=True)
    file = where / "tiny.howfar"
    (where / "tiny.toml").write_text(plan)
    done = run_howfar("run", "tiny.toml", "--out", str(file), cache=cache, cwd=where)
    assert_completed(done.returncode, done.stderr)
    run = read_run(file)
    assert not unexcused(trial.void_reason or "" for trial in run.trials if trial.status is TrialStatus.VOID)
    assert run.stop is StopReason.BLOCKS
    return run, file


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory, cache: Path) -> tuple[Run, Path]:
    if len(os.sched_getaffinity(0)) < 2:
        pytest.skip("two machines need two CPUs: howfar refuses these pages here")
    require_php()
    for server in ("mariadb", "redis", "memcached"):
        require_server(server)
    return measure(PAGES, tmp_path_factory.mktemp("p"), cache)


def trials_of(run: Run, application: str) -> Iterable[tuple[Trial, Measured]]:
    arms = {arm.name for arm in run.info.arms if arm.factors["application"] == application}
    found = [(trial, trial.measured) for trial in good_trials(run) if trial.arm in arms]
    if not found:
        skip_if_disturbed(*(trial.void_reason for trial in run.trials if trial.arm in arms))
    assert found
    for trial, measured in found:
        assert measured is not None and measured.transactions > 0
        yield trial, measured


@pytest.mark.thorough
def test_each_page_has_the_round_trips_of_its_plan(pages: tuple[Run, Path]) -> None:
    run, _ = pages
    for _, measured in trials_of(run, "engine"):
        assert {use.service: use.round_trips for use in measured.services} == {
            service: round_trips * measured.transactions for service, round_trips in ROUND_TRIPS.items()
        }
        reads = {use.service: (use.hits, use.misses) for use in measured.services if use.service != "mysql"}
        assert reads == {service: (count * measured.transactions, 0) for service, count in KEYS_READ.items()}
    for _, measured in trials_of(run, "php"):
        reported = measured.app_counters
        # The driver first checks whether a kept connection is alive.
        assert {service: reported[f"{service}_turns"] - reported[f"{service}_checks"] for service in ROUND_TRIPS} == {
            service: round_trips * measured.transactions for service, round_trips in ROUND_TRIPS.items()
        }
        assert (reported["hits"], reported["misses"]) == (sum(KEYS_READ.values()) * measured.transactions, 0)
        assert measured.round_trips == sum(reported[f"{service}_turns"] for service in ROUND_TRIPS)
        assert reported["app_cpu_ns"] >= CPU_NS * measured.transactions


def test_pages_prove_their_application_and_their_services(pages: tuple[Run, Path]) -> None:
    run, _ = pages
    for trial, measured in (*trials_of(run, "engine"), *trials_of(run, "php")):
        assert set(trial.receipt.services) == {"redis", "memcached"}
        roles = {use.role for use in measured.cpu if use.cpu_ns}
        assert {"client", "server", "redis", "memcached"} <= roles
        assert ("application" in roles) == (trial in [one for one, _ in trials_of(run, "php")])
    assert all(trial.receipt.application is not None for trial, _ in trials_of(run, "php"))


def test_no_page_is_faster_than_its_round_trips(pages: tuple[Run, Path]) -> None:
    run, _ = pages
    remote = {arm.name for arm in run.info.arms if arm.factors["path"] == "remote"}
    for application in ("php", "engine"):
        for trial, measured in trials_of(run, application):
            (page,) = [histogram for histogram in measured.histograms if histogram.kind == "transaction"]
            min_ns = CPU_NS + (sum(ROUND_TRIPS.values()) * RTT_NS if trial.arm in remote else 0)
            assert page.min_ns >= min_ns * 0.99


def test_a_run_of_pages_is_reported_in_every_form(pages: tuple[Run, Path]) -> None:
    _, file = pages
    for form in ("--json", f"--html={file.with_suffix('.page')}"):
        done = call_howfar("report", str(file), form)
        assert done.returncode == 0, done.stderr
        if form == "--json":
            assert json.loads(done.stdout)["pages"]["arms"]


@pytest.mark.parametrize("server", ["redis", "memcached"])
def test_a_plan_of_keys(server: str, tmp_path: Path, cache: Path) -> None:
    require_server(server)
    run, _ = measure(make_keys_plan(server), tmp_path / server, cache)
    for trial in good_trials(run):
        assert trial.measured is not None
        (use,) = trial.measured.services
        assert (use.service, use.requests, use.misses) == (server, trial.measured.queries, 0)
        assert use.hits > 0
        session = require(trial.receipt.session)
        assert session.protocol_mode == {"redis": "resp3", "memcached": "memcached_meta"}[server]
        assert use.connects is None, "connects are not counted"
        assert session.address_family == "inet"
