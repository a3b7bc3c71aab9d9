"""Checks which parts of howfar work on this machine and why others do not, without changing it. The entry point is `check_machine`."""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import socket
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from howfar.engine.process import engine_info
from howfar.errors import HowfarError, MissingError, SandboxForbidden
from howfar.lab.cache import writable_cache_home
from howfar.lab.sandbox import (
    APPARMOR_OPTION,
    forbidding_settings,
    lacking_capabilities,
    lacking_timing,
    namespace_flags,
    network_remedy,
)
from howfar.lab.servers.galera_programs import transfer_obstacle
from howfar.setup.programs import ProgramGroup, missing_programs, program_groups

_TIMEOUT_S = 20


@dataclass(frozen=True)
class CheckedPart:
    """A part of howfar, and whether it works on this machine."""

    name: str
    """The commands that belong to the part, such as `run page`."""
    works: bool
    detail: str
    """The versions or programs with which it works, or the reason why it does not work."""
    remedy: str = ""
    """What to do if it does not work."""
    forbidden: bool = False
    """Whether the kernel refuses what the part needs, so that a filter may be the reason."""


@dataclass(frozen=True)
class Restriction:
    """A filter or setting of the system that restricts this process in addition to its user's permissions."""

    name: str
    fact: str
    """What is in force, as a sentence."""
    stops: tuple[str, ...]
    """Names of the forbidden parts of which it may be the reason."""
    remedy: str
    """What lifts the restriction."""

    @property
    def sentence(self) -> str:
        if not self.stops:
            return f"{self.fact} It stops no part of howfar here."
        return f"{self.fact} It may be what stops {' and '.join(self.stops)}. {self.remedy}"


_LABORATORY = "lab, run, predict, replay"
_PART_BY_EXTRA = {
    "hosts": ("hosts, run --on (Ray)", {"ray": "Ray"}),
    "report": ("charts of HTML pages", {"altair": "Altair", "vl_convert": "vl-convert"}),
}
"""Maps each extra of the Python package to the part that uses it, and its modules to the names of their libraries."""


def check_machine() -> list[CheckedPart]:
    """Check all parts, beginning with those with the fewest requirements."""
    engine = _probe_part("TARGET, load, doctor, slope, record", _probe_engine)
    laboratory = _probe_part(_LABORATORY, _probe_laboratory)
    if laboratory.works and not engine.works:
        laboratory = CheckedPart(_LABORATORY, False, "it needs the engine, which does not work", "See above.")
    return [
        engine,
        laboratory,
        *(_check_programs(group, laboratory.works) for group in program_groups()),
        *(_check_libraries(name, extra, modules) for extra, (name, modules) in _PART_BY_EXTRA.items()),
    ]


def _probe_part(name: str, probe: Callable[[], str]) -> CheckedPart:
    """Check a part by `probe`, which returns the part's `detail`, or raises HowfarError if the part does not work."""
    try:
        return CheckedPart(name, True, probe())
    except HowfarError as error:
        return CheckedPart(name, False, error.message, error.advice, isinstance(error, SandboxForbidden))


def _probe_engine() -> str:
    """Return the versions of engine and kernel, and how loads wait for I/O. Raises MissingError, EngineError."""
    info = engine_info()
    return f"engine {info.version} on Linux {platform.release()} ({platform.machine()}); {_probe_io_uring()}"


_IO_URING_SETUP = 425
"""Number of the system call on x86-64 and aarch64."""


