"""The first screen of each stored run: its answer, certainty, table and next step agree, and say the same thing in the same way."""

from __future__ import annotations

import json
import lzma
import math
import re
import tempfile
from functools import cache
from pathlib import Path

import pytest
from tests.unit.rendered import is_short
from tests.unit.test_frozen_reports import RUNS

from howfar.analysis.advice import MEASURE_AGAIN
from howfar.analysis.advice_texts import ACTIONS
from howfar.analysis.answer import COMMON_TEXTS
from howfar.analysis.diagnostics import Diagnostic
from howfar.analysis.disturbance import DisturbingProgram
from howfar.analysis.summary import Summary
from howfar.cli.output import answer_commands
from howfar.experiments.registry import EXPERIMENTS, document, summarise
from howfar.findings import note
from howfar.report.certainty import before_measuring, command_for_answer, least_resolved, what_answers
from howfar.report.document import Answer, Details, Document, Heading, Table
from howfar.report.figures import TOO_CLOSE, TOO_FEW_TRIALS, ratios_differ_from_rows, trials_line
from howfar.report.frame import warning_lines
from howfar.report.sections import cell_table
from howfar.report.terminal import render
from howfar.report.text import as_json, as_markdown
from howfar.report.texts import BLOCKS, CERTAINTY
from howfar.slices import plan_files
from howfar.stats.intervals import Resolution
from howfar.store.records import Run, StopReason
from howfar.store.run_file import read_run
from howfar.units import spoken_span

FACTORS_OF_SPEED = re.compile(r"(?:times|%) (?:slower|faster)")
DOUBTS = tuple(CERTAINTY[name].capitalize() for name in ("uncertain", "observed"))


@cache
def recorded(name: str) -> Run:
    """A stored run. Skips the test if the slice of its plan was removed."""
    plan = name.rpartition("-")[0]
    if name not in RUNS and plan not in plan_files():
        pytest.skip(f"no slice has the plan {plan}")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"{name}.howfar"
        path.write_bytes(lzma.decompress(RUNS[name].read_bytes()))
        return read_run(path)


@cache
def reported(name: str) -> tuple[Summary, Document]:
    """The summary of a stored run, and its report."""
    summary = summarise(recorded(name))
    return summary, document(summary)


def answer_of(name: str) -> Answer:
    (answer,) = (block for block in reported(name)[1].blocks if isinstance(block, Answer))
    return answer


def screen_of(name: str) -> str:
    return render(reported(name)[1], 80)


@pytest.mark.parametrize("name", RUNS)
def test_the_answer_is_one_short_sentence_without_brackets(name: str) -> None:
    answer = reported(name)[0].answer
    is_short(answer.sentence)
    assert answer.sentence.endswith(".") and answer.sentence.count(". ") == 0, "one sentence"
    assert answer.question, "the report says what was asked"


@pytest.mark.parametrize("name", RUNS)
def test_an_answer_of_poor_certainty_says_so_itself(name: str) -> None:
    summary, answer = reported(name)[0], answer_of(name)
    sure = dict(answer.reasons).get("How sure", "")
    claims = any(finding.verdict is not Resolution.NOT_RESOLVED for finding in summary.answer.findings)
    claims = claims and any(finding.id not in COMMON_TEXTS for finding in summary.answer.findings)
    is_doubted = answer.text.startswith(DOUBTS)
    is_short(answer.text)
    assert is_doubted is (sure.startswith("Poor") and claims)
    shown = json.loads(as_json(summary))
    assert shown["answer"]["sentence"] == shown["verdict"] == answer.text, "programs read what people see"


def test_some_stored_runs_are_doubted_and_some_have_no_answer() -> None:
    assert any(answer_of(name).text.startswith(DOUBTS[0]) for name in RUNS)
    assert any(reported(name)[0].answer.is_missing for name in RUNS)


@pytest.mark.parametrize("name", RUNS)
def test_operations_per_second_are_fewer_or_more_and_never_slower(name: str) -> None:
    """One way to say it: `2.6 times fewer queries/s`. Times are given as times."""
    assert not FACTORS_OF_SPEED.search(" ".join(screen_of(name).split()))
    assert not re.search(r"\b(?:slower|faster)$", screen_of(name), re.MULTILINE), "below a ratio"


