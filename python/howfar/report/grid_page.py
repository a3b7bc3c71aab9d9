"""Sections of older pages."""

from __future__ import annotations

from howfar.analysis.summary import Summary
from howfar.report import tables
from howfar.report.fragments import details, facts, sentence, table, text

LONG = 180
"""A verdict of more characters is set smaller, so that its chart stays on the first screen."""

COUNTERS = "counters"
"""Of a receipt: they differ in every cell and prove nothing that its other parts do not; the JSON has them all."""


def confirmations(summary: Summary) -> str:
    """What came out of the limits that were put to the test, for pages of any plan."""
    return section(tables.confirmations(summary))


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
