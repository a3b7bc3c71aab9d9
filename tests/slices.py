"""A copy of the project without one slice: without its folder, name and recorded runs, and the tests that import it."""

from __future__ import annotations

import ast
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
_IGNORED = shutil.ignore_patterns("__pycache__", "*.pyc", ".*", "target")


def copy_without(slice_name: str, target: Path) -> list[Path]:
    """Copy the project to `target` without the slice; returns the tests that were removed with it."""
    shutil.copytree(ROOT, target, ignore=_IGNORED, symlinks=True, dirs_exist_ok=True)
    folder = target / "python" / "howfar" / "experiments" / slice_name
    plans = [plan.stem for plan in folder.glob("plans/*.toml")]
    shutil.rmtree(folder)
    registry = target / "python" / "howfar" / "slices.py"
    text, found = re.subn(rf'"{slice_name}"(, )?', "", registry.read_text("utf-8"), count=1)
    assert found, f"{slice_name} is no slice"
    registry.write_text(text, "utf-8")
    for name in (slice_name, *plans):
        for recorded in (target / "tests" / "data").rglob(f"{name}-*"):
            recorded.unlink()
    removed = list(_dependent_tests(target, f"howfar.experiments.{slice_name}"))
    for path in removed:
        path.unlink()
    return [path.relative_to(target) for path in removed]


def _dependent_tests(target: Path, package: str) -> Iterator[Path]:
    """Test modules that import the package, or a module that does."""
    modules = {path: set(_imported(path)) for path in (target / "tests").rglob("*.py")}
    gone: set[str] = {package}
    while True:
        found = [path for path, imported in modules.items() if any(_is_below(name, gone) for name in imported)]
        if not found:
            return
        for path in found:
            del modules[path]
            gone.add(".".join(path.relative_to(target).with_suffix("").parts))
            yield path


def _imported(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def _is_below(name: str, packages: set[str]) -> bool:
    return any(name == package or name.startswith(f"{package}.") for package in packages)
