"""What compression and encryption cost, from synthetic runs with known costs."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.made import build
from tests.unit.rendered import findings_of
from tests.unit.synthetic_curves import REPLIES, REQUESTS, CurveCell, run_of
from tests.unit.test_analysis import full_links as full_links
from tests.unit.test_analysis import two_links
from tests.unit.test_confirm import fake_targets

from howfar.analysis.answer import MAX_WORDS, sentence
from howfar.contract.receipt import TrialReceipt
from howfar.contract.server_receipt import SessionReceipt
from howfar.experiments.network.answer import location_text
from howfar.experiments.network.bandwidth import texts as bandwidth_texts
from howfar.experiments.network.compression.analysis import (
    CompressionEconomics,
    CompressionGain,
    CompressionRow,
    gains_text,
    is_open_ended,
    with_sentences,
)
from howfar.experiments.network.compression.texts import ECONOMICS as COMPRESSION
from howfar.experiments.network.encryption.analysis import (
    EncryptionEconomics,
    EncryptionRow,
    EncryptionTried,
    encryption_sentence,
)
from howfar.experiments.network.encryption.texts import ECONOMICS as ENCRYPTION
from howfar.experiments.network.what_if import WhatIf, is_known
from howfar.experiments.registry import summarise
from howfar.findings import Finding, fill
from howfar.model.resource import Resource
from howfar.paths import PATHS as KNOWN_PATHS
from howfar.paths.remote import RemotePath
from howfar.plan.factors import TLS
from howfar.report.grid import level_text
from howfar.stats.intervals import Resolution
from howfar.store.records import Arm, ArmRole, Run, Trial

PAYLOAD = REPLIES + REQUESTS
PLAIN_100M, PLAIN_1G = 286.0, 1100.0


def _cell(tps: float, rate_bps: float, threads: int = 16, **figures_and_factors: Any) -> CurveCell:
    figure_names = {"client_s", "server_s", "wire_share", "receipt"}
    factors = {"path": "remote", "threads": threads, "rtt_ns": 200_000, "rate_bps": int(rate_bps)}
    factors |= {name: level for name, level in figures_and_factors.items() if name not in figure_names}
    figures = {name: figure for name, figure in figures_and_factors.items() if name in figure_names}
    return CurveCell(factors, tps, **figures)


def _zlib_cell(content: str, tps: float, rate_bps: float, wire_share: float, server_ns: float) -> CurveCell:
    return _cell(
        tps,
        rate_bps,
        compression="zlib",
        content=content,
        wire_share=wire_share,
        client_s=0.0002 + 2e-9 * PAYLOAD,
        server_s=0.0008 + server_ns * 1e-9 * PAYLOAD,
    )


def _plain_cell(content: str, tps: float, rate_bps: float) -> CurveCell:
    return _cell(tps, rate_bps, compression="off", content=content)


def _compression_run() -> Run:
    """zlib halves the bytes and takes 30 ns per byte: the server's CPU then allows 500 transactions per second."""
    return run_of(
        [
            _plain_cell("digits", PLAIN_100M, 1e8),
            _plain_cell("digits", PLAIN_1G, 1e9),
            _zlib_cell("digits", 470.0, 1e8, 0.5, 30),
            _zlib_cell("digits", 490.0, 1e9, 0.5, 30),
            _plain_cell("incompressible", PLAIN_100M, 1e8),
            _plain_cell("incompressible", PLAIN_1G, 1e9),
            _zlib_cell("incompressible", 280.0, 1e8, 1.01, 25),
            _zlib_cell("incompressible", 550.0, 1e9, 1.01, 25),
        ]
    )


def _rows(run: Run) -> dict[str, CompressionRow]:
    found = findings_of(summarise(run), CompressionEconomics)
    return {row.content: row for row in found.rows}


def test_compression_ratio_and_cpu_per_byte_are_recovered() -> None:
    row = _rows(_compression_run())["digits"]
    assert row.ratio_to_client == pytest.approx(0.5, rel=0.02)
    assert row.server_ns_per_byte == pytest.approx(30, rel=0.01)
    assert row.client_ns_per_byte == pytest.approx(2, rel=0.01)


