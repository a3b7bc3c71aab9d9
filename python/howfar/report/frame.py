"""The parts that all documents have in common: the order of the blocks, the set-up, warnings and advice, the method, the network
between hosts, receipts. An experiment passes its own blocks to `frame`, which is where to start reading. Some of these blocks are in
`sections.py`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial

from howfar.analysis.answer import capital, fill, join
from howfar.analysis.controls import Control
from howfar.analysis.diagnostics import FEW_BLOCKS, MEANINGS, Diagnostic
from howfar.analysis.hosts import HostNote, HostsSeen
from howfar.analysis.idle import IdleLevel
from howfar.analysis.summary import Summary
from howfar.contract.environment import HostRoles
from howfar.contract.receipt import DIRECTIONS, DirectionName, LinkReceipt, QuantilesNs
from howfar.model.resource import Resource
from howfar.paths import is_local, is_movable
from howfar.plan.factors import Level
from howfar.report import charts, figures, limit_text, palette
from howfar.report.certainty import certainty
from howfar.report.document import (
    AdviceBlock,
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
    make_table,
)
from howfar.report.drawing import alt
from howfar.report.figures import (
    baseline_name,
    on_hosts,
    session_line,
    shown_cells,
    unmeasured_lines,
)
from howfar.report.sections import Record, cell_records
from howfar.stats.intervals import excludes_one, interval_text
from howfar.stats.trials import SINGULAR
from howfar.units import counted, format_duration_ns, format_rate_bps

PLACEMENT_TEXTS = {
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
        for part in (
            _connections_text(summary),
            _placement_text(summary),
            idle_text(summary),
            _link_text(summary),
            _replica_text(summary),
        )
        if part
    )


def overview_line(summary: Summary) -> str:
    """Workload, set-up, and the session, without the last full stop."""
    server = f"{summary.server['kind']} {summary.server['version']}"
    parts = (summary.workload, capital(setup_line(summary)), f"{server}; {session_line(summary)}")
    return ". ".join(part for part in parts if part)


def _distinct_levels(summary: Summary, factor: str) -> list[Level]:
    """Distinct levels of a factor: numbers ascending, words in the order of the arms."""
    levels = list(dict.fromkeys(cell.factors[factor] for cell in shown_cells(summary) if factor in cell.factors))
    return sorted(levels, key=float) if all(isinstance(level, int | float) for level in levels) else levels


def _connections_text(summary: Summary) -> str:
    levels = [str(level) for level in _distinct_levels(summary, "threads")]
    if not levels:
        return ""
    plural = "" if levels == ["1"] else "s"
    return f"{join(levels, 'or')} {f'page{plural} in flight' if summary.operation_unit == 'pages' else f'connection{plural}'}"


def _placement_text(summary: Summary) -> str:
    levels = [str(level) for level in _distinct_levels(summary, "placement")]
    if len(levels) > 1:
        return f"placement {join(levels, 'or')}"
    if levels and on_hosts(summary):
        if summary.hosts is not None and summary.hosts.swapped is not None:
            return f"{_swapped_roles_text(summary.hosts)} (placement {levels[0]})"
        roles = summary.environment.roles
        assert roles is not None, "a run between hosts has roles"
        clients = [roles.client, *roles.others]
        plural = "s" if len(clients) > 1 else ""
        server = f"server on host {roles.server}"
        if any(map(is_local, _distinct_levels(summary, "path"))):
            server = f"or with the {server} on local paths"
        return (
            f"client{plural} on host{plural} {join(clients)}, {server}{_hop_clause(summary, roles)} "
            f"(placement {levels[0]})"
        )
    return PLACEMENT_TEXTS.get(levels[0], f"placement {levels[0]}") if levels else ""


def _hop_clause(summary: Summary, roles: HostRoles) -> str:
    """Clause on the program that runs on a host of its own. Empty: there is none."""
    if roles.hop is None:
        return ""
    moved_hops = [str(name) for name in _distinct_levels(summary, "path") if is_movable(name)]
    return f", the program of {' and '.join(moved_hops)} on host {roles.hop}"


def _swapped_roles_text(hosts: HostsSeen) -> str:
    assert hosts.swapped is not None, "the hosts swapped roles"
    first, second = hosts.swapped
    text = f"client and server on hosts {first} and {second}, which swapped roles from block to block"
    if hosts.machines is None:
        return text
    meaning = "a difference between the hosts, not between paths" if excludes_one(hosts.machines) else "not resolved"
    return (
        f"{text}: with {first} as the server, the baseline did {interval_text(hosts.machines)} times as many operations per second "
        f"as with {second}, which is {meaning}"
    )


def _host_distances_line(summary: Summary) -> str:
    """The links between hosts: `Between hosts a and b: RTT 212 µs, goodput 9.41 Gb/s`. Empty: the run was in the laboratory."""
    if not on_hosts(summary):
        return ""
    distances = []
    for link in summary.environment.distances:
        rtt_us, slower = link.real_rtt_ns / 1e3, link.slower_bps / 1e9
        rtt = f"{rtt_us:,.{0 if rtt_us >= 100 else 1}f} µs"
        distances.append(f"hosts {link.from_host} and {link.to_host}: RTT {rtt}, goodput {slower:.3g} Gb/s")
    swapped = summary.hosts is not None and summary.hosts.swapped is not None
    return (
        f"Between {'; '.join(distances)}{' (roles swapped from block to block)' if swapped else ''}"
        if distances
        else ""
    )


def host_note_lines(hosts: HostsSeen) -> list[str]:
    """A sentence for each host that limited its load."""
    return [_HOST_NOTE_TEXTS[note.what](note) for note in hosts.notes]


_HOST_NOTE_TEXTS: Mapping[str, Callable[[HostNote], str]] = {
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


def _idle_level(level: IdleLevel, driver: str | None) -> str:
    if level.level == "polling":
        return "polling"
    halts = "" if level.halts_per_s is None else f", {level.halts_per_s:,.0f} sleeps/s"
    return f"as found ({driver or 'the kernel has no idle driver'}{halts})"


def _link_text(summary: Summary) -> str:
    rates = [format_rate_bps(float(level)) for level in _distinct_levels(summary, "rate_bps")]
    rtts = [format_duration_ns(float(level)) for level in _distinct_levels(summary, "rtt_ns")]
    if not rates and not rtts:
        return "" if _replica_text(summary) else "no path over a link"
    parts = [join(rates, "or")] if rates else []
    if rtts:
        parts.append(f"RTT {join(rtts, 'or')}{_measured_rtt_note(summary) if len(rtts) == 1 else ''}")
    return f"link {', '.join(parts)}"


def _replica_text(summary: Summary) -> str:
    """The links between servers, which are not part of the clients' path."""
    rtts = [format_duration_ns(float(level)) for level in _distinct_levels(summary, "replica_rtt_ns")]
    rtts += [str(level).replace("-", " ") for level in _distinct_levels(summary, "distances")]
    rates = [format_rate_bps(float(level)) for level in _distinct_levels(summary, "replica_rate_bps")]
    if not rtts:
        return ""
    return ", ".join([f"replicas over RTT {join(rtts, 'or')}", *([join(rates, "or")] if rates else [])])


