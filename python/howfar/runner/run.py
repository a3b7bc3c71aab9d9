"""The runner: block after block, each arm once in random order, every trial committed before the next begins."""

from __future__ import annotations

import secrets
import time
import uuid
from collections.abc import Mapping, Sequence
from typing import Any

import howfar
from howfar.analysis.confirmation import choose, pair
from howfar.analysis.summary import Summary
from howfar.bottleneck.limit import Intervention, Unconfirmed
from howfar.engine.process import engine_info
from howfar.errors import LabError, RunFileError
from howfar.plan.cells import cells
from howfar.plan.estimate import CONFIRMATION_BLOCKS, confirmation_ns
from howfar.plan.load import LoadedPlan
from howfar.plan.quantities import rtt_void_ns
from howfar.plan.types import Plan, restore_plan
from howfar.runner.observer import Observer
from howfar.runner.stopping import (
    VOIDS_IN_A_ROW,
    Budget,
    Extension,
    Forecast,
    Slot,
    Standing,
    block_cost_ns,
    blocks_done,
    forecast,
    places_left,
    standing,
    voids_in_a_row,
    why_stop,
)
from howfar.runner.trial import Instruments, run_trial
from howfar.store import records as events
from howfar.store.records import (
    CONFIRMATION_BLOCK,
    Arm,
    ArmRole,
    Run,
    RunInfo,
    StopReason,
    Trial,
    compared_part,
    confirmation_part,
    plan_part,
)
from howfar.store.run_file import RunFile
from howfar.testbed import Testbed
from howfar.units import format_duration_ns

_COMPARED = {
    "kernel": "kernel",
    "boot_id": "boot",
    "howfar_version": "howfar",
    "engine_version": "load engine",
    "cpu_count": "number of CPUs",
    "cpus_usable": "usable CPUs",
    "client_cpus": "CPUs of the client",
    "server_cpus": "CPUs of the server",
    "governor": "CPU governor",
    "memory_bytes": "memory in bytes",
    "virtual_machine": "virtual machine",
    "congestion_control_default": "congestion control",
    "clock_source": "clock source",
    "sandbox": "sandbox",
    "work_file_system": "file system of the data",
}
"""Facts that are compared on resume, and their names in a warning. Calibrations are left out, because they always differ a little."""


def program_facts() -> dict[str, Any]:
    """Versions of the programs. Raises EngineError."""
    return {"howfar_version": howfar.__version__, "engine_version": engine_info().version}


def check_same(run: Run, laboratory: Testbed, now: Mapping[str, Any]) -> None:
    """Check that server version, kind of CPU, hosts and links are those of the run, which cannot mix several. Raises
    RunFileError."""
    kind, version = laboratory.server()
    if (kind, version) != (run.info.server_kind, run.info.server_version):
        raise RunFileError(
            f"the run was begun on {run.info.server_kind} {run.info.server_version}, this laboratory has {kind} {version}",
            "Continue it where that version is installed, or begin a new run.",
        )
    if (other := _other_hosts(run.info.environment, now) or _other_links(run.info.environment, now)) is not None:
        raise RunFileError(
            other, "Continue it between those hosts, or begin a new run and compare the two with `howfar compare`."
        )
    before, model = run.info.environment.get("cpu_model"), now.get("cpu_model")
    if before and model and before != model:
        raise RunFileError(
            f"the run was begun on another CPU, {before}; this machine has {model}",
            "Continue it on that machine, or begin a new run here and compare the two with `howfar compare`.",
        )


def _other_hosts(before: Mapping[str, Any], now: Mapping[str, Any]) -> str | None:
    """How the hosts of a run between hosts, or their roles, have changed. None: no change is known."""
    if (place := before.get("place")) and place.get("swaps") and not now["place"].get("swaps"):
        why = "".join(f": {reason}" for reason in now["warnings"][:1])
        return f"the hosts of the run exchanged their roles, and do not now{why}"
    for name, old in (before.get("hosts") or {}).items():
        new = now["hosts"][name]
        differs = {what for what in ("cpu_model", "address", "boot_id") if old.get(what) and old[what] != new.get(what)}
        if "cpu_model" in differs:
            return f"the run was begun with the CPU {old['cpu_model']} on host {name}, which has {new['cpu_model']} now"
        if differs == {"address", "boot_id"}:
            return (
                f"host {name} had the address {old['address']}, and {new['address']} now, with another boot: "
                "nothing shows that it is the same machine"
            )
    return None


