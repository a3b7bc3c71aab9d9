"""What attribution reads off records: the setting of an arm, the series of a trial's traffic, whose a CPU was."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from tests.unit.limit_cases import SECONDS, Case, tcp
from tests.unit.synthetic_run import arms, synthetic_run

from howfar.bottleneck.cycle import Cycle, CyclePart, cycle_of, setting_of
from howfar.bottleneck.evidence import gather
from howfar.bottleneck.rules import Finding, cpu_residence, judge
from howfar.bottleneck.traffic import network_series
from howfar.model.resource import Resource
from howfar.stats.trials import others_in
from howfar.store.records import Arm, MachineLoad, RunInfo

ENVIRONMENT: dict[str, Any] = {
    "cpu_count": 4,
    "client_cpus": [2, 3],
    "server_cpus": [0, 1],
    "data_fsync_ns": {"512": {"count": 48, "p50": 1_500_000, "p99": 9_000_000}, "16384": {"p50": 2_000_000}},
}


def _info(**more: Any) -> RunInfo:
    return synthetic_run(blocks=1, samples=5).info.model_copy(update={"environment": ENVIRONMENT | more})


def _arm(path: str, **factors: Any) -> Arm:
    arm = next(arm for arm in arms() if arm.factors["path"] == path)
    return arm.model_copy(update={"factors": arm.factors | factors})


def test_what_howfar_s_own_looks_take_is_no_stranger_s() -> None:
    """A tenth of a CPU in looks, on two CPUs alike."""
    case = Case(tps=1000, client_us=100, server_us=300, others={0: 0.4, 1: 0.02})
    trial = case.trial()
    assert trial.window is not None
    window = trial.window.model_copy(update={"looks_cpu_ns": trial.window.length_ns // 10})
    looked_at = trial.model_copy(update={"window": window})
    evidence = gather([looked_at], case.setting())
    assert evidence.server_cpus.owners["others"] == pytest.approx(0.35)
    assert evidence.client_cpus.owners["others"] == 0
    load = MachineLoad(
        psi_cpu_some_share=None, psi_io_some_share=None, steal_share=None, load_average_1m=5, busy_cpus=0.82
    )
    assert others_in(looked_at.model_copy(update={"load": load})) == pytest.approx(0.32)
    assert others_in(trial.model_copy(update={"load": load})) == pytest.approx(0.42)


def test_a_cpu_worked_no_less_than_this_load_did_on_it() -> None:
    """Ticks saw 22 % where the load and the emulator by their own clocks had 50."""
    trial = Case(tps=1000, client_us=100, server_us=300, emulator={0: 0.2}).trial()
    assert trial.window is not None
    ticks = trial.window.model_copy(update={"cpus_busy": {0: 0.22, 1: 0.05}})
    evidence = gather([trial.model_copy(update={"window": ticks})], Case().setting())
    assert evidence.server_cpus.used == pytest.approx(0.5)
    assert evidence.client_cpus.used == pytest.approx(0.1)
    assert evidence.server_cpus.owners["others"] == 0


def test_hosts_have_their_cpus_and_the_disk_its_cost() -> None:
    setting = setting_of(_info(), _arm("remote"), 2, 0.0002)
    assert (setting.client_cpus, setting.server_cpus, setting.machine_cpus) == ((2, 3), (0, 1), 4)
    assert setting.fsync_s == pytest.approx(0.0015), "of a log's block"
    assert setting_of(_info(data_fsync_ns=None), _arm("remote"), 2, 0.0002).fsync_s is None


def test_a_client_on_the_server_s_machine_shares_its_cpus_and_a_remote_one_does_not() -> None:
    local = setting_of(_info(), _arm("socket", placement="machines"), 2, None)
    assert local.client_cpus == local.server_cpus == (0, 1)
    remote = setting_of(_info(), _arm("remote", placement="machines"), 2, 0.0002)
    assert remote.client_cpus == (2, 3)


def test_traffic_is_shown_by_slices_beside_both_ceilings() -> None:
    case = Case(tps=1000, bytes_to_client=40_000)
    trial = case.trial()
    series = network_series(trial, case.setting().factors)
    assert series is not None and trial.window is not None
    assert len(series.at_s) == len(trial.window.network) == 4
    carried = trial.window.network[-1].to_client_bytes / SECONDS
    assert series.to_client_bytes_per_s == pytest.approx([carried] * 4, rel=0.01)
    assert series.interface_ceiling_bytes_per_s == pytest.approx(123.05e6, rel=0.001)
    assert series.payload_ceiling_bytes_per_s == pytest.approx(117.69e6, rel=0.001)
    assert network_series(replace(case, window=False).trial(), {}) is None


def test_without_a_window_the_machine_s_load_says_what_others_had() -> None:
    """1.9 CPUs busy of 2, of which this load had 0.3 and 0.1: the rest is taken to be on both alike."""
    case = Case(tps=1000, client_us=100, server_us=300, rtt_us=None, window=False)
    load = MachineLoad(
        psi_cpu_some_share=None, psi_io_some_share=None, steal_share=None, load_average_1m=5, busy_cpus=1.9
    )
    evidence = gather([case.trial().model_copy(update={"load": load})], case.setting())
    assert evidence.server_cpus.owners["others"] == pytest.approx(0.75)
    assert evidence.server_cpus.used == pytest.approx(1.05)
    unknown = gather([case.trial()], case.setting())
    assert "others" not in unknown.server_cpus.owners


def test_a_watched_window_knows_which_cpu_others_had() -> None:
    case = Case(tps=1000, client_us=100, server_us=300, emulator={0: 0.2}, others={0: 0.4})
    evidence = case.evidence()
    assert evidence.server_cpus.owners == pytest.approx({"server": 0.3, "link": 0.2, "others": 0.4})
    assert evidence.client_cpus.owners["others"] == pytest.approx(0.0, abs=1e-6)
    assert evidence.client_cpus.busy == pytest.approx(0.1)


@pytest.mark.parametrize(
    ("session", "round_trips"),
    [
        ({"connect_turns": 6, "tls_version": "TLSv1.3"}, 22),
        ({"tls_version": None}, 20),
        ({"tls_version": "TLSv1.2", "tls_resumed": False}, 22),
        ({"tls_version": "TLSv1.2", "tls_resumed": True}, 21),
        ({"tls_version": "TLSv1.3", "tls_resumed": False, "tls_retried": False}, 21),
        ({"tls_version": "TLSv1.3", "tls_resumed": False, "tls_retried": True}, 22),
    ],
)
def test_opening_a_connection_takes_round_trips_too(session: dict[str, Any], round_trips: int) -> None:
    """At an RTT of 1 ms, 16 ms of statements are not all of the way's."""
    case = Case(tps=20, round_trips=16, rtt_us=1000, session=session, each_time=True)
    assert case.evidence().round_trips == pytest.approx(round_trips)
    assert replace(case, each_time=False).evidence().round_trips == pytest.approx(16)


