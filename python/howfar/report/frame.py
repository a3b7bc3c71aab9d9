"""The parts that all documents have in common: the order of the blocks, the set-up, warnings and advice, the method, the network
between hosts, receipts. An experiment passes its own blocks to `frame`; `sections.py` has some of them. Start there."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from howfar.analysis.advice import capital
from howfar.analysis.controls import Control
from howfar.analysis.hosts import HostNote, HostsSeen
from howfar.analysis.idle import IdleLevel
from howfar.analysis.signs import MEANING, Warning
from howfar.analysis.summary import Summary
from howfar.model.resource import Resource
from howfar.paths import is_local, is_movable
from howfar.report import charts, figures, limit_text, palette
from howfar.report.document import (
    Advice,
    Answer,
    Block,
    Bullets,
    Card,
    Chart,
    Code,
    Details,
    Document,
    Facts,
    Fields,
    Heading,
    Text,
    Warnings,
    table_of,
)
from howfar.report.drawing import alt
from howfar.report.figures import (
    baseline_name,
    on_hosts,
    only_broke,
    session_line,
    shown_cells,
    unmeasured_lines,
)
from howfar.report.sections import Record, cell_records
from howfar.stats.intervals import excludes_one, interval_text
from howfar.stats.trials import ONE
from howfar.store.records import FactorValue
from howfar.units import counted, format_duration_ns, format_rate_bps

PLACEMENT = {
    "isolated": "client and server on different CPUs, which emulators and other programs may use too (placement isolated)",
    "machines": "each host with an equal share of the CPUs (placement machines)",
}


def setup_line(summary: Summary) -> str:
    """The set-up: `2 connections; client and server on different CPUs, which ... (placement isolated); link 1gbit, RTT 0.2ms (measured
    ...)`.

    Empty for a run without figures.
    """
    if not shown_cells(summary):
        return ""
    return "; ".join(
        part
        for part in (_connections(summary), _placement(summary), idle_text(summary), _link(summary), _replica(summary))
        if part
    )


def head_line(summary: Summary) -> str:
    """Workload, set-up, and the session, without the last full stop."""
    return ". ".join(part for part in (summary.workload, capital(setup_line(summary)), session_line(summary)) if part)


def _levels(summary: Summary, factor: str) -> list[FactorValue]:
    """Distinct levels of a factor: numbers ascending, words in the order of the arms."""
    found = list(dict.fromkeys(cell.factors[factor] for cell in shown_cells(summary) if factor in cell.factors))
    return sorted(found, key=float) if all(isinstance(level, int | float) for level in found) else found


def _several(texts: list[str], last: str = "or") -> str:
    """`a`, `a or b`, `a, b or c`."""
    return f" {last} ".join(part for part in (", ".join(texts[:-1]), texts[-1]) if part)


def _connections(summary: Summary) -> str:
    levels = [str(level) for level in _levels(summary, "threads")]
    if not levels:
        return ""
    plural = "" if levels == ["1"] else "s"
    return f"{_several(levels)} {f'page{plural} in flight' if summary.asked == 'pages' else f'connection{plural}'}"


def _placement(summary: Summary) -> str:
    levels = [str(level) for level in _levels(summary, "placement")]
    if len(levels) > 1:
        return f"placement {_several(levels)}"
    if levels and on_hosts(summary):
        if summary.hosts is not None and summary.hosts.swapped is not None:
            return f"{_exchange(summary.hosts)} (placement {levels[0]})"
        place = summary.environment["place"]
        clients = [str(name) for name in (place["client"], *place.get("others", ()))]
        plural = "s" if len(clients) > 1 else ""
        server = f"server on host {place['server']}"
        if any(map(is_local, _levels(summary, "path"))):
            server = f"or with the {server} on local paths"
        return f"client{plural} on host{plural} {_several(clients, 'and')}, {server}{_hop(summary, place)} (placement {levels[0]})"
    return PLACEMENT.get(levels[0], f"placement {levels[0]}") if levels else ""


def _hop(summary: Summary, place: Mapping[str, Any]) -> str:
    """The program that has its own host. Empty: none has."""
    if place.get("hop") is None:
        return ""
    moved = [str(name) for name in _levels(summary, "path") if is_movable(name)]
    return f", the program of {' and '.join(moved)} on host {place['hop']}"


def _exchange(hosts: HostsSeen) -> str:
    assert hosts.swapped is not None, "the caller looked"
    first, second = hosts.swapped
    text = f"client and server on hosts {first} and {second}, which swapped roles from block to block"
    if hosts.machines is None:
        return text
    what = "a difference between the hosts, not between paths" if excludes_one(hosts.machines) else "not resolved"
    return (
        f"{text}: with {first} as the server, the baseline did {interval_text(hosts.machines)} times as many operations per second "
        f"as with {second}, which is {what}"
    )


def _between(summary: Summary) -> str:
    """Hosts and their link: `Between hosts a and b: RTT 212 µs, goodput 9.41 Gb/s`. Empty: the run was in the laboratory."""
    if not on_hosts(summary):
        return ""
    found = []
    for link in summary.environment.get("distances") or ():
        rtt_us, slower = link["rtt_ns"]["p50"] / 1e3, min(link["goodput_bps"].values()) / 1e9
        rtt = f"{rtt_us:,.{0 if rtt_us >= 100 else 1}f} µs"
        found.append(f"hosts {link['from']} and {link['to']}: RTT {rtt}, goodput {slower:.3g} Gb/s")
    swapped = summary.hosts is not None and summary.hosts.swapped is not None
    return f"Between {'; '.join(found)}{' (roles swapped from block to block)' if swapped else ''}" if found else ""


def host_lines(hosts: HostsSeen) -> list[str]:
    """A sentence for each host that limited its load."""
    return [_HELD_BACK[note.what](note) for note in hosts.notes]


_HELD_BACK: Mapping[str, Callable[[HostNote], str]] = {
    "late": lambda note: (
        f"host {note.host} began late in {note.trials} of {note.of} trials, by at most {format_duration_ns(note.most)}: "
        "the host or the network to it was busy, and its warm-up was shorter by that time"
    ),
    "clipped": lambda note: (
        f"host {note.host} sent requests later than they were due in {note.trials} of {note.of} trials (99th percentile up to "
        f"{format_duration_ns(note.most)}): it could not sustain its rate"
    ),
    "limited": lambda note: (
        f"host {note.host} used {note.most:.0%} of a CPU for one thread of the client in {note.trials} of {note.of} trials: "
        "the client was the limit there; add CPUs, or hosts with --clients"
    ),
}


def idle_text(summary: Summary) -> str:
    """Idle states: `idle CPUs as found (haltpoll, 4,100 sleeps/s)`. Empty: an older run file."""
    if summary.idle is None:
        return ""
    return f"idle CPUs {' and '.join(_idle_level(level, summary.idle.driver) for level in summary.idle.levels)}"


def _idle_level(found: IdleLevel, driver: str | None) -> str:
    if found.level == "polling":
        return "polling"
    halts = "" if found.halts_per_s is None else f", {found.halts_per_s:,.0f} sleeps/s"
    return f"as found ({driver or 'the kernel has no idle driver'}{halts})"


def _link(summary: Summary) -> str:
    rates = [format_rate_bps(float(level)) for level in _levels(summary, "rate_bps")]
    rtts = [format_duration_ns(float(level)) for level in _levels(summary, "rtt_ns")]
    if not rates and not rtts:
        return "" if _replica(summary) else "no path over a link"
    parts = [_several(rates)] if rates else []
    if rtts:
        parts.append(f"RTT {_several(rtts)}{_measured(summary) if len(rtts) == 1 else ''}")
    return f"link {', '.join(parts)}"


def _replica(summary: Summary) -> str:
    """The links between servers, which are not part of the clients' path."""
    rtts = [format_duration_ns(float(level)) for level in _levels(summary, "replica_rtt_ns")]
    rtts += [str(level).replace("-", " ") for level in _levels(summary, "distances")]
    rates = [format_rate_bps(float(level)) for level in _levels(summary, "replica_rate_bps")]
    if not rtts:
        return ""
    return f"replicas over RTT {_several(rtts)}{f', {_several(rates)}' if rates else ''}"


