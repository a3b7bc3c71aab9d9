"""What compression and encryption cost, from made-up runs whose truth is known."""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from typing import Any

import pytest
from tests.made import made
from tests.unit.made_curves import REPLIES, REQUESTS, Cell, run_of
from tests.unit.rendered import findings_of
from tests.unit.synthetic_run import synthetic_run

from howfar.contract.messages import Receipt
from howfar.contract.receipt import TrialReceipt
from howfar.experiments.compression.analysis import (
    CompressionEconomics,
    CompressionGain,
    CompressionRow,
    level_advice,
    with_sentences,
)
from howfar.experiments.encryption.analysis import (
    EncryptionEconomics,
    EncryptionRow,
    EncryptionTried,
    encryption_sentence,
)
from howfar.experiments.registry import summarise
from howfar.model.what_if import WhatIf, answer, is_known
from howfar.plan.factors import TLS
from howfar.report.grid import level_text
from howfar.store.records import Arm, ArmRole, Run, Trial

PAYLOAD = REPLIES + REQUESTS
PLAIN_100M, PLAIN_1G = 286.0, 1100.0


def _cell(tps: float, rate_bps: float, threads: int = 16, **more: Any) -> Cell:
    known = {"client_s", "server_s", "carried", "receipt"}
    factors = {"path": "remote", "threads": threads, "rtt_ns": 200_000, "rate_bps": int(rate_bps)}
    factors |= {name: level for name, level in more.items() if name not in known}
    return Cell(factors, tps, **{name: value for name, value in more.items() if name in known})


def _packed(algorithm: str, content: str, tps: float, rate_bps: float, carried: float, server_ns: float) -> Cell:
    return _cell(
        tps,
        rate_bps,
        compression=algorithm,
        content=content,
        carried=carried,
        client_s=0.0002 + 2e-9 * PAYLOAD,
        server_s=0.0008 + server_ns * 1e-9 * PAYLOAD,
    )


def _plain(content: str, tps: float, rate_bps: float) -> Cell:
    return _cell(tps, rate_bps, compression="off", content=content)


def _compressed() -> Run:
    """zlib halves the bytes and takes 30 ns per byte: the server's CPU then allows 500 transactions per second."""
    return run_of(
        [
            _plain("digits", PLAIN_100M, 1e8),
            _plain("digits", PLAIN_1G, 1e9),
            _packed("zlib", "digits", 470.0, 1e8, 0.5, 30),
            _packed("zlib", "digits", 490.0, 1e9, 0.5, 30),
            _plain("incompressible", PLAIN_100M, 1e8),
            _plain("incompressible", PLAIN_1G, 1e9),
            _packed("zlib", "incompressible", 280.0, 1e8, 1.01, 25),
            _packed("zlib", "incompressible", 550.0, 1e9, 1.01, 25),
        ]
    )


def _rows(run: Run) -> dict[str, CompressionRow]:
    found = findings_of(summarise(run), CompressionEconomics)
    return {row.content: row for row in found.rows}


def test_bytes_and_time_a_byte_are_read_back() -> None:
    row = _rows(_compressed())["digits"]
    assert row.ratio_to_client == pytest.approx(0.5, rel=0.02)
    assert row.server_ns_per_byte == pytest.approx(30, rel=0.01)
    assert row.client_ns_per_byte == pytest.approx(2, rel=0.01)


def test_it_pays_below_the_break_even_and_the_cells_agree() -> None:
    """500 transactions of 43 kB are 172 Mb/s: below that rate the link is the limit."""
    row = _rows(_compressed())["digits"]
    assert row.break_even_bps is not None and 1.5e8 < row.break_even_bps < 2e8
    by_rate = {each.rate_bps: each for each in row.measured}
    assert (by_rate[1e8].predicted or 0.0) > 1.4 and (by_rate[1e9].predicted or 1.0) < 0.6
    assert all(each.agrees for each in row.measured)
    below = [point for point in row.curve if point.rate_bps < row.break_even_bps / 1.1]
    above = [point for point in row.curve if point.rate_bps > row.break_even_bps * 1.1]
    assert all(point.compressed_tps > point.plain_tps for point in below)
    assert all(point.compressed_tps < point.plain_tps for point in above)


