"""What a sceptic asks first of plans that vary links, connections and sessions, answered from the run's own figures."""

from __future__ import annotations

from howfar.analysis.findings import Resource
from howfar.analysis.summary import CellSummary, Summary
from howfar.report import figures
from howfar.report.limit_words import WEAK
from howfar.report.tables import share
from howfar.results.records import ArmRole

FEW = 4
"""Names that are read at a glance."""


def grid_questions(summary: Summary) -> list[tuple[str, str]]:
    """(question, answer), before those that are asked of every run."""
    found = [
        ("Is the load generator the limit?", _client(summary)),
        ("Is the emulator of the link the limit?", _emulator(summary)),
        ("Are the limits more than a guess?", _confirmed(summary)),
        ("Is the model fitted to what it predicts?", _model(summary)),
        ("Is it the published workload?", _published(summary)),
        ("Was every cell measured as often?", _trials(summary)),
    ]
    return [(question, answer) for question, answer in found if answer]


def _limited(summary: Summary, *resources: Resource) -> list[CellSummary]:
    return [cell for cell in figures.shown_cells(summary) if cell.limit and cell.limit.resource in resources]


def _names(cells: list[CellSummary]) -> str:
    shown = "; ".join(cell.arm for cell in cells[:FEW])
    return f"{shown}; and {len(cells) - FEW} more" if len(cells) > FEW else shown


def _client(summary: Summary) -> str:
    known = [cell for cell in figures.shown_cells(summary) if cell.limit]
    if not known:
        return "This run does not say: it has no counters of its measured windows."
    limited = _limited(summary, Resource.CLIENT_CPU)
    if limited:
        return f"In {len(limited)} of {len(known)} cells ({_names(limited)}): these figures are about the load generator, not about the path."
    return f"In none of {len(known)} cells. Its CPU is a part of its own in every bar of the cycles."


def _emulator(summary: Summary) -> str:
    """From the emulator's CPU a query beside everyone's, in the cell where its share is largest."""
    shares = [
        (cpu.link.value / (cpu.client.value + cpu.server.value + cpu.link.value), cell)
        for cell in figures.shown_cells(summary)
        if (cpu := cell.cpu_us_per_query).link and cpu.client.value + cpu.server.value > 0
    ]
    if not shares:
        return "No cell passes an emulated link." if figures.shown_cells(summary) else ""
    most, where = max(shares, key=lambda pair: pair[0])
    limited = _limited(summary, Resource.INSTRUMENT_CPU)
    said = f"It took up to {figures.share(most)} of the CPU that a query used ({where.arm}), and shares this machine's CPUs with the rest. "
    if limited:
        return (
            said
            + f"In {len(limited)} cells it is the limit ({_names(limited)}): a larger machine would give more there."
        )
    return (
        said
        + "In no cell is it named as the limit; where it is a large part of a full CPU, the limit's evidence says how large."
    )


def _confirmed(summary: Summary) -> str:
    tested = summary.confirmations
    weak = [cell for cell in figures.shown_cells(summary) if cell.limit and cell.limit.confidence == WEAK]
    doubtful = f" In {len(weak)} cells the confidence is low, and the letter lower case." if weak else ""
    rules = "Each is named by fixed rules from counters of the measured window, with its evidence beside it." + doubtful
    if not tested:
        return (
            rules
            + " None was put to the test in this run; `howfar run --confirm` changes the named resource and looks."
        )
    held = sum(found.confirmed for found in tested)
    return rules + f" {len(tested)} were put to the test by changing the resource: throughput moved as said in {held}."


def _model(summary: Summary) -> str:
    curves = summary.scaling.curves if summary.scaling else ()
    foreseen = [(curve, curve.foreign) for curve in curves if curve.foreign]
    own = [curve for curve in curves if curve.own and not curve.foreign]
    parts = []
    if foreseen:
        bases = "; ".join(dict.fromkeys(found.basis for _, found in foreseen))
        errors = [found.mean_error for _, found in foreseen if found.mean_error is not None]
        worst = [found.worst_error for _, found in foreseen if found.worst_error is not None]
        measured = (
            f" Against what was then measured it is off by {share(sum(errors) / len(errors))} on average"
            if errors
            else ""
        )
        measured += f", by {share(max(worst))} at worst." if errors and worst else "." if errors else ""
        parts.append(
            f"Not where it says foreseen ({len(foreseen)} curves): no throughput of these curves went in, only {bases}.{measured}"
        )
    if own:
        parts.append(
            f"{len(own)} curve{'s are' if len(own) > 1 else ' is'} fitted on {'their' if len(own) > 1 else 'its'} own ends: there the "
            "ends say nothing, and only the points between test its shape."
        )
    return " ".join(parts)


def _published(summary: Summary) -> str:
    sources = figures.published_sources(summary)
    if not sources:
        return ""
    server = f"{summary.server['kind']} {summary.server['version']}"
    quick = (
        " The short form asks for larger answers than they did, so that a small machine fills a link."
        if summary.quick
        else ""
    )
    return (
        f"Not quite. Theirs: {'; '.join(sources)}. Ours: {summary.workload}, on {server}.{quick} Only where the curves bend is compared, each "
        "over its own largest."
    )


def _trials(summary: Summary) -> str:
    counts = [cell.trials for cell in summary.cells if cell.role in (ArmRole.BASELINE, ArmRole.CONTENDER)]
    if not counts:
        return ""
    gone = (
        f" {len(summary.unmeasured)} cells have no good trial: they are gaps in the table."
        if summary.unmeasured
        else ""
    )
    if min(counts) == max(counts):
        return f"Yes, {counts[0]} times.{gone}"
    return (
        f"No: {min(counts)} to {max(counts)} times. Cells deep on a plateau may rest once their neighbours agree with them, void trials "
        f"count for nothing, and the last block may be cut.{gone}"
    )
