"""`howfar TARGET`: measures how far one server is; without a target, lists the servers of this machine. See `howfar.distance`."""

from __future__ import annotations

import dataclasses
import json
import os
import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from howfar.cli.exit_codes import LIMIT_CROSSED, REFUSED, UNREACHABLE
from howfar.cli.screen import STDOUT, json_option, note, program, show_json, width
from howfar.cli.suggest import TARGET_USAGE
from howfar.errors import QuantityError, RunFileError, UsageError
from howfar.units import counted, format_duration_ns, parse_duration_ns

if TYPE_CHECKING:
    from collections.abc import Callable

    from howfar.address import Login, Secret
    from howfar.distance.limits import LimitExpression
    from howfar.distance.record import Distance, Failure
    from howfar.distance.session import MeasuredServer
    from howfar.services import ServiceName

MIN_TIMEOUT_NS = 10_000_000


class _Duration(click.ParamType[int]):
    name = "time"

    def __init__(self, bare_unit: str = "") -> None:
        self.bare_unit = bare_unit
        """The unit of a bare number; if empty, a unit is required."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        try:
            return parse_duration_ns(f"{value}{self.bare_unit}" if _NUMBER.fullmatch(value) else value)
        except QuantityError as error:
            self.fail(f"{error.message}. {error.advice}", param, ctx)


_NUMBER = re.compile(r"[0-9]+(\.[0-9]+)?|\.[0-9]+", re.ASCII)
DURATION = _Duration()
SECONDS = _Duration("s")
"""A duration that is in seconds if it has no unit, like the intervals of ping and mtr."""


@dataclass(frozen=True)
class _DistanceOptions:
    """The options of `howfar TARGET`; times in ns."""

    env_name: str | None
    user: str | None
    password_file: Path | None
    ask_password: bool
    defaults_file: Path | None
    timeout: int
    count: int | None
    bandwidth: bool
    watch: bool
    interval: int | None
    fail_if: tuple[str, ...]
    strict: bool
    as_json: bool
    as_csv: bool
    prometheus: Path | None


@click.command(name="howfar")
@click.argument("target", required=False)
@click.option("--env", "env_name", metavar="NAME", help="Take the target from an environment variable.")
@click.option("--user", metavar="USER", help="The account, if the target names none.")
@click.option("--password-file", type=click.Path(path_type=Path), metavar="FILE", help="First line: the password.")
@click.option("--ask-password", is_flag=True, help="Ask for the password.")
@click.option("--defaults-file", type=click.Path(path_type=Path), metavar="FILE", help="MySQL's option file.")
@click.option("--timeout", type=DURATION, default="5s", metavar="TIME", help="For each step.  [default: 5s]")
@click.option("--count", type=click.IntRange(1, 1_000_000), metavar="N", help="Requests; with --watch, end after them.")
@click.option("--bandwidth", is_flag=True, help="Also fetch one answer of 8 MiB.")
@click.option("--watch", is_flag=True, help="Ask again and again until Ctrl-C.")
@click.option("--interval", type=SECONDS, metavar="TIME", help="Between two requests of --watch.  [default: 1s]")
@click.option(
    "--fail-if", "fail_if", multiple=True, metavar="LIMIT", help="Exit with code 9 above a limit, such as p95>2ms."
)
@click.option("--strict", is_flag=True, help="An undecided limit fails, too.")
@json_option
@click.option("--csv", "as_csv", is_flag=True, help="Write the figures as CSV.")
@click.option(
    "--prometheus",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Also write Prometheus' format; -: only that, to stdout.",
)
def distance(target: str | None, **values: Any) -> int:
    """Say how far a database server is from here, and what that means for a page.

    TARGET is a URL as drivers and consoles have it, HOST:PORT, or the path of a socket: mysql://app@db.internal/shop,
    postgresql:///shop, redis://10.0.0.5, jdbc:mysql://db/shop, app@tcp(db:3306)/shop, /run/mysqld/mysqld.sock.

    It connects a few times, one at a time, and sends at most 500 small requests that change nothing. Without TARGET, or for
    localhost, it lists the servers of this machine, and connects to none; within `howfar lab`, it measures the laboratory's.
    """
    options = _DistanceOptions(**values)
    is_nameless = target is None and options.env_name is None and options.defaults_file is None
    in_laboratory = "HOWFAR_PROTOCOL" in os.environ
    if target == "localhost" or (is_nameless and not in_laboratory):
        _check_no_options()
        return _list_servers(options.as_json)
    _check_options(options)
    from howfar.distance.limits import parse_limit
    from howfar.distance.measure import MeasurementFailed
    from howfar.distance.resolve import NameFailed

    limits = [parse_limit(text) for text in options.fail_if]
    for limit in limits:
        if options.count is not None and options.count < limit.min_count:
            raise UsageError(
                f"--count {options.count} is too few for {limit.text}: {limit.metric} needs {limit.min_count} requests",
                f"Write --count {limit.min_count}, or leave it out.",
            )
    try:
        server = _find_server(target, options)
        for text in server.notes:
            note(text)
        if options.watch:
            from howfar.cli.watch import watch

            return watch(server, options.interval, options.count, options.timeout, options.as_json)
        return _measure(server, limits, options)
    except NameFailed as error:
        error.exit_code = UNREACHABLE
        raise
    except MeasurementFailed as error:
        from howfar.distance.screen import failure_lines

        for line in failure_lines(error.distance):
            click.echo(line, err=True)
        code = REFUSED if error.is_refusal else UNREACHABLE
        _write_outputs(error.distance.model_copy(update={"exit_code": code}), options)
        return code


def _check_no_options() -> None:
    """Refuse options of a measurement without a target, because a check in a script whose target got lost must not pass. Raises
    UsageError."""
    context = click.get_current_context()
    options_given = [
        param.opts[0]
        for param in context.command.params
        if isinstance(param, click.Option)
        and param.name not in (None, "as_json")
        and context.get_parameter_source(str(param.name)) is click.core.ParameterSource.COMMANDLINE
    ]
    if options_given:
        raise UsageError(
            f"{options_given[0]} needs a target", f"Use {TARGET_USAGE}; `localhost` alone lists the servers here."
        )


def _check_options(options: _DistanceOptions) -> None:
    """Refuse options that would be ignored, and a timeout that is too short. Raises UsageError."""
    if options.timeout < MIN_TIMEOUT_NS:
        raise UsageError(
            f"--timeout {format_duration_ns(options.timeout)} is shorter than a step of a connection may take",
            f"Give each step {format_duration_ns(MIN_TIMEOUT_NS)} or more; a distant server needs more.",
        )
    if options.watch:
        names = ("fail-if", "strict", "csv", "prometheus", "bandwidth")
        values = (options.fail_if, options.strict, options.as_csv, options.prometheus, options.bandwidth)
        if ignored := [name for name, value in zip(names, values, strict=True) if value]:
            raise UsageError(
                f"--{ignored[0]} does not go with --watch", "It judges or writes one measurement: leave out --watch."
            )
    elif options.interval is not None:
        raise UsageError("--interval goes with --watch", "Add --watch, or leave it out.")
    elif options.count is not None:
        from howfar.distance.record import MAX_COUNT, MAX_REQUESTS

        if options.count > MAX_COUNT:
            raise UsageError(
                f"--count {options.count}: of the {MAX_REQUESTS} requests at most, {MAX_COUNT} are timed",
                f"Write --count {MAX_COUNT} or less; with --watch it may be more.",
            )
    if options.as_json and options.as_csv:
        raise UsageError("--json does not go with --csv", "Both are written to standard output: choose one.")
    if options.prometheus == STDOUT and (options.as_json or options.as_csv):
        other = "--json" if options.as_json else "--csv"
        raise UsageError(f"{other} does not go with --prometheus -", "Both are written to standard output: choose one.")


def _list_servers(as_json: bool) -> int:
    """List the servers of this machine, each with the command that measures it. Connects to none of them."""
    from howfar.doctor.candidates import list_local_servers

    servers = list_local_servers()
    if as_json:
        show_json(json.dumps([dataclasses.asdict(server) for server in servers], indent=2))
        return 0
    if not servers:
        click.echo("No database server is seen on this machine.")
        click.echo(f"Next: {program()} mysql://USER@HOST/DATABASE     (or postgresql://, redis://, HOST:PORT)")
        return 0
    click.echo(f"{counted(len(servers), 'server')} on this machine; howfar has connected to none of them.")
    for server in servers:
        addresses = ", ".join(server.addresses) or "no address that can be reached from here"
        click.echo(f"\n{server.name}: {addresses}")
        for remark in server.notes:
            click.echo(f"  {remark}")
        if server.target is not None:
            click.echo(f"  {program()} {server.target}")
    scheme = next(
        (listed.target.partition("://")[0] for listed in servers if listed.target and "://" in listed.target), "mysql"
    )
    click.echo(f"\nAdd your account, such as {scheme}://USER@… . Next: {program()} doctor   (examines them all)")
    return 0


def _find_server(target: str | None, options: _DistanceOptions) -> MeasuredServer:
    """The server that target, options and environment name. Raises UsageError, EngineError."""
    from howfar.address import ServerAddress
    from howfar.cli.target import find_server
    from howfar.distance.target import make_server

    passwords: list[Secret] = []  # the user is asked only once, even if several kinds of server are tried

    def find_login(service: ServiceName | None) -> Login:
        found_login = find_server(
            target,
            option_address=ServerAddress(protocol=service),
            env_name=options.env_name,
            user=options.user,
            password_file=options.password_file,
            ask_password=options.ask_password and not passwords,
            defaults_file=options.defaults_file,
        )
        if options.ask_password:
            passwords.append(found_login.password)
        return replace(found_login, password=passwords[0]) if passwords else found_login

    login = find_login(None)
    service = login.address.protocol or ("mysql" if options.defaults_file is not None else None)
    if service is not None:
        return make_server(login if login.address.protocol is not None else find_login(service), service)
    return _detect_server(login, lambda kind: make_server(find_login(kind), kind), options.timeout)


def _detect_server(
    login: Login, make_server: Callable[[ServiceName], MeasuredServer], timeout_ns: int
) -> MeasuredServer:
    """Detect the kind of server at an address. If nothing listens there, returns a server whose measurement will report that.
    Raises UsageError, MeasurementFailed, EngineError."""
    from howfar.distance.measure import MeasurementFailed, empty_record, find_addresses
    from howfar.distance.session import MeasuredServer
    from howfar.distance.target import DETECTION_ORDER, NoConnection, detect
    from howfar.services import SERVICES

    assumed_server = make_server(DETECTION_ORDER[0])
    if login.address.socket is None and login.address.port is None:
        raise UsageError(
            f"{assumed_server.host}: which server there?",
            "Add its port: :3306 for MySQL, :5432 for PostgreSQL, :6379 for Redis, :11211 for Memcached.",
        )
    _, targets = find_addresses(assumed_server, timeout_ns)
    shown_address = assumed_server.place.partition(" ")[2]
    failure: Failure | None = None
    for address in targets:
        try:
            detection = detect(make_server, address, timeout_ns)
        except NoConnection:
            continue
        if isinstance(detection, MeasuredServer):
            note(
                f"{shown_address} speaks the protocol of {SERVICES[detection.service].label}; {detection.service}://… skips this check"
            )
            return detection
        failure = detection
    silent_server = replace(assumed_server, url=shown_address)
    if failure is None:
        return silent_server
    raise MeasurementFailed(empty_record(silent_server, failure))


def _measure(server: MeasuredServer, limits: list[LimitExpression], options: _DistanceOptions) -> int:
    """Measure, show, judge. Raises MeasurementFailed."""
    from howfar.distance.limits import judge
    from howfar.distance.measure import MeasurementOptions, measure

    measurement = MeasurementOptions(
        timeout_ns=options.timeout,
        bandwidth=options.bandwidth,
        count=options.count,
        min_count=max((limit.min_count for limit in limits), default=1),
    )
    result = measure(server, measurement)
    judged = tuple(judge(limit, result) for limit in limits)
    failing = {"crossed", "undecided"} if options.strict else {"crossed"}
    passed = None if not judged else not any(judgement.verdict in failing for judgement in judged)
    code = LIMIT_CROSSED if passed is False else 0
    result = result.model_copy(update={"limits": judged, "passed": passed, "exit_code": code})
    _write_outputs(result, options)
    if not (options.as_json or options.as_csv or options.prometheus == STDOUT):
        from howfar.distance import screen

        click.echo("\n".join([screen.render(result, min(width(), screen.WIDTH)), *map(screen.limit_line, judged)]))
    return code


def _write_outputs(result: Distance, options: _DistanceOptions) -> None:
    """Write the machine-readable outputs, also after a failed measurement. Raises RunFileError if a file fails, after writing the
    rest."""
    from howfar.distance import formats

    write_error: RunFileError | None = None
    if options.prometheus == STDOUT:
        click.echo(formats.prometheus_text(result), nl=False)
    elif options.prometheus is not None:
        from howfar.store.partial import write_atomically

        path = options.prometheus
        try:
            write_atomically(path, formats.prometheus_text(result), 0o644)
        except OSError as error:
            write_error = RunFileError(
                f"{path} cannot be written: {error.strerror}", "Name a file in a directory of yours."
            )
            result = result.model_copy(update={"exit_code": write_error.exit_code})
    if options.as_json:
        show_json(result.model_dump_json(indent=None if options.watch else 2))
    elif options.as_csv:
        click.echo(formats.csv_text(result), nl=False)
    if write_error is not None:
        raise write_error
