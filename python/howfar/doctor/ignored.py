"""Options on a server's command line that it silently does not obey. Only names of options leave this file, never values."""

from __future__ import annotations

from collections.abc import Sequence

from howfar.doctor.findings import Kind
from howfar.doctor.identify import Known

_SHORT = {"-p": "-p", "-l": "-l", "-Z": "-Z", "-s": "-s"}
_LONG = {"--port": "-p", "--listen": "-l", "--enable-ssl": "-Z", "--unix-socket": "-s"}


def ignored_options(known: Known) -> tuple[str, ...]:
    """Memcached with -s listens on nothing else, and speaks plain text there, whatever else it was asked."""
    if known.kind is not Kind.MEMCACHED or known.process is None or not known.listeners:
        return ()
    asked = options(known.process.arguments)
    if "-s" not in asked or any(listener.path is None for listener in known.listeners):
        return ()
    return tuple(option for option in ("-p", "-l", "-Z") if option in asked)


def options(arguments: Sequence[str]) -> set[str]:
    """Which of those are on a command line, however they are written. `-p 0` asks for no port."""
    found = set()
    for word, after in zip(arguments, [*arguments[1:], ""], strict=True):
        name = _LONG.get(word.partition("=")[0]) or _SHORT.get(word[:2])
        if name == "-p" and (
            word[2:] == "0" or word.partition("=")[2] == "0" or (word in ("-p", "--port") and after == "0")
        ):
            continue
        if name is not None:
            found.add(name)
    return found
