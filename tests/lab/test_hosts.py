"""The user's own hosts: namespaces with an sshd each, joined, shown, and released without a trace."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from howfar.contract.receipt import BothCounts
from howfar.errors import HowfarError
from howfar.lab.php.php_fpm import find_php_fpm
from howfar.lab.servers.kinds import find_server
from howfar.store.records import Run, StopReason, Trial, TrialStatus
from howfar.store.run_file import read_run
from tests.lab.howfar_runs import PATHS, TINY, came_through, known
from tests.lab.sandboxes import TIMEOUT_S

_LACKING = [
    why
    for why, lacks in (
        ("Ray is not installed (./setup --tests brings it)", importlib.util.find_spec("ray") is None),
        ("sshd is not installed (./setup --tests brings it)", not Path("/usr/sbin/sshd").exists()),
        ("an sshd that lets somebody in needs root", os.geteuid() != 0),
    )
    if lacks
]
needs_hosts = pytest.mark.skipif(bool(_LACKING), reason="; ".join(_LACKING) or "all is there")
pytestmark = [
    pytest.mark.alone,
    pytest.mark.lab,
    pytest.mark.usefixtures("namespaces", "mariadb"),
    needs_hosts,
]


def among_hosts(
    cache: Path, directory: Path, script: str, hosts: tuple[str, ...] = ("a", "b"), **more: Any
) -> subprocess.CompletedProcess[str]:
    """Run a shell script in `directory`, with the hosts file `hosts.toml`."""
    request = json.dumps({"directory": str(directory), "hosts": hosts, **more})
    bin_directory = Path(sys.executable).parent
    return subprocess.run(
        [sys.executable, "-m", "tests.lab.hosts_here", request, "bash", "-ec", script],
        capture_output=True,
        text=True,
        timeout=4 * TIMEOUT_S,
        env={
            **os.environ,
            "XDG_CACHE_HOME": str(cache),
            "PYTHONPATH": str(Path(__file__).parents[2]),
            "PATH": f"{bin_directory}:{os.environ['PATH']}:/usr/sbin",
        },
    )


def need(*programs: str) -> None:
    """Skip if one of the programs is not installed."""
    try:
        for program in programs:
            find_php_fpm() if program == "php" else find_server(program)
    except HowfarError as error:
        pytest.skip(f"{error.message} {error.advice}")


_LIFE = """
howfar hosts up
howfar hosts show --json >show.json
howfar bench hosts --blocks 1 --seconds 0.5 --json >scale.json & bench=$!
while kill -0 $bench 2>/dev/null; do
  for pid in $(pgrep -f "[r]aylet/raylet"); do nsenter --target $pid --net ss -ltnH >>listening.txt; done
  for pid in $(pgrep -x howfar-engine); do echo "engine $(grep -c listen.so /proc/$pid/maps)" >>loaded.txt; done
  sleep 0.2
done
wait $bench
ps -eo args >ps.txt
ls /dev/shm >shm.txt
howfar hosts down
sleep 0.5
ps -eo stat,args >after.txt
! howfar hosts down
"""


@pytest.fixture(scope="module")
def lived(cache: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The outputs of two hosts that were joined, shown, and released."""
    directory = tmp_path_factory.mktemp("h")
    done = among_hosts(cache, directory, _LIFE)
    assert done.returncode == 0, done.stderr
    assert "are not up" in done.stderr.splitlines()[-2]
    return directory


def test_hosts_are_shown_with_clocks_that_agree_and_the_distance_between_them(lived: Path) -> None:
    shown = json.loads((lived / "show.json").read_text())
    assert set(shown["hosts"]) == {"a", "b"}
    for host in shown["hosts"].values():
        assert abs(host["clock"]["offset_ns"]) <= host["clock"]["bound_ns"], "both are one kernel"
    (apart,) = shown["distances"]
    assert (apart["from"], apart["to"]) == ("a", "b") and 0 < apart["rtt_ns"]["min"] <= apart["rtt_ns"]["p50"]
    assert apart["rtt_awake_ns"]["p50"] > 0 and min(apart["goodput_bps"].values()) > 0 and apart["path_mtu"] == 1500


def test_the_load_is_measured_from_more_clients_and_so_is_its_control(lived: Path) -> None:
    (alone,) = json.loads((lived / "scale.json").read_text())["rows"]
    assert alone["clients"] == 1 and alone["queries_per_s"]["value"] > 0
    assert alone["control_ns"] > 0 and alone["ray_cpu"] >= 0 and alone["agent_cpu"] > 0


