"""Rows of a sysbench table as a stream for LOAD DATA: ids in order, `k` uniform over the ids, `c` and `pad` in sysbench's form.

One fixed seed: the same rows on every machine. `c` is ten groups of eleven digits, `pad` five, joined by hyphens. (sysbench
draws `k` from its current distribution; no statement of oltp_read_only reads it, so uniform is as good.)
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

GENERATOR_VERSION = 1
"""Part of a template's key: raise it when the rows or the schema change."""
CHUNK_ROWS = 100_000
C_GROUPS, PAD_GROUPS, GROUP_DIGITS = 10, 5, 11
_NUMBER_DIGITS = 10
_SEED = 20121
_ZERO, _TAB, _NEWLINE, _HYPHEN = ord("0"), ord("\t"), ord("\n"), ord("-")

_Bytes = npt.NDArray[np.uint8]


def _number(values: npt.NDArray[np.int64]) -> _Bytes:
    """Ten digits each; LOAD DATA reads leading zeros as nothing."""
    powers = 10 ** np.arange(_NUMBER_DIGITS - 1, -1, -1, dtype=np.int64)
    return (values[:, None] // powers % 10 + _ZERO).astype(np.uint8)


def _groups(random: np.random.Generator, count: int, groups: int) -> _Bytes:
    """Shape (count, groups * 12 - 1)."""
    cells = np.full((count, groups, GROUP_DIGITS + 1), _HYPHEN, dtype=np.uint8)
    cells[:, :, :GROUP_DIGITS] = random.integers(0, 10, size=(count, groups, GROUP_DIGITS), dtype=np.uint8) + _ZERO
    return cells.reshape(count, -1)[:, :-1]


def row_chunk(first_id: int, count: int, table_size: int) -> bytes:
    """`count` lines `id<TAB>k<TAB>c<TAB>pad`, ids from `first_id`. Depends on its arguments only."""
    random = np.random.default_rng([_SEED, first_id])
    ids = np.arange(first_id, first_id + count, dtype=np.int64)
    keys = random.integers(1, table_size + 1, size=count, dtype=np.int64)
    tab = np.full((count, 1), _TAB, dtype=np.uint8)
    newline = np.full((count, 1), _NEWLINE, dtype=np.uint8)
    c, pad = _groups(random, count, C_GROUPS), _groups(random, count, PAD_GROUPS)
    return np.hstack([_number(ids), tab, _number(keys), tab, c, tab, pad, newline]).tobytes()


def row_chunks(table_size: int) -> Iterator[bytes]:
    """The whole table, 100 000 rows (20 MB) at a time."""
    for first in range(1, table_size + 1, CHUNK_ROWS):
        yield row_chunk(first, min(CHUNK_ROWS, table_size + 1 - first), table_size)
