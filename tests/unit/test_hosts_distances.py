"""The network between hosts: what tools print, what a plan makes of a real link, and the picture in the report."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import pytest
from tests.made import with_environment
from tests.shipped import load_shipped
from tests.unit.rendered import html
from tests.unit.synthetic_run import synthetic_run

from howfar.cli.hosts import ShownHost, _network_rows, _warn_of_noise, _warn_of_shared_machines
from howfar.cli.on_hosts import _with_measured_links, check_plan
from howfar.contract.environment import ClockSync, HostFacts, HostRoles
from howfar.contract.messages import RttResult
from howfar.contract.receipt import ByDirection, LinkReceipt, QuantilesNs
from howfar.contract.violation import violation
from howfar.errors import PlanError
from howfar.experiments.registry import summarise
from howfar.fleet.clocks import Offset
from howfar.fleet.distances import enter_context
from howfar.plan.cells import cells
from howfar.plan.factors import node_rtts_ns
from howfar.plan.fitting import with_link
from howfar.plan.load import load_plan
from howfar.plan.types import restore_plan
from howfar.report.frame import setup_line
from howfar.slices import plan_files
from howfar.store.records import Run

distances = pytest.importorskip("howfar.fleet.distances", reason="Ray is not installed (./setup --tests brings it)")

_TRACKING = (
    "A9FEA97B,169.254.169.123,4,1795535940.1,0.000012,-0.000003,0.00001,-9.1,0.0,0.05,0.000400,0.000110,16.2,Normal"
)


def test_chronys_bound_is_offset_and_dispersion_and_half_the_delay() -> None:
    said = distances.parse_chrony(_TRACKING)
    assert (said.by, said.source) == ("chrony", "169.254.169.123")
    assert said.bound_s == pytest.approx(0.000012 + 0.000110 + 0.0002)


@pytest.mark.parametrize("output", ["", "506 Cannot talk to daemon", _TRACKING.replace("Normal", "Not synchronised")])
def test_a_clock_that_nobody_sets_is_unknown(output: str) -> None:
    assert distances.parse_chrony(output) is None and distances.parse_ptp(output) is None


def test_ptp_says_how_far_it_is_from_its_master() -> None:
    assert distances.parse_ptp("\tstepsRemoved 1\n\toffsetFromMaster -38.0\n") == ClockSync(by="PTP", offset_s=-38e-9)


def test_a_context_that_a_host_holds_is_left_when_it_is_dropped() -> None:
    seen: list[str] = []

    @contextmanager
    def kept(what: str) -> Iterator[None]:
        seen.append(what)
        yield
        seen.append("left")

    held = enter_context(kept, "awake")
    assert seen == ["awake"]
    held.close()
    assert seen == ["awake", "left"]


def test_a_zone_is_what_cloud_init_wrote_and_else_unknown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "instance-data.json"
    monkeypatch.setattr(distances, "_CLOUD_INIT_FILE", file)
    assert distances.read_cloud_location() == {}
    file.write_text(json.dumps({"v1": {"cloud_name": "aws", "region": "eu-west-1", "availability_zone": "eu-west-1a"}}))
    assert distances.read_cloud_location() == {"cloud": "aws", "region": "eu-west-1", "zone": "eu-west-1a"}


@pytest.mark.parametrize(
    "name",
    [
        "paths",
        "bandwidth",
        "encryption",
        "compression",
        "latency",
        "hops",
        "poolers",
        "replication",
        "cluster-reads",
    ],
)
def test_an_experiment_on_a_real_link_has_that_link_alone(name: str) -> None:
    assert_has_one_link(name)


def assert_has_one_link(name: str) -> None:
    plan = load_shipped(name).plan
    check_plan(plan)
    found = with_link(plan, {"rtt_ns": 212_000, "rate_bps": 9_410_000_000})
    there = cells(found.plan)
    assert {cell.factors.get("rate_bps") for cell in there} <= {None, 9_410_000_000}
    assert {cell.factors.get("rtt_ns") for cell in there} <= {None, 212_000}
    assert "contender" in {cell.role for cell in there}
    same = [cell for cell in there if cell.role == "control"]
    assert len(same) == 1 + (name in ("paths", "latency", "hops")), "of each kind of scatter"
    assert all(one.factors in [cell.factors for cell in there if cell.role == "contender"] for one in same)
    assert bool(found.notes) == (max(len(plan.factors.rate_bps), len(plan.factors.rtt_ns)) > 1)


def test_a_plan_of_links_alone_is_refused_before_anything_is_joined(tmp_path: Path) -> None:
    text = plan_files()["paths"].read_text()
    file = tmp_path / "links.toml"
    head, _, rest = text.partition("[factors]")
    factors = 'path = "remote"\nthreads = 1\nserver = "mariadb"\nrtt = ["1ms", "2ms"]\nrate = "1gbit"\n[baseline]\nrtt = "1ms"\n'
    timing = rest[rest.index("[timing]") :].partition("[quick")[0]
    file.write_text(f"{head}[factors]\n{factors}{timing}")
    with pytest.raises(PlanError, match="compares only links"):
        check_plan(load_plan(str(file)).plan)


@pytest.mark.parametrize(
    ("name", "word"),
    [
        *(
            (name, "links that can be cut")
            for name in ("crash", "fallback", "cluster-crash", "cluster-partition", "cluster-join")
        ),
        ("cluster-conflicts", "clients on two nodes"),
    ],
)
def test_what_hosts_do_not_have_is_refused_with_what_is_needed(name: str, word: str) -> None:
    with pytest.raises(PlanError, match=word):
        check_plan(load_shipped(name).plan)


def test_clusters_of_several_sizes_are_refused() -> None:
    plan = load_plan("cluster").plan
    several = plan.factors.model_copy(update={"replicas": (2, 4)})
    with pytest.raises(PlanError, match="several sizes"):
        check_plan(plan.model_copy(update={"factors": several}))


@dataclass(frozen=True)
class _Measured:
    """The part of a testbed that describes the network between its hosts."""

    link_facts: LinkReceipt | None
    server_link_facts: tuple[LinkReceipt, ...] = ()
    hop_facts: tuple[LinkReceipt, ...] = ()
    client_facts: tuple[LinkReceipt, ...] = ()


def _apart(source: str, target: str, rtt_ns: int, bps: int) -> LinkReceipt:
    goodput = ByDirection(to_server=bps, to_client=2 * bps)
    return LinkReceipt(from_host=source, to_host=target, rtt_ns=QuantilesNs(p50=rtt_ns), goodput_bps=goodput)


@pytest.mark.parametrize("name", ["cluster", "cluster-rows", "cluster-reads"])
def test_a_cluster_has_the_distances_that_were_measured(name: str) -> None:
    plan = load_shipped(name).plan
    check_plan(plan)
    servers = tuple(
        _apart(*ends, rtt_ns, 10**9 + rtt_ns)
        for ends, rtt_ns in ((("c", "b"), 211_400), (("d", "b"), 85_031_000), (("d", "c"), 84_996_000))
    )
    found, notes = _with_measured_links(plan, cast(Any, _Measured(_apart("a", "b", 200_000, 10**9), servers)))
    agreed = [cell.factors for cell in cells(found) if cell.factors["replication"] == "galera"]
    assert {factors["distances"] for factors in agreed} == {"0.211ms,85ms,85ms"}
    assert {factors["replica_rate_bps"] for factors in agreed} == {1_060_000_000}, "as of the wire, with its framing"
    (again,) = [cell for cell in cells(found) if cell.role == "control"]
    assert again.factors in [cell.factors for cell in cells(found) if cell.role == "contender"]
    assert node_rtts_ns(agreed[0]) == {(0, 1): 211_000, (0, 2): 85_000_000, (1, 2): 85_000_000}
    assert "0.211ms (b, c), 85ms (b, d), 85ms (c, d), goodput of one connection 1gbit" in notes[-1]
    assert restore_plan(found.model_dump(mode="json")) == found, "howfar resume reads it again"


def test_the_links_to_a_hop_and_from_it_are_named_beside_the_straight_one() -> None:
    hop = (_apart("a", "c", 100_000, 10**9), _apart("c", "b", 300_000, 10**8))
    measured = _Measured(_apart("a", "b", 200_000, 10**9), hop_facts=hop)
    found, notes = _with_measured_links(load_shipped("hops").plan, cast(Any, measured))
    assert found.factors.rtt_ns == (200_000,)
    assert "the links to the hop and from it are measured, not emulated, so there is no control arm" in notes[-1]
    assert "RTT 0.1ms (c, a), 0.3ms (b, c), goodput of one connection 100mbit" in notes[-1]
    (link,) = found.factors.rate_bps
    assert link == 1_060_000_000 and "1.06gbit including headers" in notes[0]


def test_the_round_trip_by_way_of_a_hop_is_the_sum_of_both() -> None:
    near, far = (
        distances.real_link_receipt(
            RttResult(count=50, min_ns=least, p50_ns=p50, p99_ns=9 * p50, max_ns=9 * p50),
            one.model_copy(update={"rtt_ns": rtt}),
        )
        for one, least, p50, rtt in (
            (_apart("a", "c", 0, 10**9), 80_000, 100_000, QuantilesNs(min=70_000, p50=90_000, p99=1)),
            (_apart("c", "b", 0, 10**8), 280_000, 300_000, QuantilesNs(min=270_000, p50=290_000, p99=1)),
        )
    )
    whole = distances.combine_receipts(near, far)
    assert whole.rtt_at_rest_ns == QuantilesNs(p50=400_000, min=360_000) and whole.expected_rtt_ns == 380_000
    assert whole.rtt_ns == QuantilesNs(p50=380_000, min=340_000)
    assert whole.goodput_bps == ByDirection(to_server=10**8, to_client=2 * 10**8)
    assert (whole.from_host, whole.by_way_of, whole.to_host) == ("a", "c", "b") and whole.links == [near, far]


@pytest.mark.parametrize(
    ("before_ns", "now_ns", "moved"),
    [(200_000, 290_000, False), (200_000, 310_000, True), (10**7, 10_290_000, False), (10**7, 9_600_000, True)],
)
def test_a_link_that_is_no_longer_the_runs_makes_the_trial_void(before_ns: int, now_ns: int, moved: bool) -> None:
    probe = RttResult(count=50, min_ns=now_ns, p50_ns=now_ns, p99_ns=now_ns, max_ns=now_ns)
    said = distances.real_link_receipt(probe, _apart("a", "b", before_ns, 10**9)).rtt_change_violations()
    assert bool(said) == moved
    assert not moved or (said[0].parameters["from_host"], said[0].parameters["to_host"]) == ("a", "b")


def test_the_link_of_each_client_is_named_and_may_make_a_trial_void() -> None:
    links = (_apart("a", "b", 200_000, 10**9), _apart("c", "b", 210_000, 10**8))
    measured = _Measured(links[0], client_facts=links)
    _, notes = _with_measured_links(load_plan("paths").plan, cast(Any, measured))
    assert "the clients' links are measured, not emulated" in notes[-1]
    assert "RTT 0.2ms (b, a), 0.21ms (b, c), goodput" in notes[-1]

    def probe(now_ns: int, link: LinkReceipt) -> LinkReceipt:
        found = RttResult(count=50, min_ns=now_ns, p50_ns=now_ns, p99_ns=now_ns, max_ns=now_ns)
        receipt: LinkReceipt = distances.real_link_receipt(found, link)
        return receipt

    first = probe(200_000, links[0])
    first.others = [probe(210_000, links[1])]
    assert first.rtt_change_violations() == ()
    first.others = [probe(900_000, links[1])]
    (said,) = first.rtt_change_violations()
    assert said == violation("real-rtt-changed", from_host="c", to_host="b", now_ns=900_000, before_ns=210_000)


@pytest.mark.parametrize(
    ("near_ns", "far_ns", "alike"), [(8_000, 90_000, True), (8_000, 120_000, False), (85_000_000, 87_000_000, True)]
)
def test_clients_that_are_not_equally_far_from_the_server_share_no_load(near_ns: int, far_ns: int, alike: bool) -> None:
    links = (_apart("a", "b", near_ns, 10**9), _apart("c", "b", far_ns, 10**9))
    with nullcontext() if alike else pytest.raises(PlanError, match=r"the replicas .* from a, .* from c"):
        distances.check_similar_rtts(links, "replicas")


def test_the_setup_names_all_clients_and_local_paths_only_where_there_are_some() -> None:
    here = _between(synthetic_run(blocks=4))
    assert "client on host a, server on host b (with the client on local paths)" in setup_line(summarise(here))
    there = with_environment(here, roles=HostRoles(client="a", others=["c", "d"], server="b"))
    arms = (arm.model_copy(update={"factors": {**arm.factors, "path": "remote"}}) for arm in here.info.arms)
    info = there.info.model_copy(update={"arms": tuple(arms)})
    assert "clients on hosts a, c and d, server on host b (placement" in setup_line(
        summarise(there.model_copy(update={"info": info}))
    )


def test_what_ip_says_of_an_interface_that_invents_its_speed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said = [{"ifname": "lo", "mtu": 1500, "qdisc": "noqueue", "linkinfo": {"info_kind": "veth"}}]
    monkeypatch.setattr(distances, "_json_of", lambda command: said if command[0] == "ip" else [])
    monkeypatch.setattr(distances.shutil, "which", lambda name: None)
    card = distances.read_interface("10.0.0.1")
    assert (card.kind, card.ethtool, card.speed_mbit) == ("veth", False, None)
    where = {"zone": "x", "rack": "x"}
    one = ShownHost("10.0.0.1", (), (), HostFacts(), where, card, Offset(0, 1000), distances.ClockSync())
    assert _network_rows({"a": one})[1][3:6] == ("lo", "veth", "unknown: no ethtool")


def test_hosts_of_one_machine_and_an_rtt_that_is_noise_are_named() -> None:
    boots = {"a": "1", "b": "2", "c": "1", "d": None}
    (said,) = _warn_of_shared_machines({name: HostFacts(boot_id=boot) for name, boot in boots.items()})
    assert said.startswith("Hosts a, c are one machine")
    assert _warn_of_shared_machines({"a": HostFacts(), "b": HostFacts()}) == []
    rest, awake = QuantilesNs(p50=10_300), QuantilesNs(p50=12_800)
    quicker_awake = LinkReceipt(rtt_ns=awake, rtt_awake_ns=rest)
    assert _warn_of_noise([quicker_awake, LinkReceipt(rtt_ns=rest, rtt_awake_ns=None)]) == []
    assert "noise" in _warn_of_noise([LinkReceipt(rtt_ns=rest, rtt_awake_ns=awake)])[0]


def _between(run: Run) -> Run:
    apart = LinkReceipt(
        from_host="a",
        to_host="b",
        rtt_ns=QuantilesNs(min=190_000, p50=212_000, p99=300_000),
        rtt_awake_ns=QuantilesNs(min=170_000, p50=181_000, p99=220_000),
        goodput_bps=ByDirection(to_server=9_410_000_000, to_client=4_700_000_000),
        retransmits=ByDirection(to_server=0, to_client=3),
        path_mtu=None,
        mss=1448,
        congestion_control="cubic",
    )
    hosts = {"a": HostFacts(zone="eu-west-1a"), "b": HostFacts(zone="unknown")}
    roles = HostRoles(client="a", server="b")
    return with_environment(run, testbed="hosts", roles=roles, hosts=hosts, distances=[apart])


def test_the_report_shows_what_lies_between_the_hosts() -> None:
    summary = summarise(_between(synthetic_run(blocks=4)))
    page = html.render(summary)
    for text in ("9.41 Gb/s", "4.7 Gb/s", "awake 0.181ms", "a eu-west-1a, b unknown"):
        assert text in page, text
    assert "The network between the hosts" not in html.render(summarise(synthetic_run(blocks=4)))
