"""`howfar compare`: two runs side by side."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import click
from rich.table import Table
from rich.text import Text

from howfar.analysis.compare import ArmComparison, Comparison
from howfar.analysis.compare import compare as compare_runs
from howfar.cli.output import from_file
from howfar.cli.screen import console, no_colour_option, note
from howfar.stats.estimate import Estimate
from howfar.stats.intervals import in_brackets
from howfar.stats.trials import ONE, TAIL
from howfar.store.run_file import read_run


@click.command()
@click.argument("before", type=click.Path(path_type=Path))
@click.argument("after", type=click.Path(path_type=Path))
@no_colour_option
def compare(before: Path, after: Path, no_colour: bool) -> int:
    """Compare the runs in the files BEFORE and AFTER; ratios are AFTER over BEFORE."""
    one, other = read_run(before), read_run(after)
    if one.info.run_id == other.info.run_id:
        note("both files hold the same run, so they differ only in how far it had progressed")
    with from_file(before, one.is_verified), from_file(after, other.is_verified):
        found = compare_runs(one, other)
    screen = console(no_colour)
    screen.print(Text(f"{before} -> {after}"))
    screen.print(_table(found) if found.arms else Text("The runs have no arm in common."))
    if timed := [arm for arm in found.arms if arm.p50]:
        screen.print(Text(f"Time of a {'page' if found.counted == 'pages' else 'transaction'}:"))
        screen.print(_times(timed))
        if any(arm.p99 is None for arm in timed):
            screen.print(Text(f"-: a trial has fewer than {TAIL} transactions beyond that percentile."))
    for name, only in ((before, found.only_before), (after, found.only_after)):
        if only:
            screen.print(Text(f"Only in {name}: {', '.join(only)}"))
    for difference in found.differences:
        screen.print(Text(f"Differs: {difference.what}: {difference.before} -> {difference.after}"))
    if found.beside:
        screen.print(Text(found.beside))
    screen.print(Text(found.warning))
    return 0


def _table(found: Comparison) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0))
    table.add_column("arm", overflow="fold")
    for title in (f"{found.counted}/s", "vs. baseline", f"CPU per {ONE[found.counted]}"):
        table.add_column(title, justify="right", overflow="fold")
    table.add_column("verdict", overflow="fold")
    for arm in found.arms:
        table.add_row(
            arm.arm, _ratio(arm.qps), _ratio(arm.relative_to_baseline), _ratio(arm.cpu_per_query), _verdict(arm)
        )
    return table


def _times(arms: Sequence[ArmComparison]) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0))
    table.add_column("arm", overflow="fold")
    for title in ("p50", "p99"):
        table.add_column(title, justify="right", overflow="fold")
    for arm in arms:
        table.add_row(arm.arm, _ratio(arm.p50), _ratio(arm.p99))
    return table


def _ratio(estimate: Estimate | None) -> str:
    return "-" if estimate is None else in_brackets(estimate, "{:.3f}".format)


def _verdict(arm: ArmComparison) -> str:
    if not arm.same_cell:
        return "other factor levels"
    if arm.rate_given:
        return "at a given rate"
    if not arm.qps_differs:
        return "not resolved"
    return "faster" if arm.qps.value > 1 else "slower"
