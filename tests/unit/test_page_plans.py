"""Plans of pages and of keys: which are valid, their cells, and the script that a page becomes."""

from __future__ import annotations

import re
from itertools import pairwise
from pathlib import Path

import pytest
from tests.shipped import skip_without, skip_without_workload

from howfar.analysis.summary import workload_line
from howfar.contract.environment import RunEnvironment
from howfar.contract.messages import (
    CpuStep,
    GetStep,
    PageScript,
    QueryStep,
    Service,
    ServiceName,
    UnixTarget,
)
from howfar.contract.services import services_of
from howfar.errors import PlanError
from howfar.experiments.page.load import page_script
from howfar.experiments.page.plan import PAGES, PageShape
from howfar.plan.cells import cells
from howfar.plan.estimate import LABORATORY_NS, estimate_cost
from howfar.plan.fitting import check_keys
from howfar.plan.load import load_plan
from howfar.plan.types import Plan, parse_stored_plan, restore_plan
from howfar.plan.workload import WORKLOADS

EXAMPLE = Path(__file__).parents[2] / "schema" / "examples" / "job.page.script.json"
PLAN = """name = "mine"
question = "One or two?"
[workload]
kind = "page"
[data]
tables = 1
table_size = 1000
[pages.small]
point_selects = 3
redis_gets = 2
[pages.large]
rounds = 4
point_selects = 5
simple_ranges = 1
sums = 2
sum_rows = 30
index_updates = 2
redis_gets = 3
redis_multi_gets = 1
memcached_gets = 2
[factors]
path = ["socket", "remote"]
page = ["small", "large"]
application = ["php", "engine"]
app_cpu = ["0ms", "2.5ms"]
threads = [1, 8]
placement = "machines"
[baseline]
path = "socket"
page = "large"
application = "php"
app_cpu = "0ms"
threads = 8
"""
LEFT_OUT = """[[leave_out]]
application = "engine"
app_cpu = "2.5ms"
[[leave_out]]
application = "engine"
threads = [8]
"""
SERVICES: dict[ServiceName, Service] = {
    name: Service(user="", database="", target=UnixTarget(path=f"/{name}")) for name in ("mysql", "redis", "memcached")
}


def _check_cpus(plan: Plan, cpus: int) -> None:
    WORKLOADS[plan.workload.kind].check_cpus(plan, cpus)


def plan_of(tmp_path: Path, text: str) -> Plan:
    file = tmp_path / "mine.toml"
    file.write_text(text)
    return load_plan(str(file)).plan


def round_trips(script: PageScript) -> dict[str, int]:
    """Round trips by service, counted step by step, as when the script runs."""
    found: dict[str, int] = {}
    for step in script.steps:
        if isinstance(step, QueryStep):
            sql = "mysql" if script.postgresql is None else "postgresql"
            found[sql] = found.get(sql, 0) + step.repeat
        elif isinstance(step, GetStep):
            found[step.store] = found.get(step.store, 0) + step.repeat
    return {service: count * script.rounds for service, count in found.items()}


def test_cells_have_names_that_say_the_page_first(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, PLAN)
    names = [cell.name for cell in cells(plan)]
    assert len(names) == len(set(names)) == 2**5 + 3
    assert names[0] == "large, socket, PHP, 8 in flight, 0 ms CPU"
    assert "small, remote, engine, 1 in flight, 2.5 ms CPU" in names


def test_what_is_left_out_is_not_measured(tmp_path: Path) -> None:
    found = cells(plan_of(tmp_path, PLAN + LEFT_OUT))
    engines = [cell.factors for cell in found if cell.factors["application"] == "engine"]
    assert len(found) == 2**4 + 2**2 + 3
    assert all((cell["app_cpu_ns"], cell["threads"]) == (0, 1) for cell in engines)


def test_a_plan_with_pages_comes_back_from_a_run_file(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, PLAN + LEFT_OUT)
    assert restore_plan(plan.model_dump(mode="json")) == plan
    assert [cell.name for cell in cells(restore_plan(plan.model_dump(mode="json")))] == [c.name for c in cells(plan)]


REFUSED = [
    ('page = ["small", "large"]\n', "", "the workload page needs a page: name a shape", "[factors]"),
    ('"small", "large"]', '"small", "huge"]', "there is no [pages.huge] (there: small, large)", "page = ["),
    ('placement = "machines"', 'placement = "isolated"', 'pages need placement = "machines"', "placement"),
    ("sum_rows = 30", "sum_rows = 1001", "a range of 1001 rows is more than the table has", "sum_rows"),
    ("tables = 1\n", "tables = 2\n", "a page reads one table", "tables = 2"),
    ("redis_gets = 2", "redis_gets = -2", "pages.small.redis_gets = -2", "redis_gets = -2"),
    ("redis_gets = 2", "redis_get = 2", "unknown field pages.small.redis_get", "redis_get = 2"),
    ("point_selects = 3\nredis_gets = 2", "rounds = 3", "pages.small: 0 round trips", "[pages.small]"),
    ('"2.5ms"]', '"11s"]', "nothing that computes for so long is a page", "app_cpu"),
    ("threads = [1, 8]", 'threads = [1, 8]\ntls = "1.3"', "pages are plain", "tls"),
    ("threads = [1, 8]", 'threads = [1, 8]\nload = "300/s"', "it is not for pages", "load"),
    ("threads = [1, 8]", "threads = [1, 8]\nrow = '5kB'", "the size of a row applies only to", "row"),
    (
        "threads = [1, 8]",
        'threads = [1, 8]\ncompression = "zlib"',
        "compression is part of MySQL's protocol",
        "compression",
    ),
    ("threads = [1, 8]", 'threads = [1, 8]\nreplication = "async"', "the workload page has none", "replication"),
    ("threads = [1, 8]", "threads = [1, 1025, 8]", "at most 1024 pages in flight", "threads"),
    ('kind = "page"', 'kind = "oltp_read_only"', "page does not apply to the workload oltp_read_only", "page = ["),
]


