"""Starts the engine program with a job and reads its typed events. A program next to this package takes precedence over PATH.

A job's password is sent on stdin only. The engine is always a child process, and ends when this process ends.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import shutil
import subprocess
import sysconfig
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, cast

from pydantic import ValidationError
from pydantic_core import PydanticSerializationError

import howfar
from howfar.contract.message import Message
from howfar.contract.ping_messages import PING_EVENTS, PROTOCOL_VERSION, Failed, Info
from howfar.errors import EngineError, MissingError, UsageError, describe_exit_status
from howfar.terminal_text import in_utf8

if TYPE_CHECKING:
    from howfar.contract.messages import (
        AnswerJob,
        Event,
        LoadJob,
        NullJob,
        PageJob,
        PingJob,
        PingPongJob,
        RepeatJob,
        ReplayJob,
        TablesJob,
        UsageJob,
        WatchJob,
    )

    CheckableJob = (
        AnswerJob
        | LoadJob
        | NullJob
        | PageJob
        | PingJob
        | PingPongJob
        | RepeatJob
        | ReplayJob
        | TablesJob
        | UsageJob
        | WatchJob
    )

_MAX_STDERR_CHARS = 4000
_ANSWER_TIMEOUT_S = 20.0
"""Timeout of an engine that measures nothing but answers one request."""
_EXIT_TIMEOUT_S = 5.0
_CONNECTIONS_CLOSE_TIMEOUT_S = 3.0
"""After an error: time for the engine to close its connections, and to complete a login that it has begun."""
_SECRET_VARIABLES = ("HOWFAR_PASSWORD", "MYSQL_PWD", "PGPASSWORD", "HOWFAR_REDIS_PASSWORD", "REDISCLI_AUTH")
"""Environment variables that are not passed to child processes: other users may be able to read a process's environment."""
_LAST_EVENTS: Final = frozenset(
    {"finished", "tables_done", "watched", "rtt_result", "goodput_result", "ping_pong", "used"}
)
"""Events that end a job."""
_SHORTAGE_ERRNOS = (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EAGAIN)


class EngineFailed(EngineError):
    """The engine reported a failure; `code` is `Failed.code`."""

    def __init__(self, failed: Failed) -> None:
        super().__init__(failed.message, failed.advice)
        self.code = failed.code
        if failed.code == "bad_job":  # usually caused by a file or a name that the user gave
            self.exit_code = UsageError.exit_code


@dataclass(frozen=True)
class Launcher:
    """How to start a process in a given place: a command prefix (namespace, CPUs), and the descriptors that the prefix needs."""

    prefix: tuple[str, ...] = ()
    pass_fds: tuple[int, ...] = ()

    def popen(self, command: Sequence[str], **options: Any) -> subprocess.Popen[Any]:
        """Start `command` with this prefix and these descriptors. Unless `options` has `env`, its environment is ours without
        secrets."""
        options = {"env": own_environment(), **options}
        return subprocess.Popen([*self.prefix, *command], pass_fds=self.pass_fds, **options)


def find_engine() -> Path:
    """The engine program: from $HOWFAR_ENGINE, or next to the package, or in the scripts directory, or on PATH.

    Raises MissingError.
    """
    configured = os.environ.get("HOWFAR_ENGINE")
    candidates = [Path(configured)] if configured else []
    candidates.append(Path(howfar.__file__).parent.parent / "bin" / "howfar-engine")
    candidates.append(Path(sysconfig.get_path("scripts")) / "howfar-engine")
    for candidate in candidates:
        if candidate.is_file() and os.access(candidate, os.X_OK):
            return candidate
    on_path = shutil.which("howfar-engine")
    if on_path is None:
        tried = ", ".join(str(candidate) for candidate in candidates)
        raise MissingError(
            f"the program howfar-engine was not found (tried {tried} and PATH)",
            "Reinstall howfar; in a checkout, run ./setup.",
        )
    return Path(on_path)


