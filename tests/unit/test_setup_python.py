"""Which Python `./setup` uses to create the environment."""

from __future__ import annotations

import subprocess
from pathlib import Path

SETUP = Path(__file__).parents[2] / "setup"


def sourced(script: str) -> str:
    """Output of a script that follows the functions of `./setup` that choose a Python."""
    take = f"sed -n '/^look_for_python()/,/^}}/p;/^is_public()/,/^}}/p' {SETUP}"
    whole = f'set -eu; eval "$({take})"; {script}'
    return subprocess.run(["sh", "-c", whole], capture_output=True, text=True, check=True, timeout=60).stdout.strip()


def test_a_python_below_a_closed_directory_is_the_last_choice(tmp_path: Path) -> None:
    closed = tmp_path / "home" / "bin"
    closed.mkdir(parents=True)
    program = closed / "python3"
    program.write_text(f"#!/bin/sh\necho {program}\n")
    program.chmod(0o755)
    (tmp_path / "home").chmod(0o700)
    assert sourced(f"is_public {program} && echo open || echo closed") == "closed"
    assert sourced("is_public /usr/bin/env && echo open || echo closed") == "open"
    only = sourced(f"PATH={closed}:$PATH; is_public() {{ return 1; }}; look_for_python; echo $PYTHON")
    assert only == str(program)
    public = sourced(
        f"python3() {{ echo {program}; }}; is_public() {{ [ $1 != {program} ]; }}; look_for_python; echo $PYTHON"
    )
    assert public