def test_no_experiment_has_a_template_for_slower() -> None:
    templates = [text for experiment in EXPERIMENTS for text in experiment.texts.values()]
    assert templates and not [text for text in templates if ":slower}" in text]


@pytest.mark.parametrize("name", RUNS)
def test_a_difference_that_may_be_chance_is_too_close_to_call(name: str) -> None:
    text = screen_of(name)
    assert not re.search(r"not resolved|resolved\.", text.partition("Warnings")[0])
    cells = [cell for cell in reported(name)[0].cells if cell.ratio is not None]
    if any(table.main and "[95 % interval]" in str(table.columns) for table in _cell_tables(name)):
        unresolved = any(cell.resolution is Resolution.NOT_RESOLVED for cell in cells)
        assert (TOO_CLOSE in text or TOO_FEW_TRIALS in text) is unresolved


def _cell_tables(name: str) -> list[Table]:
    """The table of cells, if the report has it."""
    summary, page = reported(name)
    return [block for block in page.blocks if isinstance(block, Table) and block == cell_table(summary)]


@pytest.mark.parametrize("name", RUNS)
def test_figures_that_do_not_divide_into_each_other_are_explained(name: str) -> None:
    """A ratio is a mean within blocks. Where the two throughputs beside it have another ratio, the table says so."""
    summary = reported(name)[0]
    for table in _cell_tables(name):
        assert (note(BLOCKS["ratios"]) in table.notes) is ratios_differ_from_rows(summary)
    if answer_of(name).text.startswith(DOUBTS[0]) and "times fewer" in answer_of(name).text:
        assert (CERTAINTY["ratios"] in str(dict(answer_of(name).reasons))) is ratios_differ_from_rows(summary)


@pytest.mark.parametrize("name", RUNS)
def test_without_an_answer_the_only_advice_is_the_command_that_gets_one(name: str) -> None:
    summary, page = reported(name)
    assert not (summary.answer.is_missing and summary.advice)
    has_steps = any(isinstance(block, Heading) and block.text == "What to do" for block in page.blocks)
    assert has_steps is not summary.answer.is_missing
    command = answer_of(name).command
    assert bool(command) is summary.answer.is_missing
    if command:
        assert as_markdown(page).count(f"```\n{command}\n```") == 1
        assert "Why" not in dict(answer_of(name).reasons), "a cause of nothing is no cause"
        in_the_terminal = answer_commands(Path("a.howfar"), recorded(name), summary)
        assert in_the_terminal[-1] == f"  {command.replace('FILE', 'a.howfar')}"
        assert " ".join(in_the_terminal[:-1]).startswith("For an answer, ")


@pytest.mark.parametrize("stop", [None, StopReason.INTERRUPTED])
def test_an_interrupted_run_without_an_answer_shows_how_to_continue(stop: StopReason | None) -> None:
    run = recorded("encryption-mariadb").model_copy(update={"stop": stop})
    assert answer_commands(Path("a.howfar"), run, summarise(run))[-1] == "  howfar resume a.howfar"
    nothing = run.model_copy(update={"trials": (), "events": ()})
    *sentence, command = answer_commands(Path("a.howfar"), nothing, summarise(nothing))
    assert command == "  howfar resume a.howfar"
    does = "continue this run, unless it is being measured now," if stop is None else "measure"
    assert re.fullmatch(rf"For an answer, {does} for about \d+ minutes? more:", " ".join(sentence))


AGAIN = re.compile(r"\b(?:again|repeat|run longer|full plan|quieter)\b", re.IGNORECASE)


@pytest.mark.parametrize("name", RUNS)
def test_one_step_at_most_says_to_measure_again(name: str) -> None:
    advice = reported(name)[0].advice
    assert len([step for step in advice if AGAIN.search(step.action)]) <= 1
    assert len({step.action for step in advice}) == len(advice)


