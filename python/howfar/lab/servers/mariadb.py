"""MariaDB: found, initialised from a template, loaded once, started fresh for each trial.

The data directory is thrown away, so a server is stopped by SIGKILL. Only one that becomes a template is shut down cleanly.
Loading is in `mariadb_load.py`, a running server in `mariadb_server.py`.
"""

from __future__ import annotations

import hashlib
import os
import re
import secrets
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from howfar.errors import LabError, ServerCrashed, ServerMissing
from howfar.lab.cache import cache_home, file_system_of
from howfar.lab.servers import Ground, Tables
from howfar.lab.servers.mariadb_load import load_tables
from howfar.lab.servers.mariadb_server import MariadbServer, Settings, start_server
from howfar.lab.servers.rows import GENERATOR_VERSION
from howfar.lab.servers.templates import from_template, tidy

_NAMES = ("mariadbd", "mysqld")
_PLACES = ("/usr/sbin", "/usr/local/sbin", "/usr/libexec")
_ROW_BYTES = 250
"""A row with its share of the index on `k`, as InnoDB keeps it (2.4 GB for 10 x 1 000 000 were seen)."""
_POOL_SLACK = 128 * 2**20


@dataclass(frozen=True)
class Program:
    """The server program. `key` changes with its content."""

    path: Path
    version: str
    key: str


def find_program(given: Path | None) -> Program:
    """The MariaDB server program: the one given, else PATH, /usr/sbin and the like. Raises ServerMissing, ServerCrashed."""
    path = given or _search()
    if not (path.is_file() and os.access(path, os.X_OK)):
        raise ServerMissing(f"{path} is no program", "Give the path of a mariadbd, like /usr/sbin/mariadbd.")
    said = _ask_version(path)
    match = re.search(r"Ver (\S+)", said)
    if match is None or "MariaDB" not in said:
        raise ServerMissing(
            f"{path} does not say that it is MariaDB; asked for its version it said {said[:200]!r}",
            "Give the path of a mariadbd.",
        )
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return Program(path, match.group(1), f"mariadb-{match.group(1)}-{digest[:16]}")


def _search() -> Path:
    path = os.pathsep.join([os.environ.get("PATH", ""), *_PLACES])
    for name in _NAMES:
        found = shutil.which(name, path=path)
        if found is not None and "MariaDB" in _ask_version(Path(found)):
            return Path(found).resolve()
    raise ServerMissing(
        f"no MariaDB server was found (looked for {' and '.join(_NAMES)} in PATH and {', '.join(_PLACES)})",
        "Install mariadb-server-core, or name a program with --server PATH.",
    )


def _ask_version(path: Path) -> str:
    try:
        tried = subprocess.run([path, "--no-defaults", "--version"], capture_output=True, text=True, timeout=20)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ServerCrashed(f"{path} --version failed: {error}", "Is it a server program for this machine?") from error
    if tried.returncode != 0:
        said = (tried.stderr or tried.stdout).strip()[-500:] or "nothing"
        raise ServerCrashed(
            f"{path} --version ended with exit code {tried.returncode} and said: {said}",
            "Is it a server program for this machine?",
        )
    return tried.stdout


class MariadbStore:
    """See `servers.Store`."""

    kind = "mariadb"

    def __init__(self, given: Path | None, tables: Tables) -> None:
        self.program = find_program(given)
        self.version = self.program.version
        self.tables = tables
        self.password = secrets.token_urlsafe(18)
        self._ground: Ground | None = None
        self._cache = cache_home() / "templates"

    def data_bytes(self) -> int:
        return self.tables.count * self.tables.size * _ROW_BYTES + _POOL_SLACK

    def prepare(self, ground: Ground) -> dict[str, Any]:
        self._ground = ground
        tidy(self._cache)
        (ground.work / "tmp").mkdir()
        data = ground.work / "data"
        if self.tables.count == 0:
            kept = from_template(self._cache / "empty", self.program.key, data, self._initialise)
        else:
            name = f"{self.program.key}-{self.tables.count}x{self.tables.size}-g{GENERATOR_VERSION}"
            kept = from_template(self._cache / "loaded", name, data, self._load)
        return {
            "data_file_system": file_system_of(data),
            "data_from_template": kept,
            "tables": self.tables.count,
            "table_size": self.tables.size,
        }

    def start(self, *, networking: bool) -> MariadbServer:
        return self._start(networking=networking, loading=False)

    def _settings(self, *, networking: bool, loading: bool) -> Settings:
        assert self._ground is not None, "prepare() comes before start()"
        return Settings(
            program=self.program.path,
            ground=self._ground,
            password=self.password,
            pool_bytes=self.data_bytes() * 5 // 4 + _POOL_SLACK,
            tables=self.tables.count,
            networking=networking,
            loading=loading,
        )

    def _start(self, *, networking: bool, loading: bool) -> MariadbServer:
        return start_server(self._settings(networking=networking, loading=loading))

    def _load(self, data: Path) -> None:
        from_template(self._cache / "empty", self.program.key, data, self._initialise)
        server = self._start(networking=False, loading=True)
        try:
            load_tables(server, self.tables, data)
            server.shut_down()
        finally:
            server.stop()

    def _initialise(self, data: Path) -> None:
        script, extra = self._install_script()
        data.mkdir(exist_ok=True)
        # The script does not quote this name; by the descriptor it has no spaces, whatever the cache is called.
        descriptor = os.open(data, os.O_RDONLY | os.O_DIRECTORY)
        command = [
            str(script),
            "--no-defaults",
            *extra,
            f"--datadir=/proc/self/fd/{descriptor}",
            "--auth-root-authentication-method=normal",
            "--skip-test-db",
        ]
        if os.geteuid() == 0:
            command.append("--user=root")
        try:
            tried = subprocess.run(command, capture_output=True, text=True, timeout=300, pass_fds=(descriptor,))
        finally:
            os.close(descriptor)
        if tried.returncode != 0:
            said = "\n".join((tried.stdout + tried.stderr).strip().splitlines()[-10:])
            raise ServerCrashed(
                f"initialising a data directory with {script} ended with exit code {tried.returncode}:\n{said}",
                "Does this server program work outside howfar?",
            )
        if not (data / "mysql").is_dir():
            raise LabError(f"{script} made no system tables in {data}")

    def _install_script(self) -> tuple[Path, list[str]]:
        """The script beside the program, else from PATH; a server outside /usr needs to be told its base directory."""
        prefix = self.program.path.resolve().parent.parent
        for folder in ("bin", "scripts"):
            for name in ("mariadb-install-db", "mysql_install_db"):
                script = prefix / folder / name
                if script.is_file():
                    return script, [] if prefix == Path("/usr") else [f"--basedir={prefix}"]
        found = shutil.which("mariadb-install-db", path=os.environ.get("PATH", "") + ":/usr/bin")
        if found is None:
            raise ServerMissing(
                f"mariadb-install-db was found neither near {self.program.path} nor in PATH",
                "Install mariadb-server-core.",
            )
        return Path(found), []
