"""`howfar lab`: runs any program inside the laboratory, with a server that environment variables describe."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import click

from howfar.cli.client_files import client_options, write_secret
from howfar.cli.completion import complete_servers
from howfar.cli.hop_binary import hop_binary_option
from howfar.cli.lab_groups import describe_groups, group_options, group_variables, read_group_options
from howfar.cli.links import LinkChoice, link_options, read_link
from howfar.cli.main import run_command_line
from howfar.cli.screen import OutputFile, note
from howfar.cli.target_options import enter_sandbox
from howfar.contract.ping_messages import TcpTarget, UnixTarget
from howfar.contract.violation import Violation, sentences, violation
from howfar.engine.process import Launcher
from howfar.errors import HowfarError, LabError, UsageError, describe_exit_status, shell_exit_code
from howfar.lab import sandbox
from howfar.lab.environment import LoadWatch
from howfar.lab.laboratory import PLACEMENTS, Lab, LabRequest, LabTrialEnvironment, open_laboratory
from howfar.lab.link import DIRECTIONS, Link
from howfar.lab.link.receipt import (
    STRICT_LIMITS,
    effect_warnings,
    link_counters,
    link_receipt,
    unknown_properties,
)
from howfar.lab.link.settings import Script, ScriptPlayer
from howfar.lab.network import SERVER_ADDRESS, SERVER_ADDRESS6, ManagedProcess
from howfar.lab.server_group import ServerGroup, replicas_spec
from howfar.lab.servers.kinds import KINDS, STORES, check_no_address
from howfar.paths import Path as NetworkPath
from howfar.paths import find_path, path_names
from howfar.plan.cells import cells
from howfar.plan.factor import Level
from howfar.plan.factors import IDLE, PATH, TLS
from howfar.plan.quantities import rtt_tolerance_ns
from howfar.plan.types import Plan
from howfar.stopping import forwarding_end_signals_to
from howfar.store.partial import is_written_in_place
from howfar.units import format_duration_ns, format_rate_bps, format_size_bytes


def clear_receipt(receipt: Path) -> None:
    """Remove an older receipt, and check that a new one can be written, so that no old verdict remains if this run ends early.

    Raises UsageError.
    """
    if is_written_in_place(receipt) and not receipt.is_dir():
        return
    try:
        receipt.unlink(missing_ok=True)
        receipt.touch()
        receipt.unlink()
    except OSError as error:
        raise UsageError(
            f"the receipt {receipt} cannot be written: {error.strerror}", "Choose another file."
        ) from error


def write_receipt(exit_code: int, receipt: Path, facts: Mapping[str, object]) -> int:
    """Write the receipt, and return the exit code: CMD's own, unless that is 0 and the receipt could not be written."""
    try:
        receipt.write_text(json.dumps(facts, indent=2) + "\n")
    except OSError as error:
        note(f"the receipt {receipt} cannot be written: {error.strerror}")
        return exit_code or LabError.exit_code
    return exit_code


def run_over_link(laboratory: Lab, link: Link, script: Script, run: Callable[[], int], receipt: Path | None) -> int:
    """Call `run` over the link and return its exit code. Deviations are reported on stderr, and all facts are written to `receipt`."""
    laboratory.size_buffers(max(spec.bdp_bytes for spec in script.all_specs()))
    rtt_at_rest = link.measure_rtt_at_rest() if receipt else None
    rtt_from_idle = link.ping_from_idle() if receipt else None
    load_watch = LoadWatch()
    link.start_effects()
    link.counters(reset=True)
    start_ns = time.monotonic_ns()
    with ScriptPlayer(script, link.change) as player:
        code = run()
    elapsed_ns = time.monotonic_ns() - start_ns
    machine_load = load_watch.finish()
    try:
        stats = link.counters()
    except HowfarError as error:
        raise LabError(f"the link ended before CMD did: {error.message}", error.advice) from error
    # If the script changed the RTT, the link is judged by the shortest RTT, whose limits are the strictest.
    min_rtt_spec = min(script.all_specs(), key=lambda spec: spec.rtt_ns)
    violations = script_violations(player)
    if (counters := link_counters(stats)) is not None:
        violations += counters.violations(min_rtt_spec.rtt_ns, STRICT_LIMITS)
    if rtt_at_rest is not None:
        link_facts = link_receipt(link, rtt_at_rest, stats, laboratory.tcp_settings(), changed=bool(script.changes))
        violations = link_facts.rtt_violations(STRICT_LIMITS) + violations
    warnings = () if script.changes else effect_warnings(link.spec, stats)
    for sentence in (*(f"not as requested: {each.sentence}" for each in violations), *warnings):
        note(sentence)
    if receipt is None or rtt_at_rest is None:
        return code
    unknown = unknown_properties(stats)
    facts = _environment_facts(laboratory)
    facts["link"] = {
        **link_facts.as_json(),
        "rtt_from_idle_ns": None if rtt_from_idle is None else rtt_from_idle.model_dump(exclude={"event"}),
        "elapsed_ns": elapsed_ns,
        "script_ns": [{"asked": requested, "in_force": changed_at} for requested, changed_at in player.played],
        "machine": machine_load.model_dump(),
        "verdict": {
            "valid": None if unknown and not violations else not violations,
            "violations": list(sentences(violations)),
            "warnings": [*warnings, *unknown, *laboratory.warnings],
        },
    }
    return write_receipt(code, receipt, facts)


