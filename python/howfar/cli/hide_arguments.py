"""Overwrites passwords in our own arguments, which `ps` shows to every user, before anything else is done (Linux), and keeps them
out of messages."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from howfar.passwords import learn


@dataclass
class HidingState:
    """Whether arguments that may hold a password are no longer shown by `ps`."""

    is_done: bool = False


HIDING = HidingState()
_HARMLESS = re.compile(
    r"(?:--?[A-Za-z][\w-]*=)?[\w./,%+~-]*|--?[A-Za-z][\w-]*|\[?[0-9A-Fa-f:.]+\]?:\d+|[\w.-]+:\d+", re.ASCII
)
"""An option, a word, a path, a number or HOST:PORT. Such an argument is a password only if the name of its option indicates one."""
_PASSWORD_NAMES = re.compile(r"pass|pwd|secret|token|auth", re.IGNORECASE)
_SHORT_PASSWORD_OPTION = re.compile(r"-[pa](?!$)", re.ASCII)
"""`-pPASSWORD` of MySQL's clients, `-aPASSWORD` of redis-cli."""


def may_hold_password(argument: str, previous: str) -> bool:
    """Whether an argument can be or contain a password, in the syntax of any program. `previous`: the argument that precedes it."""
    if _HARMLESS.fullmatch(argument) is None or _SHORT_PASSWORD_OPTION.match(argument):
        return True
    name = argument.partition("=")[0]
    return ("=" in argument and bool(_PASSWORD_NAMES.search(name))) or _asks_for_password(previous)


def _asks_for_password(option: str) -> bool:
    """Whether the argument after this option may be a password."""
    return (
        option.startswith("-") and "=" not in option and bool(_PASSWORD_NAMES.search(option) or option in ("-p", "-a"))
    )


def learn_passwords(arguments: Sequence[str]) -> None:
    """Register all texts in these arguments that may be passwords, so that no message repeats them."""
    for number, argument in enumerate(arguments):
        previous = arguments[number - 1] if number else ""
        for password in (*_passwords(argument, previous), *_split_password(arguments[number:])):
            learn(password)
            if "%" in password:
                from urllib.parse import unquote  # which most commands need not load

                learn(unquote(password))


_PARAMETER = re.compile(r"(?:pass\w*|pwd|secret|token|auth\w*)\s*=\s*('(?:[^'\\]|\\.)*'|[^\s&;]+)", re.IGNORECASE)


def _passwords(argument: str, previous: str) -> Iterator[str]:
    """Texts in an argument that may be a password: the value of an option or a parameter, or part of an address."""
    option, _, value = argument.partition("=") if argument.startswith("-") else ("", "", argument)
    if _asks_for_password(option or previous) and not os.path.exists(value):  # noqa: PTH110 - a text may contain what a Path refuses
        yield value
    if _SHORT_PASSWORD_OPTION.match(argument):
        yield argument[2:]
    yield from (secret.strip("'") for secret in _PARAMETER.findall(value))
    account, _, _ = _authority(value).rpartition("@")
    yield account.partition(":")[2]


def _authority(text: str) -> str:
    return text.partition("//")[2] if "//" in text else text


def _split_password(arguments: Sequence[str]) -> Sequence[str]:
    """The parts of an address's password that the shell has split at unquoted spaces; empty if the first argument is not such an
    address."""
    first = arguments[0]
    first_part = _authority(first).partition(":")[2]
    if "//" not in first or "@" in first or not first_part:
        return ()
    parts = [first_part]
    for argument in arguments[1:]:
        if "//" in argument:
            break
        if "@" in argument:
            return (*parts, argument.rpartition("@")[0])
        parts.append(argument)
    return ()


def hide_passwords() -> None:
    """Overwrite each argument of this process that may hold a password; `sys.argv` keeps it. Does nothing on systems where that is
    impossible."""
    arguments = sys.argv[1:]
    suspects = [
        number
        for number, argument in enumerate(arguments)
        if may_hold_password(argument, arguments[number - 1] if number else "")
    ]
    HIDING.is_done = not suspects or _overwrite(suspects, len(arguments))


def _overwrite(suspects: list[int], count: int) -> bool:
    """Overwrite some of the last `count` arguments. `suspects`: their indices. Returns whether that was possible."""
    import ctypes  # takes 10 ms to import, and most commands do not need it

    try:
        fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
        begin, end = int(fields[45]), int(fields[46])  # arg_start and arg_end: the fields 48 and 49
        command_line = Path("/proc/self/cmdline").read_bytes()
    except (OSError, ValueError, IndexError):
        return False
    words = command_line.removesuffix(b"\0").split(b"\0")
    if not begin or end - begin != len(command_line) or len(words) <= count:
        return False
    lengths = [len(word) for word in words]
    first_word = len(words) - count
    for number in suspects:
        position = sum(lengths[: first_word + number]) + first_word + number
        ctypes.memset(begin + position, ord("*"), lengths[first_word + number])
    return True
