"""What the tables hold: one file a content. Rows of a sysbench table as a stream for LOAD DATA: ids in order, `k` uniform over
the ids, `c` of 119 bytes and `pad` of 59, as sysbench fills its columns, so that every content gives answers of the same length.

One fixed seed: the same rows on every machine. (sysbench draws `k` from its current distribution; no statement of oltp_read_only
reads it, so uniform is as good.)
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

import numpy as np
import numpy.typing as npt

from howfar.plan.factors import Content

CHUNK_ROWS = 100_000
C_BYTES, PAD_BYTES = 119, 59
_NUMBER_DIGITS = 10
_SEED = 20121
_ZERO, _TAB, _NEWLINE = ord("0"), ord("\t"), ord("\n")

Bytes = npt.NDArray[np.uint8]


class Rows(Protocol):
    """One content. Modules of this package are its implementations."""

    key: str
    """Part of a template's name: changes with the rows and the schema."""
    c_type: str
    pad_type: str
    columns: str
    """How LOAD DATA makes a row of a line's four fields."""

    def fields(self, random: np.random.Generator, count: int) -> tuple[Bytes, Bytes]:
        """The third and the fourth field of `count` lines, a line a row: what becomes `c` and `pad`."""
        ...


def find_rows(content: Content) -> Rows:
    """By its name in a plan."""
    from howfar.lab.servers.contents import digits, incompressible, text

    known: dict[Content, Rows] = {
        "digits": digits.Digits(),
        "text": text.Text(),
        "incompressible": incompressible.Incompressible(),
    }
    return known[content]


def _number(values: npt.NDArray[np.int64]) -> Bytes:
    """Ten digits each; LOAD DATA reads leading zeros as nothing."""
    powers = 10 ** np.arange(_NUMBER_DIGITS - 1, -1, -1, dtype=np.int64)
    return (values[:, None] // powers % 10 + _ZERO).astype(np.uint8)


def row_chunk(rows: Rows, first_id: int, count: int, table_size: int) -> bytes:
    """`count` lines `id<TAB>k<TAB>c<TAB>pad`, ids from `first_id`. Depends on its arguments only."""
    random = np.random.default_rng([_SEED, first_id])
    ids = np.arange(first_id, first_id + count, dtype=np.int64)
    keys = random.integers(1, table_size + 1, size=count, dtype=np.int64)
    tab = np.full((count, 1), _TAB, dtype=np.uint8)
    newline = np.full((count, 1), _NEWLINE, dtype=np.uint8)
    c, pad = rows.fields(random, count)
    return np.hstack([_number(ids), tab, _number(keys), tab, c, tab, pad, newline]).tobytes()


def row_chunks(rows: Rows, table_size: int) -> Iterator[bytes]:
    """The whole table, 100 000 rows (20 MB) at a time."""
    for first in range(1, table_size + 1, CHUNK_ROWS):
        yield row_chunk(rows, first, min(CHUNK_ROWS, table_size + 1 - first), table_size)
