"""`howfar replay`: repeat recorded pages on another path."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import click

from howfar.cli.links import read_link
from howfar.cli.output import reporting_damage
from howfar.cli.screen import json_option, no_colour_option, note, read_text, show_result
from howfar.cli.target_options import enter_sandbox, read_target, target_options
from howfar.errors import EngineError, UsageError
from howfar.services import SqlProtocol

if TYPE_CHECKING:
    from howfar.contract.messages import Repeated, RepeatJob, Replayed
    from howfar.recording.costs import PathCosts
    from howfar.recording.page_costs import CostedPage
    from howfar.recording.path_session import PathPair
    from howfar.recording.recording import Recording
    from howfar.recording.repeat import Repetition

_MAX_BYTES = 16 << 20
"""Maximum size in bytes of a file of statements."""


@click.command()
@target_options
@click.option(
    "--pages",
    type=click.IntRange(1, 1000),
    default=20,
    show_default=True,
    help="Number of pages of each name to replay, from the first.",
)
@click.option(
    "--statements",
    type=click.Path(path_type=Path),
    help="Run the statements in this file on a real server. Each must be complete, with a semicolon at the end of its last line.",
)
@click.option(
    "--dsn",
    help="With --statements, the server, in the form that `howfar load` takes.  [default: that of `howfar lab`]",
)
@click.option("--writes", is_flag=True, help="With --statements, also run those that change data.")
@json_option
@no_colour_option
def replay(
    recording: Path,
    path_name: str | None,
    tls: str | None,
    blocks: int,
    pages: int,
    statements: Path | None,
    dsn: str | None,
    writes: bool,
    as_json: bool,
    no_colour: bool,
    **link_values: Any,
) -> int:
    """Repeat the round trips of RECORDING on a path, with the recorded gaps and server times.

    \b
    howfar replay shop.recording --path remote --rtt 5ms

    No server or data is needed: a stand-in answers with the recorded sizes after the recorded times. The report shows predicted and
    replayed times side by side, and says whether either end fell behind.

    \b
    howfar replay shop.recording --statements shop.sql --dsn mysql://shop@db1/shop

    With --statements, the pages run on a real server, over the existing path to it. Because the recording has no literals, the file
    must contain complete statements, at least one for each that the pages run.
    """
    from howfar.recording.page_costs import cost_pages
    from howfar.recording.path_measurement import run_in_blocks
    from howfar.recording.path_session import open_path_pair, usable_pages
    from howfar.recording.predict import analyze
    from howfar.recording.recording import read
    from howfar.recording.repeat import document as document_of_server
    from howfar.recording.replay import analyze as analyze_replay
    from howfar.recording.replay import document

    recorded = usable_pages(read(recording))
    target = read_target(path_name, tls, read_link(**link_values))
    if statements is not None and (path_name or tls or target.path.crosses_link):
        raise UsageError(
            "--statements replays over the existing path to the server, and takes no path, link or --tls",
            "Omit them, or omit --statements to replay without a real server on a path of the laboratory.",
        )
    if statements is None and (dsn or writes):
        raise UsageError("--dsn and --writes need --statements", "Name the file of statements to run.")
    recorded = _first_pages(recorded, pages)
    if statements is not None:
        repeated = _repeat_on_server(recorded, read_text(statements, "--statements", _MAX_BYTES), dsn, writes, blocks)
        show_result(repeated, document_of_server(repeated), as_json, no_colour)
        return 0
    enter_sandbox(target.path)
    with reporting_damage(recording, recorded.is_verified):
        with open_path_pair(recorded, target, note) as paths:
            costs = paths.costs(blocks, note)
            costed = cost_pages(recorded, *costs)
            replayed = run_in_blocks(blocks, lambda: _replay_block(paths, costed, costs[0]), "replay", note)
            rtt_ns = paths.target.rtt_ns
        result = analyze_replay(
            costed, replayed.blocks, analyze(recorded, *costs, None, paths.recorder.floor_ns), rtt_ns
        )
        show_result(result, document(result), as_json, no_colour)
    return 0


def _first_pages(recording: Recording, pages: int) -> Recording:
    """The recording with the first `pages` pages of each name whose round trips are known. Raises UsageError."""
    counts: Counter[str] = Counter()
    chosen = []
    for page in recording.pages:
        if page.contested or not any(trip.is_answered for trip in page.round_trips):
            continue
        counts[page.name] += 1
        if counts[page.name] <= pages:
            chosen.append(page)
    if not chosen:
        raise UsageError(
            "no page of this recording has round trips that are surely its own",
            "Mark pages while recording, with `howfar mark`, and record one page at a time.",
        )
    return replace(recording, pages=tuple(chosen))


def _repeat_on_server(recording: Recording, text: str, dsn: str | None, writes: bool, blocks: int) -> Repetition:
    """Repeat pages on a real server. Raises UsageError, EngineError."""
    from howfar.address import looks_like_target
    from howfar.cli.load import find_login
    from howfar.cli.target import laboratory_address
    from howfar.contract.messages import Digests, DigestsJob
    from howfar.engine.process import Launcher, run_probe
    from howfar.load.cmdline import Options
    from howfar.load.job import repeat_job
    from howfar.recording.repeat import analyze, make_script, split_statements

    protocol = recording.facts.protocol
    if protocol not in get_args(SqlProtocol):
        raise UsageError(
            f"the protocol of the recording is {protocol}, but statements can be run only on MySQL and PostgreSQL",
            "Omit --statements to replay without a real server.",
        )
    if dsn is not None and not looks_like_target(dsn):
        raise UsageError("--dsn is not a DSN", "Write mysql://USER@HOST/DATABASE or postgresql://USER@HOST/DATABASE.")
    if dsn is None and laboratory_address() is None:
        raise UsageError("no server was named", "Name one with --dsn, or run this inside `howfar lab`.")
    options = Options(dsn, None, "run", {}, ())
    login = find_login(options, note)
    if (login.address.protocol or "mysql") != protocol:
        raise UsageError(
            f"the protocol of the recording is {protocol}, but that of the server is {login.address.protocol or 'mysql'}",
            "Name another --dsn.",
        )
    statements = split_statements(text)
    digests = run_probe(DigestsJob(protocol=protocol, statements=statements), Launcher())
    assert isinstance(digests, Digests), "a DigestsJob answers with Digests"
    page_script = make_script(recording, statements, digests.texts, writes)
    job = repeat_job(login, options, page_script.statements, not writes, page_script.pages)
    results = []
    note("replay, once without counting, because the server has seen none of it yet")
    _run_pages(job, page_script.recording)
    for number in range(blocks):
        note(f"replay, block {number + 1} of {blocks}")
        results.append(_run_pages(job, page_script.recording))
    return analyze(page_script, results, login.address.location, read_only=not writes)


def _run_pages(job: RepeatJob, recording: Recording) -> list[Repeated]:
    """Run all pages once. Raises EngineError, with the page's name if a statement was refused."""
    from howfar.contract.messages import Repeated
    from howfar.engine.process import EngineFailed, EngineProcess, Launcher

    repeated: list[Repeated] = []
    with EngineProcess(job, Launcher()) as engine:
        for page in recording.pages:
            try:
                event = engine.read()
            except EngineFailed as failed:
                if failed.code == "server_error":
                    advice = "Correct the statement in the file, or name the server and database that have its tables."
                    read_only = " Without --writes, the session is read-only." if job.read_only else ""
                    raise EngineError(f"{page.name}: {failed.message}", advice + read_only) from failed
                raise
            if isinstance(event, Repeated):
                repeated.append(event)
    return repeated


def _replay_block(
    paths: PathPair, costed: dict[str, list[CostedPage]], present_costs: PathCosts
) -> dict[str, Sequence[Replayed]]:
    from howfar.recording.path_measurement import run_until_valid
    from howfar.recording.replay import make_script

    scripts = {name: [make_script(page, present_costs) for page in pages] for name, pages in costed.items()}
    replayed = run_until_valid(
        paths.target, lambda path: path.replay([page for pages in scripts.values() for page in pages])
    )
    by_page: dict[str, Sequence[Replayed]] = {}
    for name, pages in scripts.items():
        by_page[name], replayed = replayed[: len(pages)], replayed[len(pages) :]
    return by_page
