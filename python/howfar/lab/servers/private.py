"""Private installs: server programs that are installed in, and run from, the cache. They come from Debian's archive, or from the
user's own directory or tarball."""

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
class PrivateInstall:
    """One private install. `--server` accepts its `name`."""

    name: str
    program: Path


def servers_home() -> Path:
    """Directory of the private installs; it may not exist yet."""
    return cache_home() / "servers"


def list_installs() -> list[PrivateInstall]:
    """All complete private installs, older versions first."""
    installs = []
    for receipt in servers_home().glob(f"*/{RECEIPT}"):
        if receipt.parent.name.startswith("."):
            continue
        program = json.loads(receipt.read_text())["program"]
        installs.append(PrivateInstall(receipt.parent.name, receipt.parent / program))
    return sorted(installs, key=lambda install: _version_key(install.name))


def find_install(name: str, candidates: Sequence[PrivateInstall]) -> PrivateInstall | None:
    """The newest of `candidates` whose name is `name` or begins with its parts: `mysql`, `mysql-9` and `mysql-9.7.4-2` all find
    `mysql-9.7.4-2`."""
    matches = [
        install for install in candidates if install.name == name or install.name.startswith((f"{name}-", f"{name}."))
    ]
    return matches[-1] if matches else None


def _version_key(name: str) -> tuple[tuple[int, str], ...]:
    """Key for sorting names by version, with numbers compared by value: 9.10 is newer than 9.9."""
    return tuple((int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", name))


_KEYRINGS = tuple(Path("/usr/share/keyrings", f"debian-archive-keyring.{extension}") for extension in ("gpg", "pgp"))
_PLAIN_RELEASE = re.compile(r"[a-z]+")
"""Matches releases such as `bookworm`, but not suites such as `bookworm-updates`."""
_TIMEOUT_S = 1800
_MAX_OUTPUT_LINES = 6
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
_INSTALLED_ENTRY = """\
Package: {name}
Status: install ok installed
Maintainer: nobody <nobody@localhost>
Architecture: {architecture}
Multi-Arch: allowed
Version: 999
Description: not wanted here

"""


@dataclass(frozen=True)
class PackageSelection:
    """Packages to fetch from one suite: `package` with its dependencies, `without_dependencies` without theirs; `excluded` are not
    fetched even as dependencies."""

    suite: str
    package: str
    without_dependencies: tuple[str, ...] = ()
    excluded: tuple[str, ...] = ()


def fetch_packages(selection: PackageSelection, home: Path, on_step: Callable[[str], None]) -> list[Path]:
    """Fetch package files with verified signatures into `home`, an empty directory. Raises ServerMissing."""
    apt = _Apt(selection, home)
    on_step(f"asking Debian's archive for {selection.package} in {selection.suite}")
    apt.run("update")
    on_step(f"fetching {selection.package} {apt.version()} with its libraries")
    apt.run("install", selection.package)
    archives = home / "cache" / "archives"
    if selection.without_dependencies:
        apt.run("download", *selection.without_dependencies, directory=archives)
    packages = sorted(archives.glob("*.deb"))
    if not any(package.name.startswith(f"{selection.package}_") for package in packages):
        raise ServerMissing(f"apt-get succeeded but left no {selection.package} in {archives}")
    return packages


class _Apt:
    """apt-get with its own state and configuration, both in one directory, separate from the machine's."""

    def __init__(self, selection: PackageSelection, home: Path) -> None:
        if shutil.which("apt-get") is None:
            raise ServerMissing(
                "there is no apt-get here: private servers come from Debian's archive",
                "Install the server with your system's own tools and name it with --server PATH.",
            )
        self._package = selection.package
        self._configuration = home / "apt.conf"
        architecture = _run_command(["dpkg", "--print-architecture"], "asking dpkg for its architecture").strip()
        for folder in ("cache/archives/partial", "state/lists/partial", "log"):
            (home / folder).mkdir(parents=True)
        (home / "state" / "status").write_text(
            "".join(_INSTALLED_ENTRY.format(name=name, architecture=architecture) for name in selection.excluded)
        )
        sources = home / "archive.sources"
        sources.touch(mode=0o600)  # a mirror's address may contain a password
        sources.write_text(
            f"Types: deb\nURIs: {_find_archive()}\nSuites: {selection.suite}\nComponents: main\nSigned-By: {_find_keyring()}\n"
        )
        # As root, apt would switch to a user that may not enter a cache below a home directory. Stay root: no other user has access
        # to this directory.
        user = "root" if os.geteuid() == 0 else ""
        self._configuration.write_text(_CONFIGURATION.format(home=home, architecture=architecture, user=user))

    def run(self, *arguments: str, directory: Path | None = None) -> str:
        return _run_command(
            ["apt-get", "-q", "-c", str(self._configuration), *arguments], f"apt-get {' '.join(arguments)}", directory
        )

    def version(self) -> str:
        output = _run_command(
            ["apt-cache", "-c", str(self._configuration), "policy", self._package], f"apt-cache policy {self._package}"
        )
        match = re.search(r"Candidate: (\S+)", output)
        if match is None or match.group(1) == "(none)":
            raise ServerMissing(
                f"Debian's archive has no {self._package} for this machine",
                "Name a server's program with --server PATH.",
            )
        return match.group(1)


def _find_keyring() -> Path:
    for keyring in _KEYRINGS:
        if keyring.is_file():
            return keyring
    raise ServerMissing(
        f"Debian's keys were not found (looked for {' and '.join(map(str, _KEYRINGS))}); unsigned packages are not accepted",
        "Install debian-archive-keyring.",
    )


def _find_archive() -> str:
    """Address of the Debian archive that this machine's own apt uses."""
    targets = _run_command(
        [
            "apt-get",
            "indextargets",
            "--format",
            "$(REPO_URI) $(RELEASE) $(COMPONENT) $(ORIGIN)",
            "Created-By: Packages",
        ],
        "apt-get indextargets",
    )
    for line in targets.splitlines():
        address, release, component, *origin = line.split()
        # Before the machine's first `apt-get update` apt does not know the origin; the signatures are checked anyway.
        origin_is_known = origin and not origin[0].startswith("$")
        if component == "main" and _PLAIN_RELEASE.fullmatch(release) and (not origin_is_known or origin == ["Debian"]):
            return address
    raise ServerMissing(
        "apt's sources on this machine name no Debian archive",
        "Add one, or install the server with your system's own tools and name it with --server PATH.",
    )


def _run_command(command: Sequence[str], description: str, directory: Path | None = None) -> str:
    environment = {**os.environ, "LC_ALL": "C", "DEBIAN_FRONTEND": "noninteractive"}
    try:
        result = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_TIMEOUT_S,
            cwd=directory,
            env=environment,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ServerMissing(
            f"{description} failed: {error}", "Is this a Debian machine, and is the network available?"
        ) from error
    if result.returncode != 0:
        output = (result.stderr.strip() or result.stdout.strip()).splitlines()[-_MAX_OUTPUT_LINES:]
        raise ServerMissing(
            "\n".join([f"{description} failed; it said:", *(f"  {line}" for line in output)]),
            "Is the network available? Nothing was changed; the same command tries again.",
        )
    return result.stdout


PACKAGES = "packages"
_KEPT_SHARE_DIRECTORIES = ("mysql", "mariadb")
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
    """Make a server runnable from `root`, where its packages are unpacked; returns its launcher. `server`: the program's name in the
    packages' usr/sbin."""
    _delete_unused(root / PACKAGES / "usr")
    for name in ("share", "lib"):
        (root / name).symlink_to(f"{PACKAGES}/usr/{name}")
    for name in ("bin", "sbin"):
        (root / name).mkdir()
    share = next(name for name in reversed(_KEPT_SHARE_DIRECTORIES) if (root / "share" / name).is_dir())
    options = (
        "--basedir=$root",
        "--plugin-dir=$root/lib/mysql/plugin",
        f"--lc-messages-dir=$root/share/{share}",
        f"--character-sets-dir=$root/share/{share}/charsets",
    )
    launcher = _write_launcher(root, "sbin", server, options)
    if (root / PACKAGES / "usr/bin/mariadb-install-db").is_file():
        (root / "bin/mariadb-install-db").symlink_to(f"../{PACKAGES}/usr/bin/mariadb-install-db")
        _write_launcher(root, "bin", "resolveip", ())
        write_executable(root / "bin/my_print_defaults", _NO_DEFAULTS)
    return launcher


def _delete_unused(usr: Path) -> None:
    """Delete files that no server needs: documentation, translations, tools."""
    for entry in (usr / "share").iterdir():
        if entry.name not in _KEPT_SHARE_DIRECTORIES:
            shutil.rmtree(entry)
    for entry in (usr / "bin").iterdir():
        if entry.name not in ("mariadb-install-db", "resolveip"):
            entry.unlink()


def _write_launcher(root: Path, folder: str, name: str, options: Sequence[str]) -> Path:
    program = f"{PACKAGES}/usr/{folder}/{name}"
    loader, libraries = _find_loader(root)
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


def _find_loader(root: Path) -> tuple[str, list[str]]:
    """The dynamic loader and the directories of libraries, relative to `root`."""
    packages = root / PACKAGES
    for library_directory in ("usr/lib", "lib"):
        for loader in sorted(packages.glob(f"{library_directory}/*-linux-gnu*/ld-linux*.so.[0-9]")):
            triplet = loader.parent.name
            folders = [f"usr/lib/{triplet}", f"lib/{triplet}"]
            libraries = [f"{PACKAGES}/{folder}" for folder in folders if (packages / folder).is_dir()]
            return str(loader.relative_to(root)), libraries
    raise ServerMissing(f"the packages in {packages} contain no loader", "This kind of machine is not supported here.")


def write_executable(path: Path, text: str) -> None:
    """Write a script and make it executable."""
    path.write_text(text)
    path.chmod(0o755)


_PROGRAM_NAMES = ("mariadbd", "mysqld")
_PROGRAM_FOLDERS = ("bin", "sbin", "libexec")


def build_from_source(source: Path, staging: Path, on_step: Callable[[str], None]) -> tuple[str, str]:
    """Build an install of the server in `source` in the empty directory `staging`, which the caller renames. Returns the install's
    name, and the launcher's path in it. Raises ServerMissing, ServerCrashed, LabError."""
    if source.is_dir():
        base = _base_directory(source.resolve())
    elif source.is_file():
        on_step(f"unpacking {source.name}")
        _unpack(source, staging / PACKAGES)
        base = _base_directory(staging / PACKAGES)
    else:
        raise ServerMissing(f"{source} is neither a directory nor a file", "Name an unpacked server or its tarball.")
    program = _find_program(base)
    digest = sha256_of(program)
    for entry in base.iterdir():
        if entry.name != "sbin" and not (staging / entry.name).exists():
            is_inside = staging in entry.parents
            (staging / entry.name).symlink_to(entry.relative_to(staging) if is_inside else entry)
    launcher = staging / "sbin" / program.name
    launcher.parent.mkdir()
    command, base_option = _shell_word(program, staging), f" --basedir={_shell_word(base, staging)}"
    what = "a program with its base directory"
    write_executable(launcher, _LAUNCHER.format(what=what, digest=digest, command=command, options=base_option))
    server = identify(launcher)
    name = f"{server.kind}-{server.version}-{digest[:8]}"
    launcher_path = str(launcher.relative_to(staging))
    receipt = {"program": launcher_path, "taken_from": str(source.resolve())}
    (staging / RECEIPT).write_text(json.dumps(receipt, indent=2) + "\n")
    return name, launcher_path


def _shell_word(path: Path, staging: Path) -> str:
    """A path for the launcher that stays valid when `staging` is renamed: relative to `staging` if inside it, else absolute."""
    if staging in (path, *path.parents):
        return '"$root"/' + shlex.quote(str(path.relative_to(staging)))
    return shlex.quote(str(path))


def _unpack(tarball: Path, target: Path) -> None:
    target.mkdir()
    command = ["tar", "--extract", "--file", str(tarball), "--directory", str(target), "--no-same-owner"]
    try:
        _run_command(command, f"unpacking {tarball}")
    except ServerMissing as error:
        raise LabError(error.message, "Is the tarball complete, and is there enough disk space?") from error


def _base_directory(folder: Path) -> Path:
    """The server's base directory: a tarball has a single directory that contains everything."""
    entries = list(folder.iterdir())
    return entries[0] if len(entries) == 1 and entries[0].is_dir() else folder


def _find_program(base: Path) -> Path:
    for prefix in (base, base / "usr"):
        for folder in _PROGRAM_FOLDERS:
            for name in _PROGRAM_NAMES:
                if (path := prefix / folder / name).is_file():
                    return path
    raise ServerMissing(
        f"{base} contains no server program (looked for {' and '.join(_PROGRAM_NAMES)} in {', '.join(_PROGRAM_FOLDERS)})",
        "Name the directory that holds bin and share of MySQL, Percona Server or MariaDB, or its tarball.",
    )


_UNFINISHED_PREFIX = ".building-"


@dataclass(frozen=True)
class Recipe:
    """One server that `howfar servers get` can install."""

    kind: str
    program_name: str
    selection: PackageSelection
    description: str


# Both servers start without perl, which their packages require for scripts that are not used here.
RECIPES = {
    "mysql": Recipe(
        "mysql",
        "mysqld",
        PackageSelection("sid", "mysql-server-core", excluded=("perl",)),
        "the newest MySQL that Debian has",
    ),
    # MariaDB's plugins, such as ed25519, are in a package that also installs a service; fetch that package without dependencies.
    "mariadb-11": Recipe(
        "mariadb",
        "mariadbd",
        PackageSelection("trixie", "mariadb-server-core", without_dependencies=("mariadb-server",), excluded=("perl",)),
        "MariaDB of Debian 13",
    ),
}


def install_recipe(name: str, on_step: Callable[[str], None]) -> tuple[PrivateInstall, bool]:
    """Install the recipe `name` if it is not installed; returns the install, and whether this call created it. Raises UsageError,
    ServerMissing, LabError."""
    if name not in RECIPES:
        raise UsageError(f"there is no recipe for {name!r}", f"Known: {', '.join(RECIPES)}.")
    with _locked_home() as home:
        if (existing := find_install(name, list_installs())) is not None:
            return existing, False
        with _temporary_directory(home) as staging:
            return _build_install(RECIPES[name], home, staging, on_step), True


def install_from(source: Path, on_step: Callable[[str], None]) -> tuple[PrivateInstall, bool]:
    """Install the server in `source`, a directory or a tarball; returns the install, and whether this call created it. Raises
    ServerMissing, ServerCrashed, LabError."""
    with _locked_home() as home, _temporary_directory(home) as staging:
        root = staging / "root"
        root.mkdir()
        name, program = build_from_source(source, root, on_step)
        if (existing := next((install for install in list_installs() if install.name == name), None)) is not None:
            return existing, False
        root.rename(home / name)
        return PrivateInstall(name, home / name / program), True


@contextmanager
def _locked_home() -> Iterator[Path]:
    """Lock the directory of private installs exclusively, and remove unfinished installs."""
    home = servers_home()
    # apt's configuration cannot quote these characters, and the loader's search path cannot quote a colon.
    if any(character in str(home) for character in '":\\\n'):
        raise LabError(f"a private installation cannot be made in {home}: its name has a quote, a colon or a backslash")
    try:
        home.mkdir(exist_ok=True)
        with lock(home.with_suffix(".lock"), exclusive=True):
            for stale in home.glob(f"{_UNFINISHED_PREFIX}*"):
                shutil.rmtree(stale)
            yield home
    except OSError as error:
        raise LabError(
            f"making a private installation in {home} failed: {error}",
            "Is the disk full (see `df`), or does the directory belong to somebody else?",
        ) from error


@contextmanager
def _temporary_directory(home: Path) -> Iterator[Path]:
    staging = home / f"{_UNFINISHED_PREFIX}{os.getpid()}"
    staging.mkdir()
    try:
        yield staging
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def _build_install(recipe: Recipe, home: Path, staging: Path, on_step: Callable[[str], None]) -> PrivateInstall:
    apt = staging / "apt"
    apt.mkdir()
    packages = fetch_packages(recipe.selection, apt, on_step)
    server_package = next(package for package in packages if package.name.startswith(f"{recipe.selection.package}_"))
    version = _run_command(
        ["dpkg-deb", "--field", str(server_package), "Version"], f"reading {server_package.name}"
    ).strip()
    root = staging / f"{recipe.kind}-{version.rpartition(':')[2]}"  # without the epoch
    root.mkdir()
    on_step("unpacking")
    (root / PACKAGES).mkdir()
    for package in packages:  # without running their scripts
        _run_command(["dpkg-deb", "--extract", str(package), str(root / PACKAGES)], f"unpacking {package.name}")
    launcher = relocate(root, recipe.program_name)
    if identify(launcher).kind != recipe.kind:
        raise ServerMissing(f"the program of {server_package.name} does not say that it is {recipe.kind}")
    program = str(launcher.relative_to(root))
    receipt = {"program": program, "suite": recipe.selection.suite, "packages": [package.name for package in packages]}
    (root / RECEIPT).write_text(json.dumps(receipt, indent=2) + "\n")
    root.rename(home / root.name)
    return PrivateInstall(root.name, home / root.name / program)
