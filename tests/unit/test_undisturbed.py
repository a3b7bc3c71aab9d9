"""What the tests of the laboratory excuse: the instrument's own sentences about a busy machine, and nothing else."""

from __future__ import annotations

import time

import pytest
from tests.lab import undisturbed as undisturbed_module
from tests.lab.undisturbed import (
    ATTEMPTS,
    RetryBudget,
    is_disturbed,
    measure_until_agreed,
    other_programs_cpus,
    run_undisturbed,
    skip_if_busy,
    skip_if_disturbed,
    unexcused,
)

from howfar.store.records import Trial, TrialStatus

LATE = (
    "packets to the client were late on the emulated link by 2.703ms (p99, allowed 1.333ms): the machine was too busy, or the "
    "emulator was stopped"
)
LONG = (
    "the link made each round trip 18us longer on average (allowed 8us, 2% of a round trip): the machine was too busy"
)
FAR = "replica1: the link's unloaded RTT was 21ms, 20.9ms, asked 20ms"
PLAIN = "TLS was requested, and the server sees a plain session"


def trial(reason: str | None, steal: float = 0.0) -> Trial:
    load = {"psi_cpu_some_share": None, "psi_io_some_share": None, "steal_share": steal, "load_average_1m": 0.0}
    counts = ("transactions", "queries", "round_trips", "rows", "warmup_transactions")
    measured = dict.fromkeys((*counts, "connect_ns"), 0)
    sent: dict[str, object] = {"elapsed_ns": 10**9, "bytes": {"to_server": 0, "to_client": 0}, "errors": {}}
    return Trial.model_validate(
        {
            "number": 0,
            "block": 0,
            "position": 0,
            "arm": "a",
            "status": TrialStatus.OK if reason is None else TrialStatus.VOID,
            "void_reason": reason,
            "started_unix_ns": 0,
            "ended_unix_ns": 0,
            "load": load | {"busy_cpus": 0.1},
            "measured": measured | sent | dict.fromkeys(("cpu", "intervals", "histograms"), ()),
        }
    )


def test_each_of_several_reasons_must_be_the_machines() -> None:
    assert is_disturbed(LATE) and is_disturbed(f"{LATE}; {LONG}; {FAR}")
    assert (
        not is_disturbed(f"{LATE}; {PLAIN}")
        and not is_disturbed(PLAIN)
        and not is_disturbed("")
        and not is_disturbed(None)
    )
    assert unexcused([LATE, PLAIN, FAR]) == [PLAIN]


@pytest.mark.parametrize(
    ("reasons", "tried"),
    [([None], 1), ([PLAIN], 1), ([LATE, FAR, None], 3), ([LATE, PLAIN], 2), ([LATE] * 99, ATTEMPTS)],
)
def test_only_what_was_disturbed_is_made_again_and_not_for_ever(reasons: list[str | None], tried: int) -> None:
    made: list[int] = []

    def make(attempt: int) -> Trial:
        made.append(attempt)
        return trial(reasons[attempt])

    assert run_undisturbed(make, RetryBudget()).void_reason == reasons[tried - 1]
    assert made == list(range(tried))


def test_patience_is_of_all_trials_together() -> None:
    made: list[int] = []

    def late(attempt: int) -> Trial:
        made.append(attempt)
        return trial(LATE)

    run_undisturbed(late, RetryBudget(left_s=0.0))
    assert made == [0]


def test_what_was_disturbed_is_skipped_with_the_sentence_and_nothing_else_is() -> None:
    skip_if_disturbed(None, PLAIN)
    with pytest.raises(pytest.skip.Exception, match="late on the emulated link by"):
        skip_if_disturbed(None, LATE)


def test_a_bound_is_excused_only_where_others_had_the_machine() -> None:
    quiet, stolen = trial(None), trial(None, steal=0.4)
    assert other_programs_cpus(quiet) == pytest.approx(0.1) and other_programs_cpus(stolen) >= 0.5
    with skip_if_busy(quiet, stolen):
        pass
    with pytest.raises(AssertionError), skip_if_busy(quiet):
        raise AssertionError
    with pytest.raises(pytest.skip.Exception, match="OTHERS HAD"), skip_if_busy(quiet, stolen):
        raise AssertionError


def test_what_agrees_once_agrees_and_what_never_does_is_an_error_unless_others_had_the_machine(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pauses: list[float] = []
    monkeypatch.setattr(time, "sleep", pauses.append)

    def judged(seen: int) -> str | None:
        return f"{seen} is odd" if seen % 2 else None

    assert measure_until_agreed(iter([3, 5, 8]).__next__, judged) == 8
    assert measure_until_agreed(iter([3, 8]).__next__, judged, first=1) == 8
    assert pauses[:2] == pauses[2:] == sorted(pauses[:2])
    for had, outcome in ((0.0, pytest.fail.Exception), (2.0, pytest.skip.Exception)):
        monkeypatch.setattr(undisturbed_module, "_others", lambda load, used, had=had: had)
        with pytest.raises(outcome, match="1 is odd"):
            measure_until_agreed(lambda: 1, judged, attempts=2)
