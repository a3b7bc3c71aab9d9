"""The file of a Unix socket: whose it is, who may connect, and whether it still leads to the server that made it."""

from __future__ import annotations

import grp
import os
import pwd
import stat
from pathlib import Path

from howfar.doctor.findings import SocketFile
from howfar.doctor.procfs import account

CLEANED = ("/tmp/", "/var/tmp/")
"""Where files are removed by age, and services may have directories of their own in place of them (PrivateTmp)."""


def look_at(path: str) -> SocketFile | None:
    """None when there is no such file, or it may not be seen."""
    try:
        seen = Path(path).stat()
    except OSError:
        return None
    try:
        group = grp.getgrgid(seen.st_gid).gr_name
    except KeyError:
        group = str(seen.st_gid)
    return SocketFile(
        mode=stat.S_IMODE(seen.st_mode),
        owner=account(seen.st_uid),
        group=group,
        who=who(path),
    )


def who(path: str) -> str:
    """In words. To connect one must be able to write to the file and to enter every directory above it."""
    seen = Path(path).stat()
    closed = next((above for above in Path(path).parents if not above.stat().st_mode & 0o001), None)
    if seen.st_mode & 0o002 and closed is None:
        return "every account of this machine"
    if seen.st_mode & 0o002:
        assert closed is not None, "else it would be open to all"
        owner, mode = account(closed.stat().st_uid), stat.S_IMODE(closed.stat().st_mode)
        return f"only who may enter {closed} (of {owner}, mode {mode:04o})"
    if seen.st_mode & 0o020:
        return f"{account(seen.st_uid)}, the group {_group_of(path)}, and root"
    return "root" if seen.st_uid == 0 else f"{account(seen.st_uid)} and root"


def _group_of(path: str) -> str:
    try:
        return grp.getgrgid(Path(path).stat().st_gid).gr_name
    except KeyError:
        return str(Path(path).stat().st_gid)


def may_use(path: str, uid: int, pid: int | None) -> bool | None:
    """Whether an account may connect, by modes. Of lists of further rights (ACL) and confinement it knows nothing."""
    groups = _groups(pid, uid)
    if uid == 0:
        return True
    try:
        above_may = all(_may(above, uid, groups, 0o1) for above in Path(path).parents)
        return above_may and _may(Path(path), uid, groups, 0o2)
    except OSError:
        return None


def _may(path: Path, uid: int, groups: set[int], wanted: int) -> bool:
    seen = path.stat()
    if seen.st_uid == uid:
        return bool(seen.st_mode & wanted << 6)
    if seen.st_gid in groups:
        return bool(seen.st_mode & wanted << 3)
    return bool(seen.st_mode & wanted)


def _groups(pid: int | None, uid: int) -> set[int]:
    """Those that the process has now; of one that cannot be seen, those of its account."""
    if pid is not None:
        try:
            for line in Path(f"/proc/{pid}/status").read_text().splitlines():
                name, _, rest = line.partition(":")
                if name == "Gid":
                    first = {int(rest.split()[1])}
                if name == "Groups":
                    return first | {int(word) for word in rest.split()}
        except OSError:
            pass
    try:
        entry = pwd.getpwuid(uid)
    except KeyError:
        return set()
    return set(os.getgrouplist(entry.pw_name, entry.pw_gid))
