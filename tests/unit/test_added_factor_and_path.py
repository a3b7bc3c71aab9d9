"""A made-up factor and path, added as one entry each in their registries, work in plan, runner, analysis and every report."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path as FilePath
from typing import Annotated

import pytest
from pydantic import Field
from tests.unit import fake_lab
from tests.unit.fake_lab import fake_info, fakes

from howfar.analysis.summary import Summary
from howfar.errors import PlanError
from howfar.experiments.registry import render_as, render_in_terminal, summarise
from howfar.paths import PATHS
from howfar.paths.path import ClientEndpoint, Path, PathContext
from howfar.plan.cells import cells
from howfar.plan.factor import Factor
from howfar.plan.factors import FACTORS
from howfar.plan.load import load_plan
from howfar.plan.types import restore_plan
from howfar.report.grid import arrange_grid
from howfar.report.text import json_values
from howfar.runner.run import execute_run
from howfar.store.records import Run, StopReason, TrialStatus
from howfar.store.run_file import create, read_run


class TunnelPath(Path):
    name = "tunnel"
    label = "a tunnel"
    machines = 2
    crosses_link = True
    networking = True
    by_socket = False
    modelled = False

    def open(self, context: PathContext) -> ClientEndpoint:
        return ClientEndpoint(host=context.server_address, port=context.server_port)


MTU: Factor[int] = Factor(
    "mtu_bytes",
    Annotated[int, Field(ge=576, le=9000, strict=True)],
    default=1500,
    implied_level=1500,
    toml_name="mtu",
    is_toml_string=False,
    label=lambda size: f"MTU {size}",
    short_label=lambda size: f"{size} B",
    heading="packets of",
    prefers_rows=True,
    applies=lambda cell: PATHS[str(cell["path"])].crosses_link,
)
PLAN = """\
name = "mtu"
question = "What does the size of a packet cost on a tunnel?"

[workload]
point_selects = 3

[factors]
path = ["tcp", "tunnel"]
mtu = [1500, 9000]

[baseline]
path = "tcp"

[timing]
warmup = "1s"
measure = "4s"
target = "5%"
controls = false
"""
ARMS = {
    "tcp": {},
    "tcp (again)": {},
    "tunnel, MTU 1500": {"mtu_bytes": 1500},
    "tunnel, MTU 9000": {"mtu_bytes": 9000},
}


@pytest.fixture(scope="module", autouse=True)
def added() -> Iterator[None]:
    """Register both: one line each."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(PATHS, TunnelPath.name, TunnelPath())
        patch.setitem(FACTORS, MTU.name, MTU)
        patch.setitem(fake_lab.RATES, TunnelPath.name, 12_000)
        yield


@pytest.fixture
def plan_file(tmp_path: FilePath) -> FilePath:
    path = tmp_path / "mtu.toml"
    path.write_text(PLAN)
    return path


@pytest.fixture(scope="module")
def run(added: None, tmp_path_factory: pytest.TempPathFactory) -> Run:
    return measured(PLAN, tmp_path_factory.mktemp("added"))


def measured(plan: str, folder: FilePath) -> Run:
    (folder / "mtu.toml").write_text(plan)
    laboratory, _engine, instruments = fakes()
    loaded = load_plan(str(folder / "mtu.toml"))
    with create(folder / "mtu.howfar", fake_info(loaded=loaded)) as file:
        assert execute_run(file, laboratory, laboratory.clock(), instruments) is StopReason.WIDTH
    assert {factors.get("mtu_bytes") for factors in laboratory.staged} == {None, 1500, 9000}
    return read_run(folder / "mtu.howfar")


@pytest.fixture(scope="module")
def summary(run: Run) -> Summary:
    return summarise(run)