def own_environment() -> dict[str, str]:
    """This process's environment, without passwords."""
    return {name: value for name, value in os.environ.items() if name not in _SECRET_VARIABLES}


@cache
def engine_info() -> Info:
    """The engine's version and contract. Raises EngineError if the engine has another version, or was built for debugging."""
    path = find_engine()
    try:
        answer = subprocess.run(
            [path, "info"], capture_output=True, timeout=_ANSWER_TIMEOUT_S, check=True, env=own_environment()
        ).stdout
        info = Info.model_validate_json(answer)
    except (OSError, subprocess.SubprocessError, ValidationError) as error:
        if isinstance(error, OSError) and error.errno in _SHORTAGE_ERRNOS:
            raise  # this process lacks memory or descriptors; the engine is not at fault
        raise EngineError(
            f"{path} does not answer `info`: {error}", "Reinstall howfar; in a checkout, run ./setup."
        ) from error
    if info.protocol != PROTOCOL_VERSION or info.version != howfar.__version__:
        raise EngineError(
            f"{path} is version {info.version} (contract {info.protocol}), "
            f"this is howfar {howfar.__version__} (contract {PROTOCOL_VERSION})",
            "Reinstall howfar (in a checkout: ./setup), or unset HOWFAR_ENGINE.",
        )
    if info.debug:
        raise EngineError(
            f"{path} was built without optimisation, so it would measure itself",
            "Build it with `cargo build --release`, or run ./setup again.",
        )
    return info


