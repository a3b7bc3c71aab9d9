"""The samples of a measured window, compared with the link's own counters and in a known case."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.lab.scenario_programs import run_scenario
from tests.lab.undisturbed import measure_until_agreed

pytestmark = [pytest.mark.alone, pytest.mark.lab, pytest.mark.usefixtures("namespaces", "mariadb")]
_BULK = {"range_size": 1000, "point_selects": 1, "sum_ranges": 0, "order_ranges": 0, "distinct_ranges": 0}
_LOAD = {"connections": 4, "measure_ns": 1_500_000_000, "workload": _BULK}
_REQUEST = {"tables": 1, "table_size": 2000, "connections": 8, "with_goodput": False}
_MAX_SAMPLING_CPUS = 0.03
"""Maximum CPUs for taking samples, which must not disturb the measurement."""
_FRAMING = 24
"""Bytes of preamble, check sequence and gap per frame, which an interface does not count."""


def _run(cache: Path, request: dict[str, Any], load: dict[str, Any], *paths: str) -> dict[str, Any]:
    return run_scenario("window_scenario", json.dumps(request), json.dumps(load), *paths, cache=cache)[0]


@pytest.fixture(scope="module")
def seen(cache: Path) -> dict[str, Any]:
    return _measure_paths(cache)


def _measure_paths(cache: Path) -> dict[str, Any]:
    answer = _run(cache, _REQUEST, _LOAD, "socket", "tcp", "remote")
    return {trial["path"]: trial for trial in answer["trials"]} | {"fsync": answer["fsync"]}


def _disagreement(trial: dict[str, Any]) -> float:
    """Relative deviation of the samples from wire = bytes with Ethernet headers + 24 B for each frame, in the worse direction."""
    last, (before, after) = trial["window"]["network"][-1], trial["link"]
    shares: list[float] = []
    for direction in ("to_server", "to_client"):
        wire = after[direction]["wire_bytes"] - before[direction]["wire_bytes"]
        shares.append(abs((last[f"{direction}_bytes"] + _FRAMING * last[f"{direction}_packets"]) / wire - 1))
    return max(shares)


def test_samples_agree_with_the_links_counters(seen: dict[str, Any], cache: Path) -> None:
    """They agree within 2 %: bytes in flight at one end of the window are at most a queue of 1.25 MB of 100 MB. A busy machine may
    delay one of the two readings in some attempts; a wrong computation is wrong in each."""

    def disagreement(trial: dict[str, Any]) -> str | None:
        deviation = _disagreement(trial)
        return f"by {deviation:.3f}" if deviation > 0.02 else None

    trial = measure_until_agreed(
        lambda: _run(cache, _REQUEST, _LOAD, "remote")["trials"][0], disagreement, seen["remote"]
    )
    assert max(sample["to_client_queue_bytes"] for sample in trial["window"]["network"]) > 1500


def test_each_path_has_its_samples(seen: dict[str, Any], cache: Path) -> None:
    """A sample that a busy machine misses in one run is present in another; one that a path lacks is never present."""
    measure_until_agreed(lambda: _measure_paths(cache), _error_of(_check_samples), seen)


def _error_of(check: Callable[[dict[str, Any]], None]) -> Callable[[dict[str, Any]], str | None]:
    def judged(seen: dict[str, Any]) -> str | None:
        try:
            check(seen)
        except AssertionError as error:
            return str(error) or "an assertion"
        return None

    return judged


def _check_samples(seen: dict[str, Any]) -> None:
    assert [seen[path]["window"]["interface"] for path in ("socket", "tcp", "remote")] == ["", "lo", "s0"]
    assert seen["socket"]["window"]["network"] == seen["socket"]["window"]["tcp"] == []
    for path in ("tcp", "remote"):
        window, finished = seen[path]["window"], seen[path]["finished"]
        assert [record["host"] for record in window["tcp"]] == ["client", "server"]
        assert all(record["connections"] == _LOAD["connections"] for record in window["tcp"])
        last = window["network"][-1]
        share = window["length_ns"] / finished["elapsed_ns"]
        # Headers and acknowledgements add to the protocol's bytes; the window may deviate slightly from the engine's.
        assert last["to_client_bytes"] > 0.8 * share * finished["bytes"]["to_client"]
        assert last["to_client_bytes"] > 10 * last["to_server_bytes"]
    for path in ("socket", "tcp", "remote"):
        window, finished = seen[path]["window"], seen[path]["finished"]
        assert 0 < window["looks_cpu_ns"] < _MAX_SAMPLING_CPUS * window["length_ns"]
        assert 0.5 < window["server"]["requests"] / finished["queries"] < 1.5
        assert window["cpus_busy"] and all(0 <= share <= 1 for share in window["cpus_busy"].values())
    assert seen["remote"]["window"]["link_cpu_ns"] and not seen["tcp"]["window"]["link_cpu_ns"]
    assert seen["fsync"]["512"]["count"] > 0


def test_a_small_receive_buffer_shows_in_the_servers_record(cache: Path) -> None:
    def shows(trial: dict[str, Any]) -> None:
        client, server = trial["window"]["tcp"]
        assert (client["host"], server["host"]) == ("client", "server")
        assert server["rwnd_limited_ns"] > server["busy_ns"] / 2
        assert client["rwnd_limited_ns"] < server["rwnd_limited_ns"] / 10

    measure_until_agreed(
        lambda: _run(cache, _REQUEST, {**_LOAD, "rmem": 8192, "rtt_ns": 2_000_000}, "remote")["trials"][0],
        _error_of(shows),
    )


@pytest.mark.thorough
def test_the_link_stays_as_calibrated(cache: Path) -> None:
    """The link's threads stay on the receivers' CPUs even after bulk transfers: reassigning them made the RTT 10 to 25 % longer. Other
    programs can only make an RTT longer, also the calibrated one, so the shortest of several probes must not be longer."""

    def disagreement(rest: dict[str, Any]) -> str | None:
        assert rest["tasks"]["lc-ls"] == rest["shares"]["server"]
        assert rest["tasks"]["ls-lc"] == rest["shares"]["client"]
        return None if min(rest["probes"]) < 1.08 * rest["calibrated"] else str(rest)

    measure_until_agreed(lambda: _run(cache, {}, {}), disagreement)
