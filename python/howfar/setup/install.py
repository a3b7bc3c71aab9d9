"""Installs packages with the system's package manager, and prevents the services in them from starting.

New systemd units are masked before they are installed, so no service starts, now or at the next boot. `plan_installation` only
returns what `install_packages` would do.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from fnmatch import fnmatch
from pathlib import Path

from howfar.errors import LabError, MissingError
from howfar.lab.servers.galera_programs import transfer_folder
from howfar.setup.programs import RequiredProgram, name_here, system_release

_FRESH_S = 600
"""Time for which apt's lists of packages count as fresh, so that consecutive installations fetch them only once."""
_LAST_LINES = 15
"""Number of lines from the end of a package manager's output that an error quotes."""


@dataclass(frozen=True)
class PackageManager:
    """A package manager and how it installs packages, without those that are only recommended."""

    name: str
    program: str
    refresh: tuple[str, ...] | None
    """Command that fetches the newest lists of packages; None if installing does that."""
    install: tuple[str, ...]
    tested_on: Mapping[str, int] = field(default_factory=dict)
    """The first VERSION_ID of each system on which the names of packages were tested, by its ID."""


PACKAGE_MANAGERS = (
    PackageManager(
        "apt",
        "apt-get",
        ("apt-get", "-q", "-o", "DPkg::Lock::Timeout=300", "update"),
        ("apt-get", "-q", "-y", "-o", "DPkg::Lock::Timeout=300", "install", "--no-remove", "--no-install-recommends"),
        {"debian": 12, "ubuntu": 22},
    ),
    PackageManager("dnf", "dnf", None, ("dnf", "-y", "install", "--setopt=install_weak_deps=False")),
    PackageManager("zypper", "zypper", None, ("zypper", "--non-interactive", "install", "--no-recommends")),
    PackageManager("apk", "apk", None, ("apk", "add", "--update-cache")),
    PackageManager("pacman", "pacman", None, ("pacman", "-Sy", "--needed", "--noconfirm")),
)


@dataclass(frozen=True)
class Installation:
    """The packages to install, and the package manager to use."""

    manager: PackageManager
    packages: tuple[str, ...]
    units: tuple[tuple[str, str], ...]
    """Pairs of a systemd unit, in which * stands for a version, and the package that contains it."""
    temporary_files: tuple[tuple[str, str], ...]
    """Pairs of a path and a line: files with this line exist while the packages are installed."""
    unpackaged: tuple[str, ...]
    """Programs for which no package is known here."""

    @property
    def command(self) -> str:
        """The command by which a user would install the same packages as root. It may start services and enable them at boot."""
        commands = [(*self.manager.install, *self.packages)]
        if self.manager.refresh is not None:
            commands.insert(0, self.manager.refresh)
        unattended = ("-q", "-y", "-o", "DPkg::Lock::Timeout=300")
        return " && ".join(shlex.join(word for word in command if word not in unattended) for command in commands)


def package_manager() -> PackageManager:
    """Find the package manager of this machine. Raises MissingError."""
    for manager in PACKAGE_MANAGERS:
        if shutil.which(manager.program) is not None:
            return manager
    known = ", ".join(manager.program for manager in PACKAGE_MANAGERS)
    raise MissingError(
        f"no supported package manager was found (looked for {known})",
        "Install the programs that `howfar setup --check` names by your system's own means.",
    )


def untested_system(manager: PackageManager) -> str | None:
    """Return the name of this system if the package names were not tested on it, else None."""
    system = system_release()
    version = system.get("VERSION_ID", "").partition(".")[0]
    first_version = manager.tested_on.get(system.get("ID", ""))
    # Debian's testing and unstable have no number.
    is_tested = first_version is not None and (not version.isdigit() or int(version) >= first_version)
    return None if is_tested else system.get("PRETTY_NAME", "this system")


def plan_installation(missing: Sequence[RequiredProgram], manager: PackageManager) -> Installation:
    """Plan the installation of these programs."""
    programs_and_packages = [(program, program.package(manager.name)) for program in missing]
    return Installation(
        manager,
        tuple(dict.fromkeys(package for _, package in programs_and_packages if package is not None)),
        tuple(
            (unit, package)
            for program, package in programs_and_packages
            if package is not None
            for unit in program.units_of(manager.name)
        ),
        tuple(
            (path_and_line[0], path_and_line[1])
            for program, _ in programs_and_packages
            if (path_and_line := program.temporary_files.get(manager.name))
        ),
        tuple(program.name for program, package in programs_and_packages if package is None),
    )


