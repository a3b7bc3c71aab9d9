"""Each slice can be removed: without it, the rest has sound types, lists its plans and passes its unit tests."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from howfar.slices import SLICES
from tests.core_names import core_files, names_matter
from tests.slices import ROOT, copy_without

_WORDS_OF_ALL = "golden or frozen or schema or tidy or sizes or documents or documentation"
"""Tests of words and lists that name every slice: the keys of the JSON report, goldens, documents, sizes of folders."""
_MARKS = "not lab and not slow and not thorough and not release and not alone"


@pytest.mark.parametrize("slice_name", SLICES)
@pytest.mark.thorough
@pytest.mark.timeout(1800)
def test_the_rest_works_without_a_slice(slice_name: str, tmp_path: Path) -> None:
    removed = copy_without(slice_name, tmp_path)
    # Without what the fixtures of this process have set.
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("HOWFAR_", "PYTEST_"))}
    environment = {**inherited, "PYTHONPATH": str(tmp_path / "python")}

    def run(*command: str) -> str:
        done = subprocess.run(
            [sys.executable, "-m", *command], cwd=tmp_path, env=environment, capture_output=True, text=True
        )
        assert done.returncode == 0, f"{removed}\n{done.stdout[-8000:]}{done.stderr[-2000:]}"
        return done.stdout

    run("mypy", "python", "tests")
    assert "paths" in run("howfar", "plans")
    with TemporaryDirectory() as short:  # paths of Unix sockets must be short
        options = ("-q", "-n", "2", "--dist", "loadfile", "-p", "no:cacheprovider", f"--basetemp={short}/t")
        run("pytest", *options, "-m", _MARKS, "-k", f"not ({_WORDS_OF_ALL})", "tests/unit")


def test_a_slice_is_a_folder_with_a_name_of_its_own() -> None:
    assert len(set(SLICES)) == len(SLICES)
    assert all((ROOT / "python" / "howfar" / "experiments" / name / "__init__.py").is_file() for name in SLICES)


NAMING_FILES = 0
"""Number of files of the core that name an experiment's matter; only to be lowered."""


def test_the_core_names_no_experiment() -> None:
    found = [path.name for path in core_files() if names_matter(path)]
    assert len(found) == NAMING_FILES, found
