"""`schema/bench.json` describes what `howfar bench … --json` writes; HOWFAR_GOLDEN=write renews it."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from howfar.bench.calibration import Calibration
from howfar.bench.comparison import Comparison
from howfar.bench.links.figures import LinkBench

SCHEMA = Path(__file__).parents[2] / "schema" / "bench.json"
KINDS: dict[str, type[BaseModel]] = {"calibrate": Calibration, "engine": Comparison, "link": LinkBench}


def test_the_schema_of_the_benches_is_current() -> None:
    found, rest = models_json_schema([(kind, "serialization") for kind in KINDS.values()], title="howfar bench")
    properties = {name: found[kind, "serialization"] for name, kind in KINDS.items()}
    schema = {"$schema": "https://json-schema.org/draft/2020-12/schema", **rest, "properties": properties}
    text = json.dumps(schema, indent=2, ensure_ascii=False) + "\n"
    if os.environ.get("HOWFAR_GOLDEN") == "write":
        SCHEMA.write_text(text, "utf-8")
    assert text == SCHEMA.read_text("utf-8"), "HOWFAR_GOLDEN=write renews it"


@pytest.mark.parametrize("kind", KINDS.values())
def test_results_have_no_fields_beyond_the_schema(kind: type[BaseModel]) -> None:
    assert kind.model_config["extra"] == "forbid"
