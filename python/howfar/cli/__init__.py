"""One file for each command. Exit codes are chosen here alone. Start at `main.py`."""


def main() -> int:
    """Entry point of the `howfar` command. Gives back the exit code."""
    from howfar.cli.main import run_command_line

    return run_command_line()
