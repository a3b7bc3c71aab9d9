"""Get a server program from Debian's archive into a private install: apt finds, fetches and verifies, nothing gets installed.

apt is given a directory of its own for everything that it writes or decides by; of the machine's configuration it keeps the way
to the archive (mirror, proxy, credentials). What Debian's keys did not sign is refused, whatever the machine's configuration says.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from howfar.errors import ServerMissing

_KEYRINGS = tuple(Path("/usr/share/keyrings", f"debian-archive-keyring.{ending}") for ending in ("gpg", "pgp"))
_RELEASE_OF_NO_OTHER_KIND = re.compile(r"[a-z]+")
"""`bookworm`, but not `bookworm-updates`."""
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
    """Packages of one suite. `package` comes with all that it depends on, `alone` without, `unwanted` not at all."""

    suite: str
    package: str
    alone: tuple[str, ...] = ()
    unwanted: tuple[str, ...] = ()


def fetch(wanted: Wanted, home: Path, tell: Callable[[str], None]) -> list[Path]:
    """Verified package files in `home`, an empty directory. Raises ServerMissing."""
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
        raise ServerMissing(f"apt-get ended well and left no {wanted.package} in {archives}")
    return found


def unpack(packages: Sequence[Path], target: Path) -> None:
    """Their files below `target`; no script of theirs is run. Raises ServerMissing."""
    target.mkdir()
    for package in packages:
        _run(["dpkg-deb", "--extract", str(package), str(target)], f"unpacking {package.name}")


def version_of(package: Path) -> str:
    """Debian's version without its epoch, which is in no file's name either."""
    version = _run(["dpkg-deb", "--field", str(package), "Version"], f"reading {package.name}").strip()
    return version.rpartition(":")[2]


class _Apt:
    """apt-get in a directory of its own."""

    def __init__(self, wanted: Wanted, home: Path) -> None:
        if shutil.which("apt-get") is None:
            raise ServerMissing(
                "there is no apt-get here: private servers come from Debian's archive",
                "Install the server by your system's own means and name it with --server PATH.",
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
        sources.touch(mode=0o600)  # a mirror's name may hold a password
        sources.write_text(
            f"Types: deb\nURIs: {_archive()}\nSuites: {wanted.suite}\nComponents: main\nSigned-By: {_keyring()}\n"
        )
        # apt drops to a user who could not enter a cache below a home; its own directory is ours alone.
        user = "root" if os.geteuid() == 0 else ""
        self._configuration.write_text(_CONFIGURATION.format(home=home, architecture=architecture, user=user))

    def run(self, *arguments: str, where: Path | None = None) -> str:
        return _run(
            ["apt-get", "-q", "-c", str(self._configuration), *arguments], f"apt-get {' '.join(arguments)}", where
        )

    def version(self) -> str:
        said = _run(
            ["apt-cache", "-c", str(self._configuration), "policy", self._package], f"apt-cache policy {self._package}"
        )
        match = re.search(r"Candidate: (\S+)", said)
        if match is None or match.group(1) == "(none)":
            raise ServerMissing(
                f"Debian's archive holds no {self._package} for this machine",
                "Name a server's program with --server PATH.",
            )
        return match.group(1)


def _keyring() -> Path:
    for keyring in _KEYRINGS:
        if keyring.is_file():
            return keyring
    raise ServerMissing(
        f"Debian's keys are not here (looked for {' and '.join(map(str, _KEYRINGS))}); unsigned packages are not taken",
        "Install debian-archive-keyring.",
    )


def _archive() -> str:
    """The address from which this machine itself gets Debian, from apt's own reading of its sources."""
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
        # Before the machine's first `apt-get update` apt does not know an origin; the signature tells all the same.
        known = origin and not origin[0].startswith("$")
        if component == "main" and _RELEASE_OF_NO_OTHER_KIND.fullmatch(release) and (not known or origin == ["Debian"]):
            return address
    raise ServerMissing(
        "apt's sources on this machine name no archive of Debian",
        "Add one, or install the server by your system's own means and name it with --server PATH.",
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
        raise ServerMissing(f"{what} failed: {error}", "Is this a Debian machine, and the network there?") from error
    if tried.returncode != 0:
        said = (tried.stderr.strip() or tried.stdout.strip()).splitlines()[-_SAID_LINES:]
        raise ServerMissing(
            "\n".join([f"{what} failed; it said:", *(f"  {line}" for line in said)]),
            "Is the network there? Nothing was changed; the same command tries again.",
        )
    return tried.stdout
