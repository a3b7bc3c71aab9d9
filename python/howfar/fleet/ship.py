"""Installs this howfar on every host that lacks it, and checks that versions agree.

The package and its engine are copied into a directory that is named after a digest of their content; a host that has the directory
needs no copy. They run in an existing Python environment of the host with Ray and the other dependencies, or in an environment that
is made there once with pip.
"""

from __future__ import annotations

import hashlib
import io
import json
import platform
import shlex
import sys
import tarfile
from collections.abc import Mapping
from functools import cache
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path

import howfar
from howfar.engine.process import find_engine
from howfar.errors import LabError, MissingError
from howfar.fleet.hosts_file import HostSpec
from howfar.fleet.ssh import ask, tail_of_output

_HOME = ".cache/howfar/hosts"
"""Directory of the copies, relative to the home directory on the host."""
_COPY_TIMEOUT_S = 120.0
_INSTALL_TIMEOUT_S = 900.0
_SCRIPT_START = (
    'umask 077; mkdir -p "${d%/*}" && t=$(mktemp -d "$d.XXXXXX") || exit 1; '
    """trap 'rm -rf "$t"' EXIT; trap 'exit 1' HUP INT TERM"""
)
"""Start of a shell script: makes a temporary directory `$t` next to `$d`, and removes it when the script ends."""
_SCRIPT_END = '{ mv -T "$t" "$d" 2>/dev/null || [ -d "$d" ]; }'
"""End of that script: renames `$t` to `$d`, unless another command has created `$d` meanwhile."""
_PYTHON_VERSION_CHECK = """import sys
if "%%d.%%d" %% sys.version_info[:2] != "%s":
    sys.exit("its python3 is " + sys.version.split()[0])"""
_START_CHECK = """
import json, platform, socket, sys
from importlib.metadata import version
import howfar
from howfar.engine.process import engine_info
engine_info()
try:
    socket.socket().bind((sys.argv[1], 0))
    has_address = True
except OSError:
    has_address = False
versions = {"howfar": howfar.__version__, "ray": version("ray"), "python": platform.python_version()}
print(json.dumps((has_address, versions)))
"""
"""Program that prints whether the host has the address, and its versions; it fails if howfar or its engine does not start."""


@cache
def build_archive() -> tuple[str, bytes]:
    """Return a name derived from the content, and the archive to copy: the package, and the engine where `find_engine` finds it."""
    root = Path(howfar.__file__).parent
    digest, buffer = hashlib.sha256(), io.BytesIO()
    paths = (path for path in sorted(root.rglob("*")) if path.is_file() and "__pycache__" not in path.parts)
    files = [(f"howfar/{path.relative_to(root)}", path) for path in paths]
    with tarfile.open(fileobj=buffer, mode="w:gz", compresslevel=1) as archive:
        for name, path in (*files, ("bin/howfar-engine", find_engine())):
            content = path.read_bytes()
            digest.update(f"{name}\0{len(content)}\0".encode() + content)
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode = len(content), 0o755 if name.startswith("bin/") else 0o644
            archive.addfile(entry, io.BytesIO(content))
    return f"{howfar.__version__}-{digest.hexdigest()[:16]}", buffer.getvalue()


def local_ray_version() -> str:
    """Version of Ray on this machine. Raises MissingError."""
    try:
        return version("ray")
    except PackageNotFoundError as error:
        raise MissingError(
            "Ray, which joins hosts, is not installed here",
            "Reinstall howfar with its extra `hosts`; in a checkout, run ./setup --hosts.",
        ) from error


def python_path(host: HostSpec) -> str:
    """Path of the interpreter on the host, quoted for its shell."""
    if host.python is not None:
        return shlex.quote(host.python)
    return (
        shlex.quote(sys.executable)
        if host.is_local
        else f'"$HOME/{_HOME}/environment-{_environment_digest()}/bin/python"'
    )


def _environment_digest() -> str:
    """Digest of an environment's dependencies, which is part of its name."""
    dependencies = "\n".join((*_dependencies(), f"ray=={local_ray_version()}", platform.python_version()))
    return hashlib.sha256(dependencies.encode()).hexdigest()[:12]


def _dependencies() -> tuple[str, ...]:
    return tuple(sorted(line for line in requires("howfar") or () if "extra ==" not in line))


