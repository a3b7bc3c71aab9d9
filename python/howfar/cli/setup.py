"""`howfar setup`: installs the programs that howfar starts, and reports what works on this machine."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING

import click

from howfar.cli.screen import as_called, json_option, note, show_json, table, width
from howfar.errors import MissingError, UsageError
from howfar.setup.programs import missing_programs, program_groups
from howfar.units import counted

if TYPE_CHECKING:
    from howfar.setup.check import CheckedPart, Restriction
    from howfar.setup.install import Installation


def _group_options(command: Callable[..., int]) -> Callable[..., int]:
    """Add an option for each group of programs that is not always installed."""
    for group in reversed([group for group in program_groups() if group.brings]):
        option = click.option(
            f"--{group.name}", "chosen", flag_value=group.name, multiple=True, help=f"Also install {group.brings}."
        )
        command = option(command)
    return command


@click.command()
@click.option("--check", "only_check", is_flag=True,
              help="Install nothing; show which parts of howfar work on this machine, and why the others do not.")  # fmt: skip
@_group_options
@click.option(
    "--print",
    "only_print",
    is_flag=True,
    help="Install nothing; print the package manager's command instead, and exit with 3 if something is missing.",
)
@json_option
def setup(only_check: bool, chosen: tuple[str, ...], only_print: bool, as_json: bool) -> int:
    """Install the programs that the laboratory starts.

    `howfar TARGET`, load, doctor, slope and record need none of them. As root this installs packages of the system (apt, dnf, zypper,
    apk or pacman). Their services do not start, now or at the next boot: units that are new stay masked. An ordinary user is told the
    command.
    """
    if only_check:
        if chosen or only_print:
            raise UsageError("--check shows every part and installs nothing", "Use it without other options.")
        return _check(as_json)
    if as_json:
        raise UsageError("only --check has a JSON form", "Use `howfar setup --check --json`.")
    return _install(("lab", *chosen), only_print)


def _install(names: Sequence[str], only_print: bool) -> int:
    """Install what is missing of these groups. Raises MissingError, LabError."""
    from howfar.lab.servers.galera_programs import transfer_obstacle
    from howfar.setup.install import fetch_transfer_scripts, package_manager, plan_installation, untested_system

    missing = missing_programs(names)
    missing_scripts = transfer_obstacle() if "clusters" in names else None
    if not missing and missing_scripts is None:
        click.echo(f"Nothing to install: all programs are here ({', '.join(names)}).")
        return 0
    manager = package_manager()
    installation = plan_installation(missing, manager)
    if (system := untested_system(manager)) is not None:
        note(f"the names of these packages are untested on {system}")
    if installation.unpackaged:
        note(f"no package is known here for {', '.join(installation.unpackaged)}")
    if only_print:
        if missing_scripts is not None:
            note(f"{missing_scripts}; `howfar setup --clusters` fetches them")
        if installation.packages:
            note("this command may start services, and enable them at boot, which `howfar setup` prevents")
            click.echo(installation.command)
        return MissingError.exit_code
    if installation.packages:
        _install_packages(installation, names)
    if missing_scripts is not None and manager.name == "apt":
        fetch_transfer_scripts()
    still_missing = [program for program in missing_programs(names) if program.name not in installation.unpackaged]
    if still_missing:
        places = "; ".join(f"{program.name}: {' or '.join(program.candidates)}" for program in still_missing)
        raise MissingError(f"still not found after the installation: {places}", "Put commands into PATH.")
    if "clusters" in names and (scripts := transfer_obstacle()) is not None:
        raise MissingError(scripts, "Install the package with the scripts `wsrep_sst_*`, usually the MariaDB server's.")
    return MissingError.exit_code if installation.unpackaged else 0


def _install_packages(installation: Installation, names: Sequence[str]) -> None:
    """Install packages as root; tell an ordinary user how to. Raises MissingError, LabError."""
    from howfar.setup.install import install_packages

    if os.geteuid() != 0:
        options = "".join(f" --{group}" for group in names[1:])
        raise MissingError(
            f"only root can install the packages {' '.join(installation.packages)}",
            f"Run: sudo {_absolute_path()} setup{options}",
        )
    waiting = ", which waits up to 5 minutes for other installations" if installation.manager.name == "apt" else ""
    note(f"installing with {installation.manager.program}{waiting}: {' '.join(installation.packages)}")
    masked = install_packages(installation)
    click.echo(f"Installed {counted(len(installation.packages), 'package')} and what they need.")
    if masked:
        click.echo(f"Masked, so that they do not start: {', '.join(masked)} (`systemctl unmask UNIT` undoes it).")


def _absolute_path() -> str:
    """Absolute path of this program, quoted for a shell, since root's PATH differs."""
    name = sys.argv[0] if Path(sys.argv[0]).name == "howfar" else "howfar"
    path = shutil.which(name)
    return shlex.quote(name if path is None else str(Path(path).absolute()))


def _check(as_json: bool) -> int:
    from howfar.setup.check import check_machine, restrictions

    parts = check_machine()
    restricted = restrictions(parts)
    if as_json:
        facts = {"parts": [asdict(part) for part in parts], "restrictions": [asdict(one) for one in restricted]}
        show_json(json.dumps(facts, indent=2))
    else:
        click.echo(_screen(parts, restricted))
    return 0 if parts[0].works else MissingError.exit_code


def _screen(parts: Sequence[CheckedPart], restricted: Sequence[Restriction]) -> str:
    """The answer, then what works and what does not, with the reason and the remedy."""
    rows = [
        (
            f"  {'yes' if part.works else 'no':3}  {part.name}",
            part.detail if part.works else f"{part.detail}. {as_called(part.remedy)}",
        )
        for part in parts
    ]
    return "\n".join(
        [_answer(parts), "", *table(rows, width()), *(f"\n{fill(one.sentence, width())}" for one in restricted)]
    )


def _answer(parts: Sequence[CheckedPart]) -> str:
    database, laboratory, *_ = parts
    if not database.works:
        return "howfar does not work here: its engine does not start."
    if not laboratory.works:
        return "howfar measures databases here; its laboratory does not work."
    if all(part.works for part in parts):
        return "howfar works here, with all its parts."
    return "howfar works here, except for the parts marked `no`."
