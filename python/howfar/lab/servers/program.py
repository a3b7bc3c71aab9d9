"""Finds server programs on this machine, and identifies their kinds and versions. The file of each kind shows how to start one."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from howfar.errors import ServerCrashed, ServerMissing

EXTRA_DIRECTORIES = ("/usr/sbin", "/usr/local/sbin", "/usr/libexec")
_VERSIONED_DIRECTORIES = (
    "/usr/lib/postgresql/[0-9]*/bin",
    "/usr/pgsql-[0-9]*/bin",
    "/usr/lib/postgresql[0-9]*/bin",
    "/usr/libexec/postgresql[0-9]*",
)
"""Directories outside PATH with the programs of one PostgreSQL version, on Debian, Red Hat (with PostgreSQL's own packages), SUSE and
Alpine."""
_VERSION_PATTERN = re.compile(r"Ver (\d\S*)")
_NAME_DEPENDENT_KINDS = ("redis", "valkey", "memcached")
_BANNER_PATTERNS = {
    "postgresql": re.compile(r"^postgres \(PostgreSQL\) (\d\S*)"),
    "redis": re.compile(r"^Redis server v=(\d\S*)"),
    "valkey": re.compile(r"^Valkey server v=(\d\S*)"),
    "memcached": re.compile(r"^memcached (\d\S*)"),
}
"""Patterns of the output of `--version`, for the kinds of server whose output begins with the server's name."""


@dataclass(frozen=True)
class Program:
    """A server program. `key` identifies the content of its file."""

    path: Path
    kind: str
    version: str
    key: str


def find_program(names: Sequence[str], kind: str) -> Path | None:
    """Find a program that has one of `names` and reports this kind, in PATH, /usr/sbin and similar directories; None if there is none.
    Raises ServerCrashed."""
    versioned_directories = sorted(
        (directory for pattern in _VERSIONED_DIRECTORIES for directory in Path("/").glob(pattern[1:])),
        key=_version_of_directory,
        reverse=True,
    )
    path = os.pathsep.join([os.environ.get("PATH", ""), *EXTRA_DIRECTORIES, *map(str, versioned_directories)])
    for name in names:
        file = shutil.which(name, path=path)
        if file is not None and kind_of(_version_output(Path(file))) == kind:
            # redis-server is often a link to a program whose behaviour depends on the name by which it is called.
            return Path(file).absolute() if kind in _NAME_DEPENDENT_KINDS else Path(file).resolve()
    return None


def _version_of_directory(directory: Path) -> float:
    """The version number in a directory's path; 0 if there is none."""
    match = re.search(r"\d+(\.\d+)?", str(directory))
    return float(match.group()) if match is not None else 0.0


def identify(path: Path) -> Program:
    """The program's kind and version as it reports them. Raises ServerMissing, ServerCrashed."""
    if not (path.is_file() and os.access(path, os.X_OK)):
        raise ServerMissing(
            f"{path} is not a program", "Give the path of a mariadbd or mysqld, such as /usr/sbin/mariadbd."
        )
    output = _version_output(path)
    kind, version = kind_of(output), version_of(output)
    if kind is None or version is None:
        raise ServerMissing(
            f"{path} does not say that it is MariaDB, MySQL, PostgreSQL, Redis, Valkey or Memcached; asked for its version it said"
            f" {output[:200]!r}",
            "Give the path of a mariadbd or mysqld.",
        )
    return Program(path, kind, version, f"{kind}-{version}-{sha256_of(path)[:16]}")


def sha256_of(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def kind_of(output: str) -> str | None:
    """The kind, from the output of `--version`; None if unknown. Of the known kinds only servers derived from MySQL print `Ver`."""
    for kind, pattern in _BANNER_PATTERNS.items():
        if pattern.search(output):
            return kind
    if _VERSION_PATTERN.search(output) is None:
        return None
    return "mariadb" if "MariaDB" in output else "mysql"


def version_of(output: str) -> str | None:
    """The version, from the output of `--version`; None if the output contains none."""
    matches = (pattern.search(output) for pattern in (*_BANNER_PATTERNS.values(), _VERSION_PATTERN))
    return next((match.group(1) for match in matches if match is not None), None)


def _version_output(path: Path) -> str:
    """The output of `--version`. The first attempt uses `--no-defaults`, which keeps MariaDB and MySQL from reading the machine's
    configuration; other servers refuse that option, so a second attempt omits it. Raises ServerCrashed with the first error."""
    try:
        return _run_version(path)
    except ServerCrashed:
        try:
            output = _run_version(path, ())
        except ServerCrashed:
            output = ""
        if kind_of(output) not in _BANNER_PATTERNS:
            raise
        return output


def _run_version(path: Path, options: tuple[str, ...] = ("--no-defaults",)) -> str:
    try:
        result = subprocess.run([path, *options, "--version"], capture_output=True, text=True, timeout=20)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ServerCrashed(f"{path} --version failed: {error}", "Is it a server program for this machine?") from error
    if result.returncode != 0:
        output = (result.stderr or result.stdout).strip()[-500:] or "nothing"
        raise ServerCrashed(
            f"{path} --version ended with exit code {result.returncode} and said: {output}",
            "Is it a server program for this machine?",
        )
    return result.stdout
