"""The library that binds Ray's programs to one address, preloaded into a test program."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from howfar.engine.process import find_engine

_BINDS = """
import socket
for family, address in ((socket.AF_INET, ""), (socket.AF_INET6, "::"), (socket.AF_INET, "127.0.0.9"), (socket.AF_UNIX, "here")):
    with socket.socket(family) as one:
        one.bind(address if family == socket.AF_UNIX else (address, 0))
        at = one.getsockname()
        print(at if isinstance(at, str) else at[0])
"""


def test_only_what_would_listen_everywhere_is_bound_to_the_address(tmp_path: Path) -> None:
    library = tmp_path / "listen.so"
    library.write_bytes(subprocess.run([find_engine(), "preload"], capture_output=True, check=True).stdout)

    def bound(listen: dict[str, str]) -> list[str]:
        (tmp_path / "here").unlink(missing_ok=True)
        preloaded = {**os.environ, "LD_PRELOAD": str(library), **listen}
        done = subprocess.run(
            [sys.executable, "-c", _BINDS], capture_output=True, text=True, check=True, cwd=tmp_path, env=preloaded
        )
        assert not done.stderr
        return done.stdout.split()

    assert bound({"HOWFAR_LISTEN": "127.0.0.2"}) == ["127.0.0.2", "::ffff:127.0.0.2", "127.0.0.9", "here"]
    assert bound({}) == ["0.0.0.0", "::", "127.0.0.9", "here"]
