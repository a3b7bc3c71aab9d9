"""Python types of the contract, from the schema that the engine prints.

    howfar-engine schema > schema/contract.json
    python -m howfar.contract.generate   # writes messages.py, *_messages.py and plan/engine_limits.py

The schema describes each message under its name. A field's `formerName` is accepted too, because run files may have it. What Python
adds is here: names for some types, and unions of events. Rules that concern several fields are the engine's:
`engine.process.check_job` asks it.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import textwrap
from collections.abc import Iterable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Final

JsonSchema = dict[str, Any]
"""A JSON schema, or a part of one."""

HERE: Final = Path(__file__).parent
SCHEMA: Final = HERE.parents[2] / "schema" / "contract.json"
TARGET: Final = HERE / "messages.py"
PING_TARGET: Final = HERE / "ping_messages.py"
"""The messages for timing a server, with all that they refer to. `howfar TARGET` imports only these, because each costs import
time."""
RECEIPT_TARGET: Final = HERE / "receipt_messages.py"
"""The messages that receipts and run files hold. What reads a run file needs only these."""
LIMITS: Final = HERE.parent / "plan" / "engine_limits.py"
"""Limits for plans, which do not import the engine's messages but must accept only what the engine can run."""
TAGS: Final = ("job", "command", "event")

_PING_MESSAGES: Final = (
    "PingJob", "OpenConnection", "AskInTurn", "FetchAnswer", "Opened", "NotOpened", "Asked", "Fetched", "Failed", "NullJob",
    "NullReady", "Info",
)  # fmt: skip
_STORED_FIELDS: Final = {
    "WindowFigures": (
        "Finished",
        (
            "elapsed_ns", "transactions", "queries", "round_trips", "rows", "bytes", "errors", "cpu", "histograms", "services",
            "app_counters",
        ),
    ),
    "IntervalFigures": (
        "Interval",
        ("start_ns", "length_ns", "transactions", "queries", "errors", "p50_ns", "p95_ns", "p99_ns", "max_ns"),
    ),
}  # fmt: skip
"""The messages of which run files keep some fields, and these fields, by the name of the type that has them alone."""
_RECEIPT_MESSAGES: Final = ("Receipt", "DirectionStats", "Account", *_STORED_FIELDS)
_NAMED_ENUMS: Final = {
    "PsMode": "PsMode",
    "Sysbench.kind": "SysbenchKind",
    "AnswerJob.speech": "Speech",
    "ServiceUse.service": "ServiceName",
    "Towards": "Towards",
}
"""Enumerations that Python refers to, by their position in the schema. All others are written where they are used."""
_DEFAULTS: Final = {"Sysbench.kind": "oltp_read_only"}
_CONSTANTS: Final = {
    "DELAY_MAX_NS": ("Direction", "delay_ns"),
    "RATE_MAX_BPS": ("Direction", "rate_bps"),
    "LONGEST_VALUE": ("FixedSize", "bytes"),
}
"""Maximum values of fields, as constants to which Python refers."""
_BASES: Final = ("ServerLogin",)
"""Messages that are base classes: a message that contains all their fields, with the same types, inherits these."""
_BOUNDS: Final = {
    "minimum": "ge", "maximum": "le", "exclusiveMinimum": "gt", "exclusiveMaximum": "lt", "minLength": "min_length",
    "maxLength": "max_length", "minItems": "min_length", "maxItems": "max_length",
}  # fmt: skip
"""JSON schema's names and their pydantic equivalents."""
_MESSAGES_IN_PLANS: Final = ("Sysbench", "Distribution", "KeyValue")
"""Messages whose fields also exist in plans, under the same names."""
_EVENTS: Final = {
    "LoadEvent": ("Ready", "Begun", "Measuring", "Interval", "AcknowledgementLog", "Finished", "Failed"),
    "LinkEvent": ("LinkReady", "LinkStats", "Failed"),
    "ProbeEvent": ("Listening", "RttResult", "GoodputResult", "Failed"),
}
_LIMITS_HEADER: Final = '''"""Limits of the engine for plans. Generated from `schema/contract.json` by `generate.py`: do not edit."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field
'''
# Annotations are not postponed: pydantic would evaluate their text for every class, a fifth of the module's import time.
_HEADER: Final = (
    '"""{} Generated from `schema/contract.json` by `generate.py`: do not edit.\n{}"""\n\n'
    "# ruff: noqa: E402, I001, RUF100\n"
)
_IMPORT_LINES: Final = """from typing import Annotated, Final, Literal, get_args

from pydantic import AliasChoices, Field

from howfar.contract.message import Message
"""
_RECEIPT_IMPORT_LINES: Final = """from typing import Literal

from pydantic import AliasChoices, Field

from howfar.contract.message import Count, Message
"""
_UNITS_TEXT: Final = """
The engine reads a job as JSON from its stdin and writes events as JSON lines to its stdout. Times are integers in nanoseconds, sizes
are in bytes, and rates in bits per second.
"""


