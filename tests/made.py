"""Builds records, messages and findings for tests: fields that a test does not name are empty."""

from __future__ import annotations

import types
from collections.abc import Sequence
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin

from hdrh.histogram import HdrHistogram
from pydantic import BaseModel

from howfar.analysis.cells import Metric, NoiseFloors
from howfar.contract.environment import RunEnvironment
from howfar.contract.receipt import TrialReceipt
from howfar.stats.estimate import Estimate
from howfar.stats.hdr import MAX_NS, SIGNIFICANT_DIGITS
from howfar.stats.histograms import merge_data, value_at
from howfar.store.records import Arm, Run, RunInfo, StopReason, Trial, TrialStatus

Model = TypeVar("Model", bound=BaseModel)
START_NS = 1_790_000_000_000_000_000


def build(kind: type[Model], **named: Any) -> Model:
    """A value with these fields. Other fields have their default or are empty: None, 0, no elements, the first allowed word."""
    unnamed = {
        name: nothing(field.annotation)
        for name, field in kind.model_fields.items()
        if field.is_required() and name not in named
    }
    return kind(**unnamed | named)


def nothing(kind: Any) -> Any:
    """The empty value of a type; of words, the first."""
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is Annotated:
        return nothing(arguments[0])
    if origin is Literal:
        return arguments[0]
    if origin in (Union, types.UnionType):
        return None if type(None) in arguments else nothing(arguments[0])
    return build(kind) if isinstance(kind, type) and issubclass(kind, BaseModel) else (origin or kind)()


def latency(kind: type[Model], name: str, values_ns: Sequence[float], each: int = 1) -> Model:
    """A histogram in the form of the engine or the run file; each value is recorded `each` times."""
    histogram = HdrHistogram(1, MAX_NS, SIGNIFICANT_DIGITS)
    low, high = int(min(values_ns, default=0)), int(max(values_ns, default=0))
    for value in values_ns:
        histogram.record_value(int(value), each)
    data = histogram.encode().decode("ascii")
    merged = merge_data([data])
    quantiles = {f"p{share}_ns": min(int(value_at(merged, share / 100)), high) for share in (50, 95, 99)}
    return kind(
        kind=name,
        count=len(values_ns) * each,
        min_ns=low,
        mean_ns=sum(values_ns) / max(len(values_ns), 1),
        max_ns=high,
        data=data,
        **quantiles,
    )


def build_trial(number: int, arm: str, **more: Any) -> Trial:
    """A successful trial in its own block."""
    start = START_NS + number * 30_000_000_000
    fields: dict[str, Any] = {"block": number, "position": 0, "status": TrialStatus.OK}
    times = {"started_unix_ns": start, "ended_unix_ns": start + 20_000_000_000}
    return Trial(number=number, arm=arm, **fields | times | more)


def with_receipt(trial: Trial, **parts: Any) -> Trial:
    """The trial with these parts of its receipt; its other parts stay."""
    return trial.model_copy(update={"receipt": trial.receipt.updated(TrialReceipt.model_validate(parts))})


def build_run(name: str, arms: Sequence[Arm], trials: Sequence[Trial], stop: StopReason, **info: Any) -> Run:
    """A run of the plan of this name, on MariaDB."""
    fields: dict[str, Any] = {
        "run_id": "00000000-0000-4000-8000-000000000001",
        "created_unix_ns": START_NS,
        "howfar_version": "0.1.0",
        "command": ("howfar", "run", name),
        "plan": {"name": name},
        "seed": 1,
        "server_kind": "mariadb",
        "server_version": "10.11.14-MariaDB-0+deb12u2",
    }
    return Run(info=build(RunInfo, plan_name=name, arms=tuple(arms), **fields | info), trials=tuple(trials), stop=stop)


def with_environment(run: Run, **facts: Any) -> Run:
    """The run with these facts about where it was measured; its other facts stay."""
    environment = run.info.environment.updated(RunEnvironment.model_validate(facts))
    return run.model_copy(update={"info": run.info.model_copy(update={"environment": environment})})


def floors_of(floor: float | None, link: float | None = None) -> NoiseFloors:
    """The same floors for every figure: by the baseline's A/A arm, and by the A/A arm over the link."""

    def twice(floor: float | None) -> dict[Metric, Estimate]:
        return {} if floor is None else dict.fromkeys(Metric, Estimate(value=1.0, low=1 / (1 + floor), high=1 + floor))

    return NoiseFloors(baseline_ratios=twice(floor), link_ratios=twice(link))
