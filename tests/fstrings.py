"""Sentences in code: f-strings with three or more words, counted for each folder of the product. Sentences belong into `texts.py`.

`python tests/fstrings.py FOLDER...` lists them.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

PRODUCT = Path(__file__).parents[1] / "python" / "howfar"
MIN_WORDS = 3
RUNS_TRIALS = {
    "plan",
    "factors",
    "distances",
    "load",
    "preflight",
    "fault",
    "lab",
    "application",
    "hosts",
    "inserts",
    "lab_command",
    "server_groups",
}
"""Modules and folders of a slice for plans, the laboratory and the runner."""

_WORD = re.compile(r"""[("'*]*[A-Za-z][A-Za-z']+[.,;:?!)"']*""")


def sentences_in_code(folder: Path) -> Iterator[tuple[Path, ast.JoinedStr]]:
    """The f-strings of a folder with at least `MIN_WORDS` literal words, with their files. A slice's parts that run trials are not
    among them: their sentences are errors."""
    for path in sorted(folder.rglob("*.py")):
        if folder.name == "experiments" and {path.stem, path.parent.name} & RUNS_TRIALS:
            continue
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.JoinedStr) and len(literal_words(node)) >= MIN_WORDS:
                yield path, node


def literal_words(node: ast.JoinedStr) -> list[str]:
    """The words of an f-string outside its fields. A part of code, a path or an option, such as `--on` or `a_b`, is no word."""
    literals = (part.value for part in node.values if isinstance(part, ast.Constant))
    tokens = " ".join(str(literal) for literal in literals).split()
    return [token for token in tokens if _WORD.fullmatch(token)]


if __name__ == "__main__":
    for name in sys.argv[1:]:
        for path, node in sentences_in_code(PRODUCT / name):
            print(f"{path}:{node.lineno}: {ast.unparse(node)}")
