"""sysbench and our engine with the same options on one server: by the server's own counters they do the same work.

The statements themselves differ, because sysbench seeds its generators from the C library's `random()` in the order in which its
threads start. So the tests compare counts of statements (exactly), bytes (per transaction), rows (by the distribution of ids) and the
effect of writes. For our own stream the tables are compared in full.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import pytest

from howfar.contract.messages import SYSBENCH_KINDS, Distribution, LoadJob, Sysbench
from howfar.engine.process import Launcher
from howfar.engine.run_load import run_load
from howfar.lab.servers import DATABASE, USER, Tables
from tests.lab.distributions import p_value, probabilities
from tests.lab.local_servers import LocalServer, require_server, run_server
from tests.lab.sandboxes import wait_until
from tests.rarely import rarely_but

Tool = Literal["ours", "sysbench"]
TOOLS: tuple[Tool, ...] = ("ours", "sysbench")
TABLES, ROWS = 2, 10_000
STATEMENTS = ("Com_stmt_execute", "Com_select", "Com_update", "Com_insert", "Com_delete", "Com_begin", "Com_commit")
BYTES = ("Bytes_received", "Bytes_sent")
# `Handler_*` count rows requested from the storage engine: read by key, read next in a range, changed.
ROWS_TOUCHED = ("Handler_read_key", "Handler_read_next", "Handler_update", "Handler_write", "Handler_delete")
COUNTERS = (*STATEMENTS, "Questions", *BYTES, *ROWS_TOUCHED)
_OPTIONS = (
    "tables",
    "table_size",
    "range_size",
    "point_selects",
    "simple_ranges",
    "sum_ranges",
    "order_ranges",
    "distinct_ranges",
    "index_updates",
    "non_index_updates",
    "delete_inserts",
)
_OPTIONS_OF_ONE = {"select_random_points": ("random_points",), "select_random_ranges": ("number_of_ranges", "delta")}


@dataclass(frozen=True)
class Run:
    """One run of one tool: the transactions that it reports, and how much the server's counters grew during it."""

    events: int
    counters: dict[str, int]


@dataclass(frozen=True)
class Tools:
    """Both tools, on one server."""

    server: LocalServer
    folder: Path

    def run(self, tool: Tool, workload: Sysbench, connections: int, events: int, seed: int = 1) -> Run:
        """Run `events` transactions with one of the tools."""
        before = self._counters()
        run = self._ours if tool == "ours" else self._sysbench
        reported = run(workload, connections, events, seed)
        after = self._counters()
        return Run(reported, {name: after[name] - before[name] for name in COUNTERS})

    def marginal(
        self, tool: Tool, workload: Sysbench, connections: int, lengths: tuple[int, int]
    ) -> tuple[int, dict[str, int]]:
        """The difference of two runs of these numbers of transactions, in which logins, prepares and our own queries cancel out. The
        seeds differ: with the same one both would delete the same rows, and the number of those depends on which connection is
        faster."""
        short, long = (self.run(tool, workload, connections, events, seed=events) for events in lengths)
        return long.events - short.events, {name: long.counters[name] - short.counters[name] for name in COUNTERS}

    def reset(self) -> None:
        """Restore the original content of the tables."""
        for table in range(1, TABLES + 1):
            self.server.execute(f"TRUNCATE sbtest{table}", f"INSERT INTO sbtest{table} SELECT * FROM kept{table}")

    @contextmanager
    def log_statements(self) -> Iterator[list[str]]:
        """The statements on the tables that the server logs within the context; the list is filled on leaving."""
        found: list[str] = []
        self.server.execute(
            "SET GLOBAL general_log = 0",
            "TRUNCATE mysql.general_log",
            "SET GLOBAL log_output = 'TABLE'",
            "SET GLOBAL general_log = 1",
        )
        yield found
        self.server.execute("SET GLOBAL general_log = 0")
        rows = self.server.execute(
            "SELECT CONVERT(argument USING utf8mb4) AS statement FROM mysql.general_log "
            "WHERE command_type IN ('Query', 'Execute') AND argument LIKE '%sbtest%'"
        )
        found += [str(row["statement"]) for row in rows]

    def _counters(self) -> dict[str, int]:
        """The counters, once no client is connected: the server may still close the statements of a client that has ended."""
        wait_until(lambda: count_connections(self.server.process.socket) <= 1, "the end of sessions")
        rows = self.server.execute(f"SHOW GLOBAL STATUS WHERE Variable_name IN {COUNTERS}")
        return {str(row["Variable_name"]): int(str(row["Value"])) for row in rows}

    def _ours(self, workload: Sysbench, connections: int, events: int, seed: int) -> int:
        job = LoadJob(
            target=self.server.unix,
            **self.server.login,
            workload=workload,
            connections=connections,
            seed=seed,
            warmup_ns=0,
            measure_ns=120_000_000_000,
            transactions=events,
        )
        finished = run_load(job, Launcher()).finished
        assert finished.errors == {}, "a repeated transaction would be counted twice"
        return finished.transactions

    def _sysbench(self, workload: Sysbench, connections: int, events: int, seed: int) -> int:
        secret = self.folder / "sysbench.cnf"
        secret.touch(mode=0o600)
        secret.write_text(f"mysql-password={self.server.password}\n")
        command = [
            "sysbench",
            f"--config-file={secret}",
            workload.kind,
            f"--mysql-socket={self.server.process.socket}",
            f"--mysql-user={USER}",
            f"--mysql-db={DATABASE}",
            f"--threads={connections}",
            f"--rand-seed={seed}",
            f"--events={events}",
            "--time=0",
            *sysbench_options(workload),
            "run",
        ]
        done = subprocess.run(command, capture_output=True, text=True, timeout=400)
        assert done.returncode == 0, done.stdout + done.stderr
        assert re.search(r"ignored errors:\s+0\b", done.stdout), done.stdout
        counted = re.search(r"transactions:\s+(\d+)", done.stdout)
        assert counted is not None, done.stdout
        return int(counted[1])


