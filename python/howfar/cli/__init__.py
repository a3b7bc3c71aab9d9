"""The command line: a module for each command, and what they share. Start at `main.py`; `exit_codes.py` has the exit codes."""

_ALLOCATIONS_PER_COLLECTION = 50_000
"""Number of new objects after which the garbage collector runs. With Python's default of 700 it would run dozens of times while a
command is loaded, and find nothing to free, because what modules define stays alive."""


def main() -> int:
    """Entry point of the `howfar` command. Returns the exit code."""
    import gc
    from contextlib import ExitStack

    from howfar.stopping import deferring_end_signals, raising_on_end_signals

    gc.set_threshold(_ALLOCATIONS_PER_COLLECTION)
    with raising_on_end_signals(), ExitStack() as deferral:
        deferral.enter_context(deferring_end_signals())  # until the code that handles SIGINT and SIGTERM is loaded
        try:
            from howfar.cli.hide_arguments import hide_passwords

            hide_passwords()
            from howfar.cli.main import run_command_line
        except (ImportError, MemoryError, OSError) as error:
            return _report_failed_import(error)
        return run_command_line(on_loaded=deferral.close)


def _report_failed_import(error: Exception) -> int:
    """Report that howfar could not be loaded, and return the exit code. Raises the error again if it is a bug in howfar."""
    import sys

    from howfar.cli.exit_codes import NO_MEMORY
    from howfar.cli.memory import is_out_of_memory
    from howfar.errors import incomplete_installation

    if not isinstance(error, OSError) and not is_out_of_memory(error):
        incomplete = incomplete_installation(error)
        if incomplete is None:
            raise error
        print(f"howfar: {incomplete.message}\n  {incomplete.advice}", file=sys.stderr)
        return incomplete.exit_code
    print(
        "howfar: memory or open files may be too few for this process; check ulimit -v and ulimit -n", file=sys.stderr
    )
    return NO_MEMORY
