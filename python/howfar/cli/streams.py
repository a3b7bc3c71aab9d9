"""Standard streams that are closed, full, or read by nobody."""

from __future__ import annotations

import os
import sys


def open_closed_streams() -> None:
    """Give each closed standard stream the null device.

    Else the next file that is opened, a run file perhaps, takes its number, and every message is written into it.
    """
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            taken = os.open(os.devnull, os.O_RDWR)
            if taken != descriptor:
                os.dup2(taken, descriptor)
                os.close(taken)
            os.set_inheritable(descriptor, True)
    sys.stdin = sys.stdin or open(0, closefd=False)  # noqa: SIM115 - a descriptor, for the life of the program
    sys.stdout = sys.stdout or open(1, "w", closefd=False)  # noqa: SIM115
    sys.stderr = sys.stderr or open(2, "w", closefd=False)  # noqa: SIM115


def abandon_output() -> None:
    """Nothing more may be written to stdout, not even by the interpreter at its end."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
