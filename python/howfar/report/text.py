"""Reports as text: Markdown, which the terminal builds on, CSV and JSON.

Names in JSON are public: names may be added, but are never renamed. `REPORT_VERSION` is raised when a meaning changes.
"""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from pydantic import create_model

from howfar.analysis.cells import CellSummary
from howfar.analysis.summary import Summary
from howfar.findings import fill
from howfar.plan.factors import ModelFields, has_fault
from howfar.report.document import (
    AdviceBlock,
    Answer,
    Block,
    Bullets,
    Chart,
    Code,
    Details,
    Document,
    Facts,
    Heading,
    PlaceLines,
    Table,
    Text,
    Warnings,
    number_advice,
    remove_control_characters,
    remove_empty_sections,
)
from howfar.report.texts import SCREEN
from howfar.stats.estimate import Part
from howfar.terminal_text import one_line, printable_json

REPORT_VERSION = 1
JsonObject = dict[str, Any]
"""An object of JSON that is about to be written."""
Lines = list[str]


class Markdown:
    """Renders blocks as Markdown. Each method returns the lines of one kind of block; a block without lines is left out. Other text
    formats override the methods."""

    def is_shown(self, block: Block) -> bool:
        """Charts and facts are left out, and with them the details that are about facts."""
        return not isinstance(block, Chart | Facts) and not _holds_facts(block)

    def heading(self, text: str, level: int) -> Lines:
        return [f"{'#' * level} {text}"]

    def folded(self, details: Details, level: int) -> list[Lines]:
        """Paragraphs of details, which GitHub folds."""
        inner = self.paragraphs(details.blocks, level + 1)
        if details.open:
            return [self.heading(details.title, level), *inner]
        return [["<details>", f"<summary>{details.title}</summary>"], *inner, ["</details>"]]

    def text(self, text: str, quiet: bool = False) -> Lines:
        return [_as_paragraph(text)]

    def bullets(self, lines: Sequence[str]) -> Lines:
        return [f"- {_as_paragraph(line)}" for line in lines]

    def warnings(self, lines: Sequence[str]) -> Lines:
        return ["**Warnings**", "", *self.bullets(lines)]

    def answer(self, answer: Answer) -> Lines:
        lines = [f"**{answer.text}**"]
        lines += [line for label, text in answer.reasons for line in ("", f"**{label}:** {text}")]
        name = fill(SCREEN["run file"], what=answer.before_command)
        command = (PlaceLines(name, (answer.command,)),) if answer.command else ()
        return lines + self._place_lines(command)

    def table(self, table: Table, level: int) -> Lines:
        rule = "|" + "|".join("---" if column.left_aligned else "---:" for column in table.columns) + "|"
        lines = [_row([(column.head, column.lower) for column in table.columns]), rule]
        lines += [_row([(cell.text, cell.below) for cell in row]) for row in table.rows]
        title = [*self.heading(table.title, level), ""] if table.title else []
        return [*title, *lines, *(line for note in table.notes for line in ("", *self.text(note)))]

    def advice(self, advice: AdviceBlock, number: int) -> Lines:
        if not advice.lines and not advice.places:
            return [f"{number}. **{advice.action}** {advice.because}".rstrip()]
        inner = ["", *self.code(advice.lines)] if advice.lines else []
        inner += ["", _as_paragraph(advice.because)] if advice.because else []
        inner += self._place_lines(advice.places)
        return [f"{number}. **{advice.action}**", *(f"   {line}" if line else "" for line in inner)]

    def _place_lines(self, places: Sequence[PlaceLines]) -> Lines:
        """Lines to be copied, each group below the name of its place."""
        return [line for place in places for line in ("", f"{place.name}:", "", *self.code(place.lines))]

    def code(self, lines: Sequence[str]) -> Lines:
        fence = "`" * max(3, 1 + max((len(run) for line in lines for run in re.findall("`+", line)), default=0))
        return [fence, *lines, fence]

    def facts(self, values: Mapping[str, object]) -> Lines:
        return []

    def is_joined(self, before: Block | None, block: Block) -> bool:
        """Whether two blocks follow each other without an empty line."""
        return False

    def paragraphs(self, blocks: Sequence[Block], level: int = 2) -> list[Lines]:
        """Paragraphs of blocks; those inside details are one level deeper."""
        paragraphs: list[Lines] = []
        previous: Block | None = None
        for number, block in number_advice(remove_empty_sections(blocks, self.is_shown)):
            block = remove_control_characters(block)
            if isinstance(block, Details):
                paragraphs += self.folded(block, level)
                previous = block
                continue
            lines = self._lines(block, number, level)
            if paragraphs and self.is_joined(previous, block):
                paragraphs[-1] += lines
            elif lines:
                paragraphs.append(lines)
            previous = block
        return paragraphs

    def _lines(self, block: Block, number: int, level: int) -> Lines:
        match block:
            case Heading(text):
                return self.heading(text, level)
            case Text(text, quiet):
                return self.text(text, quiet)
            case Bullets(lines):
                return self.bullets(lines)
            case Warnings(lines):
                return self.warnings(lines) if lines else []
            case Answer():
                return self.answer(block)
            case Table():
                return self.table(block, level) if block.rows else []
            case AdviceBlock():
                return self.advice(block, number)
            case Code(lines):
                return self.code(lines)
            case Facts(values):
                return self.facts(values)
            case _:
                return []