def test_what_runs_shows_no_token_and_leaves_no_file_where_others_see_it(lived: Path) -> None:
    running = (lived / "ps.txt").read_text()
    assert running.count("raylet/raylet") == 3, "two hosts and the head"
    assert "token" not in running.lower().replace("auth_token_path", "")
    assert "ray" not in (lived / "shm.txt").read_text()


def test_nothing_listens_on_more_than_the_addresses_of_the_hosts(lived: Path) -> None:
    at = {line.split()[3] for line in (lived / "listening.txt").read_text().splitlines()}
    assert {"[::ffff:10.78.0.1]:6379", "[::ffff:10.78.0.11]:6380"} <= at, "Ray's head and a host"
    assert not [one for one in at if not one.removeprefix("[::ffff:").startswith(("10.78.0.", "127."))]
    engines = [line for line in (lived / "loaded.txt").read_text().splitlines() if line != "engine "]
    assert engines and set(engines) == {"engine 0"}, "what is measured runs without the library"


def test_nothing_runs_any_more_when_they_are_down(lived: Path) -> None:
    shown = (lived / "after.txt").read_text().splitlines()
    # Without the processes that have this script as an argument.
    alive = [line for line in shown if not line.startswith("Z") and "howfar hosts up" not in line]
    assert not [line for line in alive if "ray" in line or "howfar.fleet" in line]


_PLAN = TINY.replace(
    'rtt = "20ms" # the longer, the more lateness is forgiven: tests may meet a busy machine\n', ""
).replace('rate = "100mbit"\n', "")


