"""`howfar compare`: runs side by side."""

from __future__ import annotations

import json
import math
import shlex
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

import click
from pydantic import TypeAdapter

from howfar.analysis.answer import Answer as RunAnswer
from howfar.analysis.compare import (
    DIFFERS,
    NOT_COMPARED,
    ArmComparison,
    RunComparison,
    answer_comparison,
    certainty_of_comparison,
    compare_with_first,
    describe_left_out,
)
from howfar.analysis.compare_texts import ADVICE, ORDINALS, TABLES, VERDICTS
from howfar.cli.output import (
    MORE_MINUTES,
    Form,
    form_options,
    page_path,
    reporting_damage,
    resume_command,
    write,
)
from howfar.cli.screen import no_colour_option, note, show_document, show_json
from howfar.errors import UsageError
from howfar.findings import capital, fill
from howfar.plan.workload import OPERATIONS
from howfar.report.document import (
    AdviceBlock,
    Answer,
    Block,
    Cell,
    Column,
    Document,
    Fields,
    Table,
    Text,
    make_table,
    plain_cells,
    what_to_do,
)
from howfar.report.sections import csv_limits
from howfar.report.text import JsonObject, as_csv, as_markdown
from howfar.report.texts import SEPARATOR
from howfar.stats.estimate import Estimate
from howfar.stats.intervals import MIN_BLOCKS, interval_text
from howfar.stats.trials import MIN_BEYOND_QUANTILE, singular
from howfar.store.records import Run
from howfar.store.run_file import read_run
from howfar.units import format_utc


@click.command()
@click.argument("paths", metavar="FIRST OTHER...", nargs=-1, required=True, type=click.Path(path_type=Path))
@form_options("")
@no_colour_option
def compare(paths: tuple[Path, ...], form: Form, no_colour: bool) -> int:
    """Compare the run in the file FIRST with one or more other runs, side by side. Ratios are those of a run to the first one."""
    if len(paths) < 2:
        raise UsageError(f"howfar compare takes 2 to {len(ORDINALS)} runs", "Name the files of the runs.")
    runs = read_runs(paths)
    with ExitStack() as checks:
        for path, run in zip(paths, runs, strict=True):
            checks.enter_context(reporting_damage(path, run.is_verified))
        show_comparison(paths, runs, form, no_colour)
    return 0


def read_runs(paths: Sequence[Path]) -> list[Run]:
    """Runs to be shown side by side. Raises UsageError if there are too many, and the errors of `read_run`."""
    if len(paths) > len(ORDINALS):
        raise UsageError(f"at most {len(ORDINALS)} runs can be shown side by side", "Name fewer files.")
    runs = [read_run(path) for path in paths]
    if len({run.info.run_id for run in runs}) < len(runs):
        note("two files hold the same run, so they differ only in how far it had progressed")
    return runs


def show_comparison(
    paths: Sequence[Path], runs: Sequence[Run], form: Form, no_colour: bool, answers: Sequence[RunAnswer] = ()
) -> None:
    """Show runs side by side, with their answers if there are any."""
    comparisons = compare_with_first(runs)
    answer = answer_comparison(comparisons)
    if form.name == "json":
        show_json(json.dumps(_json_values(paths, runs, comparisons, answer, answers), indent=2, ensure_ascii=False))
        return
    report = document(paths, runs, answers)
    if form.name == "html":
        from howfar.report import html  # slow to import: it draws charts

        page = page_path(form.page, paths[0].with_name(f"{paths[0].stem}-compared.howfar"))
        write(page, html.render(report), rewrite_hint="")
        click.echo(page)
    elif form.name:
        click.echo({"md": as_markdown, "csv": as_csv}[form.name](report).rstrip("\n"))
    else:
        show_document(report, no_colour)


