"""Workloads that insert and update single rows: their statements, and the tables that they need.

One row per transaction, autocommit. The client chooses the keys, so that a log of them can be compared with what a server holds.
"""

from __future__ import annotations

from howfar.contract.messages import (
    Custom,
    CustomStatement,
    CustomStep,
    CustomTransaction,
    IntegerValues,
    SequenceValues,
    TextValues,
)

TABLE = "inserted"
"""The table of `single_row_inserts`."""
MAX_VARCHAR = 16_000
"""Maximum number of characters, of up to four bytes each, that fit into a row of every server."""


def single_row_inserts(row_bytes: int, long_text: str = "MEDIUMTEXT") -> Custom:
    """A workload whose transactions insert a row with a text of `row_bytes`. `long_text`: the server's type for a text longer than a
    VARCHAR."""
    column = f"VARCHAR({row_bytes})" if row_bytes <= MAX_VARCHAR else long_text
    return Custom(
        statements=(
            CustomStatement(
                name="insert",
                sql=f"INSERT INTO {TABLE} (id, text) VALUES (?, ?)",
                parameters=(SequenceValues(), TextValues(length=row_bytes)),
            ),
        ),
        transactions=(CustomTransaction(name="insert", steps=(CustomStep(statement="insert"),)),),
        prepare=(
            f"DROP TABLE IF EXISTS {TABLE}",
            f"CREATE TABLE {TABLE} (id INT PRIMARY KEY, text {column})",
        ),
        cleanup=(f"DROP TABLE IF EXISTS {TABLE}",),
    )


COUNTED = "counted"
"""The table of `single_row_updates`."""


def single_row_updates(row: int) -> Custom:
    """A workload whose transactions add one to row `row`, so that its value is the number of commits."""
    return Custom(
        statements=(
            CustomStatement(
                name="update",
                sql=f"UPDATE {COUNTED} SET n = n + 1 WHERE id = ?",
                parameters=(IntegerValues(low=row, high=row),),
            ),
        ),
        transactions=(CustomTransaction(name="update", steps=(CustomStep(statement="update"),)),),
        prepare=(
            f"DROP TABLE IF EXISTS {COUNTED}",
            f"CREATE TABLE {COUNTED} (id INT PRIMARY KEY, n BIGINT NOT NULL)",
            f"INSERT INTO {COUNTED} VALUES (1, 0), (2, 0)",
        ),
        cleanup=(f"DROP TABLE IF EXISTS {COUNTED}",),
    )
