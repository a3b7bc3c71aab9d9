"""`howfar doctor`: examines the database servers of this machine and reports lines to change. Thin: reads, calls, shows."""

from __future__ import annotations

import getpass
import os
import shutil
from dataclasses import replace
from pathlib import Path

import click

from howfar.cli.load_address import MAX_FILE_BYTES, of_laboratory, password, target_of
from howfar.cli.screen import note, read_text
from howfar.doctor.findings import Kind
from howfar.doctor.targets import Login, Logins, Target, parse_target
from howfar.engine.messages import UnixTarget
from howfar.load.target import ServerAddress, parse_option_file

TO_CHANGE = 8
"""Exit code with --strict, for monitoring: something should be changed."""
_WIDTH_MOST = 120


@click.command()
@click.argument("dsns", metavar="[DSN]...", nargs=-1)
@click.option("--watch", "seconds", type=click.FloatRange(0.2, 600), default=3.0, show_default=True, metavar="SECONDS",
              help="How long to watch connections.")  # fmt: skip
@click.option(
    "--user",
    help="User for MySQL, MariaDB and PostgreSQL.  [default: the name of your account; as root, PostgreSQL's own account]",
)
@click.option(
    "--password-file", type=click.Path(path_type=Path), metavar="FILE", help="File whose first line is the password."
)
@click.option("--ask-password", is_flag=True, help="Ask for the password.")
@click.option("--defaults-file", type=click.Path(path_type=Path), metavar="FILE",
              help="User and password from the [client] group of an option file.")  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Write JSON to stdout; its schema is schema/doctor.json.")
@click.option("--strict", is_flag=True, help=f"Exit with code {TO_CHANGE} if something should be changed.")
def doctor(
    dsns: tuple[str, ...],
    seconds: float,
    user: str | None,
    password_file: Path | None,
    ask_password: bool,
    defaults_file: Path | None,
    as_json: bool,
    strict: bool,
) -> int:
    """Examine the MySQL, MariaDB, PostgreSQL, Redis and Memcached servers of this machine and say what to change.

    Without a DSN, it examines every server that it finds. A DSN has one of these forms: mysql://user@127.0.0.1:3306/,
    mysql:///run/mysqld/mysqld.sock?user=u, postgresql://user@127.0.0.1:5432/, postgresql:///?host=/run/postgresql,
    redis://127.0.0.1:6379, redis:///run/redis/redis-server.sock, memcached://127.0.0.1:11211. It only reads: it logs in, pings a few
    hundred times, reads counters, and connects 24 times over each transport. It reports what it is not permitted to see.

    A DSN never contains a password: use --password-file, --ask-password, --defaults-file, HOWFAR_PASSWORD, or one of the variables
    MYSQL_PWD, PGPASSWORD, HOWFAR_REDIS_PASSWORD and REDISCLI_AUTH. Passwords are sent only to servers that you name, or that run as
    root, as a system account or as yourself.
    """
    from howfar.doctor.examine import examine, screen  # numpy and pymysql, which --help need not pay

    targets = [_numeric(parse_target(dsn)) for dsn in dsns]
    if not targets and (address := of_laboratory()) is not None and (protocol := os.environ.get("HOWFAR_PROTOCOL")):
        note("using the server of `howfar lab`")
        known = Target(
            Kind(protocol), address.socket, address.host, address.port, None, False, database=address.database
        )
        targets = [_numeric(known)]
    logins = _logins(user, password_file, ask_password, defaults_file)
    if not as_json:
        note(f"watching connections for {seconds:g} s")
    seen = examine(targets, logins, seconds)
    if as_json:
        click.echo(seen.model_dump_json(indent=2, by_alias=True))
    else:
        click.echo(screen(seen, min(shutil.get_terminal_size((100, 24)).columns, _WIDTH_MOST)))
    return TO_CHANGE if strict and seen.to_change else 0


def _numeric(target: Target) -> Target:
    """A target with its name as an address, as `howfar load` resolves it."""
    found = target_of(ServerAddress(host=target.host, port=target.port, socket=target.path), note)
    if isinstance(found, UnixTarget):
        return replace(target, path=found.path, host=None, port=None)
    return replace(target, path=None, host=found.host, port=found.port)


def _logins(user: str | None, password_file: Path | None, ask: bool, defaults_file: Path | None) -> Logins:
    """The logins that the options give. Raises UsageError."""
    secret = os.environ.get("HOWFAR_PASSWORD_FILE")
    if secret and not (user or password_file or ask or defaults_file):
        note("using the account of `howfar lab`")
        user, password_file = os.environ.get("HOWFAR_USER"), Path(secret)
    address, of_file = ServerAddress(), None
    if defaults_file is not None:
        text = read_text(defaults_file, "--defaults-file", MAX_FILE_BYTES)
        address, of_file = parse_option_file(str(defaults_file), text)
    given = password(password_file, ask, of_file, note, {**os.environ, "MYSQL_PWD": ""})
    mysql = Login(user or address.user or _own_name(), given or os.environ.get("MYSQL_PWD", ""))
    of_libpq = Login(user or os.environ.get("PGUSER", ""), given or os.environ.get("PGPASSWORD", ""))
    redis = os.environ.get("HOWFAR_REDIS_PASSWORD", os.environ.get("REDISCLI_AUTH", ""))
    return Logins(mysql, Login("", redis), of_libpq)


def _own_name() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # an account without a name, as in some containers
        return str(os.geteuid())