def check_job(job: CheckableJob) -> None:
    """Ask the engine whether it accepts a job, without running it. Raises EngineFailed with its refusal, EngineError, UsageError."""
    engine_info()
    try:
        result = subprocess.run(
            [find_engine(), "check", job.job],
            input=_encode_line(job),
            capture_output=True,
            encoding="utf-8",
            env=own_environment(),
            timeout=_ANSWER_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise EngineError(f"howfar-engine check did not answer within {error.timeout:g} s", "Try again.") from error
    if not result.returncode:
        return
    try:
        raise EngineFailed(Failed.model_validate_json(result.stdout))
    except ValidationError as error:
        raise EngineError(
            f"howfar-engine check died ({describe_exit_status(result.returncode)}): {result.stderr[-_MAX_STDERR_CHARS:].strip()}",
            "Please report this with the command you ran.",
        ) from error


def parse_event(line: str) -> Event:
    """Parse one line of the engine's output as an event. Raises ValueError; pydantic's ValidationError is one."""
    message = json.loads(line)
    name = str(message.get("event")) if isinstance(message, dict) else ""
    kind = PING_EVENTS.get(name)
    if kind is None:
        from howfar.contract.messages import EVENTS  # only when needed: the import takes longer than many jobs

        kind = EVENTS.get(name)
    if kind is None:
        raise ValueError("it is not an event of the contract")
    return cast("Event", kind.model_validate_json(line))


def _encode_line(message: Message) -> str:
    """A message as a line of JSON. Bytes that the locale could not decode are sent as UTF-8. Raises UsageError if they are not."""
    try:
        return message.model_dump_json() + "\n"
    except PydanticSerializationError:
        text = json.dumps(message.model_dump(mode="json"), ensure_ascii=False)
    try:
        return in_utf8(text) + "\n"
    except UnicodeError as error:
        raise UsageError(
            "an address, a user name, a password or a statement is not UTF-8 text", "Write it in UTF-8."
        ) from error


class EngineProcess:
    """One running engine. Use as a context manager: on exit, its stdin is closed, and it is killed if it does not end."""

    def __init__(
        self,
        job: Message,
        launcher: Launcher | None = None,
        subcommand: str | None = None,
        *,
        closes_connections: bool = False,
    ) -> None:
        """`subcommand`: the engine's command for the job, if it is not the one that the job names. `closes_connections`: whether the
        engine gets time to close its connections even after an error of ours; then it does not receive the terminal's Ctrl-C."""
        engine_info()
        first_line = _encode_line(job)
        self._closes_connections = closes_connections
        self._subcommand = subcommand or str(getattr(job, "job"))  # noqa: B009 - every job message carries its discriminator
        launcher = launcher or Launcher()
        self._process = launcher.popen(
            [str(find_engine()), self._subcommand],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            encoding="utf-8",
            process_group=0 if closes_connections else None,
        )
        self._write(first_line)

    @property
    def pid(self) -> int:
        return self._process.pid

    def alive(self) -> bool:
        return self._process.poll() is None

    def send(self, message: Message) -> None:
        """Write one message as a line. Raises EngineError if the engine has exited, UsageError for text that is not UTF-8."""
        self._write(_encode_line(message))

    def _write(self, line: str) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(line)
            self._process.stdin.flush()
        except (OSError, ValueError) as error:  # the engine has exited, or its stdin was closed meanwhile
            raise self._death_error() from error

    def read(self) -> Event:
        """The next event. Raises EngineFailed on a `failed` event, EngineError when the engine died or broke the contract."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise self._death_error()
        try:
            event = parse_event(line)
        except ValueError as error:
            raise EngineError(
                f"howfar-engine {self._subcommand} wrote an unknown message: {line[:200]!r}: {error}"
            ) from error
        if isinstance(event, Failed):
            raise EngineFailed(event)
        return event

    def events(self) -> Iterator[Event]:
        """Events until one that ends a job (`finished` or a result)."""
        while True:
            event = self.read()
            yield event
            if event.event in _LAST_EVENTS:
                return

    def close_input(self) -> None:
        """Close the engine's stdin. Some jobs then end with their last event."""
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):
            self._process.stdin.close()

    def leave(self, timeout_s: float) -> bool:
        """Stop reading events. Returns whether the engine has ended by itself within `timeout_s`."""
        assert self._process.stdout is not None
        self.close_input()
        self._process.stdout.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout_s)
        return not self.alive()

    def close(self, timeout_s: float = 5.0) -> None:
        """End the engine: close stdin, wait, kill."""
        self.close_input()
        try:
            self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self.kill()

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def _death_error(self) -> EngineError:
        # An engine that closed its output but still runs counts as ended.
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_EXIT_TIMEOUT_S)
        self.kill()
        code = self._process.returncode
        assert self._process.stderr is not None
        output = self._process.stderr.read()[-_MAX_STDERR_CHARS:].strip()
        return EngineError(
            f"howfar-engine {self._subcommand} died ({describe_exit_status(code)}){': ' + output if output else ''}",
            "Please report this with the command you ran.",
        )

    def __enter__(self) -> EngineProcess:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.close()
        elif self._closes_connections:
            self.close(_CONNECTIONS_CLOSE_TIMEOUT_S)
        else:
            self.kill()


@contextlib.contextmanager
def bounded(engine: EngineProcess, timeout_s: float) -> Iterator[None]:
    """Kill the engine if it still runs after `timeout_s`; then raises EngineError."""
    timed_out = threading.Event()

    def time_out() -> None:
        timed_out.set()
        engine.kill()

    timer = threading.Timer(timeout_s, time_out)
    timer.daemon = True
    timer.start()
    try:
        yield
    except EngineError as error:
        if timed_out.is_set():
            raise EngineError(f"howfar-engine did not end within {timeout_s:.0f} s and was killed") from error
        raise
    finally:
        timer.cancel()


def run_probe(job: Message, launcher: Launcher, timeout_s: float | None = None) -> Event:
    """Run a probe job (rtt, goodput, pingpong) to its result. `timeout_s`: if None, only the engine's own limits apply.
    Raises EngineFailed, EngineError."""
    with EngineProcess(job, launcher) as engine, contextlib.ExitStack() as limits:
        if timeout_s is not None:
            limits.enter_context(bounded(engine, timeout_s))
        return next(engine.events())
