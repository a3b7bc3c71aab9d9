"""`text`: sentences of words drawn by Zipf's law from a list of our own (`words.txt`, the most frequent first), ASCII. A column ends
where it is full, mid-word if need be.

zlib at level 6 makes 0.41 of `c` in frames of 16 KiB, as servers send it; of English prose it makes about the same.
"""

from __future__ import annotations

from functools import cache
from importlib.resources import files

import numpy as np
import numpy.typing as npt

from howfar.lab.servers.contents import C_BYTES, PAD_BYTES, Bytes

_ZIPF = 1.0
"""The n-th most frequent word is drawn with weight 1/n, as in prose."""
_SENTENCE_WORDS = 12
"""One word in so many ends a sentence."""
_SPACE, _STOP = ord(" "), ord(".")


class Text:
    """See `contents.Rows`."""

    key = "text-g1"
    c_type = "CHAR(120)"
    pad_type = "CHAR(60)"
    columns = "(id, k, c, pad)"

    def fields(self, random: np.random.Generator, count: int) -> tuple[Bytes, Bytes]:
        return _columns(random, count, C_BYTES), _columns(random, count, PAD_BYTES)


@cache
def _words() -> tuple[str, ...]:
    return tuple((files(__package__) / "words.txt").read_text("ascii").split())


@cache
def _letters() -> tuple[Bytes, npt.NDArray[np.int64]]:
    """Words as rows of bytes, with room for the stop and the space after them; and their lengths."""
    width = max(len(word) for word in _words()) + 2
    letters = np.full((len(_words()), width), _SPACE, dtype=np.uint8)
    for row, word in zip(letters, _words(), strict=True):
        row[: len(word)] = np.frombuffer(word.encode("ascii"), dtype=np.uint8)
    return letters, np.array([len(word) for word in _words()], dtype=np.int64)


@cache
def _ranks() -> npt.NDArray[np.float64]:
    weights = 1.0 / np.arange(1, len(_words()) + 1) ** _ZIPF
    summed: npt.NDArray[np.float64] = np.cumsum(weights / weights.sum())
    return summed


def _prose(random: np.random.Generator, length: int) -> Bytes:
    """So many bytes of sentences."""
    letters, lengths = _letters()
    mean = float(np.dot(np.diff(_ranks(), prepend=0.0), lengths)) + 1
    drawn = int(length / mean * 1.2) + 100
    chosen = np.minimum(np.searchsorted(_ranks(), random.random(drawn)), len(_words()) - 1)
    ends = random.random(drawn) < 1 / _SENTENCE_WORDS
    cells, sizes = letters[chosen], lengths[chosen]
    begins = np.roll(ends, 1)
    cells[begins, 0] -= ord("a") - ord("A")
    cells[ends, sizes[ends]] = _STOP
    kept = np.arange(letters.shape[1]) < (sizes + 1 + ends)[:, None]
    prose: Bytes = cells[kept][:length]
    assert prose.size == length, "a fifth more words than the mean asks for is always enough"
    return prose


def _columns(random: np.random.Generator, count: int, width: int) -> Bytes:
    """Shape (count, width). A value that would end in a space, which CHAR drops, ends in a stop instead."""
    columns = _prose(random, count * width).reshape(count, width)
    columns[columns[:, -1] == _SPACE, -1] = _STOP
    return columns
