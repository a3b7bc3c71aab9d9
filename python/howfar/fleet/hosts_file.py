"""`hosts.toml`: the hosts, how to reach them, and their roles."""

from __future__ import annotations

import ipaddress
import re
import shlex
from pathlib import Path
from typing import Annotated, Literal, get_args

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from howfar.errors import UsageError
from howfar.file_kinds import HEAD_BYTES, refuse_own
from howfar.toml_text import MalformedToml, parse_toml

Role = Literal["client", "server", "replica", "hop", "application"]
ROLES: tuple[Role, ...] = get_args(Role)
BOTH: tuple[Role, ...] = ROLES[:2]
"""Roles that every run needs."""
UNNAMED: tuple[Role, ...] = ROLES[:3]
"""Roles for which howfar chooses hosts if `--place` names none."""
LOCAL = "local"
"""Value of the key `ssh` that means this machine."""
FIRST_PORT = 6379
PORTS = 5
"""Number of consecutive ports: Ray's head, node manager, object manager and agents."""
WORKER_PORTS = (20000, 20099)
_NAME = re.compile(r"[a-z][a-z0-9-]{0,30}")


def _address(word: str) -> str:
    try:
        found = ipaddress.IPv4Address(word)
    except ValueError as error:
        raise ValueError("give an IPv4 address, by which all other hosts reach this one") from error
    if found.is_loopback or found.is_unspecified:
        raise ValueError("the other hosts cannot reach this address")
    return str(found)


def _arguments(word: str) -> str:
    try:
        shlex.split(word)
    except ValueError as error:
        raise ValueError(f"{word!r} is no list of arguments: {error}") from error
    return word


def _cpus(word: str) -> str:
    parse_cpus(word)
    return word


def parse_cpus(word: str) -> tuple[int, ...]:
    """Parse a CPU list such as `0-3,8`. Raises ValueError."""
    found: list[int] = []
    for part in word.split(","):
        first, dash, last = part.strip().partition("-")
        if not first.isdigit() or (dash and not last.isdigit()):
            raise ValueError(f"{word!r} is no list of CPUs such as 0-3,8")
        found += range(int(first), int(last or first) + 1)
    if not found:
        raise ValueError(f"{word!r} names no CPU")
    return tuple(dict.fromkeys(found))


class HostSpec(BaseModel):
    """One host of the file."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    address: Annotated[str, AfterValidator(_address)]
    ssh: Annotated[str, AfterValidator(_arguments)] = ""
    """Arguments of ssh; empty: the address. `local`: this machine."""
    roles: tuple[Role, ...] = ROLES
    cpus: Annotated[str, AfterValidator(_cpus)] | None = None
    """CPUs that howfar may use. None: all."""
    python: str | None = None
    """Python of an environment with `howfar[hosts]`. None: howfar makes an environment on that host."""
    zone: str | None = None
    """Its location, for `howfar hosts show` and reports. None: as the host's cloud reports."""
    rack: str | None = None

    @property
    def is_local(self) -> bool:
        return self.ssh == LOCAL


class HostsFile(BaseModel):
    """The complete file."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    hosts: dict[str, HostSpec] = Field(min_length=1)
    address: Annotated[str, AfterValidator(_address)] | None = None
    """Address of this machine, as the hosts reach it. None: the local host's, or else that of the route to the first host."""
    first_port: int = Field(FIRST_PORT, ge=1024, le=65535 - PORTS)

    def with_role(self, role: Role) -> tuple[str, ...]:
        return tuple(name for name, host in self.hosts.items() if role in host.roles)


def read_hosts(path: Path) -> HostsFile:
    """Read and check a hosts file. Raises UsageError."""
    try:
        with path.open("rb") as file:
            refuse_own(path, file.read(HEAD_BYTES), "a file of hosts")
        text = path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise UsageError(f"the file of hosts {path} cannot be read: {why}", "docs/hosts.md shows one.") from error
    return parse_hosts(text, str(path))


def parse_hosts(text: str, name: str = "hosts.toml") -> HostsFile:
    """Parse and check the text of a hosts file. Raises UsageError."""
    try:
        found = HostsFile.model_validate(parse_toml(text))
    except MalformedToml as error:
        raise UsageError(
            f"{name}:{error.line}: malformed TOML: {error}", "docs/hosts.md shows a file of hosts."
        ) from error
    except ValidationError as error:
        # A misspelt key is also reported as missing; report the misspelling.
        first = max(error.errors(), key=lambda each: each["type"] == "extra_forbidden")
        where = ".".join(map(str, first["loc"]))
        if first["type"] == "extra_forbidden":
            known = HostSpec if first["loc"][0] == "hosts" else HostsFile
            raise UsageError(f"{name}: there is no key {where}", f"Known: {', '.join(known.model_fields)}.") from error
        reason = first["msg"].removeprefix("Value error, ")
        raise UsageError(f"{name}: {where}: {reason}", "docs/hosts.md shows a file of hosts.") from error
    _check(found, name)
    return found


def _check(file: HostsFile, name: str) -> None:
    for host in file.hosts:
        if not _NAME.fullmatch(host):
            raise UsageError(
                f"{name}: {host!r} is no name for a host", "Use small letters, digits and -, a letter first."
            )
    by_address: dict[str, str] = {}
    for host, spec in file.hosts.items():
        if spec.address in by_address:
            raise UsageError(
                f"{name}: {by_address[spec.address]} and {host} have one address, {spec.address}",
                "Two hosts are two machines. On one machine, use `howfar run` without --on: the laboratory has two hosts.",
            )
        by_address[spec.address] = host
    local = [host for host, spec in file.hosts.items() if spec.is_local]
    if len(local) > 1:
        raise UsageError(f"{name}: {' and '.join(local)} are both this machine", 'One host may have ssh = "local".')
    if local and file.address not in (None, file.hosts[local[0]].address):
        raise UsageError(
            f"{name}: this machine has the address {file.address} and, as host {local[0]}, {file.hosts[local[0]].address}",
            "Leave the first one out.",
        )
