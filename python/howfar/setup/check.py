"""Checks which parts of howfar work on this machine and why others do not, without changing it. The entry point is `check_machine`."""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from howfar.engine.process import engine_info
from howfar.errors import HowfarError, MissingError
from howfar.lab.sandbox import lacking_capabilities, namespace_flags, network_remedy
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


_PART_BY_EXTRA = {
    "hosts": ("hosts, run --on (Ray)", {"ray": "Ray"}),
    "report": ("charts of HTML pages", {"altair": "Altair", "vl_convert": "vl-convert"}),
}
"""Maps each extra of the Python package to the part that uses it, and its modules to the names of their libraries."""


def check_machine() -> list[CheckedPart]:
    """Check all parts, beginning with those with the fewest requirements."""
    laboratory = _probe_part("lab, run, predict, replay", _probe_laboratory)
    return [
        _probe_part("TARGET, load, doctor, slope, record", _probe_engine),
        laboratory,
        *(_check_programs(group, laboratory.works) for group in program_groups()),
        *(_check_libraries(name, extra, modules) for extra, (name, modules) in _PART_BY_EXTRA.items()),
    ]


def _probe_part(name: str, probe: Callable[[], str]) -> CheckedPart:
    """Check a part by `probe`, which returns the part's `detail`, or raises HowfarError if the part does not work."""
    try:
        return CheckedPart(name, True, probe())
    except HowfarError as error:
        return CheckedPart(name, False, error.message, error.advice)


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
    """Create namespaces, and an interface in them. Raises SandboxForbidden, MissingError."""
    flags = namespace_flags()
    command = ("unshare", *flags, "--", "ip", "link", "add", "name", "near", "type", "veth", "peer", "name", "far")
    try:
        result = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_S)
    except subprocess.TimeoutExpired as error:
        raise MissingError(f"an interface in a namespace took longer than {_TIMEOUT_S} s", "Try again.") from error
    if result.returncode != 0:
        reason = (result.stderr.strip() or f"exit code {result.returncode}").splitlines()[-1]
        is_ip_missing = any(program.name == "ip" for program in missing_programs(("lab",)))
        remedy = "Run `howfar setup`." if is_ip_missing else network_remedy()
        raise MissingError(f"no interface could be created in a namespace: {reason}", remedy)
    return "as root" if os.geteuid() == 0 else "without root, in user namespaces"


def _check_programs(group: ProgramGroup, laboratory_works: bool) -> CheckedPart:
    missing = [program.name for program in missing_programs((group.name,))]
    if not missing and group.name == "clusters" and transfer_obstacle() is not None:
        missing = ["the scripts that copy data to a new node"]
    if missing:
        option = f" --{group.name}" if group.brings else ""
        return CheckedPart(group.part, False, f"not installed: {', '.join(missing)}", f"Run `howfar setup{option}`.")
    if group.name == "capture" and "NET_RAW" in lacking_capabilities():
        detail = "its programs are installed, but the right to capture packets is missing"
        return CheckedPart(group.part, False, detail, "Run as root; a container needs --cap-add NET_RAW.")
    if not laboratory_works and group.laboratory:
        return CheckedPart(
            group.part, False, "its programs are installed, but the laboratory does not work", "See above."
        )
    return CheckedPart(group.part, True, "its programs are installed")


def _check_libraries(name: str, extra: str, modules: Mapping[str, str]) -> CheckedPart:
    missing = [library for module, library in modules.items() if find_spec(module) is None]
    if missing:
        return CheckedPart(
            name, False, f"not installed: {', '.join(missing)}", f"Reinstall howfar with its extra `{extra}`."
        )
    return CheckedPart(name, True, f"{' and '.join(modules.values())} installed")


def restrictions(proc: Path = Path("/proc"), sys: Path = Path("/sys")) -> list[str]:
    """Return sentences about restrictions on this process in addition to its user's permissions."""
    sentences = []
    if "\nSeccomp:\t2" in _read_or_empty(proc / "self/status"):
        sentences.append("A seccomp filter is in force, as in containers.")
    if _read_or_empty(sys / "fs/selinux/enforce").strip() == "1":
        sentences.append("SELinux is enforcing on this machine.")
    profile = _read_or_empty(proc / "self/attr/current").strip("\0\n ")
    if profile.endswith("(enforce)"):
        sentences.append(f"AppArmor enforces the profile {profile.removesuffix('(enforce)').strip()}.")
    return sentences


def _read_or_empty(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""
