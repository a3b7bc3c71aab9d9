"""The conductor: block after block, each arm once in random order, every trial committed before the next begins.

It keeps nothing in mind that is not in the run file, so `conduct` on a new file and on an interrupted one are the same thing.
"""

from __future__ import annotations

from howfar.conduct.observer import Observer, Silent
from howfar.conduct.rule import Budget, Standing, block_cost_ns, standing, why_stop
from howfar.conduct.schedule import VOIDS_IN_A_ROW, Place, blocks_done, places_left, voids_in_a_row
from howfar.conduct.trial import Instruments, run_trial
from howfar.errors import LabError, RunFileError
from howfar.lab.stage import Laboratory
from howfar.plan.types import restore_plan
from howfar.results.records import Run, StopReason, Trial
from howfar.results.store import RunFile


def conduct(
    file: RunFile,
    laboratory: Laboratory,
    began_ns: int,
    instruments: Instruments | None = None,
    observer: Observer | None = None,
) -> StopReason:
    """Measure until the plan's rule says enough; INTERRUPTED on Ctrl-C. `began_ns`: the command's start, monotonic.

    Raises LabError when one arm stays void, DiskFull when the run file cannot grow; finished trials are in the file.
    """
    conductor = _Conductor(file, laboratory, began_ns, instruments or Instruments(), observer or Silent())
    try:
        stop = conductor.run()
    except KeyboardInterrupt:
        stop = StopReason.INTERRUPTED
    file.set_stop(stop)
    conductor.observer.stopped(stop)
    return stop


class _Conductor:
    def __init__(
        self, file: RunFile, laboratory: Laboratory, began_ns: int, instruments: Instruments, observer: Observer
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
        _same_server(run, laboratory)
        if run.stop is not None:
            file.set_stop(None)

    def run(self) -> StopReason:
        timing = self.plan.timing
        block = blocks_done(self.info, self.trials)
        now = self._standing(block)
        self.observer.begun(self._run(), self.plan, now, self._left_ns(now))
        while True:
            stop = why_stop(timing, now, self._used_ns(), self._block_ns())
            if stop is not None:
                return stop
            if not self._run_block(now):
                return StopReason.TIME
            now = self._standing(now.blocks + 1)
            self.observer.block_ended(now, self._left_ns(now))

    def _run_block(self, now: Standing) -> bool:
        """Measure what is left of a block; False: the time budget ended first."""
        while True:
            # Asked anew after each trial: a void one leaves its place to be tried again, at once.
            place = next(places_left(self.info, self.trials, now.blocks), None)
            if place is None:
                return True
            if self.trials and Budget(self.plan.timing.time_budget_ns).is_over(self._used_ns()):
                return False
            self._run_place(place, now)

    def _run_place(self, place: Place, now: Standing) -> None:
        self.observer.trial_started(place, self._left_ns(now))
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
        voids = voids_in_a_row(self.trials, place.arm)
        if voids >= VOIDS_IN_A_ROW:
            raise LabError(
                f"{place.arm}: {voids} trials in a row were void, the last because: {trial.void_reason}",
                f"`howfar report {self.file.path}` shows the {len(self.trials)} trials so far."
                f" Mend the cause, then `howfar resume {self.file.path}`.",
            )

    def _run(self) -> Run:
        return Run(info=self.info, trials=tuple(self.trials), stop=None)

    def _standing(self, blocks: int) -> Standing:
        return standing(self._run(), blocks, self.plan.timing.target_half_width)

    def _used_ns(self) -> int:
        return self.used_before_ns + self.instruments.monotonic_ns() - self.began_ns

    def _block_ns(self) -> int:
        return block_cost_ns(self.plan.timing, len(self.arms), self.trials)

    def _left_ns(self, now: Standing) -> int:
        """Forecast, whichever comes first: enough blocks, or the end of the budget."""
        timing = self.plan.timing
        done_here = sum(trial.block == now.blocks for trial in self.trials)
        blocks = max(now.blocks_expected(timing) - now.blocks, 0) - done_here / len(self.arms)
        by_blocks = max(int(blocks * self._block_ns()), 0)
        by_budget = max(Budget(timing.time_budget_ns).measuring_ns - self._used_ns(), 0)
        return min(by_blocks, by_budget)


def _same_server(run: Run, laboratory: Laboratory) -> None:
    """A run is of one server; trials of two versions would be mixed up for ever."""
    kind, version = laboratory.server()
    if (kind, version) != (run.info.server_kind, run.info.server_version):
        raise RunFileError(
            f"the run was begun on {run.info.server_kind} {run.info.server_version}, this laboratory has {kind} {version}",
            "Continue it where that version is, or begin a new run.",
        )