def _measured_rtt_note(summary: Summary) -> str:
    """Note with the RTTs measured at rest, from the shortest to the longest: ` (measured 0.21ms to 0.23ms at rest)`."""
    rtts_ns = sorted(cell.rest_rtt_ns for cell in shown_cells(summary) if cell.rest_rtt_ns is not None)
    if not rtts_ns:
        return " (not measured)"
    texts = list(dict.fromkeys(format_duration_ns(rtt) for rtt in (rtts_ns[0], rtts_ns[-1])))
    return f" (measured {' to '.join(texts)} at rest)"


MAX_NAMES = 5
"""Maximum number of names in a warning; if there are more, their number is given instead."""


def warning_lines(summary: Summary) -> list[str]:
    """Warnings of the session, then arms without figures, then warnings of arms. Arms with the same warning share a line."""
    lines = [f"{warning.value}{_scatter_note(warning, summary)}: {MEANINGS[warning]}." for warning in summary.warnings]
    lines += [f"{line}." for line in host_note_lines(summary.hosts)] if summary.hosts is not None else []
    arms_by_text: dict[str, list[str]] = {}
    has_few_blocks = (summary.complete_blocks or summary.blocks) < FEW_BLOCKS
    for cell in summary.cells:
        for warning in cell.warnings:
            if warning is Diagnostic.WIDE_INTERVAL or (warning is Diagnostic.FEW_BLOCKS and has_few_blocks):
                continue  # the line below the answer says so
            arms_by_text.setdefault(f"{warning.value}: {MEANINGS[warning]}.", []).append(cell.arm)
    lines += unmeasured_lines(summary)
    return lines + [f"{_names_or_count(names, len(summary.cells))}: {text}" for text, names in arms_by_text.items()]


