"""Other programs that were busy during a recording, a slope or a prediction, and what the reports say about them."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from tests.unit.made_recording import FLOOR_NS, costs, is_answer_first, loop, made
from tests.unit.rendered import is_short
from tests.unit.test_other_programs import BUSY, CARGO, QUIET, Clock, ScriptedWatch
from tests.unit.test_path_costs import SIZES, path
from tests.unit.test_slope import COSTS, DELAYS_NS, WARM_UP, observed, screen

from howfar.contract.receipt import ProgramUse
from howfar.errors import LinkFailed
from howfar.other_programs import MAX_REPEATS, MAX_WAIT_S, NO_WAIT, Waiting, busiest
from howfar.recording import path_measurement, slope
from howfar.recording.calibration import Rhythm
from howfar.recording.facts import RecordingFacts
from howfar.recording.insertion import NamedServer
from howfar.recording.other_programs import (
    BlockWatch,
    BusyPrograms,
    BusySpan,
    RecordedPrograms,
    RecordingWatch,
    find_busy_pages,
)
from howfar.recording.page_costs import cost_pages
from howfar.recording.predict import PathPrediction, analyze
from howfar.recording.prediction_report import as_json, document
from howfar.recording.recording import Recording, RecordingFile, read
from howfar.recording.summary import document as summary_document
from howfar.recording.summary import summarise_recording
from howfar.recording.tap import Tap
from howfar.report import terminal
from howfar.report.document import AdviceBlock, Answer, Document
from howfar.stats.estimate import Estimate

SECOND = 10**9
CPUS = os.cpu_count() or 1
MAKE = ProgramUse(name="make", pid=12, cpus=0.6)
NOW, FAR = costs(FLOOR_NS / 1e3), costs(540, label="remote, RTT 0.5ms", rtt_ns=500_000, noise=0.01)
Script = Sequence[tuple[ProgramUse, ...] | None]


def text_of(report: Document) -> str:
    return " ".join(terminal.render(report, 100, colour=False).split())


@pytest.fixture(autouse=True)
def _waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(NO_WAIT, raising=False)


# ---------------------------------------------------------------- a recording


def recorded_beside(script: Script, span_s: float = 1.0) -> RecordedPrograms | None:
    """What is found in a recording of as many spans as the script has entries."""
    clock, ends = Clock(), iter([False] * (len(script) - 1) + [True])

    def has_ended(seconds: float) -> bool:
        clock.sleep(span_s)
        return next(ends)

    with RecordingWatch(ScriptedWatch(script), has_ended, clock) as watch:
        pass
    return watch.found()


def test_spans_with_busy_programs_are_recorded_and_those_in_a_row_are_one() -> None:
    found = recorded_beside([BUSY, QUIET, (MAKE,), BUSY, QUIET])
    assert found is not None and found.machine_cpus == CPUS
    spans = [(span.begun_ns / SECOND, span.ended_ns / SECOND) for span in found.busy]
    assert spans == [(0, 1), (2, 4)]
    assert found.busy[1].programs == (CARGO, MAKE)


def test_a_span_too_short_to_tell_and_programs_that_cannot_be_seen_are_no_disturbance() -> None:
    short = recorded_beside([BUSY], span_s=0.05)
    assert short is not None and not short.busy
    assert recorded_beside([None]) is None
    assert recorded_beside([QUIET, None]) is None, "the rest of the recording is not quiet, but unknown"


def busy_from(begun_ns: int, ended_ns: int, are_others: bool = True) -> RecordedPrograms:
    span = BusySpan(begun_ns=begun_ns, ended_ns=ended_ns, programs=BUSY)
    return RecordedPrograms(machine_cpus=2, busy=(span,), are_others=are_others)


def test_the_pages_of_a_busy_time_are_counted() -> None:
    pages = [(number, number + 5) for number in range(0, 100, 10)]
    found = find_busy_pages(busy_from(22, 38), pages)
    assert found is not None and (found.disturbed, found.of) == (2, 10), "from 20 and from 30"
    assert not found.disturb_pages, "a fifth of the pages"
    assert find_busy_pages(None, pages) is None
    quiet = find_busy_pages(busy_from(200, 300), pages)
    assert quiet is not None and not quiet.disturbed


def beside(recording: Recording, others: RecordedPrograms | None) -> Recording:
    return dataclasses.replace(recording, facts=recording.facts.updated(RecordingFacts(others=others)))


@pytest.fixture(scope="module")
def recording(tmp_path_factory: pytest.TempPathFactory) -> Recording:
    return made(tmp_path_factory.mktemp("made") / "front.recording", loop(20), pages=30)


def busy_during(recording: Recording, pages: int, are_others: bool = True) -> RecordedPrograms:
    """Programs that were busy during the first pages."""
    return busy_from(0, recording.pages[pages - 1].ended_ns, are_others)


def test_a_recording_says_during_which_pages_other_programs_were_busy(recording: Recording) -> None:
    summary = summarise_recording(beside(recording, busy_during(recording, 10)))
    report = summary_document(summary, "a.recording")
    answer = is_answer_first(report)
    assert "doubtful because of other programs, such as cargo (pid 4711)" in str(answer.certainty)
    use = busiest(BUSY, 2, at_most=True)
    assert f"front: other programs were busy during 10 of 30 pages; {use}." in text_of(report)
    assert "Stop other programs, such as cargo (pid 4711), and record again" in text_of(report)
    few = summary_document(summarise_recording(beside(recording, busy_during(recording, 2))), "a.recording")
    assert "during 2 of 30 pages" in text_of(few) and "doubtful" not in str(is_answer_first(few).certainty)


def test_programs_that_may_be_the_applications_are_facts_and_no_doubt(recording: Recording) -> None:
    report = summary_document(summarise_recording(beside(recording, busy_during(recording, 30, False))), "a.recording")
    assert "possibly those of the application; cargo (pid 4711)" in text_of(report)
    assert "doubtful" not in str(is_answer_first(report).certainty) and "Stop other" not in text_of(report)


@pytest.mark.parametrize("others", [None, busy_from(200, 300)])
def test_a_quiet_recording_and_an_older_one_say_nothing_of_programs(
    others: RecordedPrograms | None, recording: Recording
) -> None:
    assert "programs" not in text_of(summary_document(summarise_recording(beside(recording, others)), "a.recording"))


def test_what_was_found_is_in_the_file_and_an_older_file_has_none(tmp_path: Path) -> None:
    found = busy_from(5, 9).model_copy(update={"calibration": BUSY})
    for name, others in (("new", found), ("old", None)):
        file = RecordingFile(tmp_path / name, RecordingFacts())
        file.finish(RecordingFacts(others=others) if others else RecordingFacts())
        assert read(tmp_path / name).facts.others == others
    report = text_of(summary_document(summarise_recording(read(tmp_path / "new")), "a.recording"))
    assert f"while it was measured after the recording, {busiest(BUSY, 2, at_most=True)}." in report


# ---------------------------------------------------------------- blocks


def watching(
    script: Script, *, said: list[str] | None = None, max_lost_s: float = 1000, are_others: bool = True
) -> BlockWatch:
    clock, lines = Clock(), [] if said is None else said
    waiting = Waiting(clock.sleep, clock)
    return BlockWatch(ScriptedWatch(script), lambda lost_s: lost_s < max_lost_s, lines.append, are_others, waiting)


def run_blocks(watch: BlockWatch, count: int) -> list[int]:
    """Measure blocks; returns the numbers of the measurements that are kept."""
    numbers = iter(range(1000))
    return [watch.run(lambda: next(numbers)) for _ in range(count)]


def test_a_disturbed_block_is_measured_again() -> None:
    watch = watching([QUIET, QUIET, QUIET, BUSY, QUIET, BUSY, QUIET, QUIET])
    assert run_blocks(watch, 3) == [0, 3, 4]
    found = watch.found()
    assert found is not None and (found.disturbed, found.of, found.repeated, found.counted) == (2, 5, 2, 0)
    assert found.in_blocks == f"{busiest(BUSY, at_most=True)} in 2 of 5 blocks, which were measured again"


def test_a_block_is_measured_again_only_so_often() -> None:
    watch = watching([QUIET, BUSY] * (MAX_REPEATS + 1))
    assert run_blocks(watch, 5) == [MAX_REPEATS, *range(MAX_REPEATS + 1, MAX_REPEATS + 5)]
    found = watch.found()
    assert found is not None and found.counted == 1
    assert watch.without_disturbed(list("abcde")) == list("bcde"), "one of five is left out"
    one = BusyPrograms(programs=BUSY, machine_cpus=2, disturbed=1, of=9, repeated=1)
    assert one.in_blocks.endswith("in 1 of 9 blocks, which was measured again")
    left_out = one.model_copy(update={"repeated": 0, "left_out": 1})
    assert left_out.in_blocks.endswith("in 1 of 9 blocks, which does not count")
    left = watch.found()
    assert left is not None and (left.counted, left.left_out) == (0, 1)
    assert left.in_blocks.endswith(
        f"in {MAX_REPEATS + 1} of {MAX_REPEATS + 5} blocks, which were measured again or do not count"
    )


def test_blocks_that_began_beside_busy_programs_are_kept_if_they_are_many() -> None:
    said: list[str] = []
    watch = watching([BUSY] * 1000, said=said)
    assert run_blocks(watch, 4) == [0, 1, 2, 3], "a repetition would be no better"
    assert said == [f"waiting until other programs are quiet: {busiest(BUSY)}"] * 4, "once for each block"
    assert watch.without_disturbed(list("abcd")) == list("abcd")
    found = watch.found()
    assert found is not None and found.disturb_blocks and found.in_blocks.endswith("in 4 of 4 blocks")


def test_nothing_waits_when_the_time_is_used_up() -> None:
    said: list[str] = []
    watch = watching([BUSY] * 1000, said=said, max_lost_s=MAX_WAIT_S / 2)
    run_blocks(watch, 4)
    assert len(said) == 1, "the first wait takes more than there is"


def test_programs_that_may_be_the_applications_are_only_named() -> None:
    watch = watching([BUSY] * 5, are_others=False)
    assert run_blocks(watch, 5) == [0, 1, 2, 3, 4]
    assert watch.without_disturbed(list("abcde")) == list("abcde")
    found = watch.found()
    assert found is not None and found.disturbed == 5 and not found.disturb_blocks


def test_blocks_beside_programs_that_cannot_be_seen_count() -> None:
    watch = watching([None] * 100)
    assert run_blocks(watch, 3) == [0, 1, 2]
    assert watch.found() is None and watch.without_disturbed(list("abc")) == list("abc")


def test_with_the_variable_nothing_waits_and_programs_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(NO_WAIT, "1")
    said: list[str] = []
    watch = watching([BUSY, *[QUIET] * 5], said=said)
    assert run_blocks(watch, 6) == [0, 1, 2, 3, 4, 5] and not said
    assert watch.without_disturbed(list("abcdef")) == list("abcdef")
    found = watch.found()
    assert found is not None and found.disturb_blocks and (found.disturbed, found.of) == (1, 6)


# ---------------------------------------------------------------- slope


def test_a_disturbed_block_of_a_slope_is_measured_again() -> None:
    tap = cast(Tap, SimpleNamespace(set_delay=lambda _: SimpleNamespace(round_trips=1, connections=1, held_ns=0)))
    echo = cast(slope.Echo, SimpleNamespace(measure_round_trip_ns=lambda _: 1))
    times: Iterator[float] = iter(range(1, 100))
    requested = slope.SlopeRequest(cast(NamedServer, None), ("php",), blocks=2)
    watch = watching([QUIET, BUSY, QUIET, QUIET])
    blocks = list(
        slope._measure_blocks(requested, DELAYS_NS, tap, echo, (lambda: next(times), None), lambda _: None, watch)
    )
    kept = [[round(one.took_ns / SECOND) for one in block] for block in blocks]
    assert kept == [[5, 6, 7, 8], [9, 10, 11, 12]], "the first four times were disturbed"
    assert [{one.block for one in block} for block in blocks] == [{0}, {1}]


def sloped(others: BusyPrograms | None) -> slope.Slope:
    return slope.analyze(observed(), COSTS, WARM_UP, server="/s", began_unix_ns=1, measured_s=1.0, others=others)


def found_in_blocks(disturbed: int, repeated: int = 0, are_others: bool = True) -> BusyPrograms:
    return BusyPrograms(
        programs=BUSY, machine_cpus=2, disturbed=disturbed, of=8 + repeated, repeated=repeated, are_others=are_others
    )


def test_a_slope_names_the_program_that_disturbed_it() -> None:
    use = busiest(BUSY, 2, at_most=True)
    again = is_answer_first(slope.document(sloped(found_in_blocks(3, 3)), "page.php"))
    assert f"{use} in 3 of 11 blocks, which were measured again" in str(again.certainty)
    assert "doubtful" not in str(again.certainty)
    counted = slope.document(sloped(found_in_blocks(5)), "page.php")
    answer = is_answer_first(counted)
    assert f"{use} in 5 of 8 blocks; doubtful because of other programs." in str(answer.certainty)
    assert "Stop other programs, such as cargo (pid 4711), and measure again" in text_of(counted)
    part = is_answer_first(slope.document(sloped(found_in_blocks(5, 2)), "page.php"))
    assert f"{use} in 5 of 10 blocks, 3 of them in the figures" in str(part.certainty)


@pytest.mark.parametrize("others", [None, found_in_blocks(0)])
def test_a_slope_on_a_quiet_machine_says_nothing_of_programs(others: BusyPrograms | None) -> None:
    assert "rograms" not in screen(sloped(others))


def test_a_slope_of_an_application_that_ran_before_only_names_programs() -> None:
    found = sloped(found_in_blocks(8, are_others=False))
    assert "possibly those of the application: cargo (pid 4711)" in " ".join(screen(found).split())
    assert "doubtful" not in str(is_answer_first(slope.document(found, "page.php")).certainty)


# ---------------------------------------------------------------- predict


def test_a_disturbed_block_of_costs_is_measured_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("howfar.recording.other_programs.Waiting", lambda: Waiting(lambda seconds: None, Clock()))
    target = path()
    script = ScriptedWatch([QUIET, QUIET, QUIET, BUSY, QUIET, QUIET])
    costs_of_paths, found = path_measurement.measure(
        (path(), target), ("now", "there"), SIZES, Rhythm(), 3, lambda _: None, script
    )
    assert [len(each.blocks) for each in costs_of_paths] == [3, 3] and len(target.attempts) == 4
    assert found is not None and (found.disturbed, found.repeated, found.of) == (1, 1, 4)


def test_a_link_that_was_late_because_of_a_program_is_no_matter_of_the_number_of_blocks(
    monkeypatch: pytest.MonkeyPatch, recording: Recording
) -> None:
    monkeypatch.setattr("howfar.recording.other_programs.Waiting", lambda: Waiting(lambda seconds: None, Clock()))
    said: list[str] = []
    spoiled = path(range(4))
    costs_of_paths, found = path_measurement.measure(
        (path(), spoiled), ("now", "there"), SIZES, Rhythm(), 3, said.append, ScriptedWatch([QUIET, BUSY])
    )
    assert found is not None and (found.disturbed, found.left_out, found.of) == (1, 1, 3)
    few = costs(540, label="there", rtt_ns=500_000, blocks=2).model_copy(update={"void": costs_of_paths[1].void})
    prediction = analyze(recording, costs(FLOOR_NS / 1e3, blocks=2), few, others=[found])
    answer = document(prediction, (), {}).blocks[0]
    assert isinstance(answer, Answer) and answer.text.startswith("No answer for there: cargo used up to 1.0 of")
    with pytest.raises(LinkFailed) as failed:
        path_measurement.measure(
            (path(), path(range(100))), ("now", "there"), SIZES, Rhythm(), 2, said.append, ScriptedWatch([QUIET, BUSY])
        )
    assert "such as cargo (pid 4711)" in failed.value.advice


def slower_now(recording: Recording, later: Recording | None = None, **found: Any) -> PathPrediction:
    """A prediction that is refused, because a round trip without work takes 50 µs longer now."""
    return analyze(recording, NOW, FAR, None, FLOOR_NS + 50_000, later, **found)


def test_a_refusal_names_the_program_that_was_busy_during_the_prediction(recording: Recording) -> None:
    found = slower_now(recording, others=[found_in_blocks(0), found_in_blocks(4)])
    report = document(found, (), {})
    answer = report.blocks[0]
    assert isinstance(answer, Answer)
    is_short(answer.text)
    assert (
        answer.text == "No answer for remote, RTT 0.5ms: cargo used up to 1.0 of 2 CPUs while the paths were measured."
    )
    text = text_of(report)
    assert f"possibly because {busiest(BUSY, 2, at_most=True)} while the paths were measured." in text
    assert "Stop other programs, such as cargo (pid 4711), and predict again" in text
    assert "Record again" not in text and "record again" not in text, "the recording is good"
    assert cast(Any, as_json(found, ()))["others"]["programs"][0]["name"] == "cargo"


def test_a_refusal_names_the_program_that_was_busy_during_the_recording(recording: Recording) -> None:
    found = slower_now(beside(recording, busy_during(recording, 15)))
    report = document(found, (), {})
    assert isinstance(report.blocks[0], Answer)
    assert report.blocks[0].text.endswith("cargo used up to 1.0 of 2 CPUs while these pages were recorded.")
    assert "Stop other programs, such as cargo (pid 4711), record again" in text_of(report)
    few = text_of(document(slower_now(beside(recording, busy_during(recording, 2))), (), {}))
    assert "has changed by too much" in few and "cargo" not in few, "two of thirty pages are not the reason"


def test_a_refusal_names_the_program_that_was_busy_while_the_recorder_was_calibrated(recording: Recording) -> None:
    others = RecordedPrograms(machine_cpus=2, calibration=BUSY)
    text = text_of(document(slower_now(beside(recording, others)), (), {}))
    assert "while the cost of recording was measured" in text and "record again" in text


def test_a_later_recording_that_other_programs_disturbed_is_no_change_of_the_application(
    recording: Recording, tmp_path: Path
) -> None:
    slower = made(tmp_path / "slower.recording", loop(20), pages=30, path_ns=4 * FLOOR_NS)
    later = beside(slower, busy_during(slower, 20))
    text = text_of(document(analyze(recording, NOW, FAR, None, None, later), (), {}))
    assert "while they were recorded again" in text and "has changed, or other programs" not in text
    quiet = text_of(document(analyze(recording, NOW, FAR, None, None, slower), (), {}))
    assert "possibly because the application or its server has changed" in quiet


def test_an_answer_with_busy_programs_says_so_and_a_wide_one_what_to_do(recording: Recording) -> None:
    laid = cost_pages(recording, NOW, FAR)
    disturbed = beside(recording, busy_during(recording, 15))
    found = analyze(disturbed, NOW, FAR, others=[found_in_blocks(4)])
    report = document(found, (), laid)
    certainty = str(is_answer_first(report).certainty)
    assert "in 4 of 8 blocks" in certainty and "doubtful because of other programs" in certainty
    assert "front: other programs were busy during 15 of 30 pages; cargo" in text_of(report)
    assert "Stop other" not in text_of(report)
    (page,) = found.pages
    wide = Estimate(value=page.now.p50_ms.value, low=page.now.p50_ms.value / 2, high=page.now.p50_ms.value * 2)
    times = page.bottom_up.model_copy(update={"p50_ms": wide})
    unclear = found.model_copy(update={"pages": (page.model_copy(update={"bottom_up": times}),)})
    (advice,) = (block for block in document(unclear, (), laid).blocks if isinstance(block, AdviceBlock))
    assert advice.action.startswith("Stop other programs, such as cargo (pid 4711), record again")
    assert advice.because.count(busiest(BUSY, 2, at_most=True)) == 2, "then and now"


def test_repeated_blocks_are_no_doubt(recording: Recording) -> None:
    found = analyze(recording, NOW, FAR, others=[found_in_blocks(2, 2)])
    certainty = str(is_answer_first(document(found, (), cost_pages(recording, NOW, FAR))).certainty)
    assert "in 2 of 10 blocks, which were measured again" in certainty and "doubtful" not in certainty
