"""Three servers in one environment: each path leads to each server, and every receipt proves it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.lab.auxiliary_scenario import KEYS, REQUESTS
from tests.lab.howfar_runs import PATHS
from tests.lab.local_servers import require_server
from tests.lab.sandboxes import run_lab
from tests.lab.scenario_programs import run_scenario
from tests.lab.undisturbed import unexcused

pytestmark = [pytest.mark.lab, pytest.mark.usefixtures("namespaces", "mariadb", "stores")]
TLS = ("remote:1.3", "socket:1.3")
CASES = (*PATHS, *TLS)
STORES = ("redis", "memcached")
PORTS = {"mysql": 3306, "redis": 6379, "memcached": 11211}


@pytest.fixture(scope="module")
def stores() -> None:
    for program in ("redis-server", "memcached"):
        if shutil.which(program) is None:
            pytest.skip(f"{program} is not installed")


def _scenario(cache: Path, server: str, *cases: str) -> dict[str, Any]:
    return run_scenario("auxiliary_scenario", server, *cases, cache=cache)[0]


@pytest.fixture(scope="module")
def seen(cache: Path) -> dict[str, Any]:
    return _scenario(cache, "mariadb", *CASES, "death")


def _check_case(trial: dict[str, Any], case: str) -> None:
    """Check what holds for every case and main server."""
    path, _, tls = case.partition(":")
    assert unexcused(trial["violations"]) == [], case
    services = trial["receipt"]["services"]
    assert set(services) == set(STORES) and set(trial["endpoints"]) == set(PORTS)
    assert trial["filled"] == dict.fromkeys(STORES, KEYS)
    for name in STORES:
        counters = services[name]["counters"]
        stored = counters["cmdstat_set" if name == "redis" else "cmd_set"]
        assert (stored, counters["lookup_hits"], counters["lookup_misses"]) == (KEYS, REQUESTS, 0)
        assert trial["endpoints"][name]["tls"] == bool(tls and path != "socket")
        assert services[name]["door"]["plain"] != trial["endpoints"][name]["tls"]
    assert trial["endpoints"]["mysql"]["tls"] == bool(tls)
    for name, endpoint in trial["endpoints"].items():
        target, session = endpoint["target"], trial["sessions"][name]
        assert session["address_family"] == ("unix" if "path" in target else "inet")
        assert ("path" in target) == (path in ("socket", "forwarded-socket"))
        assert target.get("port", PORTS[name]) == PORTS[name]


@pytest.mark.parametrize("case", CASES)
def test_each_server_is_reached_by_the_path(seen: dict[str, Any], case: str) -> None:
    trial = seen["trials"][case]
    _check_case(trial, case)
    assert len({json.dumps(endpoint["target"]) for endpoint in trial["endpoints"].values()}) == 3
    roles = {"server", "redis", "memcached", *(("link",) if "remote" in case or "forwarded" in case else ())}
    assert set(trial["observed"]) - {"forwarder"} == roles
    assert {"client", *trial["observed"]} == set(trial["roles"]), "each process used CPU time"


def test_each_server_has_its_own_forwarders(seen: dict[str, Any]) -> None:
    receipt = seen["trials"]["forwarded-socket"]["receipt"]
    forwarders = {"mysql": receipt["forwarder"]} | {name: receipt["services"][name]["forwarder"] for name in STORES}
    assert {name: forwarder["port"] for name, forwarder in forwarders.items()} == PORTS
    for forwarder in forwarders.values():
        assert forwarder["processes_most"]["client_side"] >= 1 <= forwarder["processes_most"]["server_side"]
    assert all(receipt["services"][name]["tcp_ports"] == [] for name in STORES)


def test_a_wrong_session_of_an_auxiliary_server_is_reported_with_its_name(seen: dict[str, Any]) -> None:
    for case in CASES:
        accused = seen["trials"][case]["accused"]
        assert len(accused) == 2 and all(sentence.startswith("redis: ") for sentence in accused)


def test_client_and_server_have_equal_cpu_shares_and_local_paths_use_the_servers(seen: dict[str, Any]) -> None:
    environment = seen["environment"]
    if set(environment["server_cpus"]) & set(environment["client_cpus"]):
        pytest.skip("one CPU only")
    assert len(environment["server_cpus"]) == len(environment["client_cpus"])
    server, client = (set(environment[f"{host}_cpus"]) for host in ("server", "client"))
    for case in CASES:
        trial = seen["trials"][case]
        local = case.partition(":")[0] in ("socket", "tcp")
        assert {role: _cpus(cpus) == server for role, cpus in trial["cpus"].items()} == dict.fromkeys(
            ("server", "redis", "memcached"), True
        )
        assert _cpus(trial["application_cpus"]) == (server if local else client)
        sides = [_cpus(cpus) for cpus in trial["forwarders_cpus"]]
        assert sides in ([], [server, client] * 3)
    assert set(environment["link_cpus"]) >= server | client, "the link may use all CPUs, which the environment states"


def _cpus(listed: str) -> set[int]:
    """The CPUs of a list such as `0-2,5`, the kernel's notation."""
    spans = (span.partition("-") for span in listed.split(","))
    return {cpu for first, _, last in spans for cpu in range(int(first), int(last or first) + 1)}


def test_the_link_carried_what_all_servers_counted(seen: dict[str, Any]) -> None:
    receipt = seen["trials"]["remote"]["receipt"]
    servers = [receipt["server"], *receipt["services"].values()]
    for direction, counter in (("to_server", "bytes_received"), ("to_client", "bytes_sent")):
        counted = [one["counters"][counter] for one in servers]
        assert min(counted) > 0
        assert receipt["link"]["counters"][direction]["wire_bytes"] > sum(counted)


def test_a_dead_server_is_named(seen: dict[str, Any]) -> None:
    for name, message in seen["trials"]["death"].items():
        assert name in message and "ended during the trial (signal 9)" in message
    assert set(seen["trials"]["death"]) == set(STORES)


@pytest.mark.thorough
def test_auxiliary_servers_of_mysql(cache: Path) -> None:
    program = require_server("mysql").path  # the tests' cache has no private installs
    found = _scenario(cache, str(program), "tcp")
    _check_case(found["trials"]["tcp"], "tcp")
    assert found["trials"]["tcp"]["endpoints"]["mysql"]["kind"] == "mysql"


def test_a_command_finds_each_server(cache: Path) -> None:
    script = (
        'printf "PING\\r\\n" | socat -t 5 - TCP:$HOWFAR_REDIS_HOST:$HOWFAR_REDIS_PORT; '
        'printf "version\\r\\nquit\\r\\n" | socat -t 5 - TCP:$HOWFAR_MEMCACHED_HOST:$HOWFAR_MEMCACHED_PORT; '
        'mariadb --defaults-file="$HOWFAR_CLIENT_CNF" -BNe "SELECT 40 + 2"'
    )
    done = run_lab(
        *("--beside", "redis,memcached", "--path", "tcp", "--tables", "0", "--", "sh", "-c", script), cache=cache
    )
    output = done.stdout.split()
    assert (output[0], output[1], output[-1]) == ("+PONG", "VERSION", "42"), done.stderr
    assert "redis" in done.stderr and "memcached" in done.stderr
