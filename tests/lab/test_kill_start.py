"""SIGKILL while the cache is filled for the first time: no incomplete template is used, and the next start cleans up."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.lab.howfar_runs import Session
from tests.lab.sandboxes import run_lab, wait_until
from tests.rarely import rarely_but

pytestmark = [pytest.mark.lab, pytest.mark.usefixtures("namespaces", "mariadb")]
ROWS = 20_000
TABLES = ("--tables", "2", "--table-size", str(ROWS))
COUNT = (
    "import os, pymysql; c = pymysql.connect(unix_socket=os.environ['HOWFAR_SOCKET'], user=os.environ['HOWFAR_USER'],"
    " password=open(os.environ['HOWFAR_PASSWORD_FILE']).read(), database=os.environ['HOWFAR_DATABASE']).cursor();"
    " c.execute('SELECT (SELECT COUNT(*) FROM sbtest1), (SELECT COUNT(*) FROM sbtest2)'); print(*c.fetchone())"
)

Moment = Callable[[Session, Path], bool]


def _program_runs(name: str) -> Moment:
    return lambda session, templates: session.find_pid(name) is not None


def _template_is_copied(folder: str) -> Moment:
    return lambda session, templates: any((templates / folder).glob("building-*"))


def _template_exists(folder: str) -> Moment:
    """A moment at which a complete template exists: a directory with its final name."""
    return lambda session, templates: any(
        entry.is_dir() and not entry.name.startswith("building-") for entry in (templates / folder).glob("*")
    )


MOMENTS: dict[str, Moment] = {
    "the data directory is initialised": _program_runs("sh"),
    "the empty template is copied": _template_is_copied("empty"),
    "the empty template is there": _template_exists("empty"),
    "the server that loads is started": _program_runs("mariadbd"),
    "the loaded template is copied": _template_is_copied("loaded"),
    "the loaded template is there": _template_exists("loaded"),
}


@pytest.mark.parametrize(
    "moment", rarely_but(("the data directory is initialised", "the loaded template is copied"), MOMENTS)
)
def test_a_kill_while_templates_are_made(moment: str, tmp_path_factory: pytest.TempPathFactory, tmp_path: Path) -> None:
    cache = tmp_path_factory.mktemp("s")
    templates = cache / "howfar" / "templates"
    arguments = [*TABLES, "--", sys.executable, "-c", COUNT]
    with Session(["lab", *arguments], cache, tmp_path) as session:
        wait_until(lambda: session.has_ended() or MOMENTS[moment](session, templates), f"the moment when {moment}")
        assert not session.has_ended(), session.output()
        with contextlib.suppress(ProcessLookupError):
            os.kill(session.process.pid, signal.SIGKILL)
        session.wait()
        session.marked.wait_until_gone()
    after = run_lab(*arguments, cache=cache)
    assert after.returncode == 0, after.stderr
    assert after.stdout == f"{ROWS} {ROWS}\n"
    assert not list(templates.glob("*/building-*"))
    assert len([entry for entry in (templates / "loaded").iterdir() if entry.is_dir()]) == 1
    assert not any((cache / "howfar" / "sandbox").iterdir())
    assert not any((tmp_path / "tmp").iterdir())