def _json_values(
    paths: Sequence[Path],
    runs: Sequence[Run],
    comparisons: Sequence[RunComparison],
    answer: RunAnswer,
    answers: Sequence[RunAnswer],
) -> JsonObject:
    """The comparison as values of JSON. `answers`: those of the runs, if they are shown."""
    described: list[JsonObject] = [
        {
            "run": run.info.run_id,
            "file": str(path),
            "plan": run.info.plan_name,
            "created": format_utc(run.info.created_unix_ns),
        }
        for path, run in zip(paths, runs, strict=True)
    ]
    for values, of_run in zip(described, answers, strict=False):
        values["answer"] = of_run.model_dump(mode="json")
    compared = [
        TypeAdapter(RunComparison).dump_python(comparison, mode="json", by_alias=True)
        | {
            "run": runs[number].info.run_id,
            "arms": [
                TypeAdapter(ArmComparison).dump_python(arm, mode="json", by_alias=True) | {"verdict": arm.verdict}
                for arm in comparison.arms
            ],
        }
        for number, comparison in enumerate(comparisons, start=1)
    ]
    certainty = certainty_of_comparison(answer, comparisons)
    return {
        "question": answer.question,
        "answer": answer.model_dump(mode="json") | {"certainty": certainty},
        "runs": described,
        "compared_with_first": compared,
    }


def _records(comparisons: Sequence[RunComparison]) -> tuple[dict[str, object], ...]:
    """The lines of the CSV: one for each arm of each run but the first."""
    return tuple(
        {
            "run": ORDINALS[number],
            "arm": arm.arm,
            "first_per_s": arm.before_per_s,
            **csv_limits("ratio", arm.qps),
            "verdict": arm.verdict,
            **csv_limits("relative_to_baseline", arm.relative_to_baseline),
            **csv_limits("cpu_ratio", arm.cpu_per_query),
            **csv_limits("p50_ratio", arm.p50),
            **csv_limits("p99_ratio", arm.p99),
        }
        for number, comparison in enumerate(comparisons, start=1)
        for arm in comparison.arms
    )


def document(paths: Sequence[Path], runs: Sequence[Run], answers: Sequence[RunAnswer] = ()) -> Document:
    """The comparison of runs as a document. `answers`: those of the runs, to be shown first."""
    comparisons = compare_with_first(runs)
    answer = answer_comparison(comparisons)
    notes = describe_left_out(comparisons)
    notes += [comparison.hosts_note for comparison in comparisons if comparison.hosts_note]
    blocks: list[Block] = [
        Answer(answer.sentence, why=answer.why, certainty=certainty_of_comparison(answer, comparisons)),
        *(Text(text) for text in notes),
        *([_answers_table(paths, answers)] if answers else []),
        _throughput_table(comparisons),
        *(_ratios_table(number, comparison) for number, comparison in enumerate(comparisons, start=1)),
        *(Text(text) for number, each in enumerate(comparisons, start=1) for text in _unshared_arms(number, each)),
        _facts_table(comparisons),
    ]
    finding = answer.findings[0].id
    if answer.is_missing or finding == "too-wide":
        blocks += what_to_do([AdviceBlock(ADVICE["continue"], "", _commands_to_resume(paths, comparisons))])
    elif finding in NOT_COMPARED:
        blocks += what_to_do([AdviceBlock(ADVICE["same-plan"], "", (shlex.join(runs[0].info.command),))])
    elif finding in DIFFERS:
        blocks += what_to_do([AdviceBlock(ADVICE["interleave"], ADVICE["because-interleave"])])
    setting = _setting_line(paths, runs)
    return Document("howfar compare", tuple(blocks), _records(comparisons), answer.question, setting)


def _commands_to_resume(paths: Sequence[Path], comparisons: Sequence[RunComparison]) -> tuple[str, ...]:
    """The command that measures more, for each run with too few blocks; for every run if all have enough."""
    fewest = [math.inf] * len(paths)
    for number, comparison in enumerate(comparisons, start=1):
        for arm in (arm for arm in comparison.arms if arm.is_judged):
            fewest[0], fewest[number] = min(fewest[0], arm.trials[0]), min(fewest[number], arm.trials[1])
    lacking = [path for path, trials in zip(paths, fewest, strict=True) if trials < MIN_BLOCKS]
    return tuple(resume_command(path, MORE_MINUTES) for path in lacking or paths)


def _setting_line(paths: Sequence[Path], runs: Sequence[Run]) -> str:
    """`first a.howfar, paths, 2026-11-28 14:05 UTC · second b.howfar, paths, 2026-11-29 14:05 UTC`."""
    shown = _distinct_names(paths)
    return SEPARATOR.join(
        f"{ordinal} {name}, {run.info.plan_name}, {format_utc(run.info.created_unix_ns)}"
        for ordinal, name, run in zip(ORDINALS[: len(runs)], shown, runs, strict=True)
    )


