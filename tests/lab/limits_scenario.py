"""A program for the tests: loads limited by one resource, each in a real laboratory; prints the limit that analysis names for each.

python -m tests.lab.limits_scenario CASES_JSON   Each case: `name`, `request` (of the laboratory; cases with the same one share it),
`factors`, `workload`, `data`, `trials`, `measure`, and what causes the limit: `loss` (share of segments to the client), `rmem` (bytes
of the client host's receive buffers), `work` (what the client does with answers), `null` (bytes of one row from a server that only
answers). `on_disk` of the first case: run without a sandbox, which would keep the data in memory.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from howfar.contract.messages import Event, IndependentLoss, LoadJob
from howfar.engine.process import Launcher
from howfar.engine.run_load import LoadOutcome, run_load
from howfar.experiments.registry import summarise
from howfar.lab import sandbox
from howfar.lab.laboratory import Lab, LabRequest, open_laboratory
from howfar.lab.link import LinkSpec
from howfar.lab.link.spec import DirectionSpec
from howfar.plan.types import Data, Plan, Timing, Workload, baseline_model, factors_model
from howfar.runner.stopping import Slot
from howfar.runner.trial import Instruments, run_trial
from howfar.store.records import Arm, ArmRole, Run, RunInfo, Trial, TrialStatus
from howfar.testbed import Testbed
from tests.lab.null_stage import NullLaboratory
from tests.lab.undisturbed import disturbed

SEED = 1
QUEUE_NS = 200_000_000
"""Queue of the link to the client, unless the case loses segments: room for the answers of all connections, so that none is lost."""


def _request(case: Mapping[str, Any]) -> LabRequest:
    request = dict(case["request"])
    loss = case.get("loss", 0.0)
    link = LinkSpec(rtt_ns=case.get("rtt_ns", 200_000), rate_bps=10**9)
    to_client = DirectionSpec(loss=IndependentLoss(probability=loss)) if loss else DirectionSpec(queue_ns=QUEUE_NS)
    link = replace(link, to_client=to_client)
    return LabRequest(**request, link=link, with_goodput=False)


def _plan(case: Mapping[str, Any], request: LabRequest) -> Plan:
    factors = case["factors"]
    return Plan(
        name="limits",
        question="Which resource is the limit?",
        workload=Workload(**case.get("workload", {})),
        data=Data(**{"tables": request.tables, "table_size": request.table_size, **case.get("data", {})}),
        factors=factors_model().model_validate({"path": factors["path"], "threads": factors["threads"]}),
        baseline=baseline_model().model_validate({"path": factors["path"]}),
        timing=Timing(warmup="500ms", measure=case.get("measure", "1500ms")),
    )


def _measure(laboratory: Lab, case: Mapping[str, Any]) -> Any:
    def measure(job: LoadJob, client: Launcher, on_event: Any) -> LoadOutcome:
        rmem = case.get("rmem")  # only now: opening the environment sizes buffers for the link
        if rmem is not None:
            assert laboratory.client_host.write_sysctl("net/ipv4/tcp_rmem", f"4096 {rmem} {rmem}")
        return run_load(job.model_copy(update={"client_work": case.get("work", "touch")}), client, on_event)

    return measure


def _trials(laboratory: Lab, case: Mapping[str, Any], plan: Plan, arm: Arm) -> list[Trial]:
    instruments = Instruments(measure=_measure(laboratory, case))

    def on_event(_: Event) -> None:
        pass

    found = []
    measured_in: Testbed = NullLaboratory(laboratory, case["null"]) if "null" in case else laboratory
    for number in range(case.get("trials", 1)):
        place = Slot(block=number, position=0, attempt=0, arm=arm.name)
        found.append(run_trial(number, place, arm, plan, SEED, measured_in, instruments, on_event))
    return found


def _judge(laboratory: Lab, case: Mapping[str, Any], request: LabRequest) -> dict[str, Any]:
    plan = _plan(case, request)
    arm = Arm(name=case["name"], role=ArmRole.BASELINE, factors=case["factors"])
    trials = _trials(laboratory, case, plan, arm)
    kind, version = laboratory.server()
    info = RunInfo(
        run_id="0",
        created_unix_ns=0,
        howfar_version="0",
        command=("howfar",),
        plan_name="limits",
        quick=True,
        plan_toml="",
        plan=plan.model_dump(mode="json"),
        seed=SEED,
        arms=(arm,),
        environment=laboratory.environment(),
        server_kind=kind,
        server_version=version,
    )
    # A trial that a busy machine made void is judged all the same: noise does not change which resource is full.
    kept = tuple(_forgiven(trial) for trial in trials)
    summary = summarise(Run(info=info, trials=kept, stop=None))
    cell = next(iter(summary.cells), None)
    return {
        "name": case["name"],
        "fsync": info.environment.as_json().get("data_fsync_ns"),
        "void": [trial.void_reason for trial in trials],
        "cell": cell and cell.model_dump(mode="json", exclude={"latency_curve", "receipt", "network"}),
        "window": trials[-1].window and trials[-1].window.model_dump(mode="json", exclude={"network"}),
        "used_cpus": _used_cpus(trials[-1]),
        "summary": {"verdict": summary.verdict, "advice": [advice.action for advice in summary.advice]},
    }


def _forgiven(trial: Trial) -> Trial:
    """The trial, made valid if only a busy machine voided it: that does not change which resource is full."""
    if trial.measured is None or not disturbed(trial.void_reason):
        return trial
    return trial.model_copy(update={"status": TrialStatus.OK, "void_reason": None})


def _used_cpus(trial: Trial) -> float:
    """CPUs used by all parts of the case: client, server, forwarder, link."""
    if trial.measured is None:
        return 0.0
    return sum(cpu.cpu_ns for cpu in trial.measured.cpu) / trial.measured.elapsed_ns


def main() -> int:
    cases = json.loads(sys.argv[1])
    if not (cases[0].get("on_disk") or sandbox.inside()):  # a sandbox keeps data that fits in memory
        return sandbox.run_inside()
    groups: dict[str, list[Any]] = {}
    for case in cases:
        groups.setdefault(json.dumps([case["request"], case.get("loss", 0.0)], sort_keys=True), []).append(case)
    for together in groups.values():
        request = _request(together[0])
        with open_laboratory(request) as laboratory:
            for case in together:
                print(json.dumps(_judge(laboratory, case, request)), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
