"""The sandbox: this program started again, as the first process of its own PID, mount and network namespaces.

Everything that the laboratory creates is in the sandbox. When its first process ends, for whatever reason, the kernel removes all its
processes, mounts and interfaces. Three mechanisms make the sandbox end with the process that started it: `unshare` dies with its
parent; the first process dies with `unshare`; and a pipe (the lifeline), whose other end closes when the starting process ends, covers
the time before the first two take effect. Start reading at `run_inside`.
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
from functools import cache, partial
from pathlib import Path
from types import FrameType
from typing import Any

from howfar.errors import LabError, MissingError, SandboxForbidden, shell_exit_code
from howfar.lab.kernel import die_with_parent
from howfar.lab.programs import OUTER_PROC, adopt_outer_proc, pass_outer_proc
from howfar.stopping import is_repeated_request

_SANDBOX_MARK = "HOWFAR_SANDBOX"
_LIFELINE = "HOWFAR_SANDBOX_LIFELINE"
TCP_MEMORY = "HOWFAR_TCP_MEM"
"""Environment variable with net.ipv4.tcp_mem, a limit of the entire machine that a network namespace does not show."""
_NAMESPACE_FLAGS = ("--pid", "--fork", "--kill-child", "--mount", "--net", "--mount-proc")
_USER_NAMESPACE_FLAGS = ("--user", "--map-root-user")
_SI_KERNEL = 0x80
_INTERRUPTED_EXIT_CODE = 128 + signal.SIGINT
_HANDLED_SIGNALS = frozenset({signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD})
_CAPABILITIES = {"SYS_ADMIN": 21, "NET_ADMIN": 12, "NET_RAW": 13}
"""Capabilities needed for namespaces, interfaces and packet sockets."""
_SYS_NICE = 23
_IDLE_DEVICE = "/dev/cpu_dma_latency"
TIMING_OPTIONS = ("--cap-add SYS_NICE", f"--device {_IDLE_DEVICE}")
"""Options of a container with which packets of the emulated link are in time: the real-time class, and CPUs that do not sleep."""
CONTAINER_OPTIONS = (*(f"--cap-add {name}" for name in _CAPABILITIES), *TIMING_OPTIONS)
"""Options of a container in which the laboratory works; where AppArmor confines containers, it needs `APPARMOR_OPTION` as well."""
APPARMOR_OPTION = "--security-opt apparmor=unconfined"
REALTIME_OPTION = "--cpu-rt-runtime=950000"
"""Option of a container that has SYS_NICE, where the kernel gives control groups (version 1) no time in the real-time class."""
_CONTAINER_MARKS = ("/run/.containerenv", "/.dockerenv")
"""Files that Podman and Docker put into a container."""
_SYSCTLS = (
    ("kernel/unprivileged_userns_clone", "0", "1"),
    ("user/max_user_namespaces", "0", "10000"),
    ("kernel/apparmor_restrict_unprivileged_userns", "1", "0"),
)
"""Kernel settings, each with the value that forbids user namespaces and a value that permits them."""
_is_set_up = False


class Terminated(KeyboardInterrupt):
    """Raised on SIGTERM in the sandbox, which, unlike Ctrl-C, reaches only this process."""


def inside() -> bool:
    """Whether this process is the sandbox's first process. If so, the first call also makes it end with the process that started
    it."""
    if os.getpid() != 1 or os.environ.get(_SANDBOX_MARK) != "1":
        return False
    _set_up_inside()
    return True


def is_anywhere_inside() -> bool:
    """Whether this process runs in a sandbox, as its first process or a descendant, such as a command in the shell of `howfar lab`."""
    return os.environ.get(_SANDBOX_MARK) == "1"


def _set_up_inside() -> None:
    global _is_set_up
    if _is_set_up:
        return
    _is_set_up = True
    die_with_parent()
    descriptor = int(os.environ.pop(_LIFELINE, "-1"))
    if descriptor >= 0:
        os.set_inheritable(descriptor, False)
        if _is_lifeline_cut(descriptor, 0):
            os._exit(1)
        threading.Thread(target=_watch_lifeline, args=(descriptor,), name="lifeline", daemon=True).start()
    adopt_outer_proc()
    # The first process of a PID namespace receives only signals for which it has a handler: without this, SIGTERM would be lost.
    install_signal_handlers()


def install_signal_handlers() -> None:
    """Make SIGTERM raise `Terminated`; make SIGINT and SIGHUP raise KeyboardInterrupt, unless they are ignored. Also unblock the
    signals, which `run_forwarding_signals` may have blocked."""
    signal.signal(signal.SIGTERM, _interrupt)
    for number in (signal.SIGINT, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, _interrupt)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _HANDLED_SIGNALS)


def _interrupt(number: int, frame: FrameType | None) -> None:
    """Handle an end signal. A second signal soon after the first (a forwarded signal that was also sent to the process group, or a
    second Ctrl-C) must neither disturb the cleanup nor change the exit code of a command that received the first signal."""
    if is_repeated_request():
        return
    raise Terminated if number == signal.SIGTERM else KeyboardInterrupt


def _is_lifeline_cut(descriptor: int, timeout_ms: int | None) -> bool:
    """Whether the starting process has ended. Waits for its end up to `timeout_ms`, or without a limit if that is None."""
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    return bool(poll.poll(timeout_ms))


def _watch_lifeline(descriptor: int) -> None:
    _is_lifeline_cut(descriptor, None)
    os._exit(1)


def namespace_flags(*, network: bool = True) -> tuple[str, ...]:
    """The options with which `unshare` works on this machine, found by trial once in a process. Raises SandboxForbidden,
    MissingError."""
    outcome = _try_namespaces(network)
    if isinstance(outcome, SandboxForbidden):
        raise outcome
    return outcome


@cache
def _try_namespaces(network: bool) -> tuple[str, ...] | SandboxForbidden:
    """The options with which `unshare` works, or the error if none do. Raises MissingError."""
    base_flags = _NAMESPACE_FLAGS if network else tuple(flag for flag in _NAMESPACE_FLAGS if flag != "--net")
    attempts = (
        [base_flags, (*base_flags, *_USER_NAMESPACE_FLAGS)]
        if os.geteuid() == 0
        else [(*base_flags, *_USER_NAMESPACE_FLAGS)]
    )
    output = ""
    for flags in attempts:
        try:
            result = subprocess.run(["unshare", *flags, "--", "true"], capture_output=True, text=True, timeout=20)
        except FileNotFoundError as error:
            raise MissingError("the program unshare was not found", "Install util-linux and iproute2.") from error
        except subprocess.TimeoutExpired:
            return SandboxForbidden("unshare did not answer within 20 s", "Try again.")
        if result.returncode == 0:
            return flags
        output = result.stderr.strip() or f"exit code {result.returncode}"
    return SandboxForbidden(f"this machine does not let howfar create namespaces; it said: {output}", remedy())


def remedy(proc_sys: Path = Path("/proc/sys")) -> str:
    """Advice for a machine that forbids namespaces, including the kernel settings that forbid them to users, if any."""
    advice = [missing_right(os.geteuid() == 0, lacking_capabilities(), _in_chroot())]
    advice += [
        f"set {name} to {permitting} (it is {value})" for name, value, permitting in forbidding_settings(proc_sys)
    ]
    return f"{', or '.join(advice)}. The paths socket and tcp work without namespaces."


def forbidding_settings(proc_sys: Path = Path("/proc/sys")) -> list[tuple[str, str, str]]:
    """The kernel settings that forbid user namespaces: name, value, and a value that permits them."""
    found = []
    for name, forbidding, permitting in _SYSCTLS:
        with contextlib.suppress(OSError):
            if (proc_sys / name).read_text().strip() == forbidding:
                found.append((name.replace("/", "."), forbidding, permitting))
    return found


def missing_right(is_root: bool, lacking: Sequence[str], in_chroot: bool) -> str:
    """The first advice for a machine that forbids namespaces: for users, to run as root; for root, the missing privilege."""
    if not is_root:
        return "Run as root"
    if lacking:
        capabilities, options = (", ".join(f"{prefix}{name}" for name in lacking) for prefix in ("CAP_", "--cap-add "))
        return (
            f"Root lacks {capabilities} here, as in a container without privileges: start the container with "
            f"{options.replace(',', '')} (or --privileged)"
        )
    if in_chroot:
        return "Root is in a chroot, in which the kernel creates no user namespaces: run howfar outside it"
    return "Root may not create namespaces here: lift the limit or the seccomp or LSM policy that forbids `unshare`"


def network_remedy() -> str:
    """Advice if the kernel refuses to create a network namespace or an interface in the sandbox."""
    return f"{missing_right(os.geteuid() == 0, lacking_capabilities(), in_chroot=False)}."


def lacking_capabilities() -> tuple[str, ...]:
    """Names, without `CAP_`, of the needed capabilities that this process lacks; empty if /proc does not list capabilities."""
    effective = _effective_capabilities()
    return tuple(name for name, bit in _CAPABILITIES.items() if not effective >> bit & 1)


def _effective_capabilities() -> int:
    """The bits of the effective capabilities; all bits if /proc does not list them."""
    try:
        status = Path("/proc/self/status").read_text()
    except OSError:
        return -1
    match = re.search(r"^CapEff:\s*([0-9a-f]+)$", status, re.MULTILINE)
    return -1 if match is None else int(match.group(1), 16)


def describe_lacking_timing(
    has_realtime: bool, has_idle_device: bool, in_user_namespace: bool, in_container: bool, has_nice: bool = False
) -> str | None:
    """The rights that a container lacks to deliver packets of the emulated link in time, with their remedy; None if it lacks none.

    Root without the real-time class is in a container, except in a user namespace, which may be the sandbox's own. `has_nice`: whether
    it has the capability for that class nevertheless.
    """
    nice_option, device_option = TIMING_OPTIONS
    realtime_option = REALTIME_OPTION if has_nice and not in_user_namespace else nice_option
    lacking = [] if has_realtime else [("the real-time class", realtime_option)]
    lacking += [] if has_idle_device else [(_IDLE_DEVICE, device_option)]
    if not lacking or (in_user_namespace and not in_container):
        return None
    names, options = (" and ".join(name for name, _ in lacking), " ".join(option for _, option in lacking))
    whose = "only a container of root may have that, with" if in_user_namespace else "a container needs"
    return f"packets of the link may be late, because howfar lacks {names} here: {whose} {options}"


def lacking_timing() -> str | None:
    """`describe_lacking_timing` of this process; None also for users other than root."""
    if os.geteuid() != 0:
        return None
    return describe_lacking_timing(
        _has_realtime(),
        not Path("/sys/devices/system/cpu/cpu0/cpuidle").exists() or _is_writable(_IDLE_DEVICE),
        _read_words("/proc/self/uid_map") != ["0", "0", "4294967295"],
        any(Path(mark).exists() for mark in _CONTAINER_MARKS),
        bool(_effective_capabilities() >> _SYS_NICE & 1),
    )


def _has_realtime() -> bool:
    """Whether the kernel lets a thread enter the real-time class, found by trial."""

    def enter() -> None:
        with contextlib.suppress(OSError):
            os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
            entered.append(True)

    entered: list[bool] = []
    thread = threading.Thread(target=enter)
    thread.start()
    thread.join()
    return bool(entered)


def _is_writable(device: str) -> bool:
    """Whether a device can be opened, which a container's device rules may forbid in spite of the file's mode."""
    try:
        os.close(os.open(device, os.O_WRONLY | os.O_CLOEXEC))
    except OSError:
        return False
    return True


def _read_words(path: str) -> list[str]:
    try:
        return Path(path).read_text().split()
    except OSError:
        return []


def _in_chroot() -> bool:
    """Whether the root directories of this process and process 1 differ; False if those cannot be compared."""
    try:
        return not Path("/").samefile("/proc/1/root")
    except OSError:
        return False


def run_inside(argv: Sequence[str] | None = None, *, network: bool = True) -> int:
    """Run `argv` (default: this command itself) in the sandbox and return its exit code (128 + N for signal N). Standard streams are
    shared. `network=False`: keep the machine's own network. Raises SandboxForbidden, MissingError."""
    command = list(argv) if argv is not None else [sys.executable, *sys.orig_argv[1:]]
    flags = namespace_flags(network=network)
    read_end, write_end = os.pipe()
    outer_proc, outer_proc_text = pass_outer_proc()
    descriptors = [read_end, *([outer_proc] if outer_proc >= 0 else [])]
    environment = {
        **os.environ,
        _SANDBOX_MARK: "1",
        _LIFELINE: str(read_end),
        TCP_MEMORY: _tcp_memory(),
        OUTER_PROC: outer_proc_text,
    }
    try:
        return run_forwarding_signals(["unshare", *flags, "--", *command], environment, pass_fds=tuple(descriptors))
    finally:
        for descriptor in (*descriptors, write_end):
            os.close(descriptor)


