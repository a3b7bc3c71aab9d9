"""The contract as files: schemas are current, and the examples mean the same to every reader of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from pydantic import TypeAdapter, ValidationError

from howfar.engine import schema
from howfar.engine.messages import Message

SCHEMAS = Path(__file__).parents[2] / "schema"
EXAMPLES = sorted((SCHEMAS / "examples").glob("*.json"))
REFUSED = sorted((SCHEMAS / "examples" / "refused").glob("*.json"))


def kind_of(example: Path) -> type[Message]:
    """`job.load.tcp.json` is a `LoadJob`."""
    family, name = example.name.split(".")[:2]
    return {"job": schema.JOBS, "command": schema.COMMANDS, "event": schema.EVENTS}[family][name]


def schema_of(example: Path) -> dict[str, Any]:
    family, name = example.name.split(".")[:2]
    loaded: dict[str, Any] = json.loads(
        (SCHEMAS / ("event.json" if family == "event" else f"{family}.{name}.json")).read_text()
    )
    return loaded


def test_files_are_what_the_types_say() -> None:
    stale = [name for name, made in schema.schemas().items() if (SCHEMAS / name).read_text() != schema.text(made)]
    assert not stale, f"run: .venv/bin/python -m howfar.engine.schema   (stale: {', '.join(stale)})"


def test_schemas_are_schemas() -> None:
    for made in schema.schemas().values():
        Draft202012Validator.check_schema(made)


def test_every_message_has_an_example() -> None:
    shown = {kind_of(example) for example in EXAMPLES}
    assert shown == {*schema.JOBS.values(), *schema.COMMANDS.values(), *schema.EVENTS.values()}


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_example_is_valid_and_comes_back_the_same(example: Path) -> None:
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


def test_a_password_is_not_in_what_is_printed() -> None:
    example = SCHEMAS / "examples" / "job.load.unix.json"
    parsed: Message = TypeAdapter(kind_of(example)).validate_json(example.read_text())
    assert "pässword" not in repr(parsed)
