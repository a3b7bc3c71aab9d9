"""Runs commands on a host over plain ssh, or on this machine, with the user's ssh configuration and never with a password prompt."""

from __future__ import annotations

import shlex
import subprocess
from collections.abc import Sequence

from howfar.engine.process import own_environment
from howfar.errors import LabError
from howfar.fleet.hosts_file import HostSpec

_OPTIONS = (
    "-o", "BatchMode=yes", "-o", "ConnectTimeout=10", "-o", "ServerAliveInterval=2", "-o", "ServerAliveCountMax=4",
    "-T",
)  # fmt: skip
_SSH_FAILED = 255
"""Exit code of ssh that means that ssh itself failed."""
_TIMEOUT_S = 60.0
_MAX_OUTPUT_CHARACTERS = 400
_UNREACHABLE_MESSAGES = (
    "Connection refused",
    "No route to host",
    "Network is unreachable",
    "timed out",
    "Could not resolve",
)
_NO_ROUTE_ADVICE = (
    "Is the host up, is its name or address right, and does sshd listen there, at the port that ssh uses?"
)
_NO_LOGIN_ADVICE = "It must work in a terminal without a password (a key, an agent), and the host's key must be known."


def command_on(host: HostSpec, command: Sequence[str]) -> list[str]:
    """Return the argument list that runs `command` on a host, with standard streams forwarded."""
    if host.is_local:
        return list(command)
    return ["ssh", *_OPTIONS, *shlex.split(host.ssh or host.address), "--", shlex.join(command)]


def ask(
    name: str, host: HostSpec, command: Sequence[str], stdin: bytes = b"", timeout_s: float = _TIMEOUT_S
) -> subprocess.CompletedProcess[bytes]:
    """Run a command on a host and return its result. Raises LabError if the host cannot be reached."""
    arguments = command_on(host, command)
    try:
        result = subprocess.run(arguments, input=stdin, capture_output=True, timeout=timeout_s, env=own_environment())
    except FileNotFoundError as error:
        raise LabError(f"the program {error.filename} was not found", "Install openssh-client.") from error
    except subprocess.TimeoutExpired as error:
        raise LabError(
            f"host {name} did not answer within {timeout_s:.0f} s to: {shlex.join(arguments[:12])}",
            "Does that command work in a terminal, without a password?",
        ) from error
    if result.returncode == _SSH_FAILED and not host.is_local:
        output = tail_of_output(result.stderr)
        raise LabError(
            f"host {name} cannot be reached by `ssh {host.ssh or host.address}`: {output}",
            _NO_ROUTE_ADVICE if any(word in output for word in _UNREACHABLE_MESSAGES) else _NO_LOGIN_ADVICE,
        )
    return result


def tail_of_output(output: bytes) -> str:
    """Return the end of a program's output, from the start of a line."""
    text = output.decode(errors="replace").strip()
    if len(text) > _MAX_OUTPUT_CHARACTERS:
        text = text[-_MAX_OUTPUT_CHARACTERS:].partition("\n")[2] or text[-_MAX_OUTPUT_CHARACTERS:]
    return text or "it said nothing"
