"""Workloads that insert and update single rows: their statements, and the tables that they need.

One row per transaction, autocommit. The client chooses the keys, so that a log of them can be compared with what a server holds.
"""

from __future__ import annotations

from collections.abc import Callable

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
_MAX_VARCHAR = 16_000
"""Maximum number of characters, of up to four bytes each, that fit into a row of every server."""


def single_row_inserts(row_bytes: int, long_text: str = "MEDIUMTEXT") -> Custom:
    """A workload whose transactions insert a row with a text of `row_bytes`. `long_text`: the server's type for a long one."""
    column = f"VARCHAR({row_bytes})" if row_bytes <= _MAX_VARCHAR else long_text
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


KINDS_WITH_OWN_TABLES = ("single_row_inserts", "single_row_updates")
"""Kinds of workload whose tables are created anew for each trial. The tables of other kinds are filled beforehand."""


def table_statements(kind: str, row_bytes: int, long_text: Callable[[], str]) -> tuple[str, ...]:
    """Statements that create a workload's tables, if any. `row_bytes`: length of the longest row's text. `long_text`: returns the
    server's type for a long text; called only if needed."""
    if kind == "single_row_inserts":
        return single_row_inserts(row_bytes, long_text() if row_bytes > _MAX_VARCHAR else "").prepare
    return single_row_updates(1).prepare if kind == "single_row_updates" else ()
