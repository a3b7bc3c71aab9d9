"""Runs on hosts with the user's own server, and on an existing Ray cluster."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from howfar.lab.servers.kinds import find_server
from howfar.store.records import Run
from howfar.store.run_file import read_run
from tests.lab.howfar_runs import PATHS, assert_completed, good_trials, require, tiny_plan
from tests.lab.test_hosts import ABSENT, counted, needs_hosts, run_on_hosts, skip_unless_installed

pytestmark = [pytest.mark.alone, pytest.mark.lab, pytest.mark.usefixtures("namespaces", "mariadb"), needs_hosts]

_ON_HOST = """
on() { name=$1; shift; ssh $(python - "$name" <<'END'
import sys, tomllib
print(tomllib.load(open("hosts.toml", "rb"))["hosts"][sys.argv[1]]["ssh"])
END
) "export PYTHONPATH=$PYTHONPATH XDG_CACHE_HOME=$XDG_CACHE_HOME PATH=$PATH; $*"; }
"""
_SERVER = f"""{_ON_HOST}
kind=KIND scheme=SCHEME
mkdir server
mkfifo stop
on b python -m tests.lab.user_server $kind $PWD/server 10.78.0.11 1000 <stop >port.txt 2>server.txt & exec 3>stop
for _ in $(seq 600); do [ -s port.txt ] && break; sleep 0.1; done
dsn="$scheme://howfar@10.78.0.11:$(cat port.txt)/sbtest"
"""
_USER_SERVER = f"""{_SERVER}
howfar run plan.toml --on hosts.toml --dsn "$dsn" --password-file server/password --out run.howfar
! howfar run plan.toml --on hosts.toml --dsn "$dsn" --password-file server/password --place server=a 2>where.txt
! howfar run encryption --on hosts.toml --dsn "$dsn" --password-file server/password 2>tls.txt
kill -0 $(pgrep -f "$PWD/server/[d]ata" | head -1)
"""
_SECRET = f"""{_SERVER}{ABSENT}
password=$(cat server/password)
test ${{#password}} -ge 16
BY
howfar hosts up
howfar run plan.toml --on hosts.toml --dsn "$dsn" $password_option --out run.howfar 2>err.txt & run=$!
while kill -0 $run 2>/dev/null; do ps -ewwo args >>ps.txt; sleep 0.2; done
wait $run
nowhere "$password" password
absent grep -lF -e "$password" ps.txt
absent grep -rlsF --exclude-dir=server -e "$password" . "$XDG_CACHE_HOME" "$HOME/.cache/howfar/hosts" /dev/shm
howfar hosts down
"""


def _check_all_paths(run: Run) -> None:
    arms = {trial.arm.removesuffix(" (again)") for trial in good_trials(run)}
    assert arms == set(PATHS), [trial.void_reason for trial in run.trials]


def _read(file: Path) -> str:
    """The text of a file; empty if it does not exist."""
    return file.read_text() if file.exists() else ""


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("kind", "scheme", "reads"),
    [("mariadb", "mysql", "Com_select"), ("mysql", "mysql", "Com_select"), ("postgresql", "postgresql", "commits")],
)
def test_the_users_own_server_is_measured_unchanged(
    cache: Path, tmp_path: Path, kind: str, scheme: str, reads: str
) -> None:
    skip_unless_installed(kind)
    (tmp_path / "plan.toml").write_text(tiny_plan(link=False, blocks=2))
    done = run_on_hosts(
        cache, tmp_path, _USER_SERVER.replace("KIND", str(find_server(kind).path)).replace("SCHEME", scheme)
    )
    assert_completed(done.returncode, done.stderr)
    run = read_run(tmp_path / "run.howfar")
    _check_all_paths(run)
    for trial in good_trials(run):
        assert trial.measured is not None
        server, hosts = require(trial.receipt.server), require(trial.receipt.hosts)
        assert "the server's CPU time" in server.unknown
        assert "server" not in {use.role for use in trial.measured.cpu}
        assert server.counters[reads] > 0
        assert hosts.counted == "not counted" if kind == "postgresql" else counted(trial).rule == "at least"
    assert run.info.server_kind == kind
    password = (tmp_path / "server" / "password").read_text().strip()
    assert password not in (tmp_path / "run.howfar").read_bytes().decode("latin-1")
    assert "the server is on host b" in (tmp_path / "where.txt").read_text()
    assert "plain sessions" in (tmp_path / "tls.txt").read_text()


@pytest.mark.thorough
@pytest.mark.parametrize(
    "by",
    ['password_option="--password-file server/password"', 'export HOWFAR_PASSWORD="$password"'],
    ids=["file", "environment"],
)
def test_the_password_of_a_dsn_is_not_readable(cache: Path, tmp_path: Path, by: str) -> None:
    (tmp_path / "plan.toml").write_text(tiny_plan(link=False, blocks=2))
    script = _SECRET.replace("KIND", str(find_server("mariadb").path)).replace("SCHEME", "mysql")
    done = run_on_hosts(cache, tmp_path, script.replace("BY", by))
    assert_completed(done.returncode, f"{_read(tmp_path / 'err.txt')}\n{done.stderr[-2000:]}")


_EXISTING = f"""{_ON_HOST}
export RAY_USAGE_STATS_ENABLED=0 RAY_ENABLE_UV_RUN_RUNTIME_ENV=0
alias ray="python -m ray.scripts.scripts"
start() {{ echo "python -m ray.scripts.scripts start --num-cpus=2 --object-store-memory=80000000 --disable-usage-stats $*"; }}
$(start --head --port=6400 --node-ip-address=10.78.0.1 --include-dashboard=false) >head.txt 2>&1
on a "RAY_USAGE_STATS_ENABLED=0 $(start --address=10.78.0.1:6400 --node-ip-address=10.78.0.10)" >a.txt 2>&1
on b "RAY_USAGE_STATS_ENABLED=0 $(start --address=10.78.0.1:6400 --node-ip-address=10.78.0.11)" >b.txt 2>&1
place=client=node-10-78-0-10,server=node-10-78-0-11
howfar run plan.toml --on ray://10.78.0.1:6400 --place $place --out run.howfar 2>err.txt & run=$!
until grep -q "^block 1" err.txt; do kill -0 $run; sleep 0.1; done
! howfar hosts show ray://10.78.0.1:6400 2>used.txt
wait $run
howfar hosts show ray://10.78.0.1:6400 --json >show.json
sleep 1
ps -eo stat,args >after.txt
ls /dev/shm >shm.txt
"""


@pytest.mark.thorough
def test_an_existing_ray_cluster_is_used_and_left_unchanged(cache: Path, tmp_path: Path) -> None:
    # The run must still measure when the second command requests the hosts.
    (tmp_path / "plan.toml").write_text(tiny_plan(link=False, blocks=12))
    done = run_on_hosts(cache, tmp_path, _EXISTING)
    assert_completed(done.returncode, done.stderr + _read(tmp_path / "err.txt"))
    assert "in use by another command" in _read(tmp_path / "used.txt")
    run = read_run(tmp_path / "run.howfar")
    _check_all_paths(run)
    shown = set(json.loads((tmp_path / "show.json").read_text())["hosts"])
    assert shown == {f"node-10-78-0-{last}" for last in (1, 10, 11)}, (
        "hosts are named by address: all have this machine's host name"
    )
    alive = [line for line in (tmp_path / "after.txt").read_text().splitlines() if not line.startswith("Z")]
    assert sum("raylet/raylet" in line for line in alive) == 3, "the existing cluster still runs"
    assert not [line for line in alive if "howfar.fleet" in line or "mariadbd" in line]
    assert "work" not in (tmp_path / "shm.txt").read_text().split()
