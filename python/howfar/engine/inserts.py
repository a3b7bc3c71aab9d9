"""The workload of single-row inserts: its statement, and the empty table that it needs.

One short row a transaction, autocommit, as in the published test of replication over distance; keys are the client's own, so that a
log of them can be held against what a server has.
"""

from __future__ import annotations

from howfar.engine.messages import (
    Custom,
    CustomStatement,
    CustomStep,
    CustomTransaction,
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
