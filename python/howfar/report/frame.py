"""The parts that all documents have in common: the order of the blocks, the set-up, warnings and advice, the method, the network
between hosts, receipts. An experiment passes its own blocks to `frame`, which is where to start reading. Some of these blocks are in
`sections.py`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial

from howfar.analysis.advice import COMMANDS
from howfar.analysis.controls import Control
from howfar.analysis.diagnostics import FEW_BLOCKS, Diagnostic
from howfar.analysis.hosts import HostsSeen
from howfar.analysis.idle import IdleLevel
from howfar.analysis.summary import Summary
from howfar.contract.receipt import DIRECTIONS, DirectionName, LinkReceipt, QuantilesNs
from howfar.findings import capital, fill, join, note
from howfar.model.resource import Resource
from howfar.paths import is_local, is_movable
from howfar.plan.factor import Level, ServerLinks
from howfar.plan.factors import SERVER_LINKS
from howfar.plan.workload import OPERATIONS
from howfar.report import charts, figures, limit_text, palette
from howfar.report.certainty import certainty, command_for_answer, stolen, what_answers
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
    Table,
    Text,
    Warnings,
    make_table,
    what_to_do,
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
from howfar.report.texts import BLOCKS, MEANINGS, METHOD, SEPARATOR, SETUP, WARNINGS
from howfar.stats.intervals import excludes_one, interval_text
from howfar.stats.trials import singular
from howfar.units import format_duration_ns, format_rate_bps, spoken_span


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
            _server_links_text(summary),
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
    template = OPERATIONS[summary.operation_unit].in_progress
    return fill(template, levels=join(levels, "or"), several=levels != ["1"])


def _placement_text(summary: Summary) -> str:
    levels = [str(level) for level in _distinct_levels(summary, "placement")]
    if not levels:
        return ""
    if len(levels) > 1 or not on_hosts(summary):
        placements = join(levels, "or")
        return fill(SETUP.get(f"placement {placements}", SETUP["placement"]), levels=placements)
    if summary.hosts is not None and summary.hosts.swapped is not None:
        return _swapped_roles_text(summary.hosts, levels[0])
    roles = summary.environment.roles
    assert roles is not None, "a run between hosts has roles"
    clients = [roles.client, *roles.others]
    paths = _distinct_levels(summary, "path")
    return fill(
        SETUP["hosts"],
        clients=join(clients),
        several=len(clients) > 1,
        server=roles.server,
        on_local=any(map(is_local, paths)),
        hop=roles.hop,
        hop_paths=" and ".join(str(name) for name in paths if is_movable(name)),
        placement=levels[0],
    )


def _swapped_roles_text(hosts: HostsSeen, placement: str) -> str:
    assert hosts.swapped is not None, "the hosts swapped roles"
    first, second = hosts.swapped
    ratio, meaning = "", ""
    if hosts.machines is not None:
        ratio = interval_text(hosts.machines)
        meaning = SETUP["hosts differ" if excludes_one(hosts.machines) else "hosts may be equal"]
    return fill(SETUP["swapped"], first=first, second=second, ratio=ratio, meaning=meaning, placement=placement)


def _host_distances_line(summary: Summary) -> str:
    """The links between hosts: `Between hosts a and b: RTT 212 µs, goodput 9.41 Gb/s`. Empty: the run was in the laboratory."""
    if not on_hosts(summary):
        return ""
    distances = []
    for link in summary.environment.distances:
        rtt_us, gbps = link.real_rtt_ns / 1e3, link.slower_bps / 1e9
        rtt = f"{rtt_us:,.{0 if rtt_us >= 100 else 1}f}"
        distances.append(fill(SETUP["distance"], first=link.from_host, second=link.to_host, rtt=rtt, gbps=gbps))
    swapped = summary.hosts is not None and summary.hosts.swapped is not None
    return fill(SETUP["between hosts"], distances="; ".join(distances), swapped=swapped) if distances else ""


def host_note_lines(hosts: HostsSeen) -> list[str]:
    """A sentence for each host that limited its load."""
    return [
        fill(
            WARNINGS[note.what],
            host=note.host,
            trials=note.trials,
            of=note.of,
            most=f"{note.most:.0%}" if note.what == "limited" else format_duration_ns(note.most),
        )
        for note in hosts.notes
    ]


def idle_text(summary: Summary) -> str:
    """Idle states: `idle CPUs as found (haltpoll, 4,100 sleeps/s)`. Empty: an older run file."""
    if summary.idle is None:
        return ""
    levels = " and ".join(_idle_level(level, summary.idle.driver) for level in summary.idle.levels)
    return fill(SETUP["idle"], levels=levels)


def _idle_level(level: IdleLevel, driver: str | None) -> str:
    if level.level == "polling":
        return "polling"
    halts = "" if level.halts_per_s is None else f"{level.halts_per_s:,.0f}"
    return fill(SETUP["as found"], driver=driver or SETUP["no driver"], halts=halts)


def _link_text(summary: Summary) -> str:
    rates = [format_rate_bps(float(level)) for level in _distinct_levels(summary, "rate_bps")]
    rtts = [format_duration_ns(float(level)) for level in _distinct_levels(summary, "rtt_ns")]
    if not rates and not rtts:
        return "" if _server_links_text(summary) else SETUP["no link"]
    parts = [join(rates, "or")] if rates else []
    if rtts:
        measured = _measured_rtts(summary)
        name = "rtt" if len(rtts) > 1 else "rtt measured" if measured else "rtt not measured"
        parts.append(fill(SETUP[name], rtts=join(rtts, "or"), measured=measured))
    return fill(SETUP["link"], levels=", ".join(parts))


def _server_links_text(summary: Summary) -> str:
    """The links between servers, which are not part of the clients' path: `replicas over RTT 85ms, 1gbit`. Empty: none."""
    return "; ".join(filter(None, (_links_text(summary, links) for links in SERVER_LINKS)))


