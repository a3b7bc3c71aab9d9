"""Parses option files of MySQL and MariaDB as their clients do: groups, includes, quotes, escapes and precedence. No I/O.

`tests/unit/test_option_files.py` compares the parser with my_print_defaults.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Final

from howfar.address.parameters import (
    EMPTY_ADDRESS,
    ENCRYPTED,
    PLAIN,
    Applied,
    Ignored,
    Parameter,
    Refused,
    choice,
    ignored,
    parse_algorithm,
    parse_compression_level,
    parse_port,
    parse_ssl_mode,
    parse_switch,
    parse_tls_versions,
    parsed_field,
    password_field,
    read_parameters,
    refused,
    text_field,
)
from howfar.address.server_address import ParsedTarget, ServerAddress, SslMode
from howfar.errors import UsageError

GROUPS: Final = ("mysql", "mariadb-client", "client", "client-server", "client-mariadb")
"""Groups that MariaDB's command-line client reads; MySQL's reads `mysql` and `client`."""
_MAX_DEPTH: Final = 10
_MAX_OPTIONS: Final = 10_000
_ESCAPES: Final = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "s": " ", "\\": "\\", '"': '"', "'": "'"}
_SPACE: Final = " \t\n\v\f\r"


@dataclass(frozen=True)
class Files:
    """Functions that read files and directories; they return None for those that do not exist or are ignored."""

    read: Callable[[str], str | None]
    names: Callable[[str], list[str] | None]
    """Returns the paths of a directory's files."""


@dataclass(frozen=True)
class OptionLine:
    """An option, with its file and line."""

    source: str
    number: int
    name: str
    value: str | None


def read_options(source: str, files: Files, suffix: str = "") -> list[OptionLine]:
    """Return the options in the groups that clients read, in the order of the files; later ones take precedence. Raises UsageError."""
    requested_groups = {*GROUPS, *(f"{group}{suffix}" for group in GROUPS)}
    options: list[OptionLine] = []
    for group, line in _lines(source, files, 0):
        if group in requested_groups:
            options.append(line)
        if len(options) > _MAX_OPTIONS:
            raise UsageError(f"{source} has more than {_MAX_OPTIONS} options", "It is probably the wrong file.")
    return options


def _lines(source: str, files: Files, depth: int) -> Iterator[tuple[str, OptionLine]]:
    """Yield each option with its group; those of an included file come in place of the directive that includes it."""
    content = files.read(source)
    group: str | None = None
    for number, line in enumerate((content or "").split("\n"), 1):
        stripped = line.strip(_SPACE)
        if not stripped or stripped[0] in "#;":
            continue
        if stripped[0] == "!":
            yield from _included_lines(source, number, stripped[1:].strip(_SPACE), files, depth)
        elif stripped[0] == "[":
            if "]" not in stripped:
                raise UsageError(f"{source}:{number}: the name of a group has no ]", "Correct that line.")
            group = stripped[1 : stripped.index("]")].rstrip(_SPACE)
        elif group is None:
            raise UsageError(f"{source}:{number}: an option stands before the first group", "Write [client] above it.")
        else:
            yield group, _parse_option(source, number, stripped)


def _included_lines(
    source: str, number: int, directive: str, files: Files, depth: int
) -> Iterator[tuple[str, OptionLine]]:
    word, *rest = directive.split(None, 1)
    if word not in ("include", "includedir") or not rest:
        return
    path = rest[0].strip(_SPACE)
    if depth >= _MAX_DEPTH:
        raise UsageError(
            f"{source}:{number}: files include each other more than {_MAX_DEPTH} deep", "Correct that line."
        )
    if word == "include":
        yield from _lines(path, files, depth + 1)
        return
    names = files.names(path)
    if names is None:
        raise UsageError(f"{source}:{number}: the directory {path} cannot be read", "Correct that line.")
    for name in sorted(names):
        if name.endswith(".cnf"):
            yield from _lines(name, files, depth + 1)


