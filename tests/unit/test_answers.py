"""The sentence of plans that vary link, connections, compression or encryption: it names the limits, and advice follows them."""

from __future__ import annotations

import random
from typing import Any

from tests.unit.made_curves import REPLIES, Cell, run_of
from tests.unit.rendered import findings_of
from tests.unit.synthetic_run import synthetic_run

from howfar.experiments.encryption.analysis import EncryptionEconomics
from howfar.experiments.registry import summarise
from howfar.report.grid import level_text
from howfar.store.records import Arm, ArmRole, Run, Trial

WIRE_BYTES = REPLIES + 90 * (REPLIES / 1448 + 8)
FULL_TPS = 1e8 / 8 / WIRE_BYTES


def _remote(threads: int, rate_bps: int, tps: float, **more: Any) -> Cell:
    factors = {"path": "remote", "threads": threads, "rtt_ns": 200_000, "rate_bps": rate_bps}
    return Cell({**factors, **more}, tps)


def _with_twin(run: Run) -> Run:
    """The baseline again, so that there is a noise floor."""
    base = run.info.arms[0]
    again = Arm(name=f"{base.name} (again)", role=ArmRole.DUPLICATE, factors=base.factors)
    twins: list[Trial] = [
        trial.model_copy(update={"arm": again.name, "number": 1000 + trial.number})
        for trial in run.trials
        if trial.arm == base.name
    ]
    info = run.info.model_copy(update={"arms": (*run.info.arms, again)})
    return run.model_copy(update={"info": info, "trials": (*run.trials, *twins)})


def test_links_are_named_with_their_limit_and_from_where_on_it_holds() -> None:
    """At 100 Mb/s the wire is full from 16 connections on; at 1 Gb/s the server's 800 µs fill its CPU at 1250 a second."""
    cells = [_remote(n, 10**8, tps) for n, tps in ((1, 110), (16, 0.97 * FULL_TPS), (64, 0.99 * FULL_TPS))]
    cells += [_remote(n, 10**9, tps) for n, tps in ((1, 200), (16, 1150), (64, 1245))]
    summary = summarise(_with_twin(run_of(cells)))
    slow, fast = summary.verdict.split(";")[:2]
    assert slow.startswith("At 100 Mb/s the link to the client is full from 16 connections on (")
    assert "of 11.7 MiB/s)" in slow
    assert fast.startswith(" at 1 Gb/s the server's CPU is the limit from 64 connections on (1,2")
    actions = [advice.action for advice in summary.advice]
    assert actions[0].startswith("Give the server more CPU") and actions[1].startswith("Send fewer bytes")
    assert "Would change it: " in summary.advice[0].because


def test_compression_says_where_it_helps_and_where_the_limit_goes() -> None:
    cells = [
        _remote(16, 10**8, 0.99 * FULL_TPS),
        _remote(16, 10**8, 2 * FULL_TPS, compression="zlib"),
        _remote(16, 10**9, 1240),
        _remote(16, 10**9, 600, compression="zlib"),
    ]
    verdict = summarise(_with_twin(run_of(cells))).verdict
    assert "at 100 mb/s, digits: zlib reaches 2.0" in verdict.lower()
    assert "the limit goes from the link to client to " in verdict
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
    assert level_text("tls", "1.3-resumed") == "TLS 1.3 resumed"


def _noisy(run: Run) -> Run:
    """Each trial faster or slower by up to a factor of two: a busy machine."""
    chance = random.Random(3)

    def shaken(trial: Trial) -> Trial:
        assert trial.measured is not None
        elapsed = int(trial.measured.elapsed_ns * 2 ** chance.uniform(-1, 1))
        return trial.model_copy(update={"measured": trial.measured.model_copy(update={"elapsed_ns": elapsed})})

    return run.model_copy(update={"trials": tuple(shaken(trial) for trial in run.trials)})


def _encrypted() -> Run:
    """TLS 1.3 takes 27 % of a lone connection's throughput and 20 % of 16's."""
    cells = []
    for threads, left in ((1, 0.73), (16, 0.80)):
        cells.append(_remote(threads, 10**9, 75 * threads, tls="off"))
        cells.append(_remote(threads, 10**9, 75 * threads * left, tls="1.3"))
    return _with_twin(run_of(cells))


def test_what_is_not_resolved_is_not_quoted_and_no_interval_is_claimed_where_none_stands() -> None:
    verdict = summarise(_noisy(_encrypted())).verdict
    assert "no difference of TLS 1.3 is resolved" in verdict
    assert "reaches" not in verdict


