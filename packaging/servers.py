"""Prints the options with which mmdebstrap installs what `howfar setup` would: `python packaging/servers.py [--capture ...]`.

Takes the options of `howfar setup` that name programs. Prints one option of mmdebstrap a line.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from howfar.setup.programs import program_groups, required_programs

_ALWAYS = ("python3", "ca-certificates")


def mmdebstrap_options(setup_options: Sequence[str]) -> list[str]:
    """The packages, and the files that must exist only while they are installed. Raises ValueError for an unknown option."""
    known = {f"--{group.name}": group.name for group in program_groups() if group.brings}
    if unknown := [option for option in setup_options if option not in known]:
        raise ValueError(f"unknown option {unknown[0]} in SETUP; known are {', '.join(known)}")
    wanted = {known[option] for option in setup_options} | {"lab"}
    programs = [one for one in required_programs() if one.group in wanted]
    packages = {package for one in programs if (package := one.package("apt")) is not None}
    options = [f"--include={','.join([*_ALWAYS, *sorted(packages)])}"]
    for path, line in (one.temporary_files["apt"] for one in programs if "apt" in one.temporary_files):
        folder = path.rpartition("/")[0]
        options += [
            f'--essential-hook=mkdir -p "$1/{folder}" && echo "{line}" >"$1/{path}"',
            f'--customize-hook=rm "$1/{path}"',
        ]
    return options


if __name__ == "__main__":
    try:
        print(*mmdebstrap_options(sys.argv[1:]), sep="\n")
    except ValueError as error:
        sys.exit(f"release: {error}")
