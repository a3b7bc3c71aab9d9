"""Plans of pages and keys through the real command, with the engine's page and PHP's: what each trial's counts prove.

Speeds are not checked, except that no page may be faster than its round trips."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from pathlib import Path

import pytest

from howfar.errors import HowfarError
from howfar.lab.php.php_fpm import find_php_fpm
from howfar.lab.servers.kinds import find_server
from howfar.store.records import Measured, Run, StopReason, Trial, TrialStatus
from howfar.store.run_file import read_run
from tests.lab.howfar_runs import came_through, known, run_howfar
from tests.lab.undisturbed import lasting, skip_if_disturbed

pytestmark = [pytest.mark.lab, pytest.mark.usefixtures("namespaces", "mariadb")]
RTT_NS = 20_000_000
CPU_NS = 5_000_000
TIMING = """
[timing]
warmup = "50ms"
measure = "400ms"
min_blocks = 2
max_blocks = 2
target = "0.1%"
time_budget = "30min"
"""
PAGES = f"""
name = "tiny"
question = "One machine or two?"
[workload]
kind = "page"
range_size = 10
[data]
tables = 1
table_size = 1000
[keys]
count = 200
[pages.small]
rounds = 2
point_selects = 1
simple_ranges = 1
sums = 1
redis_gets = 1
redis_multi_gets = 1
memcached_gets = 1
[factors]
path = ["socket", "remote"]
page = "small"
application = ["php", "engine"]
app_cpu = "5ms"
threads = 2
placement = "machines"
rtt = "20ms" # the longer, the more lateness is forgiven: tests may meet a busy machine
[baseline]
path = "socket"
application = "php"
[[leave_out]]
path = "socket"
application = "engine"
{TIMING.replace("400ms", "1200ms")}"""  # a remote page takes 12 round trips of 20 ms, on a busy machine much longer
ROUND_TRIPS = {"mysql": 6, "redis": 4, "memcached": 2}
KEYS_READ = {"redis": 22, "memcached": 2}
KEYS = f"""
name = "tiny"
question = "What does a path cost?"
[workload]
kind = "key_value"
[keys]
count = 500
get = 3
set = 1
multi_get = 1
[factors]
path = "tcp"
server = "SERVER"
threads = 2
[baseline]
path = "tcp"
{TIMING}"""


def measure(plan: str, where: Path, cache: Path) -> tuple[Run, Path]:
    """Run the plan's two blocks; howfar itself repeats trials that this machine disturbed."""
    where.mkdir(exist_ok=True)
    file = where / "tiny.howfar"
    (where / "tiny.toml").write_text(plan)
    done = run_howfar("run", "tiny.toml", "--out", str(file), env={"XDG_CACHE_HOME": str(cache)}, cwd=where)
    came_through(done.returncode, done.stderr)
    run = read_run(file)
    assert not lasting(trial.void_reason or "" for trial in run.trials if trial.status is TrialStatus.VOID)
    assert run.stop is StopReason.BLOCKS
    return run, file


def good(run: Run) -> list[Trial]:
    return [trial for trial in run.trials if trial.status is TrialStatus.OK]


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory, cache: Path) -> tuple[Run, Path]:
    if len(os.sched_getaffinity(0)) < 2:
        pytest.skip("two machines need two CPUs: howfar refuses these pages here")
    try:
        find_php_fpm()
        for server in ROUND_TRIPS:
            find_server("mariadb" if server == "mysql" else server)
    except HowfarError as error:
        pytest.skip(f"{error.message} {error.advice}")
    return measure(PAGES, tmp_path_factory.mktemp("p"), cache)


def of(run: Run, application: str) -> Iterable[tuple[Trial, Measured]]:
    arms = {arm.name for arm in run.info.arms if arm.factors["application"] == application}
    found = [(trial, trial.measured) for trial in good(run) if trial.arm in arms]
    if not found:
        skip_if_disturbed(*(trial.void_reason for trial in run.trials if trial.arm in arms))
    assert found
    for trial, measured in found:
        assert measured is not None and measured.transactions > 0
        yield trial, measured


def test_each_page_took_the_turns_of_its_shape(pages: tuple[Run, Path]) -> None:
    run, _ = pages
    for _, measured in of(run, "engine"):
        assert {use.service: use.turns for use in measured.services} == {
            service: round_trips * measured.transactions for service, round_trips in ROUND_TRIPS.items()
        }
        reads = {use.service: (use.hits, use.misses) for use in measured.services if use.service != "mysql"}
        assert reads == {service: (count * measured.transactions, 0) for service, count in KEYS_READ.items()}
    for _, measured in of(run, "php"):
        reported = measured.told
        # The driver first checks whether a kept connection is still alive.
        assert {service: reported[f"{service}_turns"] - reported[f"{service}_checks"] for service in ROUND_TRIPS} == {
            service: round_trips * measured.transactions for service, round_trips in ROUND_TRIPS.items()
        }
        assert (reported["hits"], reported["misses"]) == (sum(KEYS_READ.values()) * measured.transactions, 0)
        assert measured.turns == sum(reported[f"{service}_turns"] for service in ROUND_TRIPS)
        assert reported["app_cpu_ns"] >= CPU_NS * measured.transactions


def test_pages_prove_their_application_and_their_services(pages: tuple[Run, Path]) -> None:
    run, _ = pages
    for trial, measured in (*of(run, "engine"), *of(run, "php")):
        assert set(trial.receipt.services) == {"redis", "memcached"}
        roles = {use.role for use in measured.cpu if use.cpu_ns}
        assert {"client", "server", "redis", "memcached"} <= roles
        assert ("application" in roles) == (trial in [one for one, _ in of(run, "php")])
    assert all(trial.receipt.application is not None for trial, _ in of(run, "php"))


def test_no_page_is_faster_than_its_round_trips(pages: tuple[Run, Path]) -> None:
    run, _ = pages
    remote = {arm.name for arm in run.info.arms if arm.factors["path"] == "remote"}
    for application in ("php", "engine"):
        for trial, measured in of(run, application):
            (page,) = [histogram for histogram in measured.histograms if histogram.kind == "transaction"]
            least = CPU_NS + (sum(ROUND_TRIPS.values()) * RTT_NS if trial.arm in remote else 0)
            assert page.min_ns >= least * 0.99


def test_a_run_of_pages_is_reported_in_every_form(pages: tuple[Run, Path]) -> None:
    _, file = pages
    for form in ("--json", f"--html={file.with_suffix('.page')}"):
        done = run_howfar("report", str(file), form)
        assert done.returncode == 0, done.stderr
        if form == "--json":
            assert json.loads(done.stdout)["pages"]["arms"]


@pytest.mark.parametrize("server", ["redis", "memcached"])
def test_keys_are_a_plan_of_their_own(server: str, tmp_path: Path, cache: Path) -> None:
    try:
        find_server(server)
    except HowfarError as error:
        pytest.skip(f"{error.message} {error.advice}")
    run, _ = measure(KEYS.replace("SERVER", server), tmp_path / server, cache)
    for trial in good(run):
        assert trial.measured is not None
        (use,) = trial.measured.services
        assert (use.service, use.requests, use.misses) == (server, trial.measured.queries, 0)
        assert use.hits > 0
        session = known(trial.receipt.session)
        assert session.protocol_mode == {"redis": "resp3", "memcached": "memcached_meta"}[server]
        assert use.connects is None, "nobody counts them"
        assert session.address_family == "inet"
