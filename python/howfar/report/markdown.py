"""The document in Markdown, for an issue, a wiki or a mail: all of it except charts and receipts."""

from __future__ import annotations

from collections.abc import Sequence

from howfar.report.document import (
    Advice,
    Answer,
    Block,
    Bullets,
    Chart,
    Code,
    Details,
    Document,
    Facts,
    Heading,
    Table,
    Text,
    Warnings,
    numbered,
    without_empty,
)


def render(document: Document) -> str:
    """Markdown with pipe tables, ending in a newline."""
    blocks = without_empty(document.blocks, lambda block: not isinstance(block, Chart | Facts))
    parts = [f"# {document.title}", *_parts(blocks, 2)]
    return "\n\n".join(part for part in parts if part) + "\n"


def _parts(blocks: Sequence[Block], level: int) -> list[str]:
    """`level` of the headings: what is inside details is one deeper."""
    parts: list[str] = []
    for number, block in numbered(blocks):
        match block:
            case Heading(text):
                parts.append(f"{'#' * level} {text}")
            case Text(text):
                parts.append(text)
            case Bullets(lines):
                parts.append("\n".join(f"- {line}" for line in lines))
            case Warnings(lines):
                parts.append("\n".join(["**Read with care**", "", *(f"- {line}" for line in lines)]) if lines else "")
            case Answer(text):
                parts.append(f"**{text}**")
            case Table():
                parts += _table(block, level)
            case Advice(action, because):
                parts.append(f"{number}. **{action}** {because}".rstrip())
            case Code(lines):
                parts.append("\n".join(["```", *lines, "```"]))
            case Details(title, inner):
                parts += [f"{'#' * level} {title}", *_parts(inner, level + 1)]
            case _:
                pass
    return parts


def _table(table: Table, level: int) -> list[str]:
    if not table.rows:
        return []
    head = [f"{column.head} {column.lower}".strip() for column in table.columns]
    rule = "|" + "|".join("---" if column.left else "---:" for column in table.columns) + "|"
    rows = [_row([f"{cell.text.strip()} {cell.below}".strip() for cell in row]) for row in table.rows]
    title = [f"{'#' * level} {table.title}"] if table.title else []
    return [*title, "\n".join([_row(head), rule, *rows]), *table.notes]


def _row(cells: list[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"
