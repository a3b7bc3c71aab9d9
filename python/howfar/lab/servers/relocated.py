"""Make unpacked packages startable where they lie: small scripts that start each program with its own loader and libraries.

`<root>/packages` holds the files as they came. Beside it the layout that servers expect below a base directory: sbin, bin, share,
lib. Nothing in here knows the name of `<root>`, so it can be renamed.
"""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Sequence
from pathlib import Path

from howfar.errors import ServerMissing

PACKAGES = "packages"
_KEPT_SHARES = ("mysql", "mariadb")
_LAUNCHER = """\
#!/bin/sh
# Starts {program} (sha256 {digest}) with the loader and the libraries that came with it.
root=${{0%/*}}/..
first=
case ${{1-}} in --no-defaults | --defaults-* | --print-defaults) first=$1 && shift ;; esac
exec "$root/{loader}" --argv0 "$0" --inhibit-cache --library-path "{libraries}" "$root/{program}" \\
    ${{first:+"$first"}}{options} "$@"
"""
_NO_DEFAULTS = """\
#!/bin/sh
# Stands for my_print_defaults: a private server reads no configuration of the machine.
"""


def relocate(root: Path, server: str) -> Path:
    """Lay out `root`; gives the server's own launcher below it. `server`: its name in the packages' usr/sbin."""
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
    """Drop what no server reads: documentation, translations, tools."""
    for entry in (usr / "share").iterdir():
        if entry.name not in _KEPT_SHARES:
            shutil.rmtree(entry)
    for entry in (usr / "bin").iterdir():
        if entry.name not in ("mariadb-install-db", "resolveip"):
            entry.unlink()


def _launcher(root: Path, folder: str, name: str, options: Sequence[str]) -> Path:
    program = f"{PACKAGES}/usr/{folder}/{name}"
    loader, libraries = _loader(root)
    with (root / program).open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    launcher = root / folder / name
    write_executable(
        launcher,
        _LAUNCHER.format(
            program=program,
            digest=digest,
            loader=loader,
            libraries=":".join(f"$root/{library}" for library in libraries),
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
    raise ServerMissing(f"the packages in {packages} hold no loader", "This kind of machine is not known here.")


def write_executable(path: Path, text: str) -> None:
    """A script of ours."""
    path.write_text(text)
    path.chmod(0o755)
