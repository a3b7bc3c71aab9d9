"""The arithmetic, the bars and the table of the link's bench, on made-up measurements."""

from __future__ import annotations

import os
import random
from statistics import stdev
from types import SimpleNamespace
from typing import cast

import pytest
from click.testing import CliRunner
from rich.console import Console

from howfar.bench.links import bench as link_bench
from howfar.bench.links import figures, probes
from howfar.bench.links.bars import judge_hogs, judge_jitter, judge_link, judge_loss, judge_redis, judge_unlimited
from howfar.bench.links.bench import (
    Extras,
    LinkGrid,
    LinksRequest,
    LossCount,
    MeasuredSpread,
    OurLink,
    Setup,
    link_with_jitter,
    link_with_loss,
    read_rate,
    run_blocks,
)
from howfar.bench.links.figures import (
    FULL_TIMES,
    RATES_GBIT,
    RTTS_MS,
    Extra,
    LinkBench,
    LinkPoint,
    Run,
    RunsOn,
    Setting,
    Times,
    grid,
)
from howfar.bench.links.peers import PEERS, FoundPeer, Shape, find_peer, tbf_arguments, toxiproxy
from howfar.bench.links.peers.toxiproxy import toxics
from howfar.bench.links.probes import BareCable, ProbedLink, Transfer, ping_timeout_ns, runs_on, unmodelled_drops
from howfar.cli.bench import bench, show
from howfar.contract.messages import (
    DirectionStats,
    Drops,
    GoodputResult,
    LinkStats,
)
from howfar.engine.process import Launcher
from howfar.errors import LabError
from howfar.lab.link import LinkSpec
from howfar.lab.link.backends import NAMES, SHAPING, backends
from howfar.lab.network import usable_cpus

GIGABIT = LinkPoint(rtt_ms=10, rate_gbit=1)


def run(
    p50: float = 10.02, p99: float = 10.03, gbit: float = 1448 / 1538, core: float | None = 0.3, drops: int | None = 0
) -> Run:
    return Run(
        rtt_ms_p50=p50,
        rtt_ms_p99=p99,
        rtt_ms_min=p50,
        rtt_ms_p50_from_idle=p50 + 0.05,
        goodput_gbit=gbit,
        cpu_core_per_gbit=core,
        machine_core_per_gbit=0.9,
        lateness_us_p999=7.0,
        congestion_control="cubic",
        drops=drops,
        load_average=0.1,
    )


def bars(*runs: Run, point: LinkPoint = GIGABIT, privileged: bool = True) -> dict[str, tuple[bool, bool]]:
    """By bar: whether the median meets it, and whether the best run does."""
    found = figures.make_row(point, "packet", runs, privileged, None)
    return {bar.bar: (bar.met, bar.met_at_best) for bar in found.bars}


def bench_of(rows: tuple[figures.Row, ...], extras: tuple[Extra, ...] = (), **changes: object) -> LinkBench:
    setting = Setting(
        howfar="0",
        kernel="Linux",
        cpus=(0, 1),
        privileged=True,
        backend="packet",
        realtime=True,
        short_slice=False,
        offload=True,
        ours_runs_on=RunsOn(cpus=(0, 1), scheduling=("real-time class",)),
        peer_runs_on=None,
        congestion_control="cubic",
        peer="toxiproxy v2",
        peer_skipped=None,
        runs=1,
        seed=0,
        load_average=0.1,
    )
    return LinkBench(setting=setting.model_copy(update=changes), rows=rows, extras=extras)


def shown(found: LinkBench, columns: int = 200) -> str:
    screen = Console(width=columns, no_color=True, highlight=False)
    with screen.capture() as captured:
        show(found, screen)
    return captured.get()


def test_a_row_has_the_medians_and_keeps_every_run() -> None:
    runs = [run(p50=10.0 + extra, gbit=0.9 + extra) for extra in (0.00, 0.01, 0.04)]
    row = figures.make_row(GIGABIT, "packet", runs, True, ("toxiproxy", "whole ms", [run(core=0.2, drops=None)]))
    assert row.obtained.rtt_ms_p50 == 10.01
    assert row.obtained.goodput_ratio == pytest.approx(0.91 * 1538 / 1448)
    assert row.cpu_core_per_gbit == 0.3
    assert row.runs == tuple(runs)
    assert row.peer is not None
    assert (row.peer.name, row.peer.note, row.peer.cpu_core_per_gbit) == ("toxiproxy", "whole ms", 0.2)
    documented = {"asked", "obtained", "cpu_core_per_gbit", "peer"}
    assert documented <= set(row.model_dump())