def test_a_plan_takes_them_and_only_where_they_apply(plan_file: FilePath) -> None:
    plan = load_plan(str(plan_file)).plan
    found = {cell.name: cell.factors for cell in cells(plan)}
    assert list(found) == list(ARMS)
    for name, extra in ARMS.items():
        path = "tunnel" if name.startswith("tunnel") else "tcp"
        assert {key: found[name][key] for key in ("path", "mtu_bytes") if key in found[name]} == {"path": path} | extra
        assert ("rtt_ns" in found[name]) == (path == "tunnel"), "a path that crosses the link has the link's factors"
    assert restore_plan(plan.model_dump(mode="json")) == plan


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("mtu = [1500, 9000]", "mtu = [100]", "mtu.toml:9"),
        ("mtu = [1500, 9000]", "mtu_bytes = [1500]", "mtu_bytes"),
        ('path = "tcp"', 'path = "tunnel"', "2 of its 3 cells match"),
        ('path = "tcp"', "size = 1500", "unknown field baseline.size"),
        ('path = "tcp"', 'path = "tcp"\n[[leave_out]]\nsize = 1500', "unknown field leave_out.size"),
    ],
    ids=["out of range", "the name inside", "no one baseline", "unknown in baseline", "unknown in leave_out"],
)
def test_a_plan_refuses_their_levels(plan_file: FilePath, old: str, new: str, message: str) -> None:
    plan_file.write_text(PLAN.replace(old, new))
    with pytest.raises(PlanError, match=message) as caught:
        load_plan(str(plan_file))
    if "mtu.toml" not in message:
        assert re.search(r"\bmtu\b", caught.value.advice), "the advice lists the factor by its name in plans"


def test_cells_are_left_out_by_them(plan_file: FilePath) -> None:
    plan_file.write_text(f"{PLAN}\n[[leave_out]]\nmtu = [9000]\n")
    assert [cell.name for cell in cells(load_plan(str(plan_file)).plan)][2:] == ["tunnel, MTU 1500"]


def test_the_runner_measures_every_arm(run: Run) -> None:
    assert {arm.name for arm in run.info.arms} == set(ARMS)
    assert len(run.trials) == 8 * len(ARMS)
    assert all(trial.status is TrialStatus.OK for trial in run.trials)


def test_the_analysis_compares_them(summary: Summary) -> None:
    ratios = {cell["arm"]: cell["ratio"]["value"] for cell in json_values(summary)["cells"] if cell["ratio"]}
    assert ratios["tunnel, MTU 9000"] == pytest.approx(0.5, rel=0.01)


def test_every_report_names_them(summary: Summary) -> None:
    for text in (
        render_in_terminal(summary, 100, False, True, details=False),
        render_in_terminal(summary, 100, False, True, details=True),
        *(render_as(summary, form) for form in ("html", "md", "csv", "json")),
    ):
        assert "MTU 9000" in text
        assert "tunnel" in text


@pytest.mark.parametrize(
    ("more", "row_head", "rows", "column"),
    [
        ('rtt = ["0.2ms", "1ms", "5ms"]\nrate = ["1gbit", "100mbit"]', "packets of", ("1500 B", "9000 B"), "RTT 1ms"),
        ('threads = [1, 2, 4]\nrtt = ["0.2ms", "1ms"]', "connections", ("1", "2", "4"), "9000 B"),
    ],
    ids=["its levels are rows", "and columns"],
)
def test_a_grid_has_a_place_for_it(
    tmp_path: FilePath, more: str, row_head: str, rows: tuple[str, ...], column: str
) -> None:
    plan = PLAN.replace("mtu = [1500, 9000]", f"mtu = [1500, 9000]\n{more}")
    baseline = 'path = "tcp"\nthreads = 1' if "threads" in more else 'path = "tcp"'
    found = arrange_grid(summarise(measured(plan.replace('path = "tcp"', baseline), tmp_path)))
    assert (found.row_head, tuple(text for text in found.rows if text)) == (row_head, rows)
    assert any(column in levels for levels in found.columns), found.columns
