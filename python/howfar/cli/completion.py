"""`howfar completion`: the script that completes commands, options and values in a shell; and the values that are names."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

    CompleteFunction = Callable[[click.Context, click.Parameter, str], list[CompletionItem]]

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

    shell_class = get_completion_class(shell)
    assert shell_class is not None, "click supports these shells"
    click.echo(shell_class(cli, {}, "howfar", COMPLETE).source())


def _complete_from(find_names: Callable[[], Iterable[str]], with_files: bool = False) -> CompleteFunction:
    """A function that completes a parameter with names from `find_names` or, if none fits and `with_files` is set, with files."""

    def complete(_: click.Context, __: click.Parameter, incomplete: str) -> list[CompletionItem]:
        from click.shell_completion import CompletionItem

        matches = [CompletionItem(name) for name in find_names() if name.startswith(incomplete)]
        return matches or ([CompletionItem(incomplete, type="file")] if with_files else [])

    return complete


def _plan_names() -> Iterable[str]:
    from howfar.plan.load import shipped_plans

    return shipped_plans()


def _link_names() -> Iterable[str]:
    from howfar.lab.link.settings import named_links

    return named_links()


def _server_names() -> Iterable[str]:
    from howfar.lab.servers.kinds import KINDS
    from howfar.lab.servers.private import list_installs

    return (*KINDS, *(install.name for install in list_installs()))


def _command_names() -> Iterable[str]:
    from howfar.cli.main import TARGET, cli

    return (TARGET, *cli.list_commands(click.Context(cli)))


complete_plans = _complete_from(_plan_names, with_files=True)
complete_links = _complete_from(_link_names)
complete_servers = _complete_from(_server_names, with_files=True)
complete_commands = _complete_from(_command_names)