def test_compression_pays_below_the_break_even_rate_and_measurements_agree_with_predictions() -> None:
    """zlib's CPU time allows 500 transactions/s. Without it, these need 172 Mb/s of a link: over a slower one, compression pays."""
    row = _rows(_compression_run())["digits"]
    assert row.break_even_bps is not None and 1.5e8 < row.break_even_bps < 2e8
    by_rate = {each.rate_bps: each for each in row.measured}
    assert (by_rate[1e8].predicted or 0.0) > 1.4 and (by_rate[1e9].predicted or 1.0) < 0.6
    assert all(each.agrees for each in row.measured)
    below = [point for point in row.curve if point.rate_bps < row.break_even_bps / 1.1]
    above = [point for point in row.curve if point.rate_bps > row.break_even_bps * 1.1]
    assert all(point.compressed_tps > point.plain_tps for point in below)
    assert all(point.compressed_tps < point.plain_tps for point in above)


def _resolved(rows: Sequence[CompressionRow | EncryptionRow]) -> list[bool]:
    """Whether each measured ratio differs from 1 by more than chance."""
    return [
        each.resolved
        for row in rows
        for each in (row.measured if isinstance(row, CompressionRow) else (*row.persistent, *row.per_transaction))
    ]


def test_the_sentence_counts_only_cells_that_are_resolved() -> None:
    found = findings_of(summarise(_with_duplicate(_compression_run())), CompressionEconomics)
    assert found.text == fill(COMPRESSION["resolved"], resolved=4, cells=4, predicted=3, right=3)
    assert all(_resolved(found.rows))


def test_compressing_incompressible_data_never_pays() -> None:
    row = _rows(_compression_run())["incompressible"]
    assert row.break_even_bps is None and all(gain.times <= 1 for gain in row.gains)


def test_a_wrong_prediction_is_reported() -> None:
    """Compression lowered throughput over a slow link, where the model predicted a gain: `agrees` is False."""
    cells = [_plain_cell("digits", PLAIN_100M, 1e8), _zlib_cell("digits", 200.0, 1e8, 0.5, 3)]
    cells += [_plain_cell("digits", PLAIN_1G, 1e9), _zlib_cell("digits", PLAIN_1G, 1e9, 0.5, 3)]
    comparison = _rows(run_of(cells))["digits"].measured[0]
    assert comparison.agrees is False
    assert comparison.predicted is not None and comparison.predicted > 1 > comparison.ratio.value


def test_a_cell_is_not_predicted_from_itself() -> None:
    cells = [_plain_cell("digits", PLAIN_100M, 1e8), _zlib_cell("digits", 200.0, 1e8, 0.5, 3)]
    found = findings_of(summarise(_with_duplicate(run_of(cells))), CompressionEconomics)
    (comparison,) = found.rows[0].measured
    assert comparison.predicted is None and comparison.agrees is None
    assert found.text == fill(COMPRESSION["resolved"], resolved=1, cells=1, predicted=0, right=0)


def test_a_negative_cost_is_noise_and_gives_no_break_even() -> None:
    cells = [_plain_cell("digits", PLAIN_100M, 1e8), _plain_cell("digits", PLAIN_1G, 1e9)]
    cells += [_zlib_cell("digits", 470.0, 1e8, 0.5, -10), _zlib_cell("digits", PLAIN_1G, 1e9, 0.5, 30)]
    found = findings_of(summarise(run_of(cells)), CompressionEconomics)
    (row,) = found.rows
    assert not row.resolved and row.break_even_bps is None and row.level_advice == ""
    assert row.server_ns_per_byte >= 0


def test_almost_free_compression_pays_at_every_examined_rate() -> None:
    cells = [_plain_cell("digits", PLAIN_100M, 1e8), _plain_cell("digits", 300.0, 1e9)]
    cheap: dict[str, Any] = {
        "wire_share": 0.5,
        "client_s": 0.0002 + 1e-15 * PAYLOAD,
        "compression": "zlib",
        "content": "digits",
    }
    cells += [_cell(470.0, 1e8, **cheap), _cell(300.0, 1e9, **cheap)]
    found = findings_of(summarise(run_of(cells)), CompressionEconomics)
    assert found.rows[0].resolved and found.rows[0].everywhere


def test_the_gains_of_a_rate_have_their_intervals_and_the_largest_is_first() -> None:
    row = _rows(_compression_run())["digits"]
    ratios = {"zlib": (1.2, (1.1, 1.3)), "zstd": (1.5, (1.4, 1.6))}
    rows = [
        row.model_copy(
            update={
                "algorithm": name,
                "gains": (CompressionGain(rate_bps=1e8, times=ratio, times_interval=limits),),
            }
        )
        for name, (ratio, limits) in ratios.items()
    ]
    assert gains_text(rows) == "at 100 Mb/s zstd 1.50 [1.40, 1.60] times, zlib 1.20 [1.10, 1.30] times"


