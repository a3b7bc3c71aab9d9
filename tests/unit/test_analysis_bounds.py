"""The CPU time of a path over the link is a lower bound: part of the work runs in the emulator's threads."""

from __future__ import annotations

import re

import pytest
from tests.unit.rendered import csv as csv
from tests.unit.rendered import html as html
from tests.unit.rendered import markdown as markdown
from tests.unit.rendered import terminal as terminal
from tests.unit.synthetic_run import PATHS, PathModel, synthetic_run

from howfar.analysis.cells import Bound, CellSummary
from howfar.experiments.registry import summarise
from howfar.stats.intervals import Resolution
from howfar.store.records import ArmRole, Run


def cells(run: Run) -> dict[str, CellSummary]:
    return {cell.arm: cell for cell in summarise(run).cells}


def remote_with(client_us: float) -> Run:
    remote = PathModel("remote", ArmRole.CONTENDER, 251, client_us, 27.9, link_us=14.2)
    return synthetic_run(models=(*PATHS[:3], remote), samples=20)


def test_only_paths_over_the_link_are_bounded() -> None:
    found = cells(synthetic_run(samples=20))
    assert {name: cell.cpu_bound for name, cell in found.items()} == {
        "socket": Bound.MEASURED,
        "socket (again)": Bound.MEASURED,
        "tcp": Bound.MEASURED,
        "remote": Bound.AT_LEAST,
        "forwarded-socket": Bound.AT_LEAST,
    }


@pytest.mark.parametrize(("client_us", "expected"), [(9.9, Resolution.SLOWER), (0.1, Resolution.NOT_RESOLVED)])
def test_a_lower_bound_never_resolves_less_cpu(client_us: float, expected: Resolution) -> None:
    remote = cells(remote_with(client_us))["remote"]
    assert remote.cpu_ratio is not None and remote.cpu_ratio.low is not None and remote.cpu_ratio.high is not None
    assert not remote.cpu_ratio.low <= 1 <= remote.cpu_ratio.high, "the interval alone would resolve it"
    assert remote.cpu_resolution is expected


def test_with_a_baseline_over_the_link_the_others_are_bounded_from_above() -> None:
    models = (
        PathModel("remote", ArmRole.BASELINE, 251, 9.9, 27.9),
        PathModel("remote", ArmRole.DUPLICATE, 251, 9.9, 27.9, name="remote (again)"),
        PathModel("forwarded-socket", ArmRole.CONTENDER, 213, 8.2, 24.1, forwarder_us=31.5),
        PathModel("tcp", ArmRole.CONTENDER, 815, 8.8, 60.0),
    )
    found = cells(synthetic_run(models=models, samples=20))
    assert found["tcp"].cpu_bound is Bound.AT_MOST
    assert found["tcp"].cpu_resolution is Resolution.NOT_RESOLVED, "at most 1.8 is no claim of more than 1"
    assert found["forwarded-socket"].cpu_bound is Bound.MEASURED
    assert found["forwarded-socket"].cpu_resolution is Resolution.SLOWER


def test_every_report_shows_the_mark_and_says_what_it_means() -> None:
    summary = summarise(remote_with(9.9))
    for page in (terminal.render(summary, 100), markdown.render(summary), html.render(summary)):
        assert re.search(r"\b1\.3\d*\+", page)
        assert "not counted" in " ".join(page.split())
    assert ",at least," in csv.render(summary)
    local = summarise(synthetic_run(models=PATHS[:3], samples=20))
    assert "not counted" not in " ".join(terminal.render(local, 100).split())
