"""The sandbox: this program started again, as the first process of its own PID, mount and network namespaces.

Everything the laboratory creates is inside. When that first process ends, for whatever reason, the kernel removes every process,
mount and interface with it. Three mechanisms tie it to the process outside: `unshare` dies with its parent, the inside dies with
`unshare`, and a pipe (the lifeline), whose other end closes when the outside ends, covers the time until those two are in force.
Start at `run_inside`.
"""

from __future__ import annotations

import contextlib
import os
import re
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

from howfar.errors import LabError, MissingError, SandboxForbidden, shell_code
from howfar.lab.kernel import die_with_parent
from howfar.stopping import is_repeated

_MARK = "HOWFAR_SANDBOX"
_LIFELINE = "HOWFAR_SANDBOX_LIFELINE"
TCP_MEMORY = "HOWFAR_TCP_MEM"
"""Environment variable with net.ipv4.tcp_mem of the outside: one limit for the entire machine, invisible in a network namespace."""
_FLAGS = ("--pid", "--fork", "--kill-child", "--mount", "--net", "--mount-proc")
_USER_FLAGS = ("--user", "--map-root-user")
_SI_KERNEL = 0x80
_INTERRUPTED = 128 + signal.SIGINT
_GUARDED = frozenset({signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD})
_CAPABILITIES = {"SYS_ADMIN": 21, "NET_ADMIN": 12, "NET_RAW": 13}
"""Capabilities needed for namespaces, interfaces and packet sockets."""
_SYSCTLS = (
    ("kernel/unprivileged_userns_clone", "0", "1"),
    ("user/max_user_namespaces", "0", "10000"),
    ("kernel/apparmor_restrict_unprivileged_userns", "1", "0"),
)
"""Kernel switches, with the value that forbids user namespaces and one that permits them."""
_armed = False


class Terminated(KeyboardInterrupt):
    """SIGTERM in the sandbox: like Ctrl-C, but no other process received it."""


def inside() -> bool:
    """Whether this is the sandbox. The first call there also ties this process to the one outside."""
    if os.getpid() != 1 or os.environ.get(_MARK) != "1":
        return False
    _arm()
    return True


def _arm() -> None:
    global _armed
    if _armed:
        return
    _armed = True
    die_with_parent()
    descriptor = int(os.environ.pop(_LIFELINE, "-1"))
    if descriptor >= 0:
        os.set_inheritable(descriptor, False)
        if _lifeline_cut(descriptor, 0):
            os._exit(1)
        threading.Thread(target=_watch_lifeline, args=(descriptor,), name="lifeline", daemon=True).start()
    # The first process of a PID namespace receives only signals that it handles: without this, SIGTERM would be lost.
    heed_signals()


def heed_signals() -> None:
    """Make SIGTERM raise `Terminated`, and SIGINT and SIGHUP, unless ignored, KeyboardInterrupt; unblock them if `attended` withheld
    them."""
    signal.signal(signal.SIGTERM, _interrupt)
    for number in (signal.SIGINT, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, _interrupt)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _GUARDED)


def _interrupt(number: int, frame: FrameType | None) -> None:
    """Handle a request to end. A second signal soon after the first (one to the group that the outside forwards too, or a second key
    press) must neither disturb the cleanup nor replace the exit code of a command that the first was forwarded to."""
    if is_repeated():
        return
    raise Terminated if number == signal.SIGTERM else KeyboardInterrupt


def _lifeline_cut(descriptor: int, timeout_ms: int | None) -> bool:
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    return bool(poll.poll(timeout_ms))


def _watch_lifeline(descriptor: int) -> None:
    _lifeline_cut(descriptor, None)
    os._exit(1)