def count_connections(socket: Path) -> int:
    """The number of the server's connections, from the kernel, because a query to the server would be counted."""
    lines = [line.split() for line in Path("/proc/net/unix").read_text().splitlines()]
    return sum(len(line) == 8 and line[5] == "03" and line[7] == str(socket) for line in lines)


def sysbench_options(workload: Sysbench) -> list[str]:
    """The options of a workload for sysbench 1.0, whose scripts reject options of other scripts."""
    distribution = workload.distribution
    options = [
        f"--db-ps-mode={workload.db_ps_mode}",
        f"--rand-type={distribution.kind}",
        f"--rand-pareto-h={distribution.pareto_h}",
        f"--rand-spec-iter={distribution.spec_iter}",
        f"--rand-spec-pct={distribution.spec_pct}",
        f"--rand-spec-res={distribution.spec_res}",
    ]
    if workload.kind == "bulk_insert":
        return options
    names = (*_OPTIONS, *_OPTIONS_OF_ONE.get(workload.kind, ()))
    options += [f"--{name.replace('_', '-')}={getattr(workload, name)}" for name in names]
    options += [
        f"--{name.replace('_', '-')}={'on' if getattr(workload, name) else 'off'}"
        for name in ("range_selects", "skip_trx", "auto_inc")
    ]
    return options


pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        shutil.which("sysbench") is None, reason="sysbench is not installed (./setup --tests brings it)"
    ),
]
DISTRIBUTIONS = ("uniform", "gaussian", "special", "pareto", "zipfian")
UNIFORM = Distribution(kind="uniform")
LENGTHS = (40, 340)
BYTES_TOLERANCE = 0.01
IMPROBABLE = 1e-6
"""A chi-square test fails below this p-value: once in a million runs of a correct program."""
COLUMNS = {"select_random_points": 4}
ONE_TABLE = ("select_random_points", "select_random_ranges")
USUAL = ("oltp_read_write", "select_random_points")
WRITES = (
    "oltp_read_write",
    "oltp_write_only",
    "oltp_update_index",
    "oltp_update_non_index",
    "oltp_delete",
    "oltp_insert",
)


@pytest.fixture(scope="module", params=["mariadb", pytest.param("mysql", marks=pytest.mark.thorough)])
def tools(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tools]:
    """Both tools on a server with a copy of each table."""
    require_server(request.param)
    parent = tmp_path_factory.mktemp("d", numbered=True)
    with run_server(request.param, parent, tables=Tables(TABLES, ROWS), networking=False) as server:
        # Commits need not be durable: how long they take is not compared.
        server.execute("SET GLOBAL innodb_flush_log_at_trx_commit = 2")
        for table in range(1, TABLES + 1):
            copy = f"INSERT INTO kept{table} SELECT * FROM sbtest{table}"
            server.execute(f"CREATE TABLE kept{table} LIKE sbtest{table}", copy)
        yield Tools(server, tmp_path_factory.mktemp("sysbench"))


def workload(kind: str, mode: str = "auto", distribution: Distribution = UNIFORM) -> Sysbench:
    tables = 1 if kind in ONE_TABLE else TABLES
    return Sysbench.model_validate(
        {"kind": kind, "tables": tables, "table_size": ROWS, "db_ps_mode": mode, "distribution": distribution}
    )