class Generator:
    """Generates the modules in one pass over the schema's definitions. Each definition comes after those that it refers to."""

    def __init__(self, schema: JsonSchema) -> None:
        self.schema = schema
        self.defs: dict[str, JsonSchema] = {**schema["$defs"]}
        for name, (message, fields) in _STORED_FIELDS.items():
            self.defs[name] = _with_fields(self.defs[message], fields) | {
                "description": f"The fields of `{message}` that a run file keeps."
            }
        self.done: set[str] = set()
        self.parts: list[str] = []
        self.tagged: dict[str, dict[str, str]] = {tag: {} for tag in TAGS}
        self.bounded = True
        self.counts = False
        """Whether whole numbers from 0 on are of the type `Count`."""

    def texts(self) -> dict[Path, str]:
        """The modules of messages, before they are formatted."""
        ping_parts = self._group(_PING_MESSAGES)
        events = self._by_tag("PING_EVENTS", "event")
        receipt_parts = self._group(_RECEIPT_MESSAGES)
        # First the messages that the engine reads: their bounds are checked. Of those that it writes, only what a run file keeps has
        # bounds.
        names = sorted(self.defs, key=lambda name: ("event" in self.defs[name].get("properties", {}), name))
        for name in names:
            self._define(name)
        version = (
            f"PROTOCOL_VERSION: Final = {self.schema['version']}\n"
            '"""Version of the messages. The engine refuses a job of another version."""\n\n'
        )
        constants = (
            f"LONGEST_NS: Final = {self.schema['longest_ns']:_}\n"
            '"""Maximum value of every field that holds a time: one day. A longer time probably has the wrong unit."""\n\n'
        )
        for name, (part, field) in _CONSTANTS.items():
            constants += f"{name}: Final = {self.defs[part]['properties'][field]['maximum']:_}\n"
        unions = [self._union(name, kinds, "event") for name, kinds in _EVENTS.items()]
        unions.append(self._union("Event", tuple(sorted(self.tagged["event"].values())), "event"))
        unions.append("SYSBENCH_KINDS: Final[tuple[SysbenchKind, ...]] = get_args(SysbenchKind)")
        unions += [self._by_tag(f"{tag.upper()}S", tag) for tag in TAGS]
        return {
            PING_TARGET: _HEADER.format("The messages that measure latency: a part of `messages.py`.", "")
            + "\n\n".join(
                [_IMPORT_LINES.replace(", get_args", "").replace("AliasChoices, ", ""), version, *ping_parts, events]
            )
            + "\n",
            RECEIPT_TARGET: _HEADER.format("The messages that receipts hold: a part of `messages.py`.", "")
            + "\n\n".join([_RECEIPT_IMPORT_LINES, *receipt_parts]),
            TARGET: _HEADER.format("The messages between Python and the engine.", _UNITS_TEXT)
            + _IMPORT_LINES
            + _reexport("ping_messages", [*ping_parts, "PROTOCOL_VERSION = "])
            + _reexport("receipt_messages", receipt_parts)
            + "\n\n"
            + constants
            + "\n\n".join([*self.parts, *unions])
            + "\n",
        }

    def _group(self, names: tuple[str, ...]) -> list[str]:
        """Definitions of these messages and of all that they refer to, without those that are defined already."""
        for name in names:
            self._define(name)
        parts, self.parts = self.parts, []
        return parts

    def _by_tag(self, name: str, tag: str) -> str:
        """A table of the messages defined so far, by the value of a field."""
        body = "".join(f"{value!r}: {kind}," for value, kind in sorted(self.tagged[tag].items()))
        return f'{name}: Final[dict[str, type[Message]]] = {{{body}}}\n"""The classes of messages by their field `{tag}`."""'

    def limits(self) -> str:
        """The module of types with the limits of fields that plans have, before it is formatted."""
        lines = [_LIMITS_HEADER]
        for name in _MESSAGES_IN_PLANS:
            for field, kind in self.defs[name]["properties"].items():
                if kind.get("type") in ("integer", "number") and (bounds := self._bounds(kind)):
                    alias = "".join(part.capitalize() for part in field.split("_"))
                    lines.append(f"{alias} = Annotated[{self._type(kind)}, Field({', '.join(bounds)})]")
        return "\n".join(lines) + "\n"

    def _define(self, name: str) -> None:
        if name in self.done:
            return
        self.done.add(name)
        part = self.defs[name]
        for other in [*_references(part), *self._bases(name)]:
            self._define(other)
        if "properties" in part or part.get("type") == "object":
            self.parts.append(self._model(name, part))
        elif "$ref" in part.get("oneOf", [{}])[0]:
            kinds = tuple(_target(choice) for choice in part["oneOf"])
            self.parts.append(self._union(name, kinds, "kind"))
        elif name in _NAMED_ENUMS:
            self.parts.append(f"{_NAMED_ENUMS[name]} = {_literal(_values(part) or [])}")

    def _union(self, name: str, kinds: tuple[str, ...], tag: str) -> str:
        return f'{name} = Annotated[{" | ".join(kinds)}, Field(discriminator="{tag}")]'

    def _model(self, name: str, part: JsonSchema) -> str:
        self.counts = name in self._stored_names
        self.bounded = self.counts or ("event" not in part.get("properties", {}) and name in self._sent_names)
        bases = self._bases(name)
        inherited = {field for base in bases for field in self.defs[base]["properties"]}
        lines = [f"class {name}({', '.join(bases) or 'Message'}):"]
        if "description" in part:
            lines.append(_docstring(part["description"]))
        before: list[str] = []
        for field, kind in part.get("properties", {}).items():
            if field in inherited:
                continue
            for tag in TAGS:
                if field == tag and "const" in kind:
                    self.tagged[tag][kind["const"]] = name
            key = f"{name}.{field}"
            annotation = self._type(kind)
            if key in _NAMED_ENUMS:
                before.append(f"{_NAMED_ENUMS[key]} = {annotation}\n\n\n")
                annotation = _NAMED_ENUMS[key]
            lines.append(f"    {field}: {annotation}{self._default(key, kind, field in part.get('required', ()))}")
            if "description" in kind:
                lines.append(_docstring(kind["description"]))
        if len(lines) == 1:
            lines.append("    pass")
        return "".join(before) + "\n".join(lines)

    def _bases(self, name: str) -> list[str]:
        fields = self.defs[name].get("properties", {}).items()
        return [base for base in _BASES if base != name and self.defs[base]["properties"].items() <= fields]

    @cached_property
    def _sent_names(self) -> set[str]:
        """Definitions that jobs and commands refer to."""
        return self._reachable(
            name for name, part in self.defs.items() if {"job", "command"} & set(part.get("properties", {}))
        )

    @cached_property
    def _stored_names(self) -> set[str]:
        """Definitions of which a run file keeps all fields."""
        return self._reachable(_STORED_FIELDS)

    def _reachable(self, names: Iterable[str]) -> set[str]:
        """These definitions and all that they refer to."""
        to_visit = list(names)
        visited: set[str] = set()
        while to_visit:
            name = to_visit.pop()
            if name not in visited:
                visited.add(name)
                to_visit += _references(self.defs[name])
        return visited

    def _type(self, kind: JsonSchema) -> str:
        if "$ref" in kind:
            return self._type_of_definition(_target(kind))
        values = _values(kind)
        if values is not None:
            return _literal(values)
        if "anyOf" in kind:
            return " | ".join(self._type(choice) for choice in kind["anyOf"])
        json_type = kind["type"]
        if isinstance(json_type, list):
            return " | ".join(self._type({**kind, "type": member}) for member in json_type)
        if json_type == "array":
            inner = self._type(kind["items"])
            bounds = self._bounds(kind["items"])
            return f"tuple[Annotated[{inner}, Field({', '.join(bounds)})], ...]" if bounds else f"tuple[{inner}, ...]"
        if json_type == "object":
            return f"dict[str, {self._type(kind['additionalProperties'])}]"
        if self.counts and _is_count(kind):
            return "Count"
        return {"string": "str", "integer": "int", "number": "float", "boolean": "bool", "null": "None"}[json_type]

    def _type_of_definition(self, name: str) -> str:
        part = self.defs[name]
        if name in _NAMED_ENUMS:
            return _NAMED_ENUMS[name]
        if "properties" in part or "$ref" in part.get("oneOf", [{}])[0]:
            return name
        return self._type(part)

    def _bounds(self, kind: JsonSchema) -> list[str]:
        if not self.bounded or "const" in kind:
            return []
        bounds = [
            f"{pydantic_name}={_number(kind[schema_name])}"
            for schema_name, pydantic_name in _BOUNDS.items()
            if schema_name in kind and not (_is_count(kind) and self.counts and kind[schema_name] == 0)
        ]
        return [*bounds, f'pattern=r"{kind["pattern"]}"'] if "pattern" in kind else bounds

    def _default(self, key: str, kind: JsonSchema, required: bool) -> str:
        options = self._bounds(kind)
        if kind.get("writeOnly"):
            options.append("repr=False")
        if "formerName" in kind:
            options.append(f"validation_alias=AliasChoices({key.split('.')[1]!r}, {kind['formerName']!r})")
        value: str | None = None
        if "const" in kind:
            value = repr(kind["const"])
        elif key in _DEFAULTS:
            value = repr(_DEFAULTS[key])
        elif "default" in kind:
            value = self._value(kind, kind["default"])
        elif not required:
            value = "None"
        if not options and not (value or "").startswith("{"):
            return f" = {value}" if value is not None else ""
        return f" = Field({', '.join([*([f'default={value}'] if value is not None else []), *options])})"

    def _value(self, kind: JsonSchema, value: Any) -> str:
        """A default as an expression; of a message, only the fields that differ from its own defaults."""
        if isinstance(value, list):
            return "(" + "".join(f"{item!r}, " for item in value) + ")"
        if not isinstance(value, dict) or "$ref" not in kind:
            return _number(value) if isinstance(value, int) and not isinstance(value, bool) else repr(value)
        name = _target(kind)
        part = self.defs[name]
        if "oneOf" in part:
            kinds = [_target(choice) for choice in part["oneOf"]]
            name = next(
                candidate
                for candidate in kinds
                if self.defs[candidate]["properties"]["kind"].get("const") == value["kind"]
            )
            part = self.defs[name]
        arguments = []
        for field, field_schema in part.get("properties", {}).items():
            if "const" not in field_schema and field in value and value[field] != field_schema.get("default"):
                arguments.append(f"{field}={self._value(field_schema, value[field])}")
        return f"{name}({', '.join(arguments)})"


