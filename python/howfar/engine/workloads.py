"""What each connection repeats: sysbench's workloads under its own option names, or statements of one's own.

Defaults are those of sysbench 1.0.20. What 1.1 has otherwise is the caller's to say (`howfar load --dialect 1.1`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal, Self, get_args

from pydantic import Field, model_validator

from howfar.engine.message import LONGEST_NS, Message

SysbenchKind = Literal[
    "oltp_read_only",
    "oltp_read_write",
    "oltp_write_only",
    "oltp_point_select",
    "oltp_insert",
    "oltp_update_index",
    "oltp_update_non_index",
    "oltp_delete",
    "select_random_points",
    "select_random_ranges",
    "bulk_insert",
]
SYSBENCH_KINDS: tuple[SysbenchKind, ...] = get_args(SysbenchKind)


class Distribution(Message):
    """How row ids are drawn from 1..table_size; the parameters carry sysbench's names and meaning."""

    kind: Literal["uniform", "pareto", "special", "gaussian", "zipfian"] = "special"
    pareto_h: float = Field(default=0.2, gt=0, lt=1)
    spec_iter: int = Field(default=12, ge=1, le=10_000)
    spec_pct: int = Field(default=1, ge=1, le=100)
    spec_res: int = Field(default=75, ge=1, le=99)
    zipfian_exp: float = Field(default=0.8, ge=0)


PsMode = Literal["auto", "disable", "multi"]
"""`auto`: prepared where the server can; `disable`: text; `multi`: text, all statements of a transaction in one request."""


class Sysbench(Message):
    """One of sysbench's Lua workloads. Options that a kind does not use are ignored, as sysbench does."""

    kind: SysbenchKind = "oltp_read_only"
    tables: int = Field(default=1, ge=1, le=2**20)
    table_size: int = Field(default=10_000, ge=1, lt=2**52)
    range_size: int = Field(default=100, ge=1, lt=2**52)
    point_selects: int = Field(default=10, ge=0, le=2**20)
    range_selects: bool = True
    simple_ranges: int = Field(default=1, ge=0, le=2**20)
    sum_ranges: int = Field(default=1, ge=0, le=2**20)
    order_ranges: int = Field(default=1, ge=0, le=2**20)
    distinct_ranges: int = Field(default=1, ge=0, le=2**20)
    index_updates: int = Field(default=1, ge=0, le=2**20)
    non_index_updates: int = Field(default=1, ge=0, le=2**20)
    delete_inserts: int = Field(default=1, ge=0, le=2**20)
    skip_trx: bool = False
    auto_inc: bool = True
    secondary: bool = False
    create_secondary: bool = True
    mysql_storage_engine: str = Field(default="innodb", pattern=r"^[A-Za-z0-9_]+$")
    create_table_options: str = ""
    random_points: int = Field(default=10, ge=1, le=10_000)
    number_of_ranges: int = Field(default=10, ge=1, le=10_000)
    delta: int = Field(default=5, ge=0, lt=2**52)
    db_ps_mode: PsMode = "auto"
    distribution: Distribution = Distribution()


# ---------------------------------------------------------------- statements of one's own


class SequenceValues(Message):
    """first, first + step, … over all connections: each takes every n-th of n."""

    kind: Literal["sequence"] = "sequence"
    first: int = Field(default=1, ge=0, lt=2**62)
    step: int = Field(default=1, ge=1, lt=2**31)


class IntegerValues(Message):
    """Drawn from low..=high by a distribution."""

    kind: Literal["integer"] = "integer"
    low: int = Field(default=1, ge=0, lt=2**52)
    high: int = Field(ge=0, lt=2**52)
    distribution: Distribution = Distribution(kind="uniform")


class TextValues(Message):
    """A string of `length` bytes; about the share `compressible` of it is one repeated phrase, the rest random."""

    kind: Literal["text"] = "text"
    length: int = Field(ge=1, le=2**20)
    alphabet: Literal["letters", "digits"] = "letters"
    compressible: float = Field(default=0.0, ge=0, le=1)


class ConstantValue(Message):
    kind: Literal["constant"] = "constant"
    value: int | str


class SameValue(Message):
    """The value that parameter `index` (from 0) of the same transaction's statement `statement` had last."""

    kind: Literal["same"] = "same"
    statement: str
    index: int = Field(ge=0, le=255)


Values = Annotated[SequenceValues | IntegerValues | TextValues | ConstantValue | SameValue, Field(discriminator="kind")]


class CustomStatement(Message):
    """SQL with a `?` for each parameter."""

    name: str = Field(pattern=r"^[a-z][a-z0-9_]{0,39}$")
    sql: str = Field(min_length=1, max_length=2**20)
    parameters: tuple[Values, ...] = Field(default=(), max_length=256)


def check_statements(statements: Sequence[CustomStatement]) -> frozenset[str]:
    """Their names, each of which stands once. Raises ValueError."""
    known = {statement.name: statement for statement in statements}
    if len(known) < len(statements):
        raise ValueError("two statements have one name")
    for statement in statements:
        for values in statement.parameters:
            if isinstance(values, SameValue) and not (
                values.statement in known and values.index < len(known[values.statement].parameters)
            ):
                raise ValueError(f"statement {statement.name} repeats a parameter that is not there")
    return frozenset(known)


class CustomStep(Message):
    statement: str
    repeat: int = Field(default=1, ge=1, le=2**20)
    think_ns: int = Field(default=0, ge=0, le=LONGEST_NS)
    """Pause before each of them; part of the transaction's latency, not of the statement's."""


class CustomTransaction(Message):
    """Steps in order. Among several transactions each one is drawn with its share of all weights."""

    name: str = Field(pattern=r"^[a-z][a-z0-9_]{0,39}$")
    weight: int = Field(default=1, ge=1, le=1_000_000)
    steps: tuple[CustomStep, ...] = Field(min_length=1, max_length=1024)


class Custom(Message):
    """A workload of one's own; `howfar load --workload FILE.toml` reads it."""

    kind: Literal["custom"] = "custom"
    statements: tuple[CustomStatement, ...] = Field(min_length=1, max_length=1024)
    transactions: tuple[CustomTransaction, ...] = Field(min_length=1, max_length=256)
    prepare: tuple[str, ...] = ()
    """SQL of `howfar load … prepare`, in order; `cleanup` likewise."""
    cleanup: tuple[str, ...] = ()
    db_ps_mode: PsMode = "auto"

    @model_validator(mode="after")
    def _names_exist(self) -> Self:
        known = check_statements(self.statements)
        for transaction in self.transactions:
            for step in transaction.steps:
                if step.statement not in known:
                    raise ValueError(
                        f"transaction {transaction.name} names statement {step.statement}, which is not there"
                    )
        return self


def is_keyed(workload: Sysbench | Custom) -> bool:
    """Each transaction draws at most one number that no other transaction of the job draws, and some do."""
    if isinstance(workload, Sysbench):
        return workload.kind == "oltp_insert" and not workload.auto_inc
    drawing = [
        statement.name
        for statement in workload.statements
        for values in statement.parameters
        if isinstance(values, SequenceValues)
    ]
    keys = [
        sum(step.repeat for step in transaction.steps if step.statement in drawing)
        for transaction in workload.transactions
    ]
    return len(drawing) == 1 and max(keys) == 1
