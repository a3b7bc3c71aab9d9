"""`howfar completion`: the script that completes commands, options and values in a shell; and the values that are names."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

    Complete = Callable[[click.Context, click.Parameter, str], list[CompletionItem]]

SHELLS = ("bash", "zsh", "fish")


@click.command()
@click.argument("shell", type=click.Choice(SHELLS))
def completion(shell: str) -> None:
    """Write the script with which SHELL completes commands, options, plans and files.

    \b
    bash:  eval "$(howfar completion bash)"       in ~/.bashrc
    zsh:   eval "$(howfar completion zsh)"        in ~/.zshrc, after compinit
    fish:  howfar completion fish | source        in ~/.config/fish/config.fish
    """
    from click.shell_completion import get_completion_class

    from howfar.cli.main import COMPLETE, cli

    found = get_completion_class(shell)
    assert found is not None, "click knows these shells"
    click.echo(found(cli, {}, "howfar", COMPLETE).source())


def _names(find: Callable[[], Iterable[str]], or_files: bool = False) -> Complete:
    """A function that completes a parameter with the names that `find` returns; `or_files`: with files if no name fits."""

    def complete(_: click.Context, __: click.Parameter, incomplete: str) -> list[CompletionItem]:
        from click.shell_completion import CompletionItem

        fitting = [CompletionItem(name) for name in find() if name.startswith(incomplete)]
        return fitting or ([CompletionItem(incomplete, type="file")] if or_files else [])

    return complete


def _plans() -> Iterable[str]:
    from howfar.plan.load import shipped_plans

    return shipped_plans()


def _links() -> Iterable[str]:
    from howfar.lab.link.settings import named_links

    return named_links()


def _servers() -> Iterable[str]:
    from howfar.lab.servers.kinds import KINDS
    from howfar.lab.servers.private import installs

    return (*KINDS, *(install.name for install in installs()))


def _commands() -> Iterable[str]:
    from howfar.cli.main import TARGET, cli

    return (TARGET, *cli.list_commands(click.Context(cli)))


complete_plans = _names(_plans, or_files=True)
complete_links = _names(_links)
complete_servers = _names(_servers, or_files=True)
complete_commands = _names(_commands)