def test_where_connections_come_and_go_no_window_is_ruled_in_or_out() -> None:
    """The kernel tells of the one that happened to be there; its share of the whole window says nothing."""
    states = (tcp("server", 1, 0.9, rwnd=0.8),)
    case = Case(tps=3, round_trips=16, rtt_us=10_000, bytes_to_client=1_270_000, tcp=states)
    assert case.evidence().tcp["server"].rwnd_of_busy > 0.3
    assert replace(case, each_time=True).evidence().tcp == {}


def test_who_says_that_nothing_is_full_says_what_is_not_known() -> None:
    case = Case(
        tps=45, round_trips=16, rtt_us=1000, client_us=200, server_us=900, each_time=True, session={"connect_turns": 4}
    )
    found = found_of(case)
    assert found.resource is Resource.LATENCY and "20 x 1" in found.says
    assert any("not known" in fact for fact in found.evidence)
    assert not any("not known" in fact for fact in found_of(replace(case, each_time=False, tps=52)).evidence)


def found_of(case: Case) -> Finding:
    evidence = case.evidence()
    return judge(evidence, cycle_of(evidence))


def test_a_forwarder_has_half_of_its_work_on_each_host() -> None:
    case = Case(connections=1, rtt_us=200, tps=100)
    evidence = case.evidence()
    cycle = Cycle(
        us=1000,
        parts=(
            CyclePart(name="server CPU", us=100, basis="measured"),
            CyclePart(name="client CPU", us=50, basis="measured"),
            CyclePart(name="forwarder CPU", us=200, basis="measured"),
            CyclePart(name="rest", us=650, basis="computed"),
        ),
        rest_share=0.65,
    )
    assert cpu_residence(evidence, cycle, [evidence.server_cpus]) == pytest.approx(0.2)
    assert cpu_residence(evidence, cycle, [evidence.client_cpus]) == pytest.approx(0.15)
    assert cpu_residence(evidence, cycle, [evidence.server_cpus, evidence.client_cpus]) == pytest.approx(0.35)