def _environment_facts(laboratory: Lab) -> dict[str, object]:
    return {"environment": laboratory.environment().as_json(), "server": laboratory.server()}


def script_violations(player: ScriptPlayer) -> tuple[Violation, ...]:
    """The violation if a script failed, because from then on the link was not as requested; otherwise empty."""
    if player.failure is None:
        return ()
    at_ns, _ = player.script.changes[len(player.played)]
    return (violation("link-script-failed", at_ns=at_ns, message=player.failure.message),)


def describe_link(link: Link) -> str:
    """The link as text: `link 1gbit, RTT 10ms (measured 10.01ms unloaded), queue 1.192MiB, jitter, loss`."""
    spec, rtt_text = link.spec, f"{format_duration_ns(link.measured_rtt_ns)} unloaded"
    if link.backend == "none":
        return f"a bare cable, RTT measured {rtt_text}"
    transmission_ns = link.rest_rtt_ns(spec) - spec.rtt_ns
    if transmission_ns > rtt_tolerance_ns(spec.rtt_ns):
        rtt_text += f", of which {format_duration_ns(transmission_ns)} is the ping's transmission time"
    rates = [spec.mean_rate_bps(name) for name in DIRECTIONS]
    directions = [spec.direction(name) for name in DIRECTIONS]
    parts = [
        f"link {_format_directions(['unshaped' if rate is None else format_rate_bps(rate) for rate in rates])}",
        f"RTT {format_duration_ns(spec.rtt_ns)} (measured {rtt_text})",
        f"queue {_format_directions([format_size_bytes(link.queue_bytes(name)) for name in DIRECTIONS])}",
        *(name for field, name in _EFFECT_NAMES.items() if any(getattr(direction, field) for direction in directions)),
    ]
    if link.backend != "packet":
        parts.append(f"back-end {link.backend}")
    return ", ".join(parts)


_EFFECT_NAMES = {
    "rate_trace": "rate trace",
    "jitter": "jitter",
    "reorder": "reordering",
    "loss": "loss",
    "duplicate": "duplication",
    "corrupt": "corruption",
    "outages": "outages",
}


def _format_directions(values: list[str]) -> str:
    """The value, or one for each direction if they differ."""
    return values[0] if values[0] == values[1] else f"{values[0]} to server, {values[1]} to client"


NOT_FOUND, NOT_EXECUTABLE = 127, 126
"""Exit codes of shells for a command that cannot be started."""

_LIBPQ_PORT = 5432


