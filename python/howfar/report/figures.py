"""Numbers and short phrases as text, for all reports, so that terminal, HTML and Markdown agree."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import replace

from howfar.analysis.cells import Bound, CellSummary
from howfar.analysis.controls import SAME_OTHER_KIND
from howfar.analysis.summary import Summary
from howfar.analysis.voids import VoidKind
from howfar.findings import fill, join, note, table_number
from howfar.plan.factors import has_fault, offered_per_s
from howfar.report.document import Table
from howfar.report.texts import BLOCKS, METHOD, SESSION, STOPS, WARNINGS
from howfar.stats.estimate import Estimate
from howfar.stats.intervals import (
    MIN_BLOCKS,
    Resolution,
    estimate_text,
    half_width,
    half_width_text,
    interval_text,
    noise_floor_text,
    share_text,
)
from howfar.stats.trials import singular
from howfar.store.records import ArmRole, StopReason
from howfar.units import counted, spoken_rate

UNKNOWN = "-"
"""Text for figures that were not measured, or that this path does not have."""


def number(value: float | None) -> str:
    """A number with three to four significant digits, thousands grouped: `27,862`, `34.9`, `2.08`, `0.0412`."""
    return UNKNOWN if value is None else table_number(value)


def interval_line(interval: tuple[float, float] | None, format_value: Callable[[float], str] = number) -> str:
    """An interval, `[0.41, 0.44]`, as the second line of a figure. Empty without one, or if both limits have the same digits."""
    low, high = ("", "") if interval is None else map(format_value, interval)
    return f"[{low}, {high}]" if low != high else ""


def whole_number(value: float | None) -> str:
    """A whole number: `11,047`."""
    return UNKNOWN if value is None else f"{value:,.0f}"


def ratio(estimate: Estimate | None) -> str:
    """A ratio with its interval, `0.81 [0.80, 0.83]`; the baseline over itself is `1`."""
    if estimate is None:
        return UNKNOWN
    if estimate.low == estimate.high == estimate.value == 1:
        return "1"
    return interval_text(estimate)


def ratio_value(estimate: Estimate | None) -> str:
    """The value of `ratio` without its interval."""
    return ratio(estimate).split(" ", 1)[0]


def ratio_limits(estimate: Estimate | None) -> str:
    """The interval of `ratio` without the value, in its brackets. Empty for the baseline."""
    return ratio(estimate).partition(" ")[2]


BOUND_MARKS = {Bound.MEASURED: "", Bound.AT_LEAST: "+", Bound.AT_MOST: "-"}
"""Marks after a CPU ratio of which a part is not counted. They are no `≥`: it would contradict the interval, which begins lower."""


def cpu_ratio(cell: CellSummary) -> str:
    """A CPU ratio, `1.23 [1.22, 1.24]`; `1.33+ [1.32, 1.34]` if part of the path's CPU is not counted."""
    return f"{cpu_point(cell)} {ratio_limits(cell.cpu_ratio)}".rstrip()


def cpu_point(cell: CellSummary) -> str:
    """The value of `cpu_ratio` with its mark, without the interval."""
    return f"{ratio_value(cell.cpu_ratio)}{BOUND_MARKS[cell.cpu_bound]}" if cell.cpu_ratio else UNKNOWN


def on_hosts(summary: Summary) -> bool:
    """Whether the run was measured between the user's own hosts."""
    return summary.environment.on_hosts


def _cpu_marks(summary: Summary) -> str:
    """The marks after CPU ratios, `+ or -`; empty if no ratio has one."""
    bounds = {cell.cpu_bound for cell in shown_cells(summary)}
    return " or ".join(mark for bound, mark in BOUND_MARKS.items() if mark and bound in bounds)


def cpu_bound_note(summary: Summary) -> str:
    """Meaning of the marks after CPU ratios, for a table; empty if no ratio has one."""
    marks = _cpu_marks(summary)
    more, less = "+" in marks, "-" in marks
    return note(BLOCKS["cpu bound"], more=more, less=less, both=more and less) if marks else ""


