"""`howfar servers`: the database servers for `--server`, and private installations of others."""

from __future__ import annotations

import json
from pathlib import Path

import click

from howfar.cli.completion import complete_servers
from howfar.cli.screen import columns, json_option, note
from howfar.cli.suggest import Group, UnknownCommand
from howfar.contract.receipt_part import ReceiptPart
from howfar.errors import HowfarError, UsageError, nearest
from howfar.lab.servers.features import Features, features_or_reason
from howfar.lab.servers.kinds import KINDS, check_name, find_server
from howfar.lab.servers.private import RECIPES, find_install, install_from, install_recipe, list_installs

_FEATURE_HEADINGS = ("TLS", "compression", "semi-sync", "clone")


class InstalledServer(ReceiptPart):
    """A server that is installed."""

    name: str
    kind: str
    version: str
    program: str
    features: Features | None = None
    not_asked: str | None = None
    """Why its features are unknown."""


class MissingServer(ReceiptPart):
    """A server that is not installed."""

    name: str
    missing: str
    advice: str


class _ServersGroup(Group):
    """A group that also accepts the name of a server in place of a subcommand."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        servers = (*KINDS, *RECIPES, *(install.name for install in list_installs()))
        if self.get_command(ctx, args[0]) is None and not ctx.resilient_parsing:
            if args[0] not in servers and find_install(args[0], list_installs()) is None:
                raise UnknownCommand(args[0], (*self.list_commands(ctx), *servers), ctx)
            args = ["list", *args]
        return super().resolve_command(ctx, args)


@click.group(cls=_ServersGroup, invoke_without_command=True)
@click.pass_context
def servers(context: click.Context) -> None:
    """List the database servers for `--server` (`howfar servers NAME` shows one), or install another one.

    A private installation is kept in howfar's cache with all its libraries, and changes nothing else on this machine. To remove it,
    delete its directory.
    """
    if context.invoked_subcommand is None:
        context.invoke(list_servers)


@servers.command("list")
@click.argument("name", required=False, metavar="[NAME]", shell_complete=complete_servers)
@json_option
@click.option("--again", is_flag=True, help="Determine the features again, for example after installing a plugin.")
def list_servers(name: str | None, as_json: bool, again: bool) -> None:
    """List the servers for `--server`, their features, and what else can be installed; or show the one called NAME.

    Features are determined by starting each server once, without a network and with no data; the result is cached.
    """
    if name is not None:
        check_name(name)
        _show_one(_server_row(name, again), as_json)
        return
    rows = [_server_row(name, again) for name in [*KINDS, *(install.name for install in list_installs())]]
    if as_json:
        click.echo(
            json.dumps(
                {
                    "servers": [row.as_json() for row in rows],
                    "can_be_had": {name: recipe.description for name, recipe in RECIPES.items()},
                },
                indent=2,
            )
        )
        return
    lines = [("--server", "kind", "version", *_FEATURE_HEADINGS, "program"), *map(_row_cells, rows)]
    for line in columns(lines):
        click.echo(line)
    click.echo("\nTo install with `howfar servers get NAME`:")
    for name, recipe in RECIPES.items():
        click.echo(f"  {name:<{max(map(len, RECIPES))}}  {recipe.description}")


def _show_one(row: InstalledServer | MissingServer, as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps(row.as_json(), indent=2))
        return
    headings = ("server", "kind", "version", *_FEATURE_HEADINGS, "program")
    for line in columns(
        [(heading, cell) for heading, cell in zip(headings, _row_cells(row), strict=True) if cell != "-"]
    ):
        click.echo(line)
    if isinstance(row, MissingServer):
        click.echo(row.advice)


def _server_row(name: str, again: bool) -> InstalledServer | MissingServer:
    """Facts about the server of this name, or why it is missing."""
    try:
        program = find_server(name)
    except HowfarError as error:
        return MissingServer(name=name, missing=error.message, advice=error.advice)
    row = InstalledServer(name=name, kind=program.kind, version=program.version, program=str(program.path))
    features = features_or_reason(program, refresh=again)
    if isinstance(features, Features):
        row.features = features
    else:
        row.not_asked = features
    return row


def _row_cells(row: InstalledServer | MissingServer) -> tuple[str, ...]:
    if isinstance(row, MissingServer):
        return (row.name, *["-"] * (2 + len(_FEATURE_HEADINGS)), row.missing)
    features = row.features
    if features is None:
        feature_cells = ["?"] * len(_FEATURE_HEADINGS)
    else:
        yes_no = {True: "yes", False: "no"}
        feature_cells = [yes_no[features.tls is not None], "+".join(features.compression) or "no"]
        feature_cells += [yes_no[features.semi_sync], yes_no[features.clone]]
    reason = "" if row.not_asked is None else f"  ({row.not_asked})"
    return (row.name, row.kind, row.version, *feature_cells, f"{_shorten_home(Path(row.program))}{reason}")


def _shorten_home(path: Path) -> str:
    return f"~/{path.relative_to(Path.home())}" if path.is_relative_to(Path.home()) else str(path)


@servers.command("get")
@click.argument("names", metavar="[NAME]...", nargs=-1)
@click.option(
    "--from",
    "source",
    type=click.Path(exists=True, path_type=Path),
    metavar="DIR|TARBALL",
    help="Use an unpacked MySQL, Percona Server or MariaDB, or its tarball. A directory is not copied, so do not move it.",
)
def get_servers(names: tuple[str, ...], source: Path | None) -> None:
    """Install each NAME privately from Debian; apt checks signatures.

    A server that is already installed is left as it is. The names are at the end of the output of `howfar servers list`. A server
    installed with --from is named after its program's version; nothing about it is verified.
    """
    if not names and source is None:
        raise click.UsageError("name a server, or use --from")
    if names and source is not None:
        raise click.UsageError(f"--from takes no names: leave out {', '.join(names)}")

    for name in names:
        if name not in RECIPES and (kind := nearest(name, KINDS)) is not None:
            raise UsageError(f"{name} is not among the servers that `howfar servers get` installs", KINDS[kind].remedy)
    for installed, is_new in (
        [install_from(source, note)] if source is not None else [install_recipe(name, note) for name in names]
    ):
        click.echo(f"{installed.name}  {installed.program}{'' if is_new else '  (already installed)'}")