@click.command(context_settings={"allow_interspersed_args": False})
@click.option(
    "--path",
    "path_name",
    metavar="NAME",
    type=click.Choice(path_names()),
    help=f"How CMD reaches the server: {', '.join(path_names())}.  [default: socket, or remote with a link option]",
)
@link_options
@click.option(
    "--server",
    shell_complete=complete_servers,
    help="A name from `howfar servers`, a path, or `none`.  [default: mariadb, or none with most link options and no --path]",
)
@click.option(
    "--beside",
    metavar="SERVERS",
    default="",
    help="Additional servers on the same host and path, separated by commas: `redis` or `valkey`, and `memcached`.",
)
@group_options
@click.option(
    "--tables", type=click.IntRange(0, 1000), default=10, show_default=True, help="Number of sysbench tables."
)
@click.option(
    "--table-size",
    type=click.IntRange(1, 100_000_000),
    default=10_000,
    show_default=True,
    help="Number of rows in each table.",
)
@click.option(
    "--placement",
    type=click.Choice(PLACEMENTS),
    default="isolated",
    show_default=True,
    help="Which CPUs a local client gets.",
)
@click.option(
    "--connections",
    type=click.IntRange(1, 10_000),
    default=256,
    show_default=True,
    help="Maximum number of concurrent connections.",
)
@click.option(
    "--tls",
    type=click.Choice(("1.2", "1.3")),
    help="Encrypt CMD's sessions. Redis and Memcached then accept no others.",
)
@hop_binary_option
@click.option("--on-server", metavar="COMMAND", help="Also run COMMAND on the server's host, until CMD ends.")
@click.option(
    "--receipt",
    type=OutputFile(dir_okay=False, writable=True),
    help="After CMD, write what the laboratory measured about itself to FILE as JSON.",
)
@click.argument("command", metavar="[CMD]...", nargs=-1, type=click.UNPROCESSED)
def lab(
    path_name: str | None,
    server: str | None,
    beside: str,
    tables: int,
    table_size: int,
    placement: str,
    connections: int,
    tls: str | None,
    on_server: str | None,
    receipt: Path | None,
    command: tuple[str, ...],
    **values: Any,
) -> None:
    """Run CMD (default: a shell) on the laboratory's client host, or, for a local path, on its server host.

    CMD finds the server in HOWFAR_SOCKET, or HOWFAR_HOST and HOWFAR_PORT, with HOWFAR_PROTOCOL, HOWFAR_USER, HOWFAR_PASSWORD_FILE
    and HOWFAR_DATABASE; `howfar load` and `howfar doctor` use these variables by default. HOWFAR_CLIENT_CNF is an option file with
    address and login, for `mariadb --defaults-file` and similar programs; with PostgreSQL, libpq's own variables (PGHOST,
    PGPASSFILE, …) are set instead, so that psql and pgbench need no options. With --tls, all of these request TLS; HOWFAR_CA_FILE
    names its CA. With --replication, this server is the primary; the others are in HOWFAR_REPLICA1_SOCKET,
    HOWFAR_REPLICA1_CLIENT_CNF, and so on.
    --beside sets HOWFAR_REDIS_SOCKET, or HOWFAR_REDIS_HOST and _PORT, and HOWFAR_MEMCACHED_… likewise.
    On `remote`, HOWFAR_HOST and HOWFAR_HOST6 are the addresses of the server's host, even without a server.
    Link options imply `--path remote`. Except for --rtt, --rate, --tcp and --congestion-control, they also imply `--server none`,
    unless --path, --tls, --beside or --replication is given.
    The exit code is that of CMD; 127 means that it was not found, 126 that it cannot be run, and 128 + N that signal N ended it.
    """
    check_no_address(server or "")
    if beside and server == "none":
        raise UsageError("--beside adds servers to another server", "Leave out --server none.")
    plan = read_group_options(values, server or "mariadb")
    choice = read_link(**values)
    path = _choose_path(path_name, choice)
    is_link_only = choice.wants_only_link and path_name is None and not (beside or plan or tls)
    request = LabRequest(
        replicas=None if plan is None else replicas_spec(plan),
        server=server or ("none" if is_link_only else "mariadb"),
        auxiliary_servers=tuple(filter(None, beside.split(","))),
        tables=tables,
        table_size=table_size,
        with_goodput=receipt is not None,
        placement=placement,
        connections=connections,
        paths=(path.name,),
        link=choice.spec,
        backend=choice.backend,
        tcp=choice.tcp,
        congestion_control=choice.congestion_control,
    )
    _check_server_starts(request.server, path, tls)
    _check_command(command)
    if receipt is not None:
        clear_receipt(receipt)
    enter_sandbox(path, runs_program=True)
    sys.exit(_run_inside(request, _environment_factors(plan, path, tls), on_server, command, choice.script, receipt))


def _check_server_starts(server: str, path: NetworkPath, tls: str | None) -> None:
    """Check that a server is started if the path or TLS needs one. Raises UsageError."""
    if server == "none" and (path.hops or tls):
        raise UsageError(
            f"{'--tls' if tls else f'the path {path.name}'} needs a server, and none is started",
            "Leave out --server none, or choose --path remote without --tls.",
        )


def _environment_factors(plan: Plan | None, path: NetworkPath, tls: str | None) -> dict[str, Level]:
    """The factors from which the trial environment is built."""
    factors: dict[str, Level] = {} if plan is None else dict(cells(plan)[0].factors)
    return factors | {"path": path.name, "tls": tls or "off", IDLE.name: "as-found"}


