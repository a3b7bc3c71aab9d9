"""A limit that was put to the test and did not hold: what answer, cells, advice and reports then say."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.unit.fake_lab import fake_info
from tests.unit.rendered import html as html
from tests.unit.rendered import markdown as markdown
from tests.unit.rendered import terminal as terminal
from tests.unit.test_confirm import Scene, limit, scene

from howfar.analysis import cells
from howfar.analysis.summary import Summary
from howfar.bottleneck import limit as attribution
from howfar.experiments.registry import summarise
from howfar.model.resource import Resource
from howfar.plan.load import Override, load_plan
from howfar.report.grid import is_grid
from howfar.store.run_file import create, read_run


@pytest.fixture
def full_links(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever was measured: the limit of every cell over a link is the link, which is what is put to the test."""
    find = attribution.find_limit

    def over_links(whole: Any, setting: Any) -> Any:
        budget, cycle, _ = find(whole, setting)
        return budget, cycle, limit(Resource.LINK_TO_CLIENT) if "rate_bps" in setting.factors else None

    monkeypatch.setattr(cells, "find_limit", over_links)


def two_links(path: Path, there: Scene) -> Summary:
    levels: dict[str, Any] = {"path": ["socket", "remote"], "rate": ["100mbit", "1gbit"]}
    overrides = [Override("", ("factors", name), each) for name, each in levels.items()]
    plan = load_plan("paths", True, [*overrides, Override("", ("timing", "confirm"), True)])
    with create(path, fake_info(loaded=plan)) as file:
        there.go(file)
    return summarise(read_run(path))


def test_an_answer_whose_limit_was_refuted_says_so_in_every_report(tmp_path: Path, full_links: None) -> None:
    summary = two_links(tmp_path / "a.howfar", scene(lambda factors: 1.0))
    assert not is_grid(summary)
    assert {found.confirmed for found in summary.confirmations} == {False}
    assert "Put to the test and refuted: the limit named at remote, 100mbit: rate 100mbit -> 150mbit" in summary.verdict
    for cell in summary.cells:
        if cell.limit is not None:
            assert (cell.limit.confidence, cell.limit.would_change) == ("low", "")
            assert "gave x 1" in cell.limit.evidence[-1] and "not x 1.50" in cell.limit.says
    assert not any("faster link" in advice.action for advice in summary.advice), "nothing is advised on its ground"
    for text in (terminal.render(summary), markdown.render(summary), html.render(summary)):
        assert "NOT confirmed" in " ".join(text.split())


def test_an_answer_whose_limit_held_says_nothing_of_the_kind(tmp_path: Path, full_links: None) -> None:
    summary = two_links(tmp_path / "a.howfar", scene())
    assert {found.confirmed for found in summary.confirmations} == {True}
    assert "refuted" not in terminal.render(summary)
    assert {cell.limit.confidence for cell in summary.cells if cell.limit} == {"high"}
