"""`howfar predict`: predict the time of recorded pages on another path, and rank changes."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from howfar.cli.exit_codes import VOID
from howfar.cli.links import read_link
from howfar.cli.output import check_page_path, details_option, reporting_damage, wants_details, write
from howfar.cli.screen import (
    OutputFile,
    has_colour,
    json_option,
    no_colour_option,
    note,
    read_text,
    show_rendered,
    width,
)
from howfar.cli.target_options import enter_sandbox, read_target, target_options
from howfar.errors import UsageError
from howfar.units import parse_duration_ns

if TYPE_CHECKING:
    from howfar.recording.prediction_report import Measurement
    from howfar.recording.slope import Slope

_MAX_BYTES = 64 << 20


@click.command()
@target_options
@click.option("--slope", "slopes", multiple=True, metavar="[PAGE=]FILE",
              help="Output of `howfar slope --json` for the same page, as a second predictor.")  # fmt: skip
@click.option("--measured", multiple=True, type=click.Path(exists=True, dir_okay=False, path_type=Path),
              help="Output of `howfar replay --json`, which adds points to the chart and the errors of the prediction.")  # fmt: skip
@click.option("--again", type=click.Path(exists=True, dir_okay=False, path_type=Path), metavar="RECORDING2",
              help="A later recording of the same pages, to show whether they still take as long.")  # fmt: skip
@click.option("--html", type=OutputFile(), help="Write the report and its charts as an HTML page.")
@details_option
@json_option
@no_colour_option
def predict(
    recording: Path,
    path_name: str | None,
    tls: str | None,
    blocks: int,
    slopes: tuple[str, ...],
    measured: tuple[Path, ...],
    again: Path | None,
    html: Path | None,
    as_json: bool,
    no_colour: bool,
    **link_values: Any,
) -> int:
    """Predict how long the pages of RECORDING take on another path, and rank the changes that would save most there.

    \b
    howfar predict shop.recording --path remote --rtt 0.5ms --rate 1gbit --tls 1.3
    howfar predict shop.recording --link us-coasts --slope front=front.json \\
                   --html shop.html

    Several RTTs, as in --rtt 0.5ms,5ms,20ms: the first is measured, the others differ from it by their RTT.

    Round trips of each size are measured on this machine, on the present path and on the target. The present path is predicted
    first: a page whose recorded time this misses by more than 5 % is not predicted on the target. Only --again shows whether the
    application has changed. If no page is left, the exit code is 7.
    """
    from howfar.recording.changes import find_changes
    from howfar.recording.page_costs import cost_pages
    from howfar.recording.path_session import open_path_pair, usable_pages
    from howfar.recording.predict import analyze
    from howfar.recording.prediction_report import as_json as prediction_facts
    from howfar.recording.prediction_report import document
    from howfar.recording.recording import read
    from howfar.report import html as page
    from howfar.report import terminal
    from howfar.report.text import answer_values

    recorded = usable_pages(read(recording))
    link_values["rtt"], rtts_ns = _parse_rtts(link_values["rtt"])
    target = read_target(path_name, tls, read_link(**link_values))
    slope_by_page = _read_slopes(slopes, sorted({page.name for page in recorded.pages}))
    measurements = [_read_measurement(path) for path in measured]
    later_recording = read(again) if again else None
    if html is not None:
        check_page_path(html)
    enter_sandbox(target.path)
    with reporting_damage(recording, recorded.is_verified):
        with open_path_pair(recorded, target, note) as paths:
            costs = paths.costs(blocks, note)
        prediction = analyze(
            recorded, *costs, slope_by_page, paths.recorder.floor_ns, later_recording, rtts_ns, paths.busy_programs
        )
        costed = cost_pages(recorded, *costs)
        changes = find_changes(costed)
        report = document(prediction, changes, costed, measurements)
        if html is not None:
            write(html, page.render(report), rewrite_hint="")
        if as_json:
            click.echo(json.dumps({**answer_values(report), **prediction_facts(prediction, changes)}, indent=2))
        else:
            text = terminal.render(report, width(), has_colour(sys.stdout, no_colour), details=wants_details())
            show_rendered(text + "\n")
    return 0 if len(prediction.missed) < len(prediction.pages) else VOID


def _parse_rtts(text: str | None) -> tuple[str | None, tuple[int, ...]]:
    """The RTT to measure, and all RTTs in nanoseconds if there are several. Raises QuantityError."""
    rtts = (text or "").split(",")
    return (rtts[0], tuple(map(parse_duration_ns, rtts))) if len(rtts) > 1 else (text, ())


def _read_slopes(values: tuple[str, ...], pages: list[str]) -> dict[str, Slope]:
    """Read slopes from files; returns them by the name of the page. Raises UsageError."""
    from pydantic import ValidationError

    from howfar.recording.slope import Slope

    slope_by_page: dict[str, Slope] = {}
    for value in values:
        name, equals, file = value.partition("=")
        if not equals or name not in pages:
            name, file = "", value
        if not name and len(pages) != 1:
            raise UsageError(
                f"--slope {value}: which page is it for? The recording has {', '.join(pages[:8])}",
                f"Write --slope {pages[0] if pages else 'PAGE'}={value}.",
            )
        try:
            facts = json.loads(read_text(Path(file), "--slope", _MAX_BYTES))
            of_slope = {key: fact for key, fact in dict(facts).items() if key not in ("question", "answer")}
            slope_by_page[name or pages[0]] = Slope.model_validate_json(json.dumps(of_slope))
        except (ValidationError, ValueError, TypeError) as error:
            raise UsageError(
                f"--slope {file} is not output of `howfar slope --json`", "Run `howfar slope --json` again."
            ) from error
    return slope_by_page


def _read_measurement(path: Path) -> Measurement:
    """Read the measurement in a file. Raises UsageError."""
    from howfar.recording.prediction_report import Measurement

    try:
        facts = json.loads(read_text(path, "--measured", _MAX_BYTES))
        pages = [{key: page[key] for key in ("name", "p50_ms", "p95_ms")} for page in facts["pages"]]
        return Measurement.model_validate({"target": facts["target"], "rtt_ns": facts["rtt_ns"], "pages": pages})
    except (ValueError, KeyError, TypeError) as error:
        raise UsageError(
            f"--measured {path} is not output of `howfar replay --json`", "Run `howfar replay --json` again."
        ) from error
