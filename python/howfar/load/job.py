"""Builds the engine's job from options, or from a custom workload in TOML. No I/O: the caller reads password, address and file.

An error in a workload names the file, the line and the key.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from importlib import resources
from typing import Any, TypedDict

from pydantic import ValidationError

from howfar.address import Login, ServerAddress, libpq
from howfar.address.parameters import parse_algorithm, parse_port, parse_ssl_mode, parse_switch
from howfar.contract.messages import (
    LONGEST_NS,
    Arrivals,
    Compression,
    Custom,
    Distribution,
    LoadJob,
    Pgbench,
    RepeatJob,
    RepeatPage,
    Session,
    Sysbench,
    TablesJob,
    Target,
    TcpTarget,
    UnixTarget,
    Workload,
)
from howfar.engine.tls import tls_settings
from howfar.errors import PlanError, QuantityError, UsageError
from howfar.load.cmdline import HELP, PGBENCH_KINDS, Options
from howfar.load.options import BY_NAME, OPTIONS, RANDOM_NUMBERS, STATEMENT_MIX, TABLES
from howfar.services import ServiceName, SqlProtocol
from howfar.toml_text import MalformedToml, parse_toml
from howfar.units import counted, parse_duration_ns, parse_share, parse_size_bytes

SECOND_NS = 1_000_000_000
DEFAULT_NAME = "sbtest"
"""Default for user and database, as in sysbench."""
ONE_TABLE = ("select_random_points", "select_random_ranges")
"""Sysbench workloads that use only the first table."""
POSTGRES_IGNORED = ("40001", "40P01", "23505")
"""Errors at which sysbench restarts a transaction on PostgreSQL: serialization failure, deadlock, duplicate key."""
MAX_LOADERS = 1024
"""Maximum connections of a tables job. It does not apply to bulk_insert, where each connection has its own table."""


def fields(options: Options, part: str) -> dict[str, Any]:
    """The fields of one part of the engine's job, from the options that set them (see `Option.field`)."""
    pairs = ((option.field.partition("."), option.name) for option in OPTIONS)
    return {field: options.value(name) for (prefix, _, field), name in pairs if prefix == part}


@dataclass(frozen=True)
class LoadLogin(Login):
    """The account and the server of a load; `address` is complete, `target` has a numeric address."""

    target: Target = field(kw_only=True)


def address_from_options(options: Options) -> ServerAddress:
    """The server's address as far as sysbench's options give it; a DSN and an option file are other sources. Raises UsageError."""

    def single_value(name: str) -> str | None:
        values = options.value(name) or ()
        if len(values) > 1:
            raise UsageError(
                f"--{name} names {len(values)} servers; only one can be loaded", "Run once for each of them."
            )
        return values[0] if values else None

    if options.value("db-driver") == "pgsql":
        return _address_from_pgsql_options(options)
    port = single_value("mysql-port")
    if port is not None and not (port.isdigit() and 1 <= int(port) <= 65535):
        raise UsageError(f"--mysql-port={port} is not a port", "Ports are 1 to 65535.")
    try:
        mode = _ssl_mode(options)
        compression = _compression_algorithm(options)
    except ValueError as error:
        raise UsageError(str(error), HELP) from error
    return ServerAddress(
        host=single_value("mysql-host"),
        port=None if port is None else int(port),
        socket=single_value("mysql-socket"),
        ssl_mode=mode,
        compression=compression,
        **fields(options, "server"),
    )


def _address_from_pgsql_options(options: Options) -> ServerAddress:
    """The address from sysbench's options for PostgreSQL, where user and database default to `sbtest` too."""
    try:
        mode = options.value("pgsql-sslmode")
        return ServerAddress(
            protocol="postgresql",
            host=options.value("pgsql-host") or "localhost",
            port=parse_port(options.value("pgsql-port") or str(libpq.PORT)),
            user=options.value("pgsql-user") or DEFAULT_NAME,
            database=options.value("pgsql-db") or DEFAULT_NAME,
            ssl_mode=None if mode is None else libpq.parse_ssl_mode(mode),  # type: ignore[arg-type]
            allow_cleartext_password=options.value("allow-cleartext-password"),
        )
    except ValueError as error:
        raise UsageError(f"--pgsql-…: {error}", HELP) from error


