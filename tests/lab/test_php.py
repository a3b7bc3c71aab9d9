"""A PHP application in the laboratory: its pages follow the script over the requested path, which the servers confirm.

Also tests failures, and the doctor's lines for PHP."""

from __future__ import annotations

import contextlib
import functools
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from howfar.errors import MissingError
from howfar.experiments.page.lab import php_fpm
from howfar.experiments.page.lab.php_fpm import find_php_fpm
from howfar.lab.servers.kinds import KINDS, find_server
from tests.lab.local_php import require_php
from tests.lab.local_servers import require_server
from tests.lab.php_scenario import CHILDREN, CPU_NS, PAGES, ROUNDS, VISITS
from tests.lab.sandboxes import wait_until
from tests.lab.scenario_programs import run_scenario
from tests.lab.undisturbed import unexcused
from tests.rarely import rarely_but

pytestmark = [pytest.mark.lab, pytest.mark.usefixtures("namespaces")]
_MARIADB = (
    "mariadb",
    (
        "socket",
        "tcp+per_page",
        "remote",
        "forwarded-socket",
        "wrong path",
        "false reports",
        "errors",
        "deaths",
        "lines",
    ),
)
_POSTGRESQL = ("postgresql", ("socket", "remote+per_page"))
_SCENARIOS = (
    _MARIADB,
    _POSTGRESQL,
    ("postgresql", ("tcp+per_page", "remote", "forwarded-socket+per_page")),
    ("mysql", ("tcp", "remote:1.3+per_page")),
)
"""Servers, and the cases of each scenario."""
SEEN_FROM = {"socket": "localhost", "tcp": "127.0.0.1", "remote": "10.77.0.1", "forwarded-socket": "localhost"}


def _require_php_and(name: str) -> None:
    require_php(KINDS[name].service)
    for server in (name, "redis", "memcached"):
        require_server(server)


@pytest.fixture(
    scope="module", params=rarely_but((_MARIADB, _POSTGRESQL), _SCENARIOS), ids=lambda scenario: scenario[0]
)
def seen(request: pytest.FixtureRequest, cache: Path) -> dict[str, dict[str, Any]]:
    return _run_scenario(*request.param, cache)


@pytest.fixture(scope="module")
def of_mariadb(cache: Path) -> dict[str, dict[str, Any]]:
    """The results with MariaDB, on which the special cases run."""
    return _run_scenario(*_MARIADB, cache)


@functools.cache
def _run_scenario(name: str, cases: tuple[str, ...], cache: Path) -> dict[str, dict[str, Any]]:
    _require_php_and(name)
    (result,) = run_scenario("php_scenario", str(find_server(name).path), *cases, cache=cache)
    found: dict[str, dict[str, Any]] = result["trials"]
    return found


