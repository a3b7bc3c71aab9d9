"""Directs an application to the tap: by a mount that only the application sees, or by replacing the server's address with the tap's.

Only addresses of exactly this server are replaced, in any form that `howfar.address` can parse. The changed text is otherwise
equivalent.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

from howfar.address import ServerAddress, libpq, parse
from howfar.address.server_address import format_host_port
from howfar.contract.ping_messages import Target, TcpTarget, UnixTarget
from howfar.errors import UsageError
from howfar.services import SERVICES

GrammarInput = TypeVar("GrammarInput")
GrammarResult = TypeVar("GrammarResult")


@dataclass(frozen=True)
class NamedServer:
    """The application's server: its address, and the name by which the user gave it."""

    target: Target
    name: str | None = None
    """The host name as given; None if an IP address or a socket was given."""
    protocol: str | None = None


_WORD_START, _WORD_END = r"(?<![\w.\-])", r"(?![\w\-]|\.\w)"
"""Patterns of a word's boundaries: the word must not be part of a longer name or number."""
_HOST_SUFFIX = re.compile(r"(HOSTNAME|HOSTADDR|HOST|SERVER|ADDRESS|ADDR)$")
_PORT_SUFFIXES = ("PORT", "TCP_PORT")
_SEPARATOR = "\0"
"""Separator of arguments joined to one text, which is searched because an option and its value may be one argument or two."""
_MAX_LISTED = 3
_UNUSED_HOST = "192.0.2.1"
"""An address that no server has: it is reserved for documentation (RFC 5737)."""