def _ssl_mode(options: Options) -> Any:
    text = options.value("mysql-ssl")
    if text is None:
        return None
    with suppress(ValueError):
        return "REQUIRED" if parse_switch(text) else "DISABLED"
    try:
        mode = parse_ssl_mode(text)
        if mode == "PREFERRED":
            raise ValueError("this mode leaves open what is measured: use REQUIRED or DISABLED")
        return mode
    except ValueError as error:
        raise ValueError(f"--mysql-ssl={text}: {error}") from error


def _compression_algorithm(options: Options) -> Any:
    if not options.value("mysql-compression"):
        return None
    algorithms = options.value("mysql-compression-algorithms") or "zlib"
    try:
        chosen = parse_algorithm(algorithms.split(",")[0])
    except ValueError as error:
        raise ValueError(f"--mysql-compression-algorithms={algorithms}: {error}") from error
    if "," in algorithms or chosen is None:
        raise ValueError(f"--mysql-compression-algorithms={algorithms}: name the one to measure: zlib or zstd")
    return chosen


def check_sources(has_target: bool, address: ServerAddress) -> ServerAddress:
    """Check that only one of target and options names the server, and return the options' address.

    A socket takes precedence over a host, as in sysbench. Raises UsageError.
    """
    without_permissions = replace(address, fetch_server_key=None, allow_cleartext_password=None)
    if has_target and without_permissions != ServerAddress():
        raise UsageError(
            "the server is given by a DSN and by --mysql-… options",
            "Use one of them; the DSN has parameters for the others.",
        )
    if address.host is not None and address.socket is not None:
        return replace(address, host=None, port=None)
    return address


_FIELD_OPTIONS = {option.field.partition(".")[2]: option.name for option in OPTIONS if option.field} | {
    "measure_ns": "time",
    "warmup_ns": "warmup-time",
    "interval_ns": "interval",
    "rate_per_s": "rate",
    "seed": "rand-seed",
    "ignore_errors": "mysql-ignore-errors",
}


@contextmanager
def _translate_validation_errors() -> Iterator[None]:
    """Report the first validation error of a job as an error of the option that caused it. Raises UsageError."""
    try:
        yield
    except ValidationError as error:
        problem = error.errors()[0]
        field = next((str(part) for part in reversed(problem["loc"]) if isinstance(part, str)), "")
        name = _FIELD_OPTIONS.get(field, field.replace("_", "-"))
        value = "" if isinstance(problem["input"], dict) else f"={problem['input']}"
        message = problem["msg"]
        raise UsageError(f"--{name}{value}: {message[:1].lower()}{message[1:]}", HELP) from error


@_translate_validation_errors()
def build_session(address: ServerAddress, options: Options) -> Session:
    """The session that address and options request. Raises UsageError."""
    mode = address.ssl_mode or "DISABLED"
    tls = None
    if mode == "DISABLED":
        tls_parameters = [name for name in ("ssl_ca", "ssl_cert", "ssl_key", "ssl_cipher") if getattr(address, name)]
        if address.ssl_mode is None and (tls_parameters or address.tls_versions is not None):
            raise UsageError(
                f"{', '.join(tls_parameters).replace('_', '-') or 'tls-version'} given without ssl-mode, "
                "whose default is DISABLED",
                "Add ssl-mode=REQUIRED, VERIFY_CA or VERIFY_IDENTITY: TLS is used only when requested.",
            )
    else:
        tls = tls_settings(address, mode)
    compression = None
    if address.compression is not None:
        compression = Compression(algorithm=address.compression, level=address.compression_level)
    return Session(
        tls=tls,
        compression=compression,
        server_key_file=address.server_key_file,
        fetch_server_key=address.fetch_server_key is True,
        allow_cleartext_password=address.allow_cleartext_password is True,
        options=address.options or "",
        connect="per_transaction" if options.value("connect") == "per-transaction" else "persistent",
        **fields(options, "session"),
    )


