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

from howfar.cli.completion import complete_servers
from howfar.cli.hop_binary import hop_binary_option
from howfar.cli.links import LinkChoice, link_options, read_link
from howfar.cli.main import run_command_line
from howfar.cli.screen import OutputFile, note
from howfar.cli.session import replicas_of
from howfar.cli.target_options import enter_sandbox
from howfar.engine.ping_messages import TcpTarget, UnixTarget
from howfar.engine.process import Launcher
from howfar.errors import HowfarError, LabError, UsageError, how_ended, shell_code
from howfar.lab.environment import LoadWatch
from howfar.lab.laboratory import PLACEMENTS, Lab, LabRequest, LabStage, open_laboratory
from howfar.lab.link import DIRECTIONS, Link
from howfar.lab.link.receipt import (
    OF_A_PLAN,
    STRICT,
    counter_violations,
    effect_warnings,
    link_receipt,
    link_violations,
    unproved,
)
from howfar.lab.link.settings import Player, Script
from howfar.lab.network import SERVER_ADDRESS, SERVER_ADDRESS6, Companion
from howfar.lab.replicated import Replicated
from howfar.lab.replication.dialect import replication_dialect
from howfar.lab.replication.member import Member
from howfar.lab.servers import USER
from howfar.lab.servers.kinds import KINDS, STORES, check_no_address, find_server
from howfar.paths import Path as NetworkPath
from howfar.paths import find_path, path_names
from howfar.plan.cells import cells
from howfar.plan.factors import DISTANCES, IDLE, REPLICA_RATE_BPS, REPLICA_RTT_NS, REPLICAS, REPLICATION
from howfar.plan.load import Override, load_plan
from howfar.plan.quantities import rtt_tolerance_ns
from howfar.plan.types import Plan
from howfar.runner.preflight import lacking
from howfar.stopping import passed_on_to
from howfar.store.partial import stays
from howfar.store.records import FactorValue
from howfar.units import format_duration_ns, format_rate_bps, format_size_bytes


def clear_receipt(receipt: Path) -> None:
    """Remove an older receipt, and check that a new one can be written, so that no old verdict remains if this run ends early.

    Raises UsageError.
    """
    if stays(receipt) and not receipt.is_dir():
        return
    try:
        receipt.unlink(missing_ok=True)
        receipt.touch()
        receipt.unlink()
    except OSError as error:
        raise UsageError(f"the receipt {receipt} cannot be written: {error.strerror}", "Name another file.") from error


def code_with_receipt(code: int, receipt: Path, facts: dict[str, Any]) -> int:
    """Write the receipt, and return the exit code: CMD's own, unless that is 0 and the receipt could not be written."""
    try:
        receipt.write_text(json.dumps(facts, indent=2) + "\n")
    except OSError as error:
        note(f"the receipt {receipt} cannot be written: {error.strerror}")
        return code or LabError.exit_code
    return code


def run_over_link(laboratory: Lab, link: Link, script: Script, run: Callable[[], int], receipt: Path | None) -> int:
    """Call `run` over the link and return its exit code. Deviations of the link are reported on stderr; `receipt` gets all facts."""
    laboratory.size_buffers(max(spec.bdp_bytes for spec in script.links()))
    at_rest = link.at_rest() if receipt else None
    from_idle = link.ping_from_idle() if receipt else None
    watch = LoadWatch()
    link.arm()
    link.counters(reset=True)
    start_ns = time.monotonic_ns()
    with Player(script, link.change) as player:
        code = run()
    elapsed_ns = time.monotonic_ns() - start_ns
    machine = watch.finish()
    try:
        stats = link.counters()
    except HowfarError as error:
        raise LabError(f"the link ended before CMD did: {error.message}", error.advice) from error
    # A script that changed the RTT is judged by the strictest of its links.
    judged = min(script.links(), key=lambda spec: spec.rtt_ns)
    violations = (*script_violations(player), *counter_violations(judged, stats, STRICT))
    if at_rest is not None:
        violations = link_violations(link, at_rest, None, STRICT) + violations
    warnings = () if script.changes else effect_warnings(link.spec, stats)
    for sentence in (*(f"not as requested: {violation}" for violation in violations), *warnings):
        note(sentence)
    if receipt is None or at_rest is None:
        return code
    unknown = unproved(stats)
    facts = _facts(laboratory)
    facts["link"] = {
        **link_receipt(link, at_rest, stats, laboratory.tcp(), changed=bool(script.changes)),
        "rtt_from_idle_ns": None if from_idle is None else from_idle.model_dump(exclude={"event"}),
        "elapsed_ns": elapsed_ns,
        "script_ns": [{"asked": requested, "in_force": done} for requested, done in player.played],
        "machine": machine.model_dump(),
        "verdict": {
            "valid": None if unknown and not violations else not violations,
            "violations": list(violations),
            "warnings": [*warnings, *unknown, *laboratory.warnings],
        },
    }
    return code_with_receipt(code, receipt, facts)