def _measured(summary: Summary) -> str:
    """Figures of links with the same settings, from the nearest to the farthest."""
    found = sorted(cell.rest_rtt_ns for cell in shown_cells(summary) if cell.rest_rtt_ns is not None)
    if not found:
        return " (not measured)"
    texts = list(dict.fromkeys(format_duration_ns(rtt) for rtt in (found[0], found[-1])))
    return f" (measured {' to '.join(texts)} at rest)"


MANY = 5
"""Number of names beyond which they are counted."""


def warning_lines(summary: Summary) -> list[str]:
    """Warnings of the session, then arms without figures, then warnings of arms (arms with the same one together)."""
    found = [f"{warning.value}{_amount(warning, summary)}: {MEANING[warning]}." for warning in summary.warnings]
    found += [f"{line}." for line in host_lines(summary.hosts)] if summary.hosts is not None else []
    arms: dict[str, list[str]] = {}
    for cell in summary.cells:
        for warning in cell.warnings:
            if warning is Warning.WIDE_INTERVAL and only_broke(summary):
                continue  # rates are not of interest there
            arms.setdefault(f"{warning.value}: {MEANING[warning]}.", []).append(cell.arm)
    found += unmeasured_lines(summary)
    return found + [f"{_whose(names, len(summary.cells))}: {text}" for text, names in arms.items()]