def _parse_option(source: str, number: int, stripped: str) -> OptionLine:
    """Parse an option without its comment, and resolve escapes in its value."""
    stripped = _without_comment(stripped)
    name, equals, value = stripped.partition("=")
    name = name.strip(_SPACE)
    if not equals:
        return OptionLine(source, number, name, None)
    value = value.strip(_SPACE)
    if len(value) > 1 and value[0] in "'\"" and value[0] == value[-1]:
        value = value[1:-1]
    return OptionLine(source, number, name, _unescape(value))


def _without_comment(stripped: str) -> str:
    quote, is_escaped = "", False
    for position, character in enumerate(stripped):
        if character in "'\"" and not is_escaped:
            quote = "" if quote == character else quote or character
        if not quote and character == "#":
            return stripped[:position]
        is_escaped = bool(quote) and character == "\\" and not is_escaped
    return stripped


def _unescape(value: str) -> str:
    unescaped, rest = "", iter(value)
    for character in rest:
        if character != "\\":
            unescaped += character
            continue
        character_after = next(rest, "")
        unescaped += _ESCAPES.get(character_after, "\\" + character_after)
    return unescaped


# ---------------------------------------------------------------- what the options mean

_CAPATH_REFUSAL: Final = "only the file of ssl-ca is read"
PARAMETERS: Final[dict[str, Parameter]] = {
    "host": text_field("host"),
    "port": parsed_field("port", lambda value: None if value == "0" else parse_port(value)),
    "socket": text_field("socket"),
    "user": text_field("user"),
    "password": password_field(),
    "database": text_field("database"),
    "protocol": choice(
        tcp=ServerAddress(localhost_is_socket=False), socket=ServerAddress(localhost_is_socket=True), default=EMPTY_ADDRESS
    ),
    "ssl": choice(true=ENCRYPTED, false=PLAIN),
    "ssl-mode": parsed_field("ssl_mode", parse_ssl_mode),
    "ssl-ca": text_field("ssl_ca"),
    "ssl-cert": text_field("ssl_cert"),
    "ssl-key": text_field("ssl_key"),
    "ssl-cipher": text_field("ssl_cipher"),
    "ssl-verify-server-cert": choice(true=ServerAddress(ssl_mode="VERIFY_IDENTITY"), false=EMPTY_ADDRESS),
    "tls-version": parsed_field("tls_versions", parse_tls_versions),
    "compress": choice(true=ServerAddress(compression="zlib"), false=EMPTY_ADDRESS),
    "compression-algorithms": parsed_field("compression", lambda value: parse_algorithm(value.split(",")[0])),
    "zstd-compression-level": parsed_field("compression_level", parse_compression_level),
    "get-server-public-key": parsed_field("fetch_server_key", parse_switch),
    "server-public-key-path": text_field("server_key_file"),
    "enable-cleartext-plugin": parsed_field("allow_cleartext_password", parse_switch),
    "ssl-capath": Refused(_CAPATH_REFUSAL, "Write ssl-ca=FILE."),
    **refused("ssl-crl", "ssl-crlpath", why="revocation lists are not checked"),
    **refused("ssl-fp", "ssl-fplist", "tls-fp", "tls-fplist", "tls-peer-fp", "tls-peer-fp-list",
              why="fingerprints are not checked", instead="Write ssl-ca=FILE and ssl-verify-server-cert."),
    "ssl-passphrase": Refused("keys with a passphrase are not read", "Name a key without one as ssl-key."),
    "tls-ciphersuites": Refused("a list of cipher suites is not supported", "Write ssl-cipher=NAME."),
    "ssl-fips-mode": Refused("FIPS mode is set in OpenSSL's own configuration", exceptions=("off", "0")),
    "tls-sni-servername": Refused("howfar sends the name of the host itself"),
    "dns-srv-name": Refused("DNS SRV records are not looked up", "Write host=NAME."),
    "login-path": Refused("login paths are not read", "Write user=NAME, and use --ask-password."),
    **ignored("ssl-session-data", "ssl-session-data-continue-on-failed-reuse"),
    "init-command": Ignored("only the measurement's own statements are sent"),
    "bind-address": Ignored("the kernel chooses the client's address"),
}  # fmt: skip
"""Client options that affect the connection. Other options affect only the client program and are skipped."""
_OPTION_PREFIXES: Final = ("loose-", "enable-", "skip-", "disable-")


