"""Faults injected into runs between hosts: each is named, its block is void, `howfar resume` completes, and nothing is left."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from howfar.store.records import StopReason, TrialStatus
from howfar.store.run_file import read_run
from tests.lab.howfar_runs import TINY, came_through, known
from tests.lab.test_hosts import among_hosts, needs_hosts

pytestmark = [
    pytest.mark.alone,
    pytest.mark.lab,
    pytest.mark.thorough,
    pytest.mark.usefixtures("namespaces", "mariadb"),
    needs_hosts,
]
PLAN = (
    TINY.replace('path = ["socket", "tcp", "remote", "forwarded-socket"]', 'path = "remote"')
    .replace('path = "socket"', 'path = "remote"')
    .replace('rtt = "20ms" # the longer, the more lateness is forgiven: tests may meet a busy machine\n', "")
    .replace('rate = "100mbit"\n', "")
    .replace('warmup = "50ms"\nmeasure = "200ms"', 'warmup = "300ms"\nmeasure = "3s"')
)


def injured(cache: Path, directory: Path, *what: str, blocks: int) -> dict[str, Any]:
    """The report of `hosts_faults`, checked for completion and for leftovers."""
    (directory / "plan.toml").write_text(
        PLAN.replace("min_blocks = 4", f"min_blocks = {blocks}").replace("max_blocks = 4", f"max_blocks = {blocks}")
    )
    done = among_hosts(cache, directory, f"python -m tests.lab.hosts_faults out.json {' '.join(what)}")
    output = directory / "out.json"
    assert done.returncode == 0, (done.stderr[-1500:], output.read_text() if output.exists() else "")
    found: dict[str, Any] = json.loads(output.read_text())
    assert found["stop"] == "blocks" and found["left"] == [] and found["cleared_s"] is not None
    left = [one for one in found["injuries"] if one["gone_s"] is None or one.get("cleared_s", 0) is None]
    assert not left, "ten seconds after each nothing of the injured trial is on any host"
    return found


@pytest.mark.parametrize(
    ("injury", "reason"),
    [
        ("engine", "host a: howfar-engine load died"),
        ("actor", "host b was lost"),
        ("raylet", "host b was lost"),
        ("link-5s", "host b received nothing"),
        ("disk-full", "host b"),
    ],
)
def test_an_injury_is_named_and_its_trial_void(cache: Path, tmp_path: Path, injury: str, reason: str) -> None:
    (one,) = injured(cache, tmp_path, injury, blocks=2)["injuries"]
    # After six such trials in a row a run ends, as it must, and was resumed; 7: an arm had no valid trial in any block.
    assert one["ended"] in ((None, 0, 4, 7) if injury == "disk-full" else (None, 0)), "the run goes on by itself"
    assert one["void"] and any(reason in each for each in one["void"]), one


def test_a_host_that_was_away_for_a_minute_is_joined_again(cache: Path, tmp_path: Path) -> None:
    (one,) = injured(cache, tmp_path, "link-60s", blocks=2)["injuries"]
    assert any("host b" in each for each in one["void"]), one


def test_without_its_head_or_its_driver_a_run_ends_and_resume_completes_it(cache: Path, tmp_path: Path) -> None:
    found = injured(cache, tmp_path, "head", "driver", blocks=3)
    assert all(one["cleared_s"] is not None for one in found["injuries"]), found
    assert len(found["codes"]) == 2 and 0 not in found["codes"]


def test_clocks_that_differ_by_5_s_or_are_stepped_have_no_effect(cache: Path, tmp_path: Path) -> None:
    found = injured(cache, tmp_path, "clock-step", blocks=2)
    assert found["injuries"][0]["void"] == []
    for clock in found["clocks"]:
        assert abs(clock["clock_offset_ns"] - 5_000_000_000) <= clock["clock_bound_ns"] + 1_000_000


@pytest.mark.parametrize("seed", range(1, 6))
def test_after_kills_at_random_the_run_completes(cache: Path, tmp_path: Path, seed: int) -> None:
    """Six kills per seed, 30 in all."""
    found = injured(cache, tmp_path, "random", "6", str(seed), blocks=6)
    assert all(one["void"] or one["ended"] for one in found["injuries"]), found


_OTHER_VERSION = r"""
mkdir other
cat >other/sitecustomize.py <<'END'
import importlib.metadata as metadata
found = metadata.version
metadata.version = lambda name: "0.1" if name == "ray" else found(name)
END
printf '#!/bin/sh\nexport PYTHONPATH="%s/other:$PYTHONPATH"\nexec %s "$@"\n' "$PWD" "$(command -v python)" >other/python
chmod +x other/python
sed -i "/hosts.b/,\$ s|^python = .*|python = \"$PWD/other/python\"|" hosts.toml
! howfar hosts up 2>err.txt
"""


def test_a_host_with_another_version_is_refused(cache: Path, tmp_path: Path) -> None:
    done = among_hosts(cache, tmp_path, _OTHER_VERSION)
    said = (tmp_path / "err.txt").read_text()
    assert done.returncode == 0, done.stderr
    assert "host b has ray 0.1, this machine has" in said and "All hosts must have the same" in said


_HOP_LOST = """
howfar hosts up
howfar run plan.toml --on hosts.toml --place client=a,hop=c,server=b --out run.howfar >out.txt 2>err.txt & run=$!
await() { for _ in $(seq 3000); do eval "$1" && return; sleep 0.1; done; echo "waited for $1"; cat err.txt; exit 9; }
loaded() { await 'hop=$(pgrep -f "[h]aproxy -db") && pgrep -f "[h]owfar-engine usage"'; sleep 1; }
loaded
kill -9 $(pgrep -f "[r]aylet/raylet.*10.78.0.12")
await "grep -q 'host c was lost' err.txt"
loaded
kill -9 $hop
await "grep -q 'a forwarder died' err.txt"
kill -9 $run
wait $run || true
howfar resume run.howfar >again.txt 2>&1
howfar hosts down
"""


def test_a_lost_hop_voids_its_trial_by_name_and_a_run_that_goes_on_has_it_again(cache: Path, tmp_path: Path) -> None:
    plan = PLAN.replace('path = "remote"', 'path = ["remote", "haproxy"]', 1)
    (tmp_path / "plan.toml").write_text(plan)
    done = among_hosts(cache, tmp_path, _HOP_LOST, ("a", "b", "c"))
    said = (tmp_path / "again.txt").read_text() if (tmp_path / "again.txt").exists() else done.stdout
    came_through(done.returncode, done.stderr + said)
    run = read_run(tmp_path / "run.howfar")
    void = [trial.void_reason for trial in run.trials if trial.void_reason]
    assert any("host c was lost" in reason for reason in void) and any("forwarder died" in reason for reason in void)
    moved = [trial for trial in run.trials if trial.arm == "haproxy" and trial.status is TrialStatus.OK]
    assert moved and {known(trial.receipt.hosts).hop for trial in moved} == {"c"}
    assert run.stop is StopReason.BLOCKS


_KILLED = """
howfar run plan.toml --on hosts.toml --out run.howfar >out.txt 2>&1 & run=$!
until grep -q "block 1" out.txt; do kill -0 $run; sleep 0.1; done
pgrep -fc "[r]aylet/raylet" >before.txt
kill -9 $run
for _ in $(seq 100); do pgrep -f "[r]aylet/raylet|[h]owfar[.]fleet|[m]ariadbd" >left.txt || exit 0; sleep 0.1; done
exit 9
"""


def test_a_killed_run_that_joined_the_hosts_itself_leaves_nothing(cache: Path, tmp_path: Path) -> None:
    (tmp_path / "plan.toml").write_text(PLAN)
    done = among_hosts(cache, tmp_path, _KILLED)
    assert done.returncode == 0, (done.stderr[-1500:], (tmp_path / "out.txt").read_text()[-500:])
    assert (tmp_path / "before.txt").read_text().split() == ["3"], "two hosts and the head"


_GONE = """
set -m # a command in the background has a group of its own, as in a terminal, and heeds Ctrl-C
gone() {
  for _ in $(seq 100); do pgrep -f "[r]aylet/raylet|[h]owfar[.]fleet|[m]ariadbd" >left.txt || return 0; sleep 0.1; done
  cat left.txt >&2
  exit 9
}
"""
_INTERRUPTED = f"""{_GONE}
howfar run plan.toml --on hosts.toml --out run.howfar >out.txt 2>err.txt & run=$!
until grep -q "^block 2" err.txt; do kill -0 $run; sleep 0.1; done
SEND
code=0
wait $run || code=$?
echo $code >code.txt
gone
howfar resume run.howfar >again.txt 2>&1
"""


@pytest.mark.parametrize(
    ("send", "code"), [("kill -INT -- -$run", "130"), ("kill -TERM $run", "143")], ids=["Ctrl-C", "SIGTERM"]
)
def test_an_interrupted_run_reports_what_it_measured_and_is_resumed(
    cache: Path, tmp_path: Path, send: str, code: str
) -> None:
    (tmp_path / "plan.toml").write_text(PLAN)
    done = among_hosts(cache, tmp_path, _INTERRUPTED.replace("SEND", send))
    said = {file.name: file.read_text() for file in tmp_path.glob("*.txt")}
    came_through(done.returncode, done.stderr + said.get("again.txt", said.get("err.txt", "")))
    assert said["code.txt"].split() == [code], said
    assert re.search(r"interrupted; \d+ trials? kept in run\.howfar", said["err.txt"]), said["err.txt"]
    assert "howfar resume run.howfar" in said["err.txt"]
    assert "trials done earlier" in said["again.txt"]
    assert read_run(tmp_path / "run.howfar").stop is StopReason.BLOCKS


_UP_ENDED = f"""{_GONE}
for signal in TERM INT HUP KILL; do
  howfar hosts up >>out.txt 2>&1 & up=$!
  until pgrep -f "[r]aylet/raylet" >/dev/null; do kill -0 $up; sleep 0.05; done
  kill -$signal $up
  wait $up || true
  gone
done
howfar hosts up >>out.txt 2>&1 & up=$!
until grep -q "up in" out.txt; do kill -0 $up; sleep 0.05; done
wait $up
howfar hosts down
gone
"""


def test_hosts_that_were_not_joined_to_the_end_are_let_go(cache: Path, tmp_path: Path) -> None:
    done = among_hosts(cache, tmp_path, _UP_ENDED)
    assert done.returncode == 0, (done.stderr[-1500:], (tmp_path / "out.txt").read_text()[-500:])