@pytest.mark.parametrize(("mode", "connections"), [("auto", 1), ("auto", 3), ("disable", 1)])
@pytest.mark.parametrize("kind", rarely_but(USUAL, [kind for kind in SYSBENCH_KINDS if kind != "bulk_insert"]))
def test_statements_bytes_and_rows_are_the_same(tools: Tools, kind: str, mode: str, connections: int) -> None:
    """Statements agree exactly, except that the server may count QUIT as a question. Bytes in each direction agree within 1 %: as text
    an id has 1 to 5 digits (over 1..=10000 on average 3.89, with a standard deviation of 0.34; over 300 transactions this is 0.02 of
    at least 40 bytes)."""
    found = {}
    if kind in ONE_TABLE:
        tools.reset()
        # With unique values of k, the number of rows found is not random.
        tools.server.execute("UPDATE sbtest1 SET k = id")
    for tool in TOOLS:
        if kind in WRITES:
            tools.reset()
        found[tool] = tools.marginal(tool, workload(kind, mode), connections, LENGTHS)
    (our_events, ours), (events, theirs) = found["ours"], found["sysbench"]
    assert our_events == events == LENGTHS[1] - LENGTHS[0]
    assert {name: ours[name] for name in STATEMENTS} == {name: theirs[name] for name in STATEMENTS}
    assert abs(ours["Questions"] - theirs["Questions"]) <= 2 * (connections - 1), (
        "each of two runs has a QUIT per connection"
    )
    assert ours["Bytes_received"] / events == pytest.approx(theirs["Bytes_received"] / events, rel=BYTES_TOLERANCE)
    # The replies to a login or a QUIT may differ by some bytes from run to run: 0.4 per transaction over 300.
    sent = (theirs["Bytes_sent"] - extra_bytes(tools, theirs, kind, mode)) / events
    assert ours["Bytes_sent"] / events == pytest.approx(sent, rel=BYTES_TOLERANCE, abs=0.4)
    # Deleted rows (300 of 20 000) are not found again, and ranges near the last row (100 of 10 000) are shorter.
    for name in ROWS_TOUCHED:
        assert ours[name] / events == pytest.approx(theirs[name] / events, rel=0.03, abs=0.03), name


def extra_bytes(tools: Tools, theirs: dict[str, int], kind: str, mode: str) -> int:
    """Bytes that servers send only to MariaDB's C library, and so to sysbench, because it requests more than our engine does."""
    if tools.server.process.kind == "mysql":
        # Session tracking: replies to BEGIN and COMMIT have the transaction's state, `T_______`, in 13 bytes.
        return 13 * (theirs["Com_begin"] + theirs["Com_commit"])
    # Extended type information: a byte for each column of a text result.
    return theirs["Com_select"] * COLUMNS.get(kind, 1) if mode == "disable" else 0


def test_a_bulk_insert_has_the_same_rows_in_the_same_statements(tools: Tools) -> None:
    """sysbench counts each row as an event, our engine each INSERT, so rows per INSERT and bytes per row are compared."""
    load = Sysbench(kind="bulk_insert")
    recreate = ("DROP TABLE IF EXISTS sbtest1", "CREATE TABLE sbtest1 (id INT PRIMARY KEY, k INT NOT NULL)")
    seen = {}
    try:
        for tool in TOOLS:
            tools.server.execute(*recreate)
            # 512 KiB of "(12345,12345)," are about 40 000 rows. sysbench sends its last, partial INSERT at the end.
            run = tools.run(tool, load, 1, 3 if tool == "ours" else 160_000)
            (row,) = tools.server.execute(
                "SELECT COUNT(*) AS n, MIN(id) AS low, MAX(id) AS high, SUM(id = k) AS alike FROM sbtest1"
            )
            assert row["n"] == row["high"] == row["alike"] and row["low"] == 1
            seen[tool] = int(str(row["n"])), run.counters
    finally:
        tools.server.execute("DROP TABLE sbtest1", "CREATE TABLE sbtest1 LIKE kept1")
    (our_rows, ours), (rows, theirs) = seen["ours"], seen["sysbench"]
    assert rows == 160_000
    assert ours["Com_insert"] == 3
    # sysbench's partial INSERT counts as one.
    assert theirs["Com_insert"] == 1 + rows // (our_rows / 3)
    digits = sum(len(f"({n},{n}),") for n in range(our_rows + 1, rows + 1))
    assert theirs["Bytes_received"] - ours["Bytes_received"] == pytest.approx(digits, rel=BYTES_TOLERANCE)