def _target(kind: JsonSchema) -> str:
    return str(kind["$ref"]).removeprefix("#/$defs/")


def _is_count(kind: JsonSchema) -> bool:
    """Whether the type has whole numbers from 0, or from a higher minimum, on."""
    return "minimum" in kind and "integer" in kind["type"]


def _with_fields(part: JsonSchema, fields: Sequence[str]) -> JsonSchema:
    """The definition of a message with only these fields."""
    required = [field for field in part["required"] if field in fields]
    return {**part, "properties": {field: part["properties"][field] for field in fields}, "required": required}


def _references(part: Any) -> list[str]:
    """Definitions that a schema refers to, in order."""
    if isinstance(part, dict):
        target = [_target(part)] if "$ref" in part else []
        return target + [name for key, child in part.items() if key != "default" for name in _references(child)]
    if isinstance(part, list):
        return [name for child in part for name in _references(child)]
    return []


def _values(part: JsonSchema) -> list[Any] | None:
    """Values of an enumeration, in whichever form it is written."""
    if "const" in part:
        return [part["const"]]
    if "enum" in part:
        return list(part["enum"])
    if "oneOf" in part:
        return [value for choice in part["oneOf"] for value in _values(choice) or []]
    return None


def _literal(values: list[Any]) -> str:
    return f"Literal[{', '.join(repr(value) for value in values)}]"


