"""The rows of the tables, by content, as lines for LOAD DATA: ids in ascending order, `k` uniform over the ids, `c` of 119 bytes and
`pad` of 59 bytes, as in sysbench. So the answers to a query have the same length with every content.

The seed is fixed, so the rows are the same on every machine. sysbench would draw `k` from its current distribution. A uniform
distribution has the same effect, because no statement of oltp_read_only reads `k`.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from importlib.resources import files
from typing import Protocol

import numpy as np
import numpy.typing as npt

from howfar.plan.factors import Content

CHUNK_ROWS = 100_000
C_BYTES, PAD_BYTES = 119, 59
_DIGITS_PER_NUMBER = 10
_SEED = 20121
_ZERO, _TAB, _NEWLINE = ord("0"), ord("\t"), ord("\n")

Bytes = npt.NDArray[np.uint8]


class Rows(Protocol):
    """The rows of one content."""

    key: str
    """Part of a template's name. It must change whenever the rows or the schema change."""
    c_type: str
    pad_type: str
    columns: str
    """SQL with which LOAD DATA converts a line's four fields to a row."""

    def fields(self, random: np.random.Generator, count: int) -> tuple[Bytes, Bytes]:
        """The third and fourth fields of `count` lines, which become `c` and `pad`; one row of each array per line."""
        ...


