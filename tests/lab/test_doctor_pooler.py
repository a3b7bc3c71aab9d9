"""pgbouncer with the lines that the doctor proposes for a pooler."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
from contextlib import closing
from pathlib import Path
from typing import Any

import pg8000.native
import pytest

from howfar.doctor.checks import _POOLER
from tests.lab.local_stores import free_port
from tests.lab.sandboxes import wait_until


def test_pgbouncer_reads_the_lines_of_a_pooler(tmp_path: Path) -> None:
    """[doc-1] pgbouncer would read a comment after a value as part of the value."""
    program = shutil.which("pgbouncer", path=f"{os.environ['PATH']}:/usr/sbin")
    if program is None:
        pytest.skip("pgbouncer is not installed (./setup --hops brings it)")
    if os.geteuid() != 0:
        pytest.skip("pgbouncer is started as another account, which needs root")
    port, file, log = free_port(), tmp_path / "pgbouncer.ini", tmp_path / "log"
    own = f"listen_port = {port}\nlisten_addr = 127.0.0.1\nunix_socket_dir =\nauth_type = any\nadmin_users = app\n"
    file.write_text("\n".join(["[databases]", "shop = host=127.0.0.1 port=1 user=app", *_POOLER.lines, own]))
    for folder in (tmp_path, *tmp_path.parents[:-1]):
        folder.chmod(folder.stat().st_mode | 0o055)
    with log.open("wb") as output:
        pooler = subprocess.Popen(
            [program, str(file)], stderr=output, stdout=output, user=pwd.getpwnam("nobody").pw_uid
        )
    try:
        wait_until(
            lambda: pooler.poll() is not None or f"listening on 127.0.0.1:{port}" in log.read_text(), "pgbouncer"
        )
        assert pooler.poll() is None, log.read_text()
        target: dict[str, Any] = {"host": "127.0.0.1", "port": port, "database": "pgbouncer", "ssl_context": None}
        with closing(pg8000.native.Connection("app", **target)) as admin:
            settings = {row[0]: row[1] for row in admin.run("SHOW CONFIG")}
    finally:
        pooler.terminate()
        pooler.wait()
    assert (settings["pool_mode"], settings["default_pool_size"]) == ("transaction", "20")
