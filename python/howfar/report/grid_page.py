"""The page of a plan with several factors: the answer and its chart, then a grid of the cells instead of a card for each, limits,
economics, what-if. The order is the order of a reader's questions. Start at `body`."""

from __future__ import annotations

from howfar.analysis.summary import CellSummary, Summary
from howfar.report import figures, grid_gallery, limit_words, sections, tables, what_if_section
from howfar.report.figures import tps
from howfar.report.fragments import details, facts, sentence, table, text
from howfar.report.grid import Grid, grid
from howfar.report.setup import head_line

LONG = 180
"""A verdict of more characters is set smaller, so that its chart stays on the first screen."""

COUNTERS = "counters"
"""Of a receipt: they differ in every cell and prove nothing that its other parts do not; the JSON has them all."""

MUCH = 500
"""More characters than this on the curves are for those who ask."""


def body(summary: Summary) -> str:
    return "".join(
        (
            _answer(summary),
            sections.warnings(summary),
            _throughput(summary),
            _limits(summary),
            _economics(summary),
            what_if_section.section(summary),
            sections.advice(summary),
            _scaling_below(summary),
            grid_gallery.budgets(summary),
            grid_gallery.networks(summary),
            section(tables.predictions(summary)),
            confirmations(summary),
            grid_gallery.published(summary),
            section(tables.latency(summary)),
            grid_gallery.drift(summary),
            details("Every cell with all its figures", sections.main_table(summary)),
            sections.method(summary),
            receipts(summary),
            sections.footer(summary),
        )
    )


def confirmations(summary: Summary) -> str:
    """What came out of the limits that were put to the test, for pages of any plan."""
    return section(tables.confirmations(summary))


def _answer(summary: Summary) -> str:
    said = summary.scaling.says if summary.scaling else ""
    return (
        f"<h1>howfar: {text(summary.plan)}{' (quick)' if summary.quick else ''}</h1>"
        f'<p class="verdict{" long" if len(summary.verdict) > LONG else ""}">{sentence(summary.verdict)}</p>'
        f"{grid_gallery.chief(summary)}"
        + _curves_said(said if said != summary.verdict else "")
        + f'<p class="muted small">{sentence(head_line(summary))}.</p>'
        + f'<p class="small">{sentence(figures.noise_line(summary))}</p>'
    )


def _curves_said(said: str) -> str:
    """A sentence a curve: of many, to be opened."""
    paragraph = f'<p class="small">{sentence(said)}</p>'
    return "" if not said else details("Curve by curve", paragraph) if len(said) > MUCH else paragraph


def _scaling_below(summary: Summary) -> str:
    """Where another chart is the chief one."""
    drawn = grid_gallery.scaling(summary) if summary.compression else ""
    return f"<h2>How does it grow with connections?</h2>{drawn}" if drawn else ""


def _throughput(summary: Summary) -> str:
    """The grid: transactions a second, shaded by their share of the largest, with the letter of the limit."""
    shape = grid(summary)
    most = max((tps(cell).value for row in shape.cells for cell in row if cell), default=1.0)
    rows = "".join(
        f'<tr><th scope="row">{text(row)}</th>{"".join(_cell(cell, most) for cell in cells)}</tr>'
        for row, cells in zip(shape.rows, shape.cells, strict=True)
    )
    notes = "".join(f'<p class="muted small">{sentence(note)}</p>' for note in tables.throughput(summary).notes)
    return (
        "<h2>Transactions a second</h2>"
        f'<div class="scroll"><table class="grid">{_grid_head(shape)}<tbody>{rows}</tbody></table></div>{notes}'
    )


def _grid_head(shape: Grid) -> str:
    """A line a factor; equal neighbours share a head."""
    depth = max((len(column) for column in shape.columns), default=0)
    lines = []
    for line in range(depth):
        spans: list[tuple[tuple[str, ...], int]] = []
        for column in shape.columns:
            shared = column[: line + 1]
            if spans and spans[-1][0] == shared and line + 1 < depth:
                spans[-1] = (shared, spans[-1][1] + 1)
            else:
                spans.append((shared, 1))
        corner = f'<th scope="col" rowspan="{depth}">{text(shape.row_head)}</th>' if line == 0 else ""
        heads = "".join(
            f'<th scope="col" colspan="{count}">{text(levels[line] if line < len(levels) else "")}</th>'
            for levels, count in spans
        )
        lines.append(f"<tr>{corner}{heads}</tr>")
    return f"<thead>{''.join(lines)}</thead>"


def _cell(cell: CellSummary | None, most: float) -> str:
    if cell is None:
        return f"<td>{figures.UNKNOWN}</td>"
    found = tps(cell)
    letter = limit_words.letter(cell.limit).strip()
    said = f' title="{text(cell.limit.says)}"' if cell.limit else ""
    mark = f" <abbr{said}>{text(letter)}</abbr>" if letter else ""
    return (
        f'<td style="--share:{found.value / most * 100:.0f}%">{figures.number(found.value)}{mark}'
        f"<small>{figures.plus_minus(found)}</small></td>"
    )


def _limits(summary: Summary) -> str:
    found = tables.limits(summary)
    return section(found, "limits stack") if found else ""


def _economics(summary: Summary) -> str:
    return section(tables.compression(summary)) + section(tables.encryption(summary))


def section(found: tables.Table | None, kind: str = "") -> str:
    """A table of any page, with its title and its notes."""
    if found is None:
        return ""
    head = [f"{upper} {lower}".strip() for upper, lower in found.head]
    notes = "".join(f'<p class="muted small">{sentence(note)}</p>' for note in found.notes)
    return f"<h2>{text(found.title)}</h2>{table(head, found.rows, kind=kind)}{notes}"


def receipts(summary: Summary) -> str:
    """One in full; of the others, what differs from it."""
    cells = list(summary.cells)
    if not cells:
        return ""
    first = cells[0]
    others = "".join(
        details(f"Receipt: {cell.arm}", facts(_difference(cell.receipt, first.receipt))) for cell in cells[1:]
    )
    return (
        "<h2>Receipts and environment</h2>"
        '<p class="small muted">A receipt is what was found to be true of a cell while it was measured, from the last good trial. '
        "A trial whose receipt differs from what was asked is void. Of all but the first, only what differs from it is shown, "
        "counters left out.</p>"
        f"{details(f'Receipt: {first.arm}', facts(first.receipt))}{details('The other receipts', others)}"
        f"{details('The machine and the versions', facts(summary.environment))}"
    )


def _difference(one: dict[str, object], other: dict[str, object]) -> dict[str, object]:
    """What `one` says otherwise than `other`; nested tables likewise. What only `other` has reads as absent."""
    found: dict[str, object] = {}
    for key in {**one, **other}:
        mine, theirs = one.get(key), other.get(key)
        if mine == theirs or key == COUNTERS:
            continue
        if isinstance(mine, dict) and isinstance(theirs, dict):
            found[key] = _difference(mine, theirs)
        else:
            found[key] = mine if key in one else "absent"
    return found