def test_a_cost_is_resolved_by_its_interval_and_not_by_signs() -> None:
    def judged(cost: tuple[float, float] | None, *, signs: bool = True) -> CompressionRow:
        row = _rows(_compression_run())["digits"]
        update = {"resolved": signs, "cost_ns_per_byte_interval": cost, "break_even_bps_interval": (1e5, 1e12)}
        return with_sentences(CompressionEconomics(rows=(row.model_copy(update=update),), text="")).rows[0]

    open_ended = judged((0.1, 9.0))
    assert open_ended.resolved and open_ended.break_even_bps_interval == (1e6, 1e11)
    assert is_open_ended(open_ended)
    hidden = judged((-0.1, 9.0))
    assert not hidden.resolved and hidden.break_even_bps is None and hidden.level_advice == ""
    assert judged((0.1, 9.0), signs=False).resolved, "an interval above 0 outweighs a pair of cells without a cost"
    assert judged(None).resolved
    assert not judged(None, signs=False).resolved, "without an interval, only the sign of each pair's cost can tell"


def _what_if(run: Run) -> WhatIf:
    return findings_of(summarise(run), WhatIf)


def _encrypted_run(persistent: float, per_transaction: float) -> Run:
    """At 16 connections, TLS multiplies throughput by `persistent` or `per_transaction`. It takes 0.5 ns per byte at each end, and per
    connect 300 µs of CPU and two round trips."""
    cells = []
    for threads in (1, 16):
        for connect in ("persistent", "per-transaction"):
            connects_each_time = connect == "per-transaction"
            plain_s = 0.0003 if connects_each_time else 0.0
            plain_cycle_s = 0.0045 + (0.001 + plain_s if connects_each_time else 0.0)
            byte_s = 0.5e-9 * PAYLOAD
            connect_s = 0.00015 if connects_each_time else 0.0
            cycle_s = plain_cycle_s + 2 * byte_s + 2 * connect_s + (2 * 0.0002 if connects_each_time else 0.0)
            plain_tps = 1 / plain_cycle_s if threads == 1 else 1000.0
            tls_tps = 1 / cycle_s if threads == 1 else 1000.0 * (per_transaction if connects_each_time else persistent)
            common: dict[str, Any] = {"connect": connect, "threads": threads}
            cells.append(_cell(plain_tps, 1e9, tls="off", server_s=0.0008 + plain_s, **common))
            session = build(SessionReceipt, tls_resumed=True, tls_retried=False)
            cells.append(
                _cell(
                    tls_tps,
                    1e9,
                    tls="1.3",
                    client_s=0.0002 + byte_s + connect_s,
                    server_s=0.0008 + plain_s + byte_s + connect_s,
                    receipt=TrialReceipt(session=session),
                    **common,
                )
            )
    return run_of(cells)


def _encrypted(persistent: float, per_transaction: float) -> EncryptionRow:
    found = findings_of(summarise(_with_duplicate(_encrypted_run(persistent, per_transaction))), EncryptionEconomics)
    (row,) = found.rows
    return row


def _without(run: Run, unwanted: Callable[[dict[str, Any]], bool]) -> Run:
    arms = tuple(arm for arm in run.info.arms if not unwanted(arm.factors))
    return run.model_copy(update={"info": run.info.model_copy(update={"arms": arms})})


def test_costs_that_no_cell_measured_are_unknown_not_zero() -> None:
    """Varied: nothing; only TLS; TLS and connects; both, but no cell with one connection, which shows the round trips of a connect."""
    plain = _what_if(_compression_run())
    assert not is_known(plain, tls=True, connect_each=False) and not is_known(plain, tls=False, connect_each=True)
    bytes_only = _what_if(_without(_encrypted_run(0.99, 0.6), lambda factors: factors["connect"] != "persistent"))
    assert is_known(bytes_only, tls=True, connect_each=False) and not is_known(bytes_only, tls=False, connect_each=True)
    every = _what_if(_encrypted_run(0.99, 0.6))
    assert is_known(every, tls=True, connect_each=True)
    without_single = _what_if(_without(_encrypted_run(0.99, 0.6), lambda factors: factors["threads"] == 1))
    assert without_single.connect_turns is None and not is_known(without_single, tls=False, connect_each=True)
    assert all(not example.settings.connect_each for example in without_single.worked)