def _amount(warning: Warning, summary: Summary) -> str:
    return f" (±{figures.share(summary.cpu_scatter)})" if warning is Warning.UNEVEN_CPUS and summary.cpu_scatter else ""


def _whose(names: list[str], cells: int) -> str:
    """Names of arms if they can be read at a glance, else their number."""
    if len(names) <= MANY:
        return ("; " if any(", " in name for name in names) else ", ").join(names)
    if len(names) == cells:
        return "every cell"
    return f"{len(names)} of {cells} cells"


MOST_ADVICE = 3
"""Maximum number of pieces of advice on the first screen."""

MOST_WARNINGS = 3
"""Maximum number of warnings on the first screen."""

COUNTERS = "counters"
"""Counters of a receipt, not shown: they differ in every cell and prove nothing more than its other parts. The JSON has them."""


def frame(
    summary: Summary,
    first: Sequence[Block],
    *,
    cards: tuple[Card, ...] = (),
    below: Sequence[Block] = (),
    records: Sequence[Record] | None = None,
) -> Document:
    """The document: the answer, `first` (the main table), warnings and advice form the first screen; `below` are charts and details of
    the experiment; method and receipts end every report. `records`: by default those of the cells."""
    shown, rest = _advice(summary)
    warnings = tuple(warning_lines(summary))
    blocks: list[Block] = [
        Answer(summary.verdict, cards),
        *first,
        Text(_below_the_table(summary), quiet=True),
        Warnings(warnings[:MOST_WARNINGS]),
        *shown,
        *([Details("More warnings", (Warnings(warnings[MOST_WARNINGS:]),))] if warnings[MOST_WARNINGS:] else []),
        *below,
        *rest,
        *_distances(summary),
        method(summary),
        *receipts(summary),
        Details(
            "Repeat this run",
            (
                Code((summary.command,)),
                Text(
                    f"howfar {summary.howfar}, run {summary.run}, begun {summary.created}. All figures are computed from the run "
                    "file; `howfar report` computes them again."
                ),
            ),
        ),
    ]
    title = f"howfar: {summary.plan}{' (quick)' if summary.quick else ''}"
    return Document(
        title,
        tuple(block for block in blocks if not isinstance(block, Warnings) or block.lines),
        tuple(cell_records(summary) if records is None else records),
    )


def _below_the_table(summary: Summary) -> str:
    found = (figures.session_line(summary), _between(summary), capital(idle_text(summary)), controls_text(summary))
    return f"{'. '.join(each for each in found if each)}."


