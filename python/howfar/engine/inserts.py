"""The workloads of single rows, inserted and updated: their statements, and the tables that they need.

One short row a transaction, autocommit, as in the published test of replication over distance; keys are the client's own, so that a
log of them can be held against what a server has.
"""

from __future__ import annotations

from howfar.engine.messages import (
    Custom,
    CustomStatement,
    CustomStep,
    CustomTransaction,
    IntegerValues,
    SequenceValues,
    TextValues,
)

TABLE = "inserted"

SINGLE_ROW_INSERTS = Custom(
    statements=(
        CustomStatement(
            name="insert",
            sql=f"INSERT INTO {TABLE} (id, text) VALUES (?, ?)",
            parameters=(SequenceValues(), TextValues(length=8)),
        ),
    ),
    transactions=(CustomTransaction(name="insert", steps=(CustomStep(statement="insert"),)),),
    prepare=(
        f"DROP TABLE IF EXISTS {TABLE}",
        f"CREATE TABLE {TABLE} (id INT PRIMARY KEY, text VARCHAR(8))",
    ),
    cleanup=(f"DROP TABLE IF EXISTS {TABLE}",),
)

COUNTED = "counted"


def single_row_updates(row: int) -> Custom:
    """Every transaction adds one to this row, so that its number is that of the commits."""
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


PREPARED = {"single_row_inserts": SINGLE_ROW_INSERTS.prepare, "single_row_updates": single_row_updates(1).prepare}
"""What makes the tables, by kind of workload. Those of others are filled beforehand."""