def test_bars_are_judged_by_the_median_and_the_best_is_said() -> None:
    good, bad = run(), run(p50=10.2, p99=10.5, gbit=0.9)
    assert set(bars(good, good, bad).values()) == {(True, True)}
    off = bars(good, bad, bad)
    assert off["RTT p50 error, µs"] == (False, True)
    assert off["RTT p99 excess, µs"] == (False, True)
    assert off["goodput off, %"] == (False, True)


@pytest.mark.parametrize(("rtt_ms", "privileged", "most_us"), [(0.2, True, 10), (10, True, 100), (10, False, 200)])
def test_the_rtt_may_be_off_by_so_much(rtt_ms: float, privileged: bool, most_us: float) -> None:
    def met(off_us: float) -> bool:
        p50 = rtt_ms + off_us / 1e3
        found = bars(run(p50=p50, p99=p50), point=LinkPoint(rtt_ms=rtt_ms, rate_gbit=None), privileged=privileged)
        return found["RTT p50 error, µs"][0]

    assert met(most_us - 0.01)
    assert met(0.01 - most_us), "too early is as wrong as too late"
    assert not met(most_us + 0.01)


def test_the_time_that_a_ping_takes_on_the_wire_is_no_error() -> None:
    """91 bytes each way take 1.456 ms of the RTT at 1 Mb/s."""
    slow = LinkPoint(rtt_ms=10, rate_gbit=0.001)
    assert slow.rest_rtt_ms("packet") == pytest.approx(11.456)
    assert slow.rest_rtt_ms("kernel") == 10, "its bucket lets a lone packet through at once"
    assert LinkPoint(rtt_ms=10, rate_gbit=None).rest_rtt_ms("packet") == 10
    found = bars(run(p50=11.46, p99=11.47, gbit=0), point=slow)
    assert (found["RTT p50 error, µs"], found["RTT p99 excess, µs"]) == ((True, True), (True, True))
    assert bars(run(p50=10, p99=10, gbit=0), point=slow)["RTT p50 error, µs"] == (False, False), "that is too early"


def test_one_drop_in_one_run_is_too_many() -> None:
    assert bars(run(), run(), run(drops=1))["unmodelled drops"] == (False, True)


def test_bars_stand_where_the_issue_puts_them() -> None:
    def names(rtt_ms: float, rate_gbit: float | None) -> set[str]:
        return set(bars(run(), point=LinkPoint(rtt_ms=rtt_ms, rate_gbit=rate_gbit))) - {
            "RTT p50 error, µs",
            "RTT p99 excess, µs",
            "unmodelled drops",
        }

    assert names(10, 1) == {"goodput off, %"}
    assert names(10, 10) == {"goodput off, %", "CPU, core per Gb/s"}
    assert names(85, 10) == {"goodput, %", "CPU, core per Gb/s"}
    assert names(85, 1) == set()
    assert names(1, None) == set()


def test_the_bars_of_the_extras() -> None:
    assert [bar.met for bar in judge_unlimited("packet", [11, 12.5, 13])] == [True]
    assert [bar.met for bar in judge_unlimited("packet", [11.9])] == [False]
    assert judge_unlimited("other", [1]) == ()
    assert [bar.met for bar in judge_redis([0.79])] == [False]
    assert [bar.met for bar in judge_hogs([30], privileged=True)] == [False]
    assert [bar.met for bar in judge_hogs([30], privileged=False)] == [True]


def test_goodput_beyond_the_rate_is_off_too() -> None:
    found = judge_link(
        1,
        1,
        rest_rtt_ms=1,
        rtt_p50_ms=[1],
        rtt_p99_ms=[1],
        goodput_share=[1.01],
        cpu_core_per_gbit=[],
        drops=[],
        privileged=True,
    )
    assert [bar.bar for bar in found if not bar.met] == ["goodput off, %"]


