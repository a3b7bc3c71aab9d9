"""Made-up parts, registered as slices register theirs: faults, records, settings of sessions, checks, the levels of a server."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, Literal

import pytest
from pydantic import ValidationError
from tests.unit.fake_lab import fake_info, fakes

from howfar.errors import PlanError
from howfar.plan import sessions, types
from howfar.plan.cells import cells
from howfar.plan.factor import Factor, SessionSetting
from howfar.plan.factors import FACTORS, THREADS, has_fault
from howfar.plan.fitting import FittedPlan
from howfar.plan.load import load_plan
from howfar.plan.quantities import refusal
from howfar.plan.sessions import session_spec
from howfar.plan.types import Plan, parse_stored_plan, restore_plan
from howfar.runner import preflight, trial
from howfar.runner.loads.load import make_session
from howfar.runner.preflight import ServerSupport, unsupported_by_server, with_server_levels
from howfar.runner.stopping import OwnFigure, Slot, own_figure
from howfar.runner.trial import Measurement, StartedTrial, run_trial
from howfar.store import records
from howfar.store.records import FaultRecord, FollowerLag, Trial, Window

OUTAGE: Factor[str] = Factor("outage", str, default="no", implied_level="no", is_fault=True)


class OutageRecord(FaultRecord):
    total_unit = "requests dropped"
    kind: Literal["outage"] = "outage"
    dropped: int

    @property
    def total(self) -> int:
        return self.dropped


@pytest.fixture
def outage(monkeypatch: pytest.MonkeyPatch) -> None:
    def measure(started: StartedTrial) -> None:
        started.results.fault = OutageRecord(dropped=7)

    monkeypatch.setitem(FACTORS, OUTAGE.name, OUTAGE)
    monkeypatch.setattr(trial, "_measurements", lambda: (Measurement(has_fault, measure),))
    monkeypatch.setattr(records, "_fault_classes", lambda: {"outage": OutageRecord})


def run_arm(**levels: str) -> Trial:
    laboratory, _, instruments = fakes()
    info = fake_info(laboratory)
    arm = info.arms[0].model_copy(update={"factors": info.arms[0].factors | levels})
    return run_trial(
        0, Slot(0, 0, 0, arm.name), arm, restore_plan(info.plan), 1, laboratory, instruments, lambda event: None
    )


@pytest.mark.usefixtures("outage")
def test_a_cell_is_measured_as_its_measurement_does() -> None:
    broken, plain = run_arm(outage="yes"), run_arm(outage="no")
    assert broken.fault == OutageRecord(dropped=7)
    assert broken.measured is None
    assert plain.fault is None
    assert plain.measured is not None
    assert own_figure({}, [broken, broken], "queries") == OwnFigure(14, "requests dropped")


@pytest.mark.usefixtures("outage")
def test_a_record_of_a_fault_is_read_as_its_class() -> None:
    broken = run_arm(outage="yes")
    assert Trial.model_validate_json(broken.model_dump_json()).fault == OutageRecord(dropped=7)


@pytest.mark.parametrize("fault", [{"kind": "flood"}, {}, {"kind": ["crash"]}, {"kind": "crash"}])
def test_a_fault_of_an_unknown_kind_or_with_missing_fields_is_refused(fault: dict[str, Any]) -> None:
    stored = run_arm().model_dump(mode="json") | {"fault": fault}
    with pytest.raises(ValidationError):
        Trial.model_validate(stored)


class DelayRecord(FollowerLag):
    delay_ns: int


def test_a_record_of_lag_is_read_as_the_class_that_has_its_fields(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(records, "_lag_classes", lambda: (DelayRecord,))
    window = Window(length_ns=10, interface="", lag=(DelayRecord(at_ns=3, delay_ns=7),))
    assert Window.model_validate_json(window.model_dump_json()) == window
    stored = window.model_dump(mode="json")
    for lag in ({"at_ns": 3, "behind": 7}, {"at_ns": 3}, {"at_ns": -1, "delay_ns": 7}):
        with pytest.raises(ValidationError):
            Window.model_validate(stored | {"lag": [lag]})


def test_a_setting_of_sessions_is_requested_in_the_job(monkeypatch: pytest.MonkeyPatch) -> None:
    key: Factor[str] = Factor("key", str, default="fetched", implied_level="fetched")
    setting = SessionSetting(key, "fetch_server_key", lambda level: None if level == "fetched" else False)
    monkeypatch.setattr(sessions, "SESSION_SETTINGS", (setting,))
    assert make_session(session_spec({"path": "tcp"}), None).fetch_server_key
    assert not make_session(session_spec({"path": "tcp", "key": "known"}), None).fetch_server_key


@pytest.mark.usefixtures("outage")
def test_a_baseline_with_a_fault_has_no_duplicate() -> None:
    plan = load_plan("paths").plan
    table = plan.model_dump(mode="json")
    broken = restore_plan(table | {"factors": table["factors"] | {"outage": ["yes"]}})
    assert not any(cell.role == "duplicate" for cell in cells(broken))
    assert any(cell.role == "duplicate" for cell in cells(plan))


def test_a_plan_that_a_check_refuses_is_not_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    def check(plan: Plan) -> None:
        raise refusal("no plan at all", "factors", "path")

    monkeypatch.setattr(types, "PLAN_CHECKS", (check,))
    with pytest.raises(PlanError, match="no plan at all"):
        load_plan("paths")


@pytest.mark.parametrize(
    ("stored", "levels"), [([1, 8], (1, 8)), (None, ()), (["many"], ()), ("1", ()), ([[2]], ()), ([0], ())]
)
def test_a_stored_plan_has_only_levels_that_are_valid(stored: object, levels: tuple[int, ...]) -> None:
    plan = parse_stored_plan({"factors": {"threads": stored}})
    assert plan.levels_of(THREADS) == levels
    assert parse_stored_plan({"factors": {"load": stored}}).levels_of(FACTORS["load"]) == ("closed",)


def test_what_a_server_supports_comes_from_every_slice(monkeypatch: pytest.MonkeyPatch) -> None:
    def support(name: str) -> ServerSupport:
        def add_name(plan: Any) -> FittedPlan:
            seen: Any = SimpleNamespace(seen=(*plan.seen, name))
            return FittedPlan(seen, (name,))

        return ServerSupport(
            unsupported=lambda plan: {name: {"a": "this server has none"}},
            with_server_levels=add_name,
        )

    monkeypatch.setattr(preflight, "_server_support", lambda: (support("first"), support("second")))
    plan: Any = SimpleNamespace(seen=())
    adapted = with_server_levels(plan)
    assert adapted.notes == vars(adapted.plan)["seen"] == ("first", "second")
    assert list(unsupported_by_server(plan)) == ["first", "second"]