def _scatter_note(warning: Diagnostic, summary: Summary) -> str:
    return (
        f" (±{figures.share(summary.cpu_scatter)})" if warning is Diagnostic.UNEVEN_CPUS and summary.cpu_scatter else ""
    )


def _names_or_count(names: list[str], cells: int) -> str:
    """Names of arms if there are few, else their number."""
    if len(names) <= MAX_NAMES:
        return ("; " if any(", " in name for name in names) else ", ").join(names)
    if len(names) == cells:
        return "every cell"
    return f"{len(names)} of {cells} cells"


MAX_ADVICE_SHOWN = 3
"""Maximum number of pieces of advice on the first screen."""

MAX_WARNINGS_SHOWN = 3
"""Maximum number of warnings on the first screen."""

COUNTERS_KEY = "counters"
"""Key of a receipt's counters. They are only in the JSON, because they differ in every cell and prove no more than the other parts."""


def frame(
    summary: Summary,
    main_blocks: Sequence[Block],
    *,
    cards: tuple[Card, ...] = (),
    answer_charts: Sequence[Block] = (),
    more_blocks: Sequence[Block] = (),
    records: Sequence[Record] | None = None,
) -> Document:
    """The document. The answer, `main_blocks` (such as the main table), warnings and advice form the first screen. `more_blocks`:
    charts and details of the experiment. Every report ends with method and receipts. `records`: by default those of the cells.
    `cards` and `answer_charts` show the answer; without one they are left out."""
    answered = not summary.answer.is_missing
    first_advice, other_advice = _split_advice(summary)
    warnings = tuple(warning_lines(summary))
    blocks: list[Block] = [
        Answer(summary.verdict, cards if answered else (), summary.answer.why, certainty(summary)),
        *(answer_charts if answered else ()),
        *main_blocks,
        *_context(summary),
        Warnings(warnings[:MAX_WARNINGS_SHOWN]),
        *first_advice,
        *(
            [Details("More warnings", (Warnings(warnings[MAX_WARNINGS_SHOWN:]),))]
            if warnings[MAX_WARNINGS_SHOWN:]
            else []
        ),
        *more_blocks,
        *other_advice,
        *_distance_blocks(summary),
        method_details(summary),
        *receipt_blocks(summary),
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
        summary.answer.question,
        _setting_line(summary),
    )


def _setting_line(summary: Summary) -> str:
    """What was measured, when and on what: `paths · mariadb 10.11.19 · link of 0.2 ms · 2 CPUs · 2026-11-28 14:05 UTC`."""
    cpus = counted(summary.machine_cpus, "CPU") if summary.machine_cpus and not on_hosts(summary) else ""
    day, _, time = summary.created.partition("T")
    plan = f"{summary.plan}{', quick' if summary.quick else ''}"
    version, *_ = summary.server["version"].partition("-")[0].split() or [""]
    kind, *_ = summary.server["kind"].split() or [""]
    server = f"{kind} {version}".strip()
    return " · ".join(
        part for part in (plan, server, _one_link(summary), cpus, f"{day} {time[:5]} UTC".strip()) if part
    )