def as_markdown(document: Document) -> str:
    """The document as Markdown with pipe tables, for an issue, a wiki or a mail: everything except charts and receipts. Ends in a
    newline."""
    title = _escape_tags(one_line(document.question or document.title))
    setting = (Text(document.setting),) if document.setting else ()
    blocks = [_escape_block(block) for block in (*setting, *document.blocks)]
    parts = [[f"# {title}"], *Markdown().paragraphs(blocks)]
    return "\n\n".join("\n".join(lines) for lines in parts) + "\n"


_BLOCK_MARK = re.compile(
    r"\A(?:\d{1,9}(?=[.)](?:\s|$))|(?=#{1,6}(?:\s|$)|>|[-+*](?:\s|$)|```|~~~|([-*_])\s*(?:\1\s*){2,}$))"
)
"""The place before the mark that makes a line a heading, quotation, list, block of code or rule."""


def _as_paragraph(text: str) -> str:
    """Escape a mark at the beginning: `* beyond what was measured` does not begin a list."""
    return _BLOCK_MARK.sub(r"\g<0>\\", text.lstrip())


def _escape_tags(text: str) -> str:
    """Escape what could begin an HTML tag or comment, also in inline code: where that ends depends on the text beside it."""
    return text.replace("<", "&lt;")


def _escape_block(block: Block) -> Block:
    """The block without HTML in its texts. Code is verbatim: nothing can end its fence."""
    if isinstance(block, Code):
        return block
    if isinstance(block, AdviceBlock):
        places = tuple(replace(place, name=_escape_tags(place.name)) for place in block.places)
        return replace(block, action=_escape_tags(block.action), because=_escape_tags(block.because), places=places)
    if isinstance(block, Details):
        return replace(block, title=_escape_tags(block.title), blocks=tuple(map(_escape_block, block.blocks)))
    escaped: Block = remove_control_characters(block, _escape_tags)
    return escaped


def _holds_facts(block: Block) -> bool:
    return isinstance(block, Details) and any(isinstance(part, Facts) or _holds_facts(part) for part in block.blocks)


def _row(fields: Sequence[tuple[str, str]]) -> str:
    """A row of a pipe table; the second line of a field follows a line break."""
    texts = ("<br>".join(part.strip().replace("|", "\\|") for part in field if part.strip()) for field in fields)
    return f"| {' | '.join(texts)} |"


def as_csv(document: Document) -> str:
    """The records as CSV: a header line, lines that end in `\\n`. An empty field is unknown."""
    names = list(dict.fromkeys(name for record in document.records for name in record))
    out = io.StringIO()
    if document.records:
        writer = csv.DictWriter(out, names, lineterminator="\n", restval="")
        writer.writeheader()
        writer.writerows(document.records)
    return out.getvalue()


def answer_values(document: Document) -> JsonObject:
    """The keys `question` and `answer` of a result that is not a run's. `answer` is null if its report has none."""
    answer = next((block for block in document.blocks if isinstance(block, Answer)), None)
    values = answer and {"sentence": answer.text, "why": answer.why, "certainty": answer.certainty}
    return {"question": document.question, "answer": values}


def json_values(summary: Summary) -> JsonObject:
    """The summary as values of JSON. CPU per query is a number, and its interval has its own key. Cells with a fault are omitted,
    because their rates would include the outage; their results are in `replication`."""
    values = summary.model_dump(mode="json")
    values |= values.pop("findings")
    values["cells"] = [_cell(cell) for cell in summary.cells if not has_fault(cell.factors)]
    return {"report_version": REPORT_VERSION, "question": summary.answer.question, **values}


def _cell(cell: CellSummary) -> JsonObject:
    values = cell.model_dump(mode="json")
    intervals = values["cpu_us_per_query"]
    values["cpu_us_per_query"] = {role: estimate and estimate["value"] for role, estimate in intervals.items()}
    values["cpu_us_per_query_interval"] = intervals
    return values


def as_json(summary: Summary) -> str:
    """JSON text of a summary with a final newline; NaN and infinity cannot occur."""
    return printable_json(json.dumps(json_values(summary), indent=2, ensure_ascii=False, allow_nan=False)) + "\n"


def json_schema(findings: Mapping[str, type[Part]]) -> JsonObject:
    """JSON Schema (draft 2020-12) of `json_values` with these findings of experiments."""
    optional_findings: ModelFields = {key: (kind | None, None) for key, kind in findings.items()}
    model = create_model("Summary", __base__=Summary, **optional_findings)
    schema = model.model_json_schema(mode="serialization")
    del schema["properties"]["findings"], schema["$defs"]["Part"]
    cell = schema["$defs"]["CellSummary"]
    cell["properties"]["cpu_us_per_query_interval"] = {"$ref": "#/$defs/CpuPerQuery"}
    cell["properties"]["cpu_us_per_query"] = {"$ref": "#/$defs/CpuNumbers"}
    cell["required"].append("cpu_us_per_query_interval")
    optional = {name: {"anyOf": [{"type": "number"}, {"type": "null"}]} for name in ("server", "forwarder", "link")}
    schema["$defs"]["CpuNumbers"] = {
        "type": "object",
        "description": "CPU microseconds per query, by program; null: this path has no such program, or it is unknown.",
        "properties": {"client": {"type": "number"}, **optional},
        "required": ["client", "server", "forwarder", "link"],
        "additionalProperties": False,
    }
    question = {"type": "string", "description": "The run's question, as in `answer`."}
    schema["properties"] = {
        "report_version": {"const": REPORT_VERSION},
        "question": question,
        **schema["properties"],
    }
    schema["required"] = ["report_version", "question", *schema["required"]]
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema, "title": "howfar report"}
