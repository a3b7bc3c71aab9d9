"""One file for each command. Only this package chooses exit codes. Start at `main.py`."""

_ALLOCATIONS_PER_COLLECTION = 50_000
"""Number of new objects after which the garbage collector runs. With Python's default of 700 it would run dozens of times while a
command is loaded, and find nothing, because objects that modules define stay."""


def main() -> int:
    """Entry point of the `howfar` command. Returns the exit code."""
    import gc
    from contextlib import ExitStack

    from howfar.stopping import holding_end_requests, raising_end_requests

    gc.set_threshold(_ALLOCATIONS_PER_COLLECTION)
    with raising_end_requests(), ExitStack() as signals_held:
        signals_held.enter_context(holding_end_requests())  # until the code that handles requests to end is loaded
        try:
            from howfar.cli.hide_arguments import hide_passwords

            hide_passwords()
            from howfar.cli.main import run_command_line
        except (ImportError, MemoryError, OSError) as error:
            return _report_failed_import(error)
        return run_command_line(on_loaded=signals_held.close)


def _report_failed_import(error: Exception) -> int:
    """Report that howfar could not be loaded, and return the exit code. Raises an error that is a bug of howfar."""
    import sys

    from howfar.cli.exit_codes import NO_MEMORY
    from howfar.cli.memory import lacks_memory
    from howfar.errors import incomplete_installation

    if not isinstance(error, OSError) and not lacks_memory(error):
        missing = incomplete_installation(error)
        if missing is None:
            raise error
        print(f"howfar: {missing.message}\n  {missing.advice}", file=sys.stderr)
        return missing.exit_code
    print("howfar: this process may not have enough memory or open files (ulimit -v, -n)", file=sys.stderr)
    return NO_MEMORY
