"""The arithmetic of a calibration, on made-up blocks."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner
from hdrh.histogram import HdrHistogram
from tests.unit.made_machine import BUSY

from howfar import quiet_check
from howfar.bench import calibration
from howfar.bench.calibration import Calibration, Exchange, Limit, Load
from howfar.cli import bench


def exchange(p50_ns: int = 3000) -> Exchange:
    return Exchange(p50_ns=p50_ns, cpu_ns_per_round=1800.0, clock_step_ns=16, clock_read_ns=25.0)


def load(p50_ns: int = 3300, client_busy: float = 0.5) -> Load:
    return Load(
        p50_ns=p50_ns,
        queries_per_s=400_000.0,
        client_ns_per_query=1200.0,
        server_ns_per_query=1000.0,
        client_busy=client_busy,
        server_busy=0.5,
        waiting=0.0,
    )


@pytest.mark.parametrize("value_ns", [1, 2047, 2048, 3371, 4095, 4096, 20_000, 1_000_000, 3_000_000_000])
def test_the_step_is_that_of_the_histogram(value_ns: int) -> None:
    hdr = HdrHistogram(1, 3_600_000_000_000, 3)
    step = hdr.get_highest_equivalent_value(value_ns) - hdr.get_lowest_equivalent_value(value_ns) + 1
    assert calibration.histogram_step_ns(value_ns) == step


@pytest.mark.parametrize(
    ("client", "server", "waiting", "shared", "expected"),
    [
        (0.99, 0.60, 0.0, False, Limit.CLIENT),
        (0.60, 0.99, 0.0, False, Limit.SERVER),
        (0.95, 0.99, 0.0, False, Limit.BOTH),
        (0.50, 0.50, 0.0, False, Limit.NEITHER),
        (0.50, 0.50, 0.6, False, Limit.MACHINE),
        (0.99, 0.50, 0.6, False, Limit.CLIENT),
        (0.48, 0.50, 1.0, True, Limit.BOTH),
        (0.30, 0.30, 1.0, True, Limit.MACHINE),
    ],
)
def test_the_limit_is_who_never_sleeps(
    client: float, server: float, waiting: float, shared: bool, expected: Limit
) -> None:
    assert calibration.find_limit(client, server, waiting, shared=shared) is expected


def test_the_floor_compares_block_by_block() -> None:
    """Blocks in which everything was twice as slow change neither the ratio nor its interval."""
    bare = [exchange(3000 * factor) for factor in (1, 1, 2, 1, 2, 1)]
    ours = [load(3600 * factor) for factor in (1, 1, 2, 1, 2, 1)]
    floor = calibration.make_floor("together", bare, ours)
    ratio = floor.engine_over_ping_pong
    assert ratio.value == pytest.approx(1.2)
    assert ratio.low == pytest.approx(1.2)
    assert not floor.within_bar
    assert calibration.make_floor("together", bare, [load(one.p50_ns * 11 // 10) for one in bare]).within_bar


def test_every_arm_is_measured_once_a_block() -> None:
    two = calibration.arms("tcp", has_separate_cpus=True)
    one = calibration.arms("tcp", has_separate_cpus=False)
    assert len(set(two)) == len(two) == 6
    assert [(arm.cpus, arm.connections) for arm in one] == [
        ("together", None),
        ("together", 1),
        ("together", 64),
        ("together", 512),
    ]


def made_up() -> Calibration:
    blocks = 6
    floors = (calibration.make_floor("together", [exchange()] * blocks, [load()] * blocks),)
    return Calibration(
        setting=calibration.Setting(
            howfar="0", kernel="Linux", client_cpus=(1,), server_cpus=(0,), blocks=blocks, block_ns=10**9
        ),
        machine=quiet_check.judge(BUSY),
        clock=calibration.make_clock([exchange()]),
        transports=(
            calibration.OverTransport(
                transport="socket",
                floors=floors,
                ceiling=calibration.make_ceiling(64, [load(client_busy=0.99)] * blocks, shared=False),
                histogram_step_ns=calibration.histogram_step_ns(calibration.lowest_p50_ns(floors)),
                cpu_per_query=(calibration.make_query_cost(64, [load()] * blocks),),
            ),
        ),
    )


@pytest.fixture(autouse=True)
def _busy_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quiet_check, "measure", lambda seconds: quiet_check.judge(BUSY))


def test_the_table_says_the_figures_and_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "run_calibration", lambda *_: made_up())
    text = CliRunner().invoke(bench.bench, ["calibrate", "--transport", "socket"]).output
    for expected in (
        "3.30 [3.30, 3.30]",
        "+10.0 %",
        "400,000",
        "99%, 50%",
        "16 ns, 25 ns",
        "is at most 10% above",
        "limit was the",
    ):
        assert expected in text, text


def test_the_last_lines_say_whether_the_machine_can_give_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is also noted before the two minutes of the calibration."""
    monkeypatch.setattr(bench, "run_calibration", lambda *_: made_up())
    result = CliRunner().invoke(bench.bench, ["calibrate", "--transport", "socket"])
    _, _, last = result.stdout.partition(quiet_check.QUESTION)
    assert len(last.splitlines()) <= 20
    for expected in ("Not now", "cargo (pid 4711) and rustc (pid 4720)", "±27 %", "±11 %", "1. Stop cargo"):
        assert expected in " ".join(last.split()), last
    assert result.stderr.startswith(f"howfar: {quiet_check.QUESTION} Not now")


def test_the_json_is_the_value(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "run_calibration", lambda *_: made_up())
    output = CliRunner().invoke(bench.bench, ["calibrate", "--json"]).output
    assert json.loads(output) == made_up().model_dump(mode="json")


def test_what_is_no_transport_is_refused() -> None:
    result = CliRunner().invoke(bench.bench, ["calibrate", "--transport", "socket,pigeon"])
    assert "pigeon" in str(result.exception)
