"""The runner: block after block, each arm once in random order, every trial committed before the next begins."""

from __future__ import annotations

import secrets
import time
import uuid
from collections.abc import Collection, Sequence

import howfar
from howfar.analysis.confirmation import ChosenTests, choose_tests, make_arm_pair
from howfar.bottleneck.limit import Intervention, Unconfirmed
from howfar.contract.environment import HostFacts, MachineFacts, RunEnvironment
from howfar.engine.process import engine_info
from howfar.errors import LabError, RunFileError
from howfar.other_programs import OtherPrograms
from howfar.plan.cells import cells
from howfar.plan.estimate import CONFIRMATION_BLOCKS, confirmation_ns
from howfar.plan.load import LoadedPlan
from howfar.plan.quantities import rtt_void_ns
from howfar.plan.types import restore_plan
from howfar.runner.observer import Observer
from howfar.runner.stopping import (
    MAX_CONSECUTIVE_VOIDS,
    Budget,
    Extension,
    Forecast,
    RunProgress,
    Slot,
    block_cost_ns,
    blocks_done,
    consecutive_voids,
    forecast,
    lost_ns,
    max_lost_ns,
    max_overtime_ns,
    overtime_ns,
    remaining_slots,
    run_progress,
    why_stop,
)
from howfar.runner.trial import Instruments, run_trial
from howfar.store import records
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

