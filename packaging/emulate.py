"""Runs a command in a namespace that runs programs of another architecture: `python packaging/emulate.py MACHINE EMULATOR COMMAND...`.

The kernel starts the emulator for programs of MACHINE (aarch64, x86_64), but only in a user namespace that ends with the command.
Linux 6.7 and later can do this. Exits with the command's code, or with 125 if there is no such namespace.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

_ELF_MACHINES = {"aarch64": 0xB7, "x86_64": 0x3E}
_CLONE_NEWNS, _CLONE_NEWUSER, _CLONE_NEWPID = 0x00020000, 0x10000000, 0x20000000
_MS_REC_PRIVATE = 0x44000
_PR_SET_PDEATHSIG = 1
_HANDLERS = Path("/proc/sys/fs/binfmt_misc")
_NO_NAMESPACE = 125


class EmulationError(Exception):
    """The namespace could not be made."""


def registration(machine: str, emulator: Path) -> str:
    """The line that tells the kernel to start `emulator` for programs of `machine`: opened at once, so that it is also found in a
    chroot, and with the program's own credentials."""
    if ":" in str(emulator):
        raise EmulationError(f"the emulator's path must not contain a colon: {emulator}")
    ident = b"\x7fELF\x02\x01\x01" + bytes(9)
    magic = ident + (2).to_bytes(2, "little") + _ELF_MACHINES[machine].to_bytes(2, "little")
    # Any OS ABI; both kinds of program (2: at a fixed address, 3: at any).
    mask = b"\xff" * 7 + b"\x00" + b"\xff" * 8 + b"\xfe\xff\xff\xff"
    return f":{machine}:M::{_escaped(magic)}:{_escaped(mask)}:{emulator}:OCF"


def _escaped(content: bytes) -> str:
    return "".join(f"\\x{byte:02x}" for byte in content)


def id_map(own_map: str, own_id: int, *, is_root: bool) -> str:
    """The namespace's users or groups: for root all that this process has (`own_map`: its /proc/self/uid_map), for others only
    themselves, as root."""
    if not is_root:
        return f"0 {own_id} 1\n"
    extents = (line.split() for line in own_map.splitlines())
    return "".join(f"{first} {first} {count}\n" for first, _, count in extents)


def run(machine: str, emulator: Path, command: Sequence[str]) -> int:
    """Run the command; returns its exit code (128 + N for signal N). Raises EmulationError."""
    line = registration(machine, emulator.resolve())
    ready_read, ready_write = os.pipe()
    mapped_read, mapped_write = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(ready_read)
        os.close(mapped_write)
        _end_with_parent()
        os._exit(_guarded(lambda: _run_in_namespaces(line, command, ready_write, mapped_read)))
    os.close(ready_write)
    os.close(mapped_read)
    if os.read(ready_read, 1):
        is_root = os.geteuid() == 0
        proc = Path(f"/proc/{child}")
        if not is_root:
            (proc / "setgroups").write_text("deny")
        for name, own in (("uid_map", os.geteuid()), ("gid_map", os.getegid())):
            (proc / name).write_text(id_map(Path("/proc/self", name).read_text(), own, is_root=is_root))
        os.write(mapped_write, b"m")
    return _exit_code(child)


def _run_in_namespaces(line: str, command: Sequence[str], ready: int, mapped: int) -> int:
    _checked("creating a user namespace", _libc().unshare(_CLONE_NEWUSER))
    os.write(ready, b"r")
    if not os.read(mapped, 1):
        return _NO_NAMESPACE
    _checked("creating namespaces", _libc().unshare(_CLONE_NEWNS | _CLONE_NEWPID))
    child = os.fork()
    if child == 0:
        _end_with_parent()
        os._exit(_guarded(lambda: _run_as_init(line, command)))
    return _exit_code(child)


def _run_as_init(line: str, command: Sequence[str]) -> int:
    """Mount what belongs to the new namespaces, register the emulator, and run the command."""
    mount = _libc().mount
    _checked("making mounts private", mount(b"none", b"/", None, _MS_REC_PRIVATE, None))
    _checked("mounting /proc", mount(b"proc", b"/proc", b"proc", 0, None))
    handlers = os.fsencode(_HANDLERS)
    _checked("mounting binfmt_misc in a user namespace", mount(b"binfmt_misc", handlers, b"binfmt_misc", 0, None))
    try:
        (_HANDLERS / "register").write_text(line)
    except OSError as error:
        raise EmulationError(f"registering the emulator: {error.strerror}") from error
    code = subprocess.call(command)
    return code if code >= 0 else 128 - code


def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def _checked(what: str, result: int) -> None:
    if result != 0:
        raise EmulationError(f"{what}: {os.strerror(ctypes.get_errno())}")


def _end_with_parent() -> None:
    _libc().prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL))


def _guarded(body: Callable[[], int]) -> int:
    """The body's exit code; its errors as a line, since a forked process must not return to its parent's code."""
    try:
        return body()
    except (EmulationError, OSError) as error:
        print(f"emulate: {error}", file=sys.stderr)
        return _NO_NAMESPACE
    except KeyboardInterrupt:
        return 128 + signal.SIGINT


def _exit_code(child: int) -> int:
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return code if code >= 0 else 128 - code


if __name__ == "__main__":
    try:
        sys.exit(run(sys.argv[1], Path(sys.argv[2]), sys.argv[3:]))
    except (EmulationError, OSError) as problem:
        print(f"emulate: {problem}", file=sys.stderr)
        sys.exit(_NO_NAMESPACE)
