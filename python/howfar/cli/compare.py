"""`howfar compare`: two runs side by side."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import click
from rich.table import Table
from rich.text import Text

from howfar.analysis.compare import ArmComparison, RunComparison
from howfar.analysis.compare import compare as compare_runs
from howfar.cli.output import reporting_damage
from howfar.cli.screen import console, no_colour_option, note, rich_table
from howfar.stats.estimate import Estimate
from howfar.stats.intervals import estimate_text
from howfar.stats.trials import MIN_BEYOND_QUANTILE, SINGULAR
from howfar.store.run_file import read_run


@click.command()
@click.argument("before", type=click.Path(path_type=Path))
@click.argument("after", type=click.Path(path_type=Path))
@no_colour_option
def compare(before: Path, after: Path, no_colour: bool) -> int:
    """Compare the runs in the files BEFORE and AFTER; ratios are AFTER over BEFORE."""
    run_before, run_after = read_run(before), read_run(after)
    if run_before.info.run_id == run_after.info.run_id:
        note("both files hold the same run, so they differ only in how far it had progressed")
    with reporting_damage(before, run_before.is_verified), reporting_damage(after, run_after.is_verified):
        comparison = compare_runs(run_before, run_after)
    screen = console(no_colour)
    screen.print(Text(f"{before} -> {after}"))
    screen.print(_ratios_table(comparison) if comparison.arms else Text("The runs have no arm in common."))
    if arms_with_times := [arm for arm in comparison.arms if arm.p50]:
        screen.print(Text(f"Time of a {'page' if comparison.operation_unit == 'pages' else 'transaction'}:"))
        screen.print(_times_table(arms_with_times))
        if any(arm.p99 is None for arm in arms_with_times):
            screen.print(Text(f"-: a trial has fewer than {MIN_BEYOND_QUANTILE} transactions beyond that percentile."))
    for name, arms in ((before, comparison.only_before), (after, comparison.only_after)):
        if arms:
            screen.print(Text(f"Only in {name}: {', '.join(arms)}"))
    for difference in comparison.differences:
        screen.print(Text(f"Differs: {difference.what}: {difference.before} -> {difference.after}"))
    if comparison.hosts_note:
        screen.print(Text(comparison.hosts_note))
    screen.print(Text(comparison.warning))
    return 0


def _ratios_table(comparison: RunComparison) -> Table:
    unit = comparison.operation_unit
    table = rich_table(["arm"], [f"{unit}/s", "vs. baseline", f"CPU per {SINGULAR[unit]}"])
    table.add_column("verdict", overflow="fold")
    for arm in comparison.arms:
        table.add_row(
            arm.arm,
            _format_ratio(arm.qps),
            _format_ratio(arm.relative_to_baseline),
            _format_ratio(arm.cpu_per_query),
            _describe_change(arm),
        )
    return table


def _times_table(arms: Sequence[ArmComparison]) -> Table:
    table = rich_table(["arm"], ["p50", "p99"])
    for arm in arms:
        table.add_row(arm.arm, _format_ratio(arm.p50), _format_ratio(arm.p99))
    return table


def _format_ratio(estimate: Estimate | None) -> str:
    return "-" if estimate is None else estimate_text(estimate, "{:.3f}".format)


def _describe_change(arm: ArmComparison) -> str:
    if not arm.same_cell:
        return "other factor levels"
    if arm.has_given_rate:
        return "at a given rate"
    if not arm.qps_differs:
        return "not resolved"
    return "faster" if arm.qps.value > 1 else "slower"
