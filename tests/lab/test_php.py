"""A real PHP application in the laboratory: its pages follow the script, over the requested path, as the servers confirm.

Failures are reported. Also tests the doctor's lines for PHP, run by PHP."""

from __future__ import annotations

import contextlib
import functools
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from howfar.errors import HowfarError, MissingError
from howfar.lab.php import php_fpm
from howfar.lab.php.php_fpm import find_php_fpm
from howfar.lab.servers.kinds import KINDS, find_server
from tests.lab.php_scenario import CHILDREN, CPU_NS, PAGES, ROUNDS, VISITS
from tests.lab.programs import answers
from tests.lab.sandboxes import wait_until
from tests.lab.undisturbed import lasting
from tests.rarely import rarely_but

pytestmark = [pytest.mark.lab, pytest.mark.usefixtures("namespaces")]
CASES = {
    "mariadb": ("socket", "tcp+per_page", "remote", "forwarded-socket", "stranger", "liar", "broken", "dead", "lines"),
    "mysql": ("tcp", "remote:1.3+per_page"),
    "postgresql": ("socket", "tcp+per_page", "remote", "forwarded-socket+per_page"),
}
SEEN_FROM = {"socket": "localhost", "tcp": "127.0.0.1", "remote": "10.77.0.1", "forwarded-socket": "localhost"}


@pytest.fixture(scope="module", params=rarely_but(("mariadb", "postgresql"), CASES))
def name(request: pytest.FixtureRequest) -> str:
    _must_be_here(request.param)
    return str(request.param)


def _must_be_here(name: str) -> None:
    try:
        find_php_fpm(KINDS[name].service)
        for server in (name, "redis", "memcached"):
            find_server(server)
    except HowfarError as error:
        pytest.skip(error.message)


@pytest.fixture(scope="module")
def seen(name: str, cache: Path) -> dict[str, dict[str, Any]]:
    return _scenario(name, cache)


@pytest.fixture(scope="module")
def of_mariadb(cache: Path) -> dict[str, dict[str, Any]]:
    """The cases that are tried with one server only."""
    _must_be_here("mariadb")
    return _scenario("mariadb", cache)


@functools.cache
def _scenario(name: str, cache: Path) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = answers("php_scenario", str(find_server(name).path), *CASES[name], cache=cache)[
        0
    ]["trials"]
    return found


