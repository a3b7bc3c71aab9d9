"""What a comparison of paths finds."""

from __future__ import annotations

import pytest
from tests.unit.synthetic_run import synthetic_run

from howfar.analysis.answer import UNRESOLVED
from howfar.analysis.cells import Bound
from howfar.analysis.summary import Summary
from howfar.experiments.paths.report import _comparisons, _self_comparison
from howfar.experiments.registry import summarise
from howfar.stats.estimate import Estimate
from howfar.stats.intervals import Resolution


@pytest.fixture(scope="module")
def summary() -> Summary:
    return summarise(synthetic_run(blocks=8, samples=20))


def test_differences_come_first_then_cpu_time_then_what_is_not_resolved(summary: Summary) -> None:
    """TCP differs in nothing, remote in its CPU time only."""
    changes = {
        "tcp": {"resolution": Resolution.NOT_RESOLVED, "cpu_resolution": Resolution.NOT_RESOLVED},
        "remote": {"resolution": Resolution.NOT_RESOLVED, "cpu_resolution": Resolution.SLOWER},
    }
    baseline, tcp, remote, forwarded = (
        next(cell for cell in summary.cells if cell.arm == arm).model_copy(update=changes.get(arm, {}))
        for arm in ("socket", "tcp", "remote", "forwarded-socket")
    )
    findings = _comparisons(baseline, (tcp, remote, forwarded), "queries")
    assert [(each.id, each.subject, each.estimate) for each in findings] == [
        ("difference", "forwarded-socket", forwarded.ratio),
        ("cpu", "remote", remote.cpu_ratio),
        (UNRESOLVED, "tcp", tcp.ratio),
    ]


@pytest.mark.parametrize("bound", Bound)
def test_a_cpu_time_that_is_a_bound_is_said_as_one(summary: Summary, bound: Bound) -> None:
    """A lower bound is resolved only as more CPU, an upper bound only as less: either way the change is at least the ratio's."""
    update = {"resolution": Resolution.NOT_RESOLVED, "cpu_resolution": Resolution.SLOWER, "cpu_bound": bound}
    baseline, remote = (next(cell for cell in summary.cells if cell.arm == arm) for arm in ("socket", "remote"))
    (finding,) = _comparisons(baseline, (remote.model_copy(update=update),), "queries")
    assert (finding.id, finding.parameters["bound"]) == ("cpu", int(bound is not Bound.MEASURED))


@pytest.mark.parametrize(
    ("low", "noise_floor", "expected"),
    [(0.98, 0.03, "equal"), (1.01, 0.03, "unequal"), (None, None, "unknown-floor")],
)
def test_a_path_under_two_names_shows_what_the_machine_can_tell(
    low: float | None, noise_floor: float | None, expected: str
) -> None:
    ratio = Estimate(value=1.02, low=low, high=low and 1.05)
    finding = _self_comparison("socket", ratio, noise_floor)
    assert (finding.id, finding.estimate, finding.parameters.get("noise_floor")) == (expected, ratio, noise_floor)