def _facts(laboratory: Lab) -> dict[str, Any]:
    return {"environment": laboratory.environment(), "server": laboratory.server()}


def script_violations(player: Player) -> tuple[str, ...]:
    """The violation if a script failed: from then on the link was not as requested."""
    if player.failure is None:
        return ()
    at_ns, _ = player.script.changes[len(player.played)]
    return (f"the link could not be changed at {format_duration_ns(at_ns)}, nor after that: {player.failure.message}",)


def describe_link(link: Link) -> str:
    """The link in words: `link 1gbit, RTT 10ms (measured 10.01ms at rest), queue 1.192MiB, jitter, loss`."""
    spec, measured = link.spec, format_duration_ns(link.calibration["rtt_p50_ns"])
    if link.backend == "none":
        return f"a bare cable, RTT measured {measured} at rest"
    own_ns = link.rest_rtt_ns(spec) - spec.rtt_ns
    if own_ns > rtt_tolerance_ns(spec.rtt_ns):
        measured += f", {format_duration_ns(own_ns)} of it for the ping's own bytes,"
    rates = [spec.mean_rate_bps(name) for name in DIRECTIONS]
    directions = [spec.direction(name) for name in DIRECTIONS]
    parts = [
        f"link {_both(['unshaped' if rate is None else format_rate_bps(rate) for rate in rates])}",
        f"RTT {format_duration_ns(spec.rtt_ns)} (measured {measured} at rest)",
        f"queue {_both([format_size_bytes(link.queue_bytes(name)) for name in DIRECTIONS])}",
        *(name for field, name in _EFFECTS.items() if any(getattr(direction, field) for direction in directions)),
    ]
    if link.backend != "packet":
        parts.append(f"back-end {link.backend}")
    return ", ".join(parts)


_EFFECTS = {
    "rate_trace": "rate trace",
    "jitter": "jitter",
    "reorder": "reordering",
    "loss": "loss",
    "duplicate": "duplication",
    "corrupt": "corruption",
    "outages": "outages",
}


def _both(values: list[str]) -> str:
    """One value, or both if the directions differ."""
    return values[0] if values[0] == values[1] else f"{values[0]} to server, {values[1]} to client"


