"""Prints the licences of all that is linked into the engine, for both release targets: `python packaging/licences.py`.

That is the crates, Rust's standard library (as Debian packages it), and what zig links. Run in the root of the source, with the Python
that has zig. Equal texts are printed once. Exits with 1 if something has no licence text.
"""

from __future__ import annotations

import importlib.util
import json
import re
import subprocess
import sys
from collections import defaultdict
from collections.abc import Set
from pathlib import Path
from typing import Any

_FILE_NAMES = ("licen[sc]e*", "LICEN[SC]E*", "COPYING*", "NOTICE*", "UNLICENSE*")
_VENDORED = {"zstd-sys": ("zstd/LICENSE",), "ring": ("third_party/fiat/LICENSE",)}
"""Licence files of code in other languages that a crate contains."""
_TARGETS = ("x86_64-unknown-linux-gnu", "aarch64-unknown-linux-gnu")
_ZIG = {
    "zig's compiler_rt: MIT": "LICENSE",
    "LLVM's libunwind: Apache-2.0 WITH LLVM-exception": "lib/libunwind/LICENSE.TXT",
    "glibc's startup code: LGPL-2.1-or-later with a linking exception": "lib/libc/glibc/LICENSES",
}
"""What zig links into each program, and the file with its licence in the folder of zig."""


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


def select_paragraphs(copyright_file: str, crates: Set[str]) -> str:
    """The part of Debian's copyright file of Rust that is about the standard library: the paragraphs of its own files and of these
    vendored crates, and the texts of the licences that those name."""
    paragraphs = re.split(r"\n\s*\n", copyright_file.strip())
    about_files, texts = [], []
    for paragraph in paragraphs[1:]:
        if paragraph.startswith("License:"):
            texts.append(paragraph)
            continue
        patterns = re.match(r"Files:((?:.*\n)(?:[ \t].*\n)*)", paragraph)
        if patterns is not None and any(_is_of_library(one, crates) for one in patterns.group(1).split()):
            about_files.append(paragraph)
    named = {
        name.strip(" ()").lower()
        for paragraph in about_files
        for licence in re.findall(r"^License:(.*)$", paragraph, re.MULTILINE)
        for name in re.split(r"\s(?:or|and)\s", licence, flags=re.IGNORECASE)
    }
    texts = [one for one in texts if one.partition("\n")[0].removeprefix("License:").strip().lower() in named]
    return "\n\n".join([*about_files, *texts])


def _is_of_library(pattern: str, crates: Set[str]) -> bool:
    folder, _, rest = pattern.partition("/")
    return folder == "library" or (folder == "vendor" and rest.partition("/")[0].rpartition("-")[0] in crates)


def read_standard_library_text() -> str:
    """Copyright and licences of Rust's standard library; empty if this Rust is not Debian's."""
    result = subprocess.run(("rustc", "--print", "sysroot"), stdout=subprocess.PIPE, text=True, check=True)
    sysroot = Path(result.stdout.strip())
    libraries = (sysroot / "lib/rustlib" / _TARGETS[0] / "lib").glob("lib*.rlib")
    crates = {file.stem.removeprefix("lib").rpartition("-")[0] for file in libraries}
    crates |= {name.replace("_", "-") for name in crates}
    for file in sorted(sysroot.glob("share/doc/libstd-rust-*dev/copyright")):
        return select_paragraphs(file.read_text(encoding="utf-8"), crates)
    return ""


def read_zig_texts() -> dict[str, str]:
    """The licence texts of what zig links in; empty for a missing file."""
    spec = importlib.util.find_spec("ziglang")
    folder = Path(next(iter(spec.submodule_search_locations or ("",)))) if spec is not None else Path()
    files = {name: folder / file for name, file in _ZIG.items()}
    return {
        name: file.read_text(encoding="utf-8", errors="replace").strip() if spec is not None and file.is_file() else ""
        for name, file in files.items()
    }


def main() -> int:
    """Print the list, then each text with the names of what it belongs to."""
    print("The engine of howfar links these libraries:\n")
    names_by_text: dict[str, list[str]] = defaultdict(list)
    without_text = []
    for package in (one for one in linked_packages() if one["source"] is not None):
        name = f"{package['name']} {package['version']}"
        print(f"  {name}: {package['license'] or 'see its text'}")
        texts = read_licence_texts(package)
        for text in texts:
            names_by_text[text].append(name)
        if not texts:
            without_text.append(name)
    standard_library = {"the standard library of Rust: MIT OR Apache-2.0": read_standard_library_text()}
    for title, text in {**standard_library, **read_zig_texts()}.items():
        print(f"  {title}")
        name = title.partition(":")[0]
        if text:
            names_by_text[text].append(name)
        else:
            without_text.append(name)
    for text, names in names_by_text.items():
        print(f"\n{'=' * 78}\n{', '.join(names)}\n{'=' * 78}\n\n{text}")
    for name in without_text:
        print(f"licences: {name} has no licence text", file=sys.stderr)
    return int(bool(without_text))


if __name__ == "__main__":
    sys.exit(main())
