"""A report in a terminal of any width: no line is too long, and no word is lost."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from tests.unit.test_report_golden import clear, murky

from howfar.analysis.summary import Summary
from howfar.experiments.registry import document
from howfar.report.document import (
    AdviceBlock,
    Answer,
    Block,
    Bullets,
    Cell,
    Code,
    Column,
    Details,
    Document,
    Heading,
    Table,
    Text,
    Warnings,
)
from howfar.report.terminal import MAX_WIDTH, MIN_WIDTH, render, to_ascii

WIDTHS = (*range(MIN_WIDTH, MAX_WIDTH + 1), 133, 166, 200)
"""Wider than `MAX_WIDTH`, the layout is the same."""
_WORD = st.text("abcXYZ019µ±≥", min_size=1, max_size=14)
_SHORT = st.lists(_WORD, min_size=1, max_size=2).map(" ".join)
_SENTENCE = st.lists(_WORD, min_size=1, max_size=25).map(" ".join)


@st.composite
def _tables(draw: st.DrawFn) -> Table:
    columns = tuple(
        Column(f"head{number}", draw(st.sampled_from(["", "second"])), left_aligned=not number)
        for number in range(draw(st.integers(2, 8)))
    )
    field = st.builds(Cell, st.one_of(_SHORT, _SHORT, _SENTENCE), st.sampled_from(["", "[7,900, 8,100]"]))
    rows = draw(st.lists(st.tuples(st.builds(Cell, _SHORT), *(field for _ in columns[1:])), min_size=1, max_size=4))
    return Table(draw(_SHORT), columns, tuple(rows), draw(st.tuples(_SENTENCE)), main=draw(st.booleans()))


_BLOCKS = st.one_of(
    _tables(),
    st.builds(Text, _SENTENCE),
    st.builds(Bullets, st.tuples(_SENTENCE, _SENTENCE)),
    st.builds(Warnings, st.tuples(_SENTENCE)),
    st.builds(AdviceBlock, _SENTENCE, _SENTENCE),
    st.builds(Answer, _SENTENCE, why=_SENTENCE, certainty=_SENTENCE),
    st.builds(Details, _SHORT, st.tuples(st.builds(Heading, _SHORT), st.builds(Text, _SENTENCE), _tables())),
)


def texts_of(blocks: tuple[Block, ...]) -> Iterator[str]:
    """Prose and the fields of tables, which each width must show. Heads of columns may be shown once or not at all."""
    for block in blocks:
        match block:
            case Text(text):
                yield text
            case Bullets(lines) | Warnings(lines):
                yield from lines
            case AdviceBlock(action, because):
                yield from (action, because)
            case Answer():
                yield from (block.text, *(text for _, text in block.reasons))
            case Details():
                yield from texts_of(block.blocks)
            case Table():
                yield from (cell.line for row in block.rows for cell in row if cell.text not in ("", "-"))
                yield from block.notes
            case _:
                pass


def words_lost(report: Document, shown: str, unicode: bool) -> Counter[str]:
    """The words that the document holds more often than the text shows; a list of fields has commas between them."""
    words = " ".join(texts_of(report.blocks))
    return _count(words if unicode else to_ascii(words)) - _count(shown)


def _count(text: str) -> Counter[str]:
    return Counter(word.strip(",:;") for word in text.split())


def too_long(report: Document, shown: str, width: int) -> list[str]:
    """Lines longer than `width`, except those that are to be copied as they are."""
    copied = {line.strip() for line in _copied(report.blocks)}
    return [line for line in shown.splitlines() if len(line) > width and line.strip() not in copied]


def _copied(blocks: tuple[Block, ...]) -> Iterator[str]:
    for block in blocks:
        match block:
            case Code(lines):
                yield from lines
            case AdviceBlock():
                yield from (*block.lines, *(line for place in block.places for line in place.lines))
            case Details():
                yield from _copied(block.blocks)
            case _:
                pass


@settings(max_examples=60, phases=set(Phase) - {Phase.shrink, Phase.explain})
@given(st.lists(_BLOCKS, min_size=1, max_size=4), st.sampled_from(WIDTHS), st.booleans())
def test_every_width_keeps_its_limit_and_loses_no_word(blocks: list[Block], width: int, unicode: bool) -> None:
    report = Document("title", tuple(blocks), question="Does it fit?")
    shown = render(report, width, unicode=unicode, details=True)
    assert not too_long(report, shown, width)
    assert not words_lost(report, shown, unicode)
    assert unicode or shown.isascii()


@pytest.mark.parametrize(
    ("summary", "widths"), [(murky, WIDTHS), (clear, WIDTHS[::7])], ids=["murky-every-width", "clear-some-widths"]
)
def test_a_whole_report_fits_every_width(summary: Callable[[], Summary], widths: Sequence[int]) -> None:
    """With Unicode on even widths, without on odd ones."""
    report = document(summary())
    for width in widths:
        unicode = width % 2 == 0
        shown = render(report, width, unicode=unicode, details=True)
        assert not too_long(report, shown, width), width
        assert not words_lost(report, shown, unicode), width


@pytest.mark.parametrize("summary", [murky, clear])
def test_a_first_screen_fits_its_width(summary: Callable[[], Summary]) -> None:
    report = document(summary())
    for width in WIDTHS[::11]:
        assert not too_long(report, render(report, width, unicode=width % 2 == 0), width), width
