"""Private installs: server programs below the cache, fetched from Debian or taken from a folder, which run from there."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from howfar.errors import LabError, ServerMissing, UsageError
from howfar.lab.cache import cache_home, lock
from howfar.lab.servers.program import identify, sha256_of

RECEIPT = "receipt.json"


@dataclass(frozen=True)
class Installed:
    """One private install. `--server` accepts its `name`."""

    name: str
    program: Path


def servers_home() -> Path:
    """Directory of the private installs; it may not exist yet."""
    return cache_home() / "servers"


def installs() -> list[Installed]:
    """All complete private installs, older versions first."""
    found = []
    for receipt in servers_home().glob(f"*/{RECEIPT}"):
        if receipt.parent.name.startswith("."):
            continue
        program = json.loads(receipt.read_text())["program"]
        found.append(Installed(receipt.parent.name, receipt.parent / program))
    return sorted(found, key=lambda one: _by_version(one.name))


def named(name: str, candidates: Sequence[Installed]) -> Installed | None:
    """The private install of this name. `mysql`, `mysql-9` and `mysql-9.7.4-2` all name `mysql-9.7.4-2`; the newest of several."""
    fitting = [one for one in candidates if one.name == name or one.name.startswith((f"{name}-", f"{name}."))]
    return fitting[-1] if fitting else None


def _by_version(name: str) -> tuple[tuple[int, str], ...]:
    """Key for sorting by version, numbers by value: 9.10 is newer than 9.9."""
    return tuple((int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", name))


_KEYRINGS = tuple(Path("/usr/share/keyrings", f"debian-archive-keyring.{ending}") for ending in ("gpg", "pgp"))
_RELEASE_OF_NO_OTHER_KIND = re.compile(r"[a-z]+")
"""Names of plain releases: `bookworm`, but not `bookworm-updates`."""
_TIMEOUT_S = 1800
_SAID_LINES = 6
_CONFIGURATION = """\
#clear APT::Update;
#clear APT::Architectures;
#clear APT::NeverAutoRemove;
#clear DPkg::Pre-Invoke;
#clear DPkg::Post-Invoke;
#clear DPkg::Pre-Install-Pkgs;
#clear Acquire::IndexTargets::deb::DEP-11;
#clear Acquire::IndexTargets::deb::Translations;
#clear Dir::Cache::pkgcache;
#clear Dir::Cache::srcpkgcache;
APT::Architecture "{architecture}";
APT::Architectures {{ "{architecture}"; }};
APT::Get::AllowUnauthenticated "false";
APT::Get::Assume-Yes "true";
APT::Get::Download-Only "true";
APT::Install-Recommends "false";
APT::Install-Suggests "false";
APT::Keep-Downloaded-Packages "true";
APT::Sandbox::User "{user}";
APT::Update::Error-Mode "any";
Acquire::AllowInsecureRepositories "false";
Acquire::AllowWeakRepositories "false";
Acquire::AllowDowngradeToInsecureRepositories "false";
Acquire::Languages "none";
Acquire::Retries "1";
Acquire::http::Timeout "30";
Acquire::https::Timeout "30";
Dir::Cache "{home}/cache";
Dir::Cache::archives "archives";
Dir::Etc::sourcelist "{home}/archive.sources";
Dir::Etc::sourceparts "/dev/null";
Dir::Etc::preferences "/dev/null";
Dir::Etc::preferencesparts "/dev/null";
Dir::Log "{home}/log";
Dir::State "{home}/state";
Dir::State::lists "lists";
Dir::State::status "{home}/state/status";
"""
_PRETENDED = """\
Package: {name}
Status: install ok installed
Maintainer: nobody <nobody@localhost>
Architecture: {architecture}
Multi-Arch: allowed
Version: 999
Description: not wanted here

