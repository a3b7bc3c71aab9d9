"""The arithmetic of the bench against sysbench, on made-up blocks; its meter, on small processes with known CPU use."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from statistics import median

import pytest
from click.testing import CliRunner

from howfar.bench import comparison, meter
from howfar.bench.comparison import Comparison, ComparisonRequest, Setting, cpu_shares
from howfar.bench.meter import Trial
from howfar.cli import bench as bench_command
from howfar.cli.bench import bench
from howfar.errors import LabError


def trial(cpu_us: float = 2.0, qps: float = 50_000, mib: float = 8) -> Trial:
    """A trial of 2 seconds, after a warm-up of as many queries that cost three times as much."""
    queries = round(qps * 2)
    return Trial(
        queries=queries,
        seconds=2.0,
        cpu_ns=round(cpu_us * 1000 * queries),
        whole_queries=2 * queries,
        whole_cpu_ns=round(4 * cpu_us * 1000 * queries),
        rss_bytes=round(mib * 2**20),
        context_switches=queries // 2,
    )


def compared(connections: int = 64) -> Comparison:
    ours = [trial(2.0 + block / 10) for block in range(8)]
    peer = [trial(5 * (2.0 + block / 10), qps=40_000, mib=32) for block in range(8)]
    setting = Setting(
        howfar="0",
        peer="sysbench 1.0.20",
        server="10.11",
        kernel="Linux",
        placement="apart",
        client_cpus=(1,),
        server_cpus=(0,),
        autogroup=True,
        workload="oltp_point_select",
        blocks=8,
        seconds=2.0,
    )
    return Comparison(setting=setting, rows=(comparison.make_row(connections, ours, peer),))


def test_ratios_are_formed_within_blocks() -> None:
    (row,) = compared().rows
    assert row.cpu_ratio.value == pytest.approx(0.2)
    assert row.cpu_ratio.low == pytest.approx(0.2), "the blocks' drift is not in it"
    assert row.cpu_ratio.high == pytest.approx(0.2)
    assert row.qps_ratio.value == pytest.approx(1.25)
    assert row.rss_ratio == pytest.approx(0.25)


def test_a_side_is_the_median_of_its_blocks() -> None:
    ours = compared().rows[0].ours
    assert ours.client_cpu_us_per_query == pytest.approx(median(2.0 + block / 10 for block in range(8)))
    assert ours.whole_process_cpu_us_per_query == pytest.approx(2 * ours.client_cpu_us_per_query)
    assert (ours.qps, ours.rss_mib, ours.context_switches_per_query) == pytest.approx((50_000, 8, 0.5))


def test_missed_bars_are_named() -> None:
    (met,) = compared().rows
    assert met.misses == ()
    missed = comparison.make_row(2048, [trial(qps=10_000)] * 8, [trial()] * 8).misses
    assert [sentence.split()[0] for sentence in missed] == ["client", "memory", "throughput"]
    assert comparison.make_row(3, [trial()] * 8, [trial()] * 8).misses == (), "no bar stands for 3 connections"


def test_a_bar_within_the_interval_is_not_resolved() -> None:
    """The bar at 64 connections is 0.35."""

    def row(*cpu: float) -> comparison.Row:
        return comparison.make_row(64, [trial(10 * share) for share in cpu], [trial(10, qps=40_000, mib=32)] * len(cpu))

    around = row(*[0.30, 0.42] * 4)
    assert (around.misses, [sentence.split(" 0.")[0] for sentence in around.unresolved]) == ((), ["client CPU"])
    above = row(*[0.40, 0.42] * 4)
    assert ([sentence.split(" 0.")[0] for sentence in above.misses], above.unresolved) == (["client CPU"], ())
    assert (row(*[0.30, 0.31] * 4).misses, row(*[0.30, 0.31] * 4).unresolved) == ((), ())
    assert [sentence.split()[0] for sentence in row(0.2).unresolved] == ["client", "throughput"], (
        "one block has no interval"
    )


def test_the_ratios_can_be_reckoned_again_from_the_blocks_in_the_json() -> None:
    (row,) = json.loads(compared().model_dump_json())["rows"]
    ratios = [
        block["ours"]["cpu_ns"] / block["ours"]["queries"] / (block["peer"]["cpu_ns"] / block["peer"]["queries"])
        for block in row["blocks"]
    ]
    assert len(ratios) == 8
    assert median(ratios) == pytest.approx(row["cpu_ratio"]["value"])
    again = [comparison.Block.model_validate(block) for block in row["blocks"]]
    assert comparison.make_row(64, [one.ours for one in again], [one.peer for one in again]) == compared().rows[0]


def test_json_has_the_rows_that_are_documented(monkeypatch: pytest.MonkeyPatch) -> None:
    requests = []

    def compare(request: ComparisonRequest, _: object) -> Comparison:
        requests.append(request)
        return compared()

    monkeypatch.setattr(bench_command, "compare", compare)
    options = ["engine", "--against", "sysbench", "--connections", "1, 64,1"]
    done = CliRunner().invoke(bench, [*options, "--json"], catch_exceptions=False)
    (row,) = json.loads(done.stdout)["rows"]
    assert requests[0].connections == (1, 64)
    assert {"connections", "ours", "peer", "cpu_ratio", "rss_ratio"} <= set(row)
    assert {"client_cpu_us_per_query", "qps", "rss_mib", "context_switches_per_query"} <= set(row["ours"])
    assert set(row["ours"]) == set(row["peer"])
    assert set(row["cpu_ratio"]) == {"value", "low", "high"}
    table = CliRunner().invoke(bench, options, catch_exceptions=False).stdout
    assert "0.2 [0.2, 0.2]" in table
    assert "CPUs 1, server on CPUs 0" in table.replace("\n", "")


@pytest.mark.parametrize("text", ["", "0", "1,,2", "10001", "many", "-1"])
def test_connections_are_a_list_of_numbers(text: str) -> None:
    done = CliRunner().invoke(bench, ["engine", "--against", "sysbench", "--connections", text])
    assert done.exit_code != 0


def test_placements_are_what_they_are_called() -> None:
    cpus = set(os.sched_getaffinity(0))
    shared = cpu_shares("shared")
    assert set(shared.client) == set(shared.server) == cpus
    one = cpu_shares("one-cpu")
    assert one.client == one.server and len(one.client) == 1
    assert len(cpus) == 1 or not cpu_shares("apart").overlap


def test_the_cpu_clock_is_that_of_the_process_with_threads_that_ended() -> None:
    """The process burns 50 ms in a thread that ends, prints a line, and sleeps until its stdin is closed."""
    program = (
        "import sys, threading, time\n"
        "def burn():\n"
        "    while time.thread_time() < 0.05: pass\n"
        "thread = threading.Thread(target=burn); thread.start(); thread.join()\n"
        "print('done', flush=True); sys.stdin.read()\n"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.readline()
        cpu_ns = meter.cpu_clock_ns(child.pid)
        assert cpu_ns >= 50_000_000
        assert meter.peak_memory_bytes(child.pid) > 2**20
        assert meter.context_switches(child.pid) > 0
        assert child.stdin is not None
        child.stdin.close()


def test_our_own_clock_agrees_with_the_meter() -> None:
    before, cpu_ns, after = time.process_time_ns(), meter.cpu_clock_ns(os.getpid()), time.process_time_ns()
    assert before <= cpu_ns <= after


def test_waiting_is_bounded() -> None:
    with pytest.raises(LabError, match="for what never comes"):
        meter.wait_until(lambda: False, "what never comes", 0.0)
