"""`./test`: if few tests of the lab part fail, they are run once more, alone; those that then pass count as passed, and are named."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.thorough]
ROOT = Path(__file__).parents[2]
OTHERS = ("ruff", "lint-imports", "mypy", "cargo")
"""Programs replaced by scripts that find nothing wrong."""
CONFTEST = """
import pytest
from pathlib import Path
@pytest.fixture(scope="module")
def shared():
    once("shared")
def once(name):
    seen = Path(__file__).with_name(name)
    if not seen.exists():
        seen.touch()
        raise AssertionError("others had the machine")
def pytest_configure(config):
    config.addinivalue_line("markers", "lab: ...")
    config.addinivalue_line("markers", "slow: ...")
    config.addinivalue_line("markers", "alone: ...")
    config.addinivalue_line("markers", "thorough: ...")
"""
RIGHT = "def test_right(): pass\n"
SKIPPED = "def test_skipped(): pytest.skip('not here')\n"
ONCE = "@pytest.mark.parametrize('word', ['a b', 'c'])\ndef test_disturbed(word): once(word)\n"
ALWAYS = "def test_wrong(): assert '<error message=' == 0\n"
THEN_SKIPPED = "def test_then_skipped():\n    once('then')\n    pytest.skip('others had the machine')\n"
MANY = "@pytest.mark.parametrize('n', range(6))\ndef test_many(n): once(str(n))\n"
TOGETHER = [f"test_with[{n}]" for n in range(9)]
SHARED = "@pytest.mark.parametrize('n', range(9))\ndef test_with(shared, n): pass\n"


def run(where: Path, part: str, tests: str) -> tuple[int, str]:
    """Run `./test` over these tests, with no other checks; returns its exit code and output."""
    shutil.copy(ROOT / "test", where)
    setup = where / "setup"
    setup.write_text("#!/bin/sh\n")
    setup.chmod(0o755)
    (where / "pytest.ini").write_text("[pytest]\n")
    (where / "conftest.py").write_text(CONFTEST)
    mark = "import pytest\nfrom conftest import once\n" + ("pytestmark = pytest.mark.lab\n" if part == "lab" else "")
    (where / "test_these.py").write_text(mark + tests)
    bin_ = where / ".venv" / "bin"
    bin_.mkdir(parents=True)
    for name, script in (("python", f'exec {sys.executable} "$@"'), *((each, "exit 0") for each in OTHERS)):
        (bin_ / name).write_text(f"#!/bin/sh\n{script}\n")
        (bin_ / name).chmod(0o755)
    done = subprocess.run([where / "test", part], capture_output=True, text=True, timeout=120)
    return done.returncode, done.stdout


@pytest.mark.parametrize(
    ("tests", "code", "last", "named"),
    [
        (RIGHT + ONCE, 0, "3 passed, 0 failed, 0 skipped", ["test_disturbed[a b]", "test_disturbed[c]"]),
        (ONCE + ALWAYS + SKIPPED, 1, "2 passed, 1 failed, 1 skipped", ["test_disturbed[a b]", "test_disturbed[c]"]),
        (RIGHT + MANY, 1, "1 passed, 6 failed, 0 skipped", []),
        (SHARED + THEN_SKIPPED, 0, "9 passed, 0 failed, 1 skipped", ["test_then_skipped", *TOGETHER]),
        ("import nowhere\n" + RIGHT, 1, "0 passed, 2 failed, 0 skipped", []),  # once by either half
    ],
)
def test_the_lab_part_has_a_second_look(tmp_path: Path, tests: str, code: int, last: str, named: list[str]) -> None:
    returned, output = run(tmp_path, "lab", tests)
    assert (returned, output.splitlines()[-1]) == (code, last), output
    _, _, block = output.partition("== FAILED IN COMPANY")
    lines = [line.partition("::")[2] for line in block.splitlines() if "::" in line]
    assert lines == named, output
    assert ("pytest: lab-again" in output) is bool(named)


def test_the_unit_part_has_none(tmp_path: Path) -> None:
    returned, output = run(tmp_path, "unit", RIGHT + ONCE)
    assert returned == 1 and " 2 failed, " in output.splitlines()[-1]
    assert "IN COMPANY" not in output
