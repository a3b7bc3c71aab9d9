"""Every output of `howfar load`: golden texts that a human has read, and formats that other programs must be able to parse.

`HOWFAR_GOLDEN=write pytest tests/unit/test_load_reports.py` writes the goldens anew; read the difference before committing it.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import pytest
from hdrh.histogram import HdrHistogram
from hdrh.log import HistogramLogReader
from tests.unit import fake_load
from tests.unit.rendered import is_short
from tests.unit.test_other_programs import BUSY

from howfar.contract.messages import Account, Finished, Measuring, Pgbench, Ready, Session, Sysbench
from howfar.load import report_text
from howfar.load.conclusion import conclude
from howfar.load.report_text import (
    interval_line,
    pgbench_first_line,
    pgbench_notes,
    pgbench_progress,
    pgbench_report,
    sysbench_first_line,
    sysbench_head,
    sysbench_interval_lines,
    sysbench_report,
    sysbench_started,
)
from howfar.load.result import Result, format_latency, hdr_log, job_line, make_result, prometheus_text, summary_line
from howfar.load.texts import ADVICE, HISTOGRAM
from howfar.load.verdict import Stamp
from howfar.other_programs import busiest
from howfar.report.document import Code, Heading
from howfar.report.terminal import render

GOLDEN = Path(__file__).parents[1] / "golden"
WORKLOAD = "oltp_read_write"


def text(lines: list[str]) -> str:
    return "\n".join(lines) + "\n"


def human(result: Result, width: int = 80) -> str:
    return render(report_text.document(result, WORKLOAD), width, details=True)


def summarized(result: Result) -> dict[str, Any]:
    """The last JSON line."""
    values: dict[str, Any] = json.loads(summary_line(result, conclude(result).answer))
    return values


def sysbench(dialect: str, rate: float | None = None, histogram: bool = False, percentile: int = 95) -> str:
    job = fake_load.job(rate, warmup_ns=2 * fake_load.SECOND if dialect == "1.1" else 0)
    result = fake_load.result(job)
    lines = sysbench_first_line("0.0", dialect) + sysbench_head(job, dialect, fake_load.SECOND, 7 if rate else 0)
    lines += sysbench_started(job, dialect)
    for each in result.intervals[:3]:
        lines += sysbench_interval_lines(each, job, percentile)
    return text(lines + sysbench_report(result, dialect, percentile, histogram))


def pgbench(rate: float | None = None, connect: Literal["persistent", "per_transaction"] = "persistent") -> str:
    """[cli-4] The report has pgbench's labels; a note states the differences."""
    workload = Pgbench(kind="select_only", scale=3, db_ps_mode="disable")
    job = fake_load.job(rate, protocol="postgresql", workload=workload, session=Session(connect=connect))
    kinds = ("transaction", *(("service",) if rate else ()), *(("connect",) if connect != "persistent" else ()))
    histograms = [
        fake_load.histogram(kind, [1_000_000 + 10_000 * i + 500_000 * (kind == "transaction") for i in range(1000)])
        for kind in kinds
    ]
    result = fake_load.result(job, fake_load.finished(histograms))
    lines = pgbench_first_line("0.0") + [pgbench_progress(each) for each in result.intervals[:2]]
    lines += pgbench_report(result, "select_only")
    return text(lines + [f"howfar: {note}" for note in pgbench_notes(job, shows_progress=True)])


FORMATS: dict[str, Callable[[], str]] = {
    "load-human.txt": lambda: human(fake_load.result()),
    "load-human-overloaded.txt": lambda: human(fake_load.overloaded()),
    "load-human-void.txt": lambda: human(
        fake_load.result(mismatches=("TLS was requested, but a plain session was obtained",))
    ),
    "load-sysbench-1.0.txt": lambda: sysbench("1.0"),
    "load-sysbench-1.0-rate.txt": lambda: sysbench("1.0", rate=100, histogram=True, percentile=99),
    "load-sysbench-1.1.txt": lambda: sysbench("1.1"),
    "load-pgbench.txt": pgbench,
    "load-pgbench-rate.txt": lambda: pgbench(rate=100),
    "load-pgbench-connect.txt": lambda: pgbench(connect="per_transaction"),
    "load.prom": lambda: prometheus_text(fake_load.overloaded(), WORKLOAD),
}