def _format_numbers(values: npt.NDArray[np.int64]) -> Bytes:
    """Numbers as text of ten digits each; LOAD DATA ignores leading zeros."""
    powers = 10 ** np.arange(_DIGITS_PER_NUMBER - 1, -1, -1, dtype=np.int64)
    return (values[:, None] // powers % 10 + _ZERO).astype(np.uint8)


def row_chunk(rows: Rows, first_id: int, count: int, table_size: int) -> bytes:
    """`count` lines `id<TAB>k<TAB>c<TAB>pad` with ids from `first_id`; the same arguments give the same lines."""
    random = np.random.default_rng([_SEED, first_id])
    ids = np.arange(first_id, first_id + count, dtype=np.int64)
    keys = random.integers(1, table_size + 1, size=count, dtype=np.int64)
    tab = np.full((count, 1), _TAB, dtype=np.uint8)
    newline = np.full((count, 1), _NEWLINE, dtype=np.uint8)
    c, pad = rows.fields(random, count)
    return np.hstack([_format_numbers(ids), tab, _format_numbers(keys), tab, c, tab, pad, newline]).tobytes()


def row_chunks(rows: Rows, table_size: int) -> Iterator[bytes]:
    """The complete table, in chunks of 100 000 rows (20 MB)."""
    for first in range(1, table_size + 1, CHUNK_ROWS):
        yield row_chunk(rows, first, min(CHUNK_ROWS, table_size + 1 - first), table_size)


C_GROUPS, PAD_GROUPS, GROUP_DIGITS = 10, 5, 11
_HYPHEN = ord("-")


class Digits:
    """Sysbench's own content: `c` is ten groups of eleven random digits, `pad` five, joined by hyphens.

    zlib at level 6 compresses `c` to 0.52 of its size in frames of 16 KiB: a digit carries 3.3 bits of its 8.
    """

    key = "g1"
    c_type = "CHAR(120)"
    pad_type = "CHAR(60)"
    columns = "(id, k, c, pad)"

    def fields(self, random: np.random.Generator, count: int) -> tuple[Bytes, Bytes]:
        return _make_groups(random, count, C_GROUPS), _make_groups(random, count, PAD_GROUPS)


def _make_groups(random: np.random.Generator, count: int, groups: int) -> Bytes:
    """Groups of random digits; shape (count, groups * 12 - 1)."""
    cells = np.full((count, groups, GROUP_DIGITS + 1), _HYPHEN, dtype=np.uint8)
    cells[:, :, :GROUP_DIGITS] = random.integers(0, 10, size=(count, groups, GROUP_DIGITS), dtype=np.uint8) + _ZERO
    return cells.reshape(count, -1)[:, :-1]


_HEX_DIGITS = np.frombuffer(b"0123456789ABCDEF", dtype=np.uint8)


class Incompressible:
    """Random bytes: like images, archives and encrypted data they cannot be compressed. zlib makes them 1.001 times as large.

    The columns are BINARY: no character set converts them, and ORDER BY and DISTINCT compare bytes. LOAD DATA gets them in hex;
    otherwise a tab, an end of line or a backslash among the random bytes would be interpreted.
    """

    key = "incompressible-g1"
    c_type = f"BINARY({C_BYTES})"
    pad_type = f"BINARY({PAD_BYTES})"
    columns = "(id, k, @c, @pad) SET c = UNHEX(@c), pad = UNHEX(@pad)"

    def fields(self, random: np.random.Generator, count: int) -> tuple[Bytes, Bytes]:
        return _make_hex(random, count, C_BYTES), _make_hex(random, count, PAD_BYTES)


def _make_hex(random: np.random.Generator, count: int, length: int) -> Bytes:
    """Random bytes in hexadecimal; shape (count, 2 * length)."""
    values = random.integers(0, 256, size=(count, length), dtype=np.uint8)
    return _HEX_DIGITS[np.stack([values >> 4, values & 15], axis=-1)].reshape(count, -1)


_ZIPF_EXPONENT = 1.0
"""With this exponent the n-th most frequent word has weight 1/n, as in prose."""
_SENTENCE_WORDS = 12
"""Mean number of words in a sentence."""
_SPACE, _FULL_STOP = ord(" "), ord(".")


class ZipfText:
    """Sentences of words that are drawn from `words.txt` (ASCII, the most frequent first) by Zipf's law. The end of a column cuts a
    sentence off.

    zlib at level 6 compresses `c` to 0.41 of its size in frames of 16 KiB, as servers send it, about the same as English prose.
    """

    key = "text-g1"
    c_type = "CHAR(120)"
    pad_type = "CHAR(60)"
    columns = "(id, k, c, pad)"

    def fields(self, random: np.random.Generator, count: int) -> tuple[Bytes, Bytes]:
        return _make_columns(random, count, C_BYTES), _make_columns(random, count, PAD_BYTES)


@cache
def _vocabulary() -> tuple[str, ...]:
    return tuple((files(__package__) / "words.txt").read_text("ascii").split())


@cache
def _padded_words() -> tuple[Bytes, npt.NDArray[np.int64]]:
    """Words as rows of bytes, padded for a full stop and a space after them, and the words' lengths."""
    width = max(len(word) for word in _vocabulary()) + 2
    letters = np.full((len(_vocabulary()), width), _SPACE, dtype=np.uint8)
    for row, word in zip(letters, _vocabulary(), strict=True):
        row[: len(word)] = np.frombuffer(word.encode("ascii"), dtype=np.uint8)
    return letters, np.array([len(word) for word in _vocabulary()], dtype=np.int64)


@cache
def _cumulative_weights() -> npt.NDArray[np.float64]:
    weights = 1.0 / np.arange(1, len(_vocabulary()) + 1) ** _ZIPF_EXPONENT
    cumulative: npt.NDArray[np.float64] = np.cumsum(weights / weights.sum())
    return cumulative


def _make_prose(random: np.random.Generator, length: int) -> Bytes:
    """Sentences, `length` bytes in total."""
    letters, lengths = _padded_words()
    mean_length = float(np.dot(np.diff(_cumulative_weights(), prepend=0.0), lengths)) + 1
    word_count = int(length / mean_length * 1.2) + 100
    chosen = np.minimum(np.searchsorted(_cumulative_weights(), random.random(word_count)), len(_vocabulary()) - 1)
    ends_sentence = random.random(word_count) < 1 / _SENTENCE_WORDS
    cells, sizes = letters[chosen], lengths[chosen]
    starts_sentence = np.roll(ends_sentence, 1)
    cells[starts_sentence, 0] -= ord("a") - ord("A")
    cells[ends_sentence, sizes[ends_sentence]] = _FULL_STOP
    is_kept = np.arange(letters.shape[1]) < (sizes + 1 + ends_sentence)[:, None]
    prose: Bytes = cells[is_kept][:length]
    assert prose.size == length, "a fifth more words than the mean length requires are always enough"
    return prose


def _make_columns(random: np.random.Generator, count: int, width: int) -> Bytes:
    """Columns of sentences; shape (count, width). A value that would end in a space, which CHAR drops, ends in a full stop instead."""
    columns = _make_prose(random, count * width).reshape(count, width)
    columns[columns[:, -1] == _SPACE, -1] = _FULL_STOP
    return columns


_ROWS_BY_CONTENT: dict[Content, Rows] = {"digits": Digits(), "text": ZipfText(), "incompressible": Incompressible()}


def find_rows(content: Content) -> Rows:
    """The rows of a content, by its name in a plan."""
    return _ROWS_BY_CONTENT[content]