def namespace_flags(*, network: bool = True) -> tuple[str, ...]:
    """The options that `unshare` needs on this machine, found by trial. Raises SandboxForbidden, MissingError."""
    wanted = _FLAGS if network else tuple(flag for flag in _FLAGS if flag != "--net")
    attempts = [wanted, (*wanted, *_USER_FLAGS)] if os.geteuid() == 0 else [(*wanted, *_USER_FLAGS)]
    output = ""
    for flags in attempts:
        try:
            tried = subprocess.run(["unshare", *flags, "--", "true"], capture_output=True, text=True, timeout=20)
        except FileNotFoundError as error:
            raise MissingError("the program unshare was not found", "Install util-linux and iproute2.") from error
        except subprocess.TimeoutExpired as error:
            raise SandboxForbidden("unshare did not answer within 20 s", "Try again.") from error
        if tried.returncode == 0:
            return flags
        output = tried.stderr.strip() or f"exit code {tried.returncode}"
    raise SandboxForbidden(f"this machine does not let howfar create namespaces; it said: {output}", remedy())


def remedy(proc_sys: Path = Path("/proc/sys")) -> str:
    """Advice if namespaces are forbidden, including this kernel's switches that forbid them to users, if any."""
    advice = [missing_right(os.geteuid() == 0, lacking_capabilities(), _in_chroot())]
    for name, forbids, permits in _SYSCTLS:
        with contextlib.suppress(OSError):
            if (proc_sys / name).read_text().strip() == forbids:
                advice.append(f"set {name.replace('/', '.')} to {permits} (it is {forbids})")
    return f"{', or '.join(advice)}. The paths socket and tcp work without namespaces."


def missing_right(is_root: bool, lacking: Sequence[str], in_chroot: bool) -> str:
    """The first remedy for forbidden namespaces: for users, to run as root; for root, the right that is missing."""
    if not is_root:
        return "Run as root"
    if lacking:
        names, options = (", ".join(f"{prefix}{name}" for name in lacking) for prefix in ("CAP_", "--cap-add "))
        return (
            f"Root lacks {names} here, as in a container without privileges: start the container with "
            f"{options.replace(',', '')} (or --privileged)"
        )
    if in_chroot:
        return "Root is in a chroot, in which the kernel creates no user namespaces: run howfar outside it"
    return "Root may not create namespaces here: lift the limit or the seccomp or LSM policy that forbids `unshare`"


def network_remedy() -> str:
    """Advice if the kernel refuses to create a network namespace or an interface in the sandbox."""
    return f"{missing_right(os.geteuid() == 0, lacking_capabilities(), in_chroot=False)}."


def lacking_capabilities() -> tuple[str, ...]:
    """Needed capabilities that are not effective, without `CAP_`; empty if /proc does not list them."""
    try:
        status = Path("/proc/self/status").read_text()
    except OSError:
        return ()
    found = re.search(r"^CapEff:\s*([0-9a-f]+)$", status, re.MULTILINE)
    effective = -1 if found is None else int(found.group(1), 16)
    return tuple(name for name, bit in _CAPABILITIES.items() if not effective >> bit & 1)


def _in_chroot() -> bool:
    """Whether this process has a different root directory than process 1; False if that cannot be read."""
    try:
        return not Path("/").samefile("/proc/1/root")
    except OSError:
        return False


def run_inside(argv: Sequence[str] | None = None, *, network: bool = True) -> int:
    """Run `argv` (default: this command itself) in the sandbox and return its exit code (128 + N for signal N).

    Standard streams are shared. `network` False: keep the machine's own network. Raises SandboxForbidden, MissingError.
    """
    command = list(argv) if argv is not None else [sys.executable, *sys.orig_argv[1:]]
    flags = namespace_flags(network=network)
    read_end, write_end = os.pipe()
    environment = {**os.environ, _MARK: "1", _LIFELINE: str(read_end), TCP_MEMORY: _tcp_memory()}
    try:
        return attended(["unshare", *flags, "--", *command], environment, pass_fds=(read_end,))
    finally:
        os.close(read_end)
        os.close(write_end)


