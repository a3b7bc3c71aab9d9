"""The public JSON: the names of the contract, and the published schema."""

from __future__ import annotations

import json as plain_json
from typing import Any

import jsonschema
import pytest
from tests.unit.synthetic_run import synthetic_run

from howfar.experiments.registry import schema, summarise
from howfar.report.text import as_json, json_values

TOP = {"run", "plan", "server", "noise_floor", "void_trials", "verdict", "cells"}
CELL = {
    "factors",
    "arm",
    "trials",
    "qps",
    "ratio",
    "cpu_us_per_query",
    "cpu_ratio",
    "latency_ms",
    "turns_per_txn",
    "bytes_per_txn",
    "receipt",
}


def test_the_promised_names_are_there() -> None:
    document = plain_json.loads(as_json(summarise(synthetic_run(blocks=2, samples=10))))
    assert set(document) >= TOP
    assert set(document["server"]) >= {"kind", "version"}
    for cell in document["cells"]:
        assert set(cell) >= CELL
        assert set(cell["qps"]) == set(cell["cpu_ratio"]) == {"value", "low", "high"}
        assert set(cell["latency_ms"]) == {"p50", "p95", "p99", "max"}
        assert set(cell["bytes_per_txn"]) == {"to_server", "to_client"}
        assert {"client", "server", "forwarder"} <= set(cell["cpu_us_per_query"])
        assert isinstance(cell["cpu_us_per_query"]["client"], float)


@pytest.fixture(scope="module")
def public() -> Any:
    found = schema()
    jsonschema.Draft202012Validator.check_schema(found)
    return found


@pytest.mark.parametrize("blocks", [0, 1, 3, 8])
def test_every_document_obeys_the_schema(blocks: int, public: Any) -> None:
    jsonschema.validate(json_values(summarise(synthetic_run(blocks=blocks, samples=10))), public)


def test_the_schema_is_closed(public: Any) -> None:
    document = json_values(summarise(synthetic_run(blocks=1, samples=10)))
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({**document, "surprise": 1}, public)
    document["cells"][0].pop("ratio")
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(document, public)
