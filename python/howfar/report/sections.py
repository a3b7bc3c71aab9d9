"""The text sections of the HTML report: answer, table, advice, warnings, method, receipts. Charts are in `gallery.py`."""

from __future__ import annotations

from howfar.analysis.summary import Asked, CellSummary, Summary
from howfar.analysis.workload_line import ONE
from howfar.report import figures
from howfar.report.fragments import details, facts, sentence, text
from howfar.report.sceptic import questions
from howfar.report.setup import head_line
from howfar.report.warnings import warning_lines
from howfar.stats.estimate import Estimate
from howfar.stats.intervals import Resolution, excludes_one
from howfar.store.records import ArmRole


def answer(summary: Summary) -> str:
    """Verdict, one card a path with the big ratio, and what it rests on."""
    base = figures.baseline_name(summary)
    cards = "".join(_card(cell, base, summary.asked) for cell in summary.cells if cell.role is ArmRole.CONTENDER)
    return (
        f"<h1>howfar: {text(summary.plan)}{' (quick)' if summary.quick else ''}</h1>"
        f'<p class="verdict">{sentence(summary.verdict)}</p>'
        + (f'<div class="answers">{cards}</div>' if cards else "")
        + f'<p class="muted small">{sentence(head_line(summary))}.</p>'
        + f'<p class="small">{sentence(figures.noise_line(summary))}</p>'
    )


CPU_READING = {
    Resolution.SLOWER: "more",
    Resolution.FASTER: "less",
    Resolution.NOT_RESOLVED: "not resolved",
    Resolution.BASELINE: "reference",
}


def _card(cell: CellSummary, base: str, asked: Asked) -> str:
    if cell.ratio is None:
        head = f'<div class="answer"><span class="arm">{text(cell.arm)}</span><b>-</b>'
        return f"{head}<div>no common block with {text(base)}</div></div>"
    value, limits = figures.point(cell.ratio), figures.limits(cell.ratio)
    if cell.resolution is Resolution.NOT_RESOLVED:
        said = f"of {base}'s {asked} per second: {_unresolved(cell.ratio)}"
        limits = ""
    else:
        said = f"of {base}'s {asked} per second: {cell.resolution.value}"
    published = f"published: {cell.published.ratio:.2f}" if cell.published else ""
    cpu = (
        f"{figures.cpu_ratio(cell)} times the CPU a {ONE[asked]}: {CPU_READING[cell.cpu_resolution]}"
        if cell.cpu_ratio
        else ""
    )
    lines = "".join(f'<div class="muted">{sentence(line)}</div>' for line in (limits, cpu, published) if line)
    return f'<div class="answer"><span class="arm">{text(cell.arm)}</span><b>{text(value)}</b><div>{text(said)}</div>{lines}</div>'


def _unresolved(ratio: Estimate) -> str:
    """What it may still be, without a guess at how much."""
    if ratio.low is None or ratio.high is None:
        return "not resolved, too few blocks for an interval"
    low, high = figures.limits(ratio).strip("[]").split(", ")
    small = "; smaller than the noise floor" if excludes_one(ratio) else ""
    return f"not resolved, anything from {low} to {high}{small}"


def warnings(summary: Summary) -> str:
    lines = warning_lines(summary)
    if not lines:
        return ""
    items = "".join(f"<li>{sentence(line)}</li>" for line in lines)
    return f'<div class="warnings" role="note"><strong>Read with care</strong><ul>{items}</ul></div>'


def advice(summary: Summary) -> str:
    if not summary.advice:
        return ""
    items = []
    for entry in summary.advice:
        lines = f"<pre>{text(chr(10).join(entry.lines))}</pre>" if entry.lines else ""
        items.append(
            f'<li><strong>{text(entry.action)}</strong><div class="because">{sentence(entry.because)}</div>{lines}</li>'
        )
    return f'<h2>What to do</h2><ol class="advice">{"".join(items)}</ol>'


def main_table(summary: Summary) -> str:
    """The table of the terminal report. On a phone each row becomes a card, its cells labelled."""
    base = figures.baseline_name(summary)
    heads = [
        "path",
        f"{summary.asked}/s",
        f"of {base} [95 %]",
        "ms/txn p50, p95, p99",
        f"CPU µs/{ONE[summary.asked]}",
        "turns/txn",
    ]
    heads += ["bytes/txn out, in", "published"]
    rows = "".join(_row(cell, heads) for cell in figures.shown_cells(summary))
    top = "".join(f'<th scope="col">{text(head)}</th>' for head in heads)
    notes = [f"Published elsewhere: {source}. Not our measurement." for source in figures.published_sources(summary)]
    notes += [figures.cpu_note(summary), figures.void_line(summary)]
    below = "".join(f'<p class="muted small">{text(note)}</p>' for note in notes if note)
    return (
        '<h2>The figures</h2><div class="scroll"><table class="main">'
        f"<thead><tr>{top}</tr></thead><tbody>{rows}</tbody></table></div>{below}"
    )


def _row(cell: CellSummary, heads: list[str]) -> str:
    latency, size = cell.latency_ms, cell.bytes_per_txn
    cpu_ratio = f" (x {figures.cpu_point(cell)})" if cell.role is not ArmRole.BASELINE else ""
    pairs = [
        (figures.number(cell.qps.value), figures.plus_minus(cell.qps)),
        (figures.ratio(cell.ratio), figures.reading(cell)),
        (
            ", ".join(figures.number(value) for value in (latency.p50, latency.p95, latency.p99)),
            f"max {figures.number(latency.max)}",
        ),
        (figures.number(figures.cpu_total(cell)) + cpu_ratio, figures.cpu_parts(cell)),
        (f"{cell.turns_per_txn:.4g}", ""),
        (f"{figures.whole(size.to_server)}, {figures.whole(size.to_client)}", ""),
        (f"{cell.published.ratio:.2f}", f"{cell.published.qps:,.0f}/s") if cell.published else (figures.UNKNOWN, ""),
    ]
    cells = "".join(
        f'<td data-label="{text(head)}"><span>{text(upper)}{f"<small>{text(lower)}</small>" if lower else ""}</span></td>'
        for head, (upper, lower) in zip(heads[1:], pairs, strict=True)
    )
    return f'<tr><th scope="row">{text(cell.arm)}</th>{cells}</tr>'


def method(summary: Summary) -> str:
    """How it was measured, as answers to what a sceptic asks first."""
    items = "".join(f"<dt>{text(question)}</dt><dd>{sentence(reply)}</dd>" for question, reply in questions(summary))
    return f"<h2>What a sceptic asks first</h2><dl>{items}</dl>"


def receipts(summary: Summary) -> str:
    """What was proven about each path, and the machine."""
    proofs = "".join(details(f"Receipt: {cell.arm}", facts(cell.receipt)) for cell in summary.cells)
    environment = details("The machine and the versions", facts(summary.environment))
    return (
        "<h2>Receipts and environment</h2>"
        '<p class="small muted">A receipt is what was found to be true of a path while it was measured, from the last good trial. '
        f"A trial whose receipt differs from what was asked is void.</p>{proofs}{environment}"
    )


def footer(summary: Summary) -> str:
    return (
        f"<h2>Repeat it</h2><pre>{text(summary.command)}</pre>"
        f'<footer class="muted small">howfar {text(summary.howfar)}, run {text(summary.run)}, begun {text(summary.created)}. '
        "All figures of this page come from the run file; `howfar report` computes them anew.</footer>"
    )