def test_a_miss_is_marked_in_its_line_and_named_below() -> None:
    good = figures.make_row(GIGABIT, "packet", [run()], True, None)
    bad = figures.make_row(LinkPoint(rtt_ms=1, rate_gbit=10), "packet", [run(p50=1.2, p99=1.3, drops=3)], True, None)
    text = shown(bench_of((good, bad)))
    lines = {line[:15].strip(): line for line in text.splitlines()}
    assert "!" not in lines["10ms 1gbit"]
    assert lines["1ms 10gbit"].count("!") == 5, "both RTTs, goodput, CPU and drops"
    assert "MISSED by 1 of 2: 1ms 10gbit 200" in text
    assert "MISSED by 1 of 2: 1ms 10gbit 3" in text


def test_the_table_says_who_was_skipped_and_what_was_not_asked() -> None:
    note = "asked for 0 ms: it knows whole ms only"
    rows = tuple(
        figures.make_row(point, "packet", [run()], True, ("toxiproxy", note_of_peer, [run(drops=None)]))
        for point, note_of_peer in ((LinkPoint(rtt_ms=0.2, rate_gbit=1), note), (GIGABIT, ""))
    )
    extra = Extra(name="redis", what="redis GET", unit="requests/s", skipped="redis-server not found")
    text = shown(bench_of(rows, (extra,), peer_skipped="go was not found"))
    assert "Peer skipped: go was not found" in text
    assert f"toxiproxy was {note} (0.2ms 1gbit)" in text
    assert "redis GET: skipped, redis-server not found" in text
    assert "Other programs" not in text
    assert "Other programs" in shown(bench_of(rows, load_average=1.5))


def test_the_grid_is_every_rtt_with_every_rate_once() -> None:
    found = grid([200_000, 85_000_000, 200_000], [10**8, 10**10])
    assert [(one.rtt_ms, one.rate_gbit) for one in found] == [(0.2, 0.1), (0.2, 10), (85, 0.1), (85, 10)]
    assert found[2].rtt_ns == 85_000_000
    assert found[1].rate_bps == 10**10


def test_the_default_grid_is_what_the_help_says() -> None:
    output = CliRunner().invoke(bench, ["link", "--help"]).output
    assert "0.2ms,1ms,10ms,85ms" in output
    assert "0.1gbit,1gbit,10gbit" in output
    assert (len(RTTS_MS), len(RATES_GBIT)) == (4, 3)


def test_the_back_ends_are_named_once() -> None:
    assert tuple(backends()) == NAMES
    assert set(NAMES) - set(SHAPING) == {"none"}


def test_pings_fit_and_are_never_too_few() -> None:
    times = Times(pings_ns=10**9, min_pings=50, max_pings=500, transfer_ns=10**9)
    assert [times.pings(rtt) for rtt in (0, 1_000_000, 10_000_000, 85_000_000)] == [500, 500, 100, 50]
    warmup_ns, _ = FULL_TIMES.transfer(LinkPoint(rtt_ms=85, rate_gbit=10))
    assert warmup_ns == 5_000_000_000, "10 Gb/s x 85 ms is judged after 5 s, no later"
    assert FULL_TIMES.transfer(LinkPoint(rtt_ms=85, rate_gbit=1))[0] > warmup_ns


@pytest.mark.parametrize(("arguments", "expected"), [(["--rtt", "1"], "unit"), (["--rate", "1gbit,x"], "rate")])
def test_quantities_without_a_unit_are_refused(arguments: list[str], expected: str) -> None:
    result = CliRunner().invoke(bench, ["link", *arguments])
    assert result.exception is not None
    assert expected in str(result.exception)


class FakeLink:
    """A link whose measurements equal the request."""

    def __init__(self) -> None:
        self.points: list[LinkPoint] = []

    def measure(self, point: LinkPoint, times: Times) -> Run:
        self.points.append(point)
        return run(p50=point.rtt_ms, p99=point.rtt_ms)


def setup_with(shape: Shape | None) -> Setup:
    return Setup(cast(OurLink, FakeLink()), cast(BareCable, None), FoundPeer("toxiproxy"), shape)


def test_every_run_takes_each_step_once_in_random_order() -> None:
    links = grid([1_000_000, 10_000_000, 85_000_000], [10**9])
    taken: list[str] = []
    places: list[tuple[int, int]] = []
    measured = LinkGrid(setup_with(None), FULL_TIMES)
    run_blocks(
        LinksRequest(links, runs=4),
        measured,
        [lambda: taken.append("redis")],
        lambda done, of: places.append((done, of)),
    )
    assert places == [(number, 16) for number in range(1, 17)]
    assert taken == ["redis"] * 4
    points = cast(FakeLink, measured.setup.ours).points
    blocks = [tuple(points[at : at + 3]) for at in range(0, 12, 3)]
    assert all(set(block) == set(links) for block in blocks)
    assert len(set(blocks)) > 1
    assert len(measured.row(links[0], "packet", True).runs) == 4