def controls_text(summary: Summary) -> str:
    """Results of controls: `Controls: remote against itself 1.01 [0.97, 1.05]; an RTT longer by 10 µs measured as 11 [4, 18] µs`.
    Empty: none."""
    found = []
    for control in summary.controls:
        if control.is_same:
            figure = "" if control.unit == "ratio" else " in p99"
            found.append(f"{control.reference} against itself {interval_text(control.found)}{figure}{_missed(control)}")
        else:
            low, high = (
                None if edge is None else _microseconds(edge) for edge in (control.found.low, control.found.high)
            )
            limits = "(no interval)" if low is None or high is None else f"[{low}, {high}]"
            value = f"{_microseconds(control.found.value)} {limits} µs"
            apart = f", in a pair of arms of its own ({control.apart})," if control.apart else ""
            found.append(f"an RTT increase of {control.put_in:,g} µs{apart} measured as {value}{_missed(control)}")
    return f"Controls: {'; '.join(found)}" if found else ""


def _microseconds(us: float) -> str:
    return f"{round(us, 1) + 0.0:,.1f}"  # no -0.0


def _missed(control: Control) -> str:
    if control.recovered is False:
        return ", which is wrong"
    if control.shows_nothing:
        return ", too noisy to tell"
    return ", as expected" if control.recovered and not control.is_same else ""


def _advice(summary: Summary) -> tuple[list[Block], list[Block]]:
    """Advice for the first screen, and the rest."""
    every = [Advice(each.action, each.because) for each in summary.advice]
    shown: list[Block] = [Heading("What to do"), *every[:MOST_ADVICE]] if every else []
    lines = [block for each in summary.advice if each.lines for block in (Text(each.action), Code(tuple(each.lines)))]
    more = (("More advice", every[MOST_ADVICE:], False), ("Configuration", lines, True))
    return shown, [Details(title, tuple(blocks), unfolded) for title, blocks, unfolded in more if blocks]


# ---------------------------------------------------------------- how it was measured


def method(summary: Summary) -> Details:
    """What a reader needs to judge the figures, each line computed from this run."""
    lines = [
        f"{head_line(summary)}.",
        _design(summary),
        figures.noise_line(summary),
        *_machine(summary),
        *_instrument(summary),
        figures.cpu_note(summary),
        _voids(summary),
        *(f"Published elsewhere: {source}. Not our measurement." for source in figures.published_sources(summary)),
    ]
    return Details("How it was measured", (Bullets(tuple(line for line in lines if line)),))


_CLAIMS = (
    "Each interval has 95 % confidence. The run makes up to {0} comparisons, and calls an arm slower or faster only if the interval "
    "of its ratio at 1 - 5 % / {0} also excludes 1: the chance that one or more of these differences are false is at most 5 % in the "
    "whole run. Intervals of costs, break-even points, predictions and confirmations stay at 95 %."
)


def _design(summary: Summary) -> str:
    if figures.only_broke(summary) or not summary.complete_blocks:
        return ""
    settled = ", except cells that had settled on a plateau" if any(c.settled_after for c in summary.cells) else ""
    partly = summary.blocks - summary.complete_blocks
    lacking = f"; {counted(partly, 'more block')} {'lacks' if partly == 1 else 'lack'} some cells" if partly else ""
    return (
        f"In each of {counted(summary.complete_blocks, 'complete block')}, every cell was measured once, in random "
        f"order{settled}{lacking}. A ratio is the geometric mean of the blocks' ratios, so it may differ from the ratio of two "
        f"figures in the table; its interval comes from the scatter between blocks. {_CLAIMS.format(summary.claims)}"
    )


