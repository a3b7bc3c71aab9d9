"""The result of `howfar bench link` on a terminal: a line for each link, a line for each bar."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from howfar.bench.links.bars import Verdict
from howfar.bench.links.figures import Extra, Figure, LinkBench, LinkPoint, Obtained, Peer, Row, RunsOn
from howfar.cli.screen import cpu_list
from howfar.units import format_duration_ns, format_rate_bps

MISSED = "!"
"""Follows the figure of a link that misses a bar."""
SHARE_MOST = 1.5


def show(found: LinkBench, screen: Console) -> None:
    setting = found.setting
    lines = [_heading(found)]
    if setting.peer_skipped:
        lines.append(f"Peer skipped: {setting.peer_skipped}")
    processes = (("Our emulator", setting.ours_runs_on), ("the peer", setting.peer_runs_on))
    lines.append("; ".join(_process(name, runs) for name, runs in processes if runs is not None))
    _print(screen, lines)
    screen.print(_links(found.rows))
    _print(screen, [*notes(found.rows), *failures(found.rows)])
    if setting.busy:
        screen.print(Text("Other programs were running at the start. Measure again when the machine is quiet."))
    screen.print()
    screen.print(_bars(found))
    _print(screen, [_extra(extra) for extra in found.extras])


def _print(screen: Console, lines: Sequence[str]) -> None:
    for line in filter(None, lines):
        screen.print(Text(line))


def _heading(found: LinkBench) -> str:
    setting = found.setting
    scheduling = {None: "no emulator", True: "real-time class"}.get(
        setting.realtime, "short slice" if setting.short_slice else "ordinary scheduling"
    )
    peer = f", compared with {setting.peer}" if setting.peer and not setting.peer_skipped else ""
    runs = "1 run" if setting.runs == 1 else f"{setting.runs} runs, medians"
    rights = "" if setting.privileged else ", without root (weaker bars)"
    return (
        f"howfar {setting.howfar} on {setting.kernel}, CPUs {cpu_list(setting.cpus)}, load average "
        f"{setting.load_average:.1f}: back-end {setting.backend}, {scheduling}{rights}, {setting.congestion_control}{peer}; {runs}"
    )


def _process(name: str, runs: RunsOn) -> str:
    return f"{name} on CPUs {cpu_list(runs.cpus)}, {' and '.join(runs.scheduling)}"


def name_of(asked: LinkPoint) -> str:
    rate = "no rate" if asked.rate_bps is None else format_rate_bps(asked.rate_bps)
    return f"{format_duration_ns(asked.rtt_ns)} {rate}"


def _goodput(got: Obtained) -> str:
    """As a share of what the rate allows. Far beyond it no rate was in force, and the share would mean nothing."""
    if got.goodput_ratio is None or got.goodput_ratio > SHARE_MOST:
        return f"{got.goodput_gbit:.3g} Gb/s"
    return f"{got.goodput_ratio:.2%}"


_OBTAINED: tuple[tuple[str, Callable[[Obtained], str], tuple[str, ...]], ...] = (
    ("RTT p50, ms", lambda got: f"{got.rtt_ms_p50:.3f}", ("RTT p50 error, µs",)),
    ("p99", lambda got: f"{got.rtt_ms_p99:.3f}", ("RTT p99 excess, µs",)),
    ("from idle", lambda got: f"{got.rtt_ms_p50_from_idle:.3f}", ()),
    ("goodput", _goodput, ("goodput off, %", "goodput, %")),
)
_COST: tuple[tuple[str, Callable[[Row | Peer], str], tuple[str, ...]], ...] = (
    ("core per Gb/s", lambda row: _figure(row.cpu_core_per_gbit), ("CPU, core per Gb/s",)),
    ("machine", lambda row: _figure(row.machine_core_per_gbit), ()),
    ("late p99.9, µs", lambda row: _figure(getattr(row, "lateness_us_p999", None)), ()),
    ("drops", lambda row: _figure(getattr(row, "drops", None)), ("unmodelled drops",)),
)
"""Heading, figure, and the bars that mark it."""


def _links(rows: Sequence[Row]) -> Table:
    made = Table(box=None, padding=(0, 2, 0, 0))
    made.add_column("link", overflow="fold")
    for heading, *_ in (*_OBTAINED, *_COST):
        made.add_column(heading, justify="right", overflow="fold")
    for row in rows:
        made.add_row(name_of(row.asked), *_line(row.obtained, row, {bar.bar for bar in row.bars if not bar.met}))
        if row.peer is not None:
            made.add_row(f"  {row.peer.name}", *_line(row.peer, row.peer, set()))
    return made


def _line(got: Obtained, cost: Row | Peer, missed: set[str]) -> list[str]:
    figures = [(show_figure(got), bars) for _, show_figure, bars in _OBTAINED]
    figures += [(show_cost(cost), bars) for _, show_cost, bars in _COST]
    return [f"{figure} {MISSED}" if missed.intersection(bars) else figure for figure, bars in figures]


def notes(rows: Sequence[Row]) -> list[str]:
    """What a peer does not support, once with all its links."""
    links: dict[tuple[str, str], list[str]] = {}
    for row in rows:
        if row.peer is not None and row.peer.note:
            links.setdefault((row.peer.name, row.peer.note), []).append(name_of(row.asked))
    return [
        f"{name} was {note}" + ("" if len(names) == len(rows) else f" ({', '.join(names)})")
        for (name, note), names in links.items()
    ]


def failures(rows: Sequence[Row]) -> list[str]:
    return [f"The peer failed at {name_of(row.asked)}: {row.peer_failed}" for row in rows if row.peer_failed]


def _bars(found: LinkBench) -> Table:
    """For each bar: how many links meet it, and each that does not, with its figure."""
    judged: dict[tuple[str, str], list[tuple[str, Verdict]]] = {}
    named = [(name_of(row.asked), bar) for row in found.rows for bar in row.bars]
    for name, bar in [*named, *((extra.name, bar) for extra in found.extras for bar in extra.bars)]:
        judged.setdefault((bar.bar, bar.limit), []).append((name, bar))
    made = Table(box=None, padding=(0, 2, 0, 0))
    for heading in ("bar", "required", "verdict"):
        made.add_column(heading, overflow="fold")
    for (bar_name, limit), verdicts in judged.items():
        made.add_row(bar_name, limit, verdict_on(verdicts, found.setting.runs > 1))
    return made


def verdict_on(verdicts: Sequence[tuple[str, Verdict]], several: bool) -> str:
    """`met`, or which links miss it and by how much; of several runs with the best one."""

    def figure(bar: Verdict) -> str:
        return f"{_figure(bar.median)} (best {_figure(bar.best)})" if several else _figure(bar.median)

    missed = [(name, bar) for name, bar in verdicts if not bar.met]
    alone = len(verdicts) == 1
    if not missed:
        return f"met: {figure(verdicts[0][1])}" if alone else f"met by {len(verdicts)} of {len(verdicts)}"
    figures = "; ".join(f"{name} {figure(bar)}" for name, bar in missed)
    return f"MISSED: {figures}" if alone else f"MISSED by {len(missed)} of {len(verdicts)}: {figures}"


def _extra(extra: Extra) -> str:
    sides = [f"skipped, {extra.skipped}" if extra.ours is None else f"ours {_of_runs(extra.ours)} {extra.unit}"]
    sides += [f"{one.name} {_of_runs(one.figure)} {extra.unit}" for one in extra.beside]
    return f"{extra.what}: {', '.join(sides)}"


def _of_runs(figure: Figure) -> str:
    best = f" (best {_figure(figure.best)})" if len(figure.runs) > 1 else ""
    return f"{_figure(figure.median)}{best}"


def _figure(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
