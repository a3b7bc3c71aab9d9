"""Fields whose names in files differ from those in Python: files keep their names, and older ones are read."""

from __future__ import annotations

import json
from typing import Any

import pytest
from pydantic import BaseModel

from howfar.contract.replication_receipt import NodeFacts
from howfar.contract.server_receipt import HopsReceipt
from howfar.doctor.findings import Gain
from howfar.experiments.network.bandwidth.analysis import Scaling
from howfar.store.records import Window

NODE = {"name": "a", "role": "PRIMARY", "settings": {}, "counters": {}}
STORED: list[tuple[type[BaseModel], str, dict[str, Any], str]] = [
    (Window, "sampling_cpu_ns", {"length_ns": 3, "interface": "", "looks_cpu_ns": 7}, "looks_cpu_ns"),
    (HopsReceipt, "max_processes", {"processes_most": {"server_side": 2}}, "processes_most"),
    (NodeFacts, "mismatches", {**NODE, "unlike": ["a"]}, "unlike"),
    (Gain, "text", {"says": "one", "basis": "two", "saves_ns": None}, "says"),
    (Scaling, "text", {"curves": [], "says": "one"}, "says"),
]


@pytest.mark.parametrize(
    ("kind", "field", "stored", "key"), STORED, ids=[row[3] + " " + row[0].__name__ for row in STORED]
)
def test_a_renamed_field_keeps_its_name_in_files(
    kind: type[BaseModel], field: str, stored: dict[str, Any], key: str
) -> None:
    part = kind.model_validate(stored)
    written = json.loads(part.model_dump_json())
    assert getattr(part, field) not in (None, "", 0, (), {}) and written[key] == stored[key] and field not in written