@_translate_validation_errors()
def build_workload(options: Options, custom: Custom | None) -> Workload:
    """The workload that the options request. Raises UsageError."""
    if custom is not None:
        return (
            custom.model_copy(update={"db_ps_mode": options.value("db-ps-mode")})
            if options.is_given("db-ps-mode")
            else custom
        )
    if options.kind in PGBENCH_KINDS:
        # As in pgbench, the default is -M simple; but the simple query protocol allows no pipeline.
        default_mode = "auto" if options.value("pipeline") > 1 else "disable"
        mode = options.value("db-ps-mode") if options.is_given("db-ps-mode") else default_mode
        return Pgbench(kind=options.kind, scale=options.value("scale"), db_ps_mode=mode)
    if options.kind in ONE_TABLE and options.value("tables") > 1:
        raise UsageError(
            f"--tables={options.value('tables')}: {options.kind} uses one table, as in sysbench", "Omit the option."
        )
    distribution = Distribution(**fields(options, "distribution"))
    return Sysbench.model_validate({**fields(options, "workload"), "kind": options.kind, "distribution": distribution})


def options_without_effect(options: Options) -> tuple[str, ...]:
    """Options of sysbench's workloads that were given with --workload, where they have no effect."""
    return tuple(
        name
        for name in options.values
        if BY_NAME[name].group in (TABLES, STATEMENT_MIX, RANDOM_NUMBERS) and name != "rand-seed"
    )


class _LoginFields(TypedDict):
    """The fields of a job for its server, account and session."""

    protocol: SqlProtocol
    target: Target
    user: str
    password: str
    database: str
    session: Session


def _login_fields(options: Options, login: LoadLogin) -> _LoginFields:
    return {
        "protocol": "postgresql" if login.address.protocol == "postgresql" else "mysql",
        "target": login.target,
        "user": login.address.user or DEFAULT_NAME,
        "password": login.password.reveal(),
        "database": login.address.database or DEFAULT_NAME,
        "session": build_session(login.address, options),
    }


@_translate_validation_errors()
def build_load_job(options: Options, login: LoadLogin, workload: Workload, seed: int) -> LoadJob:
    """The engine's job for a load. Raises UsageError."""
    time_ns, rate, ignored = (options.value(name) for name in ("time", "rate", "mysql-ignore-errors"))
    if login.address.protocol == "postgresql" and not options.is_given("mysql-ignore-errors"):
        ignored = POSTGRES_IGNORED
    if time_ns == 0 and options.value("events") == 0:
        raise UsageError("--time=0 without --events would never end", "Give --time or --events.")
    return LoadJob(
        **_login_fields(options, login),
        **fields(options, "job"),
        workload=workload,
        seed=seed,
        arrivals=arrivals(options, rate) if rate else None,
        warmup_ns=max(options.value("warmup-time"), options.value("ramp")),
        measure_ns=time_ns or LONGEST_NS,
        interval_ns=options.value("interval") or options.value("report-interval") or SECOND_NS,
        ignore_errors="all" if ignored == ("all",) else _parse_error_codes(ignored),
    )


def arrivals(options: Options, rate: float) -> Arrivals:
    return Arrivals(rate_per_s=rate, shape=options.value("arrivals"), burst=options.value("burst"))


@_translate_validation_errors()
def build_tables_job(options: Options, login: LoadLogin, workload: Workload, seed: int) -> TablesJob:
    """The engine's job for tables. Raises UsageError."""
    action: Any = options.action
    connections = options.value("threads")
    return TablesJob(
        action=action,
        **_login_fields(options, login),
        workload=workload,
        seed=seed,
        connections=connections if options.kind == "bulk_insert" else min(connections, MAX_LOADERS),
        connect_timeout_ns=options.value("thread-init-timeout"),
    )


@_translate_validation_errors()
def repeat_job(
    login: LoadLogin, options: Options, statements: Sequence[str], read_only: bool, pages: Sequence[RepeatPage]
) -> RepeatJob:
    """The engine's job for repeating pages. Raises UsageError."""
    return RepeatJob(
        **_login_fields(options, login), statements=tuple(statements), read_only=read_only, pages=tuple(pages)
    )


