"""`howfar plans`: the experiments that come along, what each answers, how long it takes here."""

from __future__ import annotations

import textwrap

import click

from howfar.cli.program import program
from howfar.cli.screen import width
from howfar.plan.cells import cells
from howfar.plan.estimate import Cost, cost
from howfar.plan.load import load_plan, shipped_plans
from howfar.plan.types import Plan


@click.command()
def plans() -> None:
    """List the experiments: what each answers, how long it takes."""
    columns = width()
    for name in shipped_plans():
        quick = load_plan(name, quick=True).plan
        full = load_plan(name).plan
        click.echo(name)
        for line in (full.question, _arms(full), f"--quick: {_figures(quick)}", f"in full: {_figures(full)}"):
            click.echo(textwrap.fill(line, columns, initial_indent="  ", subsequent_indent="    "))
    click.echo(f"\nRun one with: {program()} run {shipped_plans()[0]} --quick")


def _arms(plan: Plan) -> str:
    return "Compares " + ", ".join(cell.name for cell in cells(plan) if cell.role != "duplicate") + "."


def _figures(plan: Plan) -> str:
    forecast = cost(plan)
    return (
        f"{_minutes(forecast)}, to within ±{plan.timing.target_half_width:.0%}, "
        f"{plan.data.tables} tables of {plan.data.table_size} rows "
        f"(the first time about {_time(forecast.first_time_ns)} more, to load them)"
    )


def _minutes(forecast: Cost) -> str:
    low, high = _time(forecast.least_ns), _time(forecast.most_ns)
    return low if low == high else f"{low} to {high}"


def _time(ns: int) -> str:
    seconds = ns / 1e9
    return f"{seconds:.0f} s" if seconds < 100 else f"{seconds / 60:.0f} min"
