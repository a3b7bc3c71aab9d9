"""`howfar servers`: which database servers are here for `--server`, and private installs of others, known to nothing but howfar."""

from __future__ import annotations

from pathlib import Path

import click

from howfar.errors import HowfarError
from howfar.lab.servers.getting import RECIPES, get
from howfar.lab.servers.kinds import DIALECTS, find_server
from howfar.lab.servers.private import installs


@click.group(invoke_without_command=True)
@click.pass_context
def servers(context: click.Context) -> None:
    """List the database servers that `--server` can name, or get another one.

    A private install lies below the cache with all its libraries; nothing else on this machine is touched by it. Removing its
    directory removes it.
    """
    if context.invoked_subcommand is None:
        context.invoke(list_servers)


@servers.command("list")
def list_servers() -> None:
    """What `--server` can name here, and what can be had."""
    rows = [("--server", "version", "program")]
    for name in [*DIALECTS, *(install.name for install in installs())]:
        rows.append((name, *_found(name)))
    widths = [max(len(row[column]) for row in rows) for column in (0, 1)]
    for name, version, program in rows:
        click.echo(f"{name:<{widths[0]}}  {version:<{widths[1]}}  {program}".rstrip())
    click.echo("")
    click.echo("Can be had with `howfar servers get NAME`:")
    for name, recipe in RECIPES.items():
        click.echo(f"  {name:<{max(map(len, RECIPES))}}  {recipe.says}")


def _found(name: str) -> tuple[str, str]:
    """Version and program, or why there is none."""
    try:
        program = find_server(name)
    except HowfarError as error:
        return "-", error.message
    return program.version, _short(program.path)


def _short(path: Path) -> str:
    return f"~/{path.relative_to(Path.home())}" if path.is_relative_to(Path.home()) else str(path)


@servers.command("get")
@click.argument("names", metavar="NAME...", nargs=-1, required=True)
def get_servers(names: tuple[str, ...]) -> None:
    """Make a private install of each NAME, from Debian's archive, with apt checking its signatures.

    One that is there already is left as it is, without a look at the network. NAME is one of those that `howfar servers list` ends
    with.
    """
    for name in names:
        installed, made = get(name, lambda line: click.echo(f"howfar: {line}", err=True))
        click.echo(f"{installed.name}  {installed.program}{'' if made else '  (was there)'}")
