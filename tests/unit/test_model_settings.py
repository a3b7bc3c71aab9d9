"""The model at other settings than its base's: what must follow from arithmetic alone, whatever the demands."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.made_curves import WORKLOAD, Cell, run_of

from howfar.model.facts import arm_facts, carried_bytes, headed_bytes, replies
from howfar.model.fit import fit, onto_link, settings_of
from howfar.model.what_if import SHARED_CPU, WhatIf, WhatIfSettings, answer, network
from howfar.store.records import Run

LINK = {"rtt_ns": 200_000, "rate_bps": 10**9}


def _base(**changed: object) -> WhatIf:
    (facts,) = arm_facts(run_of([Cell({"path": "remote", "threads": 1, **LINK}, 150.0)]))
    return fit([facts], WORKLOAD).model_copy(update=changed)


BASE = _base()


def _settings(**changed: object) -> WhatIfSettings:
    now = WhatIfSettings(threads=16, rtt_s=0.0002, rate_bps=1e9, tls=False, connect_each=False, compression="off")
    return now.model_copy(update=changed)


@settings(deadline=None)  # no wall clock: the machine may be busy
@given(st.floats(1e6, 1e11), st.floats(1.01, 10), st.integers(1, 200), st.floats(0, 0.05))
def test_more_of_anything_is_never_less(rate_bps: float, times: float, threads: int, rtt_s: float) -> None:
    """The first-come-first-served correction is an approximation: 2 % the wrong way is let pass."""
    base, here = BASE, _settings(threads=threads, rate_bps=rate_bps, rtt_s=rtt_s)
    tps = answer(base, here).tps
    assert answer(base, here.model_copy(update={"rate_bps": rate_bps * times})).tps >= tps * (1 - 0.02)
    assert answer(base, here.model_copy(update={"threads": threads + 1})).tps >= tps * (1 - 1e-9)
    assert answer(base, here.model_copy(update={"rtt_s": rtt_s + 0.01})).tps <= tps * (1 + 0.02)


def test_a_full_link_passes_what_its_bytes_say() -> None:
    """By hand: 16 replies of 39432 bytes in all, each in segments of 1448 with 90 bytes of headers."""
    lengths = replies(WORKLOAD, 16, 39_432)
    assert len(lengths) == 16 and sum(lengths) == pytest.approx(39_432)
    wire = sum(length + 90 * -(-length // 1448) for length in lengths)
    found = answer(_base(), _settings(rate_bps=1e7, threads=256))
    assert found.tps == pytest.approx(1e7 / 8 / wire, rel=0.01)
    assert found.limits == "link to client"


def test_bytes_on_the_way() -> None:
    assert headed_bytes(1448) == 1448 + 90 and headed_bytes(1449) == 1449 + 180
    assert carried_bytes(20_000, record_bytes=22) == 20_000 + 2 * 22, "two records"
    assert carried_bytes(20_000, ratio=0.5) == 10_000


def test_a_connect_for_every_transaction_costs_its_turns_and_its_cpu() -> None:
    base = _base(connect_turns=3.0, connect_server_s=0.001, tls_connect_turns=2.0, tls_connect_server_s=0.002)
    lone = _settings(threads=1)

    def cycle(**changed: object) -> float:
        return answer(base, lone.model_copy(update=changed)).cycle_s

    plain, tls = cycle(connect_each=True), cycle(connect_each=True, tls=True)
    assert plain - cycle() == pytest.approx(3 * 0.0002 + 0.001 / base.server_cpus, rel=1e-6)
    assert tls - plain == pytest.approx(2 * 0.0002 + 0.002 / base.server_cpus, rel=0.05)


def test_a_long_reply_is_sent_while_the_server_reads_on() -> None:
    """One reply of 1.6 MB, 10 ms on the line, 8 ms of the server: together for all but the first 16 KiB."""
    apart = _base(replies_bytes=(16_000.0,) * 100, requests_bytes=(50.0,), server_cpu_s=0.008, think_s=0.0)
    once = apart.model_copy(update={"replies_bytes": (1_600_000.0,)})
    lone = _settings(threads=1)
    saved = network(apart, lone).delay_s - network(once, lone).delay_s
    assert saved == pytest.approx(0.008 * (1 - 16_384 / 1_600_000))


def test_however_much_overlaps_the_longest_part_is_left() -> None:
    base = _base(think_s=-1.0)
    for rate in (1e7, 1e10):
        found = network(base, _settings(rate_bps=rate, rtt_s=0.0))
        assert answer(base, _settings(rate_bps=rate, rtt_s=0.0, threads=1)).tps == pytest.approx(found.ceiling)


def _machines(*cells: Cell) -> Run:
    run = run_of(list(cells))
    environment = {**run.info.environment, "placement": "machines"}
    return run.model_copy(update={"info": run.info.model_copy(update={"environment": environment})})


def test_one_machine_shares_its_processors_and_two_do_not() -> None:
    local, remote = arm_facts(
        _machines(
            Cell({"path": "tcp", "threads": 16}, 900.0),
            Cell({"path": "remote", "threads": 16, **LINK}, 900.0),
        )
    )
    base = fit([local], WORKLOAD)
    assert [station.name for station in network(base, settings_of(local)).stations] == [SHARED_CPU]
    moved = onto_link(base, local, remote, [])
    names = [station.name for station in network(moved, settings_of(remote)).stations]
    assert names == ["client CPU", "server CPU", "link to client", "link to server"]


def _short(path: str, **changed: Any) -> WhatIf:
    """Both processors are full, and each end waits ten times as long as it works: 0.1 and 0.4 of a processor."""
    known: dict[str, Any] = {
        "client_s": 0.001,
        "server_s": 0.004,
        "client_wait_s": 0.01,
        "server_wait_s": 0.04,
        "busy": {0: 1.0, 1: 1.0},
    }
    factors = {"path": path, "threads": 16, **(LINK if path == "remote" else {})}
    (facts,) = arm_facts(_machines(Cell(factors, 100.0, **{**known, **changed})))
    return fit([facts], WORKLOAD)


def test_an_end_that_was_short_of_processors_had_what_it_used() -> None:
    assert _short("remote").server_cpus == pytest.approx(0.4, rel=0.01)
    assert _short("remote", busy={0: 0.9, 1: 0.9}).server_cpus > 0.49, "not full"
    assert _short("remote", server_wait_s=0.0045).server_cpus > 0.49, "not always wanted"
    assert _short("remote", busy=None).server_cpus > 0.49, "no counter says so"
    assert _short("remote", server_s=0.004, carried=30.0).server_cpus > 0.49, "the link was full"


def test_ends_that_share_processors_had_what_both_used() -> None:
    assert _short("tcp").server_cpus == pytest.approx(0.5, rel=0.01)


def test_the_emulator_s_share_is_taken_off_what_the_load_may_have() -> None:
    """4 ms of it a transaction at 100 a second: 0.4 CPUs, half of them on each host's."""
    (facts,) = arm_facts(run_of([Cell({"path": "remote", "threads": 16, **LINK}, 100.0, link_s=0.004)]))
    assert fit([facts], WORKLOAD).server_cpus == pytest.approx(0.8, rel=0.01)
