"""How often does the method declare a false difference on this machine? From a run of the plan `aa`: one path with two names.

    howfar run aa --out aa.howfar
    .venv/bin/python -m benches.aa aa.howfar [--record tests/data/aa-busy.json]

Resamples the recording into experiments of 8 blocks and prints the share of them that declare a difference, as recorded and with
the names swapped at random in each block. `--record` saves what the test needs.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from benches.false_alarms import false_alarms

from howfar.stats.trials import TrialTable, median_latency_ns, trial_table
from howfar.store.records import ArmRole
from howfar.store.run_file import read_run

VALUES = {
    "queries_per_second": TrialTable.rate,
    "cpu_us_per_query": TrialTable.path_cpu_us,
    "p50_ns": lambda table, trial: median_latency_ns(trial),
}
EXPERIMENTS = 10_000


def recording(path: Path) -> dict[str, object]:
    """The values of both names in block order, and the load on the machine."""
    run = read_run(path)
    table = trial_table(run)
    names = {arm.role: arm.name for arm in run.info.arms}
    pairs = {
        name: [
            [value(table, trial) for trial in table.measured(names[role])]
            for role in (ArmRole.BASELINE, ArmRole.DUPLICATE)
        ]
        for name, value in VALUES.items()
    }
    loads = [trial.load for trial in run.trials if trial.load]
    return {
        "what": f"plan {run.info.plan_name}, {run.info.server_kind} {run.info.server_version}",
        "kernel": run.info.environment.kernel,
        "psi_cpu_some_share": [round(load.psi_cpu_some_share or 0, 3) for load in loads],
        "load_average_1m": [round(load.load_average_1m, 2) for load in loads],
        "values": pairs,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run", type=Path)
    parser.add_argument("--record", type=Path)
    options = parser.parse_args()
    found = recording(options.run)
    values = found["values"]
    assert isinstance(values, dict)
    for name, (first, second) in values.items():
        shares = [
            false_alarms(first, second, experiments=EXPERIMENTS, seed=1, toss_names=toss).share
            for toss in (False, True)
        ]
        print(
            f"{name:>20}: {len(first)} pairs, declared {shares[0]:.1%} as recorded, {shares[1]:.1%} with names tossed"
        )
    if options.record:
        options.record.write_text(json.dumps(found) + "\n")


if __name__ == "__main__":
    main()
