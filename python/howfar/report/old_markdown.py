"""The report for an issue, a wiki or a mail: the same table and sentences in Markdown."""

from __future__ import annotations

from howfar.analysis.summary import Advice, CellSummary, Summary
from howfar.analysis.workload_line import ONE
from howfar.experiments.page.report.text import parts as page_parts
from howfar.report import figures, tables
from howfar.report.grid import is_grid
from howfar.report.setup import head_line
from howfar.report.warnings import warning_lines


def _escape(text: str) -> str:
    return text.replace("|", "\\|")


def render(summary: Summary) -> str:
    """Markdown with pipe tables, ending in a newline."""
    blocks = [
        f"# howfar: {summary.plan}",
        f"**{summary.verdict}**",
        f"{head_line(summary)}.",
        *_findings(summary),
        figures.noise_line(summary),
        "" if is_grid(summary) or figures.has_own_tables(summary) else figures.cpu_note(summary),
        *_published(summary),
        "\n".join(f"- {line}" for line in warning_lines(summary)),
        "## What to do" if summary.advice else "",
        "\n".join(_advice(number, advice) for number, advice in enumerate(summary.advice, 1)),
        figures.void_line(summary),
        f"Repeat with:\n\n```\n{summary.command}\n```",
    ]
    return "\n\n".join(block for block in blocks if block) + "\n"


def _findings(summary: Summary) -> list[str]:
    if parts := page_parts(summary):
        return [block for part in parts for block in ([part] if isinstance(part, str) else _section(part))]
    return [_table(summary), *_confirmations(summary)]


def _row(cells: list[str]) -> str:
    return "| " + " | ".join(_escape(cell) for cell in cells) + " |"


def _confirmations(summary: Summary) -> list[str]:
    found = tables.confirmations(summary)
    return _section(found) if found else []


def _section(table: tables.Table) -> list[str]:
    head = [f"{upper} {lower}".strip() for upper, lower in table.head]
    lines = [
        _row(head),
        "|---|" + "---:|" * (len(head) - 1),
        *(_row([cell.strip() for cell in row]) for row in table.rows),
    ]
    return [f"## {table.title}", "\n".join(lines), *table.notes]


def _table(summary: Summary) -> str:
    cells = figures.shown_cells(summary)
    if not cells:
        return ""
    base = figures.baseline_name(summary)
    head = ["path", f"{summary.asked}/s", f"of {base} [95 %]", "reads as", "p50 / p95 / p99 ms per transaction"]
    head += [
        f"CPU µs/{ONE[summary.asked]} (client+server+forwarder)",
        "CPU x",
        "turns/txn",
        "bytes/txn out / in",
        "published",
    ]
    return "\n".join([_row(head), "|---|" + "---:|" * (len(head) - 1), *(_row(_cells(cell)) for cell in cells)])


def _cells(cell: CellSummary) -> list[str]:
    latency, size = cell.latency_ms, cell.bytes_per_txn
    return [
        cell.arm,
        f"{figures.number(cell.qps.value)} {figures.plus_minus(cell.qps)}",
        figures.ratio(cell.ratio),
        figures.reading(cell),
        " / ".join(figures.number(value) for value in (latency.p50, latency.p95, latency.p99)),
        f"{figures.number(figures.cpu_total(cell))} ({figures.cpu_parts(cell)})",
        figures.cpu_ratio(cell),
        f"{cell.turns_per_txn:.4g}",
        f"{figures.whole(size.to_server)} / {figures.whole(size.to_client)}",
        f"{cell.published.ratio:.2f} ({cell.published.qps:,.0f}/s)" if cell.published else figures.UNKNOWN,
    ]


def _published(summary: Summary) -> list[str]:
    return [f"Published elsewhere: {text}. Not our measurement." for text in figures.published_sources(summary)]


def _advice(number: int, advice: Advice) -> str:
    text = f"{number}. **{advice.action}** {advice.because}"
    if advice.lines:
        text += "\n\n" + "\n".join(["   ```", *(f"   {line}" for line in advice.lines), "   ```"])
    return text
