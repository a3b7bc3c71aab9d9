"""The whole error tree. A message says what was tried, what came back and what to do; only `howfar.cli` turns one into an exit code.

HowfarError
├── UsageError          the user requested something that cannot be (exit 2)
│   ├── PlanError       a plan that cannot be read or makes no sense
│   └── QuantityError   a quantity without a unit, out of range, not a number
├── MissingError        the machine lacks something (exit 3)
│   ├── ServerMissing
│   └── SandboxForbidden
├── LabError            the laboratory could not be built or broke (exit 4)
│   ├── ServerCrashed
│   ├── NotAsConfigured what is measured is not as requested
│   └── LinkFailed
├── EngineError         the engine program failed or broke the contract (exit 5)
└── RunFileError        the run file cannot be read or written (exit 6)
    ├── NotARunFile
    ├── NewerRunFile
    └── DiskFull
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


class HowfarError(Exception):
    """Base of every error that howfar raises on purpose.

    `message` says what was tried and what came back, `advice` what to do next.
    """

    exit_code = 1
    id = "failed"
    """Id of the violation if it makes a trial void (`contract.violation`)."""

    def __init__(self, message: str, advice: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.advice = advice


class UsageError(HowfarError):
    exit_code = 2


class PlanError(UsageError):
    pass


class QuantityError(UsageError):
    pass


class MissingError(HowfarError):
    exit_code = 3


class ServerMissing(MissingError):
    pass


class SandboxForbidden(MissingError):
    pass


class LabError(HowfarError):
    exit_code = 4


class ServerCrashed(LabError):
    pass


class NotAsConfigured(LabError):
    id = "not-as-configured"


class LinkFailed(LabError):
    pass


class EngineError(HowfarError):
    exit_code = 5


class RunFileError(HowfarError):
    exit_code = 6


class NotARunFile(RunFileError):
    pass


class NewerRunFile(RunFileError):
    pass


class DiskFull(RunFileError):
    pass


def incomplete_installation(error: Exception) -> MissingError | None:
    """The error if a library that howfar needs is missing, or was removed in part. None: another error, such as a bug of howfar."""
    if not isinstance(error, ImportError) or (error.name or "").startswith("howfar"):
        return None
    return MissingError(f"this installation of howfar is incomplete: {error}", "Install it again.")


@dataclass(frozen=True)
class Explanation:
    """An error in machine-readable form."""

    code: str
    """Identifies the error: the engine's code, or else the name of the exit code."""
    message: str
    advice: str


@dataclass(frozen=True)
class FailedCommand:
    """The object that a command with `--json` prints if it ends without a result."""

    failure: Explanation
    exit_code: int


def describe_exit_status(code: int) -> str:
    """Describe a process's exit status; a negative one is the signal that ended it."""
    return f"signal {-code}" if code < 0 else f"exit code {code}"


def shell_exit_code(code: int) -> int:
    """Convert a process's exit status to a shell's exit code: 128 + N for signal N."""
    return code if code >= 0 else 128 - code


def nearest(word: str, known: Iterable[str]) -> str | None:
    """Find the known word of which `word` is most likely a misspelling, or the beginning; None if none is similar enough."""
    from difflib import get_close_matches  # imported only after a mistake

    names = {_plain(name): name for name in known}
    completions = [name for plain, name in names.items() if len(_plain(word)) > 2 and plain.startswith(_plain(word))]
    if len(completions) == 1:
        return completions[0]
    close = get_close_matches(_plain(word), names, 1, cutoff=0.7)
    swapped = [plain for plain in names if sorted(plain) == sorted(_plain(word))]
    return names[(close or swapped)[0]] if close or swapped else None


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return a question about an unknown word, with a space after it; empty if no known word is similar."""
    suggestion = nearest(word, known)
    return f"Did you mean {suggestion}? " if suggestion else ""


def _plain(name: str) -> str:
    return name.lstrip("-").replace("_", "-").lower()
