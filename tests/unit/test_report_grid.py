"""Reports of plans with several factors: the grid, the letters, the tables, the page."""

from __future__ import annotations

import base64
import hashlib
import os
import re
from functools import cache
from pathlib import Path

import pytest
from tests.unit.synthetic_cells import THREADS
from tests.unit.synthetic_findings import PLANS
from tests.unit.synthetic_run import synthetic_run
from tests.unit.test_report_html import Balance

from howfar.analysis.analyse import summarise
from howfar.analysis.findings import Resource
from howfar.analysis.summary import Summary
from howfar.report import html, limit_words, markdown, scaling_chart, tables, terminal
from howfar.report.grid import grid, is_grid, tps

GOLDEN = Path(__file__).parents[1] / "golden"
PAGE_BYTES_MOST = 400_000


@cache
def summary(plan: str) -> Summary:
    return PLANS[plan]()


@cache
def page(plan: str) -> str:
    return html.render(summary(plan))


GOLDENS = {
    **{f"terminal-{plan}.txt": (lambda plan=plan: terminal.render(summary(plan), 80)) for plan in PLANS},  # type: ignore[misc]
    "bandwidth.md": lambda: markdown.render(summary("bandwidth")),
}


@pytest.mark.parametrize("name", GOLDENS)
def test_golden(name: str) -> None:
    text = GOLDENS[name]()
    if os.environ.get("HOWFAR_GOLDEN") == "write":
        (GOLDEN / name).write_text(text, "utf-8")
    assert text == (GOLDEN / name).read_text("utf-8"), f"{name} changed; HOWFAR_GOLDEN=write writes it anew: read it"


@pytest.mark.parametrize("width", [60, 80, 120])
@pytest.mark.parametrize("plan", PLANS)
def test_no_line_is_wider_than_the_terminal(plan: str, width: int) -> None:
    for unicode in (True, False):
        for line in terminal.render(summary(plan), width, unicode=unicode).splitlines():
            assert len(line) <= width


def test_a_handful_of_paths_is_no_grid() -> None:
    assert not is_grid(summarise(synthetic_run(blocks=2, samples=10)))
    assert all(is_grid(summary(plan)) for plan in PLANS)


def test_rows_are_connections_in_order_and_columns_links() -> None:
    found = grid(summary("bandwidth"))
    assert found.row_head == "connections"
    assert found.rows == tuple(map(str, THREADS))
    assert found.columns == (("tcp",), ("remote", "1gbit"), ("remote", "10gbit"))
    assert all(cell is not None for row in found.cells for cell in row)


def test_without_several_threads_compression_makes_the_rows() -> None:
    found = grid(summary("compression"))
    assert (found.row_head, found.rows) == ("compression", ("none", "zlib", "zstd-1", "zstd-9"))
    assert found.columns[0] == ("100mbit", "digits") and len(found.columns) == 6


def test_a_cell_that_was_not_measured_is_a_gap() -> None:
    whole = summary("bandwidth")
    some = whole.model_copy(update={"cells": whole.cells[1:]})
    assert grid(some).cells[0][0] is None
    assert tables.throughput(some).rows[0][1].strip() == "-"
    balance = Balance()
    balance.feed(html.render(some))
    assert balance.open == []


def test_every_limit_has_a_letter_of_its_own() -> None:
    assert set(limit_words.LETTERS) == set(Resource)
    assert len(set(limit_words.LETTERS.values())) == len(Resource)


def test_groups_follow_the_limit_down_a_column() -> None:
    found = [(group.where, group.limit.resource) for group in limit_words.groups(summary("bandwidth"))]
    assert ("remote, 1gbit, 16 to 256 connections", Resource.LINK_TO_CLIENT) in found
    assert ("remote, 1gbit, 1 connection", Resource.LATENCY) in found


def test_transactions_are_queries_over_queries_a_transaction() -> None:
    cell = summary("bandwidth").cells[0]
    assert tps(cell).value * cell.queries_per_txn == pytest.approx(cell.qps.value)


def test_near_ceilings_share_a_label() -> None:
    line = scaling_chart.Line
    found = scaling_chart.ceiling_labels(
        [line(100, "server CPU", "a", 1.0), line(105, "server CPU", "b", 1.0), line(300, "link to client", "a", 1.5)]
    )
    assert [(label.tps, label.name) for label in found] == [
        (100, "server CPU: 100 to 105/s"),
        (300, "link to client: 300/s"),
    ]


@pytest.mark.parametrize("plan", PLANS)
def test_a_page_is_small_whole_and_fetches_nothing(plan: str) -> None:
    text = page(plan)
    assert len(text.encode()) < PAGE_BYTES_MOST
    balance = Balance()
    balance.feed(re.sub(r"<script>.*?</script>", "", text, flags=re.DOTALL))
    assert balance.open == []
    assert not re.search(r"<(link|img|iframe|object|embed)\b|(src|href)\s*=\s*[\"'](?!#)|url\((?!#)|@import", text)
    ids = re.findall(r'\bid="([^"]+)"', text)
    assert len(ids) == len(set(ids))


@pytest.mark.parametrize("plan", PLANS)
def test_the_only_script_is_the_one_that_the_policy_names(plan: str) -> None:
    scripts = re.findall(r"<script>(.*?)</script>", page(plan), re.DOTALL)
    assert len(scripts) == 1
    digest = base64.b64encode(hashlib.sha256(scripts[0].encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}'" in page(plan)
    assert "default-src 'none'" in page(plan)


def test_every_chart_has_a_name_and_a_table() -> None:
    for plan in PLANS:
        figures = re.findall(r"<figure>.*?</figure>", page(plan), re.DOTALL)
        assert len(figures) >= 4
        for figure in figures:
            assert "<title>" in figure and "<table>" in figure


def test_what_comes_from_data_is_escaped() -> None:
    evil = "</script><script>alert(1)</script>"
    whole = summary("bandwidth")
    assert whole.what_if is not None
    fooled = whole.what_if.model_copy(update={"arm": evil})
    text = html.render(whole.model_copy(update={"what_if": fooled, "verdict": evil, "workload": evil}))
    assert "<script>alert" not in text


def test_limits_and_economics_are_in_every_format() -> None:
    for render in (lambda s: terminal.render(s, 80), markdown.render, html.render):
        assert "round trips" in render(summary("bandwidth"))
        assert "303 Mb/s" in render(summary("compression"))
        assert "1,480" in render(summary("encryption"))