@pytest.mark.parametrize("name", FORMATS)
def test_golden(name: str) -> None:
    made, path = FORMATS[name](), GOLDEN / name
    if os.environ.get("HOWFAR_GOLDEN") == "write":
        path.write_text(made)
    assert made == path.read_text()


def open_loop(unanswered: int, slices: int = 10) -> Result:
    """An open loop of 1000 requests; so few are unanswered, at most one for each of 200 connections, that it is not overloaded."""
    account = Account(due=1000, answered=1000 - unanswered, unanswered=unanswered, failed=0, backlog_max=3)
    return of_account(account, slices)


def of_account(account: Account, slices: int = 10) -> Result:
    kinds = {"transaction": account.due, "service": account.answered, "lateness": account.answered}
    histograms = [fake_load.histogram(kind, [1_000_000] * count) for kind, count in kinds.items()]
    job = fake_load.job(rate=100.0, connections=200)
    done = fake_load.finished(histograms, account)
    ready, measuring, *_ = fake_load.events(job)
    assert isinstance(ready, Ready) and isinstance(measuring, Measuring)
    return make_result(job, ready, measuring, tuple(fake_load.interval(n) for n in range(slices)), done, ())


@pytest.mark.parametrize(
    ("unanswered", "slices", "finding_id"),
    [(0, 10, "sustained"), (10, 10, "sustained"), (100, 10, "answered"), (0, 5, "answered")],
)
def test_a_load_is_sustained_only_if_it_was_answered_and_steady(unanswered: int, slices: int, finding_id: str) -> None:
    result = open_loop(unanswered, slices)
    assert not result.verdict.has_stamp(Stamp.OVERLOADED)
    (found,) = conclude(result).answer.findings
    assert found.id == finding_id
    is_short(conclude(result).answer.sentence)


def test_a_window_in_which_nothing_was_due_is_no_answer() -> None:
    """A transaction of the warm-up may end in it."""
    nothing_due = of_account(Account(due=0, answered=0, unanswered=0, failed=0, backlog_max=0))
    conclusion = conclude(nothing_due)
    assert conclusion.answer.findings[0].id == "none-due"
    assert not conclusion.answer.why and not conclusion.answer.causes and not conclusion.certainty


def test_the_answer_of_a_disturbed_load_names_the_program() -> None:
    conclusion = conclude(fake_load.result(programs=BUSY))
    assert conclusion.answer.findings[0].id == "closed"
    assert conclusion.certainty.endswith(f"; {busiest(BUSY)} meanwhile.")
    assert conclusion.advice == ("Stop other programs, such as cargo (pid 4711), and run this again.",)


def test_only_steadiness_needs_a_longer_run() -> None:
    unknown_cpu = fake_load.result(done=fake_load.finished().model_copy(update={"cpu": ()}))
    assert unknown_cpu.verdict.unknown and ADVICE["longer"] not in conclude(unknown_cpu).advice
    assert conclude(open_loop(0, slices=5)).advice[0] == ADVICE["longer"]


def test_the_histogram_has_a_title_and_without_latencies_there_is_neither() -> None:
    blocks = report_text.document(fake_load.result(), WORKLOAD, histogram=True).blocks
    (code,) = (block for block in blocks if isinstance(block, Code))
    assert blocks[blocks.index(code) - 1] == Heading(HISTOGRAM)
    assert sum(int(line.split()[-1]) for line in code.lines[1:]) == 1000, "every transaction is in a bucket"
    empty = fake_load.result(done=fake_load.finished([fake_load.histogram("transaction", [])]))
    for result, histogram in ((fake_load.result(), False), (empty, True)):
        blocks = report_text.document(result, WORKLOAD, histogram=histogram).blocks
        assert Heading(HISTOGRAM) not in blocks and not any(isinstance(block, Code) for block in blocks)


def test_a_long_load_has_no_exponents() -> None:
    result = fake_load.result(fake_load.job(rate=2e6, measure_ns=36_000 * fake_load.SECOND), overlong())
    assert "2,000,000 transactions/s" in (screen := human(result)) and "36,000 s" in screen
    assert not re.search(r"\de\+", screen)
    line = interval_line(fake_load.interval(35_999), open_loop=False)
    assert line.lstrip().startswith("36,000 s")