def ids_of(statements: list[str]) -> list[int]:
    pattern = re.compile(r"SELECT c FROM sbtest\d+ WHERE id\s*=\s*'?(\d+)'?")
    return [int(match[1]) for statement in statements if (match := pattern.fullmatch(statement.strip())) is not None]


@pytest.mark.parametrize("tool", TOOLS)
@pytest.mark.parametrize("kind", DISTRIBUTIONS)
def test_row_ids_have_the_stated_distribution(tools: Tools, tool: Tool, kind: str) -> None:
    """Chi-square test of the ids in the server's general log against the formula; each table must get half of the draws."""
    if tool == "sysbench" and kind == "zipfian":
        pytest.skip("sysbench 1.0 has no zipfian distribution")
    distribution = Distribution.model_validate({"kind": kind})
    draws = 4000
    with tools.log_statements() as statements:
        tools.run(tool, workload("oltp_point_select", "disable", distribution), 2, draws)
    ids = ids_of(statements)
    assert len(ids) == draws
    assert p_value(ids, probabilities(distribution, ROWS)) > IMPROBABLE
    for other in set(DISTRIBUTIONS) - {kind}:
        assert p_value(ids, probabilities(Distribution.model_validate({"kind": other}), ROWS)) < IMPROBABLE, other
    first = sum("sbtest1 " in statement for statement in statements)
    assert abs(first - draws / 2) < 5 * (draws / 4) ** 0.5, "five standard deviations of a binomial"


@pytest.mark.parametrize("tool", TOOLS)
@pytest.mark.parametrize("kind", rarely_but(USUAL, WRITES))
def test_writes_have_the_expected_effect(tools: Tools, tool: Tool, kind: str) -> None:
    """Each tool starts with the same tables and runs the same number of transactions on one connection."""
    events = 300
    tools.reset()
    before = table_sums(tools)
    tools.run(tool, workload(kind), 1, events)
    after = table_sums(tools)
    rows, k, texts = after[0] - before[0], after[1] - before[1], after[2]
    if kind == "oltp_update_index":
        assert (rows, k, texts) == (0, events, 0)
    elif kind == "oltp_update_non_index":
        assert (rows, k) == (0, 0)
        assert abs(texts - distinct(events)) < 5 * distinct(events) ** 0.5
    elif kind == "oltp_insert":
        assert rows == events
    elif kind == "oltp_delete":
        assert abs(-rows - distinct(events)) < 5 * distinct(events) ** 0.5
    else:  # one row is deleted and inserted again, one gets a new text
        assert rows == 0
        assert abs(texts - distinct(2 * events)) < 5 * distinct(2 * events) ** 0.5


def distinct(draws: int) -> float:
    """Expected number of distinct rows in uniform random draws from both tables, which is also an upper bound of its variance."""
    return TABLES * ROWS * (1 - (1 - 1 / (TABLES * ROWS)) ** draws)


def table_sums(tools: Tools) -> tuple[int, int, int]:
    """The number of rows, the sum of k, and the number of rows whose text has changed."""
    sums = [0, 0, 0]
    for table in range(1, TABLES + 1):
        (row,) = tools.server.execute(
            f"SELECT COUNT(*) AS n, SUM(s.k) AS k, SUM(s.c <> o.c) AS texts "
            f"FROM sbtest{table} s LEFT JOIN kept{table} o USING (id)"
        )
        for index, name in enumerate(("n", "k", "texts")):
            sums[index] += int(str(row[name]))
    return sums[0], sums[1], sums[2]


def checksums(tools: Tools) -> list[object]:
    listed = ", ".join(f"sbtest{table}" for table in range(1, TABLES + 1))
    return [row["Checksum"] for row in tools.server.execute(f"CHECKSUM TABLE {listed}")]


@pytest.mark.parametrize("kind", rarely_but(USUAL, WRITES))
def test_our_stream_has_the_same_effect_however_it_is_sent(tools: Tools, kind: str) -> None:
    """It is sent prepared, as text, and by another client that replays the server's log of the first run."""
    sums = []
    logged: list[str] = []
    for mode in ("auto", "disable"):
        tools.reset()
        with tools.log_statements() as statements:
            tools.run("ours", workload(kind, mode), 1, 150, seed=7)
        sums.append(checksums(tools))
        logged = logged or statements
    tools.reset()
    tools.server.execute(*logged)
    sums.append(checksums(tools))
    tools.reset()
    tools.run("ours", workload(kind), 1, 150, seed=8)
    assert sums[0] == sums[1] == sums[2]
    assert sums[0] != checksums(tools), "another seed has another effect"
