"""`howfar confirm`: test the limits that a run named, in the same run file."""

from __future__ import annotations

import time
from pathlib import Path

import click

from howfar.cli.hop_binary import hop_binary_option
from howfar.cli.output import details_option
from howfar.cli.resume import go_on
from howfar.cli.screen import html_option, no_colour_option
from howfar.runner.stopping import Extension


@click.command()
@click.argument("run", type=click.Path(path_type=Path))
@hop_binary_option
@html_option
@details_option
@no_colour_option
def confirm(run: Path, html: Path | None, no_colour: bool) -> int:
    """Change the resources that RUN named as limits, and see whether throughput moves as predicted.

    Up to three limits, three blocks each: the unchanged and the changed arm, in random order in one laboratory. Earlier trials stay
    as they are. An interrupted run is finished first. Once for each run; `howfar run --confirm` does both.
    """
    return go_on(run, Extension(), True, html, no_colour, time.monotonic_ns())
