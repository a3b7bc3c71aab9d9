"""Probes, peers and effects of the bench of links: bounds of a probe, requests to the peers, loss and jitter, a bare timer."""

from __future__ import annotations

import os
import random
from statistics import stdev
from types import SimpleNamespace
from typing import cast

import pytest

from howfar.bench.links import bench as link_bench
from howfar.bench.links import probes
from howfar.bench.links.bars import judge_jitter, judge_loss
from howfar.bench.links.bench import Extras, Lost, OurLink, Request, Spread, jittery, lossy, read_rate
from howfar.bench.links.figures import FULL_TIMES, LinkPoint
from howfar.bench.links.peers import find_peer, tbf_arguments, toxiproxy
from howfar.bench.links.peers.toxiproxy import toxics
from howfar.bench.links.probes import BareCable, ping_patience_ns, runs_on
from howfar.engine.process import Launcher
from howfar.errors import LabError
from howfar.lab.link import LinkSpec
from howfar.lab.network import usable_cpus

OF = 10_000


def test_a_loss_is_right_inside_its_interval_and_nowhere_else() -> None:
    """Of 10 000 at 1 % a right link loses 75 to 126 in 99 of 100 cases: the deviation is 9.95."""
    met = {lost: judge_loss([lost], [OF], 0.01)[0].met for lost in (0, 73, 77, 100, 124, 128, 200)}
    assert met == {0: False, 73: False, 77: True, 100: True, 124: True, 128: False, 200: False}


def test_several_runs_are_judged_as_one_and_more_strictly() -> None:
    (verdict,) = judge_loss([120] * 10, [OF] * 10, 0.01)
    assert (verdict.median, verdict.best) == pytest.approx((1.2, 1.2))
    assert verdict.met_at_best, "one run may be as far off"
    assert not verdict.met, "ten runs may not"
    (verdict,) = judge_jitter([1.95] * 10, [1000] * 10, 2.0)
    assert verdict.median == pytest.approx(1.95)
    assert (verdict.met, verdict.met_at_best) == (False, True)


def test_the_interval_has_the_coverage_that_it_says() -> None:
    draw = random.Random(4)
    missed = 0
    for _ in range(400):
        missed += not judge_jitter([stdev(draw.gauss(10, 2) for _ in range(100))], [100], 2.0)[0].met
    assert 0 < missed <= 14, "four are expected; as many as that come by chance once in 20 000 cases"


def test_nothing_measured_is_nothing_judged() -> None:
    assert judge_loss([], [], 0.01) == judge_loss([0], [0], 0.01) == ()
    assert judge_jitter([], [], 2.0) == judge_jitter([0.0], [1], 2.0) == ()


class FakeLink:
    """A link that does what is requested, and says what that was."""

    def __init__(self, backend: str) -> None:
        self.backend, self.ready = backend, object()
        self.network = SimpleNamespace(client=None, server=None)
        self.shaped: list[LinkSpec] = []
        self.armed = 0

    def shape(self, spec: LinkSpec) -> None:
        self.shaped.append(spec)

    def arm(self) -> None:
        self.armed += 1

    def counters(self, *, reset: bool = False) -> None:
        return None


def effects_of(monkeypatch: pytest.MonkeyPatch, backend: str) -> tuple[FakeLink, Extras]:
    monkeypatch.setattr(link_bench, "missing_program", lambda: "no redis")
    monkeypatch.setattr(link_bench, "count_lost", lambda client, server, count: Lost(count // 100, count))
    monkeypatch.setattr(link_bench, "spread", lambda client, server, count: Spread(2e6, count))
    link = FakeLink(backend)
    cable = cast(BareCable, SimpleNamespace(client_host=None, server_host=None))
    ours = cast(OurLink, SimpleNamespace(link=link))
    extras = Extras(ours, cable, None, 0, FULL_TIMES, seed=7)
    monkeypatch.setattr(extras, "_unlimited", lambda: extras._runs["unlimited", "ours"].append(20.0))
    return link, extras


def test_each_run_starts_the_effects_with_a_new_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    link, extras = effects_of(monkeypatch, "packet")
    for _ in range(3):
        for step in extras.steps():
            step()
    assert link.shaped == [kind(seed) for seed in (7, 8, 9) for kind in (lossy, jittery)]
    assert link.armed == 6
    loss, jitter = extras.found("packet", True)[-2:]
    assert (loss.name, jitter.name) == ("loss", "jitter")
    assert loss.ours is not None and loss.ours.runs == (1.0, 1.0, 1.0)
    assert jitter.ours is not None and jitter.ours.median == 2.0
    assert [(bar.bar, bar.met) for bar in (*loss.bars, *jitter.bars)] == [("loss, %", True), ("jitter, ms", True)]


def test_a_back_end_without_effects_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    link, extras = effects_of(monkeypatch, "none")
    for step in extras.steps():
        step()
    loss, jitter = extras.found("none", True)[-2:]
    assert link.armed == 0
    assert loss.ours is None and "no effect" in str(loss.skipped)
    assert jitter.ours is None and jitter.bars == ()


def test_every_bench_draws_a_seed() -> None:
    assert Request(()).seed != Request(()).seed


def test_pings_over_a_long_rtt_have_enough_time() -> None:
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
    arguments = tbf_arguments("c0", 10**9)
    assert arguments[arguments.index("rate") + 1] == f"{10**9 * 1514 // 1538}bit"
    assert int(arguments[arguments.index("burst") + 1]) >= 65536, "a super-packet must pass whole"
    assert "tbf" not in tbf_arguments("c0", None)


def test_a_missing_peer_is_no_error(monkeypatch: pytest.MonkeyPatch, tmp_path: object) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    found = find_peer("toxiproxy")
    assert found.kind is None
    assert "--build-peer" in str(found.skipped)
    assert find_peer("veth").kind is not None


@pytest.mark.parametrize(
    "text", ['"GET","93023.26"\n', '"test","rps","avg_latency_ms"\n"GET","93023.26","0.3"\n', "GET,93023.26\n"]
)
def test_the_rate_of_redis_is_read_from_both_forms_of_its_csv(text: str) -> None:
    assert read_rate(text) == 93023.26


def test_redis_without_a_rate_is_an_error() -> None:
    with pytest.raises(LabError, match="reported no rate"):
        read_rate("Could not connect")


def test_a_timer_is_late_by_something() -> None:
    assert 0 < probes.timer_lateness_us(20) < 60e6


def test_a_timer_that_does_not_end_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probes, "_PATIENCE_S", 0.001)
    with pytest.raises(LabError, match="timed out"):
        probes.timer_lateness_us(1_000_000)
