"""`howfar plans`: the included experiments, the questions they answer and how long they take here."""

from __future__ import annotations

import textwrap

import click

from howfar.cli.screen import program, width
from howfar.plan.cells import cells
from howfar.plan.estimate import Cost, cost
from howfar.plan.factors import FACTORS, breaks
from howfar.plan.load import load_plan, shipped_plans
from howfar.plan.types import Plan

_MOST_NAMED = 6
"""Most cells that are listed; of more only the factors are."""


@click.command()
def plans() -> None:
    """List the experiments, the question that each answers, and how long it takes."""
    columns = width()
    for name in shipped_plans():
        quick = load_plan(name, quick=True).plan
        full = load_plan(name).plan
        click.echo(name)
        for line in (full.question, _arms(full), f"--quick: {_figures(quick)}", f"in full: {_figures(full)}"):
            click.echo(textwrap.fill(line, columns, initial_indent="  ", subsequent_indent="    "))
    click.echo(f"\nRun one with: {program()} run {shipped_plans()[0]} --quick")


def _arms(plan: Plan) -> str:
    """Names of all cells; for a grid, what is varied."""
    names = [cell.name for cell in cells(plan) if cell.role in ("baseline", "contender")]
    if len(names) <= _MOST_NAMED:
        return f"Compares {'; '.join(names)}." if len(names) > 1 else f"Measures {names[0]}."
    levels = []
    for name in plan.factors.varied:
        factor = FACTORS[name]
        shown = ", ".join(factor.format(level) for level in getattr(plan.factors, name))
        levels.append(f"{factor.key.replace('_', ' ')} {shown}")
    return f"Compares {len(names)} cells: {'; '.join(levels)}."


def _figures(plan: Plan) -> str:
    forecast = cost(plan)
    return f"{_duration(plan)}, {_enough(plan)}, {_data(plan, forecast)}"


def _data(plan: Plan, forecast: Cost) -> str:
    if plan.workload.kind == "key_value":
        return f"{plan.keys.count} keys"
    tables = "a table" if plan.data.tables == 1 else f"{plan.data.tables} tables"
    found = f"{tables} of {plan.data.table_size} rows{' or as many as fit' if plan.data.fit else ''}"
    if forecast.first_time_ns < 10**9:
        return found
    return f"{found} (about {_time(forecast.first_time_ns)} more the first time, to load them)"


def _enough(plan: Plan) -> str:
    """When a run ends. Faults are counted, and no width ends such a run."""
    if all(breaks(cell.factors) for cell in cells(plan)):
        return f"at most {plan.timing.max_blocks} times each"
    return f"to within ±{plan.timing.target_half_width:.0%}"


def _duration(plan: Plan) -> str:
    """Duration on each kind of server: a trial takes longer on MySQL, which starts and ends more slowly."""
    here, mysql = (
        _minutes(cost(plan.model_copy(update={"factors": plan.factors.model_copy(update={"server": (server,)})})))
        for server in ("mariadb", "mysql")
    )
    return here if here == mysql else f"{here} (on MySQL {mysql})"


def _minutes(forecast: Cost) -> str:
    low, high = _time(forecast.least_ns), _time(forecast.most_ns)
    return low if low == high else f"{low} to {high}"


def _time(ns: int) -> str:
    seconds = ns / 1e9
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
