"""The roads of the bench of the link: how long a probe may take, where a process runs, what the peers are asked for."""

from __future__ import annotations

import os
from typing import cast

import pytest

from howfar.bench.links.extras import read_rate
from howfar.bench.links.figures import FULL_TIMES, LinkPoint
from howfar.bench.links.peers import find_peer, kernel, toxiproxy
from howfar.bench.links.peers.toxiproxy import toxics
from howfar.bench.links.probes import BareCable, ping_patience_ns, runs_on
from howfar.engine.process import Launcher
from howfar.errors import LabError
from howfar.lab.hosts import usable_cpus


def test_pings_over_a_long_way_have_the_time_they_need() -> None:
    second = 10**9
    assert ping_patience_ns(FULL_TIMES.pings(second), second) > 4 * FULL_TIMES.pings(second) * second
    assert ping_patience_ns(1, 0) >= 10 * second


def test_where_a_process_runs_is_read_from_the_kernel() -> None:
    found = runs_on(os.getpid())
    assert found is not None
    assert found.cpus == tuple(sorted(os.sched_getaffinity(0)))
    assert len(found.scheduling) == 1
    assert runs_on(None) is None
    assert runs_on(2**22 + 1) is None, "no process has such a number"


class PinnedCable:
    """Says on which CPUs its server was to be started, and starts nothing."""

    def __init__(self) -> None:
        self.server_host = self
        self.cpus: list[tuple[int, ...]] = []

    def launcher(self, cpus: tuple[int, ...]) -> Launcher:
        self.cpus.append(cpus)
        raise LabError("that is all")


def test_toxiproxy_may_run_wherever_our_emulator_may(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(toxiproxy, "find_program", lambda: "toxiproxy-server")
    cable = PinnedCable()
    with pytest.raises(LabError, match="that is all"), toxiproxy.Toxiproxy().open(cast(BareCable, cable)):
        pass
    assert cable.cpus == [usable_cpus()], "not on the server's half"


def test_toxiproxy_is_asked_for_whole_milliseconds_and_payload() -> None:
    def latencies(rtt_ms: float) -> dict[str, int]:
        made, _ = toxics(LinkPoint(rtt_ms=rtt_ms, rate_gbit=None))
        return {toxic["stream"]: toxic["attributes"]["latency"] for toxic in made}

    assert latencies(10) == {"upstream": 5, "downstream": 5}
    assert latencies(85) == {"upstream": 42, "downstream": 43}
    assert latencies(1) == {"downstream": 1}
    assert latencies(0.2) == {}
    made, note = toxics(LinkPoint(rtt_ms=0.2, rate_gbit=1))
    assert "0 ms" in note
    rates = [toxic["attributes"]["rate"] for toxic in made]
    assert rates == [117_685] * 2, "10^9 bit/s x 1448/1538 are 117685 kB/s of payload"
    assert toxics(LinkPoint(rtt_ms=10, rate_gbit=1))[1] == ""


def test_tbf_is_asked_for_the_rate_of_whole_frames() -> None:
    words = kernel.tbf_arguments("c0", 10**9)
    assert words[words.index("rate") + 1] == f"{10**9 * 1514 // 1538}bit"
    assert int(words[words.index("burst") + 1]) >= 65536, "a super-packet must pass whole"
    assert "tbf" not in kernel.tbf_arguments("c0", None)


def test_a_peer_that_is_not_here_is_no_error(monkeypatch: pytest.MonkeyPatch, tmp_path: object) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    for name in ("toxiproxy", "mahimahi"):
        found = find_peer(name)
        assert found.kind is None
        assert found.skipped
    assert "--build-peer" in str(find_peer("toxiproxy").skipped)
    assert find_peer("veth").kind is not None


@pytest.mark.parametrize(
    "text", ['"GET","93023.26"\n', '"test","rps","avg_latency_ms"\n"GET","93023.26","0.3"\n', "GET,93023.26\n"]
)
def test_the_rate_of_redis_is_read_from_both_forms_of_its_csv(text: str) -> None:
    assert read_rate(text) == 93023.26


def test_redis_without_a_rate_is_an_error() -> None:
    with pytest.raises(LabError, match="reported no rate"):
        read_rate("Could not connect")