def test_the_sentence_counts_only_cells_that_are_resolved() -> None:
    found = findings_of(summarise(_with_twin(_compressed())), CompressionEconomics)
    assert "4 of 4 measured cells" in found.says
    assert "incompressible: zlib never" in found.says and "digits: zlib below 1" in found.says


def test_what_does_not_shrink_never_pays() -> None:
    row = _rows(_compressed())["incompressible"]
    assert row.break_even_bps is None and "none pays" in row.level_advice


def test_a_wrong_forecast_is_said() -> None:
    """Compression made a slow link slower, where the model predicts a gain: the cell does not agree."""
    cells = [_plain("digits", PLAIN_100M, 1e8), _packed("zlib", "digits", 200.0, 1e8, 0.5, 3)]
    cells += [_plain("digits", PLAIN_1G, 1e9), _packed("zlib", "digits", PLAIN_1G, 1e9, 0.5, 3)]
    tried = _rows(run_of(cells))["digits"].measured[0]
    assert tried.predicted is not None and tried.predicted > 1 > tried.ratio.value and tried.agrees is False


def test_a_cell_is_not_foreseen_from_itself() -> None:
    cells = [_plain("digits", PLAIN_100M, 1e8), _packed("zlib", "digits", 200.0, 1e8, 0.5, 3)]
    found = findings_of(summarise(_with_twin(run_of(cells))), CompressionEconomics)
    (tried,) = found.rows[0].measured
    assert tried.predicted is None and tried.agrees is None
    assert "the model predicted none of these" in found.says


def test_a_cost_below_nothing_is_noise_and_gives_no_break_even() -> None:
    cells = [_plain("digits", PLAIN_100M, 1e8), _plain("digits", PLAIN_1G, 1e9)]
    cells += [_packed("zlib", "digits", 470.0, 1e8, 0.5, -10), _packed("zlib", "digits", PLAIN_1G, 1e9, 0.5, 30)]
    found = findings_of(summarise(run_of(cells)), CompressionEconomics)
    (row,) = found.rows
    assert not row.resolved and row.break_even_bps is None and row.level_advice == ""
    assert row.server_ns_per_byte >= 0
    assert "digits: zlib cost not resolved" in found.says and "100gbit" not in found.says


def test_what_costs_hardly_anything_pays_at_every_rate_looked_at_and_is_not_said_to_end_there() -> None:
    cells = [_plain("digits", PLAIN_100M, 1e8), _plain("digits", 300.0, 1e9)]
    cheap: dict[str, Any] = {
        "carried": 0.5,
        "client_s": 0.0002 + 1e-15 * PAYLOAD,
        "compression": "zlib",
        "content": "digits",
    }
    cells += [_cell(470.0, 1e8, **cheap), _cell(300.0, 1e9, **cheap)]
    found = findings_of(summarise(run_of(cells)), CompressionEconomics)
    assert found.rows[0].resolved
    assert found.rows[0].everywhere and "zlib at every rate looked at" in found.says
    assert "below 100gbit" not in found.says


def test_a_gain_of_a_thousandth_is_not_advised() -> None:
    """At 1 Gb/s the server's processor is the limit, and this compression takes next to none of it."""
    base = _what_if(_compressed())
    cheap = base.compression[0].model_copy(
        update={"client_byte_s": 1e-15, "server_byte_s": 1e-15, "ratio_to_client": 0.999}
    )
    base = base.model_copy(update={"compression": (cheap,)})

    def gain(rate: float, algorithm: str) -> float:
        plain = base.worked[0].settings.model_copy(update={"rate_bps": rate, "compression": "off"})
        return answer(base, plain.model_copy(update={"compression": algorithm})).tps / answer(base, plain).tps

    assert 1 < gain(1e9, "zlib") < 1.01
    row = _rows(_compressed())["digits"]
    thousandth = CompressionGain(rate_bps=1e9, times=gain(1e9, "zlib"))
    assert level_advice([row.model_copy(update={"gains": (thousandth,)})]) == "at 1gbit none pays"