def _parse_error_codes(codes: tuple[str, ...]) -> tuple[int | str, ...]:
    """Error codes: MySQL's numbers have four digits, SQLSTATEs five digits or letters."""
    for code in codes:
        if not code.isdigit() and _SQLSTATE.fullmatch(code) is None:
            raise UsageError(
                f"--mysql-ignore-errors: {code!r} is not an error code", "Give numbers, SQLSTATEs, or `all` alone."
            )
    return tuple(code if _SQLSTATE.fullmatch(code) else int(code) for code in codes)


_SQLSTATE = re.compile(r"[0-9A-Z]{5}")


def transport_line(login: LoadLogin, session: Session) -> str:
    """The transport in one line, printed before anything runs."""
    target, host = login.target, login.address.host
    if isinstance(target, UnixTarget):
        endpoint = f"Unix socket {target.path}"
    else:
        assert isinstance(target, TcpTarget)
        numeric_host = f"[{target.host}]" if ":" in target.host else target.host
        host_name = f" ({host})" if host not in (None, target.host) else ""
        endpoint = f"TCP to {numeric_host}:{target.port}{host_name}"
    tls = "no TLS"
    if session.tls is not None:
        checks = {
            "none": "certificate not verified",
            "ca": "CA verified",
            "full": "CA and host name verified",
            "password": "certificate verified by the system's CAs or the password",
        }
        version = "TLS" if session.tls.versions == "any" else f"TLS {session.tls.versions}"
        tls = f"{version}, {checks[session.tls.verify]}"
    text = f"{endpoint}, user {login.address.user}, database {login.address.database}, {tls}"
    if login.address.protocol == "postgresql":
        return f"PostgreSQL by {text}"
    compression = "no compression" if session.compression is None else f"{session.compression.algorithm} compression"
    return f"{text}, {compression}"


_LIMIT_ERROR = re.compile(r"\b(1040|1203|1461|53300)\b")
_SPARE_CONNECTIONS = 10
"""Connections left for other users of the server."""


def max_statements_per_connection(job: LoadJob) -> int:
    """The maximum number of statements that one connection prepares for this workload."""
    workload = job.workload
    if isinstance(workload, Custom):
        return len(workload.statements) if workload.db_ps_mode == "auto" else 0
    if not isinstance(workload, Sysbench):
        return 0
    if workload.db_ps_mode != "auto" or workload.kind in ("oltp_insert", "bulk_insert"):
        return 0
    if workload.kind in ("select_random_points", "select_random_ranges"):
        return 1
    if workload.kind in ("oltp_point_select", "oltp_update_index", "oltp_update_non_index", "oltp_delete"):
        return workload.tables
    reads = [workload.point_selects]
    if workload.range_selects:
        reads += [workload.simple_ranges, workload.sum_ranges, workload.order_ranges, workload.distinct_ranges]
    writes = [workload.index_updates, workload.non_index_updates, workload.delete_inserts, workload.delete_inserts]
    counts = (reads if workload.kind != "oltp_write_only" else []) + (
        writes if workload.kind != "oltp_read_only" else []
    )
    return workload.tables * sum(count > 0 for count in counts) + (0 if workload.skip_trx else 2)


def limit_advice(job: LoadJob | TablesJob, message: str) -> str | None:
    """Advice with the statement that raises the limit that `message` reports; None for other errors.

    The server reports that a limit was reached, but not how high the limit must be.
    """
    match = _LIMIT_ERROR.search(message)
    if match is None:
        return None
    connections = job.connections + (job.idle_connections if isinstance(job, LoadJob) else 0)
    if match.group(1) == "1461":
        if not isinstance(job, LoadJob):
            return None
        statements = max_statements_per_connection(job)
        return (
            f"{counted(job.connections, 'connection')} x {counted(statements, 'statement')}: "
            f"run `SET GLOBAL max_prepared_stmt_count = {job.connections * statements};` "
            "on the server, or use --db-ps-mode=disable."
        )
    if match.group(1) == "53300":
        return (
            f"{counted(connections, 'connection')} {'is' if connections == 1 else 'are'} requested: "
            f"run `ALTER SYSTEM SET max_connections = {connections + _SPARE_CONNECTIONS};` on the server and restart it, "
            "or use fewer --threads."
        )
    return (
        f"{counted(connections, 'connection')} {'is' if connections == 1 else 'are'} requested: "
        f"run `SET GLOBAL max_connections = {connections + _SPARE_CONNECTIONS};` on the server, "
        "or use fewer --threads. If the account has its own limit (max_user_connections), raise that."
    )


