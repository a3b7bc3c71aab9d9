"""How the core treats plans, receipts and runs of pages: by what their slice registers."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations
from pathlib import Path

import pytest
from tests.unit.fake_pages import HEAVY, LIGHT, page_run
from tests.unit.synthetic_run import synthetic_run
from tests.unit.test_analysis_compare import replanned
from tests.unit.test_hosts_distances import assert_has_one_link
from tests.unit.test_hosts_targets import assert_needs_own_server
from tests.unit.test_palette import VISIONS, too_close
from tests.unit.test_plan import assert_six_blocks_fit
from tests.unit.test_receipt_check import SELECT, TCP, example_receipt, plain_receipt

from howfar.analysis.compare import FACT_WORDS, _collect_facts, compare
from howfar.cli.compare import document
from howfar.contract.messages import (
    FastCgi,
    GetStep,
    KeyValue,
    PageJob,
    PageScript,
    QueryStep,
    Ready,
    Receipt,
    Service,
    Tls,
    UnixTarget,
)
from howfar.experiments.page.charts import PARTS
from howfar.experiments.page.load import page_mismatches
from howfar.plan.cells import cells
from howfar.plan.load import load_plan
from howfar.report.document import Table
from howfar.report.terminal import render


def test_the_shipped_plan_fits_where_the_others_do() -> None:
    assert_six_blocks_fit("page")
    assert_has_one_link("page")
    assert_needs_own_server("page", "needs a key-value store")
    assert len([cell for cell in cells(load_plan("page", quick=True).plan) if cell.role == "control"]) == 2


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("vision", VISIONS)
def test_the_parts_of_a_page_can_be_told_apart(vision: str, dark: bool) -> None:
    assert not too_close(set(combinations(PARTS.values(), 2)), vision, dark)


def test_the_words_of_a_comparison_include_the_pages() -> None:
    every = _collect_facts(replanned(synthetic_run(samples=5), workload={"kind": "page"}, pages={"light": {}}))
    assert {name.partition(":")[0] for name in every} == set(FACT_WORDS)


@pytest.mark.parametrize(
    ("before", "after", "is_same"),
    [
        ({}, {"keys": {"get": 5}}, True),
        ({}, {"keys": {"count": 5}}, False),
        ({"pages": {"a": {"sums": 1}}}, {"pages": {"a": {"sums": 1, "rounds": 1}, "b": {"sums": 2}}}, True),
        ({"pages": {"a": {"sums": 1}}}, {"pages": {"a": {"sums": 2}}}, False),
    ],
)
def test_a_workload_is_what_pages_use(
    before: dict[str, dict[str, object]], after: dict[str, dict[str, object]], is_same: bool
) -> None:
    run = synthetic_run(samples=5)
    plans = [{"workload": {"kind": "page"}, **tables} for tables in (before, after)]
    runs = [run.model_copy(update={"info": run.info.model_copy(update={"plan": plan})}) for plan in plans]
    found = compare(*runs)
    assert found.has_same_workload is is_same
    assert is_same or found.differences


def test_runs_of_pages_are_compared_by_pages() -> None:
    """The engine counts the round trips of its pages, PHP does not; both are compared by pages."""
    found = compare(page_run(blocks=3, seed=1), page_run(blocks=3, seed=2))
    assert found.units == ("pages", "pages")
    report = document([Path("a"), Path("b")], [page_run(blocks=3, seed=1), page_run(blocks=3, seed=2)])
    throughput, ratios, _ = (block for block in report.blocks if isinstance(block, Table))
    assert [column.label for column in throughput.columns] == ["arm", "first run pages/s", "second run of the first"]
    assert [column.label for column in ratios.columns] == [
        "arm",
        "throughput vs. baseline",
        "CPU per page",
        "p50",
        "p99",
    ]
    assert "time per page" in render(report, details=True)
    engine = next(arm for arm in found.arms if "engine" in arm.arm)
    assert engine.cpu_per_query is not None and engine.cpu_per_query.value == pytest.approx(1, rel=0.05)
    fewer = {"heavy": replace(HEAVY, round_trips=100), "light": LIGHT}
    half = compare(page_run(blocks=3), page_run(blocks=3, pages=fewer))
    paid = next(arm for arm in half.arms if arm.arm.startswith("remote, heavy, engine, 0ms, 1 "))
    assert paid.qps.value > 1.3, "half of the turns: more pages, though fewer queries"


def _page(application: PageScript | FastCgi) -> PageJob:
    return PageJob(application=application, workers=1, seed=1, warmup_ns=0, measure_ns=1)


def _ready(receipt: Receipt, **services: Receipt) -> Ready:
    return Ready(receipt=receipt, connections=1, prepared_statements=0, connect_ns=1, services=services)


def test_each_service_of_a_page_is_held_to_what_was_asked() -> None:
    socket = UnixTarget(path="/s")
    script = PageScript(
        mysql=Service(user="", database="", target=TCP),
        redis=Service(user="", database="", target=TCP, tls=Tls()),
        memcached=Service(user="", database="", target=socket),
        redis_keys=KeyValue(protocol="resp2"),
        memcached_keys=KeyValue(protocol="memcached_text"),
        steps=(GetStep(store="redis"),),
    )
    plain, unix = plain_receipt(), plain_receipt(address_family="unix", tcp_nodelay=None)
    sealed = plain_receipt(tls_client_version="TLSv1.3", tls_client_cipher="TLS_AES_256_GCM_SHA384")
    assert page_mismatches(_page(script), _ready(plain, mysql=plain, redis=sealed, memcached=unix)) == ()
    wrong = page_mismatches(_page(script), _ready(plain, mysql=example_receipt(), redis=plain))
    assert [(each.subject, each.id) for each in wrong] == [
        ("mysql", "unrequested-tls"),
        ("mysql", "unrequested-compression"),
        ("redis", "no-tls"),
        ("memcached", "no-session-receipt"),
    ]


def test_a_page_s_postgresql_says_itself_whether_a_session_is_encrypted() -> None:
    """A proxy that terminates TLS leaves the client with TLS and the server with a plain session."""
    script = PageScript(
        postgresql=Service(user="", database="", target=TCP, tls=Tls()),
        statements=SELECT,
        steps=(QueryStep(statement="a"),),
    )
    ours = {"tls_client_version": "TLSv1.3", "tls_client_cipher": "TLS_AES_256_GCM_SHA384"}
    (found,) = page_mismatches(_page(script), _ready(plain_receipt(), postgresql=plain_receipt(**ours)))
    assert (found.id, found.subject) == ("encryption-ends-in-between", "postgresql")
    assert found.parameters["server_side"] == "no TLS"
    sealed = plain_receipt(**ours, tls_version="TLSv1.3", tls_cipher="TLS_AES_256_GCM_SHA384")
    assert page_mismatches(_page(script), _ready(plain_receipt(), postgresql=sealed)) == ()


def test_an_application_is_asked_over_its_socket() -> None:
    page = _page(FastCgi(target=UnixTarget(path="/php"), parameters={}))
    assert page_mismatches(page, _ready(plain_receipt(address_family="unix", tcp_nodelay=None))) == ()
    assert len(page_mismatches(page, _ready(plain_receipt()))) == 1
