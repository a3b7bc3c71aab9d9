"""The document in Markdown, for an issue, a wiki or a mail: all of it except charts and receipts."""

from __future__ import annotations

from collections.abc import Sequence

from howfar.report.document import Advice, Block, Chart, Document, Facts, Table
from howfar.report.text import Lines, TextRenderer


def render(document: Document) -> str:
    """Markdown with pipe tables, ending in a newline."""
    parts = [[f"# {document.title}"], *_Markdown().paragraphs(document.blocks)]
    return "\n\n".join("\n".join(lines) for lines in parts) + "\n"


class _Markdown(TextRenderer):
    def shows(self, block: Block) -> bool:
        return not isinstance(block, Chart | Facts)

    def heading(self, text: str, level: int) -> Lines:
        return [f"{'#' * level} {text}"]

    def text(self, text: str, quiet: bool = False) -> Lines:
        return [text]

    def bullets(self, lines: Sequence[str]) -> Lines:
        return [f"- {line}" for line in lines]

    def warnings(self, lines: Sequence[str]) -> Lines:
        return ["**Warnings**", "", *self.bullets(lines)]

    def answer(self, text: str) -> Lines:
        return [f"**{text}**"]

    def table(self, table: Table, level: int) -> Lines:
        rule = "|" + "|".join("---" if column.left else "---:" for column in table.columns) + "|"
        lines = [_row([column.label for column in table.columns]), rule]
        lines += [_row([cell.line for cell in row]) for row in table.rows]
        title = [*self.heading(table.title, level), ""] if table.title else []
        return [*title, *lines, *(line for note in table.notes for line in ("", note))]

    def advice(self, advice: Advice, number: int) -> Lines:
        return [f"{number}. **{advice.action}** {advice.because}".rstrip()]

    def code(self, lines: Sequence[str]) -> Lines:
        return ["```", *lines, "```"]


def _row(fields: list[str]) -> str:
    return "| " + " | ".join(field.replace("|", "\\|") for field in fields) + " |"