def _other_links(before: Mapping[str, Any], now: Mapping[str, Any]) -> str | None:
    """How a link of a run between hosts has changed. None: none has."""
    there = {(link["from"], link["to"]): link["rtt_ns"]["p50"] for link in now.get("distances") or ()}
    for link in before.get("distances") or ():
        old_ns, ends = link["rtt_ns"]["p50"], (link["from"], link["to"])
        if ends in there and abs(there[ends] - old_ns) > rtt_void_ns(old_ns):
            was, is_now = format_duration_ns(old_ns), format_duration_ns(there[ends])
            return (
                f"the run was begun with an RTT of {was} from host {ends[0]} to host {ends[1]}, which is {is_now} now"
            )
    return None


def differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> tuple[str, ...]:
    """Differences from the run's head, each a phrase. Facts that one of the two lacks are not compared."""
    hosts, there = before.get("hosts") or {}, now.get("hosts") or {}
    of_hosts = {key for facts in hosts.values() for key in facts}
    found = _differences({key: value for key, value in before.items() if key not in of_hosts}, now)
    for name, facts in hosts.items():
        found += [f"host {name}: {phrase}" for phrase in _differences(facts, there.get(name, {}))]
    return tuple(found)


def _differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    found = []
    for key, name in _COMPARED.items():
        old, new = before.get(key), now.get(key)
        if old is None or new is None or old == new:
            continue
        found.append("rebooted since" if key == "boot_id" else f"{name}: {old} -> {new}")
    return found


def summarise(run: Run) -> Summary:
    """The complete results of a run."""
    from howfar.experiments import registry  # draws charts: heavy

    return registry.summarise(run)


def to_confirm(run: Run) -> tuple[str, ...]:
    """Arms whose limits were, or would now be, chosen for testing; empty: nothing to confirm."""
    begun = events.confirmation(run.events)
    if begun is not None:
        return tuple(Intervention.model_validate(chosen).arm for chosen in begun.interventions)
    run = compared_part(run)
    return tuple(chosen.arm for chosen in choose(summarise(run).cells, run).interventions)


def decide(file: RunFile, stop: StopReason) -> tuple[Arm, ...]:
    """Record in the run file what will be confirmed; returns the new arms."""
    run = compared_part(file.read())
    choice = choose(summarise(run).cells, run)
    arms = tuple(arm for chosen in choice.interventions for arm in pair(chosen, run.info.arms))
    file.confirm(
        arms,
        events.confirming(
            stop,
            [chosen.model_dump(mode="json") for chosen in choice.interventions],
            [refused.model_dump(mode="json") for refused in choice.refused],
        ),
    )
    return arms


def confirmation_lines(run: Run) -> tuple[str, ...]:
    """Limits that are tested, and limits that cannot be, for the observer."""
    begun = events.confirmation(run.events)
    assert begun is not None, "a confirmation is decided before it is shown"
    interventions = (Intervention.model_validate(chosen) for chosen in begun.interventions)
    refused = (Unconfirmed.model_validate(one) for one in begun.refused)
    lines = (
        *(f"{c.arm}: {c.resource.value}? {c.changed}: {c.predicted:.2f} times as fast if so" for c in interventions),
        *(f"{u.arm}: {u.resource.value} cannot be confirmed: {u.why}" for u in refused),
    )
    return lines or ("no limit was named that could be confirmed",)


def conduct(
    file: RunFile,
    laboratory: Testbed,
    began_ns: int,
    instruments: Instruments | None = None,
    observer: Observer | None = None,
    more: Extension | None = None,
) -> StopReason:
    """Measure until the plan's rule ends the run; INTERRUPTED on Ctrl-C. `began_ns`: the command's start, monotonic.

    `more` changes the plan of an existing run from now on. Raises LabError when one arm stays void, DiskFull when the run
    file cannot grow, RunFileError when it was begun on another server or CPU; finished trials are in the file.
    """
    conductor = _Conductor(file, laboratory, began_ns, instruments or Instruments(), observer or Observer())
    if not file.is_new:
        conductor.go_on(more or Extension())
    try:
        stop = conductor.run()
    except KeyboardInterrupt:
        stop = StopReason.INTERRUPTED
    file.set_stop(stop)
    conductor.observer.stopped(stop)
    return stop