"""


@dataclass(frozen=True)
class Wanted:
    """Packages of one suite: `package` with all its dependencies, `alone` without dependencies, `unwanted` not at all."""

    suite: str
    package: str
    alone: tuple[str, ...] = ()
    unwanted: tuple[str, ...] = ()


def fetch(wanted: Wanted, home: Path, tell: Callable[[str], None]) -> list[Path]:
    """Fetch verified package files into `home`, an empty directory. Raises ServerMissing."""
    apt = _Apt(wanted, home)
    tell(f"asking Debian's archive for {wanted.package} in {wanted.suite}")
    apt.run("update")
    tell(f"fetching {wanted.package} {apt.version()} with its libraries")
    apt.run("install", wanted.package)
    archives = home / "cache" / "archives"
    if wanted.alone:
        apt.run("download", *wanted.alone, where=archives)
    found = sorted(archives.glob("*.deb"))
    if not any(package.name.startswith(f"{wanted.package}_") for package in found):
        raise ServerMissing(f"apt-get succeeded but left no {wanted.package} in {archives}")
    return found


class _Apt:
    """apt-get with its own state and configuration in one directory."""

    def __init__(self, wanted: Wanted, home: Path) -> None:
        if shutil.which("apt-get") is None:
            raise ServerMissing(
                "there is no apt-get here: private servers come from Debian's archive",
                "Install the server with your system's own tools and name it with --server PATH.",
            )
        self._package = wanted.package
        self._configuration = home / "apt.conf"
        architecture = _run(["dpkg", "--print-architecture"], "asking dpkg for its architecture").strip()
        for folder in ("cache/archives/partial", "state/lists/partial", "log"):
            (home / folder).mkdir(parents=True)
        (home / "state" / "status").write_text(
            "".join(_PRETENDED.format(name=name, architecture=architecture) for name in wanted.unwanted)
        )
        sources = home / "archive.sources"
        sources.touch(mode=0o600)  # a mirror's address may contain a password
        sources.write_text(
            f"Types: deb\nURIs: {_archive()}\nSuites: {wanted.suite}\nComponents: main\nSigned-By: {_keyring()}\n"
        )
        # apt would switch to a user who may not enter a cache below a home directory; this directory is ours alone.
        user = "root" if os.geteuid() == 0 else ""
        self._configuration.write_text(_CONFIGURATION.format(home=home, architecture=architecture, user=user))

    def run(self, *arguments: str, where: Path | None = None) -> str:
        return _run(
            ["apt-get", "-q", "-c", str(self._configuration), *arguments], f"apt-get {' '.join(arguments)}", where
        )

    def version(self) -> str:
        output = _run(
            ["apt-cache", "-c", str(self._configuration), "policy", self._package], f"apt-cache policy {self._package}"
        )
        match = re.search(r"Candidate: (\S+)", output)
        if match is None or match.group(1) == "(none)":
            raise ServerMissing(
                f"Debian's archive has no {self._package} for this machine",
                "Name a server's program with --server PATH.",
            )
        return match.group(1)


def _keyring() -> Path:
    for keyring in _KEYRINGS:
        if keyring.is_file():
            return keyring
    raise ServerMissing(
        f"Debian's keys were not found (looked for {' and '.join(map(str, _KEYRINGS))}); unsigned packages are not accepted",
        "Install debian-archive-keyring.",
    )


def _archive() -> str:
    """The address of this machine's own Debian archive, as apt parses its sources."""
    listed = _run(
        [
            "apt-get",
            "indextargets",
            "--format",
            "$(REPO_URI) $(RELEASE) $(COMPONENT) $(ORIGIN)",
            "Created-By: Packages",
        ],
        "apt-get indextargets",
    )
    for line in listed.splitlines():
        address, release, component, *origin = line.split()
        # Before the machine's first `apt-get update` apt does not know the origin; the signature is checked in any case.
        known = origin and not origin[0].startswith("$")
        if component == "main" and _RELEASE_OF_NO_OTHER_KIND.fullmatch(release) and (not known or origin == ["Debian"]):
            return address
    raise ServerMissing(
        "apt's sources on this machine name no Debian archive",
        "Add one, or install the server with your system's own tools and name it with --server PATH.",
    )


def _run(command: Sequence[str], what: str, where: Path | None = None) -> str:
    environment = {**os.environ, "LC_ALL": "C", "DEBIAN_FRONTEND": "noninteractive"}
    try:
        tried = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_TIMEOUT_S,
            cwd=where,
            env=environment,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ServerMissing(
            f"{what} failed: {error}", "Is this a Debian machine, and is the network available?"
        ) from error
    if tried.returncode != 0:
        output = (tried.stderr.strip() or tried.stdout.strip()).splitlines()[-_SAID_LINES:]
        raise ServerMissing(
            "\n".join([f"{what} failed; it said:", *(f"  {line}" for line in output)]),
            "Is the network available? Nothing was changed; the same command tries again.",
        )
    return tried.stdout


PACKAGES = "packages"
_KEPT_SHARES = ("mysql", "mariadb")
_LAUNCHER = """\
#!/bin/sh
# Starts {what} (sha256 {digest}).
root=${{0%/*}}/..
first=
case ${{1-}} in --no-defaults | --defaults-* | --print-defaults) first=$1 && shift ;; esac
exec {command} ${{first:+"$first"}}{options} "$@"
"""
_NO_DEFAULTS = """\
#!/bin/sh
# Stands for my_print_defaults: a private server reads no configuration of the machine.
"""


