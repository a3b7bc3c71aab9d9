"""The lines that the doctor proposes for a pooler, read by the pooler itself."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import time
from contextlib import closing
from pathlib import Path

import pg8000.native
import pytest

from howfar.doctor.checks import _POOLER
from tests.lab.stores_here import free_port

_ACCOUNT = "nobody"


def test_pgbouncer_reads_the_lines_of_a_pooler(tmp_path: Path) -> None:
    """[doc-1] pgbouncer reads the proposed lines as intended: it would take a comment after a value for a part of the value."""
    program = shutil.which("pgbouncer", path=f"{os.environ['PATH']}:/usr/sbin")
    if program is None:
        pytest.skip("pgbouncer is not installed (./setup --hops brings it)")
    if os.geteuid() != 0:
        pytest.skip("pgbouncer is started as another account, which needs root")
    port, file, log = free_port(), tmp_path / "pgbouncer.ini", tmp_path / "log"
    own = [
        f"listen_port = {port}",
        "listen_addr = 127.0.0.1",
        "unix_socket_dir =",
        "auth_type = any",
        "admin_users = app",
    ]
    file.write_text("\n".join(["[databases]", "shop = host=127.0.0.1 port=1 user=app", *_POOLER.lines, *own]) + "\n")
    for folder in (tmp_path, *tmp_path.parents[:-1]):
        folder.chmod(folder.stat().st_mode | 0o055)
    with log.open("wb") as output:
        pooler = subprocess.Popen(
            [program, str(file)], stderr=output, stdout=output, user=pwd.getpwnam(_ACCOUNT).pw_uid
        )
    try:
        deadline = time.monotonic() + 30
        while f"listening on 127.0.0.1:{port}" not in (said := log.read_text()):
            assert pooler.poll() is None and time.monotonic() < deadline, said
            time.sleep(0.01)
        with closing(
            pg8000.native.Connection("app", host="127.0.0.1", port=port, database="pgbouncer", ssl_context=None)
        ) as admin:
            settings = {row[0]: row[1] for row in admin.run("SHOW CONFIG")}
    finally:
        pooler.terminate()
        pooler.wait()
    assert (settings["pool_mode"], settings["default_pool_size"]) == ("transaction", "20")