def test_a_peer_that_breaks_down_costs_its_own_figures_only() -> None:
    tried: list[LinkPoint] = []

    def broken(point: LinkPoint) -> tuple[ProbedLink, str]:
        tried.append(point)
        raise LabError("no answer")

    measured = LinkGrid(setup_with(broken), FULL_TIMES)
    run_blocks(LinksRequest((GIGABIT,), runs=3), measured, (), lambda done, of: None)
    row = measured.row(GIGABIT, "packet", True)
    assert (len(row.runs), row.peer, row.peer_failed) == (3, None, "no answer")
    assert len(tried) == 1, "it is asked no more"
    assert "The peer failed at 10ms 1gbit: no answer" in shown(bench_of((row,)))


class FakeShaped:
    """Our link for the extra measurements; its counters show one unmodelled drop."""

    def __init__(self) -> None:
        self.link = self

    def shape(self, point: LinkPoint) -> ProbedLink:
        return ProbedLink("ours", 1, Launcher())

    def counters(self) -> LinkStats:
        drops = Drops(queue=5, loss=0, outage=0, arena=0, socket=1, transmit=0)
        numbers = {name: 0 for name in DirectionStats.model_fields if name != "drops"}
        direction = DirectionStats.model_validate({**numbers, "drops": drops.model_dump()})
        none = direction.model_copy(update={"drops": drops.model_copy(update={"socket": 0})})
        return LinkStats(to_server=direction, to_client=none)


class FakeCable:
    def probed_link(self) -> ProbedLink:
        return ProbedLink("cable", 2, Launcher())


def test_drops_that_the_kernel_does_not_report_are_unknown() -> None:
    stats = FakeShaped().counters()
    assert unmodelled_drops(stats) == 1
    silent = stats.to_client.model_copy(update={"drops": stats.to_client.drops.model_copy(update={"socket": None})})
    assert unmodelled_drops(stats.model_copy(update={"to_client": silent})) == 1, "what is known is told"
    assert unmodelled_drops(LinkStats(to_server=silent, to_client=silent)) is None


@pytest.mark.parametrize("delays", [False, True])
def test_the_bare_cable_is_reset_for_the_extras(monkeypatch: pytest.MonkeyPatch, delays: bool) -> None:
    shaped: list[LinkPoint] = []
    went: set[str] = set()

    def shape(point: LinkPoint) -> tuple[ProbedLink, str]:
        shaped.append(point)
        return ProbedLink("peer", 3, Launcher()), ""

    def transfer(link: ProbedLink, warmup_ns: int, measure_ns: int) -> Transfer:
        assert shaped, "what the peer laid on the cable is still there"
        went.add(link.host)
        result = GoodputResult(
            bytes=1, elapsed_ns=1, bits_per_second=2e10, retransmits=0, congestion_control="cubic", mss=1448
        )
        return Transfer(result, None, None, None)

    monkeypatch.setattr(link_bench, "transfer", transfer)
    monkeypatch.setattr(link_bench, "missing_program", lambda: "no redis")
    kind = PEERS["toxiproxy" if delays else "veth"]()
    setup = Setup(cast(OurLink, FakeShaped()), cast(BareCable, FakeCable()), FoundPeer("tbf", kind), shape)
    extras = Extras(setup, 0, FULL_TIMES, 0)
    for effect in ("_loss", "_jitter"):
        monkeypatch.setattr(Extras, effect, lambda extras: None)
    for step in extras.steps():
        step()
    unlimited, redis, *_ = extras.results("packet", True)
    assert went == ({"ours", "cable", "peer"} if delays else {"ours", "cable"})
    assert set(shaped) == {link_bench.UNLIMITED}
    assert [(bar.bar, bar.met) for bar in unlimited.bars] == [
        ("unlimited, one stream, Gb/s", True),
        ("unmodelled drops", False),
    ]
    assert redis.skipped == "no redis"


# ---------------------------------------------------------------- probes, peers and effects of the bench of links


