"""MariaDB's initialisation, command line and accounts. Start reading at `sql_store.py`."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from howfar.errors import ServerMissing
from howfar.lab.servers import DATABASE, USER
from howfar.lab.servers.dialect import Settings, check_quotable, log_options, run_initialiser, shared_options

NAMES = ("mariadbd", "mysqld")
PACKAGE = "mariadb-server-core"


class MariadbDialect:
    """MariaDB's dialect; see `dialect.Dialect`."""

    kind = "mariadb"
    pool_slack_bytes = 128 * 2**20
    unfinished_work_sql: str | None = None

    def initialise(self, program: Path, data: Path) -> None:
        script, options = _find_install_script(program)
        data.mkdir(exist_ok=True)
        # The script does not quote this path; a path through a descriptor has no spaces, whatever the cache's path.
        descriptor = os.open(data, os.O_RDONLY | os.O_DIRECTORY)
        command = [
            str(script),
            "--no-defaults",
            *options,
            f"--datadir=/proc/self/fd/{descriptor}",
            # In /tmp the temporary tables of two sandboxes would have the same names, which contain PIDs: each sandbox counts PIDs
            # from 1.
            f"--tmpdir=/proc/self/fd/{descriptor}",
            "--auth-root-authentication-method=normal",
            "--skip-test-db",
            "--force",  # otherwise the script looks up this machine's name, which fails without /etc/hosts
        ]
        if os.geteuid() == 0:
            command.append("--user=root")
        try:
            run_initialiser(command, data / "mysql", pass_fds=(descriptor,))
        finally:
            os.close(descriptor)

    def renew_identity(self, data: Path) -> None:
        """Do nothing: MariaDB's data directory does not identify its server."""

    def command_line(self, settings: Settings, port: int | None) -> list[str]:
        command = [str(settings.program), *shared_options(settings, port)]
        if settings.tls is None:
            command.append("--skip-ssl")
        if settings.binary_log is not None:
            command += log_options(settings.binary_log)
        if os.geteuid() == 0:
            command.append("--user=root")
        return command

    def init_sql(self, password: str) -> str:
        """Statements for startup. Root gets the same password, because without a sandbox other users can reach the port."""
        secret = f"IDENTIFIED VIA mysql_native_password USING PASSWORD('{check_quotable(password)}')"
        lines = [f"CREATE OR REPLACE USER '{USER}'@'{host}' {secret};" for host in ("%", "localhost")]
        lines += [f"GRANT ALL PRIVILEGES ON *.* TO '{USER}'@'{host}' WITH GRANT OPTION;" for host in ("%", "localhost")]
        lines.append(f"CREATE OR REPLACE USER 'root'@'localhost' {secret};")
        lines.append("GRANT ALL PRIVILEGES ON *.* TO 'root'@'localhost' WITH GRANT OPTION;")
        lines.append("DELETE FROM mysql.global_priv WHERE User IN ('root', '') AND Host <> 'localhost' OR User = '';")
        lines.append(f"CREATE DATABASE IF NOT EXISTS {DATABASE};")
        lines.append("FLUSH PRIVILEGES;")
        return "\n".join(lines) + "\n"


def _find_install_script(program: Path) -> tuple[Path, list[str]]:
    """The install script, near the program or else in PATH, and its options: a server outside /usr needs its base directory."""
    prefix = program.resolve().parent.parent
    for folder in ("bin", "scripts"):
        for name in ("mariadb-install-db", "mysql_install_db"):
            script = prefix / folder / name
            if script.is_file():
                return script, [] if prefix == Path("/usr") else [f"--basedir={prefix}"]
    script_in_path = shutil.which("mariadb-install-db", path=os.environ.get("PATH", "") + ":/usr/bin")
    if script_in_path is None:
        raise ServerMissing(f"mariadb-install-db was found neither near {program} nor in PATH", f"Install {PACKAGE}.")
    return Path(script_in_path), []