def _links_text(summary: Summary, links: ServerLinks) -> str:
    rtts = [
        text(level)
        for factor, text in ((links.rtt, links.rtt.format), (links.pairs, links.pairs.label))
        for level in _distinct_levels(summary, factor.name)
    ]
    if not rtts:
        return ""
    rates = [links.rate.format(level) for level in _distinct_levels(summary, links.rate.name)]
    text = fill(SETUP["server links"], servers=links.servers, rtts=join(rtts, "or"))
    return ", ".join([text, *([join(rates, "or")] if rates else [])])


def _measured_rtts(summary: Summary) -> str:
    """RTTs measured without load, from the shortest to the longest: `0.21ms to 0.23ms`. Empty: none was measured."""
    rtts_ns = sorted(cell.rest_rtt_ns for cell in shown_cells(summary) if cell.rest_rtt_ns is not None)
    return " to ".join(dict.fromkeys(format_duration_ns(rtt) for rtt in (*rtts_ns[:1], *rtts_ns[-1:])))


MAX_NAMES = 5
"""Maximum number of names in a warning; if there are more, their number is given instead."""


def warning_lines(summary: Summary) -> list[str]:
    """Warnings of the session, except what the line on certainty says, then arms without figures, then warnings of arms. Arms with
    the same warning share a line."""
    said = {Diagnostic.BUSY_MACHINE} if summary.good_trials or summary.answer.is_missing else set()
    lines = [_session_warning(warning, summary) for warning in summary.warnings if warning not in said]
    lines += [f"{line}." for line in host_note_lines(summary.hosts)] if summary.hosts is not None else []
    arms_by_text: dict[str, list[str]] = {}
    has_few_blocks = (summary.complete_blocks or summary.blocks) < FEW_BLOCKS
    for cell in summary.cells:
        for warning in cell.warnings:
            if warning is Diagnostic.WIDE_INTERVAL or (warning is Diagnostic.FEW_BLOCKS and has_few_blocks):
                continue  # the line below the answer says so
            text = fill(MEANINGS[warning], few_blocks=FEW_BLOCKS)
            arms_by_text.setdefault(f"{text}.", []).append(cell.arm)
    lines += unmeasured_lines(summary)
    return lines + [f"{_names_or_count(names, len(summary.cells))}: {text}" for text, names in arms_by_text.items()]


