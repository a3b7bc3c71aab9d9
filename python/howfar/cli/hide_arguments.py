"""Passwords in our own arguments, which `ps` shows to every user, are overwritten in memory before anything else is done. Linux."""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass
from pathlib import Path


@dataclass
class Hidden:
    """Whether arguments that may hold a password are no longer shown by `ps`."""

    done: bool = False


HIDDEN = Hidden()
_PLAIN = re.compile(
    r"(?:--?[A-Za-z][\w-]*=)?[\w./,%+~-]*|--?[A-Za-z][\w-]*|\[?[0-9A-Fa-f:.]+\]?:\d+|[\w.-]+:\d+", re.ASCII
)
"""An option, a word, a path, a number, HOST:PORT: no password but by the name of its option."""
_NAMES = re.compile(r"pass|pwd|secret|token|auth", re.IGNORECASE)
_SHORT = re.compile(r"-[pa](?!$)", re.ASCII)
"""`-pPASSWORD` of MySQL's clients, `-aPASSWORD` of redis-cli."""


def may_hold_password(argument: str, before: str) -> bool:
    """Whether an argument can be or contain a password, in the form of any program. `before`: the argument that precedes it."""
    if _PLAIN.fullmatch(argument) is None or _SHORT.match(argument):
        return True
    name = argument.partition("=")[0]
    if "=" in argument and _NAMES.search(name):
        return True
    return before.startswith("-") and "=" not in before and bool(_NAMES.search(before) or before in ("-p", "-a"))


def hide_passwords() -> None:
    """Overwrite each argument of this process that may hold a password; `sys.argv` keeps it. Does nothing where it cannot be done."""
    arguments = sys.argv[1:]
    suspects = [
        number
        for number, argument in enumerate(arguments)
        if may_hold_password(argument, arguments[number - 1] if number else "")
    ]
    HIDDEN.done = not suspects or _overwritten(suspects, len(arguments))


def _overwritten(suspects: list[int], count: int) -> bool:
    """Whether the arguments with these numbers, of the last `count`, were overwritten."""
    import ctypes  # 10 ms that most commands need not pay

    try:
        fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
        begin, end = int(fields[45]), int(fields[46])  # arg_start and arg_end: the fields 48 and 49
        shown = Path("/proc/self/cmdline").read_bytes()
    except (OSError, ValueError, IndexError):
        return False
    words = shown.removesuffix(b"\0").split(b"\0")
    if not begin or end - begin != len(shown) or len(words) <= count:
        return False
    lengths = [len(word) for word in words]
    first = len(words) - count
    for number in suspects:
        position = sum(lengths[: first + number]) + first + number
        ctypes.memset(begin + position, ord("*"), lengths[first + number])
    return True
