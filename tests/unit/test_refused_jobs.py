"""Jobs whose fields do not fit each other are refused by the engine before it runs them, with a reason."""

from __future__ import annotations

import json
import re
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from tests.acknowledged_scenario import INSERTS

from howfar.contract.messages import (
    JOBS,
    LONGEST_VALUE,
    Compression,
    CustomStep,
    CustomTransaction,
    FixedSize,
    KeyValue,
    LoadJob,
    LognormalSize,
    PageJob,
    Pgbench,
    Session,
    Sysbench,
    TablesJob,
    UniformSize,
    UnixTarget,
    Workload,
)
from howfar.engine.process import EngineFailed, check_job
from howfar.errors import UsageError
from howfar.load.job import example_workload, example_workloads, parse_workload

EXAMPLES = Path(__file__).parents[2] / "schema" / "examples"
TARGET = UnixTarget(path="/s")
LONGEST = FixedSize(bytes=LONGEST_VALUE)
KEYS = KeyValue(protocol="resp3")


def load(workload: Workload = KEYS, **fields: Any) -> LoadJob:
    times = {"seed": 1, "warmup_ns": 0, "measure_ns": 1}
    return LoadJob(
        **{"target": TARGET, "user": "", "database": "", "workload": workload, "connections": 1, **times, **fields}
    )


def check_refused(job: Any, reason: str) -> None:
    with pytest.raises(EngineFailed, match=re.escape(reason)) as caught:
        check_job(job)
    assert (caught.value.code, caught.value.exit_code) == ("bad_job", UsageError.exit_code)
    assert caught.value.advice


def test_accepted_jobs() -> None:
    for job in (
        load(user="me", password="secret", database="3"),
        load(Sysbench(kind="oltp_insert", auto_inc=False), acknowledged="/keys"),
        load(INSERTS, acknowledged="/keys"),
        load(KeyValue(protocol="resp2", pipeline=63, value=LONGEST)),
    ):
        check_job(job)


@pytest.mark.parametrize(
    ("workload", "reason"),
    [
        (KeyValue(protocol="resp2", get=0, set=0), "a workload of keys needs a command with a weight above 0"),
        (KeyValue(protocol="resp2", value=LONGEST, pipeline=64), "must be 64 MiB at most"),
        (KeyValue(protocol="resp2", value=LONGEST, multi_get=1, keys_each=64), "must be 64 MiB at most"),
        (KeyValue(protocol="resp2", value=UniformSize(low=2, high=1)), "sizes"),
        (KeyValue(protocol="resp2", value=LognormalSize(median=2, sigma=1, most=1)), "sizes"),
        (Pgbench(kind="select_only"), "pgbench's workloads need"),
    ],
)  # fmt: skip
def test_a_workload_that_no_server_can_run(workload: Workload, reason: str) -> None:
    check_refused(load(workload), reason)


@pytest.mark.parametrize(
    ("protocol", "fields", "reason"),
    [
        ("resp3", {"session": Session(compression=Compression())}, "neither Redis nor Memcached compresses"),
        ("resp2", {"database": "shop"}, "a database of Redis is a number"),
        ("resp2", {"user": "me"}, "a user of Redis needs a password"),
        ("memcached_text", {"password": "secret"}, "know no user, password or database"),
        ("memcached_meta", {"database": "0"}, "know no user, password or database"),
        ("resp2", {"acknowledged": "/keys"}, "a log of acknowledged keys"),
        ("resp2", {"ramp_ns": 1}, "ramp_ns is part of the warm-up"),
    ],
)
def test_a_session_that_the_store_does_not_have(protocol: Any, fields: dict[str, Any], reason: str) -> None:
    check_refused(load(KeyValue(protocol=protocol), **fields), reason)


def test_the_same_of_a_tables_job() -> None:
    fields: dict[str, Any] = {"action": "prepare", "target": TARGET, "user": "", "workload": KEYS, "seed": 1}
    check_refused(TablesJob(database="shop", **fields), "a database of Redis is a number")


def test_a_log_needs_one_key_a_transaction() -> None:
    def inserts(*repeats: int) -> Workload:
        steps = tuple(CustomStep(statement="insert", repeat=repeat) for repeat in repeats)
        return INSERTS.model_copy(update={"transactions": (CustomTransaction(name="some", steps=steps),)})

    check_job(load(inserts(1), acknowledged="/keys"))
    for workload in (inserts(2), inserts(1, 1), Sysbench(kind="oltp_insert"), Sysbench(kind="oltp_write_only")):
        check_job(load(workload))
        check_refused(load(workload, acknowledged="/keys"), "a log of acknowledged keys")


@pytest.mark.parametrize("kind", ["answer", "null", "ping", "pingpong", "repeat", "replay", "usage", "watch"])
def test_jobs_of_each_kind_are_checked(kind: str) -> None:
    job: Any = JOBS[kind].model_validate_json((EXAMPLES / f"job.{kind}.json").read_text())
    check_job(job)