WORKLOAD_MAX_BYTES = 4_000_000
ADVICE = "docs/load.md has the format; `howfar load --workload orders …` runs the included example."
_TABLE_HEADER = re.compile(r"\s*(\[\[?)\s*([A-Za-z0-9_.\-\s]+?)\s*\]\]?\s*(?:#.*)?$")
_KEY = re.compile(r"\s*([A-Za-z0-9_\-]+)\s*=")

Loc = tuple[str | int, ...]


def example_workloads() -> tuple[str, ...]:
    """Names of the included workloads."""
    folder = resources.files("howfar.load") / "examples"
    return tuple(sorted(entry.name.removesuffix(".toml") for entry in folder.iterdir() if entry.name.endswith(".toml")))


def example_workload(name: str) -> str:
    return (resources.files("howfar.load") / "examples" / f"{name}.toml").read_text(encoding="utf-8")


def parse_workload(source: str, text: str) -> Custom:
    """A custom workload. Raises PlanError."""
    try:
        table = parse_toml(text)
    except MalformedToml as error:
        raise PlanError(f"{source}:{error.line}: malformed TOML: {error}", ADVICE) from error
    _convert_units(source, text, table, ())
    try:
        workload = Custom.model_validate({"kind": "custom", **table})
    except ValidationError as error:
        problem = error.errors()[0]
        loc = tuple(problem["loc"])
        if problem["type"] == "extra_forbidden":
            reason = "unknown key"
        elif problem["type"] == "missing":
            reason = "is missing"
        else:
            reason = problem["msg"]
        raise PlanError(f"{source}:{line_of(text, loc)}: {_format_loc(loc)}: {reason}", ADVICE) from error
    return workload


def check_values(source: str, text: str, workload: Custom, protocol: ServiceName | None) -> None:
    """Check that each statement has as many `?` as parameters, by the rules of its server. Raises PlanError."""
    for index, statement in enumerate(workload.statements):
        placeholders, parameters = count_values(statement.sql, protocol), len(statement.parameters)
        if placeholders != parameters:
            loc: Loc = ("statements", index, "sql")
            counted_parameters = counted(parameters, "parameter")
            raise PlanError(
                f"{source}:{line_of(text, loc)}: {_format_loc(loc)}: "
                f"statement {statement.name} has {placeholders} `?` and {counted_parameters}",
                "Give one parameter for each `?` outside quotes and comments, in order. PostgreSQL's operator `?` is written `??`.",
            )


_MYSQL_TOKEN = re.compile(
    r"""
    '(?:''|\\.|[^'\\])*(?:'|\\?\Z) | "(?:""|\\.|[^"\\])*(?:"|\\?\Z) | `(?:``|[^`])*(?:`|\Z)
    | \#[^\n]* | --(?=[\x00-\x20]|\Z)[^\n]* | /\*(?!M?!)(?:(?!\*/).)*
    | (?P<value>\?)
    """,
    re.DOTALL | re.VERBOSE,
)
_NAME_CHARACTERS = r"A-Za-z0-9_$\x80-\U0010ffff"
_POSTGRESQL_TOKEN = re.compile(
    rf"""
    (?<![{_NAME_CHARACTERS}])[eE]'(?:''|\\.|[^'\\])*(?:'|\\?\Z) | '(?:''|[^'])*(?:'|\Z) | "(?:""|[^"])*(?:"|\Z)
    | (?<![{_NAME_CHARACTERS}])(?P<tag>\$(?:[A-Za-z_\x80-\U0010ffff][A-Za-z0-9_\x80-\U0010ffff]*)?\$)(?:(?!(?P=tag)).)*
    | --[^\n]* | (?P<comment>/\*)
    | \?\? | \?& | \?\|(?!\|) | \?(?=[ \t\n\f\r]*')
    | (?P<value>\?)
    """,
    re.DOTALL | re.VERBOSE,
)
_COMMENT_DELIMITER = re.compile(r"/\*|\*/")