class _Conductor:
    def __init__(
        self, file: RunFile, laboratory: Testbed, began_ns: int, instruments: Instruments, observer: Observer
    ) -> None:
        run = file.read()
        self.file = file
        self.laboratory = laboratory
        self.instruments = instruments
        self.observer = observer
        self.info = run.info
        self.arms = {arm.name: arm for arm in run.info.arms}
        self.plan = restore_plan(run.info.plan)
        self.trials: list[Trial] = list(run.trials)
        self.began_ns = began_ns
        self.used_before_ns = sum(trial.ended_unix_ns - trial.started_unix_ns for trial in run.trials)
        self.found = run
        self.confirming = events.confirmation(run.events)
        self.more = Extension()

    def go_on(self, more: Extension) -> None:
        """Record in the file that the run is resumed, and what has changed. Raises RunFileError."""
        now = self.laboratory.environment() | self.instruments.facts()
        check_same(self.found, self.laboratory, now)
        differs = differences(self.info.environment, now)
        trial = len(self.trials)
        happened = [events.resumed(trial, now, differs)]
        self.more, before = more, self.plan
        done = blocks_done(self._run(), before.timing.target_half_width)
        timing = more.applied(before.timing, self.used_before_ns, done)
        self.plan = before.model_copy(update={"timing": timing})
        if timing != before.timing:
            happened.append(events.extended(trial, _changed(before, self.plan), _changed(self.plan, before)))
        self.file.go_on(happened, self.plan.model_dump(mode="json"))
        self.observer.resumed(differs)

    def run(self) -> StopReason:
        """Measure the plan's blocks, then the confirmation; an interrupted confirmation continues before anything else."""
        now = self._standing(blocks_done(self._run(), self.plan.timing.target_half_width))
        self.observer.begun(plan_part(self._run()), self.plan, now, self._forecast(now))
        if self.confirming is not None and not self.confirming.ended:
            self._confirm()
            if not self.more.measures_on:
                return self.confirming.stop
        ended = self.found.stop if self.more.only_confirms else None
        stop = ended or self._run_plan(now)
        if self.plan.timing.confirm and self.confirming is None:
            arms = decide(self.file, stop)
            self.info = self.info.model_copy(update={"arms": (*self.info.arms, *arms)})
            self.arms |= {arm.name: arm for arm in arms}
            self._confirm()
        return stop

    def _confirm(self) -> None:
        self.observer.confirming(confirmation_lines(self.file.read()))
        blocks, why = self._run_confirmation()
        self.file.happened(events.confirmed(blocks, why))
        self.confirming = events.confirmation(self.file.read().events)

    def _run_confirmation(self) -> tuple[int, str]:
        """Measure the confirmation; returns the number of blocks, and why it ended."""
        pairs = confirmation_part(self._run()).info.arms
        if not pairs:
            return 0, events.CONFIRMED_NOTHING
        target = self.plan.timing.target_half_width
        for number in range(CONFIRMATION_BLOCKS):
            attempt = None
            while places := list(places_left(self._run(), CONFIRMATION_BLOCK + number, target)):
                if places[0].attempt != attempt:
                    self.laboratory.begin_block(CONFIRMATION_BLOCK + number)
                attempt = places[0].attempt
                if Budget(self.plan.timing.time_budget_ns).is_over(self._used_ns()):
                    return number, events.CONFIRMED_TIME
                trials = len(places) + (CONFIRMATION_BLOCKS - number - 1) * len(pairs)
                self._run_place(places[0], Forecast(CONFIRMATION_BLOCKS, block_cost_ns(self.plan, trials, self.trials)))
        return CONFIRMATION_BLOCKS, events.CONFIRMED_COMPLETE

    def _run_plan(self, now: Standing) -> StopReason:
        timing = self.plan.timing
        while True:
            stop = why_stop(timing, now, self._spoken_for_ns(), self._block_ns(now))
            if stop is not None:
                return stop
            if not self._run_block(now):
                return StopReason.TIME
            now = self._standing(now.blocks + 1)
            self.observer.block_ended(now, self._forecast(now))

    def _run_block(self, now: Standing) -> bool:
        """Measure the rest of a block; False: the time budget ended first."""
        attempt = None
        while True:
            # Evaluated after each trial, because a void one restarts the block.
            place = next(places_left(self._run(), now.blocks, self.plan.timing.target_half_width), None)
            if place is None:
                return True
            if place.attempt != attempt:
                self.laboratory.begin_block(now.blocks)
            attempt = place.attempt
            if self.trials and Budget(self.plan.timing.time_budget_ns).is_over(self._spoken_for_ns()):
                return False
            self._run_place(place, self._forecast(now))
            self._check_goes_well(self.trials[-1])

    def _run_place(self, place: Slot, ahead: Forecast) -> None:
        self.observer.trial_started(place, ahead)
        trial = run_trial(
            len(self.trials),
            place,
            self.arms[place.arm],
            self.plan,
            self.info.seed,
            self.laboratory,
            self.instruments,
            self.observer.engine_event,
        )
        self.file.append_trial(trial)
        self.trials.append(trial)
        self.observer.trial_ended(trial)

    def _check_goes_well(self, trial: Trial) -> None:
        """Check that an arm's last trials are not all void; for the plan's arms, not for a confirmation. Raises LabError."""
        voids = voids_in_a_row(self.trials, trial.arm)
        if voids >= VOIDS_IN_A_ROW:
            raise LabError(
                f"{trial.arm}: {voids} trials in a row were void, the last because: {trial.void_reason}",
                f"`howfar report {self.file.path}` shows the {len(self.trials)} trials so far."
                f" Fix the cause, then `howfar resume {self.file.path}`.",
            )

    def _run(self) -> Run:
        return Run(info=self.info, trials=tuple(self.trials), stop=None)

    def _standing(self, blocks: int) -> Standing:
        return standing(plan_part(self._run()), blocks, self.plan.timing.target_half_width)

    def _used_ns(self) -> int:
        return self.used_before_ns + self.instruments.monotonic_ns() - self.began_ns

    def _spoken_for_ns(self) -> int:
        """Time used, and time reserved for a confirmation."""
        trial_ns = block_cost_ns(self.plan, 1, self.trials)
        return self._used_ns() + (0 if self.confirming else confirmation_ns(self.plan, trial_ns))

    def _block_ns(self, now: Standing) -> int:
        return block_cost_ns(self.plan, now.places, self.trials)

    def _forecast(self, now: Standing) -> Forecast:
        left = sum(1 for _ in places_left(self._run(), now.blocks, self.plan.timing.target_half_width))
        done = max(1 - left / now.places, 0.0)
        return forecast(self.plan.timing, now, done, self._spoken_for_ns(), self._block_ns(now))


