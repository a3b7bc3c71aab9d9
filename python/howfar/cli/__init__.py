"""One file for each command. Only this package chooses exit codes. Start at `main.py`."""


def main() -> int:
    """Entry point of the `howfar` command. Returns the exit code."""
    from contextlib import ExitStack

    from howfar.stopping import holding_end_requests, raising_end_requests

    with raising_end_requests(), ExitStack() as signals_held:
        signals_held.enter_context(holding_end_requests())  # until the code that reports an end is loaded
        try:
            from howfar.cli.hide_arguments import hide_passwords

            hide_passwords()
            from howfar.cli.main import run_command_line
        except (ImportError, MemoryError, OSError) as error:
            return _report_failed_import(error)
        return run_command_line(on_loaded=signals_held.close)


def _report_failed_import(error: Exception) -> int:
    """Report that howfar could not be loaded, and return the exit code. Raises the error unless memory or files are lacking."""
    import sys

    from howfar.cli.exit_codes import NO_MEMORY
    from howfar.cli.memory import lacks_memory

    if not isinstance(error, OSError) and not lacks_memory(error):
        raise error
    print("howfar: this process may not have enough memory or open files (ulimit -v, -n)", file=sys.stderr)
    return NO_MEMORY
