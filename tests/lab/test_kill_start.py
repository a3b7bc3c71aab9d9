"""SIGKILL while the cache is filled for the first time: no incomplete template is ever used, and the next start cleans up."""

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


def _program(name: str) -> Moment:
    return lambda session, templates: session.find(name) is not None


def _building(shelf: str) -> Moment:
    return lambda session, templates: any((templates / shelf).glob("building-*"))


def _kept(shelf: str) -> Moment:
    """When a complete template exists: a directory under its final name."""
    return lambda session, templates: any(
        entry.is_dir() and not entry.name.startswith("building-") for entry in (templates / shelf).glob("*")
    )


MOMENTS: dict[str, Moment] = {
    "the data directory is initialised": _program("sh"),
    "the empty template is copied": _building("empty"),
    "the empty template is there": _kept("empty"),
    "the server that loads is started": _program("mariadbd"),
    "the loaded template is copied": _building("loaded"),
    "the loaded template is there": _kept("loaded"),
}


@pytest.mark.parametrize(
    "moment", rarely_but(("the data directory is initialised", "the loaded template is copied"), MOMENTS)
)
def test_a_death_while_templates_are_made(
    moment: str, tmp_path_factory: pytest.TempPathFactory, tmp_path: Path
) -> None:
    cache = tmp_path_factory.mktemp("s")
    templates = cache / "howfar" / "templates"
    arguments = [*TABLES, "--", sys.executable, "-c", COUNT]
    session = Session(["lab", *arguments], cache, tmp_path)
    try:
        wait_until(
            lambda: session.process.poll() is not None or MOMENTS[moment](session, templates),
            f"the moment when {moment}",
        )
        assert session.process.poll() is None, session.say()
        with contextlib.suppress(ProcessLookupError):
            os.kill(session.process.pid, signal.SIGKILL)
        session.code()
        wait_until(lambda: not session.marked.pids(), f"the end of {session.marked.pids()}")
    finally:
        session.end()
    after = run_lab(*arguments, env={"XDG_CACHE_HOME": str(cache)})
    assert after.returncode == 0, after.stderr
    assert after.stdout == f"{ROWS} {ROWS}\n"
    assert not list(templates.glob("*/building-*"))
    assert len([entry for entry in (templates / "loaded").iterdir() if entry.is_dir()]) == 1
    assert not any((cache / "howfar" / "sandbox").iterdir())
    assert not any((tmp_path / "tmp").iterdir())
