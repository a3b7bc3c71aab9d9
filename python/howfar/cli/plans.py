"""`howfar plans`: the included experiments, the questions they answer and how long they take."""

from __future__ import annotations

import textwrap

import click

from howfar.cli.completion import complete_plans
from howfar.cli.screen import program, table, width
from howfar.plan.cells import cells
from howfar.plan.estimate import Cost, estimate_cost, format_range, format_time
from howfar.plan.factors import FACTORS, has_fault
from howfar.plan.load import load_plan, shipped_plans
from howfar.plan.types import Plan
from howfar.plan.workload import WORKLOADS

_MAX_NAMED_CELLS = 6
"""Maximum number of cells that are listed by name; of a plan with more, only the factors are listed."""


@click.command()
@click.argument("name", required=False, shell_complete=complete_plans, metavar="[NAME]")
def plans(name: str | None) -> None:
    """List the experiments, the question that each answers, and how long it takes; or show the one called NAME whole."""
    if name is not None:
        _show_plan(name)
        return
    rows: list[tuple[str, ...]] = [("plan", "question", "time", "--full")]
    for plan_name in shipped_plans():
        full = load_plan(plan_name).plan
        times = (format_time(estimate_cost(plan).max_ns) for plan in (load_plan(plan_name, quick=True).plan, full))
        rows.append((plan_name, full.question, *times))
    for line in table(rows, width()):
        click.echo(line)
    hint = f"At most, on MariaDB. To see one whole: {program()} plans NAME. To run it: {program()} run NAME"
    click.echo("\n" + click.wrap_text(hint, width()))


def _show_plan(name: str) -> None:
    """Show one plan: its question, what it compares, how long it takes, where it is."""
    quick, full = load_plan(name, quick=True), load_plan(name)
    click.echo(full.plan.name)
    forms = [f"By default: {_describe_effort(quick.plan)}."] if quick.quick else []
    forms.append(f"{'With --full' if quick.quick else 'Takes'}: {_describe_effort(full.plan)}.")
    for line in (full.plan.question, _describe_arms(full.plan), *forms):
        click.echo(textwrap.fill(line, width(), initial_indent="  ", subsequent_indent="    "))
    comment = [line.removeprefix("#").strip() for line in full.text.partition("\nname")[0].splitlines()]
    click.echo(textwrap.fill(" ".join(comment), width(), initial_indent="  ", subsequent_indent="  "))


def _describe_arms(plan: Plan) -> str:
    """The names of all cells or, for many, the factors that vary."""
    names = [cell.name for cell in cells(plan) if cell.role in ("baseline", "contender")]
    if len(names) <= _MAX_NAMED_CELLS:
        return f"Compares {'; '.join(names)}." if len(names) > 1 else f"Measures {names[0]}."
    levels = []
    for name in plan.factors.varied:
        factor = FACTORS[name]
        shown = ", ".join(factor.format(level) for level in getattr(plan.factors, name))
        levels.append(f"{factor.key.replace('_', ' ')} {shown}")
    return f"Compares {len(names)} cells: {'; '.join(levels)}."


def _describe_effort(plan: Plan) -> str:
    forecast = estimate_cost(plan)
    return f"{_format_duration(plan)}, {_end_condition(plan)}, {_describe_data(plan, forecast)}"


def _describe_data(plan: Plan, forecast: Cost) -> str:
    if not WORKLOADS[plan.workload.kind].reads_tables:
        return f"{plan.keys.count} keys"
    tables = "a table" if plan.data.tables == 1 else f"{plan.data.tables} tables"
    tables_text = f"{tables} of {plan.data.table_size} rows{' or as many as fit' if plan.data.fit else ''}"
    if forecast.first_time_ns < 10**9:
        return tables_text
    return f"{tables_text} (about {format_time(forecast.first_time_ns)} more the first time, to load them)"


def _end_condition(plan: Plan) -> str:
    """The condition that ends a run; a run of faults ends after a number of blocks, not at an interval's width."""
    if all(has_fault(cell.factors) for cell in cells(plan)):
        return f"at most {plan.timing.max_blocks} times each"
    return f"to within ±{plan.timing.target_half_width:.0%}"


def _format_duration(plan: Plan) -> str:
    """The duration on MariaDB, and on MySQL if it is longer there, because MySQL starts and stops more slowly."""
    mariadb, mysql = (
        format_range(
            estimate_cost(plan.model_copy(update={"factors": plan.factors.model_copy(update={"server": (server,)})}))
        )
        for server in ("mariadb", "mysql")
    )
    return mariadb if mariadb == mysql else f"{mariadb} (on MySQL {mysql})"
