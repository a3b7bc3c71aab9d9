"""The doctor's proposals, applied as a user would copy them: lines for the server's file, the client, and a shell, which runs them."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tests.lab.doctor_cases import FORWARDERS

_PATH = re.compile(r"(/[\w./-]+\.sock)")
_DIRECTORY = re.compile(r"psycopg\.connect\(host='(/[\w./-]+)', port=(\d+)")


@dataclass
class Proposed:
    """Proposed lines. `server`: of its file. `path`: the client's path to the socket. `mode`: how the client uses connections."""

    server: list[str] = field(default_factory=list)
    path: str = ""
    mode: str = ""
    client_options: list[str] = field(default_factory=list)
    """Options of the client's command line."""
    forwarder: str = ""
    """The line of the program that forwards connections."""
    sql: list[str] = field(default_factory=list)
    hba: list[str] = field(default_factory=list)
    """Lines to insert in pg_hba.conf above those that begin with local."""
    after_restart: list[str] = field(default_factory=list)
    """Shell commands."""
    all_lines: list[str] = field(default_factory=list)

    @classmethod
    def of(cls, findings: Sequence[Mapping[str, Any]]) -> Proposed:
        made = cls()
        changes = [change for finding in findings if finding["severity"] == "change" for change in finding["changes"]]
        for change in changes:
            lines: list[str] = change["lines"]
            made.all_lines += lines
            where = change["where"]
            if "after the restart" in where:
                made.after_restart += lines
            elif where.startswith("shell"):
                for line in lines:
                    subprocess.run(["sh", "-ec", line], check=True)
            elif change["restarts"]:
                made.server += lines
            elif where.startswith("first, in SQL"):
                made.sql += lines
            elif where.startswith("first, in pg_hba.conf"):
                made.hba += lines
            elif where.startswith(FORWARDERS):
                made.forwarder = lines[-1]
            elif not where.startswith("/etc/tmpfiles.d"):
                made._of_client(lines)
        return made

    def _of_client(self, lines: Sequence[str]) -> None:
        for line in lines:
            if line.startswith("mariadb --"):
                self.client_options += [word for word in line.split(" ") if word.startswith("--")]
            if found := _PATH.search(line):
                self.path = found.group(1)
            if found := _DIRECTORY.search(line):
                self.path = f"{found.group(1)}/.s.PGSQL.{found.group(2)}"
            if "persistent" in line.lower() or "pool" in line or "once for each process" in line:
                self.mode = "hold"
            if line == "ssl_disabled=True":
                self.mode = "seldom"

    def applied(self, options: Sequence[str]) -> list[str]:
        """The options of the server's file or command line with these lines applied: later ones win, `# remove` removes."""
        out = {word for line in self.server if line.startswith("# remove") for word in re.findall(r"-\w\b", line)}
        added = [line for line in self.server if not line.startswith(("#", "["))]
        if added and added[0].startswith("-"):
            out |= {line.split(" ")[0] for line in added}
        return [option for option in options if option.split(" ")[0] not in out] + added
