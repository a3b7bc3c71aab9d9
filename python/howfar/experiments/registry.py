"""All experiments. The first that applies to a run writes its report; the last applies to every run."""

from __future__ import annotations

from howfar.analysis.summary import Summary, build_summary
from howfar.experiments.experiment import Experiment
from howfar.experiments.paths.report import Paths
from howfar.report import html, terminal
from howfar.report.certainty import with_doubt
from howfar.report.document import Document
from howfar.report.text import as_csv, as_json, as_markdown, json_schema
from howfar.slices import collect
from howfar.store.records import Run

EXPERIMENTS: list[Experiment] = [
    *collect("experiments", "EXPERIMENTS", Experiment),  # type: ignore[type-abstract]
    Paths(),
]


def summarise(run: Run) -> Summary:
    """The complete analysis of a run, computed without I/O."""
    summary = build_summary(run, EXPERIMENTS)
    return with_doubt(summary, experiment_of(summary).is_about_ratios)


def experiment_of(summary: Summary) -> Experiment:
    return next((experiment for experiment in EXPERIMENTS if experiment.applies(summary)), EXPERIMENTS[-1])


def document(summary: Summary) -> Document:
    """The report of a run."""
    return experiment_of(summary).document(summary)


def render_in_terminal(
    summary: Summary,
    width: int,
    colour: bool,
    unicode: bool,
    details: bool,
    surroundings: terminal.Surroundings = terminal.NO_SURROUNDINGS,
) -> str:
    return terminal.render(document(summary), width, colour, unicode, details, surroundings)


def render_as(summary: Summary, form: str) -> str:
    """The report as `html`, `md`, `csv` or `json`."""
    if form == "json":
        return as_json(summary)
    render = {"html": html.render, "md": as_markdown, "csv": as_csv}[form]
    return render(document(summary))


def schema() -> dict[str, object]:
    """JSON Schema of the JSON report."""
    return json_schema({key: kind for experiment in EXPERIMENTS for key, kind in experiment.findings.items()})
