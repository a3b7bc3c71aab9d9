"""Tables of the parameters in targets: which fields each sets, or why it is ignored or refused; and parsers of values. No I/O.

No message repeats a value, or a name that is not in a table: either may be part of a password.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, Literal

from howfar.address.server_address import SSL_MODES, SYSTEM_CA, ParsedTarget, Secret, ServerAddress
from howfar.errors import UsageError

AddressField = Literal[
    "host", "port", "socket", "user", "database", "database_number", "ssl_mode", "ssl_ca", "ssl_cert", "ssl_key", "ssl_cipher",
    "tls_versions", "sni", "compression", "compression_level", "fetch_server_key", "allow_cleartext_password", "server_key_file",
    "options", "hostaddr", "service", "service_file", "passfile",
]  # fmt: skip
"""A field of `ServerAddress` that a parameter sets to its value."""
EMPTY_ADDRESS = ServerAddress()
NO_EFFECT = "it has no effect on the measurement"
HAS_OWN_TIMEOUTS = "howfar has time limits of its own"
ESCAPING_ADVICE = (
    "If a user or password has one of / ? # @ : % & in it, write %2F, %3F, %23, %40, %3A, %25 or %26 instead."
)
PASSWORD_SOURCES = "--env NAME, --password-file FILE or --ask-password"


@dataclass(frozen=True)
class Applied:
    """A parameter that takes effect. `parse` returns the fields that it sets, or the password; no ValueError contains the value."""

    parse: Callable[[str], ServerAddress | Secret]


@dataclass(frozen=True)
class Ignored:
    """A parameter without effect here."""

    why: str = NO_EFFECT
    exceptions: tuple[str, ...] = ()
    """Values that are refused nevertheless."""
    instead: str = "Leave it out."


@dataclass(frozen=True)
class Refused:
    """A parameter that cannot be ignored and is not supported."""

    why: str
    instead: str = "Leave it out."
    exceptions: tuple[str, ...] = ()
    """Values that are accepted because they request nothing, in lower case."""


Parameter = Applied | Ignored | Refused
ParameterTable = Mapping[str, Parameter]


def text_field(field: AddressField) -> Applied:
    """A parameter that sets a field to its value."""
    return parsed_field(field, str)


def password_field() -> Applied:
    """A parameter whose value is the password."""
    return Applied(Secret)


def parsed_field(field: AddressField, parse: Callable[[str], Any]) -> Applied:
    """A parameter that sets a field to its parsed value; if `parse` returns None, no field is set."""
    return Applied(lambda value: ServerAddress(**{field: parse(value)}))


def ignored(*names: str, why: str = NO_EFFECT) -> dict[str, Parameter]:
    return dict.fromkeys(names, Ignored(why))


def refused(
    *names: str, why: str, instead: str = "Leave it out.", exceptions: tuple[str, ...] = ()
) -> dict[str, Parameter]:
    return dict.fromkeys(names, Refused(why, instead, exceptions))


def read_parameters(
    form: str,
    pairs: Iterable[tuple[str, str]],
    table: ParameterTable,
    fold: Callable[[str], str] = lambda name: name,
    leading_pairs: int = 0,
) -> ParsedTarget:
    """Read parameters into a target, with a note for each ignored one. `fold`: returns the spelling under which names are compared;
    `leading_pairs`: number of leading pairs that come from the part of a URL before its parameters.

    The strongest mode of TLS takes precedence; other contradictions are refused. Raises UsageError.
    """
    by_spelling = {fold(name): (name, parameter) for name, parameter in table.items()}
    address = EMPTY_ADDRESS
    password: Secret | None = None
    notes: list[str] = []
    for position, (raw_name, value) in enumerate(pairs, 1 - leading_pairs):
        if fold(raw_name) not in by_spelling:
            raise _unknown_parameter(form, position, fold(raw_name), by_spelling)
        name, parameter = by_spelling[fold(raw_name)]
        if isinstance(parameter, Refused) or (isinstance(parameter, Ignored) and value.lower() in parameter.exceptions):
            if isinstance(parameter, Ignored) or (value and value.lower() not in parameter.exceptions):
                raise UsageError(f"{name} in the {form} is not supported: {parameter.why}", parameter.instead)
        elif isinstance(parameter, Ignored):
            notes.append(f"{name} is ignored: {parameter.why}")
        elif value:
            parsed_value = _read_value(form, name, parameter, value)
            if isinstance(parsed_value, ServerAddress):
                address = _merge(form, name, address, parsed_value)
            elif password not in (None, parsed_value):
                raise _contradiction(form, name, "password")
            else:
                password = parsed_value
    return ParsedTarget(address, password, form, tuple(dict.fromkeys(notes)))


def _unknown_parameter(
    form: str, position: int, name: str, by_spelling: Mapping[str, tuple[str, Parameter]]
) -> UsageError:
    close_matches = difflib.get_close_matches(name, by_spelling, 1, cutoff=0.75)
    known_names = ", ".join(name for name, parameter in by_spelling.values() if isinstance(parameter, Applied))
    suggestion = f"Did you mean {by_spelling[close_matches[0]][0]}? " if close_matches else ""
    return UsageError(
        f"parameter {position} of the {form} is not known", f"{suggestion}Known: {known_names}. {ESCAPING_ADVICE}"
    )


def _read_value(form: str, name: str, parameter: Applied, value: str) -> ServerAddress | Secret:
    try:
        return parameter.parse(value)
    except ValueError as error:
        raise UsageError(f"{name} in the {form}: {error}", "Correct its value, or leave it out.") from None


def _merge(form: str, name: str, merged: ServerAddress, added: ServerAddress) -> ServerAddress:
    for field in (field_info.name for field_info in fields(added)):
        previous, value = getattr(merged, field), getattr(added, field)
        if value is None:
            continue
        if field == "ssl_mode" and previous is not None and "DISABLED" not in (previous, value):
            value = max(previous, value, key=SSL_MODES.index)
        elif field == "ssl_ca" and SYSTEM_CA in (previous, value) and previous is not None:
            value = previous if value == SYSTEM_CA else value
        elif previous is not None and previous != value:
            raise _contradiction(form, name, field)
        merged = replace(merged, **{field: value})
    return merged


def _contradiction(form: str, name: str, field: str) -> UsageError:
    shown_field = field.replace("_", "-")
    return UsageError(f"{name} in the {form} contradicts another parameter: {shown_field} is given twice", "Give one.")


def fold_name(name: str) -> str:
    """Return the spelling under which names are compared that differ only in case, dashes and underscores."""
    return name.lower().replace("_", "").replace("-", "")


# ---------------------------------------------------------------- values


def parse_port(value: str) -> int:
    """A TCP port. Raises ValueError."""
    if not (value.isascii() and value.isdigit() and len(value) < 6 and 1 <= int(value) <= 65535):
        raise ValueError("ports are 1 to 65535")
    return int(value)


def parse_switch(value: str) -> bool:
    """Parse a switch: on/off, true/false, 1/0, yes/no. Raises ValueError."""
    word = value.lower()
    if word in ("on", "true", "1", "yes"):
        return True
    if word in ("off", "false", "0", "no"):
        return False
    raise ValueError("use on or off")


def parse_ssl_mode(value: str) -> str:
    """Parse MySQL's name of a TLS mode, in upper or lower case. Raises ValueError."""
    mode = value.upper().replace("-", "_")
    if mode not in SSL_MODES:
        raise ValueError(f"known modes: {', '.join(SSL_MODES)}")
    return mode


