"""Reads the log of acknowledged keys that a load job wrote: the key, times and outcome of each transaction.

The engine writes it (`crates/load/src/acknowledged.rs`): a header, records of one size, a closing record. An incomplete log is
refused: a missing record would look like a transaction that was never sent. `experiments/replication/fault/crash.py` compares a log
with a server's rows.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from howfar.errors import EngineError

MAGIC = b"howfarAK"
VERSION = 1
HEADER = struct.Struct("<8sIIQQI28x")
"""Magic, version, record size in bytes, origin of all times on the monotonic and on the wall clock, connections."""
RECORD = np.dtype(
    [
        ("key", "<i8"),
        ("sent_ns", "<u8"),
        ("ended_ns", "<u8"),
        ("connection", "<u4"),
        ("error", "<u2"),
        ("fate", "u1"),
        ("reserved", "u1"),
    ]
)
_CLOSING_RECORD = 255


class KeyOutcome(IntEnum):
    """Outcome of the transaction that wrote a key: its last statement succeeded, a statement was refused, or no answer came. In the
    log of a watch job, SEEN: another connection found the key in its table, by a poll sent and answered at the record's two times."""

    ACKNOWLEDGED = 1
    REFUSED = 2
    UNKNOWN = 3
    SEEN = 4


@dataclass(frozen=True)
class KeyLog:
    """One job's log. Times of `records` are nanoseconds since the load began."""

    path: Path
    origin_ns: int
    """The beginning of the load, by CLOCK_MONOTONIC."""
    origin_unix_ns: int
    """The beginning of the load, by the wall clock."""
    connections: int
    records: NDArray[Any]
    """Records of type RECORD without the closing one, mapped from the file read-only; in order for each connection: `sent_ns` is
    before the first byte of the transaction's last statement left, `ended_ns` after the last byte of its answer came."""
    closed: bool
    """Whether the engine has closed the log; then no record is missing."""

    def keys(self, outcome: KeyOutcome) -> NDArray[np.int64]:
        """The keys with this outcome, ascending."""
        return np.sort(self.records["key"][self.records["fate"] == outcome])

    def count(self, outcome: KeyOutcome) -> int:
        return int(np.count_nonzero(self.records["fate"] == outcome))

    def ended(self, outcome: KeyOutcome) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The keys with this outcome and their times, by CLOCK_MONOTONIC: comparable between logs of one machine."""
        records = self.records[self.records["fate"] == outcome]
        return records["key"].astype(np.int64), records["ended_ns"].astype(np.int64) + self.origin_ns


def read(path: Path, *, allow_unfinished: bool = False) -> KeyLog:
    """Read a log and check that it is complete; `allow_unfinished`: also accept one whose engine still runs or was killed.

    Raises EngineError.
    """
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            header = file.read(HEADER.size)
    except OSError as error:
        raise EngineError(
            f"the log of acknowledged keys cannot be read: {error}", "Name the file of a load job."
        ) from error
    origin_ns, origin_unix_ns, connections = _parse_header(path, header)
    record_count, extra_bytes = divmod(size - HEADER.size, RECORD.itemsize)
    if extra_bytes and not allow_unfinished:
        raise _unusable_log_error(path, f"its last record has {extra_bytes} of {RECORD.itemsize} bytes")
    records: NDArray[Any] = np.empty(0, RECORD)
    if record_count > 0:
        records = np.memmap(path, RECORD, mode="r", offset=HEADER.size, shape=(record_count,))
    closed = record_count > 0 and int(records["fate"][-1]) == _CLOSING_RECORD
    if not closed and not allow_unfinished:
        raise _unusable_log_error(path, f"it ends after {record_count} records without having been closed")
    log = KeyLog(path, origin_ns, origin_unix_ns, connections, records[:-1] if closed else records, closed)
    if closed:
        _check_counts(log, records[-1])
    _check_consistency(log)
    return log


def _parse_header(path: Path, header: bytes) -> tuple[int, int, int]:
    if len(header) < HEADER.size:
        raise _unusable_log_error(path, f"its header has {len(header)} of {HEADER.size} bytes")
    magic, version, itemsize, origin_ns, origin_unix_ns, connections = HEADER.unpack(header)
    if magic != MAGIC:
        raise EngineError(f"{path} is not a log of acknowledged keys: it begins with {magic!r}")
    if (version, itemsize) != (VERSION, RECORD.itemsize):
        raise EngineError(
            f"{path} is a log of acknowledged keys of version {version} with {itemsize} bytes a record, "
            f"but this howfar reads version {VERSION} with {RECORD.itemsize}",
            "Read it with the howfar that wrote it.",
        )
    return origin_ns, origin_unix_ns, connections


def _check_counts(log: KeyLog, closing_record: np.void) -> None:
    """Compare the counts in the closing record with the records. Raises EngineError."""
    declared_counts = (int(closing_record["key"]), int(closing_record["sent_ns"]), int(closing_record["ended_ns"]))
    found_counts = (len(log.records), log.count(KeyOutcome.ACKNOWLEDGED), log.count(KeyOutcome.REFUSED))
    if declared_counts != found_counts:
        raise _unusable_log_error(
            log.path,
            f"it was closed with {declared_counts[0]} records, {declared_counts[1]} acknowledged and {declared_counts[2]} refused, "
            f"and has {found_counts[0]}, {found_counts[1]} and {found_counts[2]}",
        )


def _check_consistency(log: KeyLog) -> None:
    """Check that the records do not contradict each other. Raises EngineError."""
    records = log.records
    if len(records) == 0:
        return
    if not np.isin(records["fate"], list(KeyOutcome)).all():
        raise _unusable_log_error(log.path, "a record has an unknown fate")
    if (records["connection"] >= log.connections).any():
        raise _unusable_log_error(log.path, f"a record names a connection beyond the load's {log.connections}")
    if (records["ended_ns"] < records["sent_ns"]).any():
        raise _unusable_log_error(log.path, "a transaction ended before it was sent")
    if len(np.unique(records["key"])) < len(records):
        raise _unusable_log_error(log.path, "two transactions have the same key")
    order = np.argsort(records["connection"], kind="stable")
    same_connection = np.diff(records["connection"][order].astype(np.int64)) == 0
    overlaps = records["sent_ns"][order][1:] < records["ended_ns"][order][:-1]
    if (same_connection & overlaps & (records["fate"][order][1:] != KeyOutcome.SEEN)).any():
        raise _unusable_log_error(log.path, "a connection sent a transaction before its previous one had ended")


def _unusable_log_error(path: Path, problem: str) -> EngineError:
    return EngineError(
        f"the log of acknowledged keys {path} is incomplete or inconsistent: {problem}",
        "Nothing can be concluded from it; run the load again, on a file system with room.",
    )