@pytest.mark.parametrize(("old", "new", "message", "at"), REFUSED)
def test_what_makes_no_sense_is_refused_with_its_line(
    tmp_path: Path, old: str, new: str, message: str, at: str
) -> None:
    if at in ("row", "replication"):
        skip_without("replication")
    if at == "compression":
        skip_without("compression")
    assert old in PLAN
    text = PLAN.replace(old, new)
    with pytest.raises(PlanError) as caught:
        plan_of(tmp_path, text)
    assert message in caught.value.message
    line = re.search(r"mine\.toml:(\d+):", caught.value.message)
    assert line and at in text.splitlines()[int(line[1]) - 1]


@pytest.mark.parametrize(
    ("tables", "message"),
    [
        ("[[leave_out]]\nthreads = 4\n", "table 1 of leave_out matches no cell"),
        ("[[leave_out]]\n", "an empty table: it would leave out every cell"),
        ('[[leave_out]]\npage = "large"\n', "leave_out removes the baseline"),
        ("[[leave_out]]\nthread = 8\n", "unknown field leave_out.thread"),
        (
            '[quick.factors]\nthreads = 8\n[[quick.leave_out]]\npage = "small"\n[[quick.leave_out]]\nthreads = 1\n',
            "table 2 of quick.leave_out matches no cell",
        ),
    ],
)
def test_what_is_left_out_wrongly_is_said(tmp_path: Path, tables: str, message: str) -> None:
    with pytest.raises(PlanError) as caught:
        plan_of(tmp_path, PLAN + tables)
    assert message in caught.value.message
    if "quick" in tables:
        lines = (PLAN + tables).splitlines()
        second = len(lines) - lines[::-1].index("[[quick.leave_out]]")
        assert f":{second}:" in caught.value.message


def test_the_short_form_may_leave_out_less(tmp_path: Path) -> None:
    plan_of(tmp_path, PLAN + LEFT_OUT + '[quick.factors]\napplication = "php"\n')


def test_two_machines_of_one_cpu_are_refused(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, PLAN)
    _check_cpus(plan, 2)
    with pytest.raises(PlanError, match=r"one machine with two \(remote\), but there is only one CPU"):
        _check_cpus(plan, 1)
    _check_cpus(plan_of(tmp_path, PLAN.replace('"socket", "remote"', '"socket", "tcp"')), 1)
    _check_cpus(load_plan("paths").plan, 1)


@pytest.mark.parametrize(
    ("count", "value_bytes", "stores", "gib", "says"),
    [
        (1_000_000, 1000, ("memcached",), 100, "take 1.0 GiB in each store, but Memcached is given 1 GiB"),
        (1_000_000, 1000, ("redis",), 1, "1.0 GiB in all, but only 1.0 GiB is free"),
        (500_000, 1000, ("redis", "memcached"), 1, "take 0.5 GiB in each store, 1.0 GiB in all"),
    ],
)
def test_keys_beyond_memory_are_refused(
    tmp_path: Path, count: int, value_bytes: int, stores: tuple[str, ...], gib: int, says: str
) -> None:
    keys = f"[keys]\ncount = {count}\nvalue_bytes = {value_bytes}\n"
    plan = plan_of(tmp_path, PLAN.replace("[factors]", keys + "[factors]"))
    with pytest.raises(PlanError) as caught:
        check_keys(plan, stores, gib * 2**30)
    assert says in caught.value.message
    check_keys(plan, ("redis",), 2 * 2**30)


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ('compression = "zlib"', "compression is part of MySQL's protocol"),
        ('content = "text"', "content applies to tables"),
        ('page = "small"', "page does not apply"),
    ],
)
def test_keys_have_no_tables_and_no_pages(tmp_path: Path, lines: str, message: str) -> None:
    skip_without_workload("key_value")
    if "compression" in lines:
        skip_without("compression")
    text = PLAN[: PLAN.index("[data]")].replace('"page"', '"key_value"')
    text += f'[factors]\npath = "socket"\nserver = "redis"\n{lines}\n[baseline]\n'
    with pytest.raises(PlanError) as caught:
        plan_of(tmp_path, text)
    assert message in caught.value.message