def _changed(plan: Plan, other: Plan) -> dict[str, Any]:
    """The timing of `plan` where it differs from that of `other`."""
    mine, theirs = plan.timing.model_dump(mode="json"), other.timing.model_dump(mode="json")
    return {key: value for key, value in mine.items() if value != theirs[key]}


SEED_BITS = 31
"""Bits of a seed: few enough to retype it."""


def new_seed() -> int:
    """A seed from the system; the only randomness of a run that is not in its plan."""
    return secrets.randbits(SEED_BITS)


def run_info(
    loaded: LoadedPlan,
    seed: int,
    command: Sequence[str],
    laboratory: Testbed,
    facts: Mapping[str, Any] | None = None,
) -> RunInfo:
    """The head of a run. `command` repeats the run, so it must contain the seed. `facts`: of the programs, added to the
    laboratory's."""
    kind, version = laboratory.server()
    return RunInfo(
        run_id=str(uuid.uuid4()),
        created_unix_ns=time.time_ns(),
        howfar_version=howfar.__version__,
        command=tuple(command),
        plan_name=loaded.plan.name,
        quick=loaded.quick,
        plan_toml=loaded.text,
        plan=loaded.plan.model_dump(mode="json"),
        seed=seed,
        arms=tuple(
            Arm(name=cell.name, role=ArmRole(cell.role), factors=dict(cell.factors)) for cell in cells(loaded.plan)
        ),
        environment=laboratory.environment() | dict(facts or {}),
        server_kind=kind,
        server_version=version,
        whole_blocks=True,
    )