def test_a_span_between_cells_is_called_one_and_each_end_has_its_interval() -> None:
    verdict = summarise(_encrypted()).verdict
    assert "TLS 1.3 reaches 0.732 [0.728, 0.736] to 0.799 [0.795, 0.804] times the" in verdict
    assert "the throughput without TLS between cells (" in verdict
    assert "(95 % intervals; noise floor" in verdict


def test_compression_that_only_looks_faster_is_not_said_to_be() -> None:
    cells = [_remote(16, 10**8, 200), _remote(16, 10**8, 260, compression="zlib")]
    verdict = summarise(_noisy(_with_twin(run_of(cells)))).verdict
    assert "no difference is resolved" in verdict and "reaches" not in verdict


def test_a_limit_is_said_only_of_the_connections_around_the_best_at_which_it_holds() -> None:
    """Above the best cell errors make the figures another thing's: what binds at 16 is not said of 64."""
    run = _with_twin(run_of([_remote(n, 10**9, tps) for n, tps in ((1, 200), (16, 1245), (64, 1100))]))
    trials = tuple(
        trial.model_copy(update={"measured": trial.measured.model_copy(update={"errors": {"1040": 500}})})
        if trial.measured is not None and "64 threads" in trial.arm
        else trial
        for trial in run.trials
    )
    verdict = summarise(run.model_copy(update={"trials": trials})).verdict
    assert "the server's CPU is the limit at 16 connections (" in verdict
    assert "95 % intervals" not in verdict, "none is quoted"


def test_waiting_for_ones_own_round_holds_up_to_where_it_was_seen() -> None:
    cells = [_remote(n, 10**9, tps) for n, tps in ((1, 250), (2, 420), (16, 300))]
    run = _with_twin(run_of(cells))
    trials = tuple(
        trial.model_copy(update={"measured": trial.measured.model_copy(update={"errors": {"1040": 500}})})
        if trial.measured is not None and "16 threads" in trial.arm
        else trial
        for trial in run.trials
    )
    verdict = summarise(run.model_copy(update={"trials": trials})).verdict
    assert "each connection waits for its own answers up to 2 connections (" in verdict


def test_what_other_programs_or_errors_made_says_nothing_of_encryption() -> None:
    """Narrow intervals of a cell whose figures are not about the path: neither the headline nor the economics builds on it."""
    cells = [_remote(n, 10**9, tps, tls=tls) for n in (1, 16) for tls, tps in (("off", 1200 * n / 16), ("1.3", 70 * n))]
    run = _with_twin(run_of(cells))
    clean = summarise(run)
    assert (
        "TLS 1.3 reaches 0.9" in clean.verdict
        and "throughput changes by" in findings_of(clean, EncryptionEconomics).says
    )
    trials = tuple(
        trial.model_copy(update={"measured": trial.measured.model_copy(update={"errors": {"1040": 500}})})
        if trial.measured is not None and "1.3" in trial.arm
        else trial
        for trial in run.trials
    )
    summary = summarise(run.model_copy(update={"trials": trials}))
    assert "no difference of TLS 1.3 is resolved" in summary.verdict
    assert all(tried.invalid for row in findings_of(summary, EncryptionEconomics).rows for tried in row.persistent)
    assert "no change of throughput is resolved" in findings_of(summary, EncryptionEconomics).says
    assert "2 of them not about the path" in findings_of(summary, EncryptionEconomics).says


def test_economics_claim_nothing_below_the_noise_floor() -> None:
    """The baseline under another name is half as fast: a ratio of 0.8, however narrow, is not told from no change."""
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


def test_errors_of_the_server_are_no_reason_for_a_quieter_machine() -> None:
    run = _with_twin(run_of([_remote(n, 10**9, tps) for n, tps in ((1, 200), (16, 1245))]))
    trials = tuple(
        trial.model_copy(update={"measured": trial.measured.model_copy(update={"errors": {"1040": 500}})})
        if trial.measured is not None
        else trial
        for trial in run.trials
    )
    summary = summarise(run.model_copy(update={"trials": trials}))
    assert "errors of the server are part of the figures" in summary.verdict
    assert summary.advice[0].action.startswith("Remove the cause of the server's errors")
    assert not any("idle machine" in advice.action for advice in summary.advice)


def test_a_plan_of_paths_is_answered_as_before() -> None:
    summary = summarise(synthetic_run(blocks=8, samples=20))
    assert summary.verdict.startswith("Queries per second relative to socket: ")
    assert not any("Would change it" in advice.because for advice in summary.advice)
