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
│   └── LinkFailed
├── EngineError         the engine program failed or broke the contract (exit 5)
└── RunFileError        the run file cannot be read or written (exit 6)
    ├── NotARunFile
    ├── NewerRunFile
    └── DiskFull
"""

from __future__ import annotations


class HowfarError(Exception):
    """Base of every error that howfar raises on purpose.

    `message` says what was tried and what came back, `advice` what to do next.
    """

    exit_code = 1

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


def how_ended(code: int) -> str:
    """What a process's exit status says; negative: the signal that ended it."""
    return f"signal {-code}" if code < 0 else f"exit code {code}"


def shell_code(code: int) -> int:
    """The exit code that a shell gives for a process's exit status: 128 + N for signal N."""
    return code if code >= 0 else 128 - code
