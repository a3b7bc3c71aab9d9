"""MySQL 8.0 and later: how it is initialised and started, and its accounts. To read about servers start at `sql_store.py`.

As like MariaDB's defaults as it goes, so that the two can be set side by side: no binary log, no TLS unless requested, no X protocol.
"""

from __future__ import annotations

import os
from pathlib import Path

from howfar.lab.servers import DATABASE, USER
from howfar.lab.servers.dialect import Settings, log_options, quotable, run_initialiser, shared_options

NAMES = ("mysqld",)


class MysqlDialect:
    """MySQL's part; see `dialect.Dialect`."""

    kind = "mysql"
    pool_slack_bytes = 256 * 2**20
    left_to_do_sql: str | None = (
        "SELECT COUNT AS n FROM information_schema.INNODB_METRICS WHERE NAME = 'trx_rseg_history_len'"
    )
    """History left to purge: a second after the start the server reads older undo pages, in mid-trial unless waited for."""

    def initialise(self, program: Path, data: Path) -> None:
        # Debian's build insists on a directory of its own for files unless an option says that there is none.
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

    def adopt(self, data: Path) -> None:
        """Remove the file with the server's identity; copies that share one could not replicate from each other."""
        (data / "auto.cnf").unlink(missing_ok=True)

    def command_line(self, settings: Settings, port: int | None) -> list[str]:
        # The X plugin would listen on a port and a socket of its own, also with --skip-networking. Purge tells that it has
        # done only when it truncates its history each time.
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
        """Statements at start. One account for socket and TCP: a login over the socket, where the password may go in clear, leaves its
        proof in the server's cache, and every later login is the short one."""
        secret = f"IDENTIFIED WITH caching_sha2_password BY '{quotable(password)}'"
        lines = [
            f"DROP USER IF EXISTS '{USER}'@'%';",
            f"CREATE USER '{USER}'@'%' {secret};",
            f"GRANT ALL PRIVILEGES ON *.* TO '{USER}'@'%' WITH GRANT OPTION;",
            f"ALTER USER 'root'@'localhost' {secret};",
            f"CREATE DATABASE IF NOT EXISTS {DATABASE};",
        ]
        return "\n".join(lines) + "\n"