def run_forwarding_signals(
    command: Sequence[str],
    environment: Mapping[str, str],
    *,
    pass_fds: tuple[int, ...] = (),
    block_signals: bool = False,
) -> int:
    """Run a program such as `unshare`, whose only child runs in other namespaces; returns the exit code (128 + N for signal N).

    Signals are forwarded to that child as SIGTERM, except signals from a terminal, which reach it directly. `block_signals`: start the
    program, which a signal would kill, with signals blocked; its child calls `install_signal_handlers` to unblock them.
    """
    previous_mask = signal.pthread_sigmask(signal.SIG_BLOCK, _HANDLED_SIGNALS)
    try:
        process = subprocess.Popen(
            command,
            env=environment,
            pass_fds=pass_fds,
            preexec_fn=partial(
                _tie_to_parent, os.getpid(), previous_mask | _HANDLED_SIGNALS if block_signals else previous_mask
            ),
        )
        code, forwarded_signal = _wait_forwarding_signals(process)
        # The child received the signal as SIGTERM, and exits as after Ctrl-C.
        return (
            128 + forwarded_signal
            if forwarded_signal and shell_exit_code(code) == _INTERRUPTED_EXIT_CODE
            else shell_exit_code(code)
        )
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, previous_mask)


def _tcp_memory() -> str:
    try:
        return Path("/proc/sys/net/ipv4/tcp_mem").read_text().strip()
    except OSError:
        return ""


