"""What the axes of the charts show."""

from __future__ import annotations

import pytest
from tests.unit.rendered import html as html
from tests.unit.synthetic_run import synthetic_run

from howfar.analysis.cells import CellSummary
from howfar.analysis.summary import Summary
from howfar.experiments.paths import report as charts
from howfar.experiments.registry import summarise
from howfar.report.charts import VegaLite, axis, drift_chart, labelled_lines, log_axis, log_ticks
from howfar.report.document import Chart
from howfar.report.drawing import alt
from howfar.stats.estimate import Estimate


@pytest.fixture(scope="module")
def summary() -> Summary:
    return summarise(synthetic_run(blocks=4, samples=20))


def with_interval(summary: Summary, low: float, high: float) -> Summary:
    cells = tuple(
        cell.model_copy(update={"ratio": Estimate(value=0.8, low=low, high=high)}) if cell.arm == "tcp" else cell
        for cell in summary.cells
    )
    return summary.model_copy(update={"cells": cells})


def contenders(summary: Summary) -> list[CellSummary]:
    return [cell for cell in summary.cells if cell.arm != "socket"]


def test_every_interval_is_inside_the_axis(summary: Summary) -> None:
    low, high = charts.ratio_domain(contenders(with_interval(summary, 0.1, 6)), 0.05)
    assert low < 0.1 and high > 6


def test_an_absurd_interval_is_cut_and_marked(summary: Summary) -> None:
    wide = with_interval(summary, 0.0001, 9000)
    low, high = charts.ratio_domain(contenders(wide), 9000)
    assert low == pytest.approx(1 / 20 / 1.08) and high == pytest.approx(20 * 1.08)
    tcp = next(bar for bar in charts.interval_rows(contenders(wide), low, high) if bar["arm"] == "tcp")
    assert (tcp["low"], tcp["high"], tcp["cut_low"], tcp["cut_high"]) == (low, high, True, True)
    drawn = charts.ratios(wide, charts.compared_cells(wide), 600)
    assert {"triangle-left", "triangle-right"} <= set(str(drawn).split("'"))
    assert "Arrowhead" in html.render(wide)


def test_nothing_is_marked_where_nothing_is_cut(summary: Summary) -> None:
    fine = with_interval(summary, 0.7, 0.9)
    cells = contenders(fine)
    assert not any(
        bar["cut_low"] or bar["cut_high"] for bar in charts.interval_rows(cells, *charts.ratio_domain(cells, 0.05))
    )
    narrow = summarise(synthetic_run(blocks=8, samples=20))
    assert "Arrowhead" not in html.render(narrow)


def test_a_ratio_beyond_the_cap_is_still_shown(summary: Summary) -> None:
    cells = tuple(
        cell.model_copy(update={"ratio": Estimate(value=0.01, low=0.009, high=0.011), "block_ratios": (0.009, 0.011)})
        for cell in summary.cells
    )
    assert charts.ratio_domain(cells, 0.05)[0] < 0.009


def test_an_unknown_cpu_time_is_not_the_least(summary: Summary) -> None:
    def title(unknown: set[str]) -> str:
        cells = tuple(
            cell.model_copy(update={"cpu_us_per_query": cell.cpu_us_per_query.model_copy(update={"server": None})})
            if cell.arm in unknown
            else cell
            for cell in summary.cells
        )
        changed = summary.model_copy(update={"cells": cells})
        return next(b.title for b in charts.chart_sections(changed) if isinstance(b, Chart) and b.name == "cpu")

    assert "with socket" in title(set()) and "with socket" not in title({"socket"})
    assert title({cell.arm for cell in summary.cells}) == ""


def test_trials_are_counted_from_nought(summary: Summary) -> None:
    drawn = drift_chart(summary, 600)
    assert drawn is not None
    assert f"'domain': [-0.5, {len(summary.trials) - 0.5}]" in str(drawn)


def test_trials_that_are_left_out_leave_gaps_and_nothing_is_drawn_outside(summary: Summary) -> None:
    """Void trials, controls and repeated blocks have numbers too."""
    later = tuple(trial.model_copy(update={"number": 2 * trial.number}) for trial in summary.trials)
    drawn = drift_chart(summary.model_copy(update={"trials": later}), 600)
    assert f"'domain': [-0.5, {later[-1].number + 0.5}]" in str(drawn)


@pytest.mark.parametrize(("low", "high"), [(140, 340), (70, 260), (1.02, 1.3), (8, 11), (0.1, 90), (3, 9000)])
def test_a_logarithmic_axis_has_at_least_three_ticks_and_says_what_it_is(low: float, high: float) -> None:
    ticks = log_ticks(low, high)
    assert len(ticks) >= 3 and ticks == sorted(ticks) and low <= ticks[0] <= ticks[-1] <= high
    assert "'ms (log scale)'" in str(log_axis(alt.Y, "value", "ms", (low, high)).to_dict())


def test_values_stand_above_their_marks_and_names_to_the_right_of_the_last() -> None:
    line = [(float(x), Estimate(value=10.0 * x, low=None, high=None)) for x in (1, 2, 4)]
    drawn = labelled_lines({"tcp": line}, axis(alt.X, "x", "connections"), "ms", 600)
    texts = [each for each in drawn["layer"] if each["mark"].get("type") == "text"]
    rows: dict[str, VegaLite] = {row["text"]: each["mark"] for each in texts for row in each["data"]["values"]}
    assert [rows[text]["align"] for text in ("10.0", "20.0", "tcp 40.0")] == ["center", "center", "left"]
    assert rows["10.0"]["dy"] < 0
