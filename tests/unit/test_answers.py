"""The sentence of plans that vary link, connections, compression or encryption: it names the limits, and advice follows them."""

from __future__ import annotations

from typing import Any

from tests.unit.made_curves import REPLIES, Cell, run_of
from tests.unit.synthetic_run import synthetic_run

from howfar.analysis.analyse import summarise
from howfar.analysis.answers import rate_words
from howfar.results.records import Arm, ArmRole, Run, Trial

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
    assert actions[0].startswith("Spend on the server's CPU") and actions[1].startswith("Send fewer bytes")
    assert "Would change it: " in summary.advice[0].because


def test_compression_says_where_it_helps_and_where_the_limit_goes() -> None:
    cells = [
        _remote(16, 10**8, 0.99 * FULL_TPS),
        _remote(16, 10**8, 2 * FULL_TPS, compression="zlib"),
        _remote(16, 10**9, 1240),
        _remote(16, 10**9, 600, compression="zlib"),
    ]
    verdict = summarise(_with_twin(run_of(cells))).verdict
    assert "at 100 mb/s, digits: zlib answers 2.0" in verdict.lower()
    assert "the limit goes from the link to client to " in verdict
    assert "at 1 Gb/s, digits: none helps, the best (zlib) answers 0.48" in verdict


def test_encryption_tells_churn_from_bytes() -> None:
    cells = []
    for connect, plain, encrypted in (("persistent", 1200, 1150), ("per-transaction", 900, 400)):
        for threads in (1, 16):
            cells.append(_remote(threads, 10**9, plain * threads / 16, connect=connect, tls="off"))
            cells.append(_remote(threads, 10**9, encrypted * threads / 16, connect=connect, tls="1.3"))
    verdict = summarise(_with_twin(run_of(cells))).verdict
    assert "With persistent connections TLS 1.3 answers 0.96 of the plain session's queries" in verdict
    assert "with a connect a transaction TLS 1.3 answers 0.44 of" in verdict


def test_a_plan_of_paths_is_answered_as_before() -> None:
    summary = summarise(synthetic_run(blocks=8, samples=20))
    assert summary.verdict.startswith("Of the queries that socket answers in a second")
    assert not any("Would change it" in advice.because for advice in summary.advice)


def test_rates_are_said_as_people_say_them() -> None:
    assert [rate_words(rate) for rate in (1e9, 1e10, 1e8, 1.5e9, 64e3)] == [
        "1 Gb/s",
        "10 Gb/s",
        "100 Mb/s",
        "1.5 Gb/s",
        "64 kb/s",
    ]
