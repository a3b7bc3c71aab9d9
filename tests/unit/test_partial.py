"""Unfinished files: they get their name when complete, and nothing is left behind, whatever process dies."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from howfar.cli.load import write_file
from howfar.cli.output import check_page_path, write
from howfar.store.partial import is_written_in_place, unfinished


def _killed_maker(path: Path) -> None:
    script = (
        "import os, signal, sys; from pathlib import Path; from howfar.store.partial import unfinished\n"
        "with unfinished(Path(sys.argv[1])) as name:\n"
        "    name.write_text('half'); name.with_name(name.name + '-journal').write_text('x')\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    assert subprocess.run([sys.executable, "-c", script, path]).returncode == -9


def test_what_a_killed_maker_left_goes_with_the_next(tmp_path: Path) -> None:
    _killed_maker(tmp_path / "a.html")
    assert len(list(tmp_path.iterdir())) == 2
    with unfinished(tmp_path / "other.html") as name:
        assert list(tmp_path.iterdir()) == [name]
        name.write_text("whole")
        name.replace(tmp_path / "other.html")
    assert [path.name for path in tmp_path.iterdir()] == ["other.html"]


def test_two_makers_of_one_name_do_not_disturb_each_other(tmp_path: Path) -> None:
    target = tmp_path / "a.html"
    with unfinished(target) as one, unfinished(target) as two:
        one.write_text("one")
        two.write_text("two")
        two.replace(target)
        one.replace(target)
    assert target.read_text() == "one"
    assert list(tmp_path.iterdir()) == [target]


def test_a_failure_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), unfinished(tmp_path / "a.html") as name:
        name.write_text("half")
        raise ZeroDivisionError
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("writes", [write, write_file])
def test_what_is_no_file_is_written_into_and_stays(writes: Callable[[Path, str], None], tmp_path: Path) -> None:
    """As root, a file renamed to /dev/null would replace the device."""
    target, link = tmp_path / "target", tmp_path / "link"
    link.symlink_to("/dev/null")
    check_page_path(link)
    writes(link, "text")
    assert link.is_symlink() and is_written_in_place(link) and not is_written_in_place(target)
    link.unlink()
    link.symlink_to(target)
    writes(link, "text")
    assert link.is_symlink() and target.read_text() == "text" and not target.is_symlink()
