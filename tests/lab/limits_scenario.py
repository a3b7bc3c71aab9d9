"""A program for the tests: loads limited by one resource, each in a real laboratory; prints the limit that analysis names for each.

python -m tests.lab.limits_scenario CASES_JSON   Each case: `name`, `request` (cases with the same one share a laboratory), `factors`,
`workload`, `data`, `trials`, `measure`, and the cause of the limit: `loss` (share of segments to the client), `rmem` (bytes of the
client host's receive buffers), `work` (the client's work with replies), `null` (bytes of a row of a null server). If the first case
has `on_disk`, there is no sandbox, whose data would be in memory."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from howfar.contract.environment import RunEnvironment
from howfar.contract.messages import (
    Event,
    IndependentLoss,
    LoadJob,
    NullJob,
    NullReady,
    Observed,
    Receipt,
    ServiceName,
    TcpListen,
    TcpTarget,
)
from howfar.engine.process import EngineProcess, Launcher
from howfar.engine.run_load import LoadOutcome, run_load
from howfar.experiments.registry import summarise
from howfar.lab.laboratory import Lab, LabRequest, open_laboratory
from howfar.lab.link import LinkSpec
from howfar.lab.link.spec import DirectionSpec
from howfar.lab.window import LabWindowWatch, WatchTargets
from howfar.plan.factor import Level
from howfar.plan.types import Plan, Timing, baseline_model, factors_model
from howfar.plan.workload import Data, Workload
from howfar.runner.stopping import Slot
from howfar.runner.trial import Instruments, run_trial
from howfar.services import SqlProtocol
from howfar.store.records import Arm, ArmRole, Run, RunInfo, Trial, TrialStatus
from howfar.testbed import NO_FACTS, CollectedReceipt, LoadFacts, ServiceEndpoint, Testbed, Trust
from tests.lab.undisturbed import is_disturbed

ADDRESS = "127.0.0.1"


@dataclass
class NullEnvironment:
    """A `howfar.testbed.TrialEnvironment` whose server answers every statement with prepared bytes, so that the client is the
    limit."""

    target: Any
    client: Launcher
    observe: tuple[Observed, ...]
    targets: WatchTargets
    trust: Trust | None = None
    fetches_server_key: bool = True
    services: Mapping[ServiceName, ServiceEndpoint] = field(default_factory=dict)
    protocol: SqlProtocol = "mysql"
    user: str = "null"
    password: str = ""
    database: str = "null"
    application: None = None
    pair: None = None

    def reset_counters(self) -> None:
        pass

    def watch(self, length_ns: int) -> LabWindowWatch:
        return LabWindowWatch(self.targets, length_ns)

    def precheck(self, session: Receipt | None = None) -> CollectedReceipt:
        return CollectedReceipt()

    def collect_receipt(self, session: Receipt | None, load: LoadFacts = NO_FACTS) -> CollectedReceipt:
        return CollectedReceipt()


@dataclass
class NullLaboratory:
    """A laboratory's hosts with a null server instead of its own."""

    real: Lab
    reply_bytes: int

    def server(self) -> tuple[str, str]:
        return "null", "0"

    def begin_block(self, block: int) -> None:
        pass

    def environment(self) -> RunEnvironment:
        return self.real.environment()

    @contextmanager
    def trial_environment(self, factors: Mapping[str, Level]) -> Iterator[NullEnvironment]:
        """An environment on the loopback interface of the server's host; the factors have no effect."""
        host, shares = self.real.server_host, self.real.shares
        job = NullJob(listen=TcpListen(host=ADDRESS), threads=len(shares.server), reply_bytes=self.reply_bytes)
        with EngineProcess(job, host.launcher(shares.server)) as server:
            ready = server.read()
            assert isinstance(ready, NullReady) and ready.port is not None
            yield NullEnvironment(
                target=TcpTarget(host=ADDRESS, port=ready.port),
                client=host.launcher(shares.client),
                observe=(Observed(role="server", pid=server.pid),),
                targets=WatchTargets(host, host, ready.port, None, dict),
            )


SEED = 1
QUEUE_NS = 200_000_000
"""Queue of the link to the client, unless the case loses segments: it holds the replies of all connections."""


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
        rmem = case.get("rmem")  # set now, because opening the environment sizes buffers for the link
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
        slot = Slot(block=number, position=0, attempt=0, arm=arm.name)
        found.append(run_trial(number, slot, arm, plan, SEED, measured_in, instruments, on_event))
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
    summary = summarise(Run(info=info, trials=tuple(map(_excused, trials)), stop=None))
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


def _excused(trial: Trial) -> Trial:
    """The trial, made valid if only a busy machine voided it, which does not change which resource is full."""
    if trial.measured is None or not is_disturbed(trial.void_reason):
        return trial
    return trial.model_copy(update={"status": TrialStatus.OK, "void_reason": None})


def _used_cpus(trial: Trial) -> float:
    """CPUs used by all parts of the case: client, server, forwarder, link."""
    if trial.measured is None:
        return 0.0
    return sum(cpu.cpu_ns for cpu in trial.measured.cpu) / trial.measured.elapsed_ns


def main() -> None:
    cases = json.loads(sys.argv[1])
    groups: dict[str, list[Any]] = {}
    for case in cases:
        groups.setdefault(json.dumps([case["request"], case.get("loss", 0.0)], sort_keys=True), []).append(case)
    for group in groups.values():
        request = _request(group[0])
        with open_laboratory(request) as laboratory:
            for case in group:
                print(json.dumps(_judge(laboratory, case, request)), flush=True)


if __name__ == "__main__":
    main()
