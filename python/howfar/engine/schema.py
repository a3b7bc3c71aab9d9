"""JSON Schemas of the messages, written to `schema/`: what the Rust side and other readers are held to.

    python -m howfar.engine.schema [DIRECTORY]

Both sides write every field of a message, also one that has a default; so every field is required here.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from howfar.engine import messages

JOBS: dict[str, type[messages.Message]] = {
    "load": messages.LoadJob,
    "page": messages.PageJob,
    "tables": messages.TablesJob,
    "watch": messages.WatchJob,
    "link": messages.LinkJob,
    "echo": messages.EchoJob,
    "rtt": messages.RttJob,
    "goodput": messages.GoodputJob,
    "null": messages.NullJob,
    "pingpong": messages.PingPongJob,
}
"""By subcommand of the engine, which is also the field `job`."""

COMMANDS: dict[str, type[messages.Message]] = {"set": messages.SetLink, "stats": messages.AskStats}
"""Later lines on the stdin of a job that lives on, by the field `command`."""

EVENTS: dict[str, type[messages.Message]] = {
    "ready": messages.Ready,
    "measuring": messages.Measuring,
    "interval": messages.Interval,
    "acknowledgement_log": messages.AcknowledgementLog,
    "finished": messages.Finished,
    "failed": messages.Failed,
    "watching": messages.Watching,
    "watched": messages.Watched,
    "tables_progress": messages.TablesProgress,
    "tables_done": messages.TablesDone,
    "link_ready": messages.LinkReady,
    "link_stats": messages.LinkStats,
    "listening": messages.Listening,
    "rtt": messages.RttResult,
    "goodput": messages.GoodputResult,
    "info": messages.Info,
    "null_ready": messages.NullReady,
    "pingpong": messages.PingPong,
}
"""By the field `event`."""


def schemas() -> dict[str, dict[str, Any]]:
    """Each schema by its file name: one a job, one a command, and one for every event together."""
    made = {f"job.{name}.json": _schema(TypeAdapter(kind), f"job {name}") for name, kind in JOBS.items()}
    made |= {f"command.{name}.json": _schema(TypeAdapter(kind), f"command {name}") for name, kind in COMMANDS.items()}
    definitions: dict[str, Any] = {}
    for name, kind in EVENTS.items():
        one = TypeAdapter(kind).json_schema(mode="serialization")
        definitions |= one.pop("$defs", {})
        definitions[name] = one
    made["event.json"] = {
        **_head("event: one line of the engine's output"),
        "oneOf": [{"$ref": f"#/$defs/{name}"} for name in EVENTS],
        "$defs": definitions,
    }
    return made


def text(schema: dict[str, Any]) -> str:
    """A schema as its file holds it: sorted, so that it changes only with what it says."""
    return json.dumps(schema, indent=2, sort_keys=True, ensure_ascii=False) + "\n"


def write(directory: Path) -> None:
    """Write every schema into `directory`."""
    for name, schema in schemas().items():
        (directory / name).write_text(text(schema), encoding="utf-8")


def _schema(adapter: TypeAdapter[Any], title: str) -> dict[str, Any]:
    return {**adapter.json_schema(mode="serialization"), **_head(title)}


def _head(title: str) -> dict[str, Any]:
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": f"howfar, {title}"}


if __name__ == "__main__":
    write(Path(sys.argv[1]) if len(sys.argv) > 1 else Path("schema"))