def install_packages(installation: Installation, root: Path = Path("/")) -> list[str]:
    """Install the packages, as root, and return the units that stay masked. `root`: the machine's root directory. Raises LabError
    with the last lines of the package manager."""
    manager = installation.manager
    is_fresh = manager.name == "apt" and _has_fresh_lists(root)
    refreshed = "" if manager.refresh is None or is_fresh else _run(manager.refresh)
    units = [name for unit, package in installation.units for name in _expand_unit(unit, package)]
    command = (*manager.install, *installation.packages)
    with ExitStack() as guards:
        if manager.name == "apt":
            guards.enter_context(_temporary_file(root / "usr/sbin/policy-rc.d", _POLICY_RC_D, 0o755))
        for path, line in installation.temporary_files:
            guards.enter_context(_temporary_file(root / path, f"{_MARK}\n{line}\n", 0o644))
        masks = guards.enter_context(_mask_new_units(units, root))
        try:
            _run(command)
        except LabError as error:
            if "dpkg --configure -a" in error.message:
                # An earlier installation was interrupted, and apt reports this remedy.
                _run(("dpkg", "--configure", "-a"))
            elif is_fresh and manager.refresh is not None:
                # Even fresh lists may be incomplete.
                _run(manager.refresh)
            else:
                # apt-get update succeeds without a network, with old lists or none.
                failures = [line for line in refreshed.splitlines() if line.startswith(("W: ", "E: "))][:_LAST_LINES]
                if failures:
                    raise LabError("\n  ".join((error.message, "before that:", *failures)), error.advice) from None
                raise
            _run(command)
    return [mask.name for mask in masks if mask.is_symlink()]


def _has_fresh_lists(root: Path) -> bool:
    """Whether apt received lists of packages within the last minutes, by the time of their folder: the files have the server's."""
    try:
        age_s = time.time() - (root / "var/lib/apt/lists").stat().st_mtime
    except OSError:
        return False
    return 0 <= age_s < _FRESH_S


def _run(command: Sequence[str], folder: str | None = None) -> str:
    """Run a command; returns its output. Raises LabError with the last lines of that."""
    result = subprocess.run(
        command,
        cwd=folder,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        env={**os.environ, "DEBIAN_FRONTEND": "noninteractive"},
    )
    if result.returncode != 0:
        last_lines = [line.rstrip() for line in result.stdout.splitlines() if line.strip()][-_LAST_LINES:]
        raise LabError(
            f"{shlex.join(command)} ended with exit code {result.returncode} and said:\n"
            + "\n".join(f"  {line}" for line in last_lines),
            "Fix that, then run this again.",
        )
    return result.stdout


def fetch_transfer_scripts() -> None:
    """Fetch the scripts that copy data to a new Galera node. Debian ships them only in mariadb-server, which also contains a service:
    10 MB are fetched, and 0.1 MB is kept. Raises LabError."""
    with tempfile.TemporaryDirectory(prefix="howfar-galera-") as folder:
        _run(("apt-get", "-q", "download", name_here("mariadb-server")), folder)
        (package,) = Path(folder).glob("*.deb")
        _run(("dpkg-deb", "-x", str(package), folder))
        target_folder = transfer_folder()
        target_folder.mkdir(parents=True, exist_ok=True)
        for script in Path(folder, "usr/bin").glob("wsrep_sst_*"):
            shutil.copy(script, target_folder)


# ---------------------------------------------------------------- services

_MARK = "# written by the set-up of howfar while it installs packages; safe to remove"
_POLICY_RC_D = f"#!/bin/sh\n{_MARK}\nexit 101\n"
"""Content of the file that keeps Debian's packages from starting services while they are installed."""
_UNIT_DIRECTORIES = ("lib/systemd/system", "usr/lib/systemd/system")


def _expand_unit(unit: str, package: str) -> list[str]:
    """Expand a pattern of units to those of packages on which `package` depends (php-fpm on php8.2-fpm); others stay as they are."""
    if "*" not in unit:
        return [unit]
    command = ("apt-cache", "depends", package)
    result = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    dependencies = [line.partition("Depends: ")[2] for line in result.stdout.splitlines()]
    return [f"{dependency}.service" for dependency in dependencies if fnmatch(f"{dependency}.service", unit)]


@contextmanager
def _temporary_file(path: Path, text: str, mode: int) -> Iterator[None]:
    """Create a file for the duration of the block. A file of an interrupted set-up is replaced; any other file is left alone."""
    if path.is_symlink() or (path.exists() and _MARK not in path.read_text(errors="replace")):
        yield
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(mode)
    try:
        yield
    finally:
        path.unlink(missing_ok=True)


def _has_unit(unit: str, root: Path) -> bool:
    """Whether the machine has a unit, or an init script from which systemd makes one."""
    script = root / "etc/init.d" / unit.removesuffix(".service")
    return script.exists() or any((root / directory / unit).exists() for directory in _UNIT_DIRECTORIES)


@contextmanager
def _mask_new_units(units: Sequence[str], root: Path) -> Iterator[list[Path]]:
    """Mask the units that the machine does not have yet, and yield the masks. policy-rc.d has no effect at the next boot. A mask
    whose unit was not installed is removed, as it would block the unit if that is installed later."""
    masks: list[Path] = []
    for unit in units:
        mask = root / "etc/systemd/system" / unit
        if not (_has_unit(unit, root) or mask.exists() or mask.is_symlink()):
            mask.parent.mkdir(parents=True, exist_ok=True)
            mask.symlink_to("/dev/null")
            masks.append(mask)
    try:
        yield masks
    finally:
        for mask in masks:
            if not _has_unit(mask.name, root):
                mask.unlink(missing_ok=True)