def test_an_unmeasured_cost_per_byte_is_none() -> None:
    run = _without(_encrypted_run(0.99, 0.6), lambda factors: factors["connect"] == "persistent")
    found = findings_of(summarise(run), EncryptionEconomics)
    assert found.rows[0].byte_ns is None


def test_a_hello_retry_is_reported() -> None:
    row = _encrypted(0.99, 0.6)
    assert ENCRYPTION["retried"] not in encryption_sentence(row)
    assert ENCRYPTION["retried"] in encryption_sentence(row.model_copy(update={"retried": True}))


def test_tls_cost_is_predicted_from_other_connection_counts() -> None:
    """At 16 connections, the server's CPU time decides: TLS raises it from 0.80 to 0.82 ms, with a connect from 1.10 to 1.27 ms."""
    row = _encrypted(0.98, 0.87)
    lone, many = row.persistent
    assert lone.predicted is not None and lone.predicted == pytest.approx(lone.ratio.value, rel=0.02)
    assert many.predicted is not None and 0.95 < many.predicted < 1
    lone_connects, connects = row.per_transaction
    assert lone_connects.predicted is None, "no other cell shows the round trips of a connect"
    assert connects.predicted is not None and connects.predicted < many.predicted
    said = encryption_sentence(row)
    errors = [abs(each.predicted / each.ratio.value - 1) for each in (lone, many, connects) if each.predicted]
    figures = {"predicted": 3, "cells": 4, "mean": 100 * sum(errors) / 3, "worst": 100 * max(errors)}
    assert said.endswith(fill(ENCRYPTION["model"], **figures))


def test_a_prediction_does_not_use_the_measurement_that_it_predicts() -> None:
    def comparisons(slower: float) -> list[EncryptionTried]:
        row = _encrypted(0.98 * slower, 0.87 * slower)
        return [each for each in (*row.persistent, *row.per_transaction) if each.threads == 16]

    assert [each.predicted for each in comparisons(1)] == pytest.approx([each.predicted for each in comparisons(0.5)])


def test_costs_of_tls_are_recovered() -> None:
    row = _encrypted(0.99, 0.6)
    assert row.byte_ns == pytest.approx(1.0, rel=0.01)
    assert row.connect_us == pytest.approx(300, rel=0.01)
    assert row.connect_turns == pytest.approx(2, abs=0.2), "approximate: the window holds only whole transactions"
    assert row.resumed is True and row.retried is False
    assert [each.threads for each in row.persistent] == [1, 16]


def test_a_run_without_compression_or_encryption_has_no_economics() -> None:
    summary = summarise(run_of([_plain_cell("digits", PLAIN_1G, 1e9)]))
    assert summary.find_findings(CompressionEconomics) is None and summary.find_findings(EncryptionEconomics) is None


# ---------------------------------------------------------------- answers


WIRE_BYTES = REPLIES + 90 * (REPLIES / 1448 + 8)
FULL_TPS = 1e8 / 8 / WIRE_BYTES


def _remote(threads: int, rate_bps: int, tps: float, **more: Any) -> CurveCell:
    factors = {"path": "remote", "threads": threads, "rtt_ns": 200_000, "rate_bps": rate_bps}
    return CurveCell({**factors, **more}, tps)


def _with_duplicate(run: Run) -> Run:
    """The run with a duplicate of the baseline, so that it has a noise floor."""
    base = run.info.arms[0]
    again = Arm(name=f"{base.name} (again)", role=ArmRole.DUPLICATE, factors=base.factors)
    duplicates: list[Trial] = [
        trial.model_copy(update={"arm": again.name, "number": 1000 + trial.number})
        for trial in run.trials
        if trial.arm == base.name
    ]
    info = run.info.model_copy(update={"arms": (*run.info.arms, again)})
    return run.model_copy(update={"info": info, "trials": (*run.trials, *duplicates)})


def _failing(run: Run, part: str = "") -> Run:
    """The run with server errors in arms whose names contain `part`, so that their figures do not describe the path alone."""
    trials = tuple(
        trial.model_copy(update={"measured": trial.measured.model_copy(update={"errors": {"1040": 500}})})
        if trial.measured is not None and part in trial.arm
        else trial
        for trial in run.trials
    )
    return run.model_copy(update={"trials": trials})