def cpu_note(summary: Summary) -> str:
    """Meaning of the marks after CPU ratios in detail; empty if no ratio has one."""
    marks = _cpu_marks(summary)
    if not marks:
        return ""
    where = METHOD["cpu of a link" if on_hosts(summary) else "cpu of the emulator"]
    return note(METHOD["cpu"], sign=marks, where=where)


def plus_minus(estimate: Estimate) -> str:
    """Half the width of a symmetric interval, in the unit of the value: `± 1,191`."""
    if estimate.low is None or estimate.high is None:
        return "no interval"
    return f"± {number((estimate.high - estimate.low) / 2)}"


def share(value: float | None) -> str:
    """A share: `1.7 %`, `> 100 %`."""
    return UNKNOWN if value is None else share_text(value)


def cpus(count: float | None) -> str:
    """Number of CPUs kept busy: `0.94`."""
    return UNKNOWN if count is None else f"{count:.2f}"


def size(count: float) -> str:
    """Bytes, shortened: `812 B`, `8.4 kB`."""
    return f"{count:,.0f} B" if count < 1000 else f"{count / 1000:.1f} kB" if count < 1e6 else f"{count / 1e6:.1f} MB"


def cpu_total(cell: CellSummary) -> float | None:
    """CPU microseconds per query of the path, without the emulator's. None: the server's are unknown."""
    cpu = cell.cpu_us_per_query
    if cpu.server is None:
        return None
    return cpu.client.value + cpu.server.value + (cpu.forwarder.value if cpu.forwarder else 0.0)


def cpu_parts(cell: CellSummary) -> str:
    """CPU time of client and server, `6.1+22.4`; with forwarders, theirs as a third term."""
    cpu = cell.cpu_us_per_query
    parts = [cpu.client, cpu.server] + ([cpu.forwarder] if cpu.forwarder else [])
    return "+".join("?" if part is None else f"{part.value:.1f}" for part in parts)


TOO_CLOSE = "too close to call"
"""Stands for a difference that the run does not tell from chance, also where its interval excludes 1: among several comparisons one
may do so by chance, and the same path measured twice may differ by as much. The line on certainty says which."""
TOO_FEW_TRIALS = "too few trials"
"""Stands for a difference without an interval."""
_THROUGHPUT_WORDS = {Resolution.SLOWER: "fewer", Resolution.FASTER: "more"}
"""What a ratio of throughputs shows: of operations per second there are fewer or more, never slower or faster ones."""
_CPU_WORDS = {Resolution.SLOWER: "more", Resolution.FASTER: "less"}
"""What a ratio of CPU times per operation shows."""


def resolution_text(cell: CellSummary) -> str:
    """Meaning of the ratio in words, because colour must not be the only indication."""
    if cell.resolution is Resolution.BASELINE:
        return "reference"
    if cell.ratio is None:
        return "no common block" if offered_per_s(cell.factors) is None else "at a given rate"
    if cell.ratio.low is None:
        return TOO_FEW_TRIALS
    return _THROUGHPUT_WORDS.get(cell.resolution, TOO_CLOSE)


def shown_cells(summary: Summary) -> list[CellSummary]:
    """The cells that tables show. The A/A arm has no row but a line of its own, unless there is nothing else to compare."""
    if not any(cell.role is ArmRole.CONTENDER for cell in summary.cells):
        return list(summary.cells)
    return [cell for cell in summary.cells if cell.role is not ArmRole.DUPLICATE]


def baseline_name(summary: Summary) -> str:
    return next((cell.arm for cell in summary.cells if cell.role is ArmRole.BASELINE), "baseline")


def noise_line(summary: Summary) -> str:
    """The noise floor in one or two sentences, and notes on arms, limits and reads of keys. Empty if nothing is compared."""
    if has_only_faults(summary):
        return ""
    lines = (_noise_floor(summary), settled_line(summary), unconfirmed_line(summary), keys_line(summary))
    return " ".join(text for text in lines if text)


def has_only_faults(summary: Summary) -> bool:
    """Whether every cell has a fault. Rates are then those before the fault, and ratios are not of interest."""
    return summary.blocks > 0 and all(has_fault(cell.factors) for cell in summary.cells)