def test_advice_says_what_its_intervals_leave_open() -> None:
    row = _rows(_compressed())["digits"]

    def advice(**times: tuple[float, tuple[float, float] | None]) -> str:
        return level_advice([
            row.model_copy(
                update={
                    "algorithm": name,
                    "gains": (CompressionGain(rate_bps=1e8, times=value, times_interval=limits),),
                }
            )
            for name, (value, limits) in times.items()
        ])  # fmt: skip

    assert (
        advice(zlib=(1.5, (1.4, 1.6)), zstd=(1.2, (1.1, 1.3))) == "at 100mbit zlib helps most (1.50 [1.40, 1.60] times)"
    )
    assert "not resolved from zstd" in advice(zlib=(1.5, (1.2, 1.8)), zstd=(1.4, (1.1, 1.7)))
    assert "whether it pays is not resolved" in advice(zlib=(1.2, (0.9, 1.5)))
    assert advice(zlib=(0.9, (0.8, 1.0))) == "at 100mbit none pays"
    assert advice(zlib=(0.9, (0.7, 1.2))) == "at 100mbit none pays (zlib may, 0.90 [0.70, 1.20] times)"


def test_a_cost_is_resolved_by_its_interval_and_not_by_signs() -> None:
    def judged(cost: tuple[float, float] | None, *, signs: bool = True) -> CompressionRow:
        row = _rows(_compressed())["digits"]
        update = {"resolved": signs, "cost_ns_per_byte_interval": cost, "break_even_bps_interval": (1e5, 1e12)}
        return with_sentences(CompressionEconomics(rows=(row.model_copy(update=update),), says="")).rows[0]

    open_ended = judged((0.1, 9.0))
    assert open_ended.resolved and open_ended.break_even_bps_interval == (1e6, 1e11)
    assert (
        "or never or at every rate looked at" in with_sentences(CompressionEconomics(rows=(open_ended,), says="")).says
    )
    hidden = judged((-0.1, 9.0))
    assert not hidden.resolved and hidden.break_even_bps is None and hidden.level_advice == ""
    assert judged((0.1, 9.0), signs=False).resolved, "one cell in which noise was larger does not hide it"
    assert judged(None).resolved and not judged(None, signs=False).resolved, (
        "without an interval signs are all there is"
    )


def _what_if(run: Run) -> WhatIf:
    return findings_of(summarise(run), WhatIf)


def _encrypted_run(persistent: float, churn: float) -> Run:
    """TLS multiplies throughput by these; it takes 0.5 ns per byte at each end, and 300 µs of CPU and two round trips per connect."""
    cells = []
    for threads in (1, 16):
        for connect in ("persistent", "per-transaction"):
            each = connect == "per-transaction"
            plain_s = 0.0003 if each else 0.0
            plain_cycle = 0.0045 + (0.001 + plain_s if each else 0.0)
            byte_s = 0.5e-9 * PAYLOAD
            connect_s = 0.00015 if each else 0.0
            cycle = plain_cycle + 2 * byte_s + 2 * connect_s + (2 * 0.0002 if each else 0.0)
            plain_tps = 1 / plain_cycle if threads == 1 else 1000.0
            tls_tps = 1 / cycle if threads == 1 else 1000.0 * (churn if each else persistent)
            common: dict[str, Any] = {"connect": connect, "threads": threads}
            cells.append(_cell(plain_tps, 1e9, tls="off", server_s=0.0008 + plain_s, **common))
            session = made(Receipt, tls_resumed=True, tls_retried=False)
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


def _encrypted(persistent: float, churn: float) -> EncryptionRow:
    found = findings_of(summarise(_with_twin(_encrypted_run(persistent, churn))), EncryptionEconomics)
    (row,) = found.rows
    costs = r"TLS 1.3 costs 1.00( \[[\d., ]+\])? ns of CPU per byte and 300( \[[\d., ]+\])? µs of CPU per connect"
    assert re.match(costs, found.says)
    return row


def _without(run: Run, unwanted: Callable[[dict[str, Any]], bool]) -> Run:
    arms = tuple(arm for arm in run.info.arms if not unwanted(arm.factors))
    return run.model_copy(update={"info": run.info.model_copy(update={"arms": arms})})


