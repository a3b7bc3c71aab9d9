"""Get a private install: fetched and verified (`debian.py`) and made startable (`relocated.py`), or taken from what somebody unpacked
(`taken.py`); tried, and only then given its name."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from howfar.errors import LabError, ServerMissing, UsageError
from howfar.lab.cache import lock
from howfar.lab.servers.debian import Wanted, fetch, unpack, version_of
from howfar.lab.servers.private import RECEIPT, Installed, installs, named, servers_home
from howfar.lab.servers.program import identify
from howfar.lab.servers.relocated import PACKAGES, relocate
from howfar.lab.servers.taken import take

_UNFINISHED = ".building-"


@dataclass(frozen=True)
class Recipe:
    """What `howfar servers get` can get."""

    kind: str
    server: str
    """The program's name."""
    wanted: Wanted
    says: str


# Both programs start without perl, which their packages ask for because of scripts that are not used here.
RECIPES = {
    "mysql": Recipe(
        "mysql", "mysqld", Wanted("sid", "mysql-server-core", unwanted=("perl",)), "the newest MySQL that Debian has"
    ),
    # Its plugins (ed25519 among them) are in the package that would bring a service, hence that one without its dependencies.
    "mariadb-11": Recipe(
        "mariadb",
        "mariadbd",
        Wanted("trixie", "mariadb-server-core", alone=("mariadb-server",), unwanted=("perl",)),
        "MariaDB of Debian 13",
    ),
}


def get(name: str, tell: Callable[[str], None]) -> tuple[Installed, bool]:
    """The private install `name`, and whether it was made now. Raises UsageError, ServerMissing, LabError."""
    if name not in RECIPES:
        raise UsageError(f"there is no recipe for {name!r}", f"Known: {', '.join(RECIPES)}.")
    with _workshop() as home:
        if (there := named(name, installs())) is not None:
            return there, False
        with _building(home) as building:
            return _make(RECIPES[name], home, building, tell), True


def get_from(source: Path, tell: Callable[[str], None]) -> tuple[Installed, bool]:
    """A private install of what `source` holds, a directory or a tarball, and whether it was made now.

    Raises ServerMissing, ServerCrashed, LabError.
    """
    with _workshop() as home, _building(home) as building:
        root = building / "root"
        root.mkdir()
        name, program = take(source, root, tell)
        if (there := next((one for one in installs() if one.name == name), None)) is not None:
            return there, False
        root.rename(home / name)
        return Installed(name, home / name / program), True


@contextmanager
def _workshop() -> Iterator[Path]:
    """Where private installs are made, ours alone for a while."""
    home = servers_home()
    _check(home)
    try:
        home.mkdir(exist_ok=True)
        with lock(home.with_suffix(".lock"), exclusive=True):
            for stale in home.glob(f"{_UNFINISHED}*"):
                shutil.rmtree(stale)
            yield home
    except OSError as error:
        raise LabError(f"making a private install in {home} failed: {error}", "Is the disk full? See `df`.") from error


@contextmanager
def _building(home: Path) -> Iterator[Path]:
    building = home / f"{_UNFINISHED}{os.getpid()}"
    building.mkdir()
    try:
        yield building
    finally:
        shutil.rmtree(building, ignore_errors=True)


def _check(home: Path) -> None:
    """apt's configuration has no way to write these, the loader none to write a colon. Raises LabError."""
    if any(character in str(home) for character in '":\\\n'):
        raise LabError(f"a private install cannot be made in {home}: its name has a quote, a colon or a backslash")


def _make(recipe: Recipe, home: Path, building: Path, tell: Callable[[str], None]) -> Installed:
    apt = building / "apt"
    apt.mkdir()
    packages = fetch(recipe.wanted, apt, tell)
    own = next(package for package in packages if package.name.startswith(f"{recipe.wanted.package}_"))
    root = building / f"{recipe.kind}-{version_of(own)}"
    root.mkdir()
    tell("unpacking")
    unpack(packages, root / PACKAGES)
    launcher = relocate(root, recipe.server)
    if identify(launcher).kind != recipe.kind:
        raise ServerMissing(f"the program of {own.name} does not say that it is {recipe.kind}")
    program = str(launcher.relative_to(root))
    receipt = {"program": program, "suite": recipe.wanted.suite, "packages": [package.name for package in packages]}
    (root / RECEIPT).write_text(json.dumps(receipt, indent=2) + "\n")
    root.rename(home / root.name)
    return Installed(root.name, home / root.name / program)
