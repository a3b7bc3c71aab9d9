"""Reports of plans with several factors: the grid, the letters, the tables, the page."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable
from functools import cache

import pytest
from tests.unit.made_plans import bandwidth_run
from tests.unit.rendered import GOLDEN, charts_have_figures, findings_of, is_golden, with_findings
from tests.unit.rendered import csv as report_csv
from tests.unit.rendered import html as html
from tests.unit.rendered import markdown as markdown
from tests.unit.rendered import terminal as terminal
from tests.unit.synthetic_cells import THREADS
from tests.unit.synthetic_findings import PLANS
from tests.unit.synthetic_run import synthetic_run
from tests.unit.test_report_html import is_small_and_whole

from howfar.analysis.answer import Answer, not_yet
from howfar.analysis.summary import Summary
from howfar.analysis.voids import count_kinds
from howfar.experiments.network import grid as blocks
from howfar.experiments.network.bandwidth import curves as curve_blocks
from howfar.experiments.network.bandwidth.analysis import Scaling
from howfar.experiments.network.bandwidth.texts import REPORT
from howfar.experiments.network.compression.texts import REPORT as COMPRESSION
from howfar.experiments.network.encryption.analysis import EncryptionEconomics
from howfar.experiments.network.encryption.report import costs_section as encryption_costs
from howfar.experiments.network.what_if import WhatIf
from howfar.experiments.registry import document, summarise
from howfar.model.resource import Resource
from howfar.report import figures, limit_text
from howfar.report.document import Block, Chart, Details, Document, Table
from howfar.report.grid import arrange_grid, is_grid
from howfar.stats.intervals import MIN_BLOCKS
from howfar.store.void_reasons import parse_reason


@cache
def summary(plan: str) -> Summary:
    return PLANS[plan]()


@cache
def page(plan: str) -> str:
    return html.render(summary(plan))


def table_of(found: list[Block]) -> Table:
    """The table inside the only block."""
    (details,) = found
    assert isinstance(details, Details)
    (table,) = details.blocks
    assert isinstance(table, Table)
    return table


GOLDENS: dict[str, Callable[[], str]] = {
    **{f"terminal-{plan}.txt": (lambda plan=plan: terminal.render(summary(plan), 80)) for plan in PLANS},  # type: ignore[misc]
    "terminal-made-bandwidth.txt": lambda: terminal.render(summarise(bandwidth_run()), 80),
    "bandwidth.md": lambda: markdown.render(summary("bandwidth")),
}


@pytest.mark.parametrize("name", GOLDENS)
def test_golden(name: str) -> None:
    is_golden(GOLDEN / name, GOLDENS[name]())


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
    found = arrange_grid(summary("bandwidth"))
    assert found.row_head == "connections"
    assert found.rows == tuple(map(str, THREADS))
    assert found.columns == (("tcp",), ("remote", "1 Gb/s"), ("remote", "10 Gb/s"))
    assert all(cell is not None for row in found.cells for cell in row)


def test_without_several_threads_compression_makes_the_rows() -> None:
    found = arrange_grid(summary("compression"))
    assert (found.row_head, found.rows) == ("compression", ("none", "zlib", "zstd-1", "zstd-9"))
    assert found.columns[0] == ("100 Mb/s", "digits") and len(found.columns) == 6


def test_a_cell_that_was_not_measured_is_a_gap() -> None:
    whole = summary("bandwidth")
    some = whole.model_copy(update={"cells": whole.cells[1:]})
    assert arrange_grid(some).cells[0][0] is None
    assert blocks.throughput_table(some).rows[0][1].text == "-"


def test_every_limit_has_a_letter_of_its_own() -> None:
    assert set(limit_text.LETTERS) == set(Resource)
    assert len(set(limit_text.LETTERS.values())) == len(Resource)


def test_groups_follow_the_limit_down_a_column() -> None:
    found = [(group.cells, group.limit.resource) for group in limit_text.group_limits(summary("bandwidth"))]
    assert ("remote, 1 Gb/s, 16 to 256 connections", Resource.LINK_TO_CLIENT) in found
    assert ("remote, 1 Gb/s, 1 connection", Resource.LATENCY) in found


def test_transactions_are_queries_over_queries_a_transaction() -> None:
    cell = summary("bandwidth").cells[0]
    assert cell.tps.value * cell.queries_per_txn == pytest.approx(cell.qps.value)


@pytest.mark.slow
@pytest.mark.parametrize("plan", PLANS)
def test_a_page_is_small_whole_and_fetches_nothing(plan: str) -> None:
    is_small_and_whole(page(plan))


@pytest.mark.parametrize("plan", PLANS)
def test_a_page_has_no_script(plan: str) -> None:
    assert "<script" not in page(plan) and "default-src 'none'" in page(plan)


@pytest.mark.parametrize("plan", PLANS)
def test_the_first_screen_of_a_terminal_is_short(plan: str) -> None:
    text = terminal.render(summary(plan), 100, details=False)
    assert len(text.splitlines()) <= 40
    assert "Transactions per second" in text and "More with --details" in text


def test_every_chart_has_a_name_and_a_table() -> None:
    for plan in PLANS:
        figures = re.findall(r"<figure>.*?</figure>", page(plan), re.DOTALL)
        assert len(figures) >= 4
        assert charts_have_figures(page(plan))


CAPTIONS = {
    "model's line": REPORT["model"].partition("{")[0],
    "ceilings' lines": REPORT["ceilings"],
    "algorithms' lines": COMPRESSION["lines"],
}
"""Sentences of captions about what is computed."""
REMEDIES = {"remedy", "would not help"}
COMPUTED: dict[str, set[str]] = {
    "bandwidth": {"What if?", "How good is the model?", "Ceilings of each curve", *CAPTIONS} - {"algorithms' lines"},
    "compression": {"What if?", "pays", "algorithms' lines"},
    "encryption": {"What if?", "Ceilings of each curve", "ceilings' lines"},
}
"""What each report with an answer contains in addition to measured figures, apart from remedies: sections, columns, captions."""


def heads_of(found: Document) -> set[str]:
    """The heads of all columns of tables in sections."""
    sections = [block for block in found.blocks if isinstance(block, Details)]
    tables = [block for section in sections for block in section.blocks if isinstance(block, Table)]
    return {column.head for table in tables for column in table.columns}


def computed_parts(found: Document) -> set[str]:
    titles = {block.title for block in found.blocks if isinstance(block, Details)}
    inner = [block for section in found.blocks if isinstance(section, Details) for block in section.blocks]
    captions = " ".join(block.caption for block in (*found.blocks, *inner) if isinstance(block, Chart))
    explained = {name for name, sentence in CAPTIONS.items() if sentence in captions}
    return (titles | heads_of(found) | explained) & (REMEDIES.union(*COMPUTED.values()))


@pytest.mark.parametrize("plan", PLANS)
def test_without_an_answer_there_are_only_measured_figures(plan: str) -> None:
    """No model, ceiling, break-even or remedy, in tables as in charts."""
    answer = Answer(question="", sentence="", findings=(not_yet(MIN_BLOCKS - 1),))
    unanswered = summary(plan).model_copy(update={"answer": answer, "advice": ()})
    assert computed_parts(document(summary(plan))) == REMEDIES | COMPUTED[plan]
    assert not computed_parts(document(unanswered))
    assert "limit" in heads_of(document(unanswered)), "that is measured"


def test_what_comes_from_data_is_escaped() -> None:
    evil = "<script>alert(1)</script>"
    whole = summary("bandwidth")
    fooled = findings_of(whole, WhatIf).model_copy(update={"arm": evil})
    text = html.render(with_findings(whole.model_copy(update={"verdict": evil, "workload": evil}), what_if=fooled))
    assert "<script>alert" not in text


def test_limits_and_economics_are_in_every_format() -> None:
    for text in (lambda plan: terminal.render(summary(plan), 80), lambda plan: markdown.render(summary(plan)), page):
        assert "round trips" in text("bandwidth")
        assert "303 Mb/s" in text("compression")
        assert "1,480" in text("encryption")


def test_how_good_model_and_instrument_were_is_in_the_report() -> None:
    """Each figure is from the findings: the largest use of the emulator, cells that it or the load generator limits, errors."""
    run = summarise(bandwidth_run())
    text = markdown.render(run)
    assert findings_of(run, Scaling).text in text
    used = [
        c.cpu_us_per_query.link.value * c.qps.value / 1e6 for c in figures.shown_cells(run) if c.cpu_us_per_query.link
    ]
    assert f"The link's emulator used at most {max(used):.2f} of 2 CPUs (" in text
    cells = [cell.limit.resource for cell in figures.shown_cells(run) if cell.limit]
    load, emulator = cells.count(Resource.CLIENT_CPU), cells.count(Resource.INSTRUMENT_CPU)
    assert f"The load generator limits {load} of {len(cells)} cells, and the link's emulator {emulator}." in text
    assert "Predicted, " in text and "Fitted: to the curve's own ends" in text


def test_a_spreadsheet_has_limits() -> None:
    rows = list(csv.DictReader(io.StringIO(report_csv.render(summary("bandwidth")))))
    found = next(row for row in rows if row["arm"] == "remote, 1gbit, 64 threads")
    assert (found["limit"], found["limit_confidence"]) == ("link to client", "high")
    assert float(found["tps"]) == pytest.approx(93, rel=0.05) and float(found["cycle_rest_share"]) < 1


def test_void_reasons_that_differ_in_figures_only_are_one_kind() -> None:
    reasons = [f"the link was late by {late}ms (p99); the emulator was stopped" for late in (1.2, 1.2, 7.5, 7.5)]
    update = {"void_trials": 4, "voids": count_kinds(enumerate(map(parse_reason, reasons)))}
    line = figures.void_line(summary("bandwidth").model_copy(update=update))
    assert "4 x the link was late by 1.2ms (p99) (figures vary)" in line and "7.5" not in line


def test_late_packets_are_named_alike_in_old_and_new_files() -> None:
    late = (
        f"replica1: {text} (p99.9, allowed 1ms): the machine was too busy, or the emulator was stopped"
        for text in (
            "the link to client was late by 1.2ms",
            "packets to the client were late on the emulated link by 3ms",
        )
    )
    voids = count_kinds(enumerate(map(parse_reason, late)))
    assert [(kind.id, kind.subject, kind.count) for kind in voids] == [("late-packets", "replica1", 2)]
    assert voids[0].ranges == {"lateness_ns": (1_200_000, 3_000_000)}
    found = summary("bandwidth").model_copy(update={"void_trials": 2, "voids": voids})
    late_line = "2 x replica1: packets to the client were late on the emulated link by 1.2ms (p99.9, limit 1ms)"
    assert late_line in figures.void_line(found)
    assert figures.void_cause(found) == "packets to the client were late on the emulated link"


def test_what_if_nothing_changes_then_nothing_changes() -> None:
    """For a model that is a quarter below the measurement, the report says so once, and not for every change."""
    whole = summary("bandwidth")
    own = findings_of(whole, WhatIf).worked[0].answer.tps
    off = with_findings(whole, what_if=findings_of(whole, WhatIf).model_copy(update={"tps": own / 0.76}))
    found = table_of(blocks.what_if_section(off))
    assert (found.rows[0][-2].text, found.columns[-2].head) == ("x 1.00", "of the first")
    assert "-24.0 %: its error there" in found.notes[0]
    for text in (markdown.render(off), html.render(off)):
        assert text.count(": its error there") == 1


@pytest.mark.parametrize(
    ("changed", "beyond"),
    [
        ({}, False),
        ({"rate_bps": 1e8}, True),
        ({"rtt_s": 0.0012}, True),
        ({"threads": 512}, True),
        ({"threads": 256}, False),
    ],
)
def test_settings_beyond_what_was_measured_are_marked(changed: dict[str, float], beyond: bool) -> None:
    """Bandwidth was measured at 1 and 10 Gb/s, 0.2 ms and up to 256 connections."""
    whole = summary("bandwidth")
    first = findings_of(whole, WhatIf).worked[0]
    worked = first.model_copy(update={"settings": first.settings.model_copy(update=changed)})
    settings = findings_of(whole, WhatIf).model_copy(update={"worked": (first, worked)})
    found = table_of(blocks.what_if_section(with_findings(whole, what_if=settings)))
    assert "*" not in found.rows[0][0].text, "the measured point itself"
    assert ("*" in found.rows[1][0].text) is beyond


def test_knees_beyond_what_was_measured_are_marked() -> None:
    whole = summary("bandwidth")
    found = findings_of(whole, Scaling)
    first, *others = found.curves
    assert first.own is not None and first.foreign is None
    far = first.model_copy(update={"own": first.own.model_copy(update={"extrapolated": True})})
    for curves, marks in (((far, *others), ["*"]), (found.curves, [])):
        table = table_of(curve_blocks.predictions(with_findings(whole, scaling=Scaling(curves=curves, text=""))))
        assert [row[2].text[-1] for row in table.rows if row[2].text.endswith("*")] == marks
        assert any("extrapolation" in note for note in table.notes) is bool(marks)


def test_a_version_that_was_measured_at_connections_of_its_own_has_its_figure() -> None:
    """Of one version only the middle number of connections was measured, neither the minimum nor the maximum of the others."""
    whole = summary("encryption")
    older, newer = findings_of(whole, EncryptionEconomics).rows
    rows = (older.model_copy(update={"per_transaction": older.per_transaction[1:2]}), newer)
    mixed = with_findings(whole, encryption=findings_of(whole, EncryptionEconomics).model_copy(update={"rows": rows}))
    found = table_of(encryption_costs(mixed))
    heads = [(column.head, column.lower) for column in found.columns[-3:]]
    assert heads == [("x connect/txn", f"at {threads}") for threads in (1, 16, 64)]
    assert [[cell.text == figures.UNKNOWN for cell in row[-3:]] for row in found.rows] == [
        [True, False, True],
        [False] * 3,
    ]
