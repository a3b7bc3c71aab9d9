"""Plans: what is refused and the position that is named, cells, blocks, cost."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError
from tests.shipped import load_shipped, skip_without, skip_without_workload
from tests.unit.fake_lab import FakeStage

from howfar.analysis.summary import workload_line
from howfar.contract.environment import RunEnvironment
from howfar.contract.messages import (
    SYSBENCH_KINDS,
    Distribution,
    LoadJob,
    Sysbench,
    Tls,
    UnixTarget,
)
from howfar.errors import PlanError, UsageError
from howfar.plan.cells import block_order, cells, stream_seed
from howfar.plan.estimate import LABORATORY_NS, NEW_LINK_NS, REPORT_NS, estimate_cost
from howfar.plan.factors import SESSION_SETTINGS
from howfar.plan.fitting import check_rows, describe_lost_levels, describe_unresumed_sessions, with_rows, without_levels
from howfar.plan.kinds import Keys
from howfar.plan.load import Override, load_plan, shipped_plans
from howfar.plan.sessions import SessionSpec, session_spec
from howfar.plan.types import Plan, local_plan, parse_stored_plan, restore_plan
from howfar.plan.workload import WORKLOADS, Data, RowDistribution, Workload
from howfar.runner import preflight as fitting
from howfar.runner.loads import check_workload
from howfar.runner.loads.transactions import TransactionLoad
from howfar.runner.preflight import fit_plan
from howfar.store.records import Arm, ArmRole
from howfar.testbed import Trust

GOOD = """\
name = "mine"
question = "Which?"

[workload]
point_selects = 3

[factors]
path = ["socket", "tcp"]

[baseline]
path = "socket"

[timing]
measure = "5s"

