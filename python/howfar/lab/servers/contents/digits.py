"""`digits`: sysbench's own. `c` is ten groups of eleven random digits, `pad` five, joined by hyphens.

zlib at level 6 makes 0.52 of `c` in frames of 16 KiB: a digit holds 3.3 bits of its 8.
"""

from __future__ import annotations

import numpy as np

from howfar.lab.servers.contents import Bytes

C_GROUPS, PAD_GROUPS, GROUP_DIGITS = 10, 5, 11
_ZERO, _HYPHEN = ord("0"), ord("-")


class Digits:
    """See `contents.Rows`."""

    key = "g1"
    c_type = "CHAR(120)"
    pad_type = "CHAR(60)"
    columns = "(id, k, c, pad)"

    def fields(self, random: np.random.Generator, count: int) -> tuple[Bytes, Bytes]:
        return _groups(random, count, C_GROUPS), _groups(random, count, PAD_GROUPS)


def _groups(random: np.random.Generator, count: int, groups: int) -> Bytes:
    """Shape (count, groups * 12 - 1)."""
    cells = np.full((count, groups, GROUP_DIGITS + 1), _HYPHEN, dtype=np.uint8)
    cells[:, :, :GROUP_DIGITS] = random.integers(0, 10, size=(count, groups, GROUP_DIGITS), dtype=np.uint8) + _ZERO
    return cells.reshape(count, -1)[:, :-1]
