"""`howfar bench link` on the quick grid. Busy machines distort times, so only physical limits and the shape are checked."""

from __future__ import annotations

import pytest

from howfar.bench.links.figures import LinkBench, Run
from tests.lab.howfar_runs import run_howfar
from tests.lab.undisturbed import measure_until_agreed

pytestmark = [pytest.mark.alone, pytest.mark.lab, pytest.mark.thorough, pytest.mark.usefixtures("namespaces")]
STARVED_SHARE = 0.05
"""Tolerated excess: a receiver that gets no CPU as the window begins also counts data that is already in its socket."""


def bench_link(*options: str) -> LinkBench:
    done = run_howfar("bench", "link", "--quick", "--json", *options)
    assert done.returncode == 0, done.stderr
    return LinkBench.model_validate_json(done.stdout)


@pytest.fixture(scope="module")
def found() -> LinkBench:
    return bench_link("--against", "veth")


def test_every_link_is_measured_by_both(found: LinkBench) -> None:
    assert [(row.asked.rtt_ms, row.asked.rate_gbit) for row in found.rows] == [(1, 1), (10, 10)]
    for row in found.rows:
        assert row.backend == "packet"
        assert row.cpu_core_per_gbit is not None and row.cpu_core_per_gbit > 0
        assert row.lateness_us_p999 is not None and row.lateness_us_p999 >= 0
        assert row.drops is not None
        assert row.peer is not None
        assert row.peer.name == "veth"
        assert row.peer.cpu_core_per_gbit is None, "a veth pair has no process"
        assert row.peer.machine_core_per_gbit is not None and row.peer.machine_core_per_gbit > 0
        assert len(row.runs) == len(row.peer.runs) == 1


def test_no_packet_is_early_and_no_byte_beyond_the_rate(found: LinkBench) -> None:
    measure_until_agreed(lambda: bench_link("--no-extras"), _excess, found, attempts=3)


def _excess(found: LinkBench) -> str | None:
    for row in found.rows:
        ours: Run = row.runs[0]
        assert ours.compensate_us is not None
        assert ours.rtt_ms_min >= row.asked.rtt_ms - 2 * ours.compensate_us / 1e3, "the delay line keeps its delay"
        assert ours.rtt_ms_p99 >= ours.rtt_ms_p50 >= ours.rtt_ms_min
        assert row.obtained.goodput_ratio is not None
        if not 0 < row.obtained.goodput_ratio <= 1 + STARVED_SHARE:
            return f"{row.obtained.goodput_ratio:.3f} of the possible goodput at {row.asked}"
    return None


def test_a_bare_veth_pair_has_no_delay(found: LinkBench) -> None:
    for row in found.rows:
        assert row.peer is not None
        assert row.peer.runs[0].rtt_ms_min < row.asked.rtt_ms / 2, "a bare veth pair has no delay"


def test_each_extra_is_measured_or_has_a_reason(found: LinkBench) -> None:
    assert [extra.name for extra in found.extras] == ["unlimited", "redis", "hogs", "loss", "jitter"]
    for extra in found.extras:
        assert (extra.ours is None) == (extra.skipped is not None)
        if extra.ours is not None:
            assert extra.ours.median > 0
            assert len(extra.bars) == 2
            assert extra.bars[-1].bar == "unmodelled drops"


def test_the_kernel_back_end_is_measured() -> None:
    """Without a delay, which needs netem, because many kernels lack it."""
    options = ("--link-backend", "kernel", "--rtt", "0ms", "--rate", "100mbit", "--no-extras")
    (row,) = measure_until_agreed(lambda: bench_link(*options), _excess, attempts=3).rows
    assert (row.backend, row.peer) == ("kernel", None)
