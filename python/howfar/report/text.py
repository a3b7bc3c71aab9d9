"""What the renderers of text share: which method lays out which block, and the order of paragraphs."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

from howfar.report.document import (
    Advice,
    Answer,
    Block,
    Bullets,
    Code,
    Details,
    Facts,
    Heading,
    Table,
    Text,
    Warnings,
    numbered,
    without_empty,
)

Lines = list[str]


class TextRenderer(ABC):
    """Each method gives the lines of one kind of block; no lines leave it out."""

    @abstractmethod
    def shows(self, block: Block) -> bool: ...

    @abstractmethod
    def heading(self, text: str, level: int) -> Lines: ...

    def title(self, text: str, level: int) -> Lines:
        """Of details."""
        return self.heading(text, level)

    @abstractmethod
    def text(self, text: str, quiet: bool = False) -> Lines: ...

    @abstractmethod
    def bullets(self, lines: Sequence[str]) -> Lines: ...

    @abstractmethod
    def warnings(self, lines: Sequence[str]) -> Lines: ...

    @abstractmethod
    def answer(self, text: str) -> Lines: ...

    @abstractmethod
    def table(self, table: Table, level: int) -> Lines: ...

    @abstractmethod
    def advice(self, advice: Advice, number: int) -> Lines: ...

    @abstractmethod
    def code(self, lines: Sequence[str]) -> Lines: ...

    def facts(self, values: Mapping[str, Any]) -> Lines:
        return []

    def joins(self, before: Block | None, block: Block) -> bool:
        """Whether no empty line is between the two."""
        return False

    def paragraphs(self, blocks: Sequence[Block], level: int = 2) -> list[Lines]:
        """What is inside details is one level deeper."""
        found: list[Lines] = []
        before: Block | None = None
        for number, block in numbered(without_empty(blocks, self.shows)):
            lines = self._lines(block, number, level)
            if found and self.joins(before, block):
                found[-1] += lines
            elif lines:
                found.append(lines)
            if isinstance(block, Details):
                found += self.paragraphs(block.blocks, level + 1)
            before = block
        return found

    def _lines(self, block: Block, number: int, level: int) -> Lines:
        match block:
            case Heading(text):
                return self.heading(text, level)
            case Details(title):
                return self.title(title, level)
            case Text(text, quiet):
                return self.text(text, quiet)
            case Bullets(lines):
                return self.bullets(lines)
            case Warnings(lines):
                return self.warnings(lines) if lines else []
            case Answer(text):
                return self.answer(text)
            case Table():
                return self.table(block, level) if block.rows else []
            case Advice():
                return self.advice(block, number)
            case Code(lines):
                return self.code(lines)
            case Facts(values):
                return self.facts(values)
            case _:
                return []
