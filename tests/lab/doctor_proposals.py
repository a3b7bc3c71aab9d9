"""The doctor's proposals as a user would copy them: lines for the server's file, for the client, and for a shell, which runs them."""

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
class Proposals:
    """Proposed lines. `server`: for its file; `path`: the client's path to the socket; `mode`: how the client uses connections."""

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
    def from_findings(cls, findings: Sequence[Mapping[str, Any]]) -> Proposals:
        """Collect the proposals; runs those for a shell."""
        found = cls()
        changes = [change for finding in findings if finding["severity"] == "change" for change in finding["changes"]]
        for change in changes:
            lines: list[str] = change["lines"]
            found.all_lines += lines
            where = change["where"]
            if "after the restart" in where:
                found.after_restart += lines
            elif where.startswith("shell"):
                for line in lines:
                    subprocess.run(["sh", "-ec", line], check=True)
            elif change["restarts"]:
                found.server += lines
            elif where.startswith("first, in SQL"):
                found.sql += lines
            elif where.startswith("first, in pg_hba.conf"):
                found.hba += lines
            elif where.startswith(FORWARDERS):
                found.forwarder = lines[-1]
            elif not where.startswith("/etc/tmpfiles.d"):
                found._add_client_lines(lines)
        return found

    def _add_client_lines(self, lines: Sequence[str]) -> None:
        for line in lines:
            if line.startswith("mariadb --"):
                self.client_options += [word for word in line.split(" ") if word.startswith("--")]
            if match := _PATH.search(line):
                self.path = match[1]
            if match := _DIRECTORY.search(line):
                self.path = f"{match[1]}/.s.PGSQL.{match[2]}"
            if "persistent" in line.lower() or "pool" in line or "once for each process" in line:
                self.mode = "hold"
            if line == "ssl_disabled=True":
                self.mode = "seldom"

    def apply(self, options: Sequence[str]) -> list[str]:
        """The options of the server's file or command line with these lines: later ones win, `# remove` removes."""
        removed = {word for line in self.server if line.startswith("# remove") for word in re.findall(r"-\w\b", line)}
        added = [line for line in self.server if not line.startswith(("#", "["))]
        if added and added[0].startswith("-"):
            removed |= {line.split(" ")[0] for line in added}
        return [option for option in options if option.split(" ")[0] not in removed] + added
