"""The reader of key logs returns what was written, and refuses an incomplete log with the reason."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from howfar.engine import acknowledged
from howfar.engine.acknowledged import HEADER, MAGIC, RECORD, VERSION, KeyOutcome
from howfar.errors import EngineError

CONNECTIONS = 3
Row = tuple[int, int, int, int, int, int]
"""A record: key, sent, ended, connection, error, fate."""

ROWS: tuple[Row, ...] = ((1, 10, 20, 0, 0, 1), (2, 11, 30, 1, 1062, 2), (4, 20, 40, 0, 0, 1), (5, 31, 50, 1, 0, 3))


def header(**changes: object) -> bytes:
    fields: dict[str, object] = {"magic": MAGIC, "version": VERSION, "itemsize": RECORD.itemsize}
    fields |= {"origin": 7, "unix": 8, "connections": CONNECTIONS} | changes
    return HEADER.pack(*fields.values())


def records(rows: Sequence[Row]) -> bytes:
    return np.array([(*row, 0) for row in rows], RECORD).tobytes()


def closing(rows: Sequence[Row]) -> bytes:
    fates = [row[5] for row in rows]
    return records([(len(rows), fates.count(1), fates.count(2), 2**32 - 1, 0, 255)])


def written(path: Path, rows: Sequence[Row]) -> Path:
    path.write_bytes(header() + records(rows) + closing(rows))
    return path


def test_what_was_written_comes_back(tmp_path: Path) -> None:
    log = acknowledged.read(written(tmp_path / "log", ROWS))
    assert (log.origin_ns, log.origin_unix_ns, log.connections, log.closed) == (7, 8, CONNECTIONS, True)
    assert [tuple(row)[:6] for row in log.records.tolist()] == list(ROWS)
    assert [log.keys(fate).tolist() for fate in KeyOutcome] == [[1, 4], [2], [5], []]


def test_a_log_of_nothing_is_whole(tmp_path: Path) -> None:
    log = acknowledged.read(written(tmp_path / "log", ()))
    assert (len(log.records), log.closed) == (0, True)


@given(cut=st.integers(1, RECORD.itemsize * (len(ROWS) + 1) + HEADER.size))
def test_a_log_cut_anywhere_is_refused(cut: int, tmp_path_factory: pytest.TempPathFactory) -> None:
    path = written(tmp_path_factory.mktemp("cut") / "log", ROWS)
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) - cut])
    with pytest.raises(EngineError, match="incomplete or inconsistent"):
        acknowledged.read(path)


def test_the_whole_records_of_an_unclosed_log_can_be_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(header() + records(ROWS) + b"torn")
    log = acknowledged.read(path, allow_unfinished=True)
    assert (len(log.records), log.closed) == (len(ROWS), False)
    path.write_bytes(header())
    assert len(acknowledged.read(path, allow_unfinished=True).records) == 0


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"", "header has 0 of"),
        (header(magic=b"#!/bin/s") + closing(()), "is not a log of acknowledged keys"),
        (header(version=VERSION + 1) + closing(()), f"of version {VERSION + 1}"),
        (header(itemsize=40) + closing(()), "with 40 bytes a record"),
        (header() + records(ROWS[1:]) + closing(ROWS), "closed with 4 records"),
        (header() + records(ROWS[:1] * 2) + closing(ROWS[:1] * 2), "two transactions have the same key"),
        (header() + records([(1, 1, 2, 9, 0, 1)]) + closing([(1, 1, 2, 9, 0, 1)]), "beyond the load's 3"),
        (header() + records([(1, 2, 1, 0, 0, 1)]) + closing([(1, 2, 1, 0, 0, 1)]), "ended before it was sent"),
        (header() + records([(1, 1, 2, 0, 0, 5)]) + closing([(1, 1, 2, 0, 0, 5)]), "unknown fate"),
        (header() + records(ROWS[::-1]) + closing(ROWS), "sent a transaction before its previous one had ended"),
    ],
)
def test_a_log_that_cannot_be_is_refused(tmp_path: Path, content: bytes, expected: str) -> None:
    path = tmp_path / "log"
    path.write_bytes(content)
    with pytest.raises(EngineError, match=expected):
        acknowledged.read(path)


def test_a_log_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(EngineError, match="cannot be read"):
        acknowledged.read(tmp_path / "none")