@pytest.mark.parametrize(
    ("kind", "change", "reason"),
    [
        ("repeat", {"statements": ()}, "a step refers to a statement that the job does not contain"),
        ("watch", {"table": "a`b"}, "a table and a column are named by letters, digits and underscores"),
        ("ping", {"step_timeout_ns": 0}, "step_timeout_ns is 0 and must be at least 1"),
        ("null", {"threads": 0}, "threads must be 1..1024"),
        ("usage", {"measure_ns": 0}, "measure_ns is 0 and must be at least 1"),
    ],
)
def test_jobs_of_other_kinds_are_refused(kind: str, change: dict[str, Any], reason: str) -> None:
    example = JOBS[kind].model_validate_json((EXAMPLES / f"job.{kind}.json").read_text())
    check_refused(example.model_copy(update=change), reason)


# ---------------------------------------------------------------- custom workloads


def custom(statements: str, steps: str, mode: str = "auto") -> LoadJob:
    text = f'db_ps_mode = "{mode}"\n{statements}\n[[transactions]]\nname = "t"\nsteps = [{steps}]\n'
    return load(parse_workload("w.toml", text))


def statement(values: int = 1, parameter: str = '{ kind = "text", length = "1MiB" }') -> str:
    marks, parameters = ", ".join("?" * values), ", ".join([parameter] * values)
    return f'[[statements]]\nname = "s"\nsql = "SELECT {marks}"\nparameters = [{parameters}]\n'


STEP = '{ statement = "s" }'


@pytest.mark.parametrize(
    ("job", "reason"),
    [
        (custom(statement(), '{ statement = "r" }'), "transaction t refers to statement r, which does not exist"),
        (custom(2 * statement(), STEP), "two statements have the same name"),
        (custom(statement(1, '{ kind = "same", statement = "s", index = 1 }'), STEP), "statement s repeats a parameter"),
        (custom(statement(17), STEP), "statement s has more than 16 MiB"),
        (custom(statement(), '{ statement = "s", repeat = 16 }', "multi"), "transaction t is one text"),
    ],
)  # fmt: skip
def test_a_refusal_names_the_part_of_a_workload(job: LoadJob, reason: str) -> None:
    check_refused(job, reason)


def test_what_is_sent_at_once_is_below_16_mib() -> None:
    """For more, MySQL's protocol would need several packets."""
    check_job(custom(statement(15), STEP))
    check_job(custom(statement(), '{ statement = "s", repeat = 100 }'))
    check_job(custom(statement(), '{ statement = "s", repeat = 15 }', "multi"))


PAUSES = """
[[statements]]
name = "s"
sql = "SELECT 1"
[[transactions]]
name = "t"
[[transactions.steps]]
statement = "s"
think = "5ms"
"""


@pytest.mark.parametrize(
    ("mode", "pipeline", "is_refused"),
    [("multi", 1, True), ("auto", 2, True), *((mode, 1, False) for mode in ("auto", "disable", "extended"))],
)
def test_a_pause_that_would_be_left_out_is_refused(mode: str, pipeline: int, is_refused: bool) -> None:
    """Also in a bundled workload: the shop of `orders` has a pause."""
    for text in (PAUSES, *map(example_workload, example_workloads())):
        for has_pause in (True, False):
            workload = parse_workload("w.toml", text if has_pause else re.sub("(?m)^think = .*$", "", text))
            workload = workload.model_copy(update={"db_ps_mode": mode})
            expected = (
                pytest.raises(EngineFailed, match="think needs statements that are sent one at a time")
                if is_refused and has_pause
                else nullcontext()
            )
            with expected:
                check_job(load(workload, protocol="postgresql", session=Session(pipeline=pipeline)))


# ---------------------------------------------------------------- pages


def page(**changes: Any) -> PageJob:
    """A script of 26 round trips in each of 10 rounds."""
    example: dict[str, Any] = json.loads((EXAMPLES / "job.page.script.json").read_text())
    return PageJob.model_validate({**example, "application": {**example["application"], **changes}})


def test_a_page_has_one_database_distinct_statements_and_a_bounded_number_of_round_trips() -> None:
    script = page().application.model_dump()
    check_job(page(rounds=100_000 // 26))
    check_refused(page(rounds=100_000 // 26 + 1), "at most 100000 round trips")
    check_refused(page(statements=2 * script["statements"]), "two statements have the same name")
    check_refused(page(postgresql=script["mysql"]), "a page sends statements to mysql or postgresql, not to both")


def test_a_reply_is_bounded() -> None:
    """64 values of 1 MiB would fit only without their keys."""
    script = page().application.model_dump()
    keys = script["redis_keys"] | {"value": {"kind": "fixed", "bytes": 2**20}}
    for keys_each, expected in ((63, nullcontext()), (64, pytest.raises(EngineFailed, match="64 MiB at most"))):
        steps = [step | {"keys_each": keys_each} if step["kind"] == "get" else step for step in script["steps"]]
        with expected:
            check_job(page(redis_keys=keys, steps=steps))