OF = 10_000


def test_a_loss_is_right_inside_its_interval_and_nowhere_else() -> None:
    """Of 10 000 at 1 % a correct link loses 75 to 126 in 99 of 100 cases: the standard deviation is 9.95."""
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


class EffectsLink:
    """A link that does what is requested, and records it."""

    def __init__(self, backend: str) -> None:
        self.backend, self.ready = backend, object()
        self.network = SimpleNamespace(client=None, server=None)
        self.shaped: list[LinkSpec] = []
        self.effect_starts = 0

    def shape(self, spec: LinkSpec) -> None:
        self.shaped.append(spec)

    def start_effects(self) -> None:
        self.effect_starts += 1

    def counters(self, *, reset: bool = False) -> None:
        return None


def effects_of(monkeypatch: pytest.MonkeyPatch, backend: str) -> tuple[EffectsLink, Extras]:
    monkeypatch.setattr(link_bench, "missing_program", lambda: "no redis")
    monkeypatch.setattr(link_bench, "count_lost", lambda client, server, count: LossCount(count // 100, count))
    monkeypatch.setattr(link_bench, "measure_spread", lambda client, server, count: MeasuredSpread(2e6, count))
    link = EffectsLink(backend)
    cable = cast(BareCable, SimpleNamespace(client_host=None, server_host=None))
    ours = cast(OurLink, SimpleNamespace(link=link))
    extras = Extras(Setup(ours, cable, FoundPeer(""), None), 0, FULL_TIMES, seed=7)
    monkeypatch.setattr(extras, "_unlimited", lambda: extras._runs["unlimited", "ours"].append(20.0))
    return link, extras


def test_each_run_starts_the_effects_with_a_new_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    link, extras = effects_of(monkeypatch, "packet")
    for _ in range(3):
        for step in extras.steps():
            step()
    assert link.shaped == [kind(seed) for seed in (7, 8, 9) for kind in (link_with_loss, link_with_jitter)]
    assert link.effect_starts == 6
    loss, jitter = extras.results("packet", True)[-2:]
    assert (loss.name, jitter.name) == ("loss", "jitter")
    assert loss.ours is not None and loss.ours.runs == (1.0, 1.0, 1.0)
    assert jitter.ours is not None and jitter.ours.median == 2.0
    assert [(bar.bar, bar.met) for bar in (*loss.bars, *jitter.bars)] == [("loss, %", True), ("jitter, ms", True)]


def test_a_back_end_without_effects_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    link, extras = effects_of(monkeypatch, "none")
    for step in extras.steps():
        step()
    loss, jitter = extras.results("none", True)[-2:]
    assert link.effect_starts == 0
    assert loss.ours is None and "no effect" in str(loss.skipped)
    assert jitter.ours is None and jitter.bars == ()


def test_every_bench_draws_a_seed() -> None:
    assert LinksRequest(()).seed != LinksRequest(()).seed


def test_pings_over_a_long_rtt_have_enough_time() -> None:
    second = 10**9
    assert ping_timeout_ns(FULL_TIMES.pings(second), second) > 4 * FULL_TIMES.pings(second) * second
    assert ping_timeout_ns(1, 0) >= 10 * second


def test_where_a_process_runs_is_read_from_the_kernel() -> None:
    found = runs_on(os.getpid())
    assert found is not None
    assert found.cpus == tuple(sorted(os.sched_getaffinity(0)))
    assert len(found.scheduling) == 1
    assert runs_on(None) is None
    assert runs_on(2**22 + 1) is None, "no process has such a number"


class PinnedCable:
    """Records on which CPUs its server would be started, and starts nothing."""

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
        return {toxic.stream: toxic.attributes["latency"] for toxic in made}

    assert latencies(10) == {"upstream": 5, "downstream": 5}
    assert latencies(85) == {"upstream": 42, "downstream": 43}
    assert latencies(1) == {"downstream": 1}
    assert latencies(0.2) == {}
    made, note = toxics(LinkPoint(rtt_ms=0.2, rate_gbit=1))
    assert "0 ms" in note
    rates = [toxic.attributes["rate"] for toxic in made]
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
    monkeypatch.setattr(probes, "_TIMER_TIMEOUT_S", 0.001)
    with pytest.raises(LabError, match="timed out"):
        probes.timer_lateness_us(1_000_000)
