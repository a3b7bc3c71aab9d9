"""MySQL's initialisation, command line and accounts, for 8.0 and later. Start reading at `sql_store.py`.

The settings are as close to MariaDB's defaults as possible, for comparability: no binary log, no TLS unless requested, no X protocol.
"""

from __future__ import annotations

import os
from pathlib import Path

from howfar.lab.servers import DATABASE, USER
from howfar.lab.servers.dialect import Settings, check_quotable, log_options, run_initialiser, shared_options

NAMES = ("mysqld",)


class MysqlDialect:
    """MySQL's dialect; see `dialect.Dialect`."""

    kind = "mysql"
    pool_slack_bytes = 256 * 2**20
    unfinished_work_sql: str | None = (
        "SELECT COUNT AS n FROM information_schema.INNODB_METRICS WHERE NAME = 'trx_rseg_history_len'"
    )
    """Length of the history that is not purged yet. About a second after its start the server reads old undo pages for purging, which
    must not happen during a trial."""

    def initialise(self, program: Path, data: Path) -> None:
        # Debian's build requires its default directory for secure_file_priv unless an option sets none.
        command = [
            str(program),
            "--no-defaults",
            "--initialize-insecure",
            f"--datadir={data}",
            "--disable-log-bin",
            "--auto-generate-certs=OFF",
            "--secure-file-priv=",
        ]
        if os.geteuid() == 0:
            command.append("--user=root")
        run_initialiser(command, data / "mysql")

    def renew_identity(self, data: Path) -> None:
        """Remove the file with the server's identity: servers with the same identity cannot replicate from each other."""
        (data / "auto.cnf").unlink(missing_ok=True)

    def command_line(self, settings: Settings, port: int | None) -> list[str]:
        # The X plugin would listen on its own port and socket, even with --skip-networking. The history's length shows the end of
        # purging only if each purge truncates the history.
        command = [
            str(settings.program),
            *shared_options(settings, port),
            "--mysqlx=OFF",
            "--auto-generate-certs=OFF",
            "--innodb-purge-rseg-truncate-frequency=1",
        ]
        command += ["--disable-log-bin"] if settings.binary_log is None else log_options(settings.binary_log)
        if settings.tls is None:
            command.append("--tls-version=")
        if os.geteuid() == 0:
            command.append("--user=root")
        return command

    def init_sql(self, password: str) -> str:
        """Statements for startup. Socket and TCP share one account: a login over the socket, which may send the password in clear
        text, fills the server's authentication cache, so that all later logins take the fast path."""
        secret = f"IDENTIFIED WITH caching_sha2_password BY '{check_quotable(password)}'"
        lines = [
            f"DROP USER IF EXISTS '{USER}'@'%';",
            f"CREATE USER '{USER}'@'%' {secret};",
            f"GRANT ALL PRIVILEGES ON *.* TO '{USER}'@'%' WITH GRANT OPTION;",
            f"ALTER USER 'root'@'localhost' {secret};",
            f"CREATE DATABASE IF NOT EXISTS {DATABASE};",
        ]
        return "\n".join(lines) + "\n"