def _run_inside(
    request: LabRequest,
    factors: Mapping[str, Level],
    on_server: str | None,
    command: tuple[str, ...],
    script: Script,
    receipt: Path | None,
) -> int:
    """Run the command in the sandbox and return its exit code."""
    path = find_path(PATH.level_in(factors))
    with ExitStack() as cleanup:
        laboratory = cleanup.enter_context(open_laboratory(request))
        variables = _open_environment(laboratory, path, factors, cleanup)
        _note_setup(laboratory, path, factors)
        if on_server:
            _start_server_command(laboratory, on_server, variables, cleanup)
        run = partial(_run, _command_launcher(laboratory, path, command), command, variables)
        if laboratory.link is not None:
            return run_over_link(laboratory, laboratory.link, script, run, receipt)
        code = run()
        return write_receipt(code, receipt, _environment_facts(laboratory)) if receipt else code


def _choose_path(name: str | None, choice: LinkChoice) -> NetworkPath:
    """The named path; without a name, `remote` if any link option is given, else `socket`."""
    path = find_path(name or ("remote" if choice.has_options else "socket"))
    if choice.has_options and not path.crosses_link:
        raise UsageError(f"the path {path.name} crosses no link", "Leave out --path, or use --path remote.")
    return path


def _check_command(command: Sequence[str]) -> None:
    """Check that the command can be executed; otherwise exit with the code that a shell would return."""
    if not command or shutil.which(command[0]) is not None:
        return
    exists = "/" in command[0] and Path(command[0]).exists()
    problem = "cannot be executed" if exists else "was not found"
    note(f"the program {command[0]} {problem}; nothing was started")
    sys.exit(NOT_EXECUTABLE if exists else NOT_FOUND)


def _open_environment(
    laboratory: Lab, path: NetworkPath, factors: Mapping[str, Level], cleanup: ExitStack
) -> dict[str, str]:
    """Start the server, if one was requested, and return the environment variables for CMD."""
    if laboratory.store is None:
        return {} if path.machines == 1 else _server_host_variables(laboratory)
    tls = None if TLS.level_in(factors) == "off" else TLS.level_in(factors)
    if tls and path.by_socket and laboratory.store.kind == "postgresql":
        raise UsageError(
            f"the path {path.name} ends at PostgreSQL's Unix socket, which PostgreSQL does not encrypt",
            "Leave out --tls, or choose another --path.",
        )
    environment = cleanup.enter_context(laboratory.trial_environment(factors))
    cleanup.callback(_report_dead_hops, environment)
    variables = _account_variables(laboratory, environment, tls) if environment.user else {}
    if environment.trust is not None:
        variables["HOWFAR_CA_FILE"] = environment.trust.ca_file
    variables |= {
        "HOWFAR_PROTOCOL": KINDS[laboratory.store.kind].service,
        **_address_variables("HOWFAR", environment.target),
    }
    if environment.server_group.other_servers is not None:
        cleanup.callback(_report_link_mismatches, environment.server_group)
        variables |= group_variables(environment.server_group, laboratory.work, environment.protocol != "postgresql")
    for auxiliary in environment.auxiliary_servers:
        variables |= _address_variables(f"HOWFAR_{auxiliary.name.upper()}", auxiliary.target)
    return variables if path.machines == 1 or path.by_socket else {**_server_host_variables(laboratory), **variables}


def _report_dead_hops(environment: LabTrialEnvironment) -> None:
    """Report hops that died, whether or not CMD noticed."""
    for hop in environment.main.endpoint.hops:
        if (code := hop.process.poll()) is not None:
            note(
                f"not as requested: the path's program {hop.label} ended before CMD did ({describe_exit_status(code)})"
            )


def _report_link_mismatches(group: ServerGroup) -> None:
    for each in group.link_violations():
        note(f"not as requested: {each.sentence}")


def _address_variables(prefix: str, target: UnixTarget | TcpTarget) -> dict[str, str]:
    if isinstance(target, UnixTarget):
        return {f"{prefix}_SOCKET": target.path}
    return {f"{prefix}_HOST": target.host, f"{prefix}_PORT": str(target.port)}


def _account_variables(laboratory: Lab, environment: LabTrialEnvironment, tls: str | None) -> dict[str, str]:
    """Environment variables with the account of the server."""
    if environment.protocol == "postgresql":
        return _libpq_variables(laboratory, environment, tls)
    encryption = (
        _mysql_tls_options(environment.trust.ca_file, tls) if environment.trust and tls else ("loose-skip-ssl",)
    )
    password_file = write_secret(laboratory.work / "password", environment.password)
    option_text = client_options(environment.user, environment.password, environment.target, encryption)
    options = write_secret(laboratory.work / "client.cnf", option_text)
    return {
        "HOWFAR_USER": environment.user,
        "HOWFAR_PASSWORD_FILE": str(password_file),
        "HOWFAR_CLIENT_CNF": str(options),
        "HOWFAR_DATABASE": environment.database,
    }


