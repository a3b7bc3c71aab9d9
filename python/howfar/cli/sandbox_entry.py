"""How a command enters its sandbox: if possible, before importing what only the process inside needs. Has few imports."""

from __future__ import annotations

import os
from collections.abc import Sequence

from howfar.cli.hide_arguments import may_hold_password
from howfar.errors import LabError, MissingError

_COMMANDS: dict[str, tuple[str, ...]] = {
    "lab": (),
    "predict": (),
    "replay": ("--statements",),
    "run": ("--on",),
}
"""Commands that run in a sandbox, each with the options that avoid the sandbox."""
_KEPT = " Finished trials are in the run file; `howfar resume` continues it."
_HELP = ("-h", "--help")
_EXIT_CODES_IF_KILLED = (1, 137)
"""Exit codes after a sandbox was killed: 1 from `unshare` if its first process was killed (howfar itself never exits with 1), 137 if
`unshare` was killed."""


def enter_early(words: Sequence[str]) -> int | None:
    """Run this process's command in a sandbox if its arguments show that it needs one, and return its exit code.

    Returns None if the command needs no sandbox, if this process may already be in one, or if none is allowed; the command then
    decides what to do.
    Raises LabError when the sandbox was killed.
    """
    if not needs_sandbox(words) or os.getpid() == 1:
        return None
    try:
        return run_in_sandbox(has_run_file=words[0] == "run", runs_program=words[0] == "lab")
    except MissingError:
        return None


def needs_sandbox(words: Sequence[str]) -> bool:
    """Whether the command with these arguments runs in a sandbox, as far as can be told without parsing all its options.

    False if one of them may hold a password: `unshare` would show it in `ps`, and the command may refuse it without a sandbox.
    """
    if not words or words[0] not in _COMMANDS:
        return False
    options = words[: words.index("--")] if "--" in words else words
    if any(may_hold_password(*pair) for pair in zip(options[1:], options, strict=False)):
        return False
    return not any(option.partition("=")[0] in (*_HELP, *_COMMANDS[words[0]]) for option in options)


def run_in_sandbox(*, has_run_file: bool = False, runs_program: bool = False) -> int:
    """Run this process's command in a sandbox and return its exit code.

    `has_run_file`: whether the command keeps finished trials in a run file. `runs_program`: whether its exit code is that of a
    program of the user, and so cannot show that the sandbox was killed.
    Raises SandboxForbidden, MissingError; LabError when the sandbox was killed.
    """
    from howfar.lab import sandbox

    code = sandbox.run_inside()
    if code in _EXIT_CODES_IF_KILLED and not runs_program:
        raise LabError(
            "the sandbox was killed by another process",
            f"Memory may have run out; see `dmesg`.{_KEPT if has_run_file else ''}",
        )
    return code
