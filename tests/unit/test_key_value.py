"""Valid workloads of keys, and the sessions that they can have."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from howfar.contract.messages import (
    LONGEST_VALUE,
    Compression,
    FixedSize,
    KeyValue,
    LoadJob,
    LognormalSize,
    Session,
    TablesJob,
    UniformSize,
    UnixTarget,
)
from howfar.load.job import max_statements_per_connection


def load(protocol: Any = "resp3", **fields: Any) -> LoadJob:
    return LoadJob(
        target=UnixTarget(path="/s"),
        workload=KeyValue(protocol=protocol),
        connections=1,
        seed=1,
        warmup_ns=0,
        measure_ns=1,
        **{"user": "", "database": "", **fields},
    )


def test_a_session_asks_for_what_there_is() -> None:
    assert max_statements_per_connection(load(user="me", password="secret", database="3")) == 0
    refused: list[tuple[str, dict[str, Any]]] = [
        ("resp3", {"session": Session(compression=Compression())}),
        ("resp2", {"database": "shop"}),
        ("resp2", {"user": "me"}),
        ("memcached_text", {"password": "secret"}),
        ("memcached_meta", {"database": "0"}),
        ("resp2", {"acknowledged": "/keys"}),
    ]
    for protocol, fields in refused:
        with pytest.raises(ValidationError):
            load(protocol, **fields)


def test_the_same_of_a_tables_job() -> None:
    with pytest.raises(ValidationError):
        TablesJob(
            action="prepare",
            target=UnixTarget(path="/s"),
            user="",
            database="shop",
            workload=KeyValue(protocol="resp2"),
            seed=1,
        )


def test_a_workload_has_commands_and_sizes() -> None:
    with pytest.raises(ValidationError):
        KeyValue(protocol="resp2", get=0, set=0)
    longest = FixedSize(bytes=LONGEST_VALUE)
    assert KeyValue(protocol="resp2", pipeline=63, value=longest).pipeline == 63
    refused: list[dict[str, Any]] = [{"pipeline": 64}, {"multi_get": 1, "keys_each": 64}]
    for at_once in refused:
        with pytest.raises(ValidationError):
            KeyValue(protocol="resp2", value=longest, **at_once)
    with pytest.raises(ValidationError):
        UniformSize(low=2, high=1)
    with pytest.raises(ValidationError):
        LognormalSize(median=2, sigma=1, most=1)