def _reexport(module: str, parts: list[str]) -> str:
    defined = re.findall(r"^(?:class )?(\w+)(?:\(| = )", "\n".join(parts), re.MULTILINE)
    names = "".join(f"{name} as {name}," for name in sorted(defined))
    return f"from howfar.contract.{module} import ({names})\n"


def _number(value: Any) -> str:
    return f"{value:_}" if isinstance(value, int) and value >= 10_000 else repr(value)


def _docstring(text: str) -> str:
    paragraphs = [" ".join(paragraph.split()) for paragraph in text.split("\n\n")]
    wrapped = ["\n".join(textwrap.wrap(paragraph, 126, break_long_words=False)) for paragraph in paragraphs]
    lines = "\n\n".join(wrapped).split("\n")
    body = "\n".join(f"    {line}" if line else "" for line in lines).strip()
    return f'    """{body}\n    """' if len(paragraphs) > 1 else f'    """{body}"""'


def generated(schema: JsonSchema) -> dict[Path, str]:
    """The text of each module, formatted."""
    texts = {**Generator(schema).texts(), LIMITS: Generator(schema).limits()}
    return {path: _format(path, text) for path, text in texts.items()}


def _format(path: Path, text: str) -> str:
    command = [sys.executable, "-m", "ruff", "format", "--stdin-filename", str(path), "-"]
    return subprocess.run(command, input=text, capture_output=True, text=True, check=True).stdout


if __name__ == "__main__":
    for path, text in generated(json.loads(SCHEMA.read_text(encoding="utf-8"))).items():
        path.write_text(text, encoding="utf-8")