@pytest.fixture(scope="module")
def measured(cache: Path, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Four paths between two hosts, by a command that joins and releases them."""
    directory = tmp_path_factory.mktemp("m")
    (directory / "plan.toml").write_text(_PLAN)
    done = among_hosts(
        cache,
        directory,
        "howfar run plan.toml --on hosts.toml --place client=a,server=b --out run.howfar; ps -eo stat,args >ps.txt",
    )
    came_through(done.returncode, done.stderr)
    assert not [line for line in (directory / "ps.txt").read_text().splitlines() if "raylet" in line and line[0] != "Z"]
    return read_run(directory / "run.howfar")


def test_four_paths_are_measured_between_two_hosts(measured: Run) -> None:
    good = [trial for trial in measured.trials if trial.status is TrialStatus.OK]
    assert {trial.arm.removesuffix(" (again)") for trial in good} == {"socket", "tcp", "remote", "forwarded-socket"}
    assert measured.stop is StopReason.BLOCKS


@pytest.mark.parametrize(
    ("arm", "client", "seen_from"),
    [
        ("socket", "b", "localhost"),
        ("tcp", "b", "127.0.0.1"),
        ("remote", "a", "10.78.0.10"),
        ("forwarded-socket", "a", "localhost"),
    ],
)
def test_a_receipt_proves_the_path_from_both_hosts(measured: Run, arm: str, client: str, seen_from: str) -> None:
    for trial in measured.trials:
        if trial.arm != arm or trial.status is not TrialStatus.OK:
            continue
        hosts, view = known(trial.receipt.hosts), known(known(trial.receipt.server).session_view)
        assert hosts.client == client and hosts.server == "b"
        assert known(view.host).partition(":")[0] == seen_from
        assert (trial.receipt.link is not None) == (client == "a")
        cpu = {use.role: use.cpu_ns for use in known(trial.measured).cpu}
        assert cpu["client"] > 0 and cpu["server"] > 0 and (cpu.get("forwarder", 0) > 0) == (arm == "forwarded-socket")
        assert set(hosts.start) == {client, "b"}


def counted(trial: Trial) -> BothCounts:
    """How many statements the clients and the server counted."""
    found = known(trial.receipt.hosts).counted
    assert isinstance(found, BothCounts)
    return found


def test_the_load_and_the_server_count_the_same(measured: Run) -> None:
    for trial in measured.trials:
        if trial.status is TrialStatus.OK:
            assert trial.measured is not None
            all_transactions = trial.measured.transactions + trial.measured.warmup_transactions
            assert all_transactions <= known(trial.receipt.server).counters["Com_stmt_execute"]
            both = counted(trial)
            assert (both.of, both.rule) == ("statements", "equal")
            assert abs(both.clients - both.server) <= 0.005 * both.server + 1


@pytest.mark.thorough
def test_hosts_that_may_be_both_swap_roles_from_block_to_block(cache: Path, tmp_path: Path) -> None:
    (tmp_path / "plan.toml").write_text(_PLAN.replace(PATHS, '["tcp", "remote"]').replace('"socket"', '"tcp"'))
    done = among_hosts(
        cache,
        tmp_path,
        "howfar run plan.toml --on hosts.toml --out run.howfar; howfar report --md run.howfar >report.md",
    )
    came_through(done.returncode, done.stderr)
    run = read_run(tmp_path / "run.howfar")
    for trial in (each for each in run.trials if each.status is TrialStatus.OK):
        server, client = ("b", "a") if trial.block % 2 == 0 else ("a", "b")
        parties = known(trial.receipt.hosts)
        assert (parties.server, parties.client) == (server, client if trial.arm == "remote" else server)
    assert "on hosts b and a, which swapped roles" in (tmp_path / "report.md").read_text()


@pytest.mark.thorough
@pytest.mark.parametrize("clients", [("a", "b"), ("a", "b", "c", "d")], ids=["two", "four"])
def test_clients_share_a_load_and_the_server_counts_their_sum(
    cache: Path, tmp_path: Path, clients: tuple[str, ...]
) -> None:
    plan = _PLAN.replace(f"path = {PATHS}", 'path = "remote"').replace('path = "socket"', 'path = "remote"')
    (tmp_path / "plan.toml").write_text(plan.replace("threads = 1", f"threads = {len(clients)}"))
    chosen = f"--place server=e --clients {','.join(clients)}"
    command = (
        f"howfar run plan.toml --on hosts.toml {chosen} --out run.howfar; "
        f"howfar bench hosts hosts.toml {chosen} --blocks {BLOCKS} --seconds 1 --threads 2 --json >scale.json"
    )
    done = among_hosts(cache, tmp_path, command, (*clients, "e"))
    came_through(done.returncode, done.stderr)
    for trial in (each for each in read_run(tmp_path / "run.howfar").trials if each.status is TrialStatus.OK):
        hosts = known(trial.receipt.hosts)
        assert hosts.others == list(clients[1:])
        assert set(hosts.start) == {*clients, "e"}
        assert trial.measured is not None
        both = trial.measured.transactions + trial.measured.warmup_transactions
        answered = known(trial.receipt.server).counters["Com_stmt_execute"]
        # The receipt's own rule requires that all answers, those outside the window included, are equal in number.
        assert both <= answered <= 1.1 * both + 50 * len(clients)
    scale = json.loads((tmp_path / "scale.json").read_text())
    division = scale["division"]
    assert (division["clients"], division["connections"]) == (len(clients), 2 * len(clients))
    assert division["p50_ns"] > division["service_ns"]
    _keeps_to_its_bars(scale)


BLOCKS = 4
"""The number of blocks that an interval needs."""
RAY_CPU, AGENT_CPU = 0.01, 0.05
"""Maximum share of one CPU of a load host that Ray, and howfar's agent, may use during a measurement. It is CPU time, which a busy
machine hardly changes."""
P50_OFF, P99_OFF = 0.03, 0.10
"""Limits of the difference between the merged times of several clients and one client's in the same blocks. The server takes 5 ms, and
no resource is full; the p99 contains the machine's own disturbances, so only its interval is compared with the limit."""


def _keeps_to_its_bars(scale: dict[str, Any]) -> None:
    for row in scale["rows"]:
        assert row["ray_cpu"] is not None and row["ray_cpu"] <= RAY_CPU and row["agent_cpu"] <= AGENT_CPU, scale
    p50, p99 = scale["division"]["p50"], scale["division"]["p99"]
    assert 1 / (1 + P50_OFF) <= p50["value"] <= 1 + P50_OFF, scale
    assert p99["low"] <= 1 + P99_OFF and p99["high"] >= 1 / (1 + P99_OFF), scale


@pytest.mark.thorough
@pytest.mark.parametrize("rtt_ns", [200_000, 85_000_000], ids=["0.2 ms", "85 ms"])
def test_hosts_start_within_a_millisecond_and_the_bounds_that_their_clocks_state(
    cache: Path, tmp_path: Path, rtt_ns: int
) -> None:
    plan = _PLAN.replace(PATHS, '["tcp", "remote"]').replace('path = "socket"', 'path = "tcp"')
    # A host that begins later than the warm-up lasts, on a busy machine, voids its trial.
    plan = plan.replace("threads = 1", "threads = 4").replace('warmup = "50ms"', 'warmup = "1ms"')
    (tmp_path / "plan.toml").write_text(plan)
    command = "howfar run plan.toml --on hosts.toml --place client=a,server=b --out run.howfar"
    done = among_hosts(cache, tmp_path, command, link={"rtt_ns": rtt_ns, "rate_bps": 10**9})
    came_through(done.returncode, done.stderr)
    skews = []
    for trial in (each for each in read_run(tmp_path / "run.howfar").trials if each.status is TrialStatus.OK):
        begun = [report.as_json() for report in known(trial.receipt.hosts).start.values()]
        for clock in begun:
            assert abs(clock["clock_offset_ns"]) <= clock["clock_bound_ns"], "all are of one kernel"
        if trial.arm == "remote":
            moments = [clock["clock_offset_ns"] + clock["late_ns"] for clock in begun]
            bound_ns = sum(clock["clock_bound_ns"] for clock in begun)
            skews.append(max(moments) - min(moments))
            assert skews[-1] <= bound_ns + max(clock["late_ns"] for clock in begun)
    assert len(skews) > 1 and max(skews) <= 1_000_000, skews


_LOSSES = """howfar hosts up
howfar run plan.toml --on hosts.toml --out run.howfar >out.txt 2>err.txt & run=$!
await() { for _ in $(seq 3000); do grep -q "$1" err.txt && return; sleep 0.1; done; echo "waited for $1"; cat err.txt; exit 9; }
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
def test_a_lost_host_comes_back_a_lost_driver_is_resumed_and_nothing_outlives_the_guard(
    cache: Path, tmp_path: Path
) -> None:
    (tmp_path / "plan.toml").write_text(_PLAN)
    done = among_hosts(cache, tmp_path, _LOSSES)
    said = (tmp_path / "again.txt").read_text() if (tmp_path / "again.txt").exists() else ""
    came_through(done.returncode, done.stderr + said)
    run = read_run(tmp_path / "run.howfar")
    lost = [trial.void_reason for trial in run.trials if trial.void_reason and "host b was lost" in trial.void_reason]
    assert len(lost) <= 1, "a host that died between two trials is joined again before the next one, and voids none"
    assert run.stop is StopReason.BLOCKS
    shown = (tmp_path / "ps.txt").read_text().splitlines()
    # Without the processes that have this script as an argument.
    alive = [line for line in shown if not line.startswith("Z") and "howfar hosts up" not in line]
    assert not [line for line in alive if "raylet" in line or "howfar.fleet" in line or "mariadbd" in line]


ABSENT = """
absent() { if "$@"; then echo "a secret is where it must not be: $1 ... ${*: -1}" >&2; exit 9; fi; }
nowhere() { # SECRET FILE_OF_IT: in no file that hosts have in memory, Ray's session with its logs among them, and no object store
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
inner=$(pgrep -f "[r]aylet/raylet.*10.78.0.11" | head -1)
token=$(nsenter --target $inner --mount cat /dev/shm/token)
test ${{#token}} -ge 32
howfar run plan.toml --on hosts.toml --out run.howfar >out.txt 2>&1 & run=$!
while kill -0 $run 2>/dev/null; do ps -ewwo args >>ps.txt; sleep 0.2; done
wait $run
nowhere "$token" token
absent grep -lF "$token" ps.txt
absent grep -rlF "$token" . "$XDG_CACHE_HOME" "$HOME/.cache/howfar/hosts" /dev/shm
asks() {{ RAY_AUTH_MODE=token RAY_AUTH_TOKEN=$1 python -c '
from ray._raylet import GcsClient
print(len(GcsClient(address="10.78.0.1:6379").get_all_node_info(timeout=10)))'; }}
[ $(asks "$token") = 3 ]
if asks $(printf "%064d" 0) >wrong.txt 2>&1; then exit 8; fi
grep -qi unauthenticated wrong.txt
howfar hosts down
"""


@pytest.mark.thorough
def test_the_token_is_nowhere_to_be_read_and_a_wrong_one_is_refused(cache: Path, tmp_path: Path) -> None:
    (tmp_path / "plan.toml").write_text(_PLAN.replace("_blocks = 4", "_blocks = 2"))
    done = among_hosts(cache, tmp_path, _TOKEN)
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
def test_a_second_command_leaves_the_first_ones_hosts_alone(cache: Path, tmp_path: Path) -> None:
    (tmp_path / "plan.toml").write_text(_PLAN)
    done = among_hosts(cache, tmp_path, _TWO_AT_ONCE)
    said = {file.name: file.read_text() for file in tmp_path.glob("*.txt")}
    came_through(done.returncode, done.stderr + said.get("err.txt", ""))
    assert "another command is joining the hosts" in said["second-up.txt"]
    assert "are up already" in said["third-up.txt"]
    assert "in use by another command" in said["show.txt"] and "in use by another command" in said["second-run.txt"]
    assert "has changed since its hosts were joined" in said["changed.txt"]
    assert read_run(tmp_path / "run.howfar").stop is StopReason.BLOCKS and not (tmp_path / "other.howfar").exists()