def settled_line(summary: Summary) -> str:
    """Arms that settled: `Settled on a plateau and measured no further: tcp, 64 threads (after 4 blocks).` Empty if there are none."""
    settled = [
        fill(METHOD["settled arm"], arm=cell.arm, blocks=cell.settled_after)
        for cell in summary.cells
        if cell.settled_after is not None
    ]
    return note(METHOD["settled"], arms="; ".join(settled)) if settled else ""


def keys_line(summary: Summary) -> str:
    """Whether reads of keys found values. Empty: no key-value store."""
    reads = {cell.arm: cell.keys for cell in summary.cells if cell.keys and cell.keys.hits + cell.keys.misses}
    arms_with_misses = {arm: counts for arm, counts in reads.items() if counts.misses}
    if not reads:
        return ""
    if not arms_with_misses:
        return note(METHOD["keys"], keys=sum(counts.hits for counts in reads.values()))
    shares = [
        f"{arm} {share(counts.misses / (counts.hits + counts.misses))}" for arm, counts in arms_with_misses.items()
    ]
    return note(METHOD["missing keys"], shares=", ".join(shares))


def unconfirmed_line(summary: Summary) -> str:
    """Limits that were to be tested but could not be. Also empty if no test was requested."""
    parts = [f"{limit.arm} ({limit.resource.value}: {limit.why})" for limit in summary.unconfirmed]
    return note(METHOD["unconfirmed"], limits="; ".join(parts)) if parts else ""


def _noise_floor(summary: Summary) -> str:
    if summary.aa_ratio is None or summary.noise_floor is None:
        return note(METHOD["no floor"])
    cpu_floor = summary.cpu_noise_floor
    # Arms whose noise floor comes from an A/A arm other than the baseline's.
    others = [control.reference for control in summary.controls if control.name == SAME_OTHER_KIND]
    return note(
        METHOD["floor"],
        floor=floors_text(summary.noise_floor, summary.link_noise_floor),
        baseline=baseline_name(summary),
        ratio=ratio(summary.aa_ratio),
        others=" and ".join(others),
        unit=singular(summary.operation_unit),
        cpu=floors_text(cpu_floor, summary.link_cpu_noise_floor) if cpu_floor else "",
    )


def floors_text(floor: float, over_link: float | None) -> str:
    """A noise floor: `1.2 %`, or `1.2 %, over the link 3.4 %` if that is larger."""
    if over_link is None or over_link <= floor:
        return noise_floor_text(floor)
    return fill(METHOD["floor over the link"], floor=noise_floor_text(floor), over_link=noise_floor_text(over_link))


def compared_cells(summary: Summary) -> list[CellSummary]:
    """The shown cells whose throughput is compared with the baseline's."""
    return [
        cell
        for cell in shown_cells(summary)
        if cell.ratio and cell.role is not ArmRole.BASELINE and offered_per_s(cell.factors) is None
    ]


def _compared_ratios(summary: Summary) -> list[Estimate]:
    return [cell.ratio for cell in compared_cells(summary) if cell.ratio is not None]


_VISIBLE_DIFFERENCE = 0.02
"""Relative difference of two figures from which a reader sees it."""


def ratios_differ_from_rows(summary: Summary) -> bool:
    """Whether a ratio, as the mean within blocks, visibly differs from that of the two throughputs that are shown."""
    baseline = next((cell for cell in summary.cells if cell.role is ArmRole.BASELINE), None)
    if baseline is None or not baseline.qps.value:
        return False
    quotients = (
        (cell.ratio.value, cell.qps.value / baseline.qps.value)
        for cell in shown_cells(summary)
        if cell.ratio is not None and offered_per_s(cell.factors) is None
    )
    return any(abs(ratio - quotient) > _VISIBLE_DIFFERENCE * ratio for ratio, quotient in quotients)


def widest_interval(summary: Summary) -> float | None:
    """The largest half-width of a ratio of throughputs, as a share. None: no ratio has an interval."""
    widths = [width for ratio in _compared_ratios(summary) if (width := half_width(ratio)) is not None]
    return max(widths, default=None)


