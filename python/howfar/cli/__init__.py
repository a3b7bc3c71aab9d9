"""One file a command; the only place with exit codes."""


def main() -> int:
    """Entry point of the `howfar` command."""
    return 0
