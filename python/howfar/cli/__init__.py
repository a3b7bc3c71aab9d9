"""One file for each command. Only this package chooses exit codes. Start at `main.py`."""


def main() -> int:
    """Entry point of the `howfar` command. Returns the exit code."""
    from howfar.cli.hide_arguments import hide_passwords

    hide_passwords()
    from howfar.cli.main import run_command_line

    return run_command_line()