def _mysql_tls_options(ca_file: str, tls: str) -> tuple[str, ...]:
    """Options of an encrypted session; MariaDB's and MySQL's clients have different names for the certificate check."""
    return (f'ssl-ca="{ca_file}"', f"tls-version=TLSv{tls}", "loose-ssl-mode=VERIFY_CA", "loose-ssl-verify-server-cert")


def _libpq_variables(laboratory: Lab, environment: LabTrialEnvironment, tls: str | None) -> dict[str, str]:
    """Environment variables with the account, including those that libpq reads, so that psql and pgbench need no options."""
    password_file = write_secret(laboratory.work / "password", environment.password)
    pgpass_line = f"*:*:{environment.database}:{environment.user}:{environment.password}\n"
    pgpass_file = write_secret(laboratory.work / "pgpass", pgpass_line)
    target = environment.target
    if isinstance(target, UnixTarget):
        # libpq takes a directory and looks for a fixed name in it; a forwarded socket has another name.
        socket_link = laboratory.work / "libpq" / f".s.PGSQL.{_LIBPQ_PORT}"
        socket_link.parent.mkdir()
        socket_link.symlink_to(target.path)
        host, port = str(socket_link.parent), str(_LIBPQ_PORT)
    else:
        host, port = target.host, str(target.port)
    encryption = (
        {
            "PGSSLMODE": "verify-ca",
            "PGSSLROOTCERT": environment.trust.ca_file,
            "PGSSLMINPROTOCOLVERSION": f"TLSv{tls}",
            "PGSSLMAXPROTOCOLVERSION": f"TLSv{tls}",
        }
        if environment.trust and tls
        else {}
    )
    return {
        **encryption,
        "HOWFAR_USER": environment.user,
        "HOWFAR_PASSWORD_FILE": str(password_file),
        "HOWFAR_DATABASE": environment.database,
        "PGHOST": host,
        "PGPORT": port,
        "PGUSER": environment.user,
        "PGDATABASE": environment.database,
        "PGPASSFILE": str(pgpass_file),
    }


def _server_host_variables(laboratory: Lab) -> dict[str, str]:
    """The addresses of the server's host over the link."""
    addresses = {"HOWFAR_HOST": SERVER_ADDRESS}
    if laboratory.network is not None and laboratory.network.ipv6:
        addresses["HOWFAR_HOST6"] = SERVER_ADDRESS6
    return addresses


def _note_setup(laboratory: Lab, path: NetworkPath, factors: Mapping[str, Level]) -> None:
    kind, version = laboratory.server()
    request = laboratory.request
    parts = [f"path {path.name}"]
    if laboratory.store is not None:
        contents = "empty" if kind in STORES else f"with {request.tables} x {request.table_size} rows"
        parts.append(f"{kind} {version} {contents}")
        auxiliary_servers = laboratory.auxiliary_servers.environment().values()
        parts += [f"plus {facts['kind']} {facts['version']} (empty)" for facts in auxiliary_servers]
    parts += describe_groups(factors)
    if laboratory.link is not None:
        parts.append(describe_link(laboratory.link))
    late = sandbox.lacking_timing() if laboratory.link is not None else None
    for sentence in (", ".join(parts), *laboratory.warnings, *filter(None, [late])):
        note(sentence)


def _start_server_command(laboratory: Lab, command: str, variables: dict[str, str], cleanup: ExitStack) -> None:
    launcher = laboratory.server_host.launcher(laboratory.shares.server)
    process = ManagedProcess(
        launcher,
        ["sh", "-c", command],
        stdin=subprocess.DEVNULL,
        stdout=sys.stderr,
        stderr=sys.stderr,
        env={**os.environ, **variables},
    )
    cleanup.callback(process.end)


def _command_launcher(laboratory: Lab, path: NetworkPath, command: Sequence[str]) -> Launcher:
    """The launcher that starts CMD on its host. Without CMD, a note says that a shell starts."""
    if not command:
        note("a shell in the laboratory; `exit` ends it")
    host = laboratory.client_host_for(path)
    return host.launcher(laboratory.client_cpus(path, laboratory.request.placement), foreground=True)


def _run(launcher: Launcher, command: Sequence[str], variables: dict[str, str]) -> int:
    arguments = list(command) or [os.environ.get("SHELL", "/bin/sh")]
    process = launcher.popen(arguments, env={**os.environ, **variables})
    with forwarding_end_signals_to(process):
        code = process.wait()
    return shell_exit_code(code)


if __name__ == "__main__":
    sys.exit(run_command_line(["lab", *sys.argv[1:]]))
