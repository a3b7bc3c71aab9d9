"""What a sceptic asks first of plans that vary links, connections and sessions, answered from the run's own figures."""

from __future__ import annotations

from howfar.analysis.findings import Resource
from howfar.analysis.summary import CellSummary, Summary
from howfar.report import figures
from howfar.report.limit_words import WEAK
from howfar.report.tables import share
from howfar.store.records import ArmRole

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


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"


def _names(cells: list[CellSummary]) -> str:
    shown = "; ".join(cell.arm for cell in cells[:FEW])
    return f"{shown}; and {len(cells) - FEW} more" if len(cells) > FEW else shown


def _client(summary: Summary) -> str:
    known = [cell for cell in figures.shown_cells(summary) if cell.limit]
    if not known:
        return "This run does not say: it has no counters of its measured windows."
    limited = _limited(summary, Resource.CLIENT_CPU)
    if not limited:
        return f"In none of {_count(len(known), 'cell')}. Its CPU is a part of its own in every bar of the cycles."
    where = f"In {len(limited)} of {_count(len(known), 'cell')} ({_names(limited)})"
    return f"{where}: these figures are about the load generator, not about the path."


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
    took = f"It took up to {figures.share(most)} of the CPU that a query used ({where.arm})."
    limited = _limited(summary, Resource.INSTRUMENT_CPU)
    if limited:
        named = f"In {_count(len(limited), 'cell')} it is the limit ({_names(limited)}): a larger machine would give more there."
    else:
        named = "In no cell is it named as the limit; where a full CPU is partly its own, the evidence of the limit says how much."
    return f"{took} It shares this machine's CPUs with the rest. {named}"


def _confirmed(summary: Summary) -> str:
    tested = summary.confirmations
    weak = [cell for cell in figures.shown_cells(summary) if cell.limit and cell.limit.confidence == WEAK]
    doubtful = f" In {_count(len(weak), 'cell')} the confidence is low, and the letter lower case." if weak else ""
    rules = f"Each is named by fixed rules from counters of the measured window, with its evidence beside it.{doubtful}"
    if not tested:
        return f"{rules} None was put to the test in this run; `howfar run --confirm` changes what tells and looks."
    held = [found for found in tested if found.confirmed]
    changed = [found for found in held if not found.rules_out]
    ruled_out = "; ".join(f"in {found.arm} {found.rules_out} was ruled out" for found in held if found.rules_out)
    return (
        f"{rules} Put to the test: {len(tested)}; throughput moved as said in {len(held)} of them. The named resource itself was "
        f"changed in {len(changed)} of these{', and ' + ruled_out if ruled_out else ''}."
    )


def _model(summary: Summary) -> str:
    curves = summary.scaling.curves if summary.scaling else ()
    foreseen = [curve.foreign for curve in curves if curve.foreign]
    own = [curve for curve in curves if curve.own and not curve.foreign]
    parts = []
    if foreseen:
        bases = "; ".join(dict.fromkeys(found.basis for found in foreseen))
        errors = [found.mean_error for found in foreseen if found.mean_error is not None]
        worst = [found.worst_error for found in foreseen if found.worst_error is not None]
        parts.append(
            f"Not where it says foreseen ({_count(len(foreseen), 'curve')}): no throughput of such a curve went in; it is computed "
            f"{bases}."
        )
        if errors and worst:
            mean = share(sum(errors) / len(errors))
            parts.append(
                f"Against what was then measured it is off by {mean} on average, by {share(max(worst))} at worst."
            )
    if own:
        parts.append(
            f"{_count(len(own), 'curve')} fitted on {'their' if len(own) > 1 else 'its'} own ends: there the low end proves nothing, "
            "and only the other points test the shape."
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
        f"Not quite. Theirs: {'; '.join(sources)}. Ours: {summary.workload}, on {server}.{quick} Only where the curves bend is "
        "compared, each over its own largest."
    )


def _trials(summary: Summary) -> str:
    counts = [cell.trials for cell in summary.cells if cell.role in (ArmRole.BASELINE, ArmRole.CONTENDER)]
    if not counts:
        return ""
    unmeasured = len(summary.unmeasured)
    gone = f" Without a good trial, and gaps in the table: {_count(unmeasured, 'cell')}." if unmeasured else ""
    if min(counts) == max(counts):
        return f"Yes, {counts[0]} times.{gone}"
    return (
        f"No: {min(counts)} to {max(counts)} times. Cells deep on a plateau may rest once their neighbours agree with them, void "
        f"trials count for nothing, and the last block may be cut.{gone}"
    )
