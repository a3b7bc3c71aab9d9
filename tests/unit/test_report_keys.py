"""Reports of a key-value store: requests instead of queries, and whether the keys that were read existed."""

from __future__ import annotations

from functools import cache
from typing import Any

from tests.unit.rendered import html as html
from tests.unit.rendered import markdown as markdown
from tests.unit.rendered import terminal as terminal
from tests.unit.synthetic_run import synthetic_run

from howfar.analysis.cells import KeyReads
from howfar.analysis.compare import compare
from howfar.analysis.summary import Summary
from howfar.contract.receipt_messages import Bytes, ServiceUse
from howfar.experiments.key_value.plan import KIND
from howfar.experiments.registry import summarise
from howfar.report.figures import keys_line
from howfar.store.records import Run

PLAN: dict[str, Any] = {
    "name": "stores",
    "workload": {"kind": KIND},
    "keys": {"count": 10_000, "value_bytes": 200, "get": 9, "set": 1},
}


def _run(misses: int) -> Run:
    run = synthetic_run(blocks=8, samples=60)
    sent = Bytes(to_server=1, to_client=1)
    reads = ServiceUse(service="redis", connects=0, requests=1000, round_trips=1000, bytes=sent, hits=900, misses=0)
    trials = tuple(
        trial
        if trial.measured is None
        else trial.model_copy(
            update={
                "measured": trial.measured.model_copy(
                    update={"services": (reads.model_copy(update={"misses": misses if trial.arm == "tcp" else 0}),)}
                )
            }
        )
        for trial in run.trials
    )
    info = run.info.model_copy(update={"plan_name": "stores", "plan": PLAN, "server_kind": "redis"})
    return run.model_copy(update={"info": info, "trials": trials})


@cache
def summary(misses: int = 0) -> Summary:
    return summarise(_run(misses))


def test_the_weights_of_commands_are_part_of_the_workload() -> None:
    run = _run(0)
    more_gets = {**PLAN, "keys": {**PLAN["keys"], "get": 5}}
    other = run.model_copy(update={"info": run.info.model_copy(update={"plan": more_gets})})
    assert compare(run, run).has_same_workload and not compare(run, other).has_same_workload


def test_a_store_answers_requests_everywhere() -> None:
    found = summary()
    assert found.operation_unit == "requests"
    for text in (terminal.render(found, 80), markdown.render(found), html.render(found)):
        assert "requests/s" in text or "requests per second" in text
        assert (
            "queries" not in text.lower() and "a query" not in text and "per query" not in text and "/query" not in text
        )
    assert "unixsocket" in terminal.render(found, 80) and "MGET" in terminal.render(found, 80)
    assert "mysql" not in terminal.render(found, 80, details=False).lower()
    assert summarise(synthetic_run(blocks=8, samples=60)).operation_unit == "queries"


def test_keys_that_had_no_value_are_said() -> None:
    assert keys_line(summary()).startswith("All ") and "had a value" in keys_line(summary())
    assert keys_line(summary(misses=100)) == (
        "Reads of keys without a value, which a server answers faster: tcp 10.0 %."
    )
    assert keys_line(summary(misses=100)) in markdown.render(summary(misses=100))
    tcp = next(cell for cell in summary(misses=100).cells if cell.arm == "tcp")
    assert isinstance(tcp.keys, KeyReads) and tcp.keys.misses * 9 == tcp.keys.hits


def test_sql_reads_no_keys() -> None:
    found = summarise(synthetic_run(blocks=2, samples=60))
    assert all(cell.keys is None for cell in found.cells) and keys_line(found) == ""
