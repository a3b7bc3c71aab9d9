"""Removes the build directory's path from a wheel's SBOM: `python packaging/wheel.py WHEEL DIRECTORY`.

maturin writes the path of each crate of the workspace there. Without it, the same source gives the same bytes in every directory.
"""

from __future__ import annotations

import base64
import hashlib
import sys
from pathlib import Path
from zipfile import ZIP_DEFLATED, ZipFile, ZipInfo


def remove_path(wheel: Path, directory: str) -> None:
    """Replace `directory` by `/howfar` in the wheel's SBOMs, and their hashes and sizes in RECORD. Raises ValueError if another file
    contains it."""
    record_lines: dict[str, str] = {}
    entries: list[tuple[ZipInfo, bytes]] = []
    with ZipFile(wheel) as old:
        for entry in old.infolist():
            content = old.read(entry)
            if directory.encode() in content:
                if "/sboms/" not in entry.filename:
                    raise ValueError(f"{entry.filename} contains {directory}")
                content = content.replace(directory.encode(), b"/howfar")
                digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
                record_lines[entry.filename] = f"{entry.filename},sha256={digest},{len(content)}"
            entries.append((entry, content))
    with ZipFile(wheel, "w", ZIP_DEFLATED) as new:
        for entry, content in entries:
            if entry.filename.endswith(".dist-info/RECORD"):
                lines = [record_lines.get(line.partition(",")[0], line) for line in content.decode().splitlines()]
                content = "".join(f"{line}\n" for line in lines).encode()
            new.writestr(entry, content)


if __name__ == "__main__":
    remove_path(Path(sys.argv[1]), sys.argv[2])