def _distinct_names(paths: Sequence[Path]) -> list[str]:
    """The names of files, or their paths if two have the same name."""
    names = [path.name for path in paths]
    return names if len(set(names)) == len(names) else [str(path) for path in paths]


def _answers_table(paths: Sequence[Path], answers: Sequence[RunAnswer]) -> Table:
    """A row for each run: its file, and its answer with the cause."""
    columns = tuple(Column(head, left_aligned=True) for head in ("run", "answer"))
    rows = tuple(
        plain_cells(f"{ordinal}, {name}", f"{of_run.sentence} {of_run.why}".strip())
        for ordinal, name, of_run in zip(ORDINALS[: len(paths)], _distinct_names(paths), answers, strict=True)
    )
    return Table(TABLES["answers"], columns, rows)


def _throughput_table(comparisons: Sequence[RunComparison]) -> Table:
    """A row for each arm: operations per second of the first run, and for each other run the ratio and its verdict."""
    unit = comparisons[0].units[0]
    arms = {arm.arm: arm for comparison in comparisons for arm in comparison.arms}
    arms_by_run = [{arm.arm: arm for arm in comparison.arms} for comparison in comparisons]

    def ratio_cell(arm: ArmComparison | None) -> Cell:
        return Cell("-") if arm is None else Cell(interval_text(arm.qps), VERDICTS[arm.verdict])

    columns = (
        Column("arm", left_aligned=True),
        Column("first run", f"{unit}/s"),
        *(Column(f"{ordinal} run", "of the first") for ordinal in ORDINALS[1 : len(comparisons) + 1]),
    )
    rows = tuple(
        (*plain_cells(name, f"{arm.before_per_s:,.0f}"), *(ratio_cell(by_name.get(name)) for by_name in arms_by_run))
        for name, arm in arms.items()
    )
    return Table(TABLES["throughput"], columns, rows, main=True)


def _ratios_table(number: int, comparison: RunComparison) -> Table:
    """The other ratios of a run to the first one."""
    unit = comparison.units[0]
    fields: Fields[ArmComparison] = {
        "arm": lambda arm: arm.arm,
        "throughput\nvs. baseline": lambda arm: _ratio_cell(arm.relative_to_baseline),
        f"CPU\nper {singular(unit)}": lambda arm: _ratio_cell(arm.cpu_per_query),
        "p50": lambda arm: _ratio_cell(arm.p50),
        "p99": lambda arm: _ratio_cell(arm.p99),
    }
    notes = [fill(TABLES["times"], operation=singular(unit) if OPERATIONS[unit].is_composite else "transaction")]
    if any(arm.p99 is None for arm in comparison.arms):
        notes.append(fill(TABLES["lacking"], fewest=MIN_BEYOND_QUANTILE))
    return make_table(fill(TABLES["ratios"], run=ORDINALS[number]), comparison.arms, fields, notes)


def _ratio_cell(estimate: Estimate | None) -> Cell:
    value, _, limits = ("-", "", "") if estimate is None else interval_text(estimate).partition(" ")
    return Cell(value, limits)


def _unshared_arms(number: int, comparison: RunComparison) -> list[str]:
    arms_by_run = {0: comparison.only_before, number: comparison.only_after}
    return [fill(TABLES["only"], run=ORDINALS[run], arms=", ".join(arms)) for run, arms in arms_by_run.items() if arms]


def _facts_table(comparisons: Sequence[RunComparison]) -> Table:
    """A row for each fact in which a run differs from the first one, with its value in each run."""
    before = {difference.what: difference.before for each in comparisons for difference in each.differences}
    after_by_run = [{difference.what: difference.after for difference in each.differences} for each in comparisons]
    heads = ["", *(f"{ordinal} run" for ordinal in ORDINALS[: len(comparisons) + 1])]
    columns = tuple(Column(head, left_aligned=True) for head in heads)
    rows = tuple(
        plain_cells(capital(what), value, *(after.get(what, value) for after in after_by_run))
        for what, value in before.items()
    )
    return Table(TABLES["facts"], columns, rows)
