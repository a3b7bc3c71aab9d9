"""For tests: sysbench and our engine with the same options on one server, compared only by the server's own counters."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from howfar.contract.messages import (
    LoadJob,
    Sysbench,
    UnixTarget,
)
from howfar.engine.process import Launcher
from howfar.engine.run_load import run_load
from howfar.lab.servers import DATABASE, USER, Tables
from tests.lab.sandboxes import wait_until
from tests.lab.servers_here import Running, prepared, started

Tool = Literal["ours", "sysbench"]
TOOLS: tuple[Tool, ...] = ("ours", "sysbench")
TABLES, ROWS = 2, 10_000
STATEMENTS = (
    "Com_stmt_execute",
    "Com_select",
    "Com_update",
    "Com_insert",
    "Com_delete",
    "Com_begin",
    "Com_commit",
)
BYTES = ("Bytes_received", "Bytes_sent")
# `Handler_*` count rows requested from the storage engine: read by a key, onward in a range, changed.
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
class Pair:
    running: Running
    folder: Path

    def run(self, tool: Tool, workload: Sysbench, connections: int, events: int, seed: int = 1) -> Run:
        """Run `events` transactions, however long that takes."""
        before = self._counters()
        run = self._ours if tool == "ours" else self._sysbench
        done = run(workload, connections, events, seed)
        after = self._counters()
        return Run(done, {name: after[name] - before[name] for name in COUNTERS})

    def marginal(
        self, tool: Tool, workload: Sysbench, connections: int, lengths: tuple[int, int]
    ) -> tuple[int, dict[str, int]]:
        """What the longer of two runs did beyond the shorter: logging in, preparing and our own reads of the counters cancel out.
        With the same seed both would delete the same rows, and how many of them depends on which connection was faster."""
        short, long = (self.run(tool, workload, connections, events, seed=events) for events in lengths)
        return long.events - short.events, {name: long.counters[name] - short.counters[name] for name in COUNTERS}

    def reset(self) -> None:
        """Restore the original content of the tables."""
        self.running.execute(
            *(
                f"{statement}"
                for table in range(1, TABLES + 1)
                for statement in (f"TRUNCATE sbtest{table}", f"INSERT INTO sbtest{table} SELECT * FROM kept{table}")
            )
        )

    @contextmanager
    def log(self) -> Iterator[list[str]]:
        """Statements on the tables that reach the server within the context, as the server logs them; filled on leaving."""
        found: list[str] = []
        self.running.execute(
            "SET GLOBAL general_log = 0",
            "TRUNCATE mysql.general_log",
            "SET GLOBAL log_output = 'TABLE'",
            "SET GLOBAL general_log = 1",
        )
        yield found
        self.running.execute("SET GLOBAL general_log = 0")
        rows = self.running.execute(
            "SELECT CONVERT(argument USING utf8mb4) AS said FROM mysql.general_log "
            "WHERE command_type IN ('Query', 'Execute') AND argument LIKE '%sbtest%'"
        )
        found += [str(row["said"]) for row in rows]

    def _counters(self) -> dict[str, int]:
        """The counters, once only the laboratory is connected: a client that is gone may have left statements to close."""
        wait_until(lambda: sessions(self.running.server.socket) <= 1, "sessions to end")
        return self._status(*COUNTERS)

    def _status(self, *names: str) -> dict[str, int]:
        listed = ", ".join(f"'{name}'" for name in names)
        rows = self.running.execute(f"SHOW GLOBAL STATUS WHERE Variable_name IN ({listed})")
        return {str(row["Variable_name"]): int(str(row["Value"])) for row in rows}

    def _ours(self, workload: Sysbench, connections: int, events: int, seed: int) -> int:
        job = LoadJob(
            target=UnixTarget(path=str(self.running.server.socket)),
            user=USER,
            password=self.running.password,
            database=DATABASE,
            workload=workload,
            connections=connections,
            seed=seed,
            warmup_ns=0,
            measure_ns=120_000_000_000,
            transactions=events,
        )
        finished = run_load(job, Launcher()).finished
        assert finished.errors == {}, "a transaction that was begun twice is in the counters twice"
        return finished.transactions

    def _sysbench(self, workload: Sysbench, connections: int, events: int, seed: int) -> int:
        secret = self.folder / "sysbench.cnf"
        secret.touch(mode=0o600)
        secret.write_text(f"mysql-password={self.running.password}\n")
        command = [
            "sysbench",
            f"--config-file={secret}",
            workload.kind,
            f"--mysql-socket={self.running.server.socket}",
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
        ignored = re.search(r"ignored errors:\s+(\d+)", done.stdout)
        assert ignored is not None and ignored[1] == "0", done.stdout
        counted = re.search(r"transactions:\s+(\d+)", done.stdout)
        assert counted is not None, done.stdout
        return int(counted[1])


def sessions(socket: Path) -> int:
    """The number of the server's connections, from the kernel: a query to the server would be counted as well."""
    lines = [line.split() for line in Path("/proc/net/unix").read_text().splitlines()]
    return sum(len(line) == 8 and line[5] == "03" and line[7] == str(socket) for line in lines)


def sysbench_options(workload: Sysbench) -> list[str]:
    """The options of a workload as sysbench 1.0 names them; a script rejects those of another script."""
    law = workload.distribution
    options = [
        f"--db-ps-mode={workload.db_ps_mode}",
        f"--rand-type={law.kind}",
        f"--rand-pareto-h={law.pareto_h}",
        f"--rand-spec-iter={law.spec_iter}",
        f"--rand-spec-pct={law.spec_pct}",
        f"--rand-spec-res={law.spec_res}",
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


@contextmanager
def pair(server: str, work: Path, folder: Path) -> Iterator[Pair]:
    """Both tools on their own server in `work`, with a copy of each table to restore."""
    assert shutil.which("sysbench") is not None
    with started(prepared(server, work, tables=Tables(TABLES, ROWS)), networking=False) as running:
        # How long a commit takes on this disk is not compared.
        running.execute("SET GLOBAL innodb_flush_log_at_trx_commit = 2")
        for table in range(1, TABLES + 1):
            running.execute(
                f"CREATE TABLE kept{table} LIKE sbtest{table}", f"INSERT INTO kept{table} SELECT * FROM sbtest{table}"
            )
        yield Pair(running, folder)
