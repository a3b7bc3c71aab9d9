"""Files with which clients of `howfar lab` log in."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from howfar.contract.ping_messages import TcpTarget, UnixTarget


def write_secret(file: Path, text: str) -> Path:
    """Write a file that only its owner can read, and return it."""
    file.touch(mode=0o600)
    file.write_text(text)
    return file


def client_options(
    user: str, password: str, target: UnixTarget | TcpTarget, encryption: Sequence[str] = ("loose-skip-ssl",)
) -> str:
    """The text of an option file for the clients of MariaDB and MySQL, so that no password is on a command line."""

    def quote(value: str) -> str:
        return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'

    lines = ["[client]", f"user={quote(user)}", f"password={quote(password)}"]
    if isinstance(target, UnixTarget):
        lines += ["protocol=socket", f"socket={quote(target.path)}"]
    else:
        lines += ["protocol=tcp", f"host={quote(target.host)}", f"port={target.port}"]
    # MariaDB's clients from 11.4 on insist on TLS unless told to skip it. MySQL's clients do not know that option, hence `loose-`.
    return "\n".join([*lines, *encryption, ""])
