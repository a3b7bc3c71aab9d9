"""A cell's levels are read by the factor, with the type of its levels: a misspelt factor is a type error."""

from __future__ import annotations

import ast
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from subprocess import run

import pytest

from howfar.plan.factors import FACTORS

ROOT = Path(__file__).parents[2]
PRODUCT = ROOT / "python" / "howfar"
READ_BY_NAME = {
    "analysis/cells.py": "application",
    "fleet/testbed.py": "application",
    "lab/laboratory.py": "application",
}
"""Places that read a factor by its name, because it belongs to a slice and they do not."""
PROGRAM = """
from howfar.plan.factors import {factor}

def rtt_ns(cell: dict[str, str | int | float | bool]) -> int:
    return {factor}.level_in(cell)
"""


def _reads_by_name(file: Path) -> Iterator[str]:
    """Names of factors that a file reads from a cell's levels by text: `factors["path"]`, `cell.get("path")`."""
    for node in ast.walk(ast.parse(file.read_text("utf-8"))):
        key: ast.expr
        if isinstance(node, ast.Subscript):
            levels, key = node.value, node.slice
        elif (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and node.func.attr == "get"
            and node.args
        ):
            levels, key = node.func.value, node.args[0]
        else:
            continue
        holder = levels.attr if isinstance(levels, ast.Attribute) else levels.id if isinstance(levels, ast.Name) else ""
        if holder in ("factors", "cell", "levels") and isinstance(key, ast.Constant) and key.value in FACTORS:
            yield str(key.value)


def test_no_level_is_read_by_the_name_of_its_factor() -> None:
    found = {
        str(file.relative_to(PRODUCT)): ", ".join(names)
        for file in sorted(PRODUCT.rglob("*.py"))
        if (names := list(_reads_by_name(file)))
    }
    assert found == {file: name for file, name in READ_BY_NAME.items() if name in FACTORS}


@pytest.mark.slow
def test_a_misspelt_factor_is_a_type_error(tmp_path: Path) -> None:
    def check(factor: str) -> str:
        file = tmp_path / f"{factor.lower()}.py"  # mypy takes a file of the same size and second as unchanged
        file.write_text(PROGRAM.format(factor=factor))
        command = [sys.executable, "-m", "mypy", "--config-file", str(ROOT / "pyproject.toml"), str(file)]
        return run(command, cwd=ROOT, env={**os.environ, "MYPYPATH": "python"}, capture_output=True, text=True).stdout

    assert "Success" in check("RTT_NS")
    assert 'has no attribute "RTT_MS"' in check("RTT_MS")
    assert "Incompatible return value type" in check("PATH"), "its levels are text"
