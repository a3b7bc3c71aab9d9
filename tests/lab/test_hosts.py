"""The user's own hosts, here namespaces with an sshd each: they are joined, shown and measured, and released without a trace."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from howfar.contract.receipt import StatementCounts
from howfar.store.records import Run, StopReason, Trial
from howfar.store.run_file import read_run
from tests.lab.howfar_runs import PATHS, assert_completed, good_trials, require, tiny_plan
from tests.lab.local_php import require_php
from tests.lab.local_servers import require_server
from tests.lab.sandboxes import TIMEOUT_S, cache_variable, in_sandbox

_MISSING = [
    reason
    for reason, is_missing in (
        ("Ray is not installed (./setup --tests installs it)", importlib.util.find_spec("ray") is None),
        ("sshd is not installed (./setup --tests installs it)", not Path("/usr/sbin/sshd").exists()),
        ("an sshd that accepts logins needs root", os.geteuid() != 0),
    )
    if is_missing
]
needs_hosts = pytest.mark.skipif(bool(_MISSING), reason="; ".join(_MISSING) or "nothing is missing")
pytestmark = [pytest.mark.alone, pytest.mark.lab, pytest.mark.usefixtures("namespaces", "mariadb"), needs_hosts]


def run_on_hosts(
    cache: Path, directory: Path, script: str, hosts: tuple[str, ...] = ("a", "b"), **more: Any
) -> subprocess.CompletedProcess[str]:
    """Run a shell script in `directory`, with the hosts file `hosts.toml`."""
    request = json.dumps({"directory": str(directory), "hosts": hosts, **more})
    bin_directory = Path(sys.executable).parent
    return subprocess.run(
        in_sandbox(sys.executable, "-m", "tests.lab.namespace_hosts", request, "bash", "-ec", script),
        capture_output=True,
        text=True,
        timeout=4 * TIMEOUT_S,
        env={
            **os.environ,
            **cache_variable(cache),
            "PYTHONPATH": str(Path(__file__).parents[2]),
            "PATH": f"{bin_directory}:{os.environ['PATH']}:/usr/sbin",
        },
    )


def skip_unless_installed(*programs: str) -> None:
    """Skip the test if one of the servers, or PHP, is not installed."""
    for program in programs:
        require_php() if program == "php" else require_server(program)


_PLAN = tiny_plan(link=False, blocks=2)
_SHORT_PLAN = tiny_plan(("remote",), link=False, blocks=2)
_LIFECYCLE_SCRIPT = """
howfar hosts up
howfar hosts show --json >show.json
howfar bench hosts --blocks 1 --seconds 0.5 --json >scale.json & bench=$!
while kill -0 $bench 2>/dev/null; do
  for pid in $(pgrep -f "[r]aylet/raylet"); do nsenter --target $pid --net ss -ltnH >>listening.txt; done
  for pid in $(pgrep -x howfar-engine); do echo "engine $(grep -c listen.so /proc/$pid/maps)" >>loaded.txt; done
  sleep 0.2
done
wait $bench
howfar run plan.toml --on hosts.toml --place client=a,server=b --out run.howfar 2>run.txt && echo 0 >run.code || echo $? >run.code
ps -eo args >ps.txt
ls /dev/shm >shm.txt
howfar hosts down
sleep 0.5
ps -eo stat,args >after.txt
howfar run short.toml --on hosts.toml --place client=a,server=b --out join.howfar 2>join.txt && echo 0 >join.code || echo $? >join.code
ps -eo stat,args >after-join.txt
! howfar hosts down
"""


def alive_lines(ps: str) -> list[str]:
    """The lines of `ps -eo stat,args` without zombies and without shells that have a test's script as an argument."""
    return [line for line in ps.splitlines() if not line.startswith("Z") and "howfar hosts up" not in line]