[quick.timing]
measure = "1s"
"""


def write(folder: Path, text: str) -> str:
    path = folder / "mine.toml"
    path.write_text(text)
    return str(path)


@pytest.mark.parametrize("name", shipped_plans())
@pytest.mark.parametrize("quick", [False, True])
def test_shipped_plans_load_cost_and_come_back(name: str, quick: bool) -> None:
    plan = load_plan(name, quick).plan
    assert plan.name == name
    forecast = estimate_cost(plan)
    assert 0 < forecast.min_ns <= forecast.max_ns <= plan.timing.time_budget_ns
    assert restore_plan(plan.model_dump(mode="json")) == plan


def test_the_plan_paths_is_the_published_one() -> None:
    plan = load_plan("paths").plan
    assert plan.factors.path == ("socket", "tcp", "remote", "forwarded-socket")
    assert (plan.factors.rtt_ns, plan.factors.rate_bps, plan.factors.threads) == ((200_000,), (10**9,), (2,))
    assert (plan.data.tables, plan.data.table_size) == (10, 1_000_000)
    assert (plan.timing.target_half_width, plan.timing.measure_ns) == (0.02, 20 * 10**9)
    quick = load_plan("paths", quick=True).plan
    assert (quick.data.table_size, quick.timing.target_half_width) == (100_000, 0.05)


def test_quick_paths_fits_eight_blocks_in_five_minutes() -> None:
    """A new laboratory takes 25 s and the report 10 s, which leaves 300 - 35 s for 40 trials."""
    plan = load_plan("paths", quick=True).plan
    assert plan.timing.time_budget_ns <= 295 * 10**9
    assert 25 * 10**9 + estimate_cost(plan).min_ns - LABORATORY_NS <= 295 * 10**9


@pytest.mark.parametrize("mysql", ["mysql", "mysql-8.4.3", "/opt/mysql/bin/mysqld"])
def test_a_forecast_knows_the_server_and_the_links(mysql: str) -> None:
    """A block has 12 trials of 1 + 4 s. Two links and a control's: all but the first are calibrated in a trial. MySQL takes 2.1 s more
    to start and end.
    """
    plan = load_shipped("bandwidth", quick=True).plan
    on_mysql = plan.model_copy(update={"factors": plan.factors.model_copy(update={"server": (mysql,)})})
    links = {cell.factors["rate_bps"] for cell in cells(plan) if "rate_bps" in cell.factors}
    assert len(links) == 2
    assert estimate_cost(plan).min_ns == LABORATORY_NS + 2 * NEW_LINK_NS + REPORT_NS + 6 * 12 * 6_200_000_000
    assert estimate_cost(on_mysql).block_ns - estimate_cost(plan).block_ns == 12 * 2_100_000_000
    other = plan.factors.model_copy(update={"server": ("/usr/sbin/mariadbd",)})
    assert estimate_cost(plan.model_copy(update={"factors": other})) == estimate_cost(plan)
    paths = load_plan("paths", quick=True).plan
    assert estimate_cost(paths).fixed_ns == LABORATORY_NS + NEW_LINK_NS + REPORT_NS, (
        "its link is the laboratory's, the other a control's"
    )


def test_the_plan_knows_every_option_of_the_engine() -> None:
    assert set(Workload.model_fields) | set(Data.model_fields) - {"fit"} <= set(Sysbench.model_fields)
    assert set(SYSBENCH_KINDS) <= set(WORKLOADS)
    assert set(RowDistribution.model_fields) == set(Distribution.model_fields)
    defaults = Sysbench()
    for name, field in Workload.model_fields.items():
        if name != "distribution":
            assert field.default == getattr(defaults, name), name
    assert RowDistribution().model_dump() == defaults.distribution.model_dump()


def test_an_unknown_plan_lists_the_known_ones() -> None:
    with pytest.raises(PlanError, match="there is no plan 'pahts'") as caught:
        load_plan("pahts")
    assert "paths" in caught.value.advice


def test_a_missing_file_and_one_that_is_no_text(tmp_path: Path) -> None:
    with pytest.raises(PlanError, match="cannot read the plan"):
        load_plan(str(tmp_path / "no.toml"))
    (tmp_path / "b.toml").write_bytes(b'name = "x"\nquestion = "\xff"\n')
    with pytest.raises(PlanError, match=r"b\.toml:2: not UTF-8"):
        load_plan(str(tmp_path / "b.toml"))


BAD = [
    ('measure = "5s"', 'measure = "5"', "14: timing.measure = '5': '5' is not a duration"),
    ('measure = "5s"', "measure = 5", "14: timing.measure = 5: 5 has no unit"),
    ('measure = "5s"', "measure = nan", "14: timing.measure = nan: nan has no unit"),
    ('measure = "5s"', 'measure = "-5s"', "14: timing.measure = '-5s': '-5s': a duration is never negative"),
    ('measure = "5s"', 'mesure = "5s"', "14: unknown field timing.mesure"),
    ('measure = "5s"', 'target = "0%"', "14: timing.target = '0%': '0%' is less than 0.1%: no machine is steady"),
    ('measure = "5s"', "max_blocks = 3", "13: timing: max_blocks 3 is less than min_blocks 8"),
    ("point_selects = 3", "point_selects = -1", "5: workload.point_selects = -1: Input should be greater"),
    ("point_selects = 3", "point_selects = 0\nrange_selects = false", "4: workload: a transaction without a query"),
    (
        'path = ["socket", "tcp"]',
        'path = ["socket", "pigeon"]',
        "8: factors.path = 'pigeon': no path is called 'pigeon'; known paths: socket, tcp",
    ),
    ('path = ["socket", "tcp"]', 'path = ["tcp", "tcp"]', "8: factors.path = ['tcp', 'tcp']: 'tcp' is listed twice"),
    ('path = ["socket", "tcp"]', "path = []", "8: factors.path = []: an empty list"),
    (
        'path = ["socket", "tcp"]',
        'path = "tcp"\nthreads = 0',
        "9: factors.threads = 0: at least one connection",
    ),
    (
        'path = ["socket", "tcp"]',
        'path = "tcp"\nrate = "200gbit"',
        "9: factors.rate = '200gbit': '200gbit' is more than 100gbit",
    ),
    ('path = ["socket", "tcp"]', 'path = "tcp"\nrtt = "11s"', "9: factors.rtt = '11s': '11s' is more than 10s"),
    (
        '[baseline]\npath = "socket"',
        '[baseline]\npath = "remote"',
        "10: plan mine: baseline names path = 'remote', which 0",
    ),
    ('[baseline]\npath = "socket"', "[baseline]", "10: plan mine: baseline names nothing, which 2 of its 2 cells"),
    ("[factors]", '[data]\nfit = "yes"\n[factors]', "8: data.fit = 'yes': Input should be a valid boolean"),
    ('question = "Which?"', "", "1: the field `question` is missing"),
    ('question = "Which?"', 'question = "Which?', "2:19: malformed TOML"),
    ('question = "Which?"', "question = Which", "2:12: malformed TOML: invalid value, in: question = Which"),
    ("[factors]", "[factors", "7:9: malformed TOML"),
]


@pytest.mark.parametrize(("good", "bad", "expected"), BAD)
def test_a_mistake_is_said_with_file_line_and_field(tmp_path: Path, good: str, bad: str, expected: str) -> None:
    assert GOOD.count(good) == 1
    path = write(tmp_path, GOOD.replace(good, bad))
    with pytest.raises(PlanError) as caught:
        load_plan(path)
    assert caught.value.message.startswith(f"{path}:{expected}"), caught.value.message
    assert caught.value.advice


def test_a_mistake_in_quick_is_said_where_it_is_also_without_quick(tmp_path: Path) -> None:
    path = write(tmp_path, GOOD.replace('measure = "1s"', 'measure = "1"'))
    with pytest.raises(PlanError, match=r"mine\.toml:17: timing\.measure"):
        load_plan(path)


def test_quick_replaces_what_it_names_only(tmp_path: Path) -> None:
    path = write(tmp_path, GOOD)
    full, quick = load_plan(path).plan, load_plan(path, quick=True).plan
    assert (full.timing.measure_ns, quick.timing.measure_ns) == (5 * 10**9, 10**9)
    assert full.timing.model_copy(update={"measure_ns": 10**9}) == quick.timing
    only_one_form = load_plan(write(tmp_path, GOOD.split("[quick")[0]), quick=True)
    assert (only_one_form.plan, only_one_form.quick) == (full, False)


def test_options_win_and_their_mistakes_name_the_option() -> None:
    rtt = Override("--rtt", ("factors", "rtt"), "10ms")
    assert load_plan("paths", overrides=[rtt]).plan.factors.rtt_ns == (10_000_000,)
    for option, key, value in (
        ("--rtt", ("factors", "rtt"), "10"),
        ("--rate", ("factors", "rate"), "fast"),
        ("--threads", ("factors", "threads"), 0),
        ("--time-budget", ("timing", "time_budget"), "-1s"),
        ("--target", ("timing", "target"), "nan"),
    ):
        with pytest.raises(UsageError, match=f"{option} {value}: "):
            load_plan("paths", overrides=[Override(option, key, value)])


def test_cells_leave_the_link_out_of_local_paths() -> None:
    overrides = [Override("--rtt", ("factors", "rtt"), level) for level in ["1ms"]]
    plan = load_plan("paths", quick=True, overrides=overrides).plan
    plan = plan.model_copy(
        update={"factors": plan.factors.model_copy(update={"rtt_ns": (10**6, 10**7), "threads": (1, 2)})}
    )
    plan = plan.model_copy(update={"baseline": plan.baseline.model_copy(update={"threads": 1})})
    found = cells(plan)
    assert len(found) == 1 + 2 * (2 + 2 * 2) + 2, (
        "threads x (two local paths + two others x RTT), the A/A arm, two controls"
    )
    assert [cell.role for cell in found[:3]] == ["baseline", "duplicate", "contender"]
    assert [cell.name for cell in found[:2]] == ["socket, 1 thread", "socket, 1 thread (again)"]
    assert "remote, 2 threads, RTT 10ms" in [cell.name for cell in found]
    assert all("rtt_ns" not in cell.factors for cell in found if cell.factors["path"] in ("socket", "tcp"))
    assert len({cell.name for cell in found}) == len(found)


def test_order_depends_on_seed_and_block_only() -> None:
    names = tuple(cell.name for cell in cells(load_plan("paths", quick=True).plan) if cell.role != "control")
    assert block_order(1, 0, names) == ("socket", "tcp", "remote", "forwarded-socket", "socket (again)")
    assert block_order(1, 0, names) == block_order(1, 0, names)
    assert len({block_order(1, block, names) for block in range(50)}) > 20
    first = Counter(block_order(seed, 3, names)[0] for seed in range(1000))
    assert all(140 < first[name] < 260 for name in names), "each arm is first in about a fifth of the blocks"
    assert stream_seed(1, 0) != stream_seed(1, 1)


def test_local_part() -> None:
    plan = load_plan("paths", quick=True).plan
    assert local_plan(plan).factors.path == ("socket", "tcp")
    assert [cell.name for cell in cells(local_plan(plan))] == ["socket", "socket (again)", "tcp"]


def test_an_option_with_one_level_changes_the_baseline_too() -> None:
    overrides = [Override("--rate", ("factors", "rate"), "5gbit"), Override("--threads", ("factors", "threads"), 3)]
    plan = load_shipped("bandwidth", True, overrides).plan
    baseline = plan.baseline.model_dump()
    assert (baseline["rate_bps"], baseline["threads"]) == (5_000_000_000, 3)
    idle = Override("--idle", ("factors", "idle"), "as-found")
    assert load_plan("paths", overrides=[idle]).plan.baseline.model_dump()["idle"] == "as-found"
    path = Override("--path", ("factors", "path"), ("remote",))
    assert load_plan("paths", overrides=[path]).plan.baseline.model_dump()["path"] == "remote"
    assert {cell.factors["path"] for cell in cells(load_shipped("latency", True, [path]).plan)} == {"remote"}


def test_a_baseline_that_options_took_away_is_said_by_every_factor_in_the_words_of_a_plan() -> None:
    overrides = [
        Override("--path", ("factors", "path"), ("tcp", "remote")),
        Override("--load", ("factors", "load"), ("300/s", "400/s")),
    ]
    with pytest.raises(PlanError) as caught:
        load_shipped("latency", True, overrides)
    assert "match: none has path = 'socket'" in caught.value.message
    assert "The plan has: path tcp, remote" in caught.value.advice


def test_a_baseline_that_says_too_little_is_told_what_is_missing(tmp_path: Path) -> None:
    path = write(tmp_path, GOOD.replace('path = ["socket", "tcp"]', 'path = ["socket", "tcp"]\nthreads = [1, 2]'))
    with pytest.raises(PlanError, match="2 of its 4 cells") as caught:
        load_plan(path)
    assert "name a level of threads too" in caught.value.advice


def test_levels_of_a_baseline_that_never_meet(tmp_path: Path) -> None:
    text = GOOD.replace('path = ["socket", "tcp"]', 'path = ["socket", "remote"]\nrate = "2gbit"')
    with pytest.raises(PlanError, match=r"baseline names path = 'socket', rate = '2gbit', which 0") as caught:
        load_plan(write(tmp_path, text.replace("[baseline]\n", '[baseline]\nrate = "2gbit"\n')))
    assert "do not occur together" in caught.value.advice


# ---------------------------------------------------------------- sessions as cells request them


QUICK_OVERHEAD_NS = 3_500_000_000
"""Time to start and end a trial on MySQL, the slower of the two servers, as measured on two CPUs."""


@pytest.mark.parametrize(
    ("factors", "spec"),
    [
        ({}, SessionSpec()),
        ({"tls": "1.2"}, SessionSpec(tls="1.2")),
        ({"tls": "1.3-resumed", "connect": "per-transaction"}, SessionSpec("1.3", True, per_transaction=True)),
        ({"content": "text"}, SessionSpec(content="text")),
    ],
)
def test_levels_mean_sessions(factors: dict[str, Any], spec: SessionSpec) -> None:
    assert session_spec({"path": "tcp", "threads": 2, **factors}) == spec


def job(factors: dict[str, Any], trust: Trust | None = None) -> LoadJob:
    arm = Arm(name="it", role=ArmRole.CONTENDER, factors={"path": "socket", "threads": 3, **factors})
    return TransactionLoad.make_job(
        load_plan("paths", quick=True).plan, arm, FakeStage(UnixTarget(path="/s"), trust=trust), 1
    )


def test_the_engine_is_asked_for_what_the_cell_says() -> None:
    plain = job({}).session
    assert (plain.tls, plain.compression, plain.connect) == (None, None, "persistent")
    trust = Trust("/w/ca.pem", "localhost")
    session = job({"tls": "1.3", "connect": "per-transaction"}, trust).session
    assert session.tls == Tls(
        versions="1.3", verify="full", ca_file="/w/ca.pem", server_name="localhost", resumption=False
    )
    assert session.connect == "per_transaction"
    resumed = job({"tls": "1.3-resumed"}, trust).session.tls
    assert resumed is not None and resumed.resumption


def grid(**factors: Any) -> Plan:
    plan = load_shipped("compression").plan
    return plan.model_copy(update={"factors": plan.factors.model_copy(update=factors)})


def test_connections_that_stay_resume_nothing() -> None:
    plan = load_shipped("encryption", quick=True).plan
    found = [cell for cell in cells(plan) if cell.role in ("baseline", "contender")]
    assert len(found) == 2 * (2 + 3)
    assert all(cell.factors["connect"] == "per-transaction" for cell in found if "resumed" in str(cell.factors["tls"]))
    assert len({cell.name for cell in found}) == len(found)


def test_what_a_server_lacks_is_left_out_with_the_reason() -> None:
    lacking = {"compression": dict.fromkeys(("zstd-1", "zstd-3", "zstd-9"), "this one has no zstd")}
    fitted = without_levels(load_shipped("compression").plan, lacking)
    assert fitted.plan.factors.compression == ("off", "zlib")
    assert fitted.notes == ("left out: compression zstd-1, zstd-3, zstd-9: this one has no zstd",)
    assert len(cells(fitted.plan)) == 2 * 3 * 2 + 1 + 3  # the A/A arm, and the controls
    assert without_levels(load_plan("paths").plan, lacking).notes == ()


def test_what_was_left_out_stands_beside_the_workload() -> None:
    plan = parse_stored_plan(load_shipped("compression", quick=True).plan.model_dump(mode="json"))
    for environment in (RunEnvironment(), RunEnvironment(not_as_requested=[])):
        assert "left out" not in workload_line(plan, environment)
    lacking = RunEnvironment(not_as_requested=["left out: zstd"])
    assert workload_line(plan, lacking).endswith("pareto ids; left out: zstd")


@pytest.mark.parametrize(
    ("compression", "expected"), [(("zstd",), "asks for compression zstd only"), (("off", "zstd"), "nothing is left")]
)
def test_a_plan_of_which_nothing_is_left_is_an_error(compression: tuple[str, ...], expected: str) -> None:
    plan = grid(compression=compression, content=("digits",), rate_bps=(10**8,))
    with pytest.raises(PlanError, match=expected) as caught:
        without_levels(plan, {"compression": {"zstd": "no zstd here"}})
    assert "no zstd here" in caught.value.message


def test_a_baseline_that_cannot_be_had_is_an_error() -> None:
    plan = load_shipped("compression").plan
    plan = plan.model_copy(update={"baseline": plan.baseline.model_copy(update={"compression": "zstd-3"})})
    with pytest.raises(PlanError, match=r"left out: compression zstd-3.*baseline names"):
        without_levels(plan, {"compression": {"zstd-3": "no zstd here"}})


@pytest.mark.parametrize(
    ("most", "size"), [(10**9, 10**7), (10**7, 10**7), (9_999_999, 5 * 10**6), (1_270_000, 10**6), (10_003, 10_000)]
)
def test_tables_are_as_large_as_fits_in_round_numbers(most: int, size: int) -> None:
    fitted = with_rows(load_shipped("bandwidth").plan, most)
    assert (fitted.plan.data.table_size, fitted.plan.data.fit) == (size, False)
    assert bool(fitted.notes) == (size < 10**7)


@pytest.mark.parametrize(
    ("most", "expected"), [(9_999, "tables of 5000 rows"), (3, "tables of 2 rows"), (0, "tables of 0 rows")]
)
def test_tables_too_small_for_their_ranges_are_refused(most: int, expected: str) -> None:
    with pytest.raises(PlanError, match=f"{expected}.*ranges of 100 rows, .*fewer than 10000"):
        with_rows(load_shipped("bandwidth").plan, most)


def test_tables_are_as_asked_where_the_plan_does_not_say_that_they_may_be_smaller() -> None:
    plan = load_plan("paths").plan
    assert with_rows(plan, 1).plan == plan


@pytest.mark.parametrize(
    ("tls", "connect", "expected"),
    [
        (("off", "1.3-resumed"), ("persistent",), True),
        (("off", "1.3-resumed"), ("persistent", "per-transaction"), True),
        (("1.3", "1.3-resumed"), ("persistent",), True),
        (("1.3", "1.3-resumed"), ("persistent", "per-transaction"), False),
        (("off", "1.3-resumed"), ("per-transaction",), False),
        (("off", "1.3"), ("persistent",), False),
    ],
)
def test_connections_that_stay_and_were_to_resume_are_said_not_to(
    monkeypatch: pytest.MonkeyPatch, tls: tuple[str, ...], connect: tuple[str, ...], expected: bool
) -> None:
    for check in ("unsupported_levels", "_check_paths"):  # the plan's baseline is not one of its cells
        monkeypatch.setattr(fitting, check, lambda *_: {})
    plan = grid(tls=tls, connect=connect)
    assert bool(describe_unresumed_sessions(plan)) is expected
    assert fit_plan(
        plan.model_copy(update={"data": plan.data.model_copy(update={"fit": False, "table_size": 9})})
    ).notes == (describe_unresumed_sessions(plan))


def test_tables_that_no_memory_holds_are_refused_before_anything_is_built() -> None:
    plan = load_plan("paths").plan
    huge = plan.model_copy(update={"data": plan.data.model_copy(update={"table_size": 500_000_000, "tables": 1000})})
    with pytest.raises(PlanError, match="1000 tables of 500000000 rows are too large") as caught:
        fit_plan(huge)
    assert "fit = true" in caught.value.advice
    check_rows(plan, plan.data.table_size)


@pytest.mark.parametrize(
    "name",
    [
        "paths",
        "bandwidth",
        "compression",
        "encryption",
        "replication",
        "cluster",
        "cluster-reads",
        "cluster-rows",
        "cluster-conflicts",
    ],
)
def test_six_blocks_of_the_quick_forms_fit_in_their_time(name: str) -> None:
    assert_six_blocks_fit(name)


def assert_six_blocks_fit(name: str) -> None:
    """On MariaDB, which has only zlib; the first laboratory takes 20 s more than the forecast of a laboratory."""
    plan = load_shipped(name, quick=True).plan
    supported = {setting.factor.name: getattr(plan.factors, setting.factor.name)[:2] for setting in SESSION_SETTINGS}
    here = plan.model_copy(update={"factors": plan.factors.model_copy(update=supported)})
    forecast = estimate_cost(here)
    assert plan.timing.min_blocks >= 6
    assert (
        forecast.fixed_ns + 6 * forecast.block_ns + 20 * 10**9
        <= plan.timing.time_budget_ns + forecast.trial_ns
        <= 600 * 10**9
    )


def test_the_loopback_is_measured_at_the_same_numbers_of_connections(tmp_path: Path) -> None:
    for quick in (False, True):
        found = cells(load_shipped("bandwidth", quick).plan)
        threads = {
            path: {cell.factors["threads"] for cell in found if cell.factors["path"] == path}
            for path in ("tcp", "remote")
        }
        assert threads["tcp"] == threads["remote"]


def test_the_option_that_is_blamed_has_the_level() -> None:
    """The message does not blame `--server`, although its name is part of the word servers."""
    skip_without("replication")
    options: dict[str, tuple[str, str | tuple[str, ...]]] = {
        "--server": ("server", "mysql"),
        "--distances": ("distances", ("1ms,2ms",)),
    }
    overrides = [Override(option, ("factors", name), value) for option, (name, value) in options.items()]
    with pytest.raises(UsageError, match=r"^--distances .*: 3 servers have 3 pairs"):
        load_plan("cluster", overrides=overrides)


def test_distances_have_commas_and_are_written_with_semicolons() -> None:
    """Semicolons are used in the command that repeats a run."""
    skip_without("replication")
    levels = ("same-rack", "10ms,12ms,30ms")
    override = Override("--distances", ("factors", "distances"), levels)
    assert override.option_value == "same-rack;10ms,12ms,30ms"
    assert load_plan("cluster", quick=True, overrides=[override]).plan.factors.distances == levels


def workloads() -> st.SearchStrategy[dict[str, Any]]:
    """Workloads with numbers from below to far above what the engine accepts, in every field that has a limit."""
    number = st.one_of(st.integers(-1, 200), st.integers(2**13, 2**63), st.just(10**9))
    counts = {
        name: number
        for name, field in Workload.model_fields.items()
        if isinstance(field.default, int) and not isinstance(field.default, bool)
    }
    share = st.floats(0, 2, exclude_max=True)
    distribution = st.fixed_dictionaries(
        {},
        optional={"spec_iter": number, "spec_pct": number, "spec_res": number, "pareto_h": share, "zipfian_exp": share},
    )
    return st.fixed_dictionaries({}, optional={**counts, "distribution": distribution})


@given(workloads(), st.sampled_from(SYSBENCH_KINDS))
def test_what_a_plan_accepts_the_engine_takes(values: dict[str, Any], kind: str) -> None:
    """[file-10]"""
    try:
        workload = Workload.model_validate({**values, "kind": kind})
    except ValidationError:
        return
    Sysbench.model_validate({**workload.model_dump(), "tables": 1000, "table_size": 10**9})


def test_a_number_that_the_engine_does_not_take_is_refused_with_its_line(tmp_path: Path) -> None:
    """[file-10]"""
    path = write(tmp_path, GOOD.replace("point_selects = 3", "point_selects = 1_000_000_000"))
    with pytest.raises(PlanError, match=r"mine\.toml:5: workload\.point_selects = 1000000000"):
        load_plan(path)


def test_replies_that_are_too_long_at_once_are_refused_before_anything_is_made() -> None:
    """[file-10]"""
    skip_without_workload("key_value")
    plan = load_plan("paths").plan
    keys = plan.model_copy(update={"workload": plan.workload.model_copy(update={"kind": "key_value"})})
    for good in (plan, keys):
        check_workload(good)
    long = keys.model_copy(update={"keys": Keys(value_bytes=1_000_000, pipeline=1000)})
    with pytest.raises(PlanError, match="64 MiB"):
        check_workload(long)


@pytest.mark.parametrize(
    ("measured", "quick", "notes"),
    [
        (("socket", "tcp"), False, ("left out: path remote",)),
        (("socket",), True, ("left out: path tcp",)),
        (("socket", "tcp"), True, ()),
        (("socket", "other"), False, ()),
        ((), False, ()),
    ],
)
def test_levels_that_a_plan_names_and_a_run_lacks_are_noted(
    measured: tuple[str, ...], quick: bool, notes: tuple[str, ...]
) -> None:
    text = (
        '[factors]\npath = ["socket", "tcp", "remote"]\nthreads = [1, 2]\n[quick.factors]\npath = ["socket", "tcp"]\n'
    )
    assert tuple(describe_lost_levels(text, quick, {"path": measured, "threads": (1,)}).values()) == notes
    assert tuple(describe_lost_levels("not TOML", quick, {"path": measured}).values()) == ()