def _found(run: Run) -> dict[tuple[str, str], Finding]:
    """The findings of a run by id and subject."""
    return {(finding.id, finding.subject): finding for finding in summarise(run).answer.findings}


def test_a_full_link_is_reported_with_the_gain_of_a_faster_one_and_its_range_of_connections() -> None:
    """At 100 Mb/s the link is full from 16 connections on; at 1 Gb/s, 800 µs of server CPU each limit transactions to 1250/s."""
    cells = [_remote(n, 10**8, tps) for n, tps in ((1, 110), (16, 0.97 * FULL_TPS), (64, 0.99 * FULL_TPS))]
    cells += [_remote(n, 10**9, tps) for n, tps in ((1, 200), (16, 1150), (64, 1245))]
    run = _with_duplicate(run_of(cells))
    found = _found(run)
    assert list(found) == [("link-full", "at 100 Mb/s"), ("server-cpu", "at 1 Gb/s")]
    slow, fast = found.values()
    assert slow.estimate is not None and slow.estimate.value == pytest.approx(1245 / (0.99 * FULL_TPS), rel=0.01)
    assert slow.verdict is Resolution.FASTER and slow.parameters["faster_bps"] == 1e9
    assert (slow.parameters["first_connections"], slow.parameters["last_connections"]) == (16, 64)
    assert (fast.parameters["first_connections"], fast.parameters["last_connections"]) == (64, 64)
    actions = [advice.action for advice in summarise(run).advice]
    assert actions[0].startswith("At 1 Gb/s") and "CPU" in actions[0]
    assert actions[1].startswith("At 100 Mb/s") and "faster link" in actions[1]
    assert "What would help: " in summarise(run).advice[0].because


def test_the_gain_of_a_link_that_was_not_measured_is_a_bound() -> None:
    run = _with_duplicate(run_of([_remote(n, 10**8, tps) for n, tps in ((1, 110), (64, 0.99 * FULL_TPS))]))
    (finding,) = _found(run).values()
    limit = summarise(run).cells[1].limit
    assert finding.id == "link-full-at-most" and limit is not None and finding.estimate == limit.faster_link


@pytest.mark.parametrize(
    ("threads", "tps", "name"), [((1, 2), (250, 420), "link-not-full"), ((1, 64), (200, 1000), "link-slower")]
)
def test_a_faster_link_may_help_although_the_slower_one_is_not_known_to_be_full(
    threads: tuple[int, int], tps: tuple[int, int], name: str
) -> None:
    """With two connections, each waits for its own round trips; with 64, no limit is established."""
    cells = [
        _remote(n, rate, each * gain)
        for rate, gain in ((10**9, 1), (10**10, 1.2))
        for n, each in zip(threads, tps, strict=True)
    ]
    finding = _found(_with_duplicate(run_of(cells)))[name, "at 1 Gb/s"]
    assert finding.estimate is not None and finding.estimate.value == pytest.approx(1.2, rel=0.01)


def test_loopback_cells_are_left_out_if_a_link_was_measured_too() -> None:
    local = [CurveCell({"path": "tcp", "threads": n}, tps) for n, tps in ((1, 800), (16, 1245))]
    links = [_remote(n, 10**8, tps) for n, tps in ((1, 110), (16, 0.99 * FULL_TPS))]
    assert [finding.id for finding in _found(_with_duplicate(run_of(local))).values()] == ["server-cpu"]
    assert list(_found(_with_duplicate(run_of([*links, *local])))) == [("link-full-at-most", "at 100 Mb/s")]


@pytest.mark.parametrize("resource", [each for each in Resource if not each.value.startswith("link")])
def test_each_limit_has_a_sentence(resource: Resource) -> None:
    name = resource.name.lower().replace("_", "-")
    finding = Finding(id=name, subject="at 1 Gb/s", parameters={"unsure": 1, "on_link": 1})
    assert 5 <= len(sentence([finding], bandwidth_texts.TEXTS).split()) <= MAX_WORDS