def _session_warning(warning: Diagnostic, summary: Summary) -> str:
    """A sentence. The cause of uneven CPU times is guessed unless other programs used CPUs in most trials."""
    disturbance = summary.disturbance
    is_known = disturbance is not None and disturbance.trials > disturbance.of / 2
    scatter = figures.share(summary.cpu_scatter) if summary.cpu_scatter else ""
    speed = figures.share(summary.speed_scatter) if summary.speed_scatter else ""
    return note(MEANINGS[warning], few_blocks=FEW_BLOCKS, scatter=scatter, speed=speed, guess=not is_known)


def _names_or_count(names: list[str], cells: int) -> str:
    """Names of arms if there are few, else their number."""
    if len(names) <= MAX_NAMES:
        return ("; " if any(", " in name for name in names) else ", ").join(names)
    if len(names) == cells:
        return "every cell"
    return fill(WARNINGS["some cells"], count=len(names), cells=cells)


MAX_ADVICE_SHOWN = 3
"""Maximum number of pieces of advice on the first screen."""

MAX_WARNINGS_SHOWN = 3
"""Maximum number of warnings on the first screen."""

PROGRAMS_KEY = "programs"
UNSHOWN_KEYS = ("counters", PROGRAMS_KEY)
"""Keys of a receipt that are not compared: counters, because they differ in every cell and prove no more than the other parts; and
other programs, which prove nothing of the path, and are never shown."""


def frame(
    summary: Summary,
    main_blocks: Sequence[Block],
    *,
    cards: tuple[Card, ...] = (),
    answer_charts: Sequence[Block] = (),
    more_blocks: Sequence[Block] = (),
    records: Sequence[Record] | None = None,
    is_about_ratios: bool = True,
    proofs: Sequence[str] = (),
) -> Document:
    """The document. The answer, `main_blocks` (such as the main table), warnings and advice form the first screen. `more_blocks`:
    charts and details of the experiment. Every report ends with method and receipts. `records`: by default those of the cells.
    `cards` and `answer_charts` show the answer; without one they are left out. `is_about_ratios`, `proofs`: see `certainty`."""
    answered = not summary.answer.is_missing
    first_advice, other_advice = _split_advice(summary)
    warnings = tuple(warning_lines(summary))
    blocks: list[Block] = [
        Answer(
            summary.verdict,
            cards if answered else (),
            summary.answer.why,
            certainty(summary, is_about_ratios, proofs),
            command_for_answer(summary),
            "" if answered else what_answers(summary),
            figures.unmeasured_parts(summary),
        ),
        *(answer_charts if answered else ()),
        *(figures.with_note_on_single_values(block) if isinstance(block, Table) else block for block in main_blocks),
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
                Text(fill(BLOCKS["repeat"], howfar=summary.howfar, run=summary.run, created=summary.created)),
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
    """What was measured, on what, when and for how long: `paths · mariadb 10.11.19 · 2 connections · 2026-11-28 14:05 UTC, 12 min`."""
    day, _, time = summary.created.partition("T")
    when = f"{day} {time[:5]} UTC".strip()
    span = "" if summary.measured_s is None else spoken_span(summary.measured_s)
    plan = f"{'quick ' if summary.quick else ''}{summary.plan}"
    version, *_ = summary.server["version"].partition("-")[0].split() or [""]
    kind, *_ = summary.server["kind"].split() or [""]
    server = f"{kind} {version}".strip()
    return SEPARATOR.join(
        part
        for part in (plan, server, _connections(summary), _one_link(summary), ", ".join(filter(None, (when, span))))
        if part
    )


def _connections(summary: Summary) -> str:
    """`2 connections`. Empty: their number varies."""
    return _connections_text(summary) if len(_distinct_levels(summary, "threads")) == 1 else ""


def _one_link(summary: Summary) -> str:
    """The link of all paths that cross one: `link 0.2 ms, 1 Gb/s`. Empty: there is none, or there are several."""
    rtts, rates = (_distinct_levels(summary, factor) for factor in ("rtt_ns", "rate_bps"))
    if len(rtts) != 1 or len(rates) > 1 or on_hosts(summary):
        return ""
    return fill(SETUP["one link"], rtt=float(rtts[0]), rate=float(rates[0]) if rates else 0)


def _context(summary: Summary) -> list[Block]:
    """The links between hosts; without an answer, how far the run got. Empty: neither."""
    session = capital(figures.trials_line(summary)) if summary.answer.is_missing else ""
    parts = [part for part in (session, _host_distances_line(summary)) if part]
    return [Text(f"{'. '.join(parts)}.", quiet=True)] if parts else []


def controls_text(summary: Summary) -> str:
    """Results of controls: `Controls: remote against itself 1.01 [0.97, 1.05]; an RTT longer by 10 µs measured as 11 [4, 18] µs`.
    Empty: none."""
    controls = []
    for control in summary.controls:
        outcome, measured = _control_outcome(control), control.measured
        if control.is_same:
            quantile, value = control.unit != "ratio", interval_text(measured)
            same = {"reference": control.reference, "measured": value, "quantile": quantile, "outcome": outcome}
            controls.append(fill(METHOD["same"], **same))
            continue
        limits = [_microseconds(limit) for limit in (measured.low, measured.high) if limit is not None]
        controls.append(
            fill(
                METHOD["longer"],
                injected=control.injected,
                levels=control.distinguishing_levels,
                value=_microseconds(measured.value),
                interval=f"[{', '.join(limits)}]" if len(limits) == 2 else METHOD["no interval"],
                outcome=outcome,
            )
        )
    return capital(fill(METHOD["controls"], controls="; ".join(controls))) if controls else ""


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
    all_advice = [
        AdviceBlock(advice.action, advice.because, advice.lines if advice.id in COMMANDS else ())
        for advice in summary.advice
    ]
    first_blocks = what_to_do(all_advice[:MAX_ADVICE_SHOWN])
    more_advice = tuple(all_advice[MAX_ADVICE_SHOWN:])
    return first_blocks, [*([Details("More advice", more_advice)] if more_advice else []), *configuration(summary)]


def configuration(summary: Summary) -> list[Block]:
    """The advice that comes with lines for a file, with these lines. Empty: none does."""
    blocks = [
        block
        for advice in summary.advice
        if advice.lines and advice.id not in COMMANDS
        for block in (Text(advice.action), Code(advice.lines))
    ]
    return [Details("Configuration", tuple(blocks), open=True)] if blocks else []


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
        *(note(METHOD["published"], source=source) for source in figures.published_sources(summary)),
    ]
    return Details("How it was measured", (Bullets(tuple(line for line in lines if line)),))


