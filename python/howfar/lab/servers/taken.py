"""Take a server that somebody unpacked, or a tarball of one, as a private install: MySQL, Percona Server or MariaDB as their makers
ship them for any Linux.

    <cache>/servers/mysql-8.4.9-1f2e3d4c/sbin/mysqld    starts the program with this as its base directory
                                         bin, lib, …    links to where it lies
                                         packages/…     what a tarball held; a directory stays where it is

Programs of a tarball find their own libraries; those of the machine they take as they are.
"""

from __future__ import annotations

import hashlib
import json
import shlex
import subprocess
from collections.abc import Callable
from pathlib import Path

from howfar.errors import LabError, ServerMissing
from howfar.lab.servers.private import RECEIPT
from howfar.lab.servers.program import identify
from howfar.lab.servers.relocated import PACKAGES, write_executable

_PROGRAMS = ("mariadbd", "mysqld")
_FOLDERS = ("bin", "sbin", "libexec")
_UNPACK_TIMEOUT_S = 1800
_LAUNCHER = """\
#!/bin/sh
# Starts a program (sha256 {digest}) with its own base directory.
here=${{0%/*}}/..
first=
case ${{1-}} in --no-defaults | --defaults-* | --print-defaults) first=$1 && shift ;; esac
exec {program} ${{first:+"$first"}} --basedir={base} "$@"
"""


def take(source: Path, building: Path, tell: Callable[[str], None]) -> tuple[str, str]:
    """Lay out `building`, an empty directory that will be renamed. Gives a name for it and the program below it.

    Raises ServerMissing, ServerCrashed, LabError.
    """
    if source.is_dir():
        base = _base(source.resolve())
    elif source.is_file():
        tell(f"unpacking {source.name}")
        _unpack(source, building / PACKAGES)
        base = _base(building / PACKAGES)
    else:
        raise ServerMissing(f"{source} is neither a directory nor a file", "Name an unpacked server or its tarball.")
    program = _program(base)
    digest = _digest(program)
    for entry in base.iterdir():
        if entry.name != "sbin" and not (building / entry.name).exists():
            inside = building in entry.parents
            (building / entry.name).symlink_to(entry.relative_to(building) if inside else entry)
    launcher = building / "sbin" / program.name
    launcher.parent.mkdir()
    words = {"program": _shell_word(program, building), "base": _shell_word(base, building)}
    write_executable(launcher, _LAUNCHER.format(digest=digest, **words))
    found = identify(launcher)
    name = f"{found.kind}-{found.version}-{digest[:8]}"
    receipt = {"program": str(launcher.relative_to(building)), "taken_from": str(source.resolve())}
    (building / RECEIPT).write_text(json.dumps(receipt, indent=2) + "\n")
    return name, receipt["program"]


def _shell_word(path: Path, building: Path) -> str:
    """A name that holds after `building` has got its own: relative to the launcher for what lies inside, absolute otherwise."""
    if building in (path, *path.parents):
        return '"$here"/' + shlex.quote(str(path.relative_to(building)))
    return shlex.quote(str(path))


def _unpack(tarball: Path, target: Path) -> None:
    target.mkdir()
    command = ["tar", "--extract", "--file", str(tarball), "--directory", str(target), "--no-same-owner"]
    try:
        tried = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=_UNPACK_TIMEOUT_S
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise LabError(f"unpacking {tarball} failed: {error}") from error
    if tried.returncode != 0:
        raise LabError(
            f"unpacking {tarball} failed: {tried.stderr.strip()[-500:]}",
            "Is it a whole tarball, and the disk not full?",
        )


def _base(folder: Path) -> Path:
    """A tarball has one directory that holds all."""
    inside = list(folder.iterdir())
    return inside[0] if len(inside) == 1 and inside[0].is_dir() else folder


def _program(base: Path) -> Path:
    for top in (base, base / "usr"):
        for folder in _FOLDERS:
            for name in _PROGRAMS:
                if (found := top / folder / name).is_file():
                    return found
    raise ServerMissing(
        f"{base} holds no server program (looked for {' and '.join(_PROGRAMS)} in {', '.join(_FOLDERS)})",
        "Name the directory that holds bin and share of MySQL, Percona Server or MariaDB, or its tarball.",
    )


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
