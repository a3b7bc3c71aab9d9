"""`incompressible`: random bytes: so pictures, archives and what is encrypted look to a compressor. zlib makes 1.001 of it.

The columns are BINARY: no character set converts them, and ORDER BY and DISTINCT compare bytes. LOAD DATA gets them in hex: a
tab, a line's end or a backslash among random bytes would otherwise be read as one.
"""

from __future__ import annotations

import numpy as np

from howfar.lab.servers.contents import C_BYTES, PAD_BYTES, Bytes

_HEX = np.frombuffer(b"0123456789ABCDEF", dtype=np.uint8)


class Incompressible:
    """See `contents.Rows`."""

    key = "incompressible-g1"
    c_type = f"BINARY({C_BYTES})"
    pad_type = f"BINARY({PAD_BYTES})"
    columns = "(id, k, @c, @pad) SET c = UNHEX(@c), pad = UNHEX(@pad)"

    def fields(self, random: np.random.Generator, count: int) -> tuple[Bytes, Bytes]:
        return _hex(random, count, C_BYTES), _hex(random, count, PAD_BYTES)


def _hex(random: np.random.Generator, count: int, length: int) -> Bytes:
    """Shape (count, 2 * length)."""
    values = random.integers(0, 256, size=(count, length), dtype=np.uint8)
    return _HEX[np.stack([values >> 4, values & 15], axis=-1)].reshape(count, -1)
