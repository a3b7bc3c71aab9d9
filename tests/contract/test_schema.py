"""The contract's files: the schemas are current, and every parser accepts the same examples."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from pydantic import TypeAdapter, ValidationError

from howfar.contract.generate import SCHEMA, generated
from howfar.contract.message import Message
from howfar.contract.messages import COMMANDS, EVENTS, JOBS
from howfar.engine.process import find_engine

EXAMPLES = sorted((SCHEMA.parent / "examples").glob("*.json"))
REFUSED = sorted((SCHEMA.parent / "examples" / "refused").glob("*.json"))
CONTRACT: dict[str, Any] = json.loads(SCHEMA.read_text())


def kind_of(example: Path) -> type[Message]:
    """`job.load.tcp.json` is a `LoadJob`."""
    family, name = example.name.split(".")[:2]
    return {"job": JOBS, "command": COMMANDS, "event": EVENTS}[family][name]


def schema_of(example: Path) -> dict[str, Any]:
    return {"$ref": f"#/$defs/{kind_of(example).__name__}", "$defs": CONTRACT["$defs"]}


def test_the_python_types_are_generated_from_the_schema() -> None:
    for path, text in generated(CONTRACT).items():
        assert path.read_text() == text, "run: .venv/bin/python -m howfar.contract.generate"


def test_the_engine_prints_the_schema() -> None:
    """The crates' tests compare the file with the sources; this test compares it with the engine that is used."""
    printed = subprocess.run([find_engine(), "schema"], capture_output=True, text=True, check=True).stdout
    assert json.loads(printed) == CONTRACT, (
        "run: howfar-engine schema > schema/contract.json, then howfar.contract.generate"
    )


def test_the_schema_is_a_schema() -> None:
    Draft202012Validator.check_schema(CONTRACT)


def test_every_message_has_an_example() -> None:
    shown = {kind_of(example) for example in EXAMPLES}
    assert shown == {*JOBS.values(), *COMMANDS.values(), *EVENTS.values()}


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_is_valid_and_unchanged_by_parsing(example: Path) -> None:
    held = json.loads(example.read_text())
    Draft202012Validator(schema_of(example)).validate(held)
    parsed: Message = TypeAdapter(kind_of(example)).validate_python(held)
    assert json.loads(parsed.model_dump_json()) == held


@pytest.mark.parametrize("example", REFUSED, ids=lambda path: path.stem)
def test_refused_example_is_refused(example: Path) -> None:
    held = json.loads(example.read_text())
    assert not Draft202012Validator(schema_of(example)).is_valid(held)
    with pytest.raises(ValidationError):
        TypeAdapter(kind_of(example)).validate_python(held)


def test_a_message_is_printed_without_its_password() -> None:
    example = SCHEMA.parent / "examples" / "job.load.unix.json"
    parsed: Message = TypeAdapter(kind_of(example)).validate_json(example.read_text())
    assert "pässword" not in repr(parsed)