def _trials(seen: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    return {case: trial for case, trial in seen.items() if "told" in trial}


def test_pages_are_whole_and_nothing_is_void(seen: dict[str, dict[str, Any]]) -> None:
    for case, trial in _trials(seen).items():
        assert trial["statuses"] == [200] * PAGES and trial["ends"], case
        assert trial["complaints"] == [], case
        assert lasting(trial["violations"]) == [], case
        assert trial["receipt"]["opcache"] and trial["receipt"]["children"] == CHILDREN, case
        assert trial["script_mode"] == "0o600", case
        assert "application" in trial["observed"], case


def test_a_page_has_the_turns_of_its_script_and_says_which_more_its_drivers_took(
    seen: dict[str, dict[str, Any]],
) -> None:
    """A kept connection is checked once per page by PDO's MySQL and phpredis, but not by memcached and PDO's PostgreSQL."""
    for case, trial in _trials(seen).items():
        for reported in trial["told"]:
            for service, round_trips in trial["turns"].items():
                kept = "+per_page" not in case and not reported[f"{service}_connects"]
                checked = int(kept and service in ("mysql", "redis"))
                assert reported[f"{service}_checks"] == checked, (case, service)
                assert reported[f"{service}_turns"] == round_trips + checked, (case, service)
                assert 0 < reported[f"{service}_ns"] < reported["wall_ns"], (case, service)
                assert (reported[f"{service}_connect_ns"] > 0) == (reported[f"{service}_connects"] > 0), (case, service)
            assert reported["misses"] == 0 and reported["hits"] > 0, case


def test_servers_count_what_pages_tell(seen: dict[str, dict[str, Any]]) -> None:
    for case, trial in _trials(seen).items():
        proof = trial["receipt"]["proof"]
        reported, counted = proof["told"], proof["counted"]
        for service in trial["turns"]:
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
        for service in trial["turns"]:
            if "+per_page" in case:
                assert proof["told"][f"{service}_connects"] == proof["pages"], (case, service)
                assert [reported[f"{service}_connects"] for reported in trial["told"]] == [1] * PAGES, (case, service)
            else:
                assert proof["told"][f"{service}_connects"] <= CHILDREN, (case, service)
                after = trial["receipt"]["after"]
                assert len(after["seen"][service]) == after["connections"][service] <= CHILDREN, (case, service)


def test_servers_see_php_where_the_path_comes_from(seen: dict[str, dict[str, Any]]) -> None:
    for case, trial in _trials(seen).items():
        path = case.partition("+")[0].partition(":")[0]
        for service in trial["turns"]:
            places = trial["receipt"]["proof"]["seen"][service]
            assert {place.partition(":")[0] for place in places} == {SEEN_FROM[path]}, (case, service)


def test_a_page_computes_as_long_as_it_was_asked(seen: dict[str, dict[str, Any]]) -> None:
    for case, trial in _trials(seen).items():
        for reported in trial["told"]:
            assert ROUNDS * CPU_NS <= reported["app_cpu_ns"] < 2 * ROUNDS * CPU_NS, case
            assert reported["app_cpu_ns"] < reported["cpu_ns"] < reported["wall_ns"] * 1.05, case


def test_the_engine_visits_them(seen: dict[str, dict[str, Any]]) -> None:
    for case, trial in _trials(seen).items():
        visited = trial["visited"]
        assert (visited["pages"], visited["protocol"]) == (VISITS, "fastcgi"), case
        for service, round_trips in trial["turns"].items():
            reported = visited["told"]
            assert reported[f"{service}_turns"] - reported[f"{service}_checks"] == VISITS * round_trips, (case, service)
        assert visited["told"]["cpu_ns"] > VISITS * ROUNDS * CPU_NS, case
        # FPM itself uses next to nothing. CPU accounting begins a moment after the window, on a busy machine later.
        assert visited["cpu"]["application"] > 0.25 * visited["told"]["cpu_ns"], case


def test_a_client_that_comes_by_another_way_is_seen(of_mariadb: dict[str, dict[str, Any]]) -> None:
    stranger = of_mariadb["stranger"]
    assert lasting(stranger["violations"]) == [
        "application: mysql sees PHP at 'localhost', the path comes from '127.0.0.1'"
    ]


def test_turns_that_pages_only_tell_of_are_missed_by_the_servers(of_mariadb: dict[str, dict[str, Any]]) -> None:
    """The pages begin to lie after the proof, and report the numbers that were requested."""
    liar = of_mariadb["liar"]
    assert liar["tells"]
    sentences = lasting(liar["violations"])
    assert len(sentences) == 2, sentences
    assert sentences[0].startswith("mysql: it counted ")
    assert sentences[1].startswith("memcached: it looked for ")


def test_what_a_page_cannot_do_is_said_without_secrets(of_mariadb: dict[str, dict[str, Any]]) -> None:
    broken = of_mariadb["broken"]
    assert "statement none found no row" in broken["no row"]
    assert "Access denied" in broken["password"] and "xyzzy" not in broken["password"]
    assert any("missed" in sentence for sentence in broken["key"])
    assert broken["no script"][0] == 500 and "HOWFAR_PAGE" in broken["no script"][1]


def test_the_dead_are_named(of_mariadb: dict[str, dict[str, Any]]) -> None:
    dead = of_mariadb["dead"]
    assert dead["redis"][0] == 500 and "RedisException" in dead["redis"][1]
    assert "PHP-FPM ended during the trial" in dead["application"][0]
    assert any("exited on signal 11" in sentence for sentence in dead["child"])


@pytest.mark.skipif(shutil.which("php") is None, reason="the command php is not installed")
def test_the_doctors_lines_lead_php_to_the_socket(of_mariadb: dict[str, dict[str, Any]]) -> None:
    lines = of_mariadb["lines"]
    assert len(lines) == 13
    assert {where: sentences for where, sentences in lines.items() if sentences} == {}


def test_a_php_without_an_extension_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """This PHP finds no extension, because it searches an empty directory."""
    try:
        real = find_php_fpm()
    except MissingError as error:
        pytest.skip(error.message)
    program = tmp_path / "php-fpm99"
    program.write_text(f'#!/bin/sh\nexec {real.path} -dextension_dir={tmp_path} "$@"\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(php_fpm, "_PLACES", ())
    with pytest.raises(MissingError) as found:
        find_php_fpm()
    assert "pdo_mysql, redis, memcached" in found.value.message
    assert "howfar setup --page" in found.value.advice


_HOLDS = """
import sys, time
from pathlib import Path
from howfar.lab.php.php_fpm import PhpFpm, find_php_fpm
from howfar.lab.network import Host, usable_cpus
pool = PhpFpm(find_php_fpm(), Path(sys.argv[1]), Host("client", None).launcher(usable_cpus()), 2)
pool.become_ready()
print(pool.pid, flush=True)
time.sleep(60)
"""


def test_without_a_sandbox_it_ends_with_who_started_it(tmp_path: Path) -> None:
    try:
        find_php_fpm()
    except MissingError as error:
        pytest.skip(error.message)
    holder = subprocess.Popen([sys.executable, "-c", _HOLDS, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert holder.stdout is not None
    group = int(holder.stdout.readline())
    wait_until(lambda: len(_members(group)) == 3, "FPM has started both its children")
    holder.kill()
    holder.wait()
    wait_until(lambda: not _members(group), "PHP-FPM and its children have ended")


def _members(group: int) -> list[int]:
    """Living processes of a process group."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                state, _, its_group = (entry / "stat").read_text().rpartition(")")[2].split()[:3]
                if int(its_group) == group and state != "Z":
                    found.append(int(entry.name))
    return found
