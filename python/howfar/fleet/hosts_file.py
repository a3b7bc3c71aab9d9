"""Reads `hosts.toml`: the hosts, how to reach them, and their roles."""

from __future__ import annotations

import ipaddress
import re
import shlex
from pathlib import Path
from typing import Annotated, Literal, get_args

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from howfar.errors import UsageError
from howfar.file_kinds import HEADER_BYTES, refuse_own_files
from howfar.toml_text import MalformedToml, parse_toml

Role = Literal["client", "server", "replica", "hop", "application"]
ROLES: tuple[Role, ...] = get_args(Role)
REQUIRED_ROLES: tuple[Role, ...] = ROLES[:2]
"""Roles that every run needs."""
AUTOMATIC_ROLES: tuple[Role, ...] = ROLES[:3]
"""Roles for which howfar chooses hosts if `--place` names none."""
LOCAL = "local"
"""Value of the key `ssh` that means this machine."""
FIRST_PORT = 6379
PORTS = 5
"""Number of consecutive ports: Ray's head, node manager, object manager and agents."""
WORKER_PORTS = (20000, 20099)
_NAME = re.compile(r"[a-z][a-z0-9-]{0,30}")


def _address(text: str) -> str:
    try:
        address = ipaddress.IPv4Address(text)
    except ValueError as error:
        raise ValueError("give an IPv4 address, by which all other hosts reach this one") from error
    if address.is_loopback or address.is_unspecified:
        raise ValueError("the other hosts cannot reach this address")
    return str(address)


def _arguments(text: str) -> str:
    try:
        shlex.split(text)
    except ValueError as error:
        raise ValueError(f"{text!r} is no list of arguments: {error}") from error
    return text


def _cpus(text: str) -> str:
    parse_cpus(text)
    return text


def parse_cpus(text: str) -> tuple[int, ...]:
    """Parse a CPU list such as `0-3,8`. Raises ValueError."""
    cpus: list[int] = []
    for part in text.split(","):
        low, dash, high = part.strip().partition("-")
        if not low.isdigit() or (dash and not high.isdigit()):
            raise ValueError(f"{text!r} is not a list of CPUs such as 0-3,8")
        cpus += range(int(low), int(high or low) + 1)
    if not cpus:
        raise ValueError(f"{text!r} names no CPU")
    return tuple(dict.fromkeys(cpus))


class HostSpec(BaseModel):
    """One host of the file."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    address: Annotated[str, AfterValidator(_address)]
    ssh: Annotated[str, AfterValidator(_arguments)] = ""
    """Arguments of ssh; empty means the address, and `local` means this machine."""
    roles: tuple[Role, ...] = ROLES
    cpus: Annotated[str, AfterValidator(_cpus)] | None = None
    """CPUs that howfar may use; None means all."""
    python: str | None = None
    """Python of an environment with `howfar[hosts]`; None if howfar makes an environment on that host."""
    zone: str | None = None
    """The host's zone, for `howfar hosts show` and reports; None for the zone that the host's cloud reports."""
    rack: str | None = None

    @property
    def is_local(self) -> bool:
        return self.ssh == LOCAL


class HostsFile(BaseModel):
    """The complete file."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    hosts: dict[str, HostSpec] = Field(min_length=1)
    address: Annotated[str, AfterValidator(_address)] | None = None
    """Address by which the hosts reach this machine. None for the address of the local host in the file, or, without one, of the
    interface that leads to the first host."""
    first_port: int = Field(FIRST_PORT, ge=1024, le=65535 - PORTS)

    def with_role(self, role: Role) -> tuple[str, ...]:
        return tuple(name for name, host in self.hosts.items() if role in host.roles)


def read_hosts(path: Path) -> HostsFile:
    """Read and check a hosts file. Raises UsageError."""
    try:
        with path.open("rb") as file:
            refuse_own_files(path, file.read(HEADER_BYTES), "a file of hosts")
        text = path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise UsageError(f"the file of hosts {path} cannot be read: {why}", "docs/hosts.md shows one.") from error
    return parse_hosts(text, str(path))


def parse_hosts(text: str, name: str = "hosts.toml") -> HostsFile:
    """Parse and check the text of a hosts file. Raises UsageError."""
    try:
        file = HostsFile.model_validate(parse_toml(text))
    except MalformedToml as error:
        raise UsageError(
            f"{name}:{error.line}: malformed TOML: {error}", "docs/hosts.md shows a file of hosts."
        ) from error
    except ValidationError as error:
        # A misspelt required key gives two errors, missing and unknown; report the unknown key.
        first_error = max(error.errors(), key=lambda details: details["type"] == "extra_forbidden")
        key_path = ".".join(map(str, first_error["loc"]))
        if first_error["type"] == "extra_forbidden":
            model = HostSpec if first_error["loc"][0] == "hosts" else HostsFile
            raise UsageError(
                f"{name}: there is no key {key_path}", f"Known: {', '.join(model.model_fields)}."
            ) from error
        reason = first_error["msg"].removeprefix("Value error, ")
        raise UsageError(f"{name}: {key_path}: {reason}", "docs/hosts.md shows a file of hosts.") from error
    _check(file, name)
    return file


def _check(file: HostsFile, name: str) -> None:
    for host in file.hosts:
        if not _NAME.fullmatch(host):
            raise UsageError(
                f"{name}: {host!r} is no name for a host",
                "Use lower-case letters, digits and -, beginning with a letter.",
            )
    by_address: dict[str, str] = {}
    for host, spec in file.hosts.items():
        if spec.address in by_address:
            raise UsageError(
                f"{name}: {by_address[spec.address]} and {host} have one address, {spec.address}",
                "Two hosts are two machines. On one machine, use `howfar run` without --on: the laboratory has two hosts.",
            )
        by_address[spec.address] = host
    local_hosts = [host for host, spec in file.hosts.items() if spec.is_local]
    if len(local_hosts) > 1:
        raise UsageError(
            f"{name}: {' and '.join(local_hosts)} are both this machine", 'One host may have ssh = "local".'
        )
    if local_hosts and file.address not in (None, file.hosts[local_hosts[0]].address):
        raise UsageError(
            f"{name}: this machine has the address {file.address} and, as host {local_hosts[0]}, {file.hosts[local_hosts[0]].address}",
            "Leave out `address` at the top of the file.",
        )
