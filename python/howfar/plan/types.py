"""A plan: one experiment as a frozen value. Read from TOML by `load.py`; cells and blocks are derived from it by `cells.py`.

The names in TOML (`rtt`, `measure`) carry their unit in the value; the fields here carry it in the name (`rtt_ns`, `measure_ns`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self, TypeVar

from pydantic import (
    BaseModel,
    Field,
    SerializeAsAny,
    SerializerFunctionWrapHandler,
    StrictBool,
    TypeAdapter,
    ValidationError,
    ValidationInfo,
    ValidatorFunctionWrapHandler,
    WrapValidator,
    create_model,
    model_serializer,
    model_validator,
)

from howfar.paths import is_local
from howfar.plan.factor import Factor, FactorLevels, Level
from howfar.plan.factors import (
    CLOSED,
    FACTORS,
    IDLE,
    LOAD,
    baseline_model_of,
    factor_refusal,
    level_of,
    levels_model_of,
)
from howfar.plan.kinds import Keys
from howfar.plan.quantities import STORED, BudgetNs, HalfWidth, MeasureNs, PlanPart, WarmupNs, refusal
from howfar.plan.workload import PLAN_CHECKS, PLAN_TABLES, WORKLOADS, Data, Workload


def _workloads(kinds: Sequence[str]) -> str:
    """`the workload page has`, `the workloads key_value and page have`."""
    return f"the workload {kinds[0]} has" if len(kinds) == 1 else f"the workloads {' and '.join(kinds)} have"


MAX_BLOCKS = 1000


class Factors(PlanPart):
    """Factors that are varied or held: every combination of levels is a cell. Its fields are those of the registry."""

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any: ...

    @property
    def varied(self) -> list[str]:
        return [name for name in type(self).model_fields if len(getattr(self, name)) > 1]


class LeftOut(Factors):
    """Cells that are not measured: those that have one of the given levels for every factor named here."""

    @model_validator(mode="after")
    def _check_names_factor(self) -> Self:
        if not self.model_fields_set:
            raise refusal("an empty table: it would leave out every cell")
        return self

    @model_serializer(mode="wrap")
    def _serialize_named_factors(self, plain: SerializerFunctionWrapHandler) -> dict[str, object]:
        return {name: levels for name, levels in plain(self).items() if name in self.model_fields_set}

    def matches(self, cell: FactorLevels) -> bool:
        return all(level_of(cell, name) in getattr(self, name) for name in self.model_fields_set)


class Baseline(PlanPart):
    """The cell that every other one is compared with. It names enough factors to single out one cell."""


def _registry_validator(model: Any) -> WrapValidator:
    """A validator by the present model of the registry. In a run file, fields are stored by name, not by alias."""

    def validate(value: Any, _: Any, info: ValidationInfo) -> Any:
        model_class = model()
        if isinstance(value, model_class):
            return value
        stored = bool(info.context and info.context.get("stored"))
        return model_class.model_validate(value, context=info.context, by_alias=not stored, by_name=stored)

    return WrapValidator(validate)


def factors_model() -> type[Factors]:
    """Model of the table `[factors]`, with the factors that are in the registry now."""
    return levels_model_of(Factors)


def left_out_model() -> type[LeftOut]:
    """Model of a table of `[[leave_out]]`."""
    return levels_model_of(LeftOut, is_leave_out=True)


def baseline_model() -> type[Baseline]:
    """Model of `[baseline]`."""
    return baseline_model_of(Baseline)


def table_model(table: Any) -> Any:
    """The model of a table: of a table whose fields are factors, with the factors that are in the registry now."""
    build_model = {Factors: factors_model, LeftOut: left_out_model, Baseline: baseline_model}.get(table)
    return table if build_model is None else build_model()


class Timing(PlanPart):
    """Duration, number of repetitions and end of a run."""

    warmup_ns: WarmupNs = Field(default=3_000_000_000, alias="warmup")
    measure_ns: MeasureNs = Field(default=20_000_000_000, alias="measure")
    min_blocks: int = Field(default=8, ge=2, le=MAX_BLOCKS)
    max_blocks: int = Field(default=30, ge=2, le=MAX_BLOCKS)
    target_half_width: HalfWidth = Field(default=0.02, alias="target")
    """Target for every headline ratio and the A/A arm, as a share: the run ends when all are at most this wide."""
    time_budget_ns: BudgetNs = Field(default=7_200_000_000_000, alias="time_budget")
    """Time budget of the whole command, laboratory and report included."""
    may_overrun: StrictBool = True
    """Whether waits for other programs, and repetitions of trials that they disturbed, may be added to the budget. `--time-budget` is
    a strict limit: it forbids it."""
    confirm: StrictBool = False
    """Whether to change, after the blocks, the resources that were named as limits, and check that throughput changes as predicted."""

    controls: StrictBool | Literal["same"] = True
    """Whether to measure the instrument's own bias over a link in each block: a cell twice, and with a known longer RTT; `same`:
    only the cell twice."""

    @model_validator(mode="after")
    def _check_block_counts(self) -> Self:
        if self.max_blocks < self.min_blocks:
            raise refusal(f"max_blocks {self.max_blocks} is less than min_blocks {self.min_blocks}")
        return self


class Plan(PlanPart):
    """One experiment, resolved: after `[quick]` and command line options."""

    name: str = Field(pattern=r"^[a-z0-9][a-z0-9-]{0,39}$")
    question: str = Field(min_length=1, max_length=200)
    """The question that the run answers, in one sentence."""
    workload: Workload
    data: Data = Data()
    factors: SerializeAsAny[Annotated[Factors, _registry_validator(factors_model)]]
    baseline: SerializeAsAny[Annotated[Baseline, _registry_validator(baseline_model)]]
    timing: Timing = Timing()
    keys: Keys = Keys()
    leave_out: tuple[SerializeAsAny[Annotated[LeftOut, _registry_validator(left_out_model)]], ...] = ()

    @model_validator(mode="after")
    def _check_kind(self) -> Self:
        """Check that the kind of workload has each factor and table that the plan names."""
        kind = self.workload.kind
        WORKLOADS[kind].check(self)
        for name, factor in FACTORS.items():
            if factor.kinds and kind not in factor.kinds and getattr(self.factors, name) != (factor.default,):
                raise factor_refusal(
                    name,
                    f"{factor.key} does not apply to the workload {kind}: only {_workloads(factor.kinds)} it",
                )
        for table in PLAN_TABLES:
            if kind not in table.kinds and table.of(self):
                raise refusal(
                    f"[{table.name}] does not apply to the workload {kind}: only {_workloads(table.kinds)} them",
                    table.name,
                )
        if not WORKLOADS[kind].used_keys and self.keys != Keys():
            owners = [name for name, other in WORKLOADS.items() if other.used_keys]
            raise refusal(f"[keys] does not apply to the workload {kind}: only {_workloads(owners)} them", "keys")
        return self

    @model_validator(mode="after")
    def _check_load(self) -> Self:
        takes_rate = WORKLOADS[self.workload.kind].takes_rate
        if self.factors.load != (CLOSED,) and (not takes_rate or self._has_fault):
            closed = [each.operation.plural for each in WORKLOADS.values() if not each.takes_rate]
            others = " or ".join((*closed, "trials with a fault"))
            raise factor_refusal("load", f"a load at a rate of its own needs transactions: it is not for {others}")
        return self

    @property
    def _has_fault(self) -> bool:
        """Whether some of its cells may have a fault."""
        return any(
            getattr(self.factors, name) != (each.implied_level,) for name, each in FACTORS.items() if each.is_fault
        )

    @model_validator(mode="after")
    def _check_slices(self) -> Self:
        for check in PLAN_CHECKS:
            check(self)
        return self


if not TYPE_CHECKING:
    Plan = create_model(
        "Plan",
        __base__=Plan,
        __module__=__name__,
        **{table.name: (dict[table.key_type, table.model], Field(default_factory=dict)) for table in PLAN_TABLES},
    )

PlanJson = dict[str, Any]
"""A plan as kept in a run file: `Plan.model_dump(mode="json")`."""


def restore_plan(stored: PlanJson) -> Plan:
    """The plan kept in a run file, to measure more of it."""
    factors = {
        IDLE.name: [IDLE.implied_level],
        LOAD.name: [LOAD.implied_level],
        **stored["factors"],
    }  # older files lack these
    return Plan.model_validate({**stored, "factors": factors}, context=STORED, by_alias=False, by_name=True)


def _none_if_invalid(value: object, read: ValidatorFunctionWrapHandler) -> object:
    try:
        return read(value)
    except ValidationError:
        return None


T = TypeVar("T")
L = TypeVar("L")
_OptionalPart = Annotated[T | None, WrapValidator(_none_if_invalid)]
"""A part of a stored plan. None: the plan lacks it, or it is malformed."""


class StoredPlan(BaseModel, frozen=True):
    """The parts of a plan in a run file that reports need. They must be readable even if the plan can no longer be measured."""

    question: _OptionalPart[str] = None
    workload: _OptionalPart[Workload] = None
    data: _OptionalPart[Data] = None
    timing: _OptionalPart[Timing] = None
    keys: _OptionalPart[Keys] = None
    factors: _OptionalPart[dict[str, _OptionalPart[tuple[Level, ...]]]] = None
    """Levels by factor."""

    def levels_of(self, factor: Factor[L]) -> tuple[L, ...]:
        """The levels of a factor in this plan; its implied one if the plan does not have them."""
        stored = (self.factors or {}).get(factor.name)
        try:
            return TypeAdapter(tuple[factor.level_type, ...]).validate_python(stored, context=STORED)  # type: ignore[name-defined]
        except ValidationError:
            return () if factor.implied_level is None else (factor.implied_level,)


if not TYPE_CHECKING:
    StoredPlan = create_model(
        "StoredPlan",
        __base__=StoredPlan,
        __module__=__name__,
        **{table.name: (_OptionalPart[dict[str, _OptionalPart[table.model]]], None) for table in PLAN_TABLES},
    )


def parse_stored_plan(plan: PlanJson) -> StoredPlan:
    """The plan kept in a run file, to report it."""
    return StoredPlan.model_validate(plan, context=STORED, by_alias=False, by_name=True)


def local_plan(plan: Plan) -> Plan:
    """The plan with only those of its paths that cross no link; unchanged if there are none."""
    local = tuple(path for path in plan.factors.path if is_local(path))
    if not local:
        return plan
    return plan.model_copy(update={"factors": plan.factors.model_copy(update={"path": local})})