def test_each_advice_to_measure_again_is_of_that_kind() -> None:
    assert {name for name, text in ACTIONS.items() if AGAIN.search(text)} <= set(MEASURE_AGAIN) <= set(ACTIONS)


@pytest.mark.parametrize("name", RUNS)
def test_a_column_of_intervals_has_one(name: str) -> None:
    """Without an answer there are no intervals, and no head that promises them."""
    for table in (block for block in reported(name)[1].blocks if isinstance(block, Table)):
        for index, column in enumerate(table.columns):
            if "95 % interval" in column.label:
                assert any("[" in row[index].line for row in table.rows), f"{table.title} {column.label}"


@pytest.mark.parametrize("name", RUNS)
def test_a_step_that_ends_with_a_colon_has_its_command(name: str) -> None:
    lines = screen_of(name).splitlines()
    for index, line in enumerate(lines):
        if line.startswith("   ") and line.strip().startswith("howfar "):
            assert lines[index - 1].endswith(":")
        if re.match(r"\d\. .*again:$", line):
            assert lines[index + 1].strip().startswith("howfar ")


# ---------------------------------------------------------------- words that stopped readers

DEFINITIONS = ("each measures everything once", "once in each block")
"""What a block is, as the answer or its certainty says it."""


@pytest.mark.parametrize("name", RUNS)
@pytest.mark.parametrize("width", [80, 100])
def test_blocks_are_explained_where_they_are_first_named(name: str, width: int) -> None:
    text = " ".join(render(reported(name)[1], width).split())
    first = re.search(r"\bblocks?\b", text)
    assert first is not None, "the screen says how much was measured"
    near = text[max(first.start() - 60, 0) : first.end() + 60]
    in_parentheses = text[first.start() - len("(…): values of single ") : first.end()].startswith("(…): values")
    assert in_parentheses or any(definition in near for definition in DEFINITIONS), near


@pytest.mark.parametrize("name", RUNS)
def test_no_result_is_smaller_than_what_is_too_close_to_call(name: str) -> None:
    summary = reported(name)[0]
    if CERTAINTY["floor"].partition("{")[0] not in dict(answer_of(name).reasons).get("How sure", ""):
        return
    ratios = [cell.ratio for cell in summary.cells if cell.resolution.is_difference and cell.ratio is not None]
    assert all(abs(math.log(ratio.value)) > math.log1p(least_resolved(summary)) for ratio in ratios)


@pytest.mark.parametrize("name", RUNS)
def test_chance_is_the_reason_of_what_is_too_close_to_call_and_no_other_verdict(name: str) -> None:
    for form in (screen_of(name), as_markdown(reported(name)[1])):
        assert not re.search(r"\bmay ?be chance|possibly chance", " ".join(form.split()))


@pytest.mark.parametrize("name", RUNS)
def test_at_least_is_the_lower_end_of_an_interval(name: str) -> None:
    for finding in reported(name)[0].answer.findings:
        if finding.id == "cpu" and finding.estimate is not None:
            bound = finding.parameters["bound"]
            assert finding.parameters["stated"] == (finding.estimate.low if bound else finding.estimate.value)
    text = screen_of(name)
    assert not re.search(r"[≥≤] [\d.,]+ \[", text) and not re.search(r"[≥≤] [\d.,]+$", text, re.MULTILINE)


@pytest.mark.parametrize("name", RUNS)
def test_without_an_answer_a_busy_machine_is_to_be_quieted_first(name: str) -> None:
    summary = reported(name)[0]
    if not summary.answer.is_missing:
        return
    disturbance = summary.disturbance
    is_busy = Diagnostic.BUSY_MACHINE in summary.warnings if disturbance is None else disturbance.is_much
    lines = " ".join(answer_commands(Path("a.howfar"), recorded(name), summary)[:-1])
    assert (
        bool(re.search("first (?:stop other programs|wait until this machine is quiet)", lines))
        is is_busy
        is (before_measuring(summary) != "")
    )
    takes = r"(?:up to \d+ more minutes, which is usually enough|about \d+ minutes? more):$"
    does = "continue this run, unless it is being measured now," if summary.stop is None else "measure"
    assert re.search(rf"{does} for {takes}", lines), "how long it takes"
    assert answer_of(name).before_command in as_markdown(reported(name)[1])