_COMPARED_FACTS = {
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
"""Facts that are compared on resume, and their names in a warning. Calibrations are left out because they always differ a little."""


def program_facts() -> RunEnvironment:
    """Versions of the programs. Raises EngineError."""
    return RunEnvironment(howfar_version=howfar.__version__, engine_version=engine_info().version)


def check_resumable(run: Run, laboratory: Testbed, now: RunEnvironment) -> None:
    """Check that server version, CPU model, hosts and links are the same as when the run began: one run cannot mix several.
    Raises RunFileError."""
    kind, version = laboratory.server()
    if (kind, version) != (run.info.server_kind, run.info.server_version):
        raise RunFileError(
            f"the run was begun on {run.info.server_kind} {run.info.server_version}, this laboratory has {kind} {version}",
            "Continue it where that version is installed, or begin a new run.",
        )
    if (
        change := _describe_changed_hosts(run.info.environment, now)
        or _describe_changed_links(run.info.environment, now)
    ) is not None:
        raise RunFileError(
            change, "Continue it between those hosts, or begin a new run and compare the two with `howfar compare`."
        )
    before, model = run.info.environment.cpu_model, now.cpu_model
    if before and model and before != model:
        raise RunFileError(
            f"the run was begun on another CPU, {before}; this machine has {model}",
            "Continue it on that machine, or begin a new run here and compare the two with `howfar compare`.",
        )


def _describe_changed_hosts(before: RunEnvironment, now: RunEnvironment) -> str | None:
    """For a run between hosts: how the hosts or their roles have changed. None: no change is known."""
    if before.roles is not None and before.roles.swaps and not (now.roles is not None and now.roles.swaps):
        why = "".join(f": {reason}" for reason in now.warnings[:1])
        return f"the hosts of the run exchanged their roles, and do not now{why}"
    for name, old in before.hosts.items():
        new = now.hosts[name]
        if old.cpu_model and old.cpu_model != new.cpu_model:
            return f"the run was begun with the CPU {old.cpu_model} on host {name}, which has {new.cpu_model} now"
        if old.address and old.address != new.address and old.boot_id and old.boot_id != new.boot_id:
            return (
                f"host {name} had the address {old.address}, and {new.address} now, with another boot: "
                "nothing shows that it is the same machine"
            )
    return None


def _describe_changed_links(before: RunEnvironment, now: RunEnvironment) -> str | None:
    """For a run between hosts: how a link has changed. None: no link has."""
    present_rtts_ns = {(link.from_host, link.to_host): link.real_rtt_ns for link in now.distances}
    for link in before.distances:
        old_ns, ends = link.real_rtt_ns, (link.from_host, link.to_host)
        if ends in present_rtts_ns and abs(present_rtts_ns[ends] - old_ns) > rtt_void_ns(old_ns):
            rtt_then, rtt_now = format_duration_ns(old_ns), format_duration_ns(present_rtts_ns[ends])
            return f"the run was begun with an RTT of {rtt_then} from host {ends[0]} to host {ends[1]}, which is {rtt_now} now"
    return None


def differences(before: RunEnvironment, now: RunEnvironment) -> tuple[str, ...]:
    """Differences between two environments, each as a phrase. Facts that one of the two lacks are not compared."""
    host_facts = {name for facts in before.hosts.values() for name in facts.model_fields_set}
    phrases = _changed_facts(before, now, besides=host_facts)
    for name, facts in before.hosts.items():
        phrases += [f"host {name}: {phrase}" for phrase in _changed_facts(facts, now.hosts.get(name, HostFacts()))]
    return tuple(phrases)


def _changed_facts(before: MachineFacts, now: MachineFacts, besides: Collection[str] = ()) -> list[str]:
    phrases = []
    recorded = before.model_fields_set & now.model_fields_set - set(besides)
    for key, name in _COMPARED_FACTS.items():
        old, new = (getattr(facts, key) if key in recorded else None for facts in (before, now))
        if old is None or new is None or old == new:
            continue
        phrases.append("rebooted since" if key == "boot_id" else f"{name}: {old} -> {new}")
    return phrases


def arms_to_confirm(run: Run) -> tuple[str, ...]:
    """Arms whose limits were chosen for a confirmation, or would be chosen now. Empty: nothing to confirm."""
    confirmation = records.confirmation(run.events)
    if confirmation is not None:
        return tuple(Intervention.model_validate(intervention).arm for intervention in confirmation.interventions)
    return tuple(intervention.arm for intervention in _choose_tests(compared_part(run)).interventions)


def _choose_tests(run: Run) -> ChosenTests:
    from howfar.experiments import registry  # draws charts: heavy

    return choose_tests(registry.summarise(run).cells, run)


def plan_confirmation(file: RunFile, stop: StopReason) -> tuple[Arm, ...]:
    """Choose the limits to confirm and record them in the run file. Returns the new arms."""
    run = compared_part(file.read())
    choice = _choose_tests(run)
    arms = tuple(arm for intervention in choice.interventions for arm in make_arm_pair(intervention, run.info.arms))
    file.confirm(arms, records.confirming(stop, choice.interventions, choice.refused))
    return arms


def confirmation_lines(run: Run) -> tuple[str, ...]:
    """For the observer: the limits that are tested, and those that cannot be."""
    confirmation = records.confirmation(run.events)
    assert confirmation is not None, "the run file has the event of the confirmation"
    interventions = (Intervention.model_validate(chosen) for chosen in confirmation.interventions)
    refused = (Unconfirmed.model_validate(record) for record in confirmation.refused)
    lines = (
        *(f"{i.arm}: {i.resource.value}? {i.changed}: {i.predicted:.2f} times as fast if so" for i in interventions),
        *(f"{limit.arm}: {limit.resource.value} cannot be confirmed: {limit.why}" for limit in refused),
    )
    return lines or ("no limit was named that could be confirmed",)


def execute_run(
    file: RunFile,
    laboratory: Testbed,
    began_ns: int,
    instruments: Instruments | None = None,
    observer: Observer | None = None,
    more: Extension | None = None,
) -> StopReason:
    """Measure until the plan's stopping rule ends the run; INTERRUPTED on Ctrl-C. `began_ns`: the command's start, monotonic.

    `more` changes the plan of an existing run from now on. Raises LabError when an arm is void too many times in a row, DiskFull
    when the run file cannot grow, RunFileError when the run was begun on another server or CPU. Finished trials stay in the file.
    """
    executor = _RunExecutor(file, laboratory, began_ns, instruments or Instruments(), observer or Observer())
    if not file.is_new:
        executor.resume(more or Extension())
    try:
        stop = executor.run()
    except KeyboardInterrupt:
        stop = StopReason.INTERRUPTED
    file.set_stop(stop)
    executor.observer.stopped(stop)
    return stop


class _RunExecutor:
    def __init__(
        self, file: RunFile, laboratory: Testbed, began_ns: int, instruments: Instruments, observer: Observer
    ) -> None:
        run = file.read()
        self.file = file
        self.laboratory = laboratory
        self.instruments = instruments
        self.observer = observer
        self.others = OtherPrograms(instruments.programs, instruments.waits, observer.waiting)
        self.info = run.info
        self.arms = {arm.name: arm for arm in run.info.arms}
        self.plan = restore_plan(run.info.plan)
        self.trials: list[Trial] = list(run.trials)
        self.began_ns = began_ns
        self.used_before_ns = sum(trial.ended_unix_ns - trial.started_unix_ns for trial in run.trials)
        self.run_at_start = run
        self.confirming = records.confirmation(run.events)
        self.more = Extension()

    def resume(self, extension: Extension) -> None:
        """Record in the file that the run is resumed, and what has changed since it was begun. Raises RunFileError."""
        now = self.laboratory.environment().updated(self.instruments.facts())
        check_resumable(self.run_at_start, self.laboratory, now)
        changes = differences(self.info.environment, now)
        trial = len(self.trials)
        new_events = [records.resumed(trial, now, changes)]
        self.more, before = extension, self.plan
        finished_blocks = blocks_done(self._run(), before.timing.target_half_width)
        timing = extension.extended_timing(before.timing, self.used_before_ns, finished_blocks)
        self.plan = before.model_copy(update={"timing": timing})
        if timing != before.timing:
            new_events.append(records.extended(trial, before.timing, timing))
        self.file.extend(new_events, self.plan.model_dump(mode="json"))
        self.observer.resumed(changes)

    def run(self) -> StopReason:
        """Measure the plan's blocks, then the confirmation. An interrupted confirmation is completed first."""
        progress = self._progress(blocks_done(self._run(), self.plan.timing.target_half_width))
        self.observer.started(plan_part(self._run()), self.plan, progress, self._forecast(progress))
        if self.confirming is not None and not self.confirming.ended:
            self._confirm()
            if not self.more.wants_more_blocks:
                return self.confirming.stop
        previous_stop = self.run_at_start.stop if self.more.only_confirms else None
        stop = previous_stop or self._run_plan(progress)
        if self.plan.timing.confirm and self.confirming is None:
            arms = plan_confirmation(self.file, stop)
            self.info = self.info.model_copy(update={"arms": (*self.info.arms, *arms)})
            self.arms |= {arm.name: arm for arm in arms}
            self._confirm()
        return stop

    def _confirm(self) -> None:
        self.observer.confirming(confirmation_lines(self.file.read()))
        blocks, why = self._run_confirmation()
        self.file.add_event(records.confirmed(blocks, why))
        self.confirming = records.confirmation(self.file.read().events)

    def _run_confirmation(self) -> tuple[int, str]:
        """Measure the confirmation; returns the number of blocks, and why it ended."""
        pairs = confirmation_part(self._run()).info.arms
        if not pairs:
            return 0, records.CONFIRMED_NOTHING
        target = self.plan.timing.target_half_width
        for number in range(CONFIRMATION_BLOCKS):
            attempt = None
            while slots := list(remaining_slots(self._run(), CONFIRMATION_BLOCK + number, target)):
                if slots[0].attempt != attempt:
                    self.laboratory.begin_block(CONFIRMATION_BLOCK + number)
                attempt = slots[0].attempt
                if Budget(self.plan.timing.time_budget_ns).is_over(self._used_ns()):
                    return number, records.CONFIRMED_TIME
                trials = len(slots) + (CONFIRMATION_BLOCKS - number - 1) * len(pairs)
                self._run_slot(slots[0], Forecast(CONFIRMATION_BLOCKS, block_cost_ns(self.plan, trials, self.trials)))
        return CONFIRMATION_BLOCKS, records.CONFIRMED_COMPLETE

    def _run_plan(self, progress: RunProgress) -> StopReason:
        timing = self.plan.timing
        while True:
            stop = why_stop(timing, progress, self._used_and_reserved_ns(), self._block_ns(progress))
            if stop is not None:
                return stop
            if not self._run_block(progress):
                return StopReason.TIME
            progress = self._progress(progress.blocks + 1)
            self.observer.block_ended(progress, self._forecast(progress))

    def _run_block(self, progress: RunProgress) -> bool:
        """Measure the rest of a block. False: the time budget ended first."""
        attempt = None
        while True:
            # Computed again after each trial, because a void trial restarts the block.
            slot = next(remaining_slots(self._run(), progress.blocks, self.plan.timing.target_half_width), None)
            if slot is None:
                return True
            if slot.attempt != attempt:
                self.laboratory.begin_block(progress.blocks)
            attempt = slot.attempt
            if self.trials and Budget(self.plan.timing.time_budget_ns).is_over(self._used_and_reserved_ns()):
                return False
            self._run_slot(slot, self._forecast(progress))
            self._check_consecutive_voids(self.trials[-1])

    def _run_slot(self, slot: Slot, expected_end: Forecast) -> None:
        self.observer.trial_started(slot, expected_end)
        self.others.may_wait = lost_ns(self.trials) < max_lost_ns(self.plan.timing)
        self.others.time_left_ns = self._time_for_wait_ns()
        trial = run_trial(
            len(self.trials),
            slot,
            self.arms[slot.arm],
            self.plan,
            self.info.seed,
            self.laboratory,
            self.instruments,
            self.observer.engine_event,
            self.others,
        )
        self.file.append_trial(trial)
        self.trials.append(trial)
        self.observer.trial_ended(trial)

    def _check_consecutive_voids(self, trial: Trial) -> None:
        """Check that the last trials of this trial's arm were not all void. Not used for a confirmation. Raises LabError."""
        voids = consecutive_voids(self.trials, trial.arm)
        if voids >= MAX_CONSECUTIVE_VOIDS:
            raise LabError(
                f"{trial.arm}: {voids} trials in a row were void, the last because: {trial.void_reason}",
                f"`howfar report {self.file.path}` shows the {len(self.trials)} trials so far."
                f" Fix the cause, then `howfar resume {self.file.path}`.",
            )

    def _run(self) -> Run:
        return Run(info=self.info, trials=tuple(self.trials), stop=None)

    def _progress(self, blocks: int) -> RunProgress:
        return run_progress(plan_part(self._run()), blocks, self.plan.timing.target_half_width)

    def _used_ns(self) -> int:
        """The part of the time budget that is used: without the time that other programs took, as far as it may be added."""
        used_ns = self.used_before_ns + self.instruments.monotonic_ns() - self.began_ns
        return used_ns - overtime_ns(self.plan.timing, self.trials)

    def _time_for_wait_ns(self) -> int:
        """Time for which the next trial may wait, so that it still ends within the time budget, overtime included."""
        timing = self.plan.timing
        overtime_left_ns = max_overtime_ns(timing) - overtime_ns(timing, self.trials)
        needed_ns = self._used_and_reserved_ns() + block_cost_ns(self.plan, 1, self.trials)
        return Budget(timing.time_budget_ns).measuring_ns + overtime_left_ns - needed_ns

    def _used_and_reserved_ns(self) -> int:
        """Time used so far, plus the time reserved for a confirmation."""
        trial_ns = block_cost_ns(self.plan, 1, self.trials)
        return self._used_ns() + (0 if self.confirming else confirmation_ns(self.plan, trial_ns))

    def _block_ns(self, progress: RunProgress) -> int:
        return block_cost_ns(self.plan, progress.slots, self.trials)

    def _forecast(self, progress: RunProgress) -> Forecast:
        remaining = sum(1 for _ in remaining_slots(self._run(), progress.blocks, self.plan.timing.target_half_width))
        done_share = max(1 - remaining / progress.slots, 0.0)
        return forecast(self.plan.timing, progress, done_share, self._used_and_reserved_ns(), self._block_ns(progress))


SEED_BITS = 31
"""Number of bits of a seed: few enough that a person can retype it."""


def new_seed() -> int:
    """A seed from the operating system. All other randomness of a run derives from it."""
    return secrets.randbits(SEED_BITS)


def run_info(
    loaded: LoadedPlan,
    seed: int,
    command: Sequence[str],
    laboratory: Testbed,
    facts: RunEnvironment | None = None,
) -> RunInfo:
    """The head of a run. `command` repeats the run, so it must contain the seed. `facts`: facts about the programs, which are added
    to the laboratory's environment."""
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
        environment=laboratory.environment().updated(facts or RunEnvironment()),
        server_kind=kind,
        server_version=version,
        whole_blocks=True,
    )