@dataclass(frozen=True)
class AddressRewriter:
    """Replaces the address of a server by that of its tap, in arguments and in an environment."""

    hosts: tuple[str, ...]
    """All host names that denote the server: its IP address, the given name, and `localhost` for the loopback address; no brackets."""
    port: int
    protocol: str | None
    tap: TcpTarget

    # ------------------------------------------------------------ arguments

    def rewrite_arguments(self, words: Sequence[str]) -> list[str]:
        """The arguments with the server's address, `{host}` and `{port}` replaced."""
        placeholder_values = {"{host}": self.tap.host, "{port}": str(self.tap.port)}
        rewritten = [self._rewrite_option(word) for word in words]
        rewritten = self._rewrite_flag_pairs(_SEPARATOR.join(rewritten)).split(_SEPARATOR)
        return [_fill_placeholders(word, placeholder_values) for word in rewritten]

    def _rewrite_option(self, word: str) -> str:
        """One argument with the address replaced, in all of it or after its first `=`, as in `--dsn=…` and `env NAME=…`."""
        changed = self.rewrite_text(word)
        name, equals, value = word.partition("=")
        if changed == word and equals and re.fullmatch(r"-{0,2}\w[\w-]*", name):
            return f"{name}={self.rewrite_text(value)}"
        return changed

    def _rewrite_flag_pairs(self, text: str) -> str:
        """The joined arguments with the values of `-h HOST -P PORT` and `--host HOST --port PORT` replaced. Only pairs are replaced,
        because a port next to another host belongs to another server."""
        space = rf"[{_SEPARATOR}\s]"
        flag_pattern = re.compile(
            rf"(?<![^{_SEPARATOR}\s'\"])(?:(?P<host>-h{space}*|--host(?:name)?(?:=|{space}+))"
            rf"|-P{space}*|-p{space}+|--port(?:=|{space}+))"
            rf"(?P<value>[^{_SEPARATOR}\s'\";]+)"
        )
        pairs: list[dict[bool, re.Match[str]]] = []  # the host by True, the port by False
        for match in flag_pattern.finditer(text):
            is_host = match["host"] is not None
            if not pairs or is_host in pairs[-1]:
                pairs.append({})
            pairs[-1][is_host] = match
        replacements: dict[re.Match[str], str] = {}
        for pair in pairs:
            host, port = pair.get(True), pair.get(False)
            if host is None or port is None or port["value"] != str(self.port):
                continue
            if re.fullmatch(self._host_pattern(separate_values=True), host["value"], re.IGNORECASE):
                replacements |= {host: self.tap.host, port: str(self.tap.port)}
        for match in sorted(replacements, key=lambda match: match.start(), reverse=True):
            text = text[: match.start("value")] + replacements[match] + text[match.end("value") :]
        return text

    # ------------------------------------------------------------ the environment

    def rewrite_environment(self, variables: Mapping[str, str]) -> dict[str, str]:
        """The variables with the address replaced, also where host and port are in a pair of variables."""
        rewritten = {name: self.rewrite_text(value) for name, value in variables.items()}
        for host_name, port_name in self._host_port_variables(variables):
            rewritten[host_name], rewritten[port_name] = self.tap.host, str(self.tap.port)
        libpq_variables = {name: variables[name] for name in ("PGHOST", "PGHOSTADDR", "PGPORT") if name in variables}
        if libpq_variables and self._is_server_address(
            _parse_or_none(libpq.parse_environment, libpq_variables), default=libpq.PORT
        ):
            rewritten |= dict.fromkeys(libpq_variables, self.tap.host)
            rewritten["PGPORT"] = str(self.tap.port)
        return rewritten

    def _host_port_variables(self, variables: Mapping[str, str]) -> Iterator[tuple[str, str]]:
        """Pairs of variables, such as DB_HOST and DB_PORT, that name the server."""
        for name, value in variables.items():
            if not re.fullmatch(self._host_pattern(separate_values=True), value, re.IGNORECASE):
                continue
            port_names = [port for port in _port_variables(name) if variables.get(port) == str(self.port)]
            if port_names and not self._is_port_shared(name, variables):
                yield from ((name, port) for port in port_names)

    def _is_port_shared(self, name: str, variables: Mapping[str, str]) -> bool:
        """Whether the port variable of a host variable may also belong to another server, such as that in DB_READ_HOST if there is no
        DB_READ_PORT."""
        prefix = _HOST_SUFFIX.sub("", name)
        if not prefix:
            return False
        for other, value in variables.items():
            port_names = _port_variables(other)
            if not value or not port_names or not other.startswith(prefix):
                continue
            own_port_names = set(port_names) - set(_port_variables(name))
            is_this_server = re.fullmatch(self._host_pattern(), value, re.IGNORECASE) is not None
            if not is_this_server and not own_port_names & variables.keys():
                return True
        return False

    # ------------------------------------------------------------ one text

    def rewrite_text(self, text: str) -> str:
        """A text with the server's address replaced: either each HOST:PORT in it, or the complete text if that is an address."""
        if re.search(self._host_pattern(), text, re.IGNORECASE) is None:
            return text
        host_and_port = rf"{_WORD_START}{self._host_pattern(brackets=True)}:{self.port}{_WORD_END}(?!:\d)"
        changed = re.sub(host_and_port, self._tap_host_and_port, text, flags=re.IGNORECASE)
        return changed if changed != text else self._rewrite_address(text)

    def _rewrite_address(self, text: str) -> str:
        """The text of an address, replaced if host and port are separate or the port is missing."""
        parsed = _parse_or_none(parse, text)
        if parsed is None or not self._is_server_address(parsed.address):
            return text
        expected = (self._address_of_tap(parsed.address), parsed.password)
        for changed in (self._rewrite_url(text), self._rewrite_keywords(text)):
            parsed_again = _parse_or_none(parse, changed)
            if parsed_again is not None and (parsed_again.address, parsed_again.password) == expected:
                return changed
        return text

    def _rewrite_url(self, text: str) -> str:
        """A URL without a port, with the tap's host and port inserted."""
        pattern = rf"(://(?:[^/?#\s]*@)?){self._host_pattern(brackets=True)}(?=[/?#]|$)"
        return re.sub(pattern, lambda match: match[1] + self._tap_host_and_port(), text, count=1, flags=re.IGNORECASE)

    def _rewrite_keywords(self, text: str) -> str:
        """A text of keywords with the address replaced, as in `host=… port=…` and PDO's `mysql:host=…;port=…`."""
        key = r"(\b(?:host|hostaddr|server|unix_host|data source|address|addr)\s*=\s*'?)"
        changed = re.sub(
            rf"{key}{self._host_pattern()}{_WORD_END}", rf"\g<1>{self.tap.host}", text, flags=re.IGNORECASE
        )
        if re.search(r"\bport\s*=", changed, re.IGNORECASE):
            return re.sub(rf"(\bport\s*=\s*'?){self.port}\b", rf"\g<1>{self.tap.port}", changed, flags=re.IGNORECASE)
        host_match = re.search(
            rf"\b(?:host|hostaddr|server)\s*=\s*'?{re.escape(self.tap.host)}'?", changed, re.IGNORECASE
        )
        if host_match is None:
            return text
        is_pdo = not re.search(r"\s\w+=", text) and ":" in text[: host_match.start()]
        separator = ";" if ";" in text or is_pdo else " "
        return f"{changed[: host_match.end()]}{separator}port={self.tap.port}{changed[host_match.end() :]}"

    def _is_server_address(self, address: ServerAddress | None, default: int | None = None) -> bool:
        """Whether an address is the server's. If it has no port, that of its protocol applies, else `default`."""
        if address is None:
            return False
        host = address.hostaddr or address.host
        if host is None or address.socket is not None or host.strip("[]").lower() not in self.hosts:
            return False
        if address.localhost_is_socket and host == "localhost":
            return False
        default_port = SERVICES[address.protocol].port if address.protocol is not None else default
        return (address.port or default_port) == self.port

    def _address_of_tap(self, address: ServerAddress) -> ServerAddress:
        is_named = address.host is not None and address.host.lower() in self.hosts
        return replace(
            address,
            port=self.tap.port,
            host=self.tap.host if is_named else address.host,
            hostaddr=self.tap.host if address.hostaddr is not None else None,
        )

    def _host_pattern(self, *, brackets: bool = False, separate_values: bool = False) -> str:
        """A pattern of the server's host names. `separate_values`: host and port are separate; `localhost` is then excluded for MySQL,
        whose clients use the socket for it."""
        hosts = [
            host for host in self.hosts if not (separate_values and host == "localhost" and self.protocol == "mysql")
        ]
        patterns = [rf"\[{re.escape(host)}\]" if brackets and ":" in host else re.escape(host) for host in hosts]
        return f"(?:{'|'.join(patterns) or '(?!)'})"

    def _tap_host_and_port(self, _match: object = None) -> str:
        return format_host_port(self.tap.host, self.tap.port)

    # ------------------------------------------------------------ what was and what was not replaced

    def replaced_host_names(self, words: Sequence[str], variables: Mapping[str, str]) -> list[str]:
        """Host names of the server that were replaced, so that the application no longer looks them up."""
        changed = [old for old, new in zip(words, self.rewrite_arguments(words), strict=True) if old != new]
        rewritten = self.rewrite_environment(variables)
        changed += [value for name, value in variables.items() if rewritten[name] != value]
        names = [host for host in self.hosts if re.search(r"[a-z]", host) and ":" not in host]
        return [name for name in names if any(_has_word(text, name) for text in changed)]

    def find_unreplaced(self, words: Sequence[str], variables: Mapping[str, str]) -> list[str]:
        """Where the server's host occurs but was not replaced: names of variables, or `an argument`. No value is included."""
        host_word = rf"{_WORD_START}{self._host_pattern()}\]?(?!:\d){_WORD_END}"
        # Tap and server may have the same host; a replaced host would then look unchanged.
        with_unused_host = replace(self, tap=TcpTarget(host=_UNUSED_HOST, port=self.tap.port))

        def is_unreplaced(old: str, new: str) -> bool:
            return old == new and re.search(host_word, old, re.IGNORECASE) is not None

        rewritten = with_unused_host.rewrite_environment(variables)
        variable_names = [name for name, value in variables.items() if is_unreplaced(value, rewritten[name])]
        is_argument = any(
            is_unreplaced(old, new) for old, new in zip(words, with_unused_host.rewrite_arguments(words), strict=True)
        )
        return [*variable_names[:_MAX_LISTED], *(["an argument"] if is_argument else [])]