def _trials(seen: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    return {case: trial for case, trial in seen.items() if "load" in trial}


def test_pages_are_complete_and_valid(seen: dict[str, dict[str, Any]]) -> None:
    for case, trial in _trials(seen).items():
        assert trial["statuses"] == [200] * PAGES and trial["complete"], case
        assert trial["errors"] == [], case
        assert unexcused(trial["violations"]) == [], case
        assert trial["receipt"]["opcache"] and trial["receipt"]["children"] == CHILDREN, case
        assert trial["script_mode"] == "0o600", case
        assert "application" in trial["observed"], case


def test_a_page_has_the_round_trips_of_its_script_and_reports_its_drivers_checks(
    seen: dict[str, dict[str, Any]],
) -> None:
    """PDO's MySQL and phpredis check a kept connection once per page; memcached and PDO's PostgreSQL do not."""
    for case, trial in _trials(seen).items():
        for reported in trial["reported"]:
            for service, round_trips in trial["round_trips"].items():
                kept = "+per_page" not in case and not reported[f"{service}_connects"]
                checked = int(kept and service in ("mysql", "redis"))
                assert reported[f"{service}_checks"] == checked, (case, service)
                assert reported[f"{service}_turns"] == round_trips + checked, (case, service)
                assert 0 < reported[f"{service}_ns"] < reported["wall_ns"], (case, service)
                assert (reported[f"{service}_connect_ns"] > 0) == (reported[f"{service}_connects"] > 0), (case, service)
            assert reported["misses"] == 0 and reported["hits"] > 0, case


def test_servers_counts_agree_with_the_pages_reports(seen: dict[str, dict[str, Any]]) -> None:
    for case, trial in _trials(seen).items():
        proof = trial["receipt"]["proof"]
        reported, counted = proof["told"], proof["counted"]
        for service in trial["round_trips"]:
            assert counted[service]["connects"] == reported[f"{service}_connects"] > 0, (case, service)
        assert counted["redis"]["turns"] == reported["redis_turns"], case
        if "postgresql" in counted:
            assert counted["postgresql"]["encrypted"] == 0 and "turns" not in counted["postgresql"], case
            continue
        goodbyes = reported["mysql_connects"] if "+per_page" in case else 0
        assert counted["mysql"]["turns"] == reported["mysql_turns"] + goodbyes, case
        assert counted["mysql"]["encrypted"] == (reported["mysql_connects"] if ":1.3" in case else 0), case


def test_connections_are_kept_by_a_child_or_opened_by_each_page(seen: dict[str, dict[str, Any]]) -> None:
    for case, trial in _trials(seen).items():
        proof = trial["receipt"]["proof"]
        for service in trial["round_trips"]:
            if "+per_page" in case:
                assert proof["told"][f"{service}_connects"] == proof["pages"], (case, service)
                assert [reported[f"{service}_connects"] for reported in trial["reported"]] == [1] * PAGES, (
                    case,
                    service,
                )
            else:
                assert proof["told"][f"{service}_connects"] <= CHILDREN, (case, service)
                after = trial["receipt"]["after"]
                assert len(after["seen"][service]) == after["connections"][service] <= CHILDREN, (case, service)


def test_servers_see_php_at_the_address_of_the_path(seen: dict[str, dict[str, Any]]) -> None:
    for case, trial in _trials(seen).items():
        path = case.partition("+")[0].partition(":")[0]
        for service in trial["round_trips"]:
            addresses = trial["receipt"]["proof"]["seen"][service]
            assert {address.partition(":")[0] for address in addresses} == {SEEN_FROM[path]}, (case, service)


def test_a_page_uses_the_requested_cpu_time(seen: dict[str, dict[str, Any]]) -> None:
    for case, trial in _trials(seen).items():
        for reported in trial["reported"]:
            assert ROUNDS * CPU_NS <= reported["app_cpu_ns"] < 2 * ROUNDS * CPU_NS, case
            assert reported["app_cpu_ns"] < reported["cpu_ns"] < reported["wall_ns"] * 1.05, case


def test_the_engine_loads_the_pages(seen: dict[str, dict[str, Any]]) -> None:
    for case, trial in _trials(seen).items():
        load = trial["load"]
        assert (load["pages"], load["protocol"]) == (VISITS, "fastcgi"), case
        for service, round_trips in trial["round_trips"].items():
            reported = load["reported"]
            assert reported[f"{service}_turns"] - reported[f"{service}_checks"] == VISITS * round_trips, (case, service)
        assert load["reported"]["cpu_ns"] > VISITS * ROUNDS * CPU_NS, case
        # FPM itself uses almost no CPU. CPU accounting begins shortly after the window, later on a busy machine.
        assert load["cpu"]["application"] > 0.25 * load["reported"]["cpu_ns"], case


def test_a_client_on_another_path_is_reported(of_mariadb: dict[str, dict[str, Any]]) -> None:
    assert unexcused(of_mariadb["wrong path"]["violations"]) == [
        "application: mysql sees PHP connect from 'localhost' instead of '127.0.0.1'"
    ]


def test_falsely_reported_round_trips_are_found(of_mariadb: dict[str, dict[str, Any]]) -> None:
    """After the proof, the pages make fewer round trips than they report."""
    results = of_mariadb["false reports"]
    assert results["claims_all"]
    mysql, memcached = unexcused(results["violations"])
    assert mysql.startswith("mysql: it counted ")
    assert memcached.startswith("memcached: it looked up only ")


def test_errors_of_pages_are_reported_without_secrets(of_mariadb: dict[str, dict[str, Any]]) -> None:
    errors = of_mariadb["errors"]
    assert "statement none found no row" in errors["no row"]
    assert "Access denied" in errors["password"] and "xyzzy" not in errors["password"]
    assert any("missed" in sentence for sentence in errors["key"])
    assert errors["no script"][0] == 500 and "HOWFAR_PAGE" in errors["no script"][1]


def test_dead_processes_are_named(of_mariadb: dict[str, dict[str, Any]]) -> None:
    deaths = of_mariadb["deaths"]
    assert deaths["redis"][0] == 500 and "RedisException" in deaths["redis"][1]
    assert "PHP-FPM ended during the trial" in deaths["application"][0]
    assert any("exited on signal 11" in sentence for sentence in deaths["child"])


@pytest.mark.skipif(shutil.which("php") is None, reason="the command php is not installed")
def test_the_doctors_lines_connect_php_to_the_socket(of_mariadb: dict[str, dict[str, Any]]) -> None:
    lines = of_mariadb["lines"]
    assert len(lines) == 13
    assert {where: sentences for where, sentences in lines.items() if sentences} == {}


def test_missing_extensions_are_reported_with_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """This PHP searches its extensions in an empty directory."""
    real = require_php()
    program = tmp_path / "php-fpm99"
    program.write_text(f'#!/bin/sh\nexec {real.path} -dextension_dir={tmp_path} "$@"\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(php_fpm, "_SBIN_DIRECTORIES", ())
    with pytest.raises(MissingError) as found:
        find_php_fpm()
    assert "pdo_mysql, redis, memcached" in found.value.message
    assert "howfar setup --page" in found.value.advice


_HOLDS = """
import sys, time
from pathlib import Path
from howfar.experiments.page.lab.php_fpm import PhpFpm, find_php_fpm
from howfar.lab.network import Host, usable_cpus
pool = PhpFpm(find_php_fpm(), Path(sys.argv[1]), Host("client", None).launcher(usable_cpus()), 2)
pool.become_ready()
print(pool.pid, flush=True)
time.sleep(60)
"""


def test_without_a_sandbox_php_fpm_ends_with_its_parent(tmp_path: Path) -> None:
    require_php()
    holder = subprocess.Popen([sys.executable, "-c", _HOLDS, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert holder.stdout is not None
    group = int(holder.stdout.readline())
    wait_until(lambda: len(_members(group)) == 3, "both children of FPM")
    holder.kill()
    holder.wait()
    wait_until(lambda: not _members(group), "the end of PHP-FPM and its children")


def _members(group: int) -> list[int]:
    """The running processes of a process group."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                state, _, its_group = (entry / "stat").read_text().rpartition(")")[2].split()[:3]
                if int(its_group) == group and state != "Z":
                    found.append(int(entry.name))
    return found
