"""Reading a small text file that an option names, with the mistakes that people make told as such."""

from __future__ import annotations

from pathlib import Path

from howfar.errors import UsageError


def read_text(path: Path, option: str, most_bytes: int) -> str:
    """Its text. Raises UsageError where it cannot be read, is larger than such a file is, or is no text."""
    try:
        with path.open("rb") as file:
            data = file.read(most_bytes + 1)
        if len(data) > most_bytes:
            raise UsageError(f"{option} {path} has more than {most_bytes} bytes", "That is another kind of file.")
        return data.decode("utf-8")
    except OSError as error:
        raise UsageError(
            f"{option} {path} cannot be read: {error.strerror}", "Check its name and who may read it."
        ) from error
    except UnicodeDecodeError as error:
        raise UsageError(f"{option} {path} is not UTF-8 text", "Save it as UTF-8.") from error
