"""Files of the core whose code names the matter of an experiment, docstrings left out. `python tests/core_names.py` lists them."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

PRODUCT = Path(__file__).parents[1] / "python" / "howfar"
CORE = ("plan", "runner", "store", "analysis", "bottleneck", "model", "report")
_MATTER = re.compile(r"page|replic|galera|compress|encrypt|crash|fallback", re.IGNORECASE)
_OTHER_MEANINGS = re.compile(r"\b(decompress|pages_read|incompressible)\b")
"""Words with another meaning: a function of zlib, a server's count of pages of its files, and a kind of contents of tables."""


def core_files() -> list[Path]:
    return [path for folder in CORE for path in sorted((PRODUCT / folder).rglob("*.py"))]


def names_matter(path: Path) -> list[str]:
    """The names and texts in the code of a file that are about an experiment."""
    return [
        word for word in _words(ast.parse(path.read_text("utf-8"))) if _MATTER.search(_OTHER_MEANINGS.sub("", word))
    ]


def _words(tree: ast.Module) -> Iterator[str]:
    bodies = (node.body for node in ast.walk(tree) if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef))
    docstrings = {id(each.value) for body in bodies for each in body if isinstance(each, ast.Expr)}
    for node in ast.walk(tree):
        match node:
            case ast.Name(id=word) | ast.Attribute(attr=word) | ast.arg(arg=word) | ast.alias(name=word):
                yield word
            case ast.FunctionDef(name=word) | ast.ClassDef(name=word):
                yield word
            case ast.keyword(arg=str(word)):
                yield word
            case ast.ImportFrom(module=str(word)):
                yield word
            case ast.Constant(value=str(word)) if id(node) not in docstrings:
                yield word


if __name__ == "__main__":
    for path in core_files():
        if words := names_matter(path):
            print(f"{path.relative_to(PRODUCT)}: {' '.join(', '.join(dict.fromkeys(words)).split())[:100]}")