def _machine(summary: Summary) -> list[str]:
    """Share of the machine that other programs used, and whether that changed the figures."""
    found = []
    if summary.others_cpus is not None:
        machine = f" of {summary.machine_cpus}" if summary.machine_cpus else ""
        busy = " This machine counts as busy." if Warning.BUSY_MACHINE in summary.warnings else ""
        cpus = figures.cpus(summary.others_cpus)
        found.append(f"Other programs kept {cpus}{machine} CPUs busy in the median trial.{busy}")
    else:
        found.append("How many CPUs other programs used was not recorded.")
    pressure = sorted(trial.cpu_pressure for trial in summary.trials if trial.cpu_pressure is not None)
    if pressure:
        share = figures.share(pressure[len(pressure) // 2])
        found.append(
            f"In the median trial, some task (of client, server or others) waited for a CPU {share} of the time."
        )
    spread, base, one = summary.baseline_spread, baseline_name(summary), ONE[summary.asked]
    if spread is not None and spread.cpu_per_query is not None:
        less = round(spread.cpu_per_query, 2) < round(spread.qps, 2)
        varied = "varied less than" if less else "did not vary less than"
        found.append(
            f"CPU per {one} {varied} throughput: over the trials of {base}, it varied by a factor of "
            f"{spread.cpu_per_query:.2f}, and {summary.asked} per second by a factor of {spread.qps:.2f}."
        )
    return found


def _voids(summary: Summary) -> str:
    """Note on void trials: only paths over the link can be void for a late packet, and repeated trials run later."""
    line = figures.void_line(summary)
    late = any("link" in reason for reason in summary.void_reasons)
    return f"{line} Trials over the link can be void for more reasons than others." if late else line


_FEW_CELLS = 8
"""Cells whose limits one sentence can name."""


def _instrument(summary: Summary) -> list[str]:
    """Share that the load generator and the link's emulator used, what limits each cell, and how often it is one of these two."""
    cells = shown_cells(summary)
    found = []
    used = {
        cell.arm: cell.cpu_us_per_query.link.value * cell.qps.value / 1e6
        for cell in cells
        if cell.cpu_us_per_query.link
    }
    if used:
        arm = max(used, key=lambda name: used[name])
        machine = f" of {summary.machine_cpus}" if summary.machine_cpus else ""
        found.append(f"The link's emulator used at most {figures.cpus(used[arm])}{machine} CPUs ({arm}).")
    scattered = [(cell.scatter, cell.arm) for cell in cells if cell.scatter]
    if scattered:
        most, arm = max(scattered, key=lambda each: each[0].calibration)
        found.append(
            f"The link's RTT at rest varied from block to block by {figures.percent(most.rtt)} (standard deviation), which alone "
            f"would vary the ratio of {arm} by {figures.percent(most.calibration)}; the ratio did by {figures.percent(most.total)}."
        )
    shifted = [(scatter, arm) for scatter, arm in scattered if scatter.shift is not None]
    if shifted:
        most, arm = max(shifted, key=lambda each: abs(each[0].shift or 0.0))
        off, shift = most.rtt_off or 0.0, most.shift or 0.0
        found.append(
            f"On average the RTT at rest was {figures.percent(abs(off))} {'longer' if off > 0 else 'shorter'} than requested, which "
            f"alone makes the figures of {arm} {figures.percent(abs(shift))} {'lower' if shift < 0 else 'higher'}. Intervals "
            "and controls refer to the measured RTT and do not show this."
        )
    limited = [cell.limit.resource for cell in cells if cell.limit]
    if limited:
        if len(limited) <= _FEW_CELLS:
            each = "; ".join(limit_text.of_cell(cell) for cell in cells if cell.limit)
            found.append(f"What limits each cell: {each}.")
        load, emulator = limited.count(Resource.CLIENT_CPU), limited.count(Resource.INSTRUMENT_CPU)
        found.append(f"The load generator limits {load} of {len(limited)} cells, and the link's emulator {emulator}.")
    busy = [cell.arm for cell in summary.cells if Warning.CLIENT_LIMITED in cell.warnings]
    if busy:
        found.append(
            f"On {', '.join(busy)}, the load generator's busiest thread was fully busy, so these figures describe it."
        )
    return found


# ---------------------------------------------------------------- the network between hosts


_TITLE = "The network between the hosts, measured before the first trial"
_FIELD_PIXELS = 80, 62
"""Minimum width, and height, of a field's three lines."""


def _distances(summary: Summary) -> list[Block]:
    """Blocks with the distances. Empty: the run was in the laboratory, or on one host."""
    found = summary.environment.get("distances") or ()
    if not found:
        return []
    caption = f"Median round trip of one byte over TCP, at rest and with all CPUs awake; goodput of one connection. {_where(summary)}"
    fields: Fields[Mapping[str, Any]] = {
        "from": lambda one: one["from"],
        "to": lambda one: one["to"],
        "RTT at rest": lambda one: _rtt(one["rtt_ns"]),
        "RTT awake": lambda one: _rtt(one["rtt_awake_ns"]),
        "goodput": lambda one: figures.rate(one["goodput_bps"]["to_server"]),
        "goodput back": lambda one: figures.rate(one["goodput_bps"]["to_client"]),
        "path MTU": lambda one: figures.UNKNOWN if one["path_mtu"] is None else str(one["path_mtu"]),
        "congestion control": lambda one: one["congestion_control"],
    }
    data = table_of("", found, fields)
    return [
        Heading("How far apart are the hosts?"),
        Chart("distances", _TITLE, caption, partial(_draw_distances, summary), data),
    ]


def _where(summary: Summary) -> str:
    hosts = summary.environment["hosts"]
    zones = {name: facts.get("zone", "unknown") for name, facts in hosts.items()}
    return f"Zones: {', '.join(f'{name} {zone}' for name, zone in zones.items())}."


def _rtt(found: Mapping[str, float] | None) -> str:
    return figures.UNKNOWN if found is None else format_duration_ns(found["p50"])


def _fields(summary: Summary) -> charts.Rows:
    """A field for each direction of each pair."""
    found = []
    for one in summary.environment["distances"]:
        rtt, awake = one["rtt_ns"], one["rtt_awake_ns"]
        for source, target, to in ((one["from"], one["to"], "to_server"), (one["to"], one["from"], "to_client")):
            text = "\n".join((figures.rate(one["goodput_bps"][to]), _rtt(rtt), f"awake {_rtt(awake)}"))
            found.append({"from": source, "to": target, "rtt": rtt["p50"], "text": text})
    return found


def _draw_distances(summary: Summary, width: int) -> charts.Drawable | None:
    """Chart of the distances: the farther two hosts are apart, the darker their field."""
    rows = _fields(summary)
    names = list(summary.environment["hosts"])
    least, height = _FIELD_PIXELS
    if width < least * len(names):
        return None
    axis = alt.Axis(domain=False, ticks=False, labelAngle=0, orient="top")
    x = alt.X("to:N", sort=names, scale=alt.Scale(domain=names), axis=axis, title="to")
    y = alt.Y("from:N", sort=names, scale=alt.Scale(domain=names), title="from")
    most = max(row["rtt"] for row in rows)
    depth = alt.FillOpacity("rtt:Q", scale=alt.Scale(domain=[0, most], range=[0.08, 0.4]), legend=None)
    fields = (
        charts.data(rows).mark_rect(fill=palette.SERIES[0], stroke=palette.GRID).encode(x=x, y=y, fillOpacity=depth)
    )
    text = charts.data(rows).mark_text(lineBreak="\n", fill=palette.INK, dy=-14).encode(x=x, y=y, text="text:N")
    return charts.layer(fields, text, width=width, height=height * len(names))


# ---------------------------------------------------------------- receipts


def receipts(summary: Summary) -> list[Block]:
    """Receipts: the first in full; for the others, the difference from it."""
    cells = [cell for cell in summary.cells if cell.receipt]
    found: list[Block] = []
    if cells:
        first = cells[0]
        about = Text(
            "A receipt proves what a path was while it was measured; these are from the last good trials. A trial whose receipt "
            f"differs from what was requested is void. That of {first.arm} is shown in full, the others only where they differ."
        )
        others: Iterable[Block] = (
            Details(cell.arm, (Facts(_difference(cell.receipt, first.receipt)),)) for cell in cells[1:]
        )
        inner = (about, Details(first.arm, (Facts(first.receipt),)), *others)
        found.append(Details("Receipts", inner))
    return [*found, Details("Machine and versions", (Facts(summary.environment),))]


def _difference(one: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    """Values of `one` that differ from `other`; in nested tables too. Values that only `other` has are shown as "absent"."""
    found: dict[str, Any] = {}
    for key in {**one, **other}:
        mine, theirs = one.get(key), other.get(key)
        if mine == theirs or key == COUNTERS:
            continue
        if isinstance(mine, Mapping) and isinstance(theirs, Mapping):
            found[key] = _difference(mine, theirs)
        else:
            found[key] = mine if key in one else "absent"
    return found
