"""The modules of each crate import one another without cycles."""

from __future__ import annotations

import re
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

CRATES = Path(__file__).parents[1] / "crates"
_PATH = re.compile(r"\b(crate|super|self)((?:::(?:\w+|\{[^;]*?\}))+)", re.DOTALL)
"""A path to an item, `crate::a::b`, or to several, `crate::a::{b, c}`."""


def modules(source: Path) -> dict[str, Path]:
    """Files of a crate by module, `a::b`, without tests; the crate itself is the empty name."""
    found = {}
    for path in sorted(source.rglob("*.rs")):
        parts = [part for part in path.relative_to(source).with_suffix("").parts if part not in ("mod", "lib", "main")]
        if not parts or not parts[-1].endswith("tests"):
            found["::".join(parts)] = path
    return found


def imports(name: str, text: str) -> Iterator[str]:
    """Paths that a module names, as absolute ones."""
    code = re.sub(r"#\[cfg\(test\)\]\s*mod \w+ \{.*|//[^\n]*", "", text, flags=re.DOTALL)
    for base, path in _PATH.findall(code):
        parts = [] if base == "crate" else name.split("::")[: -1 if base == "super" else None]
        for segment in re.findall(r"\w+|\{[^;]*\}", path):
            if segment.startswith("{"):
                yield from ("::".join([*parts, item]) for item in re.findall(r"\w+", segment))
                break
            parts = parts[:-1] if segment == "super" else [*parts, segment]
        else:
            yield "::".join(parts)


def module_of(path: str, known: dict[str, Path]) -> str | None:
    """The module that holds an item."""
    parts = path.split("::")
    return next((name for n in range(len(parts), 0, -1) if (name := "::".join(parts[:n])) in known), None)


@pytest.mark.parametrize("crate", sorted(path.name for path in CRATES.iterdir()))
def test_modules_form_no_cycle(crate: str) -> None:
    known = modules(CRATES / crate / "src")
    graph = {
        name: {module for path in imports(name, file.read_text("utf-8")) if (module := module_of(path, known))} - {name}
        for name, file in known.items()
    }
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(" -> ".join(error.args[1]))
