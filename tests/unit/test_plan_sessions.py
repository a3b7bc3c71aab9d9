"""Sessions as cells ask for them: levels, cells that are the same, the engine's job, what a server lacks, tables that fit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.unit.fake_lab import FakeStage

from howfar.analysis.summary import workload_line
from howfar.engine.messages import (
    Compression,
    LoadJob,
    Tls,
    UnixTarget,
)
from howfar.errors import PlanError
from howfar.plan.cells import cells
from howfar.plan.estimate import cost
from howfar.plan.fitting import check_rows, resumed_in_full, with_rows, without_levels
from howfar.plan.load import load_plan
from howfar.plan.sessions import SessionSpec, session_spec
from howfar.plan.types import Plan
from howfar.runner import preflight as fitting
from howfar.runner.jobs import statements_job
from howfar.runner.preflight import fit
from howfar.store.records import Arm, ArmRole
from howfar.testbed import Trust

QUICK_OVERHEAD_NS = 3_500_000_000
"""To start and end a trial on MySQL, the slower of the two servers, as seen on two CPUs."""


@pytest.mark.parametrize(
    ("factors", "spec"),
    [
        ({}, SessionSpec()),
        ({"tls": "1.2"}, SessionSpec(tls="1.2")),
        ({"tls": "1.3-resumed", "connect": "per-transaction"}, SessionSpec("1.3", True, per_transaction=True)),
        ({"compression": "zlib"}, SessionSpec(algorithm="zlib")),
        ({"compression": "zstd-19", "content": "text"}, SessionSpec(algorithm="zstd", level=19, content="text")),
    ],
)
def test_levels_mean_sessions(factors: dict[str, Any], spec: SessionSpec) -> None:
    assert session_spec({"path": "tcp", "threads": 2, **factors}) == spec


def job(factors: dict[str, Any], trust: Trust | None = None) -> LoadJob:
    arm = Arm(name="it", role=ArmRole.CONTENDER, factors={"path": "socket", "threads": 3, **factors})
    return statements_job(load_plan("paths", quick=True).plan, arm, FakeStage(UnixTarget(path="/s"), trust=trust), 1)


def test_the_engine_is_asked_for_what_the_cell_says() -> None:
    plain = job({}).session
    assert (plain.tls, plain.compression, plain.connect) == (None, None, "persistent")
    trust = Trust("/w/ca.pem", "localhost")
    session = job({"tls": "1.3", "compression": "zstd-9", "connect": "per-transaction"}, trust).session
    assert session.tls == Tls(
        versions="1.3", verify="full", ca_file="/w/ca.pem", server_name="localhost", resumption=False
    )
    assert session.compression == Compression(algorithm="zstd", level=9)
    assert session.connect == "per_transaction"
    resumed = job({"tls": "1.3-resumed"}, trust).session.tls
    assert resumed is not None and resumed.resumption


def grid(**factors: Any) -> Plan:
    plan = load_plan("compression").plan
    return plan.model_copy(update={"factors": plan.factors.model_copy(update=factors)})


def test_connections_that_stay_resume_nothing() -> None:
    plan = load_plan("encryption", quick=True).plan
    found = [cell for cell in cells(plan) if cell.role in ("baseline", "contender")]
    assert len(found) == 2 * (2 + 3)
    assert all(cell.factors["connect"] == "per-transaction" for cell in found if "resumed" in str(cell.factors["tls"]))
    assert len({cell.name for cell in found}) == len(found)


def test_what_a_server_lacks_is_left_out_with_the_reason() -> None:
    lacking = {"compression": dict.fromkeys(("zstd-1", "zstd-3", "zstd-9"), "this one has no zstd")}
    fitted = without_levels(load_plan("compression").plan, lacking)
    assert fitted.plan.factors.compression == ("off", "zlib")
    assert fitted.notes == ("left out: compression zstd-1, zstd-3, zstd-9: this one has no zstd",)
    assert len(cells(fitted.plan)) == 2 * 3 * 2 + 1 + 1
    assert without_levels(load_plan("paths").plan, lacking).notes == ()


def test_what_was_left_out_stands_beside_the_workload() -> None:
    plan = load_plan("compression", quick=True).plan.model_dump(mode="json")
    assert "left out" not in workload_line(plan, {}) + workload_line(plan, {"not_as_asked": []})
    assert workload_line(plan, {"not_as_asked": ["left out: zstd"]}).endswith("pareto ids; left out: zstd")


@pytest.mark.parametrize(
    ("compression", "expected"), [(("zstd",), "asks for compression zstd only"), (("off", "zstd"), "nothing is left")]
)
def test_a_plan_of_which_nothing_is_left_is_an_error(compression: tuple[str, ...], expected: str) -> None:
    plan = grid(compression=compression, content=("digits",), rate_bps=(10**8,))
    with pytest.raises(PlanError, match=expected) as caught:
        without_levels(plan, {"compression": {"zstd": "no zstd here"}})
    assert "no zstd here" in caught.value.message


def test_a_baseline_that_cannot_be_had_is_an_error() -> None:
    plan = load_plan("compression").plan
    plan = plan.model_copy(update={"baseline": plan.baseline.model_copy(update={"compression": "zstd-3"})})
    with pytest.raises(PlanError, match=r"left out: compression zstd-3.*baseline names"):
        without_levels(plan, {"compression": {"zstd-3": "no zstd here"}})


@pytest.mark.parametrize(
    ("most", "size"), [(10**9, 10**7), (10**7, 10**7), (9_999_999, 5 * 10**6), (1_270_000, 10**6), (10_003, 10_000)]
)
def test_tables_are_as_large_as_fits_in_round_numbers(most: int, size: int) -> None:
    fitted = with_rows(load_plan("bandwidth").plan, most)
    assert (fitted.plan.data.table_size, fitted.plan.data.fit) == (size, False)
    assert bool(fitted.notes) == (size < 10**7)


@pytest.mark.parametrize(("most", "expected"), [(9_999, "5000 rows only"), (3, "2 rows only"), (0, "0 rows only")])
def test_tables_too_small_for_their_ranges_are_refused(most: int, expected: str) -> None:
    with pytest.raises(PlanError, match=f"{expected}.*ranges of 100, .*fewer than 10000"):
        with_rows(load_plan("bandwidth").plan, most)


def test_tables_are_as_asked_where_the_plan_does_not_say_that_they_may_be_smaller() -> None:
    plan = load_plan("paths").plan
    assert with_rows(plan, 1).plan == plan


@pytest.mark.parametrize(
    ("tls", "connect", "expected"),
    [
        (("off", "1.3-resumed"), ("persistent",), True),
        (("off", "1.3-resumed"), ("persistent", "per-transaction"), True),
        (("1.3", "1.3-resumed"), ("persistent",), True),
        (("1.3", "1.3-resumed"), ("persistent", "per-transaction"), False),
        (("off", "1.3-resumed"), ("per-transaction",), False),
        (("off", "1.3"), ("persistent",), False),
    ],
)
def test_connections_that_stay_and_were_to_resume_are_said_not_to(
    monkeypatch: pytest.MonkeyPatch, tls: tuple[str, ...], connect: tuple[str, ...], expected: bool
) -> None:
    monkeypatch.setattr(fitting, "_lacking", lambda plan: {})
    plan = grid(tls=tls, connect=connect)
    assert bool(resumed_in_full(plan)) is expected
    assert fit(
        plan.model_copy(update={"data": plan.data.model_copy(update={"fit": False, "table_size": 9})})
    ).notes == (resumed_in_full(plan))


def test_tables_that_no_memory_holds_are_refused_before_anything_is_built() -> None:
    plan = load_plan("paths").plan
    huge = plan.model_copy(update={"data": plan.data.model_copy(update={"table_size": 500_000_000, "tables": 1000})})
    with pytest.raises(PlanError, match="1000 tables of 500000000 rows are too large") as caught:
        fit(huge)
    assert "fit = true" in caught.value.advice
    check_rows(plan, plan.data.table_size)


@pytest.mark.parametrize("name", ["paths", "bandwidth", "compression", "encryption", "replication", "page"])
def test_six_blocks_of_the_quick_forms_fit_in_their_time(name: str) -> None:
    """On MariaDB, which has zlib only; 20 s more for the laboratory than its forecast says, as the first one takes."""
    plan = load_plan(name, quick=True).plan
    here = plan.model_copy(
        update={"factors": plan.factors.model_copy(update={"compression": plan.factors.compression[:2]})}
    )
    forecast = cost(here)
    assert plan.timing.min_blocks >= 6
    assert (
        forecast.around_ns + 6 * forecast.block_ns + 20 * 10**9
        <= plan.timing.time_budget_ns + forecast.trial_ns
        <= 600 * 10**9
    )


def test_the_loopback_is_measured_at_the_same_numbers_of_connections(tmp_path: Path) -> None:
    for quick in (False, True):
        found = cells(load_plan("bandwidth", quick).plan)
        threads = {
            path: {cell.factors["threads"] for cell in found if cell.factors["path"] == path}
            for path in ("tcp", "remote")
        }
        assert threads["tcp"] == threads["remote"]
