"""`howfar lab`: any program inside the laboratory, the server reachable and described in environment variables."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import click

from howfar.engine.messages import TcpTarget, UnixTarget
from howfar.errors import HowfarError, LabError, SandboxForbidden
from howfar.lab import sandbox
from howfar.lab.hosts import Companion, Host
from howfar.lab.laboratory import PLACEMENTS, Lab, LabRequest, open_laboratory
from howfar.lab.link_receipt import link_receipt
from howfar.lab.network import SERVER_ADDRESS
from howfar.lab.paths import PathKind, find_path, path_names
from howfar.lab.servers import DATABASE
from howfar.plan.quantities import RateBps, RttNs, read_option
from howfar.units import format_duration_ns, format_rate_bps

NOT_FOUND, NOT_EXECUTABLE = 127, 126
"""As shells say it."""


@click.command(context_settings={"allow_interspersed_args": False})
@click.option(
    "--path",
    "path_name",
    type=click.Choice(path_names()),
    default="socket",
    show_default=True,
    help="How CMD reaches the server.",
)
@click.option("--rtt", default="0.2ms", show_default=True, help="Round trip time of the link.")
@click.option("--rate", default="1gbit", show_default=True, help="Rate of the link, each way; `none`: unshaped.")
@click.option("--server", default="mariadb", show_default=True, help="A name from `howfar servers`, a path, or `none`.")
@click.option("--tables", type=click.IntRange(0, 1000), default=10, show_default=True, help="How many sysbench tables.")
@click.option(
    "--table-size", type=click.IntRange(1, 100_000_000), default=10_000, show_default=True, help="Rows in each."
)
@click.option(
    "--placement",
    type=click.Choice(PLACEMENTS),
    default="isolated",
    show_default=True,
    help="Which CPUs a local client gets.",
)
@click.option("--connections", type=click.IntRange(1, 10_000), default=256, show_default=True, help="Most at once.")
@click.option("--on-server", metavar="CMD", help="A companion on the server's host, ended after CMD.")
@click.option(
    "--receipt",
    type=click.Path(dir_okay=False, writable=True, path_type=Path),
    help="Write what the laboratory measured of itself here, as JSON, after CMD.",
)
@click.argument("command", nargs=-1, type=click.UNPROCESSED)
def lab(
    path_name: str,
    rtt: str,
    rate: str,
    server: str,
    tables: int,
    table_size: int,
    placement: str,
    connections: int,
    on_server: str | None,
    receipt: Path | None,
    command: tuple[str, ...],
) -> None:
    """Run CMD (default: a shell) on the client's host of the laboratory; on local paths on the server's host.

    CMD finds the server in HOWFAR_SOCKET, or HOWFAR_HOST and HOWFAR_PORT, with HOWFAR_USER, HOWFAR_PASSWORD_FILE and
    HOWFAR_DATABASE; HOWFAR_CLIENT_CNF names an option file with all of it, for `mariadb --defaults-file` and the like. Its
    exit code is given back.
    """
    request = LabRequest(
        server=server,
        tables=tables,
        table_size=table_size,
        rtt_ns=read_option("--rtt", rtt, RttNs, "howfar lab"),
        rate_bps=None if rate == "none" else read_option("--rate", rate, RateBps, "howfar lab"),
        placement=placement,
        connections=connections,
        paths=(path_name,),
    )
    path = find_path(path_name)
    _check_command(command)
    if not sandbox.inside():
        try:
            sys.exit(sandbox.run_inside())
        except SandboxForbidden as forbidden:
            if path.LINK:
                raise
            click.echo(f"howfar: no sandbox: {forbidden.message}", err=True)
    with ExitStack() as ledger:
        laboratory = ledger.enter_context(open_laboratory(request))
        variables = _open_stage(laboratory, path, ledger)
        _say(laboratory, path)
        if on_server:
            _start_companion(laboratory, on_server, variables, ledger)
        host = laboratory.client_host_of(path)
        at_rest = laboratory.link.at_rest() if laboratory.link and receipt else ()
        from_idle = laboratory.link.ping_from_idle() if laboratory.link and receipt else None
        code = _run(laboratory, path, host, command, variables)
        if receipt:
            facts: dict[str, Any] = {"environment": laboratory.environment(), "server": laboratory.server()}
            if laboratory.link and at_rest and from_idle:
                facts["link"] = link_receipt(laboratory.link, at_rest, laboratory.link.stats())
                facts["link"]["rtt_from_idle_ns"] = from_idle.model_dump(exclude={"event"})
            _write(receipt, facts)
    sys.exit(code)


def _check_command(command: Sequence[str]) -> None:
    """Before anything is built: seconds later the same mistake would be told by a program in between, in its words."""
    if not command or shutil.which(command[0]) is not None:
        return
    there = "/" in command[0] and Path(command[0]).exists()
    why = "may not be executed" if there else "was not found"
    click.echo(f"howfar: the program {command[0]} {why}; nothing was started", err=True)
    sys.exit(NOT_EXECUTABLE if there else NOT_FOUND)


def _write(receipt: Path, facts: dict[str, Any]) -> None:
    try:
        receipt.write_text(json.dumps(facts, indent=2) + "\n")
    except OSError as error:
        raise LabError(f"the receipt {receipt} cannot be written: {error.strerror}", "Name another file.") from error


def _open_stage(laboratory: Lab, path: PathKind, ledger: ExitStack) -> dict[str, str]:
    """The variables for CMD; a server is running afterwards, if one was asked for."""
    if laboratory.store is None:
        return {} if path.LOCAL else {"HOWFAR_HOST": SERVER_ADDRESS}
    stage = ledger.enter_context(laboratory.stage({"path": path.NAME}))
    secret = laboratory.work / "password"
    options = laboratory.work / "client.cnf"
    for file, text in ((secret, stage.password), (options, client_options(stage.user, stage.password, stage.target))):
        file.touch(mode=0o600)
        file.write_text(text)
    variables = {
        "HOWFAR_USER": stage.user,
        "HOWFAR_PASSWORD_FILE": str(secret),
        "HOWFAR_CLIENT_CNF": str(options),
        "HOWFAR_DATABASE": DATABASE,
    }
    if isinstance(stage.target, UnixTarget):
        return {**variables, "HOWFAR_SOCKET": stage.target.path}
    return {**variables, "HOWFAR_HOST": stage.target.host, "HOWFAR_PORT": str(stage.target.port)}


def client_options(user: str, password: str, target: UnixTarget | TcpTarget) -> str:
    """An option file for the clients of MariaDB and MySQL: with it no password stands in a command line."""

    def quoted(value: str) -> str:
        return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'

    lines = ["[client]", f"user={quoted(user)}", f"password={quoted(password)}"]
    if isinstance(target, UnixTarget):
        lines += ["protocol=socket", f"socket={quoted(target.path)}"]
    else:
        lines += ["protocol=tcp", f"host={quoted(target.host)}", f"port={target.port}"]
    # MariaDB's clients from 11.4 on insist on TLS otherwise; MySQL's do not know the option, hence loose.
    return "\n".join([*lines, "loose-skip-ssl", ""])


def _say(laboratory: Lab, path: PathKind) -> None:
    kind, version = laboratory.server()
    request = laboratory.request
    parts = [f"path {path.NAME}"]
    if laboratory.store is not None:
        parts.append(f"{kind} {version} with {request.tables} x {request.table_size} rows")
    link = laboratory.link
    if link is not None:
        rate = "unshaped" if request.rate_bps is None else format_rate_bps(request.rate_bps)
        measured = link.calibrations[link.asked]["rtt_p50_ns"]
        parts.append(f"link {rate}, RTT {format_duration_ns(request.rtt_ns)} (measured {format_duration_ns(measured)})")
    click.echo(f"howfar: {', '.join(parts)}", err=True)
    for warning in laboratory.warnings:
        click.echo(f"howfar: {warning}", err=True)


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


def _run(laboratory: Lab, path: PathKind, host: Host, command: tuple[str, ...], variables: dict[str, str]) -> int:
    launcher = host.launcher(laboratory.client_cpus(path, laboratory.request.placement), foreground=True)
    words = list(command) or [os.environ.get("SHELL", "/bin/sh")]
    if not command:
        click.echo("howfar: a shell in the laboratory; leave it with exit", err=True)
    process = launcher.popen(words, env={**os.environ, **variables})
    # Handlers that do not raise: an exception out of wait() can lose the exit code that it has just fetched.
    signal.signal(signal.SIGINT, lambda *_: None)  # from the terminal: the command got it too, and decides
    signal.signal(signal.SIGTERM, lambda *_: process.send_signal(signal.SIGTERM))
    code = process.wait()
    return code if code >= 0 else 128 - code


def main() -> int:
    """For `python -m howfar.cli.lab`."""
    try:
        lab.main(standalone_mode=False)
    except HowfarError as error:
        click.echo(f"howfar: {error.message}", err=True)
        if error.advice:
            click.echo(f"        {error.advice}", err=True)
        return error.exit_code
    except click.ClickException as error:
        error.show()
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