def _port_variables(name: str) -> list[str]:
    """Names of the variables that may contain the port for the host in variable `name`; empty if `name` is not that of a host."""
    prefix = _HOST_SUFFIX.sub("", name)
    return [] if prefix == name else [f"{name}_PORT", *(prefix + port for port in _PORT_SUFFIXES)]


def _has_word(text: str, word: str) -> bool:
    return re.search(f"{_WORD_START}{re.escape(word)}{_WORD_END}", text, re.IGNORECASE) is not None


def _parse_or_none(grammar: Callable[[GrammarInput], GrammarResult], source: GrammarInput) -> GrammarResult | None:
    """The result of `grammar` for `source`; None if `source` cannot be parsed."""
    try:
        return grammar(source)
    except UsageError:
        return None


@dataclass(frozen=True)
class Insertion:
    """What makes a command connect to the tap: a mount, or rewritten arguments and environment."""

    prefix: tuple[str, ...] = ()
    bind: tuple[str, str] | None = None
    rewriter: AddressRewriter | None = None
    placeholder_values: Mapping[str, str] | None = None
    """Values of `{host}` and `{port}` in arguments if there is no tap."""

    def argv(self, command: Sequence[str]) -> list[str]:
        if self.rewriter is not None:
            return self.rewriter.rewrite_arguments(command)
        return [_fill_placeholders(word, self.placeholder_values or {}) for word in command]

    def environment(self) -> dict[str, str]:
        """This program's environment, rewritten for the command."""
        return self.rewriter.rewrite_environment(os.environ) if self.rewriter is not None else dict(os.environ)

    def replaced_names(self, command: Sequence[str]) -> list[str]:
        """Host names of the server that were replaced in a command or in this program's environment."""
        return self.rewriter.replaced_host_names(command, os.environ) if self.rewriter is not None else []

    def advice(self, command: Sequence[str]) -> str:
        """Advice if the command made no connection to the tap."""
        from howfar.findings import join  # numpy, which --help need not import

        unreplaced = self.rewriter.find_unreplaced(command, os.environ) if self.rewriter is not None else []
        if not unreplaced:
            return (
                "Is --server the address that it uses? In arguments and variables the tap replaces HOST:PORT, addresses as in "
                "docs/addresses.md, {host} and {port} in arguments, and pairs such as DB_HOST and DB_PORT. "
                "Else record its packets with --interface."
            )
        return (
            f"The server's host was not replaced in {join(unreplaced)}: it stands there without its port, with a port that "
            "another host shares, or where it may mean a socket. Write 127.0.0.1:PORT, set the port's variable too, or write {host} "
            "and {port} in an argument."
        )