NOT_FOUND, NOT_EXECUTABLE = 127, 126
"""Exit codes of shells."""

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
@click.option(
    "--replication",
    metavar="MODE",
    help="Give the server replicas, each on a host of its own, in this mode, such as async, galera or group.",
)
@click.option(
    "--replicas", metavar="N", help="With --replication, the number of servers besides the primary.  [default: 2]"
)
@click.option(
    "--distances",
    metavar="LEVEL",
    help="With --replication, how far apart the servers are, such as three-zones or 1ms,20ms,30ms.  [default: three-zones]",
)
@click.option(
    "--replica-rtt", metavar="TIME", help="Instead of --distances, the same round trip time between any two servers."
)
@click.option(
    "--replica-rate",
    metavar="RATE",
    help="With --replication, the bandwidth between any two servers.  [default: 1gbit]",
)
@click.option("--consistency", metavar="LEVEL", help="Consistency level of a cluster.  [default: eventual]")
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
    replication: str | None,
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
    levels = {option: values.pop(option.replace("-", "_")) for option in _OF_REPLICAS}
    plan = _replicated_plan(replication, server or "mariadb", levels)
    choice = read_link(values)
    path = _path(path_name, choice)
    bare = choice.alone and path_name is None and not (beside or replication or tls)
    request = LabRequest(
        replicas=None if plan is None else replicas_of(plan),
        server=server or ("none" if bare else "mariadb"),
        companions=tuple(filter(None, beside.split(","))),
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
    _check_served(request.server, path, tls)
    _check_command(command)
    if receipt is not None:
        clear_receipt(receipt)
    enter_sandbox(path)
    sys.exit(_run_inside(request, _factors(plan, path, tls), on_server, command, choice.script, receipt))


def _check_served(server: str, path: NetworkPath, tls: str | None) -> None:
    """Check that a server is started if the path or TLS needs one. Raises UsageError."""
    if server == "none" and (path.hops or tls):
        raise UsageError(
            f"{'--tls' if tls else f'the path {path.name}'} needs a server, and none is started",
            "Leave out --server none, or choose --path remote without --tls.",
        )


def _factors(plan: Plan | None, path: NetworkPath, tls: str | None) -> dict[str, FactorValue]:
    """Factors of the stage."""
    of_replicas: dict[str, FactorValue] = {} if plan is None else dict(cells(plan)[0].factors)
    return of_replicas | {"path": path.name, "tls": tls or "off", IDLE.name: "as-found"}


def _run_inside(
    request: LabRequest,
    factors: Mapping[str, FactorValue],
    on_server: str | None,
    command: tuple[str, ...],
    script: Script,
    receipt: Path | None,
) -> int:
    """Run the command in the sandbox and return its exit code."""
    path = find_path(str(factors["path"]))
    with ExitStack() as ledger:
        laboratory = ledger.enter_context(open_laboratory(request))
        variables = _open_stage(laboratory, path, factors, ledger)
        _say(laboratory, path, factors)
        if on_server:
            _start_companion(laboratory, on_server, variables, ledger)
        run = partial(_run, _launcher(laboratory, path, command), command, variables)
        if laboratory.link is not None:
            return run_over_link(laboratory, laboratory.link, script, run, receipt)
        code = run()
        return code_with_receipt(code, receipt, _facts(laboratory)) if receipt else code


def _path(name: str | None, choice: LinkChoice) -> NetworkPath:
    """The named path; without a name, `remote` if any link option is given, else `socket`."""
    path = find_path(name or ("remote" if choice.given else "socket"))
    if choice.given and not path.crosses_link:
        raise UsageError(f"the path {path.name} crosses no link", "Leave out --path, or use --path remote.")
    return path


def _check_command(command: Sequence[str]) -> None:
    """Check the command before anything is built."""
    if not command or shutil.which(command[0]) is not None:
        return
    there = "/" in command[0] and Path(command[0]).exists()
    why = "cannot be executed" if there else "was not found"
    note(f"the program {command[0]} {why}; nothing was started")
    sys.exit(NOT_EXECUTABLE if there else NOT_FOUND)


_OF_REPLICAS = ("replicas", "distances", "replica-rtt", "replica-rate", "consistency")
"""Options that set factors."""


def _replicated_plan(mode: str | None, server: str, levels: Mapping[str, str | None]) -> Plan | None:
    """A plan of one cell, so that levels are checked and errors explained as in a plan. None without --replication. Raises
    UsageError, PlanError, ServerMissing."""
    given = {name: level for name, level in levels.items() if level is not None}
    if mode in ("off", "none"):
        raise UsageError(
            f"--replication {mode} means no replication", "Leave it out, or name a mode such as async or galera."
        )
    if mode is None:
        if given:
            raise UsageError(
                f"--{next(iter(given))} applies to replicas, and there are none", "Add --replication MODE."
            )
        return None
    if {"distances", "replica-rtt"} <= set(given):
        raise UsageError(
            "--distances and --replica-rtt both say how far apart the servers are", "Give only one of them."
        )
    chosen = {"distances": "even" if "replica-rtt" in given else "three-zones", **given}
    chosen |= {"replication": mode, "server": server, "threads": "1"}
    overrides = [
        Override(f"--{option}", ("factors", option.replace("-", "_")), _number(level))
        for option, level in chosen.items()
    ]
    plan = load_plan("cluster", overrides=overrides).plan
    program = find_server(server)
    if program.kind in STORES:
        raise UsageError(
            f"howfar does not replicate {program.kind}", "Leave out --replication, or name a server that speaks SQL."
        )
    asked = {"replication": f"--replication {mode}", "consistency": f"--consistency {levels['consistency']}"}
    unable = lacking(plan)
    for factor, option in asked.items():
        for reason in unable.get(factor, {}).values():
            modes = f"Modes of {program.kind}: {', '.join(replication_dialect(program.kind).modes)}."
            raise UsageError(
                f"{option} is not available: {reason}", modes if factor == "replication" else "Name another level."
            )
    return plan


def _number(level: str) -> str | int:
    return int(level) if level.isascii() and level.isdigit() else level


def _open_stage(
    laboratory: Lab, path: NetworkPath, factors: Mapping[str, FactorValue], ledger: ExitStack
) -> dict[str, str]:
    """Start the server, if one was requested, and return the environment variables for CMD."""
    if laboratory.store is None:
        return {} if path.machines == 1 else _server_host(laboratory)
    tls = None if factors["tls"] == "off" else str(factors["tls"])
    if tls and path.by_socket and laboratory.store.kind == "postgresql":
        raise UsageError(
            f"the path {path.name} ends at PostgreSQL's Unix socket, which PostgreSQL does not encrypt",
            "Leave out --tls, or choose another --path.",
        )
    stage = ledger.enter_context(laboratory.stage(factors))
    ledger.callback(_name_dead_hops, stage)
    variables = _account(laboratory, stage, tls) if stage.user else {}
    if stage.trust is not None:
        variables["HOWFAR_CA_FILE"] = stage.trust.ca_file
    variables |= {"HOWFAR_PROTOCOL": KINDS[laboratory.store.kind].service, **_where("HOWFAR", stage.target)}
    if isinstance(stage.serving, Replicated):
        ledger.callback(_name_late_links, stage.serving)
        for replica in stage.serving.pair.replicas:
            variables |= _replica(laboratory, replica, stage.protocol)
    for one in stage.companions:
        variables |= _where(f"HOWFAR_{one.name.upper()}", one.target)
    return variables if path.machines == 1 or path.by_socket else {**_server_host(laboratory), **variables}


def _name_dead_hops(stage: LabStage) -> None:
    """Report hops that died, whether or not CMD noticed."""
    for hop in stage.main.endpoint.hops:
        if (code := hop.process.poll()) is not None:
            note(f"not as requested: the path's program {hop.label} ended before CMD did ({how_ended(code)})")


def _replica(laboratory: Lab, replica: Member, protocol: str) -> dict[str, str]:
    """Variables of a replica: its socket; for MySQL and MariaDB an option file, because its password differs from the primary's."""
    prefix = f"HOWFAR_{replica.name.upper()}"
    found = {f"{prefix}_SOCKET": str(replica.server.socket)}
    if protocol != "postgresql":
        target = UnixTarget(path=str(replica.server.socket))
        options = _secret(
            laboratory.work / f"{replica.name}.cnf", client_options(USER, replica.server.password, target)
        )
        found[f"{prefix}_CLIENT_CNF"] = str(options)
    return found


def _secret(file: Path, text: str) -> Path:
    file.touch(mode=0o600)
    file.write_text(text)
    return file


def _name_late_links(replicated: Replicated) -> None:
    for sentence in replicated.unlike(OF_A_PLAN):
        note(f"not as requested: {sentence}")


def _where(prefix: str, target: UnixTarget | TcpTarget) -> dict[str, str]:
    if isinstance(target, UnixTarget):
        return {f"{prefix}_SOCKET": target.path}
    return {f"{prefix}_HOST": target.host, f"{prefix}_PORT": str(target.port)}


def _account(laboratory: Lab, stage: LabStage, tls: str | None) -> dict[str, str]:
    """Variables of the account, for a server that has accounts."""
    if stage.protocol == "postgresql":
        return _libpq(laboratory, stage, tls)
    encryption = _mysql_encryption(stage.trust.ca_file, tls) if stage.trust and tls else ("loose-skip-ssl",)
    secret = _secret(laboratory.work / "password", stage.password)
    written = client_options(stage.user, stage.password, stage.target, encryption)
    options = _secret(laboratory.work / "client.cnf", written)
    return {
        "HOWFAR_USER": stage.user,
        "HOWFAR_PASSWORD_FILE": str(secret),
        "HOWFAR_CLIENT_CNF": str(options),
        "HOWFAR_DATABASE": stage.database,
    }


def _mysql_encryption(ca_file: str, tls: str) -> tuple[str, ...]:
    """Options of an encrypted session; MariaDB's and MySQL's clients have different names for the certificate check."""
    return (
        f'ssl-ca="{ca_file}"',
        f"tls-version=TLSv{tls}",
        "loose-ssl-mode=VERIFY_CA",
        "loose-ssl-verify-server-cert",
    )


def _libpq(laboratory: Lab, stage: LabStage, tls: str | None) -> dict[str, str]:
    """Variables of the account, with those that libpq reads, so that psql and pgbench need no options."""
    secret = _secret(laboratory.work / "password", stage.password)
    line = f"*:*:{stage.database}:{stage.user}:{stage.password}\n"
    passwords = _secret(laboratory.work / "pgpass", line)
    target = stage.target
    if isinstance(target, UnixTarget):
        # libpq takes a directory and looks for a fixed name in it; a forwarded socket has another name.
        named = laboratory.work / "libpq" / f".s.PGSQL.{_LIBPQ_PORT}"
        named.parent.mkdir()
        named.symlink_to(target.path)
        host, port = str(named.parent), str(_LIBPQ_PORT)
    else:
        host, port = target.host, str(target.port)
    encryption = (
        {
            "PGSSLMODE": "verify-ca",
            "PGSSLROOTCERT": stage.trust.ca_file,
            "PGSSLMINPROTOCOLVERSION": f"TLSv{tls}",
            "PGSSLMAXPROTOCOLVERSION": f"TLSv{tls}",
        }
        if stage.trust and tls
        else {}
    )
    return {
        **encryption,
        "HOWFAR_USER": stage.user,
        "HOWFAR_PASSWORD_FILE": str(secret),
        "HOWFAR_DATABASE": stage.database,
        "PGHOST": host,
        "PGPORT": port,
        "PGUSER": stage.user,
        "PGDATABASE": stage.database,
        "PGPASSFILE": str(passwords),
    }


def _server_host(laboratory: Lab) -> dict[str, str]:
    """The addresses of the server's host over the link."""
    addresses = {"HOWFAR_HOST": SERVER_ADDRESS}
    if laboratory.network is not None and laboratory.network.ipv6:
        addresses["HOWFAR_HOST6"] = SERVER_ADDRESS6
    return addresses


def client_options(
    user: str, password: str, target: UnixTarget | TcpTarget, encryption: Sequence[str] = ("loose-skip-ssl",)
) -> str:
    """The text of an option file for the clients of MariaDB and MySQL, so that no password is on a command line."""

    def quoted(value: str) -> str:
        return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'

    lines = ["[client]", f"user={quoted(user)}", f"password={quoted(password)}"]
    if isinstance(target, UnixTarget):
        lines += ["protocol=socket", f"socket={quoted(target.path)}"]
    else:
        lines += ["protocol=tcp", f"host={quoted(target.host)}", f"port={target.port}"]
    # MariaDB's clients from 11.4 on insist on TLS unless told to skip it; MySQL's do not know that option, hence loose.
    return "\n".join([*lines, *encryption, ""])


def _say(laboratory: Lab, path: NetworkPath, factors: Mapping[str, FactorValue]) -> None:
    kind, version = laboratory.server()
    request = laboratory.request
    parts = [f"path {path.name}"]
    if laboratory.store is not None:
        held = "empty" if kind in STORES else f"with {request.tables} x {request.table_size} rows"
        parts.append(f"{kind} {version} {held}")
        companions = laboratory.companions.environment().values()
        parts += [f"with it {found['kind']} {found['version']} empty" for found in companions]
    if REPLICATION.name in factors:
        parts.append(f"replication {_levels(factors)}")
    if laboratory.link is not None:
        parts.append(describe_link(laboratory.link))
    for sentence in (", ".join(parts), *laboratory.warnings):
        note(sentence)


def _levels(factors: Mapping[str, FactorValue]) -> str:
    """The replication in words: `Galera, 2 replicas, three zones, replica link 1gbit`."""
    shown = (REPLICATION, REPLICAS, DISTANCES, REPLICA_RTT_NS, REPLICA_RATE_BPS)
    return ", ".join(factor.label(factors[factor.name]) for factor in shown if factor.name in factors)


def _start_companion(laboratory: Lab, command: str, variables: dict[str, str], ledger: ExitStack) -> None:
    launcher = laboratory.server_host.launcher(laboratory.shares.server)
    companion = Companion(
        launcher,
        ["sh", "-c", command],
        stdin=subprocess.DEVNULL,
        stdout=sys.stderr,
        stderr=sys.stderr,
        env={**os.environ, **variables},
    )
    ledger.callback(companion.end)


def _launcher(laboratory: Lab, path: NetworkPath, command: Sequence[str]) -> Launcher:
    """The launcher that starts CMD on its host."""
    if not command:
        note("a shell in the laboratory; `exit` ends it")
    host = laboratory.client_host_of(path)
    return host.launcher(laboratory.client_cpus(path, laboratory.request.placement), foreground=True)


def _run(launcher: Launcher, command: Sequence[str], variables: dict[str, str]) -> int:
    arguments = list(command) or [os.environ.get("SHELL", "/bin/sh")]
    process = launcher.popen(arguments, env={**os.environ, **variables})
    with passed_on_to(process):
        code = process.wait()
    return shell_code(code)


if __name__ == "__main__":
    sys.exit(run_command_line(["lab", *sys.argv[1:]]))