def test_compression_helps_over_one_link_and_not_over_another() -> None:
    cells = [
        _remote(16, 10**8, 0.99 * FULL_TPS),
        _remote(16, 10**8, 2 * FULL_TPS, compression="zlib"),
        _remote(16, 10**9, 1240),
        _remote(16, 10**9, 600, compression="zlib"),
    ]
    found = _found(_with_duplicate(run_of(cells)))
    assert list(found) == [("helps", "digits at 100 Mb/s"), ("slower", "at 1 Gb/s")]
    helps, slower = found.values()
    assert helps.estimate is not None and helps.estimate.value == pytest.approx(2 / 0.99, rel=0.01)
    assert slower.estimate is not None and slower.estimate.value == pytest.approx(600 / 1240, rel=0.01)
    assert helps.parameters["algorithm"] == "zlib" and helps.parameters["plain_limit"] == "link to client"


def test_the_answer_distinguishes_incompressible_data_from_a_link_over_which_compression_never_helps() -> None:
    found = _found(_with_duplicate(_compression_run()))
    assert list(found) == [
        ("helps", "digits at 100 Mb/s"),
        ("slower", "at 1 Gb/s"),
        ("slower", "for incompressible data at 100 Mb/s"),
    ]


def test_some_slower_and_some_unresolved_is_no_measurable_gain() -> None:
    cells = [_remote(16, 10**8, tps, compression=name) for name, tps in (("off", 200), ("zlib", 100), ("zstd-1", 200))]
    assert list(_found(_with_duplicate(run_of(cells)))) == [("no-gain", "at 100 Mb/s")]


def test_compression_is_not_judged_if_the_server_had_errors() -> None:
    cells = [_remote(16, 10**8, tps, compression=name) for name, tps in (("off", 200), ("zlib", 100))]
    assert list(_found(_failing(_with_duplicate(run_of(cells))))) == [("invalid", "at 100 Mb/s")]


def test_the_cost_of_connecting_is_distinguished_from_the_cost_of_encrypting_bytes() -> None:
    cells = []
    for connect, plain, encrypted in (("persistent", 1200, 1150), ("per-transaction", 900, 400)):
        for threads in (1, 16):
            cells.append(_remote(threads, 10**9, plain * threads / 16, connect=connect, tls="off"))
            cells.append(_remote(threads, 10**9, encrypted * threads / 16, connect=connect, tls="1.3"))
    found = _found(_with_duplicate(run_of(cells)))
    assert list(found) == [("per-transaction", "TLS 1.3"), ("persistent", "TLS 1.3")]
    for finding, ratio in zip(found.values(), (400 / 900, 1150 / 1200), strict=True):
        assert finding.estimate is not None and finding.estimate.value == pytest.approx(ratio, rel=0.01)
        assert finding.verdict is Resolution.SLOWER and finding.parameters["several"]


def test_a_resumed_handshake_has_one_name_everywhere() -> None:
    cells = [
        _remote(16, 10**9, tps, connect="per-transaction", tls=tls)
        for tls, tps in (("off", 1000.0), ("1.3-resumed", 700.0))
    ]
    summary = summarise(_with_duplicate(run_of(cells)))
    assert (
        summary.find_findings(EncryptionEconomics) is not None
        and findings_of(summary, EncryptionEconomics).rows[0].version == "TLS 1.3 resumed"
    )
    assert [finding.subject for finding in summary.answer.findings] == ["TLS 1.3 resumed"]
    assert level_text(TLS, "1.3-resumed") == "TLS 1.3 resumed"


def _noisy(run: Run) -> Run:
    """The run on a busy machine: each trial is faster or slower by up to a factor of two."""
    rng = random.Random(3)

    def with_noise(trial: Trial) -> Trial:
        assert trial.measured is not None
        elapsed = int(trial.measured.elapsed_ns * 2 ** rng.uniform(-1, 1))
        return trial.model_copy(update={"measured": trial.measured.model_copy(update={"elapsed_ns": elapsed})})

    return run.model_copy(update={"trials": tuple(with_noise(trial) for trial in run.trials)})


def _slowed() -> Run:
    """TLS 1.3 costs a lone connection 27 % of its throughput, and 16 connections 20 %."""
    cells = []
    for threads, left in ((1, 0.73), (16, 0.80)):
        cells.append(_remote(threads, 10**9, 75 * threads, tls="off"))
        cells.append(_remote(threads, 10**9, 75 * threads * left, tls="1.3"))
    return _with_duplicate(run_of(cells))


def test_unresolved_cases_are_reported_together() -> None:
    assert [(found.id, found.parameters["cells"]) for found in _found(_noisy(_slowed())).values()] == [
        ("no-difference", 2)
    ]


