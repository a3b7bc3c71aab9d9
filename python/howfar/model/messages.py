"""The messages of a transaction: how large each reply and each request is, before compression, encryption and headers.

Only the mix is reckoned, from the workload and the length of a row; its sum is what the engine counted. A model needs the mix because
a result of 100 rows holds a link a hundred times as long as an OK packet, and everything behind it waits.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

ROW_BYTES = 130
"""Of a row of `c` in a binary result: packet header 4, head 1, map of NULLs 1, length 1, 119 characters; text is about as long."""
RESULT_BYTES = 78
"""Of a result without its rows: count and definition of the column, end marks."""
OK_BYTES = 11


def replies(workload: Mapping[str, Any], turns: float, total_bytes: float) -> tuple[float, ...]:
    """One number a turn, adding up to `total_bytes`. A workload that is not known, or that turns otherwise than its statements say,
    is taken to answer with messages of one length."""
    guessed = _guess(workload)
    if guessed is None or abs(len(guessed) - turns) > 0.5:
        return requests(turns, total_bytes)
    # A short message is the same whatever the rows hold; what the guess is off by lies in the long ones.
    short = sum(length for length in guessed if length <= OK_BYTES)
    scale = max(total_bytes - short, 0.0) / max(sum(guessed) - short, 1.0)
    return tuple(length if length <= OK_BYTES else length * scale for length in guessed)


def requests(turns: float, total_bytes: float) -> tuple[float, ...]:
    """Requests are of about one length."""
    count = max(1, round(turns))
    return (total_bytes / count,) * count


def _guess(workload: Mapping[str, Any]) -> list[float] | None:
    if workload.get("kind") != "oltp_read_only":
        return None

    def number(name: str) -> int:
        value = workload.get(name, 0)
        return int(value) if isinstance(value, int | float) else 0

    rows = number("range_size")
    ranges = bool(workload.get("range_selects", True))
    found: list[float] = [RESULT_BYTES + ROW_BYTES] * number("point_selects")
    if ranges:
        for name in ("simple_ranges", "order_ranges", "distinct_ranges"):
            found += [RESULT_BYTES + rows * ROW_BYTES] * number(name)
        found += [RESULT_BYTES + 12] * number("sum_ranges")
    if not workload.get("skip_trx", False):
        found += [OK_BYTES, OK_BYTES]
    return found
