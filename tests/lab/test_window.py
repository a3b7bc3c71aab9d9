"""The record of a measured window, compared with the link's own counters and with a known case."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.lab.programs import answers
from tests.lab.undisturbed import agree

pytestmark = [pytest.mark.alone, pytest.mark.lab, pytest.mark.usefixtures("namespaces", "mariadb")]
_BULK = {"range_size": 1000, "point_selects": 1, "sum_ranges": 0, "order_ranges": 0, "distinct_ranges": 0}
_LOAD = {"connections": 4, "measure_ns": 1_500_000_000, "workload": _BULK}
_REQUEST = {"tables": 1, "table_size": 2000, "connections": 8, "with_goodput": False}
_LOOKS_SHARE = 0.03
"""Maximum share of one CPU for taking samples, which must not disturb the measurement."""
_FRAMING = 24
"""Bytes of preamble, check sequence and gap that a frame takes on the wire beyond what an interface counts."""


def _run(cache: Path, request: dict[str, Any], load: dict[str, Any], *paths: str) -> dict[str, Any]:
    return answers("window_scenario", json.dumps(request), json.dumps(load), *paths, cache=cache)[0]


@pytest.fixture(scope="module")
def seen(cache: Path) -> dict[str, Any]:
    return _look(cache)


def _look(cache: Path) -> dict[str, Any]:
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
    """They agree within 2 %: bytes in flight at only one end of the window are at most a queue of 1.25 MB of 100 MB. A busy machine
    may now and then delay one of the two readings; wrong arithmetic is wrong each time."""

    def disagreement(trial: dict[str, Any]) -> str | None:
        off = _disagreement(trial)
        return f"by {off:.3f}" if off > 0.02 else None

    trial = agree(lambda: _run(cache, _REQUEST, _LOAD, "remote")["trials"][0], disagreement, seen["remote"])
    assert max(sample["to_client_queue_bytes"] for sample in trial["window"]["network"]) > 1500


def test_each_path_shows_what_it_has(seen: dict[str, Any], cache: Path) -> None:
    """A record that a busy machine misses in one run is there in another run; a record that a path lacks is never there."""
    agree(lambda: _look(cache), _wrong(_each_path_shows), seen)


def _wrong(asserts: Callable[[dict[str, Any]], None]) -> Callable[[dict[str, Any]], str | None]:
    def judged(seen: dict[str, Any]) -> str | None:
        try:
            asserts(seen)
        except AssertionError as error:
            return str(error) or "an assertion"
        return None

    return judged


def _each_path_shows(seen: dict[str, Any]) -> None:
    assert [seen[path]["window"]["interface"] for path in ("socket", "tcp", "remote")] == ["", "lo", "s0"]
    assert seen["socket"]["window"]["network"] == seen["socket"]["window"]["tcp"] == []
    for path in ("tcp", "remote"):
        window, finished = seen[path]["window"], seen[path]["finished"]
        assert [record["host"] for record in window["tcp"]] == ["client", "server"]
        assert all(record["connections"] == _LOAD["connections"] for record in window["tcp"])
        last = window["network"][-1]
        share = window["length_ns"] / finished["elapsed_ns"]
        # Headers and acknowledgements add to the protocol's bytes; the slack allows for a window slightly off the engine's.
        assert last["to_client_bytes"] > 0.8 * share * finished["bytes"]["to_client"]
        assert last["to_client_bytes"] > 10 * last["to_server_bytes"]
    for path in ("socket", "tcp", "remote"):
        window, finished = seen[path]["window"], seen[path]["finished"]
        assert 0 < window["looks_cpu_ns"] < _LOOKS_SHARE * window["length_ns"]
        assert 0.5 < window["server"]["requests"] / finished["queries"] < 1.5
        assert window["cpus_busy"] and all(0 <= share <= 1 for share in window["cpus_busy"].values())
    assert seen["remote"]["window"]["link_cpu_ns"] and not seen["tcp"]["window"]["link_cpu_ns"]
    assert seen["fsync"]["512"]["count"] > 0


def test_a_small_receive_buffer_shows_in_the_servers_record(cache: Path) -> None:
    request = {"tables": 1, "table_size": 2000, "connections": 8, "with_goodput": False}

    def shows(trial: dict[str, Any]) -> None:
        client, server = trial["window"]["tcp"]
        assert (client["host"], server["host"]) == ("client", "server")
        assert server["rwnd_limited_ns"] > server["busy_ns"] / 2
        assert client["rwnd_limited_ns"] < server["rwnd_limited_ns"] / 10

    agree(
        lambda: _run(cache, request, {**_LOAD, "rmem": 8192, "rtt_ns": 2_000_000}, "remote")["trials"][0], _wrong(shows)
    )


def test_the_link_stays_what_was_calibrated(cache: Path) -> None:
    """Even after bulk transfers the link's threads stay on the receivers' CPUs. When they were reassigned, the RTT grew by 10 to 25 %
    each time. Other programs only add to the RTT, also to the calibrated one; so the best of several probes is judged, and only for
    being higher."""

    def disagreement(rest: dict[str, Any]) -> str | None:
        assert rest["tasks"]["lc-ls"] == rest["shares"]["server"]
        assert rest["tasks"]["ls-lc"] == rest["shares"]["client"]
        return None if min(rest["probes"]) < 1.08 * rest["calibrated"] else str(rest)

    agree(lambda: _run(cache, {}, {}), disagreement)
