"""Faults injected into runs on hosts: each is named and voids its trial, `howfar resume` completes the run, and no process remains."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from howfar.store.records import StopReason
from howfar.store.run_file import read_run
from tests.lab.howfar_runs import BLOCKS, assert_completed, good_trials, require, tiny_plan
from tests.lab.test_hosts import needs_hosts, run_on_hosts

pytestmark = [
    pytest.mark.alone,
    pytest.mark.lab,
    pytest.mark.thorough,
    pytest.mark.usefixtures("namespaces", "mariadb"),
    needs_hosts,
]


def make_plan(*paths: str, blocks: int = BLOCKS) -> str:
    return tiny_plan(paths, blocks=blocks, link=False, warmup="300ms", measure="3s")


def inject(cache: Path, directory: Path, *arguments: str, blocks: int) -> dict[str, Any]:
    """Run `hosts_faults` and check that the run is complete and that no process remains; returns its report."""
    (directory / "plan.toml").write_text(make_plan("remote", blocks=blocks))
    done = run_on_hosts(cache, directory, f"python -m tests.lab.hosts_faults out.json {' '.join(arguments)}")
    output = directory / "out.json"
    assert done.returncode == 0, (done.stderr[-1500:], output.read_text() if output.exists() else "")
    found: dict[str, Any] = json.loads(output.read_text())
    assert found["stop"] == "blocks" and found["leftover_processes"] == [] and found["cleanup_s"] is not None
    remaining = [
        fault for fault in found["faults"] if fault["processes_ended_s"] is None or fault.get("cleanup_s", 0) is None
    ]
    assert not remaining, "ten seconds after a fault, no process of its trial is on any host"
    return found


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        ("engine", "host a: howfar-engine load died"),
        ("actor", "host b was lost"),
        ("raylet", "host b was lost"),
        ("link-5s", "host b received nothing"),
        ("disk-full", "host b"),
    ],
)
def test_a_fault_is_named_and_voids_its_trial(cache: Path, tmp_path: Path, fault: str, reason: str) -> None:
    (found,) = inject(cache, tmp_path, fault, blocks=2)["faults"]
    # 4: the run ended after six void trials in a row, and was resumed. 7: an arm had no valid trial in any block.
    assert found["ended"] in ((None, 0, 4, 7) if fault == "disk-full" else (None, 0)), "the run continues by itself"
    assert any(reason in void for void in found["void"]), found


def test_a_host_without_network_for_a_minute_is_joined_again(cache: Path, tmp_path: Path) -> None:
    (found,) = inject(cache, tmp_path, "link-60s", blocks=2)["faults"]
    assert any("host b" in void for void in found["void"]), found


def test_without_its_head_or_its_driver_a_run_ends_and_resume_completes_it(cache: Path, tmp_path: Path) -> None:
    found = inject(cache, tmp_path, "head", "driver", blocks=3)
    assert all(fault["cleanup_s"] is not None for fault in found["faults"]), found
    assert len(found["codes"]) == 2 and 0 not in found["codes"]


def test_clocks_that_differ_by_5_s_or_are_stepped_have_no_effect(cache: Path, tmp_path: Path) -> None:
    found = inject(cache, tmp_path, "clock-step", blocks=2)
    assert found["faults"][0]["void"] == []
    for clock in found["clocks"]:
        assert abs(clock["clock_offset_ns"] - 5_000_000_000) <= clock["clock_bound_ns"] + 1_000_000


@pytest.mark.parametrize("seed", range(1, 6))
def test_after_kills_at_random_the_run_completes(cache: Path, tmp_path: Path, seed: int) -> None:
    """Six kills per seed, 30 in all."""
    found = inject(cache, tmp_path, "random", "6", str(seed), blocks=6)
    assert all(fault["void"] or fault["ended"] for fault in found["faults"]), found


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
    done = run_on_hosts(cache, tmp_path, _OTHER_VERSION)
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


def test_a_lost_hop_is_named_voids_its_trial_and_is_used_again(cache: Path, tmp_path: Path) -> None:
    (tmp_path / "plan.toml").write_text(make_plan("remote", "haproxy"))
    done = run_on_hosts(cache, tmp_path, _HOP_LOST, ("a", "b", "c"))
    said = (tmp_path / "again.txt").read_text() if (tmp_path / "again.txt").exists() else done.stdout
    assert_completed(done.returncode, done.stderr + said)
    run = read_run(tmp_path / "run.howfar")
    void = [trial.void_reason for trial in run.trials if trial.void_reason]
    assert any("host c was lost" in reason for reason in void) and any("forwarder died" in reason for reason in void)
    assert {require(trial.receipt.hosts).hop for trial in good_trials(run) if trial.arm == "haproxy"} == {"c"}
    assert run.stop is StopReason.BLOCKS


_KILLED = """
howfar run plan.toml --on hosts.toml --out run.howfar >out.txt 2>&1 & run=$!
until grep -q "block 1" out.txt; do kill -0 $run; sleep 0.1; done
pgrep -fc "[r]aylet/raylet" >before.txt
kill -9 $run
for _ in $(seq 100); do pgrep -f "[r]aylet/raylet|[h]owfar[.]fleet|[m]ariadbd" >left.txt || exit 0; sleep 0.1; done
exit 9
"""


def test_a_killed_run_that_joined_the_hosts_leaves_no_process(cache: Path, tmp_path: Path) -> None:
    (tmp_path / "plan.toml").write_text(make_plan("remote"))
    done = run_on_hosts(cache, tmp_path, _KILLED)
    assert done.returncode == 0, (done.stderr[-1500:], (tmp_path / "out.txt").read_text()[-500:])
    assert (tmp_path / "before.txt").read_text().split() == ["3"], "two hosts and the head"


_GONE = """
set -m # a command in the background has its own group and reacts to Ctrl-C, as in a terminal
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
    (tmp_path / "plan.toml").write_text(make_plan("remote"))
    done = run_on_hosts(cache, tmp_path, _INTERRUPTED.replace("SEND", send))
    said = {file.name: file.read_text() for file in tmp_path.glob("*.txt")}
    assert_completed(done.returncode, done.stderr + said.get("again.txt", said.get("err.txt", "")))
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


def test_partly_joined_hosts_are_released(cache: Path, tmp_path: Path) -> None:
    done = run_on_hosts(cache, tmp_path, _UP_ENDED)
    assert done.returncode == 0, (done.stderr[-1500:], (tmp_path / "out.txt").read_text()[-500:])
