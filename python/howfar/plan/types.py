"""A plan: one experiment as a frozen value. Read from TOML by `load.py`; cells and blocks are made of it by `cells.py`.

The names in TOML (`rtt`, `measure`) carry their unit in the value; the fields here carry it in the name (`rtt_ns`, `measure_ns`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, Self

from pydantic import (
    Field,
    SerializeAsAny,
    SerializerFunctionWrapHandler,
    StrictBool,
    ValidationInfo,
    WrapValidator,
    model_serializer,
    model_validator,
)

from howfar.paths import is_local
from howfar.plan.factors import FACTORS, REPLICA_FACTORS, SEMI_SYNC, ShapeName, level_of, made_of, one_level_each
from howfar.plan.page import Keys, PageShape, check_pages
from howfar.plan.part import Part
from howfar.plan.quantities import STORED, BudgetNs, HalfWidth, MeasureNs, WarmupNs, refuse
from howfar.plan.workload import Data, Workload

FALLBACK_NS = 25_000_000_000
"""The shortest window for a replica that leaves and returns under the servers' own timeout of 10 s."""

MOST_BLOCKS = 1000


class Factors(Part):
    """What is varied, and what is held: every combination of levels is a cell. Its fields are those of the registry."""

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any: ...

    @property
    def varied(self) -> list[str]:
        return [name for name in type(self).model_fields if len(getattr(self, name)) > 1]


class LeftOut(Factors):
    """Cells that are not measured: those that have, of every factor named here, one of its levels."""

    @model_validator(mode="after")
    def _names_something(self) -> Self:
        if not self.model_fields_set:
            raise refuse("an empty table: it would leave out every cell")
        return self

    @model_serializer(mode="wrap")
    def _only_named(self, plain: SerializerFunctionWrapHandler) -> dict[str, Any]:
        return {name: levels for name, levels in plain(self).items() if name in self.model_fields_set}

    def matches(self, cell: Mapping[str, Any]) -> bool:
        return all(level_of(cell, name) in getattr(self, name) for name in self.model_fields_set)


class Baseline(Part):
    """Which cell every other one is compared with. Name as many factors as single it out."""


def _by_registry(model: Any) -> WrapValidator:
    """Validate with the model that the registry makes, as it is now. In a run file fields have their own names."""

    def validate(value: Any, _: Any, info: ValidationInfo) -> Any:
        made = model()
        if isinstance(value, made):
            return value
        stored = bool(info.context and info.context.get("stored"))
        return made.model_validate(value, context=info.context, by_alias=not stored, by_name=stored)

    return WrapValidator(validate)


def factors_model() -> type[Factors]:
    """`[factors]`, as the registry is now."""
    model: type[Factors] = made_of(Factors, "Factors")
    return model


def left_out_model() -> type[LeftOut]:
    """A table of `[[leave_out]]`."""
    model: type[LeftOut] = made_of(LeftOut, "LeftOut", left_out=True)
    return model


def baseline_model() -> type[Baseline]:
    """`[baseline]`."""
    model: type[Baseline] = one_level_each(Baseline, "Baseline")
    return model


def table_model(table: Any) -> Any:
    """The class of a table; one whose fields are the factors, as the registry is now."""
    made = {Factors: factors_model, LeftOut: left_out_model, Baseline: baseline_model}.get(table)
    return table if made is None else made()


class Timing(Part):
    """How long, how often, and when it is enough."""

    warmup_ns: WarmupNs = Field(default=3_000_000_000, alias="warmup")
    measure_ns: MeasureNs = Field(default=20_000_000_000, alias="measure")
    min_blocks: int = Field(default=8, ge=2, le=MOST_BLOCKS)
    max_blocks: int = Field(default=30, ge=2, le=MOST_BLOCKS)
    target_half_width: HalfWidth = Field(default=0.02, alias="target")
    """Of every headline ratio and of the A/A arm, as a share: the run ends when all are at most this wide."""
    time_budget_ns: BudgetNs = Field(default=7_200_000_000_000, alias="time_budget")
    """Of the whole command, laboratory and report included."""
    confirm: StrictBool = False
    """After the blocks, change the resources that were named as limits and see whether throughput moves as said."""

    @model_validator(mode="after")
    def _blocks_in_order(self) -> Self:
        if self.max_blocks < self.min_blocks:
            raise refuse(f"max_blocks {self.max_blocks} is less than min_blocks {self.min_blocks}")
        return self


class Plan(Part):
    """One experiment, resolved: after `[quick]` and command line options."""

    name: str = Field(pattern=r"^[a-z0-9][a-z0-9-]{0,39}$")
    question: str = Field(min_length=1, max_length=200)
    """One sentence: what the run answers."""
    workload: Workload
    data: Data = Data()
    factors: SerializeAsAny[Annotated[Factors, _by_registry(factors_model)]]
    baseline: SerializeAsAny[Annotated[Baseline, _by_registry(baseline_model)]]
    timing: Timing = Timing()
    pages: dict[ShapeName, PageShape] = Field(default_factory=dict)
    """What the levels of the factor `page` are."""
    keys: Keys = Keys()
    leave_out: tuple[SerializeAsAny[Annotated[LeftOut, _by_registry(left_out_model)]], ...] = ()

    @model_validator(mode="after")
    def _pages_make_sense(self) -> Self:
        check_pages(self)
        return self

    @model_validator(mode="after")
    def _replication_makes_sense(self) -> Self:
        factors, alone = self.factors, set(self.factors.replication) <= {"off", "none"}
        if alone and factors.fault != ("none",):
            raise refuse("a fault needs a replica that takes over: name a mode of replication that has one")
        idle = [*(REPLICA_FACTORS if alone else ()), *(("durability",) if factors.replication == ("off",) else ())]
        for name in idle:
            factor = FACTORS[name]
            if getattr(factors, name) != (factor.default,):
                raise refuse(f"{factor.key} means nothing without replication: name a mode that has it")
        if set(factors.replication) & set(SEMI_SYNC) and min(factors.wait_for) > max(factors.replicas):
            raise refuse(f"a commit cannot wait for {min(factors.wait_for)} of {max(factors.replicas)} replicas")
        return self

    @model_validator(mode="after")
    def _faults_have_keys(self) -> Self:
        if self.factors.fault != ("none",) and self.workload.kind != "single_row_inserts":
            raise refuse("a fault needs the workload single_row_inserts: its clients log the keys that are looked for")
        return self

    @model_validator(mode="after")
    def _faults_can_be_done(self) -> Self:
        if "replica-leaves" not in self.factors.fault:
            return self
        if "async" in self.factors.replication:
            raise refuse("replica-leaves needs an acknowledgement to fall back from: asynchronous replication has none")
        if self.timing.measure_ns < FALLBACK_NS:
            raise refuse(
                f"replica-leaves needs measure = '{FALLBACK_NS // 10**9}s' or more: the replica leaves, is away beyond the "
                "servers' timeout, and returns"
            )
        return self


def restore_plan(stored: dict[str, Any]) -> Plan:
    """The plan as kept in a run file (`Plan.model_dump(mode="json")`)."""
    return Plan.model_validate(stored, context=STORED, by_alias=False, by_name=True)


def local_part(plan: Plan) -> Plan:
    """The plan with only those of its paths that pass no link; without any, as it is."""
    local = tuple(path for path in plan.factors.path if is_local(path))
    if not local:
        return plan
    return plan.model_copy(update={"factors": plan.factors.model_copy(update={"path": local})})
