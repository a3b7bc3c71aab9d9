"""Limits of lines for each folder, and of untyped evidence. A limit is lowered when a folder shrinks; a rise needs a reason."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parents[1]
PRODUCT = ROOT / "python" / "howfar"
SPARE = 200
"""Lines by which a folder may be below its limit before the limit must be lowered."""

PYTHON_LINES = {
    "address": 2100,
    "analysis": 4100,
    "bench": 3100,
    "bottleneck": 2100,
    "cli": 9300,
    "clients": 600,
    "contract": 4500,
    "distance": 2600,
    "doctor": 5500,
    "engine": 900,
    "experiments": 21900,
    "fleet": 5000,
    "lab": 10200,
    "load": 3000,
    "model": 600,
    "paths": 1800,
    "plan": 2200,
    "recording": 8600,
    "report": 4050,
    "runner": 1900,
    "services": 300,
    "setup": 600,
    "stats": 1300,
    "store": 1800,
    ".": 1650,
}
RUST_LINES = {
    "contract": 4350,
    "engine": 4450,
    "link": 8600,
    "load": 21700,
    "null": 3100,
    "record": 7100,
    "tap": 3100,
    "wire": 8650,
}
TEST_LINES = {
    "unit": 39700,
    "lab": 15400,
    "contract": 950,
    "physics": 800,
}

UNTYPED_LINES = 60
"""Lines of the product with `dict[str, Any]` or `Mapping[str, Any]`: each where JSON, TOML or rows of SQL come in or go out."""
TEXT_READS = 0
"""Places that read a field of a receipt by its name as text."""

_UNTYPED = re.compile(r"\b(?:dict|Mapping)\[str, Any\]")
_TEXT_READ = re.compile(r"number_in\(|\breceipt(?:\.receipt)?(?:\[\"|\.get\(\")|\.receipt(?:\[\"|\.get\(\")")


def lines(folder: Path, suffix: str = "*.py") -> int:
    """Lines of all files below a folder."""
    return sum(path.read_text("utf-8").count("\n") for path in folder.rglob(suffix))


def matching(pattern: re.Pattern[str]) -> Counter[str]:
    """Number of lines that match, by file of the product."""
    found: Counter[str] = Counter()
    for path in sorted(PRODUCT.rglob("*.py")):
        count = sum(pattern.search(line) is not None for line in path.read_text("utf-8").splitlines())
        if count:
            found[str(path.relative_to(PRODUCT))] = count
    return found


def check(sizes: dict[str, int], limits: dict[str, int]) -> None:
    """Print each size beside its limit; fail if one is above it, or so far below that the limit is stale."""
    print(*(f"{name:12} {size:6} of {limits.get(name, 0):6}" for name, size in sizes.items()), sep="\n")
    assert sizes.keys() == limits.keys(), "every folder has a limit"
    assert {name: size for name, size in sizes.items() if size > limits[name]} == {}
    assert {name: size for name, size in sizes.items() if size < limits[name] - SPARE} == {}, "lower the limit"


def test_each_python_folder_keeps_its_limit() -> None:
    folders = {path.name: lines(path) for path in sorted(PRODUCT.iterdir()) if (path / "__init__.py").exists()}
    check(folders | {".": sum(path.read_text("utf-8").count("\n") for path in PRODUCT.glob("*.py"))}, PYTHON_LINES)


def test_each_crate_keeps_its_limit() -> None:
    check({path.name: lines(path, "*.rs") for path in sorted((ROOT / "crates").iterdir())}, RUST_LINES)


def test_the_tests_keep_their_limits() -> None:
    check({name: lines(ROOT / "tests" / name) for name in TEST_LINES}, TEST_LINES)


def test_untyped_evidence_becomes_less() -> None:
    untyped, reads = matching(_UNTYPED), matching(_TEXT_READ)
    print(f"{untyped.total()} untyped lines, {reads.total()} reads by text:", *reads.most_common(), sep="\n")
    assert untyped.total() <= UNTYPED_LINES
    assert reads.total() <= TEXT_READS
