"""What was asked -> the engine's job. Pure: password, address, seed and workload file come from the caller, already read.

`says` gives what is worth a line before anything runs.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from pydantic import ValidationError

from howfar.engine.message import LONGEST_NS
from howfar.engine.messages import (
    Arrivals,
    Compression,
    Custom,
    Distribution,
    LoadJob,
    Session,
    Sysbench,
    TablesJob,
    Target,
    TcpTarget,
    Tls,
    UnixTarget,
    Workload,
)
from howfar.errors import UsageError
from howfar.load.dsn import algorithm, ssl_mode
from howfar.load.options import BY_NAME, DRAWS, MIX, TABLES
from howfar.load.place import DEFAULT_NAME, DEFAULT_PORT, Place
from howfar.load.words import HELP, Asked

SECOND_NS = 1_000_000_000
ONE_TABLE = ("select_random_points", "select_random_ranges")
MOST_LOADERS = 1024
"""Connections of a tables job; bulk_insert alone has a table for each and must not be cut."""
_OF_WORKLOAD = (
    "tables", "table_size", "range_size", "point_selects", "range_selects", "simple_ranges", "sum_ranges", "order_ranges",
    "distinct_ranges", "index_updates", "non_index_updates", "delete_inserts", "skip_trx", "auto_inc", "secondary",
    "create_secondary", "mysql_storage_engine", "create_table_options", "random_points", "number_of_ranges", "delta",
    "db_ps_mode",
)  # fmt: skip
_OF_DISTRIBUTION = ("pareto_h", "spec_iter", "spec_pct", "spec_res", "zipfian_exp")


@dataclass(frozen=True)
class Login:
    """Who, to what address, through which session; `place` is complete, `target` is numeric."""

    place: Place
    target: Target
    password: str

    def __repr__(self) -> str:
        return f"Login({self.place!r}, {self.target!r})"


def place_of_options(asked: Asked) -> Place:
    """sysbench's options as one source beside DSN and option file. Raises UsageError."""

    def one(name: str) -> str | None:
        values = asked.value(name) or ()
        if len(values) > 1:
            raise UsageError(
                f"--{name} names {len(values)} servers; here one server is loaded", "Run once for each of them."
            )
        return values[0] if values else None

    port = one("mysql-port")
    if port is not None and not (port.isdigit() and 1 <= int(port) <= 65535):
        raise UsageError(f"--mysql-port={port} is no port", "Ports go from 1 to 65535.")
    try:
        mode = _mode_of(asked)
        compression = _compression_of(asked)
    except ValueError as error:
        raise UsageError(str(error), HELP) from error
    return Place(
        host=one("mysql-host"),
        port=None if port is None else int(port),
        socket=one("mysql-socket"),
        user=asked.value("mysql-user"),
        database=asked.value("mysql-db"),
        ssl_mode=mode,
        ssl_ca=asked.value("mysql-ssl-ca"),
        ssl_cert=asked.value("mysql-ssl-cert"),
        ssl_key=asked.value("mysql-ssl-key"),
        ssl_cipher=asked.value("mysql-ssl-cipher"),
        compression=compression,
    )


def _mode_of(asked: Asked) -> Any:
    text = asked.value("mysql-ssl")
    if text is None:
        return None
    words = {
        "on": "REQUIRED",
        "true": "REQUIRED",
        "1": "REQUIRED",
        "off": "DISABLED",
        "false": "DISABLED",
        "0": "DISABLED",
    }
    try:
        return words.get(text.lower()) or ssl_mode(text)
    except ValueError as error:
        raise ValueError(f"--mysql-ssl={text}: {error}") from error


def _compression_of(asked: Asked) -> Any:
    if not asked.value("mysql-compression"):
        return None
    named = asked.value("mysql-compression-algorithms") or "zlib"
    try:
        found = algorithm(named.split(",")[0])
    except ValueError as error:
        raise ValueError(f"--mysql-compression-algorithms={named}: {error}") from error
    if "," in named or found is None:
        raise ValueError(f"--mysql-compression-algorithms={named}: name the one that is to be measured: zlib or zstd")
    return found