def overlong() -> Finished:
    account = Account(due=1000, answered=1000, unanswered=0, failed=0, backlog_max=3)
    return fake_load.finished(account=account).model_copy(update={"elapsed_ns": 36_000 * fake_load.SECOND})


def test_a_unit_that_differs_from_sysbench_is_said() -> None:
    """[load-15] sysbench counts each row of a bulk insert."""
    for kind, is_noted in (("bulk_insert", True), ("oltp_insert", False)):
        result = fake_load.result(fake_load.job(workload=Sysbench.model_validate({"kind": kind})))
        assert ("sysbench counts rows" in text(sysbench_report(result, "1.0", 95, histogram=False))) is is_noted


def masked(lines: str) -> list[str]:
    """Lines with every number as 9 and stars as one star, so that only the layout remains."""
    return [re.sub(r"\d+", "9", re.sub(r"\*+ *", "* ", line)) for line in lines.splitlines()]


@pytest.mark.parametrize(
    ("name", "ours"),
    [
        ("sysbench-1.0.20.txt", lambda: sysbench("1.0")),
        ("sysbench-1.0.20-rate.txt", lambda: sysbench("1.0", rate=100, percentile=99)),
    ],
)
def test_the_layout_is_that_of_real_sysbench(name: str, ours: Callable[[], str]) -> None:
    """Compared with captured output; only the first line, which names the program, differs. Columns agree where numbers allow."""
    real = (Path(__file__).parents[1] / "data" / name).read_text()
    theirs = [line for line in masked(real)[1:] if "thds:" not in line and "queue length" not in line]
    mine = [line for line in masked(ours())[1:] if "thds:" not in line and "queue length" not in line]
    assert [re.sub(r" +", " ", line) for line in mine] == [re.sub(r" +", " ", line) for line in theirs]
    for word in ("read:", "transactions:", "total time:", "min:", "events (avg/stddev):"):
        assert _column(ours(), word) == _column(real, word), word
    for word in ("95th percentile:", "99th percentile:", "sum:"):
        if word in real:
            assert _end(ours(), word) == _end(real, word), word
    for word in ("thds:", "queue length:"):
        if word in real:
            assert {re.sub(r"\d+(\.\d+)?", "9", line) for line in _with(ours(), word)} == {
                re.sub(r"\d+(\.\d+)?", "9", line) for line in _with(real, word)
            }


def _with(lines: str, word: str) -> list[str]:
    return [line for line in lines.splitlines() if word in line]


def _column(lines: str, word: str) -> int:
    """Column of the first digit after `word`; for right-aligned numbers, the column where they end."""
    line = _with(lines, word)[0]
    rest = line.index(word) + len(word)
    if word == "min:":
        return len(line)
    return rest + len(line[rest:]) - len(line[rest:].lstrip())


def _end(lines: str, word: str) -> int:
    return len(_with(lines, word)[0])


@pytest.mark.parametrize(
    ("ns", "shown"),
    [(0, "0 ns"), (999, "999 ns"), (1000, "1.00 µs"), (45_230, "45.2 µs"), (999_600, "1.00 ms"), (1_234_567, "1.23 ms"),
     (2.5e9, "2.50 s"), (99_960_000, "100 ms"), (3.6e12, "3600 s")],
)  # fmt: skip
def test_times_keep_three_digits(ns: float, shown: str) -> None:
    assert format_latency(ns) == shown


def test_an_hdr_log_is_read_by_others(tmp_path: Path) -> None:
    result = fake_load.overloaded()
    file = tmp_path / "load.hlog"
    file.write_text(hdr_log(result))
    reader = HistogramLogReader(str(file), HdrHistogram(1, 90_000_000_000_000, 3))
    lines = [line for line in file.read_text().splitlines() if line.startswith("Tag=")]
    assert [line.split(",")[0] for line in lines] == [
        "Tag=transaction",
        "Tag=service",
        "Tag=unanswered",
        "Tag=lateness",
    ]
    read = reader.get_next_interval_histogram()
    assert read is not None and read.get_total_count() == 1000
    assert read.get_value_at_percentile(99) == pytest.approx(2e9, rel=0.002)