def relocate(root: Path, server: str) -> Path:
    """Lay out `root`; returns the server's launcher below it. `server`: the program's name in the packages' usr/sbin."""
    _thin(root / PACKAGES / "usr")
    for name in ("share", "lib"):
        (root / name).symlink_to(f"{PACKAGES}/usr/{name}")
    for name in ("bin", "sbin"):
        (root / name).mkdir()
    share = next(name for name in reversed(_KEPT_SHARES) if (root / "share" / name).is_dir())
    options = (
        "--basedir=$root",
        "--plugin-dir=$root/lib/mysql/plugin",
        f"--lc-messages-dir=$root/share/{share}",
        f"--character-sets-dir=$root/share/{share}/charsets",
    )
    launcher = _launcher(root, "sbin", server, options)
    if (root / PACKAGES / "usr/bin/mariadb-install-db").is_file():
        (root / "bin/mariadb-install-db").symlink_to(f"../{PACKAGES}/usr/bin/mariadb-install-db")
        _launcher(root, "bin", "resolveip", ())
        write_executable(root / "bin/my_print_defaults", _NO_DEFAULTS)
    return launcher


def _thin(usr: Path) -> None:
    """Delete files that no server reads: documentation, translations, tools."""
    for entry in (usr / "share").iterdir():
        if entry.name not in _KEPT_SHARES:
            shutil.rmtree(entry)
    for entry in (usr / "bin").iterdir():
        if entry.name not in ("mariadb-install-db", "resolveip"):
            entry.unlink()


def _launcher(root: Path, folder: str, name: str, options: Sequence[str]) -> Path:
    program = f"{PACKAGES}/usr/{folder}/{name}"
    loader, libraries = _loader(root)
    path = ":".join(f"$root/{library}" for library in libraries)
    launcher = root / folder / name
    write_executable(
        launcher,
        _LAUNCHER.format(
            what=f"{program} with the loader and the libraries that came with it",
            digest=sha256_of(root / program),
            command=f'"$root/{loader}" --argv0 "$0" --inhibit-cache --library-path "{path}" "$root/{program}"',
            options="".join(f' "{option}"' for option in options),
        ),
    )
    return launcher


def _loader(root: Path) -> tuple[str, list[str]]:
    """The loader and the directories of libraries, relative to `root`."""
    packages = root / PACKAGES
    for usr in ("usr/lib", "lib"):
        for loader in sorted(packages.glob(f"{usr}/*-linux-gnu*/ld-linux*.so.[0-9]")):
            triplet = loader.parent.name
            folders = [f"usr/lib/{triplet}", f"lib/{triplet}"]
            return str(loader.relative_to(root)), [f"{PACKAGES}/{one}" for one in folders if (packages / one).is_dir()]
    raise ServerMissing(f"the packages in {packages} contain no loader", "This kind of machine is not supported here.")


def write_executable(path: Path, text: str) -> None:
    """Write a script and make it executable."""
    path.write_text(text)
    path.chmod(0o755)


_PROGRAMS = ("mariadbd", "mysqld")
_FOLDERS = ("bin", "sbin", "libexec")


def take(source: Path, building: Path, tell: Callable[[str], None]) -> tuple[str, str]:
    """Lay out `building`, an empty directory that will be renamed later. Returns its future name and the program below it.

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
    digest = sha256_of(program)
    for entry in base.iterdir():
        if entry.name != "sbin" and not (building / entry.name).exists():
            inside = building in entry.parents
            (building / entry.name).symlink_to(entry.relative_to(building) if inside else entry)
    launcher = building / "sbin" / program.name
    launcher.parent.mkdir()
    command, base_option = _shell_word(program, building), f" --basedir={_shell_word(base, building)}"
    what = "a program with its base directory"
    write_executable(launcher, _LAUNCHER.format(what=what, digest=digest, command=command, options=base_option))
    found = identify(launcher)
    name = f"{found.kind}-{found.version}-{digest[:8]}"
    receipt = {"program": str(launcher.relative_to(building)), "taken_from": str(source.resolve())}
    (building / RECEIPT).write_text(json.dumps(receipt, indent=2) + "\n")
    return name, receipt["program"]


def _shell_word(path: Path, building: Path) -> str:
    """A path for the launcher that stays valid when `building` is renamed: relative if inside it, absolute otherwise."""
    if building in (path, *path.parents):
        return '"$root"/' + shlex.quote(str(path.relative_to(building)))
    return shlex.quote(str(path))


def _unpack(tarball: Path, target: Path) -> None:
    target.mkdir()
    command = ["tar", "--extract", "--file", str(tarball), "--directory", str(target), "--no-same-owner"]
    try:
        _run(command, f"unpacking {tarball}")
    except ServerMissing as error:
        raise LabError(error.message, "Is the tarball complete, and is there enough disk space?") from error


def _base(folder: Path) -> Path:
    """The server's base directory: a tarball has a single directory that contains everything."""
    inside = list(folder.iterdir())
    return inside[0] if len(inside) == 1 and inside[0].is_dir() else folder