def joined(dsn: Place | None, options: Place, file: Place | None) -> Place:
    """All sources in one, the command line first. Raises UsageError where two contradict on the command line."""
    if dsn is not None and options != Place():
        raise UsageError(
            "the server is named by a DSN and by --mysql-… options",
            "Use one of them; what the options say can stand in the DSN.",
        )
    if options.host is not None and options.socket is not None:
        options = replace(options, host=None, port=None)  # as sysbench does: the socket wins
    place = (dsn or options).over(file or Place())
    place = replace(place, user=place.user or DEFAULT_NAME, database=place.database or DEFAULT_NAME)
    if place.socket is not None:
        return place
    return replace(place, host=place.host or "localhost", port=place.port or DEFAULT_PORT)


def session_of(place: Place, asked: Asked) -> Session:
    """Raises UsageError."""
    mode = place.ssl_mode or "DISABLED"
    tls = None
    try:
        if mode == "DISABLED":
            given = [
                name for name in ("ssl_ca", "ssl_cert", "ssl_key", "ssl_cipher") if getattr(place, name) is not None
            ]
            if place.ssl_mode is None and (given or place.tls_versions is not None):
                raise UsageError(
                    f"{', '.join(given).replace('_', '-') or 'tls-version'} given, but no ssl-mode; the default is DISABLED",
                    "Add ssl-mode=REQUIRED, VERIFY_CA or VERIFY_IDENTITY: TLS is used when asked for, and only then.",
                )
        else:
            tls = _tls(place, mode)
        compression = None
        if place.compression is not None:
            compression = Compression(algorithm=place.compression, level=place.compression_level)
        return Session(
            tls=tls,
            compression=compression,
            server_key_file=place.server_key_file,
            fetch_server_key=place.fetch_server_key is not False,
            connect="per_transaction" if asked.value("connect") == "per-transaction" else "persistent",
            reconnect_after=asked.value("reconnect"),
            on_disconnect=asked.value("on-disconnect"),
        )
    except ValidationError as error:
        raise _translated(error) from error


def _tls(place: Place, mode: str) -> Tls:
    verify: Any = {"REQUIRED": "none", "VERIFY_CA": "ca", "VERIFY_IDENTITY": "full"}[mode]
    if verify != "none" and place.ssl_ca is None:
        raise UsageError(
            f"ssl-mode={mode} needs the authority that signed the server's certificate", "Add ssl-ca=FILE.pem."
        )
    if (place.ssl_cert is None) != (place.ssl_key is None):
        raise UsageError("ssl-cert and ssl-key come together", "Name both files, or neither.")
    if verify == "full" and place.host is None:
        raise UsageError("ssl-mode=VERIFY_IDENTITY needs a host name, and a socket has none", "Use VERIFY_CA there.")
    return Tls(
        versions=place.tls_versions or "any",
        verify=verify,
        ca_file=place.ssl_ca,
        cert_file=place.ssl_cert,
        key_file=place.ssl_key,
        cipher=place.ssl_cipher,
        server_name=place.host if verify == "full" else None,
    )


def workload_of(asked: Asked, custom: Custom | None) -> Workload:
    """Raises UsageError."""
    if custom is not None:
        return (
            custom.model_copy(update={"db_ps_mode": asked.value("db-ps-mode")}) if asked.said("db-ps-mode") else custom
        )
    values: dict[str, Any] = {name: asked.value(name.replace("_", "-")) for name in _OF_WORKLOAD}
    if asked.kind in ONE_TABLE and asked.value("tables") > 1:
        raise UsageError(
            f"--tables={asked.value('tables')}: {asked.kind} has one table, as in sysbench", "Leave it out."
        )
    shape = {name: asked.value("rand-" + name.replace("_", "-")) for name in _OF_DISTRIBUTION}
    try:
        distribution = Distribution(kind=asked.value("rand-type"), **shape)
        return Sysbench.model_validate({**values, "kind": asked.kind, "distribution": distribution})
    except ValidationError as error:
        raise _translated(error) from error


def without_effect(asked: Asked) -> tuple[str, ...]:
    """Options of sysbench's workloads that were said beside a workload of one's own."""
    return tuple(name for name in asked.values if BY_NAME[name].group in (TABLES, MIX, DRAWS) and name != "rand-seed")