def widest_interval_text(summary: Summary) -> str:
    """The widest interval: `widest interval of a ratio ±2.3 % (requested ±5.0 %)`. Empty if no throughput is compared."""
    if not _compared_ratios(summary) or has_only_faults(summary):
        return ""
    if (width := widest_interval(summary)) is None:
        return fill(SESSION["no intervals"], needed=MIN_BLOCKS)
    has_rates = any(offered_per_s(cell.factors) is not None for cell in summary.cells)
    wanted = half_width_text(summary.target_half_width)
    return fill(SESSION["widest"], has_rates=has_rates, width=half_width_text(width), wanted=wanted)


def session_line(summary: Summary) -> str:
    """Number of blocks and of trials, and reason for the end of the run."""
    incomplete = max(summary.blocks - summary.complete_blocks, 0) if summary.complete_blocks else 0
    several = incomplete if incomplete > 1 else 0
    blocks = fill(SESSION["blocks"], blocks=summary.blocks, one=incomplete == 1, several=several)
    return "; ".join(part for part in (blocks, trials_line(summary), widest_interval_text(summary)) if part)


def trials_line(summary: Summary) -> str:
    """Number of trials, why others do not count, and reason for the end of the run."""
    good_trials = len(summary.trials) - summary.void_trials if summary.good_trials is None else summary.good_trials
    parts = (counted(good_trials, "trial"), _void_text(summary), _stop_text(summary))
    return "; ".join(part for part in parts if part)


def _stop_text(summary: Summary) -> str:
    """Why the run ended; of one that measured as often as requested, that this is too rarely for an answer."""
    if not summary.answer.is_missing or summary.stop != StopReason.BLOCKS:
        return STOPS[summary.stop]
    requested = max((trial.block for trial in summary.trials), default=0) + 1
    few = "few" if requested <= summary.blocks else "few good"
    return fill(SESSION[few], blocks=summary.blocks, needed=MIN_BLOCKS, incomplete=summary.missing_trials)


def _void_text(summary: Summary) -> str:
    """Number of void trials, and why. Empty without any."""
    void = summary.void_trials
    if not void or not summary.voids:
        return ""
    counts = {"void": void, "one": void == 1, "several": void > 1, "left_out": summary.left_out_trials}
    are_several = void + summary.left_out_trials > 1
    again = fill(
        SESSION[_again(summary)],
        missing=summary.missing_trials,
        lack=summary.missing_trials > 1,
        lacks=summary.missing_trials == 1,
        one=not are_several,
        several=are_several,
    )
    return fill(SESSION["void"], **counts, mostly=len(summary.voids) > 1, cause=void_cause(summary), again=again)


def _again(summary: Summary) -> str:
    """Whether the void trials were measured again: the id of the text."""
    if summary.missing_trials < summary.void_trials:
        return "some again" if summary.missing_trials else "all again"
    return "not again" if summary.stop in (StopReason.BLOCKS, StopReason.WIDTH) else "again on resume"


def void_cause(summary: Summary) -> str:
    """The most frequent cause of void trials: `packets to the client were late on the emulated link`. Empty: there are none."""
    return summary.voids[0].violation.cause if summary.voids else ""


def void_line(summary: Summary) -> str:
    """Number of void trials, and why; the good trials that were excluded with them, and the effect of all exclusions on the figures.
    Empty without void trials."""
    if not summary.void_trials:
        return ""
    several = sum(kind.count for kind in summary.voids) > summary.void_trials
    reasons = "; ".join(f"{kind.count} x {_kind_text(kind)}" for kind in summary.voids)
    lines = [note(METHOD["void"], trials=summary.void_trials, several=several, reasons=reasons)]
    if summary.left_out_trials:
        lines.append(note(METHOD["left out"], trials=summary.left_out_trials))
    if summary.void_shift is not None:
        ratio_shift = "" if summary.void_ratio_shift is None else share(summary.void_ratio_shift)
        lines.append(note(METHOD["void shift"], cell=share(summary.void_shift), ratio=ratio_shift))
    return " ".join(lines)


def _kind_text(kind: VoidKind) -> str:
    """The sentence of one kind of violation, with the figures of one trial."""
    return f"{kind.violation.sentence} (figures vary)" if kind.varies else kind.violation.sentence


