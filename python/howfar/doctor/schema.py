"""The JSON Schema of an examination, written to `schema/doctor.json`.

python -m howfar.doctor.schema [FILE]
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from howfar.doctor.findings import Examination


def text() -> str:
    """As its file holds it."""
    head = {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "howfar, an examination by the doctor"}
    made = {**Examination.model_json_schema(mode="serialization"), **head}
    return json.dumps(made, indent=2, sort_keys=True, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    Path(sys.argv[1] if len(sys.argv) > 1 else "schema/doctor.json").write_text(text(), encoding="utf-8")
