"""The first screen of each stored run: its answer, certainty, table and next step agree, and say the same thing in the same way."""

from __future__ import annotations

import json
import lzma
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
from howfar.analysis.summary import Summary
from howfar.cli.output import answer_command
from howfar.experiments.registry import EXPERIMENTS, document, summarise
from howfar.findings import note
from howfar.report.certainty import TEXTS
from howfar.report.document import Answer, Document, Heading, Table
from howfar.report.figures import TOO_CLOSE, ratios_differ_from_rows
from howfar.report.sections import cell_table
from howfar.report.terminal import render
from howfar.report.text import as_json, as_markdown
from howfar.report.texts import BLOCKS
from howfar.stats.intervals import Resolution
from howfar.store.records import Run, StopReason
from howfar.store.run_file import read_run

FACTORS_OF_SPEED = re.compile(r"(?:times|%) (?:slower|faster)")
DOUBTS = tuple(TEXTS[name].capitalize() for name in ("probably", "observed"))


@cache
def recorded(name: str) -> Run:
    """A stored run."""
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
        assert (TOO_CLOSE in text or "maybe chance" in text) is unresolved


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
        assert (TEXTS["ratios"] in str(dict(answer_of(name).reasons))) is ratios_differ_from_rows(summary)


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
        assert dict(answer_of(name).reasons).keys() == {"How sure"}, "a cause of nothing is no cause"
        run = recorded(name)
        in_the_terminal = answer_command(Path("a.howfar"), run, summary)
        assert in_the_terminal == f"For an answer:      {command.replace('FILE', 'a.howfar')}"


@pytest.mark.parametrize("stop", [None, StopReason.INTERRUPTED])
def test_an_interrupted_run_without_an_answer_shows_how_to_continue(stop: StopReason | None) -> None:
    run = recorded("encryption-mariadb").model_copy(update={"stop": stop})
    assert answer_command(Path("a.howfar"), run, summarise(run)) == "For an answer:      howfar resume a.howfar"
    nothing = run.model_copy(update={"trials": (), "events": ()})
    assert answer_command(Path("a.howfar"), nothing, summarise(nothing)) == "For an answer:      howfar resume a.howfar"


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