def test_what_no_cell_measured_is_not_free() -> None:
    """Cases: neither TLS nor connects were varied; connects were not; no lone connection shows the round trips of a connect."""
    plain = _what_if(_compressed())
    assert not is_known(plain, tls=True, connect_each=False) and not is_known(plain, tls=False, connect_each=True)
    bytes_only = _what_if(_without(_encrypted_run(0.99, 0.6), lambda factors: factors["connect"] != "persistent"))
    assert is_known(bytes_only, tls=True, connect_each=False) and not is_known(bytes_only, tls=False, connect_each=True)
    every = _what_if(_encrypted_run(0.99, 0.6))
    assert is_known(every, tls=True, connect_each=True)
    no_lone = _what_if(_without(_encrypted_run(0.99, 0.6), lambda factors: factors["threads"] == 1))
    assert no_lone.connect_turns is None and not is_known(no_lone, tls=False, connect_each=True)
    assert all(not worked.settings.connect_each for worked in no_lone.worked)


def test_a_byte_s_cost_that_was_not_measured_is_not_nothing() -> None:
    run = _without(_encrypted_run(0.99, 0.6), lambda factors: factors["connect"] == "persistent")
    found = findings_of(summarise(run), EncryptionEconomics)
    assert found.rows[0].byte_ns is None and "ns of CPU per byte" not in found.says


def test_a_retried_hello_is_not_one_of_no_round_trips() -> None:
    row = _encrypted(0.99, 0.6).model_copy(update={"retried": True, "connect_turns": None})
    assert "one of them" not in encryption_sentence(row) and "another key share" in encryption_sentence(row)
    assert "one of them" in encryption_sentence(row.model_copy(update={"connect_turns": 2.0}))


def test_tls_is_foreseen_from_other_numbers_of_connections() -> None:
    """At 16 connections the server's CPU counts: 1 ms becomes 1.02 ms, and with a connect 1.12 ms becomes 1.29 ms."""
    row = _encrypted(0.98, 0.87)
    lone, many = row.persistent
    assert lone.predicted is not None and lone.predicted == pytest.approx(lone.ratio.value, rel=0.02)
    assert many.predicted is not None and 0.95 < many.predicted < 1
    lone_connects, connects = row.per_transaction
    assert lone_connects.predicted is None, "no other cell tells a connect's round trips"
    assert connects.predicted is not None and connects.predicted < many.predicted
    sentence = encryption_sentence(row)
    errors = [abs(each.predicted / each.ratio.value - 1) for each in (lone, many, connects) if each.predicted]
    assert f"predicted 3 of these 4 ratios, off by {100 * sum(errors) / 3:.1f} %" in sentence


def test_a_forecast_of_tls_does_not_depend_on_what_it_foresees() -> None:
    def foreseen(slower: float) -> list[EncryptionTried]:
        row = _encrypted(0.98 * slower, 0.87 * slower)
        return [each for each in (*row.persistent, *row.per_transaction) if each.threads == 16]

    assert [each.predicted for each in foreseen(1)] == pytest.approx([each.predicted for each in foreseen(0.5)])


def test_costs_of_tls_are_read_back() -> None:
    row = _encrypted(0.99, 0.6)
    assert row.byte_ns == pytest.approx(1.0, rel=0.01)
    assert row.connect_us == pytest.approx(300, rel=0.01)
    assert row.connect_turns == pytest.approx(2, abs=0.2), "whole transactions in the window, so not exactly"
    assert row.resumed is True and row.retried is False
    assert [each.threads for each in row.persistent] == [1, 16]


@pytest.mark.parametrize(
    ("persistent", "churn", "expected"),
    [
        (0.99, 0.6, ("hardly changes", "changes by -40 %")),
        (0.8, 0.6, ("changes by -20 %", "changes by -40 %")),
        (0.99, 0.99, ("hardly changes", "hardly changes")),
    ],
)
def test_the_sentence_follows_from_the_figures(persistent: float, churn: float, expected: tuple[str, str]) -> None:
    row = _encrypted(persistent, churn)
    slow = row.model_copy(
        update={
            "persistent": tuple(each for each in row.persistent if each.threads == 16),
            "per_transaction": tuple(each for each in row.per_transaction if each.threads == 16),
        }
    )
    bytes_cost, connects_cost = encryption_sentence(slow).split("With ")[1:]
    assert expected[0] in bytes_cost and expected[1] in connects_cost