def test_one_way_to_connect_may_be_resolved_and_the_other_not() -> None:
    cells = []
    for connect, encrypted in (("persistent", 1200), ("per-transaction", 600)):
        cells.append(_remote(16, 10**9, 1200, connect=connect, tls="off"))
        cells.append(_remote(16, 10**9, encrypted, connect=connect, tls="1.3"))
        cells.append(_remote(16, 10**9, encrypted, connect=connect, tls="1.2"))
    assert [finding.id for finding in summarise(_with_duplicate(run_of(cells))).answer.findings] == [
        "per-transaction",
        "persistent-unresolved",
        "persistent-unresolved",
        "per-transaction",
    ]


def test_the_worst_of_several_cells_is_quoted_with_its_own_interval() -> None:
    (finding,) = _found(_slowed()).values()
    assert finding.estimate is not None and finding.parameters["several"]
    assert finding.estimate.value == pytest.approx(0.73, abs=0.01)
    assert finding.parameters["least_ratio"] == pytest.approx(0.80, abs=0.01)


def test_compression_that_only_seems_faster_is_reported_as_no_difference() -> None:
    cells = [_remote(16, 10**8, 200), _remote(16, 10**8, 260, compression="zlib")]
    assert list(_found(_noisy(_with_duplicate(run_of(cells))))) == [("no-difference", "at 100 Mb/s")]


def _range(run: Run) -> tuple[str, object, object]:
    """The limit of a run's only curve, and the lowest and highest number of connections to which it applies."""
    (finding,) = _found(run).values()
    return finding.id, finding.parameters["first_connections"], finding.parameters["last_connections"]


def test_a_limit_is_claimed_only_for_cells_around_the_best_that_share_it() -> None:
    """At 64 connections, errors make the figures invalid: the limit at 16, the best cell, is not claimed for 64."""
    run = _with_duplicate(run_of([_remote(n, 10**9, tps) for n, tps in ((1, 200), (16, 1245), (64, 1100))]))
    assert _range(_failing(run, "64 threads")) == ("server-cpu", 16, 16)


def test_the_latency_limit_is_claimed_only_up_to_the_last_valid_cell() -> None:
    run = _with_duplicate(run_of([_remote(n, 10**9, tps) for n, tps in ((1, 250), (2, 420), (16, 300))]))
    assert _range(_failing(run, "16 threads")) == ("latency", 1, 2)


def test_cells_with_errors_say_nothing_about_encryption() -> None:
    """Cells with narrow intervals whose figures do not describe the path: neither the headline nor the economics uses them."""
    cells = [_remote(n, 10**9, tps, tls=tls) for n in (1, 16) for tls, tps in (("off", 1200 * n / 16), ("1.3", 70 * n))]
    run = _with_duplicate(run_of(cells))
    clean = summarise(run)
    assert [finding.id for finding in clean.answer.findings] == ["persistent"]
    assert all(_resolved(findings_of(clean, EncryptionEconomics).rows))
    run = _failing(run, "1.3")
    summary = summarise(run)
    assert [finding.id for finding in summary.answer.findings] == ["invalid"]
    assert all(each.invalid for row in findings_of(summary, EncryptionEconomics).rows for each in row.persistent)
    assert not any(_resolved(findings_of(summary, EncryptionEconomics).rows))


def test_economics_claim_nothing_below_the_noise_floor() -> None:
    """The baseline's duplicate is half as fast: a ratio of 0.8, however narrow its interval, may be no change at all."""
    cells = [_remote(n, 10**9, tps, tls=tls) for n in (1, 16) for tls, tps in (("off", 1200 * n / 16), ("1.3", 60 * n))]
    run = run_of(cells)
    duplicated = _with_duplicate(run)
    halved = tuple(
        trial.model_copy(
            update={"measured": trial.measured.model_copy(update={"elapsed_ns": trial.measured.elapsed_ns * 2})}
        )
        if trial.measured is not None and trial.arm.endswith("(again)")
        else trial
        for trial in duplicated.trials
    )
    resolved = findings_of(summarise(duplicated), EncryptionEconomics)
    unresolved = findings_of(summarise(duplicated.model_copy(update={"trials": halved})), EncryptionEconomics)
    assert all(_resolved(resolved.rows)) and not any(_resolved(unresolved.rows))