def _fill_placeholders(word: str, values: Mapping[str, str]) -> str:
    for name, value in values.items():
        word = word.replace(name, value)
    return word


def make_insertion(server: NamedServer, tap: Target | None) -> Insertion:
    """The insertion that directs a command to `tap` instead of `server`. Without a tap, the command runs in the same kinds of
    namespaces but without a mount, so that its times can be compared.

    Raises UsageError.
    """
    target = server.target
    if isinstance(target, UnixTarget):
        bind = None if tap is None else (_socket_path(tap), _check_socket(target.path))
        return Insertion(mount_namespace_prefix(), bind)
    if tap is None:
        return Insertion(placeholder_values={"{host}": target.host, "{port}": str(target.port)})
    assert isinstance(tap, TcpTarget), "a TCP server has a TCP tap"
    hosts = [target.host, *([server.name.strip("[]").lower()] if server.name else [])]
    hosts += ["localhost"] if target.host in ("127.0.0.1", "::1") else []
    return Insertion(rewriter=AddressRewriter(tuple(dict.fromkeys(hosts)), target.port, server.protocol, tap))


def mount_namespace_prefix() -> tuple[str, ...]:
    """Command prefix that starts a command in its own mount namespace."""
    user = () if os.geteuid() == 0 else ("--user", "--map-current-user", "--keep-caps")
    return ("unshare", *user, "--mount", "--propagation", "private", "--")


def _check_socket(path: str) -> str:
    """The path of a socket, checked. Raises UsageError."""
    resolved = Path(path).resolve()
    if not resolved.is_socket():
        raise UsageError(
            f"{path} {'is not a socket' if resolved.exists() else 'does not exist'}",
            "Is the server running? Name its socket, or HOST:PORT, with --server.",
        )
    return str(resolved)


def _socket_path(target: Target) -> str:
    assert isinstance(target, UnixTarget), "a server on a Unix socket has a tap on one"
    return target.path
