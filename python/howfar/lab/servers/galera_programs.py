"""Galera's library, and the programs that copy data to a new node, on this machine."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from howfar.lab.cache import cache_home

PROVIDERS = tuple(
    Path(directory, "libgalera_smm.so")
    for directory in ("/usr/lib/galera", "/usr/lib64/galera-4", "/usr/lib64/galera", "/usr/lib/galera-4")
)
"""Paths of Galera's library on Debian, Red Hat, SUSE and Arch."""
TRANSFER_METHOD = "mariabackup"
"""Method by which a node without data copies the data of another node, which keeps serving during the copy."""
_TRANSFER_PROGRAMS = (f"wsrep_sst_{TRANSFER_METHOD}", "mariabackup", "mbstream", "socat", "my_print_defaults")


def find_provider() -> Path | None:
    """Galera's library on this machine; None if there is none."""
    return next((path for path in PROVIDERS if path.exists()), None)


def transfer_path() -> str:
    """The PATH with which a server finds the programs of a transfer: our own PATH plus the folder of `howfar setup --clusters`."""
    return f"{os.environ.get('PATH', os.defpath)}:{transfer_folder()}"


def transfer_folder() -> Path:
    """Folder of the transfer scripts from `howfar setup --clusters`; Debian has them only in a package that installs a service."""
    return cache_home() / "galera/bin"


def transfer_obstacle() -> str | None:
    """The reason why data cannot be transferred between nodes here: the missing programs. None if it can."""
    missing = [name for name in _TRANSFER_PROGRAMS if shutil.which(name, path=transfer_path()) is None]
    return f"{', '.join(missing)} not found (`howfar setup --clusters` gets what is needed)" if missing else None