def parse_tls_versions(value: str) -> str:
    """Parse TLS versions: `TLSv1.3` becomes `1.3`, 1.2 and 1.3 together become `any`. Raises ValueError."""
    versions = {name.strip().lower().removeprefix("tlsv").removeprefix("tls") for name in value.split(",")}
    supported = versions - {"1", "1.0", "1.1"}
    if supported == {"1.2", "1.3"} or versions == {"any"}:
        return "any"
    if len(supported) == 1 and supported <= {"1.2", "1.3"}:
        return supported.pop()
    raise ValueError("known versions: TLSv1.2, TLSv1.3, or both, separated by a comma")


def parse_algorithm(value: str) -> str | None:
    """Parse a compression algorithm: `zlib` or `zstd`; None for `uncompressed`. Raises ValueError."""
    if value.lower() in ("uncompressed", "none", "off", "false", "0"):
        return None
    if value.lower() not in ("zlib", "zstd"):
        raise ValueError("known algorithms: zlib, zstd, uncompressed")
    return value.lower()


def parse_compression_level(value: str) -> int:
    if not (value.isascii() and value.isdigit() and len(value) < 3 and 1 <= int(value) <= 22):
        raise ValueError("a level is a number from 1 to 22")
    return int(value)


def choice(**meanings: ServerAddress) -> Applied:
    """A parameter with a few fixed values, compared in lower case without dashes and underscores. 1, on and yes mean true."""

    def read(value: str) -> ServerAddress:
        word = value.lower().replace("-", "").replace("_", "")
        word = {"1": "true", "on": "true", "yes": "true", "0": "false", "off": "false", "no": "false"}.get(word, word)
        if word not in meanings:
            raise ValueError(f"known values: {', '.join(meanings)}")
        return meanings[word]

    return Applied(read)


VERIFIED = ServerAddress(ssl_mode="VERIFY_IDENTITY", ssl_ca=SYSTEM_CA)
"""TLS verified against the authorities that this machine trusts, including the host name."""
VERIFIED_CHAIN = ServerAddress(ssl_mode="VERIFY_CA", ssl_ca=SYSTEM_CA)
ENCRYPTED = ServerAddress(ssl_mode="REQUIRED")
PLAIN = ServerAddress(ssl_mode="DISABLED")
PREFERRED = ServerAddress(ssl_mode="PREFERRED")


def parse_ssl_object(value: str) -> ServerAddress:
    """Parse Node's `ssl`: a switch, or JSON as in `{"rejectUnauthorized":true}`. Raises ValueError."""
    if not value.startswith("{"):
        return ENCRYPTED if parse_switch(value) else PLAIN
    try:
        settings = json.loads(value)
    except (ValueError, RecursionError):
        raise ValueError("it is not JSON") from None
    if set(settings) - {"rejectUnauthorized"} or settings.get("rejectUnauthorized", True) not in (True, False):
        raise ValueError("only rejectUnauthorized is known; write ssl-mode, ssl-ca, ssl-cert and ssl-key")
    return VERIFIED if settings.get("rejectUnauthorized", True) else ENCRYPTED