def test_prometheus_names_and_labels() -> None:
    lines = prometheus_text(fake_load.result(), 'a "workload"\\').splitlines()
    samples = [line for line in lines if not line.startswith("#")]
    pattern = re.compile(r'^howfar_load_[a-z_]+\{(?:[a-z_]+="(?:[^"\\]|\\.)*",?)+\} [-+0-9.e]+$')
    assert [line for line in samples if not pattern.match(line)] == []
    assert len({line.rsplit(" ", 1)[0] for line in samples}) == len(samples), "no sample twice"
    named = {line.split()[2] for line in lines if line.startswith("# TYPE")}
    assert {line.split("{")[0] for line in samples} == named
    assert 'howfar_load_stamp{workload="a \\"workload\\"\\\\"' in "\n".join(samples)


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed")
def test_promtool_agrees() -> None:
    import subprocess

    made = prometheus_text(fake_load.result(), WORKLOAD)
    subprocess.run(["promtool", "check", "metrics"], input=made, text=True, check=True)


def test_json_lines() -> None:
    result = fake_load.overloaded()
    job = json.loads(job_line(result.job))
    assert job["event"] == "job" and "password" not in job["job"]
    summary = summarized(result)
    assert summary["question"] and "10 % of the requests" in summary["answer"]
    assert summary["stamps"] == ["overloaded"]
    assert summary["loop"] == "open"
    p99 = summary["latency_ns"]["transaction"]["p99"]
    assert p99["at_least"] == pytest.approx(2e9, rel=0.002) and p99["at_most"] is None
    assert summary["transactions_per_second"] == 100


def without_transactions() -> Finished:
    empty = fake_load.finished([fake_load.histogram("transaction", [])]).model_dump()
    return Finished.model_validate(
        {**empty, "transactions": 0, "queries": 0, "classes": dict.fromkeys(("read", "write", "other"), 0)}
    )


def test_a_load_without_one_transaction_is_reported_too() -> None:
    result = fake_load.result(done=without_transactions())
    assert sysbench_report(result, "1.0", 95, True)
    assert summarized(result)["latency_ns"] == {}
    assert hdr_log(result).count("Tag=") == 0
    assert result.verdict.stamps == ("failing",)
    assert "CPU/query" not in human(result)
    assert "0 ns" not in human(result), "nothing took no time"
    assert summarized(result)["client_cpu_ns_per_query"] is None
    assert "cpu_seconds_per_query" not in prometheus_text(result, WORKLOAD)
    assert 'stamp="failing"} 1' in prometheus_text(result, WORKLOAD)


def test_transactions_in_flight_are_shown_if_older_than_the_p99() -> None:
    def seen(age_ns: int) -> Result:
        whole = fake_load.finished()
        ages = fake_load.histogram("in_flight", [1_000] * 7 + [age_ns])
        return fake_load.result(done=whole.model_copy(update={"histograms": (*whole.histograms, ages)}))

    sentence = human(seen(2 * fake_load.SECOND), 132)
    assert "In flight at the end: 8, the oldest for 2.00 s: longer than the p99 of transactions;" in sentence
    assert "not steady: at the end a transaction had been in flight for 2 s" in sentence
    summary = summarized(seen(2 * fake_load.SECOND))
    assert (summary["in_flight_ns"]["count"], summary["in_flight_ns"]["max"]) == (8, 2 * fake_load.SECOND)
    assert "in_flight" not in summary["latency_ns"], "an age is no latency"
    assert "howfar_load_in_flight_max_seconds" in prometheus_text(seen(2 * fake_load.SECOND), WORKLOAD)
    short = seen(2_000_000)
    assert "In flight" not in human(short) and short.verdict.stamps == ("valid",)


def test_an_answer_is_a_short_sentence() -> None:
    """One for each stamp that changes the answer."""
    results = {
        "closed": fake_load.result(),
        "overloaded": fake_load.overloaded(),
        "void": fake_load.result(mismatches=("TLS was requested, but a plain session was obtained",)),
        "failing": fake_load.result(done=without_transactions()),
        "client-limited": fake_load.result(done=fake_load.finished(busiest_thread_ns=fake_load.WINDOW_NS)),
    }
    for finding_id, result in results.items():
        conclusion = conclude(result)
        (found,) = conclusion.answer.findings
        assert found.id == finding_id
        is_short(conclusion.answer.sentence)
        assert bool(conclusion.certainty) is (finding_id not in ("void", "failing")), (
            "no certainty where there is no answer"
        )