def load_job(asked: Asked, login: Login, workload: Workload, seed: int) -> LoadJob:
    """Raises UsageError."""
    ramp_ns = asked.value("ramp")
    transactions = asked.value("events")
    time_ns = asked.value("time")
    if time_ns == 0 and transactions == 0:
        raise UsageError("--time=0 without --events would never end", "Say how long, or how many transactions.")
    every_ns = asked.value("interval") or asked.value("report-interval") or SECOND_NS
    rate = asked.value("rate")
    ignored = asked.value("mysql-ignore-errors")
    try:
        return LoadJob(
            target=login.target,
            user=login.place.user or DEFAULT_NAME,
            password=login.password,
            database=login.place.database or DEFAULT_NAME,
            session=session_of(login.place, asked),
            workload=workload,
            connections=asked.value("threads"),
            idle_connections=asked.value("idle-connections"),
            threads=asked.value("engine-threads"),
            driver=asked.value("driver"),
            arrivals=Arrivals(rate_per_s=rate, shape=asked.value("arrivals"), burst=asked.value("burst"))
            if rate
            else None,
            ramp_ns=ramp_ns,
            seed=seed,
            warmup_ns=max(asked.value("warmup-time"), ramp_ns),
            measure_ns=time_ns or LONGEST_NS,
            transactions=transactions,
            interval_ns=every_ns,
            client_work=asked.value("client-work"),
            breakdown=asked.value("breakdown"),
            ignore_errors="all" if ignored == ("all",) else _codes(ignored),
            connect_timeout_ns=asked.value("thread-init-timeout"),
            stall_timeout_ns=asked.value("stall-timeout"),
        )
    except ValidationError as error:
        raise _translated(error) from error


def tables_job(asked: Asked, login: Login, workload: Workload, seed: int) -> TablesJob:
    """Raises UsageError."""
    action: Any = asked.action
    try:
        return TablesJob(
            action=action,
            target=login.target,
            user=login.place.user or DEFAULT_NAME,
            password=login.password,
            database=login.place.database or DEFAULT_NAME,
            session=session_of(login.place, asked),
            workload=workload,
            connections=asked.value("threads")
            if asked.kind == "bulk_insert"
            else min(asked.value("threads"), MOST_LOADERS),
            seed=seed,
            connect_timeout_ns=asked.value("thread-init-timeout"),
        )
    except ValidationError as error:
        raise _translated(error) from error


def _codes(words: tuple[str, ...]) -> tuple[int, ...]:
    for word in words:
        if not word.isdigit():
            raise UsageError(f"--mysql-ignore-errors: {word!r} is no error code", "Write numbers, or `all` alone.")
    return tuple(int(word) for word in words)


_FIELD_OPTIONS = {
    "connections": "threads", "threads": "engine-threads", "transactions": "events", "measure_ns": "time",
    "warmup_ns": "warmup-time", "ramp_ns": "ramp", "interval_ns": "interval", "connect_timeout_ns": "thread-init-timeout",
    "rate_per_s": "rate", "seed": "rand-seed", "reconnect_after": "reconnect", "kind": "rand-type",
    "ignore_errors": "mysql-ignore-errors",
}  # fmt: skip


def _translated(error: ValidationError) -> UsageError:
    """The first problem under the name of the option that brought it."""
    problem = error.errors()[0]
    field = next((str(part) for part in reversed(problem["loc"]) if isinstance(part, str)), "")
    dashed = field.replace("_", "-")
    name = _FIELD_OPTIONS.get(field) or next((n for n in (dashed, f"rand-{dashed}") if n in BY_NAME), dashed)
    shown = "" if isinstance(problem["input"], dict) else f"={problem['input']}"
    return UsageError(f"--{name}{shown}: {problem['msg'][:1].lower()}{problem['msg'][1:]}", HELP)


def transport_line(login: Login, session: Session) -> str:
    """What will be spoken, in one line; said before anything runs."""
    target, host = login.target, login.place.host
    if isinstance(target, UnixTarget):
        where = f"Unix socket {target.path}"
    else:
        assert isinstance(target, TcpTarget)
        shown = f"[{target.host}]" if ":" in target.host else target.host
        named = f" ({host})" if host not in (None, target.host) else ""
        where = f"TCP to {shown}:{target.port}{named}"
    tls = "no TLS"
    if session.tls is not None:
        checks = {"none": "certificate not verified", "ca": "authority verified", "full": "authority and name verified"}
        version = "TLS" if session.tls.versions == "any" else f"TLS {session.tls.versions}"
        tls = f"{version}, {checks[session.tls.verify]}"
    packed = "no compression" if session.compression is None else f"{session.compression.algorithm} compression"
    return f"{where}, user {login.place.user}, database {login.place.database}, {tls}, {packed}"