def _with_ratios(row: EncryptionRow, *ratios: tuple[float, float, float]) -> EncryptionRow:
    """The row with these intervals, for both ways to connect."""
    tried = tuple(
        EncryptionTried.model_validate({"threads": number + 1, "ratio": {"value": v, "low": low, "high": high}})
        for number, (low, v, high) in enumerate(ratios)
    )
    return row.model_copy(update={"persistent": tried, "per_transaction": tried})


def test_the_worst_of_many_noisy_figures_is_no_cost() -> None:
    """Of many cells around no change, one always looks bad."""
    row = _encrypted(0.99, 0.6)
    sentence = encryption_sentence(_with_ratios(row, (0.6, 0.7, 1.1), (0.8, 1.0, 1.2), (0.9, 1.1, 1.3)))
    assert sentence.count("no change of throughput is resolved (3 cells)") == 2 and "-30 %" not in sentence
    known = encryption_sentence(_with_ratios(row, (0.6, 0.7, 1.1), (0.78, 0.8, 0.82)))
    assert "With persistent connections throughput changes by -20 % at worst (1 of 2 cells resolved)" in known
    narrow = encryption_sentence(_with_ratios(row, (0.97, 0.99, 1.01), (0.98, 1.0, 1.02)))
    assert narrow.count("hardly changes") == 2, "the whole interval is near no change"


def test_runs_without_them_have_no_economics() -> None:
    summary = summarise(run_of([_plain("digits", PLAIN_1G, 1e9)]))
    assert summary.found(CompressionEconomics) is None and summary.found(EncryptionEconomics) is None


# ---------------------------------------------------------------- answers


WIRE_BYTES = REPLIES + 90 * (REPLIES / 1448 + 8)
FULL_TPS = 1e8 / 8 / WIRE_BYTES


def _remote(threads: int, rate_bps: int, tps: float, **more: Any) -> Cell:
    factors = {"path": "remote", "threads": threads, "rtt_ns": 200_000, "rate_bps": rate_bps}
    return Cell({**factors, **more}, tps)


def _with_twin(run: Run) -> Run:
    """The run with a duplicate of the baseline, so that it has a noise floor."""
    base = run.info.arms[0]
    again = Arm(name=f"{base.name} (again)", role=ArmRole.DUPLICATE, factors=base.factors)
    twins: list[Trial] = [
        trial.model_copy(update={"arm": again.name, "number": 1000 + trial.number})
        for trial in run.trials
        if trial.arm == base.name
    ]
    info = run.info.model_copy(update={"arms": (*run.info.arms, again)})
    return run.model_copy(update={"info": info, "trials": (*run.trials, *twins)})


def _failing(run: Run, part: str = "") -> Run:
    """Gives server errors to arms with `part` in their names, so that their figures do not describe the path alone."""
    trials = tuple(
        trial.model_copy(update={"measured": trial.measured.model_copy(update={"errors": {"1040": 500}})})
        if trial.measured is not None and part in trial.arm
        else trial
        for trial in run.trials
    )
    return run.model_copy(update={"trials": trials})


def test_links_are_named_with_their_limit_and_from_where_on_it_holds() -> None:
    """At 100 Mb/s the wire is full from 16 connections on; at 1 Gb/s the server's 800 µs fill its CPU at 1250 per second."""
    cells = [_remote(n, 10**8, tps) for n, tps in ((1, 110), (16, 0.97 * FULL_TPS), (64, 0.99 * FULL_TPS))]
    cells += [_remote(n, 10**9, tps) for n, tps in ((1, 200), (16, 1150), (64, 1245))]
    summary = summarise(_with_twin(run_of(cells)))
    slow, fast = summary.verdict.split(";")[:2]
    assert slow.startswith("At 100 Mb/s the link to the client is full from 16 connections on (")
    assert "of 11.7 MiB/s)" in slow
    assert fast.startswith(" at 1 Gb/s the server's CPU is the limit from 64 connections on (1,2")
    actions = [advice.action for advice in summary.advice]
    assert actions[0].startswith("Give the server more CPU") and actions[1].startswith("Send fewer bytes")
    assert "What would help: " in summary.advice[0].because