def test_the_program_to_stop_is_named() -> None:
    summary = reported("bandwidth-mariadb")[0]
    assert summary.disturbance is not None
    cargo = DisturbingProgram(name="cargo", pids=(4711,), trials=3, max_cpus=1.0, share=0.9)
    named = summary.disturbance.model_copy(update={"programs": (cargo,), "are_seen": True})
    busy = summary.model_copy(update={"disturbance": named})
    assert before_measuring(busy) == "stop other programs, such as cargo (pid 4711)"
    unseen = summary.model_copy(update={"disturbance": named.model_copy(update={"programs": ()})})
    assert before_measuring(unseen) == "wait until this machine is quiet", "the kernel, or short-lived processes"


LETTER = re.compile(r"\d [A-Za-z]$")


@pytest.mark.parametrize("name", RUNS)
def test_letters_of_limits_need_an_answer_and_have_a_legend(name: str) -> None:
    summary, page = reported(name)
    grids = (block for block in page.blocks if isinstance(block, Table) and block.title == "Transactions per second")
    for table in grids:
        letters = {cell.text[-1] for row in table.rows for cell in row[1:] if LETTER.search(cell.text)}
        assert not (letters and summary.answer.is_missing)
        assert all(f"{letter.upper()} " in " ".join(table.notes) for letter in letters)


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("compression-mariadb", "compression zstd-1 (mariadb 10.11.19 has no zstd, only zlib)."),
        ("paths-postgresql", None),
        ("paths-local-mariadb", "path remote, forwarded-socket."),
    ],
)
def test_parts_that_were_not_measured_are_named_with_the_reason(name: str, parts: str | None) -> None:
    assert dict(answer_of(name).reasons).get("Not measured") == parts
    assert (f"**Not measured:** {parts}" in as_markdown(reported(name)[1])) is (parts is not None)


SINGLE_VALUES = re.compile(r"\(-?[\d.,]+(?:, -?[\d.,]+)+\)")


@pytest.mark.parametrize("name", RUNS)
def test_values_in_parentheses_are_explained_where_there_are_some(name: str) -> None:
    for table in (block for block in reported(name)[1].blocks if isinstance(block, Table)):
        has_values = any(SINGLE_VALUES.search(cell.line) for row in table.rows for cell in row)
        assert (note(BLOCKS["single values"]) in table.notes) is has_values
    if "parenthes" in screen_of(name) or "(…)" in screen_of(name):
        assert SINGLE_VALUES.search(screen_of(name))


@pytest.mark.parametrize("name", RUNS)
def test_void_trials_are_counted_with_their_cause(name: str) -> None:
    summary = reported(name)[0]
    if summary.answer.is_missing and summary.void_trials:
        text = " ".join(screen_of(name).split())
        count = (
            f"{summary.void_trials} more w(?:as|ere) void(?:, mostly)? because packets to the (?:client|server) were late on the "
            "emulated link; "
        )
        missing = r"(?:, but \d+ measurements? (?:is|are) still missing)?"
        again = rf"(?:(?:was|were) (?:not )?measured again{missing}|will be measured again when the run is resumed)"
        assert re.search(rf"{count}(?:they|it)(?: and the \d+ good ones of the same blocks?)? {again};", text)


@pytest.mark.parametrize(
    ("stop", "missing", "text"),
    [
        (StopReason.BLOCKS, 0, "they were measured again"),
        (StopReason.TIME, 2, "they were measured again, but 2 measurements are still missing"),
        (StopReason.TIME, 5, "they will be measured again when the run is resumed"),
        (StopReason.BLOCKS, 5, "they were not measured again"),
    ],
)
def test_whether_void_trials_were_measured_again_depends_on_the_run(stop: StopReason, missing: int, text: str) -> None:
    counts = {"void_trials": 5, "left_out_trials": 0, "missing_trials": missing}
    assert text in trials_line(reported("bandwidth-mariadb")[0].model_copy(update={"stop": stop.value, **counts}))