def _design_line(summary: Summary) -> str:
    if figures.has_only_faults(summary) or not summary.complete_blocks:
        return ""
    incomplete = summary.blocks - summary.complete_blocks
    return note(
        METHOD["design"],
        blocks=summary.complete_blocks,
        settled=any(cell.settled_after for cell in summary.cells),
        incomplete=incomplete,
        lack="lacks" if incomplete == 1 else "lack",
        comparisons=summary.comparisons,
    )


def _machine_lines(summary: Summary) -> list[str]:
    """Lines on how much of the machine other programs used, and on whether that changed the figures."""
    machine, others = summary.machine_cpus, summary.others_cpus
    busy = Diagnostic.BUSY_MACHINE in summary.warnings
    lines = [
        note(METHOD["others unknown"])
        if others is None
        else note(METHOD["others"], cpus=figures.cpus(others), machine=machine, busy=busy, steal=stolen(summary))
    ]
    pressure = sorted(trial.cpu_pressure for trial in summary.trials if trial.cpu_pressure is not None)
    if pressure:
        lines.append(note(METHOD["pressure"], share=figures.share(pressure[len(pressure) // 2])))
    spread = summary.baseline_spread
    if spread is not None and spread.cpu_per_query is not None:
        varies_less = round(spread.cpu_per_query, 2) < round(spread.qps, 2)
        lines.append(
            note(
                METHOD["spread"],
                unit=singular(summary.operation_unit),
                units=summary.operation_unit,
                varied=METHOD["varied less" if varies_less else "varied not less"],
                baseline=baseline_name(summary),
                cpu=spread.cpu_per_query,
                throughput=spread.qps,
            )
        )
    return lines


def _void_note(summary: Summary) -> str:
    """Note on void trials. Only paths over the link can be void because of a late packet."""
    line = figures.void_line(summary)
    is_link_reason = any(kind.violation.is_over_link for kind in summary.voids)
    return f"{line} {note(METHOD['void over the link'])}" if is_link_reason else line


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
        used = figures.cpus(cpus_used[arm])
        lines.append(note(METHOD["emulator"], cpus=used, machine=summary.machine_cpus, arm=arm))
    cells_with_scatter = [(cell.scatter, cell.arm) for cell in cells if cell.scatter]
    if cells_with_scatter:
        scatter, arm = max(cells_with_scatter, key=lambda entry: entry[0].calibration)
        rtt, alone, total = map(figures.percent, (scatter.rtt, scatter.calibration, scatter.total))
        lines.append(note(METHOD["scatter"], rtt=rtt, arm=arm, alone=alone, total=total))
    cells_with_shift = [(scatter, arm) for scatter, arm in cells_with_scatter if scatter.shift is not None]
    if cells_with_shift:
        scatter, arm = max(cells_with_shift, key=lambda entry: abs(entry[0].shift or 0.0))
        rtt_deviation, shift = scatter.rtt_off or 0.0, scatter.shift or 0.0
        lines.append(
            note(
                METHOD["shift"],
                rtt=figures.percent(abs(rtt_deviation)),
                longer="longer" if rtt_deviation > 0 else "shorter",
                arm=arm,
                shift=figures.percent(abs(shift)),
                lower="lower" if shift < 0 else "higher",
            )
        )
    if late := {arm: -scatter.late for scatter, arm in cells_with_scatter if scatter.late is not None}:
        arm = max(late, key=lambda name: late[name])
        lines.append(note(METHOD["late"], arm=arm, late=figures.percent(late[arm])))
    limited = [cell.limit.resource for cell in cells if cell.limit]
    if limited:
        if len(limited) <= _MAX_LISTED_CELLS:
            limits = "; ".join(limit_text.cell_limit_text(cell) for cell in cells if cell.limit)
            lines.append(note(METHOD["limits"], limits=limits))
        load, emulator = limited.count(Resource.CLIENT_CPU), limited.count(Resource.INSTRUMENT_CPU)
        lines.append(note(METHOD["instrument's limits"], load=load, cells=len(limited), emulator=emulator))
    busy = [cell.arm for cell in summary.cells if Diagnostic.CLIENT_LIMITED in cell.warnings]
    if busy:
        lines.append(note(METHOD["busy"], arms=", ".join(busy)))
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
    zones = ", ".join(f"{name} {facts.zone}" for name, facts in summary.environment.hosts.items())
    caption = fill(BLOCKS["hosts"], zones=zones)
    fields: Fields[LinkReceipt] = {
        "from": lambda link: str(link.from_host),
        "to": lambda link: str(link.to_host),
        "unloaded RTT": lambda link: _rtt_text(link.rtt_ns),
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
        introduction = Text(fill(BLOCKS["receipts"], arm=first.arm))
        others: Iterable[Block] = (
            Details(cell.arm, (Facts(_receipt_difference(cell.receipt.as_json(), first.receipt.as_json())),))
            for cell in cells[1:]
        )
        shown = {key: value for key, value in first.receipt.as_json().items() if key != PROGRAMS_KEY}
        contents = (introduction, Details(first.arm, (Facts(shown),)), *others)
        blocks.append(Details("Receipts", contents))
    return [*blocks, Details("Machine and versions", (Facts(summary.environment.as_json()),))]


def _receipt_difference(receipt: Mapping[str, object], other_receipt: Mapping[str, object]) -> Mapping[str, object]:
    """Values of `receipt` that differ from `other_receipt`, also in nested tables. Values that only `other_receipt` has are
    "absent"."""
    difference: dict[str, object] = {}
    for key in {**receipt, **other_receipt}:
        value, other_value = receipt.get(key), other_receipt.get(key)
        if value == other_value or key in UNSHOWN_KEYS:
            continue
        if isinstance(value, Mapping) and isinstance(other_value, Mapping):
            difference[key] = _receipt_difference(value, other_value)
        else:
            difference[key] = value if key in receipt else "absent"
    return difference