def count_values(sql: str, protocol: ServiceName | None) -> int:
    """The number of values of a statement: the `?` outside of quotes and comments, by the lexical rules of its server.

    The engine has the same rules (`crates/wire/src/sql.rs`), and `tests/data/values.tsv` tests both. MySQL executes what a comment
    `/*!` contains. PostgreSQL's operator `?` is written `??`; `?` before a string, `?|` and `?&` are also operators.
    """
    token = _POSTGRESQL_TOKEN if protocol == "postgresql" else _MYSQL_TOKEN
    count, position = 0, 0
    while (match := token.search(sql, position)) is not None:
        count += match.lastgroup == "value"
        position = match.end()
        if match.lastgroup == "tag":
            position += len(match["tag"])
        elif match.lastgroup == "comment":
            position = _end_of_comment(sql, position)
    return count


def _end_of_comment(sql: str, start: int) -> int:
    """The end of a PostgreSQL comment whose text begins at `start`; comments may be nested."""
    depth = 1
    for delimiter in _COMMENT_DELIMITER.finditer(sql, start):
        depth += 1 if delimiter[0] == "/*" else -1
        if depth == 0:
            return delimiter.end()
    return len(sql)


def _format_loc(loc: Loc) -> str:
    """A location as text: `statements[1].sql`; items are counted from 1."""
    text = ""
    for part in loc:
        text += f"[{part + 1}]" if isinstance(part, int) else f".{part}"
    return text.lstrip(".") or "the workload"


def _convert_units(source: str, text: str, table: Any, loc: Loc) -> None:
    """Convert values with units, in place, to the numbers that `Custom` expects."""
    if isinstance(table, list):
        for index, item in enumerate(table):
            _convert_units(source, text, item, (*loc, index))
        return
    if not isinstance(table, dict):
        return
    for key in list(table):
        key_loc = (*loc, key)
        value = table[key]
        try:
            if key == "think":
                if not isinstance(value, str):
                    raise QuantityError(f"{value!r} has no unit", 'Write text such as "5ms".')
                table["think_ns"] = parse_duration_ns(table.pop(key))
            elif key == "length" and isinstance(value, str):
                table[key] = parse_size_bytes(value)
            elif key == "compressible" and isinstance(value, str):
                table[key] = parse_share(value)
            elif key == "distribution" and isinstance(value, str):
                table[key] = {"kind": value}
            else:
                _convert_units(source, text, value, key_loc)
        except QuantityError as error:
            raise PlanError(
                f"{source}:{line_of(text, key_loc)}: {_format_loc(key_loc)}: {error.message}", error.advice
            ) from error


def line_of(text: str, loc: Loc) -> int:
    """Line (from 1) of a key, else of its nearest parent, else 1; in an inline table, the parent's line."""
    lines = _find_lines(text)
    for length in range(len(loc), 0, -1):
        line = lines.get(tuple(loc[:length]))
        if line is not None:
            return line
    return 1


def _find_lines(text: str) -> dict[Loc, int]:
    """Line numbers of the tables and keys of a TOML text."""
    lines: dict[Loc, int] = {}
    counts: dict[Loc, int] = {}
    table: Loc = ()
    open_quotes = ""
    for number, line in enumerate(text.splitlines(), 1):
        if not open_quotes:
            if header := _TABLE_HEADER.match(line):
                names = tuple(name.strip() for name in header.group(2).split("."))
                table = _table_path(names, counts, header.group(1) == "[[")
                for length in range(1, len(table) + 1):
                    lines.setdefault(table[:length], number)
            elif key := _KEY.match(line):
                lines.setdefault((*table, key.group(1)), number)
                if key.group(1) == "think":
                    lines.setdefault((*table, "think_ns"), number)
        for quotes in ('"""', "'''"):
            if line.count(quotes) % 2 and open_quotes in ("", quotes):
                open_quotes = "" if open_quotes else quotes
    return lines


def _table_path(names: tuple[str, ...], counts: dict[Loc, int], is_array: bool) -> Loc:
    """The location of the table `[a.b]` or `[[a.b]]`, with the index of the item in each array of tables."""
    path: Loc = ()
    for position, name in enumerate(names):
        path = (*path, name)
        if is_array and position == len(names) - 1:
            counts[path] = counts.get(path, -1) + 1
        if path in counts:
            path = (*path, counts[path])
    return path