def published_sources(summary: Summary) -> list[str]:
    """Sources of the published figures that are shown next to ours, with their set-ups, without repetition."""
    sources = {f"{cell.published.source}: {cell.published.setup}" for cell in summary.cells if cell.published}
    return sorted(sources)


def unmeasured_lines(summary: Summary) -> list[str]:
    """Each arm without a good trial, and why. If nothing was measured at all, the reasons for void trials come first."""
    lines = [] if summary.cells or not summary.void_trials else [void_line(summary)]
    for arm in summary.unmeasured:
        reason = _kind_text(arm.voids[0]) if arm.voids else WARNINGS["never reached"]
        others = join(list(dict.fromkeys(kind.violation.cause for kind in arm.voids[1:])))
        figures = {"arm": arm.arm, "void": arm.void_trials, "reason": reason, "others": others}
        lines.append(fill(WARNINGS["unmeasured"], **figures))
    return lines


_LEFT_OUT = "left out: "
"""With this begin a run's notes on levels that were not measured: `plan/fitting.py` writes the factor, the levels, and why."""


def unmeasured_parts(summary: Summary) -> str:
    """Parts of the question that were not measured: `compression zstd-1 (mariadb 10.11.19 has no zstd, only zlib).` Empty: none."""
    version = summary.server["version"]
    notes = [
        note.removeprefix(_LEFT_OUT).replace(version, version.partition("-")[0]).partition(": ")
        for note in (*summary.environment.not_as_requested, *summary.lost_levels)
        if note.startswith(_LEFT_OUT)
    ]
    parts = [f"{what} ({why})" if why else what for what, _, why in notes]
    return f"{'; '.join(parts)}." if parts else ""


_SINGLE_VALUES = re.compile(r"\(-?[\d.,]+(?:, -?[\d.,]+)+\)")


def with_note_on_single_values(table: Table) -> Table:
    """The table, with a note if it has values of single blocks in place of an interval."""
    has_values = any(_SINGLE_VALUES.search(cell.line) for row in table.rows for cell in row)
    return replace(table, notes=(*table.notes, note(BLOCKS["single values"]))) if has_values else table


def trial_head(summary: Summary) -> tuple[str, str, str]:
    """Column headings of `trial_rows` after the arm."""
    return f"{summary.operation_unit}/s", "some task waited for a CPU", "CPUs used by others"


def trial_rows(summary: Summary) -> list[list[str]]:
    """Every trial in the order in which they ran: number, block, arm, and the fields of `trial_head`."""
    return [
        [
            str(trial.number),
            str(trial.block),
            trial.arm,
            number(trial.qps) if trial.qps else "void",
            share(trial.cpu_pressure),
            cpus(trial.others_cpus),
        ]
        for trial in summary.trials
    ]


def cpu_resolution_text(resolution: Resolution) -> str:
    """Meaning of the CPU ratio in words."""
    return "reference" if resolution is Resolution.BASELINE else _CPU_WORDS.get(resolution, TOO_CLOSE)


def rate(bps: float | None) -> str:
    """A rate: `0.27 Gb/s`, `640 Mb/s`."""
    return UNKNOWN if bps is None else spoken_rate(bps)


def percent(value: float | None, signed: bool = False) -> str:
    """A percentage: `3.4 %`, `-1.2 %`."""
    return UNKNOWN if value is None else f"{value * 100:{'+' if signed else ''}.1f} %"


def with_interval(estimate: Estimate | None) -> str:
    """An estimate with three digits and its interval: `2.1 [2.0, 2.3]`; without an interval, the values of single blocks."""
    if estimate is None:
        return UNKNOWN
    points = f"({', '.join(map(number, sorted(estimate.points)))})" if len(estimate.points) > 1 else ""
    return estimate_text(estimate, number, points)


def interval_head(estimates: Iterable[Estimate | None]) -> str:
    """The column heading for what follows these estimates: intervals, or else values of single blocks. Empty: nothing follows."""
    known = [each for each in estimates if each is not None]
    if any(each.low is not None for each in known):
        return "[95 % interval]"
    return "(single values)" if any(len(each.points) > 1 for each in known) else ""
