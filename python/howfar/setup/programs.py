"""Reads `programs.toml`, the table of the programs that howfar starts and the packages that contain them, and checks which programs
are installed."""

from __future__ import annotations

import os
import platform
import shutil
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path

from howfar.lab.servers.program import EXTRA_DIRECTORIES
from howfar.toml_text import TomlTable

SYSTEM_DIRECTORIES = (*EXTRA_DIRECTORIES, "/sbin")
"""Directories of server programs that are not on every user's PATH."""


@dataclass(frozen=True)
class RequiredProgram:
    """A program, or one of its files, that howfar needs."""

    group: str
    """The option of `howfar setup` that installs it; `lab` is always installed."""
    candidates: tuple[str, ...]
    """Commands, or paths in which * stands for a version. The program counts as installed if any of them exists."""
    packages: Mapping[str, str]
    """The package that contains it, by package manager; `all` stands for package managers without an entry."""
    units: Mapping[str, Sequence[str]]
    """The systemd units of the package, with the same keys as `packages`; * stands for a version."""
    temporary_files: Mapping[str, Sequence[str]]
    """A temporary file, and its line, that exists while the package is installed; with the same keys."""

    @property
    def name(self) -> str:
        """The program's name in messages, such as `php-fpm` or `pdo_mysql.so`."""
        return self.candidates[0].rpartition("/")[2].rstrip("*")

    def is_installed(self) -> bool:
        return any(
            _which(candidate) if "/" not in candidate else any(Path("/").glob(candidate[1:]))
            for candidate in self.candidates
        )

    def package(self, manager: str) -> str | None:
        """The package that contains the program; None if no package is known."""
        package = self.packages.get(manager, self.packages.get("all"))
        return None if package is None else name_here(package)

    def units_of(self, manager: str) -> Sequence[str]:
        return self.units.get(manager, self.units.get("all", ()))


def system_release() -> Mapping[str, str]:
    """The fields of /etc/os-release. Empty: this system has none."""
    try:
        return platform.freedesktop_os_release()
    except OSError:
        return {}


def name_here(package: str) -> str:
    """The name of a package in this release of the system."""
    release = system_release()
    renamed: Mapping[str, str] = _table()["renamed"].get(f"{release.get('ID')} {release.get('VERSION_ID')}", {})
    return renamed.get(package, package)


@cache
def required_programs() -> tuple[RequiredProgram, ...]:
    """All programs, in the order of the table."""
    return tuple(
        RequiredProgram(
            entry["group"],
            tuple(entry["candidates"]),
            entry["packages"],
            entry.get("units", {}),
            entry.get("during", {}),
        )
        for entry in _table()["program"]
    )


@dataclass(frozen=True)
class ProgramGroup:
    """Programs that are installed together."""

    name: str
    part: str
    """The part of howfar that needs them."""
    brings: str = ""
    """The group's programs in words, for the help of its option of `howfar setup`; empty if they are always installed."""
    laboratory: bool = True
    """Whether `part` works only if the laboratory works."""


@cache
def program_groups() -> tuple[ProgramGroup, ...]:
    """The groups, in the order of the table."""
    return tuple(ProgramGroup(**entry) for entry in _table()["group"])


@cache
def _table() -> TomlTable:
    return tomllib.loads(files("howfar.setup").joinpath("programs.toml").read_text(encoding="utf-8"))


def missing_programs(group_names: Iterable[str]) -> tuple[RequiredProgram, ...]:
    """The programs of these groups that are not installed."""
    wanted_groups = set(group_names)
    return tuple(
        program for program in required_programs() if program.group in wanted_groups and not program.is_installed()
    )


def _which(command: str) -> str | None:
    return shutil.which(command, path=os.pathsep.join((os.environ.get("PATH", os.defpath), *SYSTEM_DIRECTORIES)))