def test_a_store_of_keys_loads_no_table(tmp_path: Path) -> None:
    skip_without_workload("key_value")
    text = PLAN[: PLAN.index("[data]")].replace('"page"', '"key_value"')
    plan = plan_of(tmp_path, text + '[factors]\npath = ["socket", "tcp"]\nserver = "redis"\n[baseline]\npath = "tcp"\n')
    assert estimate_cost(plan).first_time_ns == 0


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> Plan:
    return plan_of(tmp_path_factory.mktemp("plan"), PLAN)


def test_a_script_takes_the_round_trips_of_its_shape(plan: Plan) -> None:
    for name, shape in PAGES.of(plan).items():
        script = page_script(plan, name, 0, SERVICES)
        assert round_trips(script) == shape.round_trips_by_service()
        assert sum(round_trips(script).values()) == shape.round_trips
        assert list(services_of(script)) == list(shape.round_trips_by_service()), "no service that it does not use"
    assert PAGES.of(plan)["large"].round_trips_by_service() == {"mysql": 48, "redis": 16, "memcached": 8}


def test_statements_go_to_the_database_that_is_there(plan: Plan) -> None:
    services: dict[ServiceName, Service] = {
        "postgresql": SERVICES["mysql"],
        "redis": SERVICES["redis"],
        "memcached": SERVICES["memcached"],
    }
    script = page_script(plan, "large", 0, services)
    assert list(services_of(script)) == ["postgresql", "redis", "memcached"]
    assert round_trips(script) == PAGES.of(plan)["large"].round_trips_by_service("postgresql")


def test_application_cpu_is_dealt_to_the_round_trips(plan: Plan) -> None:
    script = page_script(plan, "large", 2_500_000, SERVICES)
    computing = [step for step in script.steps if isinstance(step, CpuStep)]
    assert {step.cpu_ns for step in computing} == {2_500_000 // script.rounds // len(computing)}
    assert all(isinstance(step, CpuStep) != isinstance(before, CpuStep) for before, step in pairwise(script.steps[:-4]))
    assert [step.kind for step in script.steps[-4:]] == ["query", "query", "query", "cpu"], "a transaction is one part"
    assert not [step for step in page_script(plan, "large", 0, SERVICES).steps if isinstance(step, CpuStep)]


def test_connections_by_page_are_the_scripts(plan: Plan) -> None:
    assert page_script(plan, "small", 0, SERVICES, per_page=True).connect == "per_page"
    assert page_script(plan, "small", 0, SERVICES).connect == "persistent"


def test_updates_are_in_one_transaction_and_ranges_are_whole(plan: Plan) -> None:
    script = page_script(plan, "large", 0, SERVICES)
    statements = [step.statement for step in script.steps if isinstance(step, QueryStep)]
    assert statements[-3:] == ["begin", "update", "commit"]
    sql = {statement.name: statement for statement in script.statements}
    (first,) = sql["range"].parameters
    assert first.kind == "integer"
    assert first.high + plan.workload.range_size - 1 == plan.data.table_size
    assert sql["total"].sql.endswith("BETWEEN ? AND ? + 29")
    assert sql["range"].sql.endswith(f"LIMIT {plan.workload.range_size}")


# ---------------------------------------------------------------- in reports and documentation


def test_a_page_is_described_in_a_line() -> None:
    shape = PageShape(rounds=2, point_selects=3, redis_gets=1)
    assert shape.describe(20) == "2 rounds of 3 x point select, 1 x Redis get: 8 round trips"


def test_the_shipped_pages_are_what_their_comments_say() -> None:
    for quick in (True, False):
        plan = load_plan("page", quick).plan
        assert {name: shape.round_trips for name, shape in PAGES.of(plan).items()} == {"heavy": 200, "light": 20}
    budget = load_plan("page", quick=True).plan
    assert 25 * 10**9 + estimate_cost(budget).min_ns - LABORATORY_NS <= 590 * 10**9


def test_a_report_says_what_the_pages_and_the_keys_were(tmp_path: Path) -> None:
    skip_without_workload("key_value")
    line = workload_line(parse_stored_plan(plan_of(tmp_path, PLAN).model_dump(mode="json")), RunEnvironment())
    assert line.startswith(
        "small page: 3 x point select, 2 x Redis get: 5 round trips; large page: 4 rounds of 5 x point"
    )
    assert line.endswith("table of 1000 rows, drawn evenly; 10000 keys with values of 100 bytes, drawn evenly")
    keys = {
        "workload": {"kind": "key_value"},
        "keys": {"count": 5, "value_bytes": 7, "get": 2, "set": 1, "pipeline": 3},
    }
    assert workload_line(parse_stored_plan(keys), RunEnvironment()) == (
        "key_value: 2 get : 1 set, 3 at once, 5 keys with values of 7 bytes, drawn evenly"
    )


@pytest.mark.parametrize("document", ["plans", "pages"])
def test_the_plans_in_the_documentation_can_be_read(tmp_path: Path, document: str) -> None:
    text = (Path(__file__).parents[2] / "docs" / f"{document}.md").read_text(encoding="utf-8")
    (example,) = re.findall(r"```toml\n(.*?)```", text, re.DOTALL)
    assert len(cells(plan_of(tmp_path, example))) > 2
