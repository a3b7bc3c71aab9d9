"""What a page job may not ask for beyond its schema; `crates/contract/tests/schema.rs` holds the engine to the same."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from howfar.engine.messages import PageScript
from howfar.engine.rules import MOST_TURNS, round_trips_of

EXAMPLE = Path(__file__).parents[2] / "schema" / "examples" / "job.page.script.json"


def script(**changes: Any) -> dict[str, Any]:
    """Of the example: 26 turns in each of 10 rounds."""
    held: dict[str, Any] = json.loads(EXAMPLE.read_text())["application"]
    return held | changes


def test_two_statements_of_one_name_are_refused() -> None:
    with pytest.raises(ValidationError, match="two statements have one name"):
        PageScript.model_validate(script(statements=2 * script()["statements"]))


def test_a_page_has_a_bounded_number_round_trips_sentence() -> None:
    most = MOST_TURNS // 26
    assert round_trips_of(PageScript.model_validate(script(rounds=most))) <= MOST_TURNS
    with pytest.raises(ValidationError, match="at most 100000 turns"):
        PageScript.model_validate(script(rounds=most + 1))


@pytest.mark.parametrize(("each", "good"), [(63, True), (64, False)])
def test_a_reply_is_bounded(each: int, good: bool) -> None:
    """64 values of a MiB fit only without their keys."""
    held = script()
    held["redis_keys"]["value"]["bytes"] = 2**20
    held["steps"][1]["keys_each"] = each
    if good:
        PageScript.model_validate(held)
        return
    with pytest.raises(ValidationError, match="64 MiB at most"):
        PageScript.model_validate(held)
