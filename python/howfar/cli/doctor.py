"""`howfar doctor`: examines the database servers of this machine and reports what to change. The checks are in `howfar.doctor`."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import click

from howfar.address import Login, Secret, ServerAddress
from howfar.cli.exit_codes import TO_CHANGE
from howfar.cli.screen import note, show_document, show_json
from howfar.cli.target import (
    complete_address,
    laboratory_address,
    numeric_target,
    own_account_name,
    parse_target,
    password,
    password_note,
    read_option_file,
    variable,
)
from howfar.contract.ping_messages import UnixTarget
from howfar.doctor.kind import Kind
from howfar.doctor.targets import DoctorTarget, Logins, TargetLogin, target_from_login
from howfar.errors import MissingError, UsageError
from howfar.passwords import learn


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
              help="User and password from an option file of MySQL's or MariaDB's clients.")  # fmt: skip
@click.option("--env", "env_names", multiple=True, metavar="NAME", help="Environment variable that holds a DSN.")
@click.option("--json", "as_json", is_flag=True, help="Write JSON to stdout; its schema is schema/doctor.json.")
@click.option("--strict", is_flag=True, help=f"Exit with code {TO_CHANGE} if something should be changed.")
def doctor(
    dsns: tuple[str, ...],
    seconds: float,
    user: str | None,
    password_file: Path | None,
    ask_password: bool,
    defaults_file: Path | None,
    env_names: tuple[str, ...],
    as_json: bool,
    strict: bool,
) -> int:
    """Examine the MySQL, MariaDB, PostgreSQL, Redis and Memcached servers of this machine and say what to change.

    Without a DSN, it examines every server that it finds. A DSN has any form of docs/addresses.md, such as mysql://user@127.0.0.1:3306/,
    mysql:///run/mysqld/mysqld.sock?user=u, postgresql://user@127.0.0.1:5432/, postgresql:///?host=/run/postgresql,
    redis://127.0.0.1:6379, redis:///run/redis/redis-server.sock, memcached://127.0.0.1:11211. It only reads: it logs in, pings a few
    hundred times, reads counters, and connects 24 times over each transport. It reports what it is not permitted to see.

    For passwords use --password-file, --ask-password, --defaults-file, --env, HOWFAR_PASSWORD, or one of the variables MYSQL_PWD,
    PGPASSWORD, HOWFAR_REDIS_PASSWORD and REDISCLI_AUTH: one in a DSN is used too, but other users can see it. Passwords are sent only
    to servers that you name, or that run as root, as a system account or as yourself.
    """
    from howfar.doctor.examine import examine  # numpy and pymysql, which --help need not import
    from howfar.doctor.report import document

    targets = [_resolve(_target_from_dsn(dsn, True)) for dsn in dsns]
    targets += [_resolve(_target_from_dsn(variable(name, os.environ), False)) for name in env_names]
    if (
        not targets
        and (address := laboratory_address()) is not None
        and (protocol := os.environ.get("HOWFAR_PROTOCOL"))
    ):
        note("using the server of `howfar lab`")
        laboratory = DoctorTarget(
            Kind(protocol), address.socket, address.host, address.port, None, False, database=address.database
        )
        targets = [_resolve(laboratory)]
    logins = _find_logins(user, password_file, ask_password, defaults_file)
    if not as_json:
        note(f"watching connections for {seconds:g} s")
    examination = examine(targets, logins, seconds)
    if as_json:
        show_json(examination.model_dump_json(indent=2, by_alias=True))
    else:
        show_document(document(examination))
    if targets and examination.unseen:
        return MissingError.exit_code
    return TO_CHANGE if strict and examination.to_change else 0


def _target_from_dsn(dsn: str, on_command_line: bool) -> DoctorTarget:
    """The server of a DSN. `on_command_line`: whether the DSN is on the command line, where other users can see it. Raises
    UsageError."""
    parsed = parse_target(dsn)
    if parsed.address.service is not None:
        raise UsageError("howfar doctor does not read service files", "Name host, port and user in the DSN.")
    target = target_from_login(Login(complete_address(parsed.address, os.environ), parsed.password or Secret()))
    for remark in (*parsed.notes, *password_note(on_command_line, parsed)):
        note(remark)
    return target


def _resolve(target: DoctorTarget) -> DoctorTarget:
    """A target with its host name resolved to an address, as in `howfar load`."""
    resolved = numeric_target(ServerAddress(host=target.host, port=target.port, socket=target.path), note)
    if isinstance(resolved, UnixTarget):
        return replace(target, path=resolved.path, host=None, port=None)
    return replace(target, path=None, host=resolved.host, port=resolved.port)


def _find_logins(
    user: str | None, password_file: Path | None, ask_password: bool, defaults_file: Path | None
) -> Logins:
    """The logins that the options give. Raises UsageError."""
    laboratory_file = os.environ.get("HOWFAR_PASSWORD_FILE")
    if laboratory_file and not (user or password_file or ask_password or defaults_file):
        note("using the account of `howfar lab`")
        user, password_file = os.environ.get("HOWFAR_USER"), Path(laboratory_file)
    address, file_password = ServerAddress(), None
    if defaults_file is not None:
        option_file = read_option_file(defaults_file, os.environ, note)
        address, file_password = option_file.address, option_file.password
    given_password = password(password_file, ask_password, file_password, note, os.environ).reveal()
    mysql_login = TargetLogin(
        user or address.user or own_account_name(), given_password or os.environ.get("MYSQL_PWD", "")
    )
    libpq_login = TargetLogin(user or os.environ.get("PGUSER", ""), given_password or os.environ.get("PGPASSWORD", ""))
    redis_password = os.environ.get("HOWFAR_REDIS_PASSWORD", os.environ.get("REDISCLI_AUTH", ""))
    for login in (mysql_login, libpq_login):
        learn(login.password)
    learn(redis_password)
    return Logins(mysql_login, TargetLogin("", redis_password), libpq_login)
