"""`howfar record --service` with a separate systemd, which is process 1 of new namespaces and has only the test's units."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from howfar.recording.recording import KILLED, read
from tests.lab.howfar_runs import HOWFAR

pytestmark = pytest.mark.usefixtures("namespaces")
SYSTEMD = Path("/lib/systemd/systemd")
BEGIN = """
set -e
mount --make-rprivate /
mount -t proc proc /proc
# At its start systemd would set kernel parameters and the machine's identity.
for kept in /proc/sys /etc; do mount --bind $kept $kept && mount -o remount,bind,ro $kept; done
ip link set lo up
mount -t tmpfs tmpfs /run
mount -t cgroup2 none /sys/fs/cgroup
mkdir -p /run/systemd/system
cp "$1"/*.service /run/systemd/system/
echo begun >"$1/begun"
export container=other SYSTEMD_UNIT_PATH=/run/systemd/system
exec "$2" --system --unit=test.service --show-status=no --log-target=console
"""
APP_UNIT = """
[Unit]
DefaultDependencies=no
[Service]
ExecStart={python} {folder}/app.py
"""
TEST_UNIT = """
[Unit]
DefaultDependencies=no
SuccessAction=exit-force
FailureAction=exit-force
[Service]
Type=oneshot
ExecStart=/bin/sh {folder}/script
StandardOutput=file:{folder}/out
StandardError=file:{folder}/err
"""
APP = """
import socket, time
with open("{folder}/said", "a") as said:
    print("begun", file=said, flush=True)
    while True:
        try:
            with socket.socket(socket.AF_UNIX) as line:
                line.settimeout(10)
                line.connect("/run/db.sock")
                for _ in range(5):
                    line.sendall(b"*2\\r\\n$3\\r\\nGET\\r\\n$6\\r\\nsecret\\r\\n")
                    assert line.recv(100) == b"$-1\\r\\n"
        except Exception as error:
            print(repr(error), file=said, flush=True)
        time.sleep(0.02)
"""
SCRIPT = """
cd {folder}
wait_until() {{ for _ in $(seq 600); do if "$@"; then return; fi; sleep 0.05; done; echo "never: $*" >&2; exit 1; }}
redis-server --port 0 --unixsocket /run/db.sock --save "" >redis.log &
server=$!
wait_until test -S /run/db.sock
begun() {{ [ "$(grep -c begun said)" = "$1" ]; }}
systemctl start app || exit 1
wait_until begun 1
{howfar} record --service app --server /run/db.sock --time 2s --yes --out complete.recording || exit 1
test ! -e /run/systemd/system/app.service.d || exit 1
systemctl is-active app || exit 1
{howfar} record --service app --server /run/db.sock --time 100s --yes --out killed.recording 2>killed.txt &
recorder=$!
wait_until grep -q "^howfar: recording" killed.txt
sleep 1
kill -9 $recorder
wait_until test ! -e /run/systemd/system/app.service.d
sleep 1
systemctl is-active app || exit 1
systemctl restart app || exit 1
wait_until begun 4
grep -c /run/db.sock "/proc/$(systemctl show app --property=MainPID --value)/mountinfo"
systemctl stop app
kill $server
echo done
"""


@pytest.mark.thorough
def test_a_service_is_recorded_and_its_drop_in_is_gone_after_it_and_after_a_kill(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root starts a systemd")
    if not SYSTEMD.exists() or shutil.which("redis-server") is None:
        pytest.skip("systemd or redis-server is not installed")
    filled = {"folder": tmp_path, "python": sys.executable, "howfar": HOWFAR}
    for name, text in {"app.service": APP_UNIT, "test.service": TEST_UNIT, "app.py": APP, "script": SCRIPT}.items():
        (tmp_path / name).write_text(text.format(**filled))
    new = ["unshare", "--fork", "--kill-child", "--pid", "--mount", "--uts", "--ipc", "--net", "--cgroup"]
    command = [*new, "sh", "-c", BEGIN, "sh", str(tmp_path), str(SYSTEMD)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    if not (tmp_path / "begun").exists() or not (tmp_path / "out").exists():
        pytest.skip(f"no systemd could be started here: {done.stderr[-300:]}")
    said = (tmp_path / "err").read_text()
    assert (tmp_path / "out").read_text().endswith("active\n0\ndone\n"), said
    assert (tmp_path / "said").read_text().split() == ["begun"] * 4, (
        "the application started four times without an error"
    )
    complete, killed = read(tmp_path / "complete.recording"), read(tmp_path / "killed.recording")
    assert (complete.facts.protocol, killed.facts.stopped) == ("redis", KILLED)
    (page,) = complete.pages
    assert page.name == "app.service"
    assert len(page.round_trips) > 20
    assert b"secret" not in (tmp_path / "complete.recording").read_bytes()