def _tie_to_parent(parent: int, mask: set[int]) -> None:
    die_with_parent()
    if os.getppid() != parent:
        os._exit(1)
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def _wait_forwarding_signals(process: subprocess.Popen[bytes]) -> tuple[int, int]:
    """Wait until the program ends, and forward signals to its child as SIGTERM. Returns the exit status, and the first forwarded
    signal or 0."""
    # `is_pending`: a signal must still be forwarded, because the child or its handler did not exist yet.
    is_pending, forwarded_signal = False, 0
    while True:
        code = process.poll()
        if code is not None:
            return code, forwarded_signal
        received = signal.sigtimedwait(_HANDLED_SIGNALS, 0.01 if is_pending else 1.0)
        if received is not None and _must_forward(received.si_signo, received.si_code):
            is_pending, forwarded_signal = True, forwarded_signal or received.si_signo
        if is_pending:
            receivers = [child for child in children_of(process.pid) if _handles_signal(child, signal.SIGTERM)]
            for child in receivers:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(child, signal.SIGTERM)
            is_pending = not receivers


def _must_forward(number: int, code: int) -> bool:
    """Whether a signal must be forwarded to the child. Ctrl-C reaches the child directly; SIGHUP from a lost terminal may not, because
    the kernel does not deliver it to a first process without a handler. Under nohup SIGHUP must be ignored, but `sigtimedwait` still
    returns it, because it is blocked."""
    if number == signal.SIGHUP:
        return signal.getsignal(number) is not signal.SIG_IGN
    return number != signal.SIGCHLD and code != _SI_KERNEL


