"""Prints the licences of all crates that are linked into the engine, for both release targets: `python packaging/licences.py`.

Run in the root of the source. Equal texts are printed once. Exits with 1 if a crate has no licence file.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

_FILE_NAMES = ("licen[sc]e*", "LICEN[SC]E*", "COPYING*", "NOTICE*", "UNLICENSE*")
_VENDORED = {"zstd-sys": ("zstd/LICENSE",), "ring": ("third_party/fiat/LICENSE",)}
"""Licence files of code in other languages that a crate contains."""
_TARGETS = ("x86_64-unknown-linux-gnu", "aarch64-unknown-linux-gnu")


def linked_packages() -> list[dict[str, Any]]:
    """The packages that are linked in, by name: without build scripts, macros and test dependencies."""
    linked: set[str] = set()
    for target in _TARGETS:
        tree = ("cargo", "tree", "--locked", "-p", "howfar-engine", "-e", "normal,no-proc-macro", "--target", target)
        result = subprocess.run(
            (*tree, "--prefix", "none", "--format", "{p}"), stdout=subprocess.PIPE, text=True, check=True
        )
        linked |= {" ".join(line.split()[:2]) for line in result.stdout.splitlines() if line.strip()}
    metadata = ("cargo", "metadata", "--locked", "--format-version", "1")
    result = subprocess.run(metadata, stdout=subprocess.PIPE, text=True, check=True)
    packages = [one for one in json.loads(result.stdout)["packages"] if f"{one['name']} v{one['version']}" in linked]
    return sorted(packages, key=lambda one: (one["name"], one["version"]))


def read_licence_texts(package: dict[str, Any]) -> list[str]:
    """The texts of a package's licence files."""
    folder = Path(package["manifest_path"]).parent
    files = {file for pattern in _FILE_NAMES for file in folder.glob(pattern) if file.is_file()}
    files |= {folder / name for name in _VENDORED.get(package["name"], ()) if (folder / name).is_file()}
    return [file.read_text(encoding="utf-8", errors="replace").strip() for file in sorted(files)]


def main() -> int:
    """Print the list, then each text with the crates that it belongs to."""
    print("The engine of howfar links these libraries, and the standard library of Rust (MIT OR Apache-2.0):\n")
    crates_by_text: dict[str, list[str]] = defaultdict(list)
    without_text = []
    for package in (one for one in linked_packages() if one["source"] is not None):
        name = f"{package['name']} {package['version']}"
        print(f"  {name}: {package['license'] or 'see its text'}")
        texts = read_licence_texts(package)
        for text in texts:
            crates_by_text[text].append(name)
        if not texts:
            without_text.append(name)
    for text, names in crates_by_text.items():
        print(f"\n{'=' * 78}\n{', '.join(names)}\n{'=' * 78}\n\n{text}")
    for name in without_text:
        print(f"licences: {name} has no licence file", file=sys.stderr)
    return int(bool(without_text))


if __name__ == "__main__":
    sys.exit(main())