def _probe_io_uring() -> str:
    """Determine whether loads wait for I/O with io_uring or epoll, by requesting a ring of zero entries, which the kernel rejects."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.syscall(ctypes.c_long(_IO_URING_SETUP), ctypes.c_uint(0), None)
    error_number = ctypes.get_errno()
    if error_number in (errno.ENOSYS, errno.EPERM, errno.EACCES):
        return f"epoll; io_uring is unavailable ({os.strerror(error_number)})"
    return "io_uring"


def _probe_laboratory() -> str:
    """Create namespaces, and an interface in them. Raises SandboxForbidden, MissingError, LabError."""
    flags = namespace_flags()
    command = ("unshare", *flags, "--", "ip", "link", "add", "name", "near", "type", "veth", "peer", "name", "far")
    try:
        result = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_S)
    except subprocess.TimeoutExpired as error:
        raise MissingError(f"an interface in a namespace took longer than {_TIMEOUT_S} s", "Try again.") from error
    if result.returncode != 0:
        reason = (result.stderr.strip() or f"exit code {result.returncode}").splitlines()[-1]
        message = f"no interface could be created in a namespace: {reason}"
        if any(program.name == "ip" for program in missing_programs(("lab",))):
            raise MissingError(message, "Run `howfar setup`.")
        raise SandboxForbidden(message, network_remedy())
    writable_cache_home()
    late = lacking_timing()
    return ("as root" if os.geteuid() == 0 else "without root, in user namespaces") + (f"; {late}" if late else "")


def _check_programs(group: ProgramGroup, laboratory_works: bool) -> CheckedPart:
    missing = [program.name for program in missing_programs((group.name,))]
    if not missing and group.name == "clusters" and laboratory_works and transfer_obstacle() is not None:
        missing = ["the scripts that copy data to a new node"]
    if missing:
        option = f" --{group.name}" if group.brings else ""
        return CheckedPart(group.part, False, f"not installed: {', '.join(missing)}", f"Run `howfar setup{option}`.")
    if group.name == "capture" and "NET_RAW" in lacking_capabilities():
        detail = "its programs are installed, but the right to capture packets is missing"
        return CheckedPart(group.part, False, detail, "Run as root; a container needs --cap-add NET_RAW.")
    if group.name == "capture" and (refusal := _probe_capture()):
        detail = f"its programs are installed, but the system refuses to capture packets: {refusal}"
        return CheckedPart(group.part, False, detail, "Lift the filter that is named below.", forbidden=True)
    if not laboratory_works and group.laboratory:
        return CheckedPart(
            group.part, False, "its programs are installed, but the laboratory does not work", "See above."
        )
    return CheckedPart(group.part, True, "its programs are installed")


def _probe_capture() -> str:
    """Open a packet socket, and return the system's reason if it refuses; empty if it does not."""
    try:
        socket.socket(socket.AF_PACKET, socket.SOCK_RAW).close()
    except OSError as error:
        return error.strerror or type(error).__name__
    return ""


def _check_libraries(name: str, extra: str, modules: Mapping[str, str]) -> CheckedPart:
    missing = [library for module, library in modules.items() if find_spec(module) is None]
    if missing:
        return CheckedPart(
            name, False, f"not installed: {', '.join(missing)}", f"Reinstall howfar with its extra `{extra}`."
        )
    return CheckedPart(name, True, f"{' and '.join(modules.values())} installed")


def restrictions(
    parts: Sequence[CheckedPart], proc: Path = Path("/proc"), sys: Path = Path("/sys")
) -> list[Restriction]:
    """The filters and settings in force, each with the parts that it may stop."""
    stopped = tuple(part.name for part in parts if part.forbidden)
    found = []
    if "\nSeccomp:\t2" in _read_or_empty(proc / "self/status"):
        remedy = (
            "A container's usual filter permits namespaces with --cap-add SYS_ADMIN; another one needs "
            "--security-opt seccomp=unconfined."
        )
        found.append(Restriction("seccomp", "A seccomp filter is in force, as in containers.", stopped, remedy))
    context = _read_or_empty(proc / "self/attr/current").strip("\0\n ")
    if _read_or_empty(sys / "fs/selinux/enforce").strip() == "1":
        domain = context.split(":")[2] if context.count(":") >= 3 else "unknown"
        is_confined = not domain.startswith("unconfined")
        remedy = "See `ausearch -m avc -ts recent`; a container needs --security-opt label=disable."
        fact = f"SELinux is enforcing on this machine; the domain of howfar is {domain}."
        found.append(Restriction("selinux", fact, stopped if is_confined else (), remedy))
    if context.endswith("(enforce)"):
        profile = context.removesuffix("(enforce)").strip()
        remedy = f"A container needs {APPARMOR_OPTION}; otherwise see `aa-status`."
        found.append(Restriction("apparmor", f"AppArmor enforces the profile {profile}.", stopped, remedy))
    for name, value, permitting in forbidding_settings(proc / "sys"):
        without_root = tuple(part for part in stopped if part == _LABORATORY and os.geteuid() != 0)
        fact = f"{name} is {value}: users may not create user namespaces."
        found.append(
            Restriction("user-namespaces", fact, without_root, f"Run as root, or `sysctl -w {name}={permitting}`.")
        )
    return found


def _read_or_empty(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""