def _handles_signal(pid: int, number: signal.Signals) -> bool:
    """Whether a signal would reach a process. The first process of a PID namespace receives only signals for which it has a handler; a
    signal that it merely blocks may be lost when it unblocks it."""
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
    """Send SIGKILL to the group that `process` leads, then wait for its members: in the sandbox, orphans are reparented to us."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.kill()
    process.wait()
    with contextlib.suppress(ChildProcessError):
        while True:
            os.waitpid(-process.pid, 0)


_NOBODY = 65534


def as_other_user(command: Sequence[str], user: int = _NOBODY) -> list[str]:
    """Command line for a program that refuses to run as root: it runs in a user namespace that maps root to another UID. Its IPC
    namespace ensures that System V segments are removed, however their owner ends."""
    if os.geteuid() != 0:
        return list(command)
    return ["unshare", "--user", "--ipc", f"--map-user={user}", f"--map-group={user}", "--", *command]


def mount_memory(directory: Path, size_bytes: int, mode: str = "0700") -> None:
    """Mount a tmpfs over `directory`; only the sandbox sees it. Raises LabError."""
    assert inside(), "a tmpfs is mounted in the sandbox only, where the kernel removes it"
    result = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"mode={mode},size={size_bytes}", "howfar", str(directory)],
        capture_output=True,
        text=True,
    )
    if result.returncode != 0:
        raise LabError(f"mounting a tmpfs on {directory} failed: {result.stderr.strip()}", "Run `howfar lab` as root.")
