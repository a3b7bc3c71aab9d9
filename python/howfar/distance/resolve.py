"""Looks up a server's name, and measures the time of the lookup. The timeout is its own: the C library's cannot be set."""

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


def look_up_name(host: str, port: int, timeout_s: float) -> tuple[int, tuple[str, ...]]:
    """Look up a name; returns the duration in ns, and the addresses in the order in which clients try them. Raises NameFailed."""
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
    thread.join(timeout_s)
    took_ns = time.monotonic_ns() - start_ns
    if results:
        return took_ns, results[0]
    if not errors:
        raise NameFailed(
            f"the name {host} was not looked up within {timeout_s:g} s",
            "The resolver does not answer: check /etc/resolv.conf, or give the address as a number.",
            took_ns,
        )
    raise NameFailed(*describe_unknown_host(host, errors[0]), took_ns)


def resolve_name(host: str, port: int) -> tuple[str, ...]:
    """Return the addresses of a name, in the order in which clients try them. Raises OSError, and UnicodeError for a label that is
    empty or too long."""
    answers = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return tuple(dict.fromkeys(_address_of_entry(answer[4]) for answer in answers))


def describe_unknown_host(host: str, error: Exception) -> tuple[str, str]:
    """Return the message and the advice for a failed lookup."""
    if isinstance(error, socket.gaierror) and error.errno == socket.EAI_AGAIN:
        return (
            f"the name {host} could not be looked up: {_describe_error(error)}",
            "Check the network and /etc/resolv.conf, or give the address as a number.",
        )
    return (
        f"the host {host} is not known: {_describe_error(error)}",
        "Correct its name, or give its address.",
    )


def _describe_error(error: Exception) -> str:
    if isinstance(error, UnicodeError):
        return "a part between its dots is empty, longer than 63 characters, or has characters that no name has"
    return str(getattr(error, "strerror", None) or error)


def _address_of_entry(entry: tuple[object, ...]) -> str:
    """Return the address of an entry of `getaddrinfo`; that of a link-local address includes the zone."""
    host = str(entry[0])
    if len(entry) == 4 and isinstance(entry[3], int) and entry[3] and "%" not in host:
        return f"{host}%{entry[3]}"
    return host


def parse_numeric_address(host: str) -> str | None:
    """Parse a numeric address, with the zone as the interface's index; None if `host` is a name. Raises UsageError."""
    try:
        address = ip_address(host.strip("[]"))
    except ValueError:
        return None
    return _with_scope(address) if isinstance(address, IPv6Address) else str(address)


def _with_scope(address: IPv6Address) -> str:
    if address.scope_id is None or address.scope_id.isdigit():
        return str(address)
    try:
        return f"{str(address).partition('%')[0]}%{socket.if_nametoindex(address.scope_id)}"
    except OSError as error:
        raise UsageError(
            f"the address {address} names an interface that this machine does not have", "List them with `ip link`."
        ) from error