def attended(
    command: Sequence[str], environment: Mapping[str, str], *, pass_fds: tuple[int, ...] = (), withheld: bool = False
) -> int:
    """Run a program such as `unshare`, whose only child runs in other namespaces; returns the exit code (128 + N for signal N).

    Signals are meant for the child: those from a terminal reach it directly, others are forwarded as SIGTERM. `withheld`: signals
    would kill the program in between, so it starts with them blocked, and the child calls `heed_signals`.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _GUARDED)
    try:
        process = subprocess.Popen(
            command,
            env=environment,
            pass_fds=pass_fds,
            preexec_fn=partial(_tie, os.getpid(), before | _GUARDED if withheld else before),
        )
        code, request = _wait(process)
        # The inside receives every request as SIGTERM, and exits as after Ctrl-C.
        return 128 + request if request and shell_code(code) == _INTERRUPTED else shell_code(code)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _tcp_memory() -> str:
    try:
        return Path("/proc/sys/net/ipv4/tcp_mem").read_text().strip()
    except OSError:
        return ""


def _tie(parent: int, mask: set[int]) -> None:
    die_with_parent()
    if os.getppid() != parent:
        os._exit(1)
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def _wait(process: subprocess.Popen[bytes]) -> tuple[int, int]:
    """Wait until the sandbox ends; returns its exit status, and the signal, or 0, that was forwarded. A signal meant for the inside
    too is forwarded as SIGTERM."""
    is_owed, request = False, 0
    """`is_owed`: a signal is still to be forwarded, because the child or its handler did not exist yet."""
    while True:
        code = process.poll()
        if code is not None:
            return code, request
        got = signal.sigtimedwait(_GUARDED, 0.01 if is_owed else 1.0)
        if got is not None and _goes_on(got.si_signo, got.si_code):
            is_owed, request = True, request or got.si_signo
        if is_owed:
            heeding = [child for child in children_of(process.pid) if _heeds(child, signal.SIGTERM)]
            for child in heeding:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(child, signal.SIGTERM)
            is_owed = not heeding


def _goes_on(number: int, code: int) -> bool:
    """Whether a signal must still be forwarded to the inside. Ctrl-C reaches it directly. SIGHUP from a lost terminal does not: the
    kernel does not deliver it to a first process without a handler. Under nohup it is ignored, but a blocked signal arrives anyway."""
    if number == signal.SIGHUP:
        return signal.getsignal(number) is not signal.SIG_IGN
    return number != signal.SIGCHLD and code != _SI_KERNEL


def _heeds(pid: int, number: signal.Signals) -> bool:
    """Whether a signal would reach a process: the first process of a namespace receives only signals that it catches. One that it
    merely blocks may be lost when it unblocks them."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return False
    status = {name: words.split() for name, _, words in (line.partition(":") for line in lines)}
    return status["NSpid"][-1] != "1" or bool(int(status["SigCgt"][0], 16) >> (number - 1) & 1)


def children_of(pid: int) -> tuple[int, ...]:
    """Present children of a process; empty if it has ended."""
    try:
        return tuple(int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split())
    except OSError:
        return ()


def end_session(process: subprocess.Popen[Any]) -> None:
    """Send SIGKILL to the group that `process` leads, then wait for its members: in the sandbox, orphans become our children."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.kill()
    process.wait()
    with contextlib.suppress(ChildProcessError):
        while True:
            os.waitpid(-process.pid, 0)


_NOBODY = 65534


def as_other_user(command: Sequence[str], user: int = _NOBODY) -> list[str]:
    """Command line for a program that refuses user 0: in a user namespace that maps this same user to another id. The IPC namespace
    removes System V segments, however their owner ends."""
    if os.geteuid() != 0:
        return list(command)
    return ["unshare", "--user", "--ipc", f"--map-user={user}", f"--map-group={user}", "--", *command]


def mount_memory(where: Path, size_bytes: int, mode: str = "0700") -> None:
    """Mount a tmpfs over the directory `where`; only the sandbox sees it. Raises LabError."""
    assert inside(), "a mount outside the sandbox would outlive us"
    tried = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"mode={mode},size={size_bytes}", "howfar", str(where)],
        capture_output=True,
        text=True,
    )
    if tried.returncode != 0:
        raise LabError(f"mounting a tmpfs on {where} failed: {tried.stderr.strip()}", "Run `howfar lab` as root.")