def _one_link(summary: Summary) -> str:
    """The link of all paths that cross one: `link of 0.2 ms and 1 Gb/s`. Empty: there is none, or there are several."""
    rtts, rates = (_distinct_levels(summary, factor) for factor in ("rtt_ns", "rate_bps"))
    if len(rtts) != 1 or len(rates) > 1 or on_hosts(summary):
        return ""
    rate = fill(" and {rate:rate}", rate=float(rates[0])) if rates else ""
    return fill("link of {rtt:time}", rtt=float(rtts[0])) + rate


def _context(summary: Summary) -> list[Block]:
    """The links between hosts; without an answer, how far the run got. Empty: neither."""
    session = capital(figures.session_line(summary)) if summary.answer.is_missing else ""
    parts = [part for part in (session, _host_distances_line(summary)) if part]
    return [Text(f"{'. '.join(parts)}.", quiet=True)] if parts else []


def controls_text(summary: Summary) -> str:
    """Results of controls: `Controls: remote against itself 1.01 [0.97, 1.05]; an RTT longer by 10 µs measured as 11 [4, 18] µs`.
    Empty: none."""
    parts = []
    for control in summary.controls:
        if control.is_same:
            quantile_note = "" if control.unit == "ratio" else " in p99"
            parts.append(
                f"{control.reference} against itself {interval_text(control.measured)}{quantile_note}{_control_outcome(control)}"
            )
        else:
            low, high = (
                None if limit is None else _microseconds(limit)
                for limit in (control.measured.low, control.measured.high)
            )
            limits = "(no interval)" if low is None or high is None else f"[{low}, {high}]"
            value = f"{_microseconds(control.measured.value)} {limits} µs"
            arms_note = (
                f", in a pair of arms of its own ({control.distinguishing_levels}),"
                if control.distinguishing_levels
                else ""
            )
            parts.append(
                f"an RTT increase of {control.injected:,g} µs{arms_note} measured as {value}{_control_outcome(control)}"
            )
    return f"Controls: {'; '.join(parts)}" if parts else ""


def _microseconds(us: float) -> str:
    return f"{round(us, 1) + 0.0:,.1f}"  # no -0.0


def _control_outcome(control: Control) -> str:
    if control.recovered is False:
        return ", which is wrong"
    if control.is_inconclusive:
        return ", too noisy to tell"
    return ", as expected" if control.recovered and not control.is_same else ""


def _split_advice(summary: Summary) -> tuple[list[Block], list[Block]]:
    """Advice for the first screen, and other advice."""
    all_advice = [AdviceBlock(advice.action, advice.because) for advice in summary.advice]
    first_blocks: list[Block] = [Heading("What to do"), *all_advice[:MAX_ADVICE_SHOWN]] if all_advice else []
    configuration_lines = [
        block for advice in summary.advice if advice.lines for block in (Text(advice.action), Code(tuple(advice.lines)))
    ]
    titled_blocks = (
        ("More advice", all_advice[MAX_ADVICE_SHOWN:], False),
        ("Configuration", configuration_lines, True),
    )
    return first_blocks, [
        Details(title, tuple(blocks), unfolded) for title, blocks, unfolded in titled_blocks if blocks
    ]


# ---------------------------------------------------------------- the method


def method_details(summary: Summary) -> Details:
    """Details on how the run was measured, so that a reader can judge its figures. Each line is computed from this run."""
    lines = [
        f"{overview_line(summary)}.",
        _design_line(summary),
        f"{controls}." if (controls := controls_text(summary)) else "",
        figures.noise_line(summary),
        *_machine_lines(summary),
        *_instrument_lines(summary),
        figures.cpu_note(summary),
        _void_note(summary),
        *(f"Published elsewhere: {source}. Not our measurement." for source in figures.published_sources(summary)),
    ]
    return Details("How it was measured", (Bullets(tuple(line for line in lines if line)),))


