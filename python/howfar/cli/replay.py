"""`howfar replay`: repeat recorded pages on another path."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from howfar.cli.screen import has_colour, json_option, no_colour_option, note, width
from howfar.cli.target_options import enter_sandbox, read_target, target_options

if TYPE_CHECKING:
    from howfar.engine.messages import Replayed
    from howfar.recording.on_path import BothPaths
    from howfar.recording.predict import LaidPage


@click.command()
@target_options
@click.option(
    "--pages",
    type=click.IntRange(1, 1000),
    default=20,
    show_default=True,
    help="How many pages of each name, from the first.",
)
@json_option
@no_colour_option
def replay(
    recording: Path,
    path_name: str | None,
    tls: str | None,
    blocks: int,
    pages: int,
    as_json: bool,
    no_colour: bool,
    **link_values: Any,
) -> int:
    """Repeat the round trips of RECORDING on a path, with the recorded gaps and server times.

    \b
    howfar replay shop.recording --path remote --rtt 5ms

    The server does no work: it answers with the recorded sizes after the recorded times, so no data or statements are needed. The
    report shows predicted and replayed times side by side, and says whether the tool or the server fell behind.
    """
    from dataclasses import replace

    from howfar.recording.on_path import both_paths, whole_pages
    from howfar.recording.predict import analyze, lay_out
    from howfar.recording.recording import read
    from howfar.recording.replay import analyze as analyze_replay
    from howfar.recording.replay import document
    from howfar.report import terminal

    recorded = whole_pages(read(recording))
    target = read_target(path_name, tls, link_values)
    enter_sandbox(target.path)
    kept: dict[str, int] = {}
    chosen = []
    for page in recorded.pages:
        kept[page.name] = kept.get(page.name, 0) + 1
        if kept[page.name] <= pages:
            chosen.append(page)
    recorded = replace(recorded, pages=tuple(chosen))
    with both_paths(recorded, target) as both:
        costs = both.costs(blocks, note)
        laid = lay_out(recorded, *costs)
        replayed = [_block(both, laid, costs[0].connect_ns.mean(), number, blocks) for number in range(blocks)]
        rtt_ns = both.target.rtt_ns
    found = analyze_replay(laid, replayed, analyze(recorded, *costs, None, both.recorder.floor_ns), rtt_ns)
    if as_json:
        click.echo(found.model_dump_json(indent=2))
    else:
        click.echo(terminal.render(document(found), width(), colour=has_colour(sys.stdout, no_colour)))
    return 0


def _block(
    both: BothPaths, laid: dict[str, list[LaidPage]], opened_ns: float, number: int, blocks: int
) -> dict[str, Sequence[Replayed]]:
    from howfar.recording.replay import script
    from howfar.recording.stage import valid

    note(f"replay, block {number + 1} of {blocks}")
    scripts = {name: [script(page, opened_ns) for page in pages] for name, pages in laid.items()}
    done = valid(both.target, lambda path: path.replay([page for pages in scripts.values() for page in pages]))
    found: dict[str, Sequence[Replayed]] = {}
    for name, pages in scripts.items():
        found[name], done = done[: len(pages)], done[len(pages) :]
    return found