def python_command(host: HostSpec, arguments: str) -> list[str]:
    """Return a command for ssh that runs Python with the copied package."""
    name, _ = build_archive()
    python = f"PYTHONPATH=$HOME/{_HOME}/{name} PYTHONSAFEPATH=1 exec {python_path(host)}"
    return ["sh", "-c", f"unset HOWFAR_ENGINE; {python} {arguments}"]


def install_on_host(name: str, host: HostSpec, install: bool = True) -> None:
    """Copy howfar to a host that lacks it, and check that it starts there with this machine's versions. `install`: also make an
    environment there if the host needs one. Raises LabError, MissingError."""
    archive_name, archive = build_archive()
    unpack = (
        f'd="$HOME/{_HOME}/{archive_name}"; [ ! -d "$d" ] || exit 0; [ -n "$1" ] || exit 9; '
        f'{_SCRIPT_START}; tar -xzf - -C "$t" && {_SCRIPT_END}'
    )
    if ask(name, host, ["sh", "-c", unpack, "sh", ""]).returncode != 0:
        result = ask(name, host, ["sh", "-c", unpack, "sh", "now"], archive, _COPY_TIMEOUT_S)
        if result.returncode != 0:
            raise LabError(
                f"howfar could not be copied to host {name}: {tail_of_output(result.stderr)}", "Is its disk full?"
            )
    if host.python is None and not host.is_local and install:
        _make_environment(name, host)
    _check_start(name, host)


def _make_environment(name: str, host: HostSpec) -> None:
    """Make an environment with the host's own Python and pip, unless it exists for these dependencies. Raises LabError."""
    minor_version = ".".join(platform.python_version_tuple()[:2])
    packages = [*_dependencies(), f"ray=={local_ray_version()}"]
    make_script = (
        f'd="$HOME/{_HOME}/environment-{_environment_digest()}"; '
        f'is() {{ "$1" -c "$v"; }}; v={shlex.quote(_PYTHON_VERSION_CHECK % minor_version)}; '
        '! is "$d/bin/python" 2>/dev/null || exit 0; rm -rf "$d"; '
        f'p=$(command -v python{minor_version} || command -v python3) || {{ echo "it has no python{minor_version}" >&2; exit 1; }}; '
        f'is "$p" || exit 1; {_SCRIPT_START}; "$p" -m venv "$t" && '
        f'"$t/bin/python" -m pip install -q --no-input --disable-pip-version-check "$@" && {_SCRIPT_END}'
    )
    result = ask(name, host, ["sh", "-c", make_script, "sh", *packages], timeout_s=_INSTALL_TIMEOUT_S)
    if result.returncode != 0:
        raise LabError(
            f"host {name} could not install what howfar needs: {tail_of_output(result.stdout + result.stderr)}",
            f"It needs Python {minor_version} with venv and pip, and must reach the package index that pip is configured for; or "
            "install an environment with `howfar[hosts]` there, and name its interpreter: "
            'python = "/…/bin/python".',
        )


def _check_start(name: str, host: HostSpec) -> None:
    result = ask(name, host, python_command(host, f"-c {shlex.quote(_START_CHECK)} {host.address}"))
    if result.returncode != 0:
        raise MissingError(
            f"howfar does not start on host {name} with {host.python or 'its own environment'}: {tail_of_output(result.stderr)}",
            "Its `python` must be of an environment with `howfar[hosts]`.",
        )
    has_address, versions = json.loads(result.stdout.splitlines()[-1])
    if not has_address:
        raise LabError(
            f"the address {host.address} is on no interface of host {name}",
            "Ray listens at it: give the address of an interface of that host (`ip -brief addr`) by which the others reach it.",
        )
    check_versions(name, versions, local_versions())


def local_versions() -> dict[str, str]:
    """The versions on this machine, which every host must match. Raises MissingError."""
    return {"howfar": howfar.__version__, "ray": local_ray_version(), "python": platform.python_version()}


def check_versions(name: str, host_versions: Mapping[str, str], own_versions: Mapping[str, str]) -> None:
    """Check that Ray's versions and Python's minor versions are equal, as Ray requires. Raises LabError."""
    for component, local_version in own_versions.items():
        remote_version = host_versions[component]
        agrees = (
            remote_version.split(".")[:2] == local_version.split(".")[:2]
            if component == "python"
            else remote_version == local_version
        )
        if not agrees:
            raise LabError(
                f"host {name} has {component} {remote_version}, this machine has {local_version}",
                "All hosts must have the same: install it there, or leave `python` out and howfar makes an environment with the "
                f"host's Python {'.'.join(own_versions['python'].split('.')[:2])}.",
            )