def test_compression_says_where_it_helps_and_where_the_limit_goes() -> None:
    cells = [
        _remote(16, 10**8, 0.99 * FULL_TPS),
        _remote(16, 10**8, 2 * FULL_TPS, compression="zlib"),
        _remote(16, 10**9, 1240),
        _remote(16, 10**9, 600, compression="zlib"),
    ]
    verdict = summarise(_with_twin(run_of(cells))).verdict
    assert "at 100 mb/s, digits: zlib reaches 2.0" in verdict.lower()
    assert "the limit moves from the link to client to " in verdict
    assert "at 1 Gb/s, digits: no algorithm helps; at best zlib reaches 0.48" in verdict


def test_encryption_tells_churn_from_bytes() -> None:
    cells = []
    for connect, plain, encrypted in (("persistent", 1200, 1150), ("per-transaction", 900, 400)):
        for threads in (1, 16):
            cells.append(_remote(threads, 10**9, plain * threads / 16, connect=connect, tls="off"))
            cells.append(_remote(threads, 10**9, encrypted * threads / 16, connect=connect, tls="1.3"))
    verdict = summarise(_with_twin(run_of(cells))).verdict
    assert "With persistent connections TLS 1.3 reaches 0.957 [0.952, 0.963] to 0.958 [0.953, 0.963] times" in verdict
    assert "with a connection per transaction TLS 1.3 reaches 0.44" in verdict


def test_a_resumed_handshake_has_one_name_everywhere() -> None:
    cells = [
        _remote(16, 10**9, tps, connect="per-transaction", tls=tls)
        for tls, tps in (("off", 1000.0), ("1.3-resumed", 700.0))
    ]
    summary = summarise(_with_twin(run_of(cells)))
    assert (
        summary.found(EncryptionEconomics) is not None
        and findings_of(summary, EncryptionEconomics).rows[0].version == "TLS 1.3 resumed"
    )
    assert "TLS 1.3 resumed" in summary.verdict and "1.3-resumed" not in summary.verdict
    assert level_text(TLS, "1.3-resumed") == "TLS 1.3 resumed"


def _noisy(run: Run) -> Run:
    """The run on a busy machine: each trial is faster or slower by up to a factor of two."""
    chance = random.Random(3)

    def shaken(trial: Trial) -> Trial:
        assert trial.measured is not None
        elapsed = int(trial.measured.elapsed_ns * 2 ** chance.uniform(-1, 1))
        return trial.model_copy(update={"measured": trial.measured.model_copy(update={"elapsed_ns": elapsed})})

    return run.model_copy(update={"trials": tuple(shaken(trial) for trial in run.trials)})


def _slowed() -> Run:
    """TLS 1.3 costs a lone connection 27 % of its throughput, and 16 connections 20 %."""
    cells = []
    for threads, left in ((1, 0.73), (16, 0.80)):
        cells.append(_remote(threads, 10**9, 75 * threads, tls="off"))
        cells.append(_remote(threads, 10**9, 75 * threads * left, tls="1.3"))
    return _with_twin(run_of(cells))


def test_what_is_not_resolved_is_not_quoted_and_no_interval_is_claimed_where_none_stands() -> None:
    verdict = summarise(_noisy(_slowed())).verdict
    assert "no difference of TLS 1.3 is resolved" in verdict
    assert "reaches" not in verdict


def test_a_span_between_cells_is_called_one_and_each_end_has_its_interval() -> None:
    verdict = summarise(_slowed()).verdict
    assert "TLS 1.3 reaches 0.732 [0.728, 0.736] to 0.799 [0.795, 0.804] times the" in verdict
    assert "the throughput without TLS between cells (" in verdict
    assert "(95 % intervals; noise floor" in verdict


def test_compression_that_only_looks_faster_is_not_said_to_be() -> None:
    cells = [_remote(16, 10**8, 200), _remote(16, 10**8, 260, compression="zlib")]
    verdict = summarise(_noisy(_with_twin(run_of(cells)))).verdict
    assert "no difference is resolved" in verdict and "reaches" not in verdict


def test_a_limit_is_said_only_of_the_connections_around_the_best_at_which_it_holds() -> None:
    """At 64 connections, errors make the figures invalid: the limit at 16, the best cell, is not claimed for 64."""
    run = _with_twin(run_of([_remote(n, 10**9, tps) for n, tps in ((1, 200), (16, 1245), (64, 1100))]))
    run = _failing(run, "64 threads")
    verdict = summarise(run).verdict
    assert "the server's CPU is the limit at 16 connections (" in verdict
    assert "95 % intervals" not in verdict, "none is quoted"


