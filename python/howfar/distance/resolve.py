"""The lookup of a server's name, with its time and a timeout: the C library has none that a program could set."""

from __future__ import annotations

import socket
import threading
import time
from ipaddress import IPv6Address, ip_address

from howfar.errors import HowfarError, UsageError


class NameFailed(HowfarError):
    """The name could not be looked up."""

    def __init__(self, message: str, advice: str, waited_ns: int) -> None:
        super().__init__(message, advice)
        self.waited_ns = waited_ns


def lookup(host: str, port: int, limit_s: float) -> tuple[int, tuple[str, ...]]:
    """Look up a name. Returns the duration in ns, and the addresses in the order in which clients try them. Raises NameFailed."""
    results: list[tuple[str, ...]] = []
    errors: list[Exception] = []

    def resolve() -> None:
        try:
            results.append(resolve_name(host, port))
        except (OSError, UnicodeError) as error:  # UnicodeError: a label is empty or too long
            errors.append(error)

    start_ns = time.monotonic_ns()
    # A lookup cannot be interrupted: one that takes too long is abandoned and ends with the process.
    thread = threading.Thread(target=resolve, name="lookup", daemon=True)
    thread.start()
    thread.join(limit_s)
    took_ns = time.monotonic_ns() - start_ns
    if results:
        return took_ns, results[0]
    if not errors:
        raise NameFailed(
            f"the name {host} was not looked up within {limit_s:g} s",
            "The resolver does not answer: check /etc/resolv.conf, or give the address as a number.",
            took_ns,
        )
    raise NameFailed(*unknown_host(host, errors[0]), took_ns)


def resolve_name(host: str, port: int) -> tuple[str, ...]:
    """The addresses of a name, in the order in which clients try them. Raises OSError; UnicodeError for a label that is empty or too
    long."""
    answers = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return tuple(dict.fromkeys(_address(answer[4]) for answer in answers))


def unknown_host(host: str, error: Exception) -> tuple[str, str]:
    """Message and advice for a lookup that failed."""
    return (
        f"the host {host} is not known: {_describe_error(error)}",
        "Correct its name, or give its address.",
    )


def _describe_error(error: Exception) -> str:
    if isinstance(error, UnicodeError):
        return "between its dots, a part is empty, longer than 63 characters, or has some that no name has"
    return str(getattr(error, "strerror", None) or error)


def _address(entry: tuple[object, ...]) -> str:
    """The address of an entry, including the zone of a link-local address, which is ambiguous without it."""
    host = str(entry[0])
    if len(entry) == 4 and isinstance(entry[3], int) and entry[3] and "%" not in host:
        return f"{host}%{entry[3]}"
    return host


def as_number(host: str) -> str | None:
    """A numeric address, with its zone as the interface's index; None if `host` is a name. Raises UsageError."""
    try:
        number = ip_address(host.strip("[]"))
    except ValueError:
        return None
    return _with_scope(number) if isinstance(number, IPv6Address) else str(number)


def _with_scope(number: IPv6Address) -> str:
    if number.scope_id is None or number.scope_id.isdigit():
        return str(number)
    try:
        return f"{str(number).partition('%')[0]}%{socket.if_nametoindex(number.scope_id)}"
    except OSError as error:
        raise UsageError(
            f"the address {number} names an interface that this machine does not have", "List them with `ip link`."
        ) from error
