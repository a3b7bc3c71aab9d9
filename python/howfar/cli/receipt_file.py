"""The file that `howfar lab --receipt` writes: its place is looked at first, and CMD's exit code outlives a failure."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import click

from howfar.errors import LabError, UsageError


def make_way(receipt: Path) -> None:
    """Look whether it can be written, and take an older one away: what ends early must not leave another run's verdict in its place.

    Raises UsageError where it plainly cannot be written. What goes wrong later is told by `code_with_receipt`.
    """
    place = receipt if receipt.exists() else receipt.parent
    if not place.exists():
        raise UsageError(
            f"the receipt {receipt} cannot be written: there is no directory {place}", "Make it, or name another."
        )
    if receipt.exists() and receipt.is_dir():
        raise UsageError(f"the receipt {receipt} is a directory", "Name a file.")
    if place != receipt and not place.is_dir():
        raise UsageError(f"the receipt {receipt} cannot be written: {place} is no directory", "Name another file.")
    if not os.access(place, os.W_OK):
        raise UsageError(f"the receipt {receipt} cannot be written: you may not", "Name another file.")
    try:
        if receipt.is_file():
            receipt.unlink()
    except OSError as error:
        raise UsageError(
            f"the older receipt {receipt} cannot be removed: {error.strerror}", "Name another file."
        ) from error


def code_with_receipt(code: int, receipt: Path, facts: dict[str, Any]) -> int:
    """Write it, and give the exit code: CMD's own, unless CMD was content and the receipt could not be written."""
    try:
        receipt.write_text(json.dumps(facts, indent=2) + "\n")
    except OSError as error:
        click.echo(f"howfar: the receipt {receipt} cannot be written: {error.strerror}", err=True)
        return code or LabError.exit_code
    return code