_COMPARISONS_TEXT = (
    "Each interval has 95 % confidence. The run makes up to {0} comparisons, and calls an arm slower or faster only if the interval "
    "of its ratio at 1 - 5 % / {0} also excludes 1: the chance that one or more of these differences are false is at most 5 % in the "
    "whole run. Intervals of costs, break-even points, predictions and confirmations stay at 95 %."
)


def _design_line(summary: Summary) -> str:
    if figures.has_only_faults(summary) or not summary.complete_blocks:
        return ""
    settled_note = ", except cells that had settled on a plateau" if any(c.settled_after for c in summary.cells) else ""
    incomplete = summary.blocks - summary.complete_blocks
    incomplete_note = (
        f"; {counted(incomplete, 'more block')} {'lacks' if incomplete == 1 else 'lack'} some cells"
        if incomplete
        else ""
    )
    return (
        f"In each of {counted(summary.complete_blocks, 'complete block')}, every cell was measured once, in random "
        f"order{settled_note}{incomplete_note}. A ratio is the geometric mean of the blocks' ratios, so it may differ from "
        "the ratio of two figures in the table; its interval comes from the scatter between blocks. "
        f"{_COMPARISONS_TEXT.format(summary.claims)}"
    )


def _machine_lines(summary: Summary) -> list[str]:
    """Lines on how much of the machine other programs used, and on whether that changed the figures."""
    lines = []
    if summary.others_cpus is not None:
        machine = f" of {summary.machine_cpus}" if summary.machine_cpus else ""
        busy = " This machine counts as busy." if Diagnostic.BUSY_MACHINE in summary.warnings else ""
        cpus = figures.cpus(summary.others_cpus)
        lines.append(f"Other programs kept {cpus}{machine} CPUs busy in the median trial.{busy}")
    else:
        lines.append("How many CPUs other programs used was not recorded.")
    pressure = sorted(trial.cpu_pressure for trial in summary.trials if trial.cpu_pressure is not None)
    if pressure:
        share = figures.share(pressure[len(pressure) // 2])
        lines.append(
            f"In the median trial, some task (of client, server or others) waited for a CPU {share} of the time."
        )
    spread, baseline, operation = summary.baseline_spread, baseline_name(summary), SINGULAR[summary.operation_unit]
    if spread is not None and spread.cpu_per_query is not None:
        varies_less = round(spread.cpu_per_query, 2) < round(spread.qps, 2)
        varied = "varied less than" if varies_less else "did not vary less than"
        lines.append(
            f"CPU per {operation} {varied} throughput: over the trials of {baseline}, it varied by a factor of "
            f"{spread.cpu_per_query:.2f}, and {summary.operation_unit} per second by a factor of {spread.qps:.2f}."
        )
    return lines


def _void_note(summary: Summary) -> str:
    """Note on void trials. Only paths over the link can be void because of a late packet."""
    line = figures.void_line(summary)
    is_link_reason = any("link" in reason for reason in summary.void_reasons)
    return f"{line} Trials over the link can be void for more reasons than others." if is_link_reason else line


_MAX_LISTED_CELLS = 8
"""Maximum number of cells whose limits are listed in one sentence."""


def _instrument_lines(summary: Summary) -> list[str]:
    """Lines on the instrument: CPU of the link's emulator, scatter of its RTT, the limit of each cell, and how often the load
    generator or the emulator is the limit."""
    cells = shown_cells(summary)
    lines = []
    cpus_used = {
        cell.arm: cell.cpu_us_per_query.link.value * cell.qps.value / 1e6
        for cell in cells
        if cell.cpu_us_per_query.link
    }
    if cpus_used:
        arm = max(cpus_used, key=lambda name: cpus_used[name])
        machine = f" of {summary.machine_cpus}" if summary.machine_cpus else ""
        lines.append(f"The link's emulator used at most {figures.cpus(cpus_used[arm])}{machine} CPUs ({arm}).")
    cells_with_scatter = [(cell.scatter, cell.arm) for cell in cells if cell.scatter]
    if cells_with_scatter:
        scatter, arm = max(cells_with_scatter, key=lambda entry: entry[0].calibration)
        lines.append(
            f"The link's RTT at rest varied from block to block by {figures.percent(scatter.rtt)} (standard deviation), which alone "
            f"would vary the ratio of {arm} by {figures.percent(scatter.calibration)}; the ratio did by "
            f"{figures.percent(scatter.total)}."
        )
    cells_with_shift = [(scatter, arm) for scatter, arm in cells_with_scatter if scatter.shift is not None]
    if cells_with_shift:
        scatter, arm = max(cells_with_shift, key=lambda entry: abs(entry[0].shift or 0.0))
        rtt_deviation, shift = scatter.rtt_off or 0.0, scatter.shift or 0.0
        lines.append(
            f"On average the RTT at rest was {figures.percent(abs(rtt_deviation))} "
            f"{'longer' if rtt_deviation > 0 else 'shorter'} than requested, which "
            f"alone makes the figures of {arm} {figures.percent(abs(shift))} {'lower' if shift < 0 else 'higher'}. Intervals "
            "and controls refer to the measured RTT and do not show this."
        )
    limited = [cell.limit.resource for cell in cells if cell.limit]
    if limited:
        if len(limited) <= _MAX_LISTED_CELLS:
            entry = "; ".join(limit_text.cell_limit_text(cell) for cell in cells if cell.limit)
            lines.append(f"What limits each cell: {entry}.")
        load, emulator = limited.count(Resource.CLIENT_CPU), limited.count(Resource.INSTRUMENT_CPU)
        lines.append(f"The load generator limits {load} of {len(limited)} cells, and the link's emulator {emulator}.")
    busy = [cell.arm for cell in summary.cells if Diagnostic.CLIENT_LIMITED in cell.warnings]
    if busy:
        lines.append(
            f"On {', '.join(busy)}, the load generator's busiest thread was fully busy, so these figures describe it."
        )
    return lines


# ---------------------------------------------------------------- the network between hosts


_TITLE = "The network between the hosts, measured before the first trial"
_FIELD_PIXELS = 80, 62
"""Minimum width and height of a field in the chart of distances, which has three lines of text."""


def _distance_blocks(summary: Summary) -> list[Block]:
    """Blocks with the distances between hosts. Empty: the run was in the laboratory, or on one host."""
    distances = summary.environment.distances
    if not distances:
        return []
    caption = (
        "Median round trip of one byte over TCP, at rest and with all CPUs awake; goodput of one connection. "
        f"{_zones_text(summary)}"
    )
    fields: Fields[LinkReceipt] = {
        "from": lambda link: str(link.from_host),
        "to": lambda link: str(link.to_host),
        "RTT at rest": lambda link: _rtt_text(link.rtt_ns),
        "RTT awake": lambda link: _rtt_text(link.rtt_awake_ns),
        "goodput": lambda link: _goodput_text(link, "to_server"),
        "goodput back": lambda link: _goodput_text(link, "to_client"),
        "path MTU": lambda link: figures.UNKNOWN if link.path_mtu is None else str(link.path_mtu),
        "congestion control": lambda link: link.congestion_control or figures.UNKNOWN,
    }
    data = make_table("", distances, fields)
    return [
        Heading("How far apart are the hosts?"),
        Chart("distances", _TITLE, caption, partial(_draw_distances, summary), data),
    ]


def _zones_text(summary: Summary) -> str:
    hosts = summary.environment.hosts
    return f"Zones: {', '.join(f'{name} {facts.zone}' for name, facts in hosts.items())}."


def _rtt_text(rtt: QuantilesNs | None) -> str:
    return figures.UNKNOWN if rtt is None or rtt.p50 is None else format_duration_ns(rtt.p50)


def _goodput_text(link: LinkReceipt, direction: DirectionName) -> str:
    goodput = None if link.goodput_bps is None else link.goodput_bps.in_direction(direction)
    return figures.UNKNOWN if goodput is None else figures.rate(goodput)


def _distance_rows(summary: Summary) -> charts.Rows:
    """Rows of the chart: a field for each direction of each pair of hosts."""
    rows: charts.Rows = []
    for link in summary.environment.distances:
        rtts = _rtt_text(link.rtt_ns), f"awake {_rtt_text(link.rtt_awake_ns)}"
        there, back = ("\n".join((_goodput_text(link, to), *rtts)) for to in DIRECTIONS)
        rows += [
            {"from": link.from_host, "to": link.to_host, "rtt": link.real_rtt_ns, "text": there},
            {"from": link.to_host, "to": link.from_host, "rtt": link.real_rtt_ns, "text": back},
        ]
    return rows


def _draw_distances(summary: Summary, width: int) -> charts.Drawable | None:
    """Chart of the distances between hosts: the longer the RTT, the darker the field."""
    rows = _distance_rows(summary)
    names = list(summary.environment.hosts)
    min_width, height = _FIELD_PIXELS
    if width < min_width * len(names):
        return None
    axis = alt.Axis(domain=False, ticks=False, labelAngle=0, orient="top")
    x = alt.X("to:N", sort=names, scale=alt.Scale(domain=names), axis=axis, title="to")
    y = alt.Y("from:N", sort=names, scale=alt.Scale(domain=names), title="from")
    max_rtt = max(row["rtt"] for row in rows)
    opacity = alt.FillOpacity("rtt:Q", scale=alt.Scale(domain=[0, max_rtt], range=[0.08, 0.4]), legend=None)
    field_marks = (
        charts.data(rows).mark_rect(fill=palette.SERIES[0], stroke=palette.GRID).encode(x=x, y=y, fillOpacity=opacity)
    )
    text = charts.data(rows).mark_text(lineBreak="\n", fill=palette.INK, dy=-14).encode(x=x, y=y, text="text:N")
    return charts.layer(field_marks, text, width=width, height=height * len(names))


# ---------------------------------------------------------------- receipts


def receipt_blocks(summary: Summary) -> list[Block]:
    """Blocks with the receipts. The first is complete; the others show only their differences from it."""
    cells = [cell for cell in summary.cells if cell.receipt.model_fields_set]
    blocks: list[Block] = []
    if cells:
        first = cells[0]
        introduction = Text(
            "A receipt proves what a path was while it was measured; these are from the last good trials. A trial whose receipt "
            f"differs from what was requested is void. That of {first.arm} is shown in full, the others only where they differ."
        )
        others: Iterable[Block] = (
            Details(cell.arm, (Facts(_receipt_difference(cell.receipt.as_json(), first.receipt.as_json())),))
            for cell in cells[1:]
        )
        contents = (introduction, Details(first.arm, (Facts(first.receipt.as_json()),)), *others)
        blocks.append(Details("Receipts", contents))
    return [*blocks, Details("Machine and versions", (Facts(summary.environment.as_json()),))]


def _receipt_difference(receipt: Mapping[str, object], other_receipt: Mapping[str, object]) -> Mapping[str, object]:
    """Values of `receipt` that differ from `other_receipt`, also in nested tables. Values that only `other_receipt` has are
    "absent"."""
    difference: dict[str, object] = {}
    for key in {**receipt, **other_receipt}:
        value, other_value = receipt.get(key), other_receipt.get(key)
        if value == other_value or key == COUNTERS_KEY:
            continue
        if isinstance(value, Mapping) and isinstance(other_value, Mapping):
            difference[key] = _receipt_difference(value, other_value)
        else:
            difference[key] = value if key in receipt else "absent"
    return difference
