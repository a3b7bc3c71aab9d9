"""`howfar --version`: the package, the engine that it starts, and the commit that the engine was built from."""

from __future__ import annotations

import subprocess
from importlib import metadata
from pathlib import Path

import howfar
from howfar.engine.process import engine_info, find_engine
from howfar.errors import HowfarError

UNKNOWN = "unknown"


def version_text() -> str:
    """One line each; what cannot be found out is unknown, never an error."""
    return f"engine {_engine()}\nwheel  {_wheel()}\ncommit {_commit()}"


def _engine() -> str:
    """Version, contract and file."""
    try:
        info = engine_info()
        return f"{info.version} (contract {info.protocol}), {find_engine()}"
    except HowfarError as error:
        return f"{UNKNOWN}: {error.message}"


def _wheel() -> str:
    """Version and folder of the installed package."""
    try:
        version = metadata.version("howfar")
    except metadata.PackageNotFoundError:
        version = "not installed"
    return f"{version}, {Path(howfar.__file__).parent}"


def _commit() -> str:
    """Baked into the engine when it was built; an engine of before does not say."""
    try:
        done = subprocess.run([find_engine(), "commit"], capture_output=True, text=True, timeout=20, check=True)
    except (HowfarError, OSError, subprocess.SubprocessError):
        return UNKNOWN
    return done.stdout.strip() or UNKNOWN