def parse(source: str, files: Files, suffix: str = "") -> ParsedTarget:
    """Parse the address and password of an option file. Raises UsageError, which names the line but repeats no value."""
    values: dict[str, tuple[OptionLine, str]] = {}
    for line in read_options(source, files, suffix):
        resolved = _resolve_name(line)
        if resolved is not None:
            values.pop(resolved[0], None)
            values[resolved[0]] = (line, resolved[1])
    parsed = ParsedTarget(ServerAddress(protocol="mysql"), form="option file")
    for name, (line, value) in values.items():
        parsed = parsed.updated(_read_option(name, line, value))
    address = replace(parsed.address, ssl_mode=_tls_mode(values))
    return replace(parsed, address=_choose_host_or_socket(address))


def _read_option(name: str, line: OptionLine, value: str) -> ParsedTarget:
    return read_parameters(f"option file, {line.source}:{line.number}", [(name, value)], PARAMETERS)


def _resolve_name(line: OptionLine) -> tuple[str, str] | None:
    """Return an option's complete name, and its value; None if it does not affect the connection. Raises UsageError."""
    name = line.name.lower().replace("_", "-")
    value = line.value
    while (
        prefix := next(
            (candidate for candidate in _OPTION_PREFIXES if name.startswith(candidate) and name not in PARAMETERS), None
        )
    ) is not None:
        name = name.removeprefix(prefix)
        if prefix in ("skip-", "disable-"):
            value = "0"
    if name not in PARAMETERS:
        completions = [option for option in PARAMETERS if len(name) > 2 and option.startswith(name)]
        name = completions[0] if len(completions) == 1 else name
    if name not in PARAMETERS:
        if name.startswith(("ssl", "tls")):
            close_matches = difflib.get_close_matches(name, PARAMETERS, 1)
            suggestion = f"Did you mean {close_matches[0]}? " if close_matches else ""
            raise UsageError(
                f"{line.source}:{line.number}: an option of TLS is not known",
                f"{suggestion}Correct that line, or leave it out.",
            )
        return None
    if name == "password" and value is None:
        raise UsageError(
            f"{line.source}:{line.number}: password has no value", "Use --ask-password to be asked for it."
        )
    if value is None and isinstance(PARAMETERS[name], Applied) and name not in _SWITCHES:
        raise UsageError(f"{line.source}:{line.number}: {name} has no value", "Correct that line.")
    return name, "1" if value is None else value


_SWITCHES: Final = {"ssl", "ssl-verify-server-cert", "compress", "get-server-public-key", "enable-cleartext-plugin"}


def _tls_mode(values: dict[str, tuple[OptionLine, str]]) -> SslMode | None:
    """Determine the TLS mode. As in MariaDB's client, an option that names a file for TLS requests TLS, and the last `ssl` counts."""
    mode: SslMode | None = None
    is_verified = False
    for name, (line, value) in values.items():
        if name in ("ssl", "ssl-mode"):
            mode = _read_option(name, line, value).address.ssl_mode
        elif name in ("ssl-cert", "ssl-key", "ssl-cipher") and value:
            mode = "REQUIRED" if mode in (None, "DISABLED") else mode
        elif name == "ssl-ca" and value:
            mode = "VERIFY_CA" if mode in (None, "DISABLED", "REQUIRED") and "ssl-mode" not in values else mode
        elif (
            name == "ssl-verify-server-cert" and value not in ("0", "") and value.lower() not in ("off", "false", "no")
        ):
            is_verified = True  # regardless of `ssl`: the client verifies even after skip-ssl
    return "VERIFY_IDENTITY" if is_verified else mode


def _choose_host_or_socket(address: ServerAddress) -> ServerAddress:
    """Reduce an address to a host or a socket, as `localhost_is_socket` says; if it is None, a host other than localhost means TCP."""
    uses_socket = address.localhost_is_socket
    if uses_socket is False or (uses_socket is None and address.host not in (None, "localhost")):
        return replace(address, socket=None, host=address.host or "localhost", localhost_is_socket=None)
    return replace(address, host=None, port=None, localhost_is_socket=None if address.socket is not None else True)