@pytest.fixture(scope="module")
def lifecycle_output(cache: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with the output of `_LIFECYCLE_SCRIPT`: two hosts are joined, shown, used for a run and released, then joined and
    released by a run."""
    directory = tmp_path_factory.mktemp("h")
    (directory / "plan.toml").write_text(_PLAN)
    (directory / "short.toml").write_text(_SHORT_PLAN)
    done = run_on_hosts(cache, directory, _LIFECYCLE_SCRIPT)
    assert done.returncode == 0, done.stderr
    assert "are not up" in done.stderr.splitlines()[-2]
    return directory


def test_hosts_are_shown_with_their_clocks_and_distances(lifecycle_output: Path) -> None:
    shown = json.loads((lifecycle_output / "show.json").read_text())
    assert set(shown["hosts"]) == {"a", "b"}
    for host in shown["hosts"].values():
        assert abs(host["clock"]["offset_ns"]) <= host["clock"]["bound_ns"], "both hosts share one kernel"
    (distance,) = shown["distances"]
    assert (distance["from"], distance["to"]) == ("a", "b")
    assert 0 < distance["rtt_ns"]["min"] <= distance["rtt_ns"]["p50"] and distance["rtt_awake_ns"]["p50"] > 0
    assert min(distance["goodput_bps"].values()) > 0 and distance["path_mtu"] == 1500


def test_the_capacity_of_clients_and_the_overhead_of_measuring_are_reported(lifecycle_output: Path) -> None:
    (row,) = json.loads((lifecycle_output / "scale.json").read_text())["rows"]
    assert row["clients"] == 1 and row["queries_per_s"]["value"] > 0
    assert row["control_ns"] > 0 and row["ray_cpu"] >= 0 and row["agent_cpu"] > 0


def test_no_command_line_shows_the_token_and_ray_leaves_no_file_in_the_machines_shm(lifecycle_output: Path) -> None:
    running = (lifecycle_output / "ps.txt").read_text()
    assert running.count("raylet/raylet") == 3, "two hosts and the head"
    assert "token" not in running.lower().replace("auth_token_path", "")
    assert "ray" not in (lifecycle_output / "shm.txt").read_text()


def test_ray_listens_only_on_the_addresses_of_the_hosts(lifecycle_output: Path) -> None:
    addresses = {line.split()[3] for line in (lifecycle_output / "listening.txt").read_text().splitlines()}
    assert {"[::ffff:10.78.0.1]:6379", "[::ffff:10.78.0.11]:6380"} <= addresses, "Ray's head and a host"
    elsewhere = {each for each in addresses if not each.removeprefix("[::ffff:").startswith(("10.78.0.", "127."))}
    assert not elsewhere
    engines = [line for line in (lifecycle_output / "loaded.txt").read_text().splitlines() if line != "engine "]
    assert engines and set(engines) == {"engine 0"}, "listen.so is preloaded into Ray, not into the measuring engines"


def test_no_process_remains_when_hosts_are_down(lifecycle_output: Path) -> None:
    shown = (lifecycle_output / "after.txt").read_text()
    assert not [line for line in alive_lines(shown) if "ray" in line or "howfar.fleet" in line]


def test_a_run_that_joins_the_hosts_itself_releases_them(lifecycle_output: Path) -> None:
    assert_completed(int((lifecycle_output / "join.code").read_text()), (lifecycle_output / "join.txt").read_text())
    run = read_run(lifecycle_output / "join.howfar")
    assert run.stop is StopReason.BLOCKS and good_trials(run)
    shown = (lifecycle_output / "after-join.txt").read_text()
    assert not [line for line in alive_lines(shown) if "raylet" in line]


@pytest.fixture(scope="module")
def measured(lifecycle_output: Path) -> Run:
    """A run that measured four paths between two hosts."""
    assert_completed(int((lifecycle_output / "run.code").read_text()), (lifecycle_output / "run.txt").read_text())
    return read_run(lifecycle_output / "run.howfar")


def test_four_paths_are_measured_between_two_hosts(measured: Run) -> None:
    assert {trial.arm.removesuffix(" (again)") for trial in good_trials(measured)} == set(PATHS)
    assert measured.stop is StopReason.BLOCKS


@pytest.mark.parametrize(
    ("arm", "client", "expected_client_host"),
    [
        ("socket", "b", "localhost"),
        ("tcp", "b", "127.0.0.1"),
        ("remote", "a", "10.78.0.10"),
        ("forwarded-socket", "a", "localhost"),
    ],
)
def test_a_receipt_proves_the_path_from_both_hosts(
    measured: Run, arm: str, client: str, expected_client_host: str
) -> None:
    for trial in (trial for trial in good_trials(measured) if trial.arm == arm):
        hosts, view = require(trial.receipt.hosts), require(require(trial.receipt.server).session_view)
        assert hosts.client == client and hosts.server == "b"
        assert require(view.host).partition(":")[0] == expected_client_host
        assert (trial.receipt.link is not None) == (client == "a")
        cpu = {use.role: use.cpu_ns for use in require(trial.measured).cpu}
        assert cpu["client"] > 0 and cpu["server"] > 0 and (cpu.get("forwarder", 0) > 0) == (arm == "forwarded-socket")
        assert set(hosts.start) == {client, "b"}


def counted(trial: Trial) -> StatementCounts:
    """How many statements the clients and the server counted."""
    found = require(trial.receipt.hosts).counted
    assert isinstance(found, StatementCounts)
    return found


def test_the_load_and_the_server_count_the_same(measured: Run) -> None:
    for trial in good_trials(measured):
        load = require(trial.measured)
        executed = require(trial.receipt.server).counters["Com_stmt_execute"]
        assert load.transactions + load.warmup_transactions <= executed
        counts = counted(trial)
        assert (counts.of, counts.rule) == ("statements", "equal")
        assert abs(counts.clients - counts.server) <= 0.005 * counts.server + 1


@pytest.mark.thorough
def test_hosts_without_fixed_roles_swap_them_from_block_to_block(cache: Path, tmp_path: Path) -> None:
    """The command joins the hosts and releases them."""
    (tmp_path / "plan.toml").write_text(tiny_plan(("tcp", "remote"), link=False))
    done = run_on_hosts(
        cache,
        tmp_path,
        "howfar run plan.toml --on hosts.toml --out run.howfar; ps -eo stat,args >ps.txt; "
        "howfar report --md run.howfar >report.md",
    )
    assert_completed(done.returncode, done.stderr)
    assert not [line for line in alive_lines((tmp_path / "ps.txt").read_text()) if "raylet" in line]
    run = read_run(tmp_path / "run.howfar")
    for trial in good_trials(run):
        server, client = ("b", "a") if trial.block % 2 == 0 else ("a", "b")
        parties = require(trial.receipt.hosts)
        assert (parties.server, parties.client) == (server, client if trial.arm == "remote" else server)
    assert "on hosts b and a, which swapped roles" in (tmp_path / "report.md").read_text()


@pytest.mark.thorough
@pytest.mark.parametrize("clients", [("a", "b"), ("a", "b", "c", "d")], ids=["two", "four"])
def test_clients_share_a_load_and_the_server_counts_their_sum(
    cache: Path, tmp_path: Path, clients: tuple[str, ...]
) -> None:
    (tmp_path / "plan.toml").write_text(tiny_plan(("remote",), link=False, factors={"threads": len(clients)}))
    chosen = f"--place server=e --clients {','.join(clients)}"
    command = (
        f"howfar run plan.toml --on hosts.toml {chosen} --out run.howfar; "
        f"howfar bench hosts hosts.toml {chosen} --blocks {BLOCKS} --seconds 1 --threads 2 --json >scale.json"
    )
    done = run_on_hosts(cache, tmp_path, command, (*clients, "e"))
    assert_completed(done.returncode, done.stderr)
    for trial in good_trials(read_run(tmp_path / "run.howfar")):
        hosts = require(trial.receipt.hosts)
        assert hosts.others == list(clients[1:])
        assert set(hosts.start) == {*clients, "e"}
        assert trial.measured is not None
        transactions = trial.measured.transactions + trial.measured.warmup_transactions
        executed = require(trial.receipt.server).counters["Com_stmt_execute"]
        # That the counts are equal, including answers outside the window, is already a rule of the receipt; this only checks that the
        # server did not count much else.
        assert transactions <= executed <= 1.1 * transactions + 50 * len(clients)
    scale = json.loads((tmp_path / "scale.json").read_text())
    split_load = scale["division"]
    assert (split_load["clients"], split_load["connections"]) == (len(clients), 2 * len(clients))
    assert split_load["p50_ns"] > split_load["service_ns"]
    _check_overhead(scale)


BLOCKS = 4
"""The number of blocks that an interval needs."""
RAY_CPU, AGENT_CPU = 0.01, 0.05
"""Maximum CPU use of Ray, and of howfar's agent, on a load host during a measurement, in CPUs."""
MAX_P50_DIFFERENCE, MAX_P99_DIFFERENCE = 0.03, 0.10
"""Limits of the relative difference between the merged latencies of several clients and those of one client, in the same blocks. The
server takes 5 ms, and no resource is full. The p99 contains the machine's own disturbances, so only its interval is compared."""


def _check_overhead(scale: dict[str, Any]) -> None:
    for row in scale["rows"]:
        assert row["ray_cpu"] is not None and row["ray_cpu"] <= RAY_CPU and row["agent_cpu"] <= AGENT_CPU, scale
    p50, p99 = scale["division"]["p50"], scale["division"]["p99"]
    assert 1 / (1 + MAX_P50_DIFFERENCE) <= p50["value"] <= 1 + MAX_P50_DIFFERENCE, scale
    assert p99["low"] <= 1 + MAX_P99_DIFFERENCE and p99["high"] >= 1 / (1 + MAX_P99_DIFFERENCE), scale


@pytest.mark.thorough
@pytest.mark.parametrize("rtt_ns", [200_000, 85_000_000], ids=["0.2 ms", "85 ms"])
def test_hosts_start_within_a_millisecond_and_within_their_clocks_bounds(
    cache: Path, tmp_path: Path, rtt_ns: int
) -> None:
    # With a warm-up of 1 ms, a trial in which a host starts later than that, as on a busy machine, is void and not examined here.
    plan = tiny_plan(("tcp", "remote"), link=False, factors={"threads": 4}, warmup="1ms")
    (tmp_path / "plan.toml").write_text(plan)
    command = "howfar run plan.toml --on hosts.toml --place client=a,server=b --out run.howfar"
    done = run_on_hosts(cache, tmp_path, command, link={"rtt_ns": rtt_ns, "rate_bps": 10**9})
    assert_completed(done.returncode, done.stderr)
    skews = []
    for trial in good_trials(read_run(tmp_path / "run.howfar")):
        reports = [report.as_json() for report in require(trial.receipt.hosts).start.values()]
        for report in reports:
            assert abs(report["clock_offset_ns"]) <= report["clock_bound_ns"], "all hosts share one kernel"
        if trial.arm == "remote":
            start_times_ns = [report["clock_offset_ns"] + report["late_ns"] for report in reports]
            bound_ns = sum(report["clock_bound_ns"] for report in reports)
            skews.append(max(start_times_ns) - min(start_times_ns))
            assert skews[-1] <= bound_ns + max(report["late_ns"] for report in reports)
    assert len(skews) > 1 and max(skews) <= 1_000_000, skews


_LOSSES = """howfar hosts up
howfar run plan.toml --on hosts.toml --out run.howfar >out.txt 2>err.txt & run=$!
await() { for _ in $(seq 3000); do grep -q "$1" err.txt && return; sleep 0.1; done
  echo "timed out waiting for $1"; cat err.txt; exit 9; }
await "block 2, 1/5"
kill -9 $(pgrep -f "[r]aylet/raylet.*10.78.0.11" | head -1)
await "block 3, 1/5"
kill -9 $run
wait $run || true
howfar resume run.howfar >again.txt 2>&1
kill -9 $(pgrep -f "[h]owfar.fleet.guard" | head -1)
sleep 10
ps -eo stat,args >ps.txt
"""


@pytest.mark.thorough
def test_a_lost_host_is_joined_again_a_killed_run_is_resumed_and_no_process_outlives_the_guard(
    cache: Path, tmp_path: Path
) -> None:
    (tmp_path / "plan.toml").write_text(tiny_plan(link=False, blocks=3))
    done = run_on_hosts(cache, tmp_path, _LOSSES)
    said = (tmp_path / "again.txt").read_text() if (tmp_path / "again.txt").exists() else ""
    assert_completed(done.returncode, done.stderr + said)
    run = read_run(tmp_path / "run.howfar")
    lost = [trial.void_reason for trial in run.trials if trial.void_reason and "host b was lost" in trial.void_reason]
    assert len(lost) <= 1, "a host that died between two trials is joined again before the next one and voids none"
    assert run.stop is StopReason.BLOCKS
    shown = (tmp_path / "ps.txt").read_text()
    assert not [line for line in alive_lines(shown) if "raylet" in line or "howfar.fleet" in line or "mariadbd" in line]


ABSENT = """
absent() { if "$@"; then echo "a secret is where it must not be: $1 ... ${*: -1}" >&2; exit 9; fi; }
# nowhere SECRET FILE: SECRET is in no file of the hosts' /dev/shm (which has Ray's logs) except FILE, in no object store and in no
# environment
nowhere() {
  for pid in $(pgrep -f "[r]aylet/raylet"); do
    absent nsenter --target $pid --mount grep -rlsF --exclude=$2 -e "$1" /dev/shm
    for file in /proc/$pid/fd/*; do
      case $(readlink $file) in *plasma*) absent grep -lsF -e "$1" $file; seen=1;; esac
    done
  done
  for pid in $(pgrep -f "[r]aylet/raylet|[g]cs_server|^ray::|[h]owfar[.]fleet[.]"); do
    absent grep -lsF -e "$1" /proc/$pid/environ
  done
  [ "$seen" ]
}
"""
_TOKEN = f"""{ABSENT}
howfar hosts up
raylet_pid=$(pgrep -f "[r]aylet/raylet.*10.78.0.11" | head -1)
token=$(nsenter --target $raylet_pid --mount cat /dev/shm/token)
test ${{#token}} -ge 32
howfar run plan.toml --on hosts.toml --out run.howfar >out.txt 2>&1 & run=$!
while kill -0 $run 2>/dev/null; do ps -ewwo args >>ps.txt; sleep 0.2; done
wait $run
nowhere "$token" token
absent grep -lF "$token" ps.txt
absent grep -rlF "$token" . "$XDG_CACHE_HOME" "$HOME/.cache/howfar/hosts" /dev/shm
count_nodes() {{ RAY_AUTH_MODE=token RAY_AUTH_TOKEN=$1 python -c '
from ray._raylet import GcsClient
print(len(GcsClient(address="10.78.0.1:6379").get_all_node_info(timeout=10)))'; }}
[ $(count_nodes "$token") = 3 ]
if count_nodes $(printf "%064d" 0) >wrong.txt 2>&1; then exit 8; fi
grep -qi unauthenticated wrong.txt
howfar hosts down
"""


@pytest.mark.thorough
def test_the_token_is_not_readable_and_a_wrong_one_is_refused(cache: Path, tmp_path: Path) -> None:
    (tmp_path / "plan.toml").write_text(tiny_plan(link=False, blocks=2))
    done = run_on_hosts(cache, tmp_path, _TOKEN)
    assert done.returncode == 0, done.stderr[-2000:]


_TWO_AT_ONCE = """
cp hosts.toml kept.toml
howfar hosts up >up.txt 2>&1 & first=$!
until find "$XDG_CACHE_HOME" -path "*/hosts-up/*" -name settings.json -newer kept.toml | grep -q .; do kill -0 $first; sleep 0.02; done
! howfar hosts up 2>second-up.txt
wait $first
howfar run plan.toml --on hosts.toml --out run.howfar >out.txt 2>err.txt & run=$!
until grep -q "^block 1" err.txt; do kill -0 $run; sleep 0.1; done
! howfar hosts up 2>third-up.txt
! howfar hosts show 2>show.txt
! howfar run plan.toml --on hosts.toml --out other.howfar 2>second-run.txt
echo 'zone = "elsewhere"' >>hosts.toml
! howfar hosts show 2>changed.txt
cp kept.toml hosts.toml
wait $run
howfar hosts down
"""


@pytest.mark.thorough
def test_a_second_command_does_not_touch_the_hosts_of_the_first(cache: Path, tmp_path: Path) -> None:
    (tmp_path / "plan.toml").write_text(_PLAN)
    done = run_on_hosts(cache, tmp_path, _TWO_AT_ONCE)
    said = {file.name: file.read_text() for file in tmp_path.glob("*.txt")}
    assert_completed(done.returncode, done.stderr + said.get("err.txt", ""))
    assert "another command is joining the hosts" in said["second-up.txt"]
    assert "are up already" in said["third-up.txt"]
    assert "in use by another command" in said["show.txt"] and "in use by another command" in said["second-run.txt"]
    assert "has changed since its hosts were joined" in said["changed.txt"]
    assert read_run(tmp_path / "run.howfar").stop is StopReason.BLOCKS and not (tmp_path / "other.howfar").exists()