def test_waiting_for_ones_own_round_holds_up_to_where_it_was_seen() -> None:
    cells = [_remote(n, 10**9, tps) for n, tps in ((1, 250), (2, 420), (16, 300))]
    run = _with_twin(run_of(cells))
    run = _failing(run, "16 threads")
    verdict = summarise(run).verdict
    assert "each connection waits for its own answers up to 2 connections (" in verdict


def test_what_other_programs_or_errors_made_says_nothing_of_encryption() -> None:
    """Cells with narrow intervals whose figures do not describe the path: neither the headline nor the economics uses them."""
    cells = [_remote(n, 10**9, tps, tls=tls) for n in (1, 16) for tls, tps in (("off", 1200 * n / 16), ("1.3", 70 * n))]
    run = _with_twin(run_of(cells))
    clean = summarise(run)
    assert (
        "TLS 1.3 reaches 0.9" in clean.verdict
        and "throughput changes by" in findings_of(clean, EncryptionEconomics).says
    )
    run = _failing(run, "1.3")
    summary = summarise(run)
    assert "no difference of TLS 1.3 is resolved" in summary.verdict
    assert all(tried.invalid for row in findings_of(summary, EncryptionEconomics).rows for tried in row.persistent)
    assert "no change of throughput is resolved" in findings_of(summary, EncryptionEconomics).says
    assert "2 of which do not describe the path" in findings_of(summary, EncryptionEconomics).says


def test_economics_claim_nothing_below_the_noise_floor() -> None:
    """The baseline's duplicate is half as fast: a ratio of 0.8, however narrow its interval, is not resolved from no change."""
    cells = [_remote(n, 10**9, tps, tls=tls) for n in (1, 16) for tls, tps in (("off", 1200 * n / 16), ("1.3", 60 * n))]
    run = run_of(cells)
    twin = _with_twin(run)
    halved = tuple(
        trial.model_copy(
            update={"measured": trial.measured.model_copy(update={"elapsed_ns": trial.measured.elapsed_ns * 2})}
        )
        if trial.measured is not None and trial.arm.endswith("(again)")
        else trial
        for trial in twin.trials
    )
    resolved, unresolved = (
        findings_of(summarise(twin), EncryptionEconomics),
        findings_of(summarise(twin.model_copy(update={"trials": halved})), EncryptionEconomics),
    )
    assert "throughput changes by -20 %" in resolved.says and "no change" not in resolved.says
    assert "no change of throughput is resolved" in unresolved.says


def test_without_a_noise_floor_no_pair_is_resolved() -> None:
    """Half the throughput at 16 connections, in narrow intervals; but how much a cell differs from itself is unknown."""
    run = _encrypted_run(0.5, 0.5)
    found, floored = (findings_of(summarise(each), EncryptionEconomics) for each in (run, _with_twin(run)))
    assert not any(tried.resolved for row in found.rows for tried in (*row.persistent, *row.per_transaction))
    assert found.says.count("no change of throughput is resolved") == 2
    every = [tried for row in floored.rows for tried in (*row.persistent, *row.per_transaction)]
    assert all(tried.resolved for tried in every if tried.threads == 16)
    says = findings_of(summarise(_compressed()), CompressionEconomics).says
    assert "No difference is resolved in the 4 measured cells" in says


def test_errors_of_the_server_are_no_reason_for_a_quieter_machine() -> None:
    run = _with_twin(run_of([_remote(n, 10**9, tps) for n, tps in ((1, 200), (16, 1245))]))
    run = _failing(run)
    summary = summarise(run)
    assert "the figures include errors of the server" in summary.verdict
    assert summary.advice[0].action.startswith("Remove the cause of the server's errors")
    assert not any("idle machine" in advice.action for advice in summary.advice)


def test_a_plan_of_paths_is_answered_as_before() -> None:
    summary = summarise(synthetic_run(blocks=8, samples=20))
    assert summary.verdict.startswith("Queries per second relative to socket: ")
    assert not any("What would help" in advice.because for advice in summary.advice)