def test_a_run_that_was_to_measure_too_rarely_says_that_this_was_requested() -> None:
    assert trials_line(reported("bandwidth-mariadb")[0]).endswith(
        "as requested, everything was measured at most 3 times; an answer needs 4"
    )


@pytest.mark.parametrize(
    ("missing_s", "minutes", "promise"),
    [(60.0, 10, ", which is usually enough"), (1000.0, 30, ", which is usually enough"), (None, 10, "")],
)
def test_the_time_for_an_answer_follows_the_pace_of_the_run(
    missing_s: float | None, minutes: int, promise: str
) -> None:
    summary = reported("crash-mysql")[0].model_copy(update={"missing_s": missing_s})
    assert what_answers(summary) == f"For an answer, measure for up to {minutes} more minutes{promise}"
    commands = answer_commands(Path("a.howfar"), recorded("crash-mysql"), summary)
    assert commands[-1].endswith(f" --time-budget {minutes}min")
    assert command_for_answer(summary).endswith(f" --time-budget {minutes}min")


def test_other_work_that_is_the_doubt_is_to_be_stopped_before_the_full_plan() -> None:
    summary = reported("aa-mariadb")[0]
    assert [step.id for step in summary.advice] == ["full-plan"] and "stop other work" in summary.advice[0].action


def test_the_cause_of_uneven_cpus_is_guessed_only_if_no_other_programs_are_known() -> None:
    assert "may be the cause" in " ".join(warning_lines(reported("aa-mariadb")[0]))
    uneven = [line for line in warning_lines(reported("paths-local-mariadb")[0]) if "CPU time" in line]
    assert uneven and "may be the cause" not in uneven[0]


SETTING_WIDTH = 100
"""Maximum length of the line that says what was measured, on what, when and for how long."""


@pytest.mark.parametrize("name", RUNS)
def test_what_was_measured_when_and_for_how_long_fits_on_one_line(name: str) -> None:
    summary, report = reported(name)
    assert len(report.setting) <= SETTING_WIDTH
    if summary.measured_s is not None:
        assert report.setting.endswith(f" UTC, {spoken_span(summary.measured_s)}")


@pytest.mark.parametrize("name", RUNS)
def test_each_estimate_of_a_finding_says_what_it_is_of(name: str) -> None:
    answer = reported(name)[0].answer
    assert all((finding.estimate is None) == (finding.metric is None) for finding in (*answer.findings, *answer.causes))


@pytest.mark.parametrize("name", RUNS)
def test_each_advice_has_an_id_and_its_figures(name: str) -> None:
    for advice in reported(name)[0].advice:
        assert re.fullmatch(r"[a-z]+(-[a-z0-9]+)*", advice.id), advice
        assert advice.parameters, advice


@pytest.mark.parametrize("name", RUNS)
def test_without_an_answer_nothing_says_what_would_help_or_from_where_it_pays(name: str) -> None:
    summary, report = reported(name)
    if not summary.answer.is_missing:
        return
    limits = [cell.limit for cell in summary.cells if cell.limit is not None]
    assert not any(limit.would_change or limit.would_not or limit.gain for limit in limits)
    values = json.loads(as_json(summary))
    assert values.get("what_if") is None and not (values.get("pages") or {}).get("crossings")
    assert summary.advice == () and "Limits: " not in render(report)
    folded = {block.title: block.open for block in report.blocks if isinstance(block, Details)}
    assert not any(folded.get(title) for title in ("What limits each cell", "Tested limits"))


@pytest.mark.parametrize("name", RUNS)
def test_each_warning_is_a_finding_with_an_id(name: str) -> None:
    summary = reported(name)[0]
    of_cells = [(warning.id, cell.arm) for cell in summary.cells for warning in cell.warnings]
    found = [(finding.id, finding.subject) for finding in summary.diagnostics]
    assert found == [*((warning.id, "") for warning in summary.warnings), *of_cells]
    assert all(re.fullmatch(r"[a-z]+(-[a-z0-9]+)*", warning_id) for warning_id, _ in found)