def _program(base: Path) -> Path:
    for top in (base, base / "usr"):
        for folder in _FOLDERS:
            for name in _PROGRAMS:
                if (found := top / folder / name).is_file():
                    return found
    raise ServerMissing(
        f"{base} contains no server program (looked for {' and '.join(_PROGRAMS)} in {', '.join(_FOLDERS)})",
        "Name the directory that holds bin and share of MySQL, Percona Server or MariaDB, or its tarball.",
    )


_UNFINISHED = ".building-"


@dataclass(frozen=True)
class Recipe:
    """One server that `howfar servers get` can install."""

    kind: str
    server: str
    """Name of the program."""
    wanted: Wanted
    says: str


# Both programs start without perl, which their packages require for scripts that are not used here.
RECIPES = {
    "mysql": Recipe(
        "mysql", "mysqld", Wanted("sid", "mysql-server-core", unwanted=("perl",)), "the newest MySQL that Debian has"
    ),
    # Its plugins (ed25519 among them) are in the package that also installs a service: fetch that one without dependencies.
    "mariadb-11": Recipe(
        "mariadb",
        "mariadbd",
        Wanted("trixie", "mariadb-server-core", alone=("mariadb-server",), unwanted=("perl",)),
        "MariaDB of Debian 13",
    ),
}


def get(name: str, tell: Callable[[str], None]) -> tuple[Installed, bool]:
    """The private install `name`, and whether this call created it. Raises UsageError, ServerMissing, LabError."""
    if name not in RECIPES:
        raise UsageError(f"there is no recipe for {name!r}", f"Known: {', '.join(RECIPES)}.")
    with _workshop() as home:
        if (there := named(name, installs())) is not None:
            return there, False
        with _building(home) as building:
            return _make(RECIPES[name], home, building, tell), True


def get_from(source: Path, tell: Callable[[str], None]) -> tuple[Installed, bool]:
    """A private install of the server in `source`, a directory or a tarball, and whether this call created it.

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
    """The directory of private installs, locked exclusively."""
    home = servers_home()
    # apt's configuration cannot quote these, and the loader's search path cannot quote a colon.
    if any(character in str(home) for character in '":\\\n'):
        raise LabError(f"a private installation cannot be made in {home}: its name has a quote, a colon or a backslash")
    try:
        home.mkdir(exist_ok=True)
        with lock(home.with_suffix(".lock"), exclusive=True):
            for stale in home.glob(f"{_UNFINISHED}*"):
                shutil.rmtree(stale)
            yield home
    except OSError as error:
        raise LabError(
            f"making a private installation in {home} failed: {error}",
            "Is the disk full (see `df`), or does the directory belong to somebody else?",
        ) from error


@contextmanager
def _building(home: Path) -> Iterator[Path]:
    building = home / f"{_UNFINISHED}{os.getpid()}"
    building.mkdir()
    try:
        yield building
    finally:
        shutil.rmtree(building, ignore_errors=True)


def _make(recipe: Recipe, home: Path, building: Path, tell: Callable[[str], None]) -> Installed:
    apt = building / "apt"
    apt.mkdir()
    packages = fetch(recipe.wanted, apt, tell)
    own = next(package for package in packages if package.name.startswith(f"{recipe.wanted.package}_"))
    version = _run(["dpkg-deb", "--field", str(own), "Version"], f"reading {own.name}").strip()
    root = building / f"{recipe.kind}-{version.rpartition(':')[2]}"  # without the epoch
    root.mkdir()
    tell("unpacking")
    (root / PACKAGES).mkdir()
    for package in packages:  # none of their scripts is run
        _run(["dpkg-deb", "--extract", str(package), str(root / PACKAGES)], f"unpacking {package.name}")
    launcher = relocate(root, recipe.server)
    if identify(launcher).kind != recipe.kind:
        raise ServerMissing(f"the program of {own.name} does not say that it is {recipe.kind}")
    program = str(launcher.relative_to(root))
    receipt = {"program": program, "suite": recipe.wanted.suite, "packages": [package.name for package in packages]}
    (root / RECEIPT).write_text(json.dumps(receipt, indent=2) + "\n")
    root.rename(home / root.name)
    return Installed(root.name, home / root.name / program)