def test_without_a_noise_floor_no_pair_is_resolved() -> None:
    """Half the throughput at 16 connections, in narrow intervals; but how much a cell differs from itself is unknown."""
    run = _encrypted_run(0.5, 0.5)
    found, floored = (findings_of(summarise(each), EncryptionEconomics) for each in (run, _with_duplicate(run)))
    assert not any(each.resolved for row in found.rows for each in (*row.persistent, *row.per_transaction))
    every = [each for row in floored.rows for each in (*row.persistent, *row.per_transaction)]
    assert all(each.resolved for each in every if each.threads == 16)
    assert not any(_resolved(findings_of(summarise(_compression_run()), CompressionEconomics).rows))


def test_server_errors_do_not_lead_to_advice_to_use_an_idle_machine() -> None:
    run = _with_duplicate(run_of([_remote(n, 10**9, tps) for n, tps in ((1, 200), (16, 1245))]))
    run = _failing(run)
    summary = summarise(run)
    assert [finding.id for finding in summary.answer.findings] == ["errors"]
    assert summary.advice[0].action.startswith("Remove the cause of the server's errors")
    assert not any("idle machine" in advice.action for advice in summary.advice)


def _causes(cells: list[CurveCell]) -> list[Finding]:
    return list(summarise(_with_duplicate(run_of(cells))).answer.causes)


def test_the_cpu_time_of_tls_is_that_of_the_cells_where_it_costs_most() -> None:
    """TLS adds 50 % CPU time in the cell where it costs the most throughput, and hardly any in the last cell."""
    cells = [
        _cell(75 * threads * left, 1e9, threads, tls=tls, server_s=server_s)
        for threads, tls, left, server_s in (
            (1, "off", 1.0, 0.0008), (1, "1.3", 0.7, 0.0013), (16, "off", 1.0, 0.0008), (16, "1.3", 0.9, 0.00085),
        )
    ]  # fmt: skip
    (cause,) = _causes(cells)
    assert (cause.id, cause.subject) == ("cpu/persistent", "TLS 1.3")
    assert cause.estimate is not None and cause.estimate.value == pytest.approx(1.5, rel=0.02)


@pytest.mark.parametrize("server_s", [0.0008, 0.0007])
def test_tls_that_costs_no_more_cpu_time_is_not_explained_by_it(server_s: float) -> None:
    """The same CPU time, or less: neither makes TLS slower."""
    cells = [
        _cell(1200, 1e9, tls="off", server_s=0.0008),
        _cell(800, 1e9, tls="1.3", server_s=server_s),
    ]
    assert _causes(cells) == []


def test_bytes_that_no_interface_counted_are_no_cause() -> None:
    """Only the CPU time is known: `leaves 0 % of the bytes` would be made up."""
    cells = [
        _cell(200, 1e8, server_s=0.0008),
        _cell(400, 1e8, compression="zlib", server_s=0.0018),
    ]
    summary = summarise(_with_duplicate(run_of(cells)))
    (cause,) = summary.answer.causes
    assert cause.id == "cpu" and "bytes" not in cause.parameters and "CPU with zlib" in summary.answer.why
    assert cause.estimate is not None and cause.estimate.value == pytest.approx(2, rel=0.02)


def test_cpu_time_is_the_cause_where_compression_never_gains() -> None:
    cells = [
        _cell(1200, 1e9, server_s=0.0008),
        _cell(600, 1e9, compression="zlib", server_s=0.0018),
    ]
    (cause,) = _causes(cells)
    assert (cause.id, cause.parameters) == ("cpu", {"algorithm": "zlib"})
    assert cause.estimate is not None and cause.estimate.value == pytest.approx(2, rel=0.02)


class _WirePath(RemotePath):
    name = "wire"


def test_a_location_is_described_by_the_properties_of_its_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(KNOWN_PATHS, "wire", _WirePath())
    assert location_text({"path": "wire"}) == "over the network"
    assert location_text({"path": "pgbouncer-local"}) == location_text({"path": "unknown"}) == "here"
    assert (location_text({"path": "tcp"}), location_text({"path": "socket"})) == ("on the loopback", "on the socket")


def test_an_answer_whose_limit_was_refuted_says_so(tmp_path: Path, full_links: None) -> None:
    summary = two_links(tmp_path / "a.howfar", fake_targets(lambda factors: 1.0))
    assert {finding.id for finding in summary.answer.findings} == {"refuted"}
