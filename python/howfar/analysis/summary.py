"""The result of a run as one value, and `build_summary`, which computes it. Its JSON form is public (`howfar report RUN --json`,
schema in `schema/report.json`)."""

from __future__ import annotations

import math
import shlex
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import cache, partial
from statistics import fmean
from typing import Annotated, ClassVar, TypeVar

from pydantic import AliasChoices, Field, PlainSerializer, SerializeAsAny

from howfar.analysis import causes
from howfar.analysis import cells as cell_figures
from howfar.analysis.advice import Advice, advise, advise_full_plan, advise_on_run, one_of_each_kind
from howfar.analysis.answer import Answer, not_yet, sentence
from howfar.analysis.cells import CellSummary, Metric, NoiseFloors, max_connections
from howfar.analysis.confirmation import (
    confirmations,
    mark_refuted_limits,
    refuted_arms,
    remove_refuted_limits,
    unconfirmed,
    without_remedies,
)
from howfar.analysis.controls import Control, controls
from howfar.analysis.diagnostics import (
    Diagnostic,
    Machine,
    Spread,
    baseline_spread,
    describe_machine,
    session_warnings,
)
from howfar.analysis.disturbance import Disturbance, UnusedTrials, find_disturbance, find_unused
from howfar.analysis.hosts import HostsSeen, summarise_hosts
from howfar.analysis.idle import IdleStates, idle_states
from howfar.analysis.plateau import complete_blocks, saturated_arms
from howfar.analysis.voids import VoidKind, count_voids
from howfar.bottleneck.limit import Confirmation, Unconfirmed
from howfar.contract.environment import RunEnvironment
from howfar.contract.violation import DISTURBED, NO_REASON, violation
from howfar.findings import Finding, Texts
from howfar.model.facts import ArmFacts, arm_facts
from howfar.model.resource import NOT_THE_PATH
from howfar.plan.factor import Level
from howfar.plan.fitting import describe_lost_levels
from howfar.plan.types import StoredPlan
from howfar.plan.workload import WORKLOADS, Unit, Workload
from howfar.slices import collect
from howfar.stats.estimate import Estimate, Part
from howfar.stats.intervals import MIN_BLOCKS, half_width, simultaneous
from howfar.stats.resample import analyse_with_intervals
from howfar.stats.trials import TrialTable, is_good, others_cpus_in_trial, trial_table
from howfar.store.records import (
    Arm,
    ArmRole,
    Measured,
    Run,
    RunInfo,
    Trial,
    TrialStatus,
    compared_part,
    confirmation_part,
    disturbed_trials,
    ends_attempt,
    is_repeated,
    left_out_trials,
    plan_part,
    shown_spoiled_blocks,
)

_WRITING_KINDS = ("oltp_read_write", "oltp_write_only")


@dataclass(frozen=True)
class WorkloadNote:
    """A part of the line on the workload. A slice registers it in its module `setup`."""

    text: Callable[[StoredPlan, RunEnvironment], str]
    """Empty: the plan needs no such note."""


@cache
def _workload_notes() -> tuple[WorkloadNote, ...]:
    """Collected when first needed, because the slices' modules import this one."""
    return collect("setup", "WORKLOAD_NOTES", WorkloadNote)


def workload_line(plan: StoredPlan, environment: RunEnvironment) -> str:
    """The workload, `oltp_read_only: 25 point selects + 4 ranges of 5 rows per transaction, 10 tables x 100000 rows, pareto ids`,
    and the parts of the plan that were not available here."""
    notes = filter(None, (note.text(plan, environment) for note in _workload_notes()))
    return "; ".join([_workload_text(plan), *notes, *environment.not_as_requested])


def _workload_text(plan: StoredPlan) -> str:
    workload = plan.workload
    if workload is None:
        return "workload: queries per transaction"
    kind = workload.kind
    if (describe := WORKLOADS[kind].describe) is not None:
        return describe(plan)
    parts = [] if kind == "oltp_write_only" else _reads_text(workload)
    if kind in _WRITING_KINDS:
        writes = {
            "indexed updates": workload.index_updates,
            "updates": workload.non_index_updates,
            "delete-inserts": workload.delete_inserts,
        }
        parts += [f"{count} {name}" for name, count in writes.items() if count]
    has_known_statements = kind in ("oltp_read_only", *_WRITING_KINDS)
    line = f"{kind}: {' + '.join(parts) or 'queries'} per transaction" if has_known_statements else kind
    if plan.data:
        line += f", {plan.data.tables} tables x {plan.data.table_size} rows"
    has_distribution = "distribution" in workload.model_fields_set
    return line + (f", {workload.distribution.kind} ids" if has_distribution else "")


def _reads_text(workload: Workload) -> list[str]:
    parts = [f"{workload.point_selects} point selects"] if workload.point_selects else []
    return [*parts, f"{workload.ranges} ranges of {workload.range_size} rows"] if workload.ranges else parts


F = TypeVar("F", bound=Part)
Findings = dict[str, SerializeAsAny[Part] | None]
"""Findings by their key in the JSON report. None: this run does not answer that question."""


class Unmeasured(Part):
    """An arm without a good trial, listed although it has no figures."""

    arm: str
    factors: dict[str, Level]
    void_trials: int
    reasons: dict[str, int]
    """The texts of `voids` as in older reports; the next version leaves it out."""
    voids: tuple[VoidKind, ...] = ()
    """Why its trials were void, by kind."""


class TrialPoint(Part):
    """One trial for charts, in the order in which trials ran; statistics use blocks instead."""

    number: int
    block: int
    arm: str
    qps: float | None
    """Operations per second. None: void."""
    cpu_pressure: float | None
    """Share of the trial in which some task waited for a CPU."""
    others_cpus: float | None
    """CPUs that other programs kept busy. None: void, or not recorded."""


class Summary(Part):
    """The complete answer of a run."""

    run: str
    plan: str
    quick: bool
    howfar: str
    created: str
    """Time of creation, ISO 8601, UTC."""
    command: str
    server: dict[str, str]
    """The server's `kind` and `version`."""
    workload: str
    """The workload in one line."""
    operation_unit: Unit = Field(
        "queries", validation_alias=AliasChoices("asked", "operation_unit"), serialization_alias="asked"
    )
    """Kind of operation that is counted, also where a name contains `queries` or `qps`."""
    blocks: int
    complete_blocks: int
    """Blocks in which every arm that was not paused has a good trial."""
    noise_floor: float | None
    """Distance from 1 of the farther limit of the A/A interval, as a share (0.02: effects under 2 % are not resolved)."""
    link_noise_floor: float | None = None
    """Noise floor over the link: the larger of `noise_floor` and that of the A/A arm over the link."""
    aa_ratio: Estimate | None
    cpu_noise_floor: float | None
    link_cpu_noise_floor: float | None = None
    comparisons: int = Field(1, alias="claims")
    """Number of comparisons that may be called resolved: each is judged at a confidence of 1 - 5 % / comparisons."""
    target_half_width: float
    stop: str | None
    void_trials: int
    """Number of void trials, without those that other programs disturbed."""
    void_rate: float | None = None
    """Share of void trials among all trials. None: the run has no trial."""
    good_trials: int | None = None
    """Trials that count, controls included. None: an older summary."""
    left_out_trials: int = 0
    """Good trials that do not count, because another trial of the same attempt at a block was void."""
    missing_trials: int = 0
    """Places in blocks in which each trial was void."""
    missing_s: float | None = None
    """Seconds in which this run would measure the blocks that an answer lacks, at its own pace, void trials included. None: there is
    an answer, or the run has no block."""
    measured_s: float | None = None
    """Seconds of all trials of the plan, those that do not count included, without pauses between them. None: it has no trial."""
    void_shift: float | None = None
    """Largest relative change of a cell's mean if its excluded trials (void, or in a block with a void one) had counted. None: none
    of these trials has a rate."""
    void_ratio_shift: float | None = None
    """Likewise for the ratio of a cell to the one it is compared with. None: no excluded trial has such a ratio."""
    void_reasons: dict[str, int]
    """The texts of `voids` as in older reports; the next version leaves it out."""
    voids: tuple[VoidKind, ...] = ()
    """Why trials were void, by kind. A trial may have several kinds."""
    idle: IdleStates | None = None
    """Idle states of CPUs. None: an older run file."""
    hosts: HostsSeen | None = None
    """Notes about hosts. None: the run was in the laboratory."""
    controls: tuple[Control, ...] = ()
    """Measurements whose true result is known. Empty: nothing crosses a link, or an older run file."""
    disturbance: Disturbance | None = None
    """Trials that count, although other programs used CPUs in them. None: no trial, or not recorded."""
    unused: UnusedTrials | None = None
    """Trials that do not count because other programs used CPUs in them. None: there are none, or an older run file."""
    others_cpus: float | None
    """Median over trials of the CPUs that other programs kept busy. None: not recorded."""
    machine_cpus: int | None
    steal_share: float | None = None
    """Share of the CPU time that the hypervisor gave to other guests, in the median trial. None: not reported by this kernel."""
    baseline_spread: Spread | None
    """Spread of the baseline. None: fewer than two good trials."""
    cpu_scatter: float | None = None
    """Relative standard deviation, from trial to trial, of the CPU time of an operation, in the median cell. None: too few trials."""
    speed_scatter: float | None = None
    """Relative standard deviation of the CPU time of the same piece of work on the same CPU, at both ends of each trial. None: too few
    trials, or not recorded."""
    answer: Answer
    verdict: str
    """The answer's sentence, for programs that read older reports."""
    advice: tuple[Advice, ...]
    cells: tuple[CellSummary, ...]
    unmeasured: tuple[Unmeasured, ...]
    lost_levels: tuple[str, ...] = ()
    """Levels that the plan names and that an older run lacks, of which `environment` has no note."""
    trials: tuple[TrialPoint, ...]
    environment: Annotated[RunEnvironment, PlainSerializer(RunEnvironment.as_json)]
    warnings: tuple[Diagnostic, ...]
    diagnostics: tuple[Finding, ...] = ()
    """`warnings`, and those of cells with the cell as their subject, by ids without spaces and with their figures. Empty: none, or an
    older summary."""
    confirmations: tuple[Confirmation, ...] = ()
    unconfirmed: tuple[Unconfirmed, ...] = ()
    """Limits that were to be confirmed and could not be. Empty too where nothing was to be confirmed."""
    findings: Findings = Field(default_factory=dict)
    """Findings of the experiments, each under its own key."""

    def find_findings(self, kind: type[F]) -> F | None:
        """The findings of that type. None: this run has none."""
        return next((part for part in self.findings.values() if isinstance(part, kind)), None)

    def require_findings(self, kind: type[F]) -> F:
        """The findings of that type, which must exist, as they do if their experiment applies."""
        findings = self.find_findings(kind)
        assert findings is not None, "an experiment that applies has findings"
        return findings


@dataclass(frozen=True)
class RunEvidence:
    """The facts of a run that an experiment may use."""

    table: TrialTable
    cells: tuple[CellSummary, ...]
    facts: tuple[ArmFacts, ...]
    """Resource demands of each arm's transactions, for the model of sessions."""
    floors: NoiseFloors
    refuted: frozenset[str]
    """Arms whose limit a test refuted."""
    whole_run_findings: Mapping[str, Part | None] = field(default_factory=dict)
    """The experiment's findings about the complete run, if this is the run without some of its blocks; then only figures with an
    interval are needed, at the same settings. Empty: this is the complete run."""

    def without_blocks(self, blocks: frozenset[int]) -> RunEvidence:
        """Evidence of the run without these blocks. `cells` stay unchanged, because no derived figure depends on them."""
        if not blocks:
            return self
        run = self.table.run
        remaining_run = run.model_copy(
            update={"trials": tuple(trial for trial in run.trials if trial.block not in blocks)}
        )
        valid_by_arm = {facts.arm.name: facts.is_valid for facts in self.facts}
        facts = tuple(replace(arm, is_valid=valid_by_arm.get(arm.arm.name, True)) for arm in arm_facts(remaining_run))
        return replace(self, table=trial_table(remaining_run), facts=facts)

    @property
    def workload(self) -> Workload | None:
        return self.table.run.info.stored_plan.workload


class Analysis:
    """The part of an experiment that `build_summary` needs; the complete interface is in `howfar.experiments.experiment`."""

    texts: ClassVar[Texts] = {}
    """Templates of the findings that `conclude` may return."""
    findings: ClassVar[Mapping[str, type[Part]]] = {}
    """Types of the findings that `analyse` may return, by their key in `report --json`."""
    own_model: ClassVar[bool] = False
    """Whether its findings explain throughput by their own model, so that the model of sessions does not apply to such a run."""

    def acknowledgement_s(self, table: TrialTable, arm: Arm) -> float | None:
        """How long a commit of this arm waits for another machine. None: it does not wait, or this experiment does not know."""
        return None

    def analyse(self, evidence: RunEvidence) -> Mapping[str, Part | None]:
        """Findings by the keys of `findings`. None: this run does not answer the question."""
        return {}

    def with_sentences(self, finding: Part) -> Part:
        """A finding with its sentences, which are made after its figures have their intervals."""
        return finding

    def without_answer(self, key: str, finding: Part) -> Part | None:
        """What remains of a finding in a run that has too few blocks for an answer: no models, no thresholds."""
        return finding

    def conclude(self, evidence: RunEvidence, findings: Findings) -> tuple[Finding, ...]:
        """What the run shows, the most important first. Empty: another experiment gives the answer."""
        return ()

    def explain(self, evidence: RunEvidence, findings: Findings) -> tuple[Finding, ...]:
        """Why the run shows what `conclude` returned, the most important cause first. Empty: no cause is known."""
        baseline = next((cell for cell in evidence.cells if cell.role is ArmRole.BASELINE), None)
        contenders = [cell for cell in evidence.cells if cell.role is ArmRole.CONTENDER]
        return causes.explain_differences(contenders, baseline) if baseline is not None else ()

    def advice(self, evidence: RunEvidence, findings: Findings) -> tuple[Advice, ...] | None:
        """Advice of this experiment. None: the general advice for every run applies."""
        return None


def build_summary(run: Run, experiments: Sequence[Analysis]) -> Summary:
    """Compute the answer of a run. The same run gives the same summary on any machine. The verdict is that of the first experiment
    that has one."""
    confirmed, plan_run = confirmation_part(run), plan_part(run)
    left_out, disturbed = left_out_trials(run), disturbed_trials(run)
    measured, table = run, trial_table(run := compared_part(plan_run))
    floors = cell_figures.measure_noise_floors(trial_table(plan_run), run_controls := controls(plan_run))
    paused = saturated_arms(run, floors.target)
    cells = tuple(
        cell_figures.summarise_cell(table, arm, floors, arm.name in paused, _acknowledgement_s(table, arm, experiments))
        for arm in run.info.arms
        if table.measured(arm.name)
    )
    confirmation_results = confirmations(confirmed)
    limited_by_path = {cell.arm for cell in cells if cell.limit is None or cell.limit.resource not in NOT_THE_PATH}
    facts = tuple(replace(arm, is_valid=arm.arm.name in limited_by_path) for arm in arm_facts(run))
    evidence = RunEvidence(table, cells, facts, floors, refuted_arms(cells, confirmation_results))
    findings = _findings(evidence, experiments)
    answer = _answer(evidence, findings, experiments)
    if answer.is_missing:
        findings = _without_answer(findings, experiments)
    advice_by_experiment = (experiment.advice(evidence, findings) for experiment in experiments)
    advice = next((advice for advice in advice_by_experiment if advice is not None), None)
    if advice is None and not answer.is_missing:
        advice = advise(remove_refuted_limits(cells, confirmation_results), table, floors)
    voids, repeated = sum(map(ends_attempt, plan_run.trials)), sum(map(is_repeated, plan_run.trials))
    undisturbed = [trial for trial in measured.trials if not is_repeated(trial) and trial.number not in disturbed]
    machine = describe_machine(table)
    disturbance = find_disturbance(
        table, floors, cells, machine.cpus, lambda blocks: evidence.without_blocks(blocks).table
    )
    warnings = tuple(_session_warnings(run, machine, floors, run_controls, bool(shown_spoiled_blocks(measured))))
    is_busy = Diagnostic.BUSY_MACHINE in warnings
    return Summary(
        run=run.info.run_id,
        plan=run.info.plan_name,
        quick=run.info.quick,
        howfar=run.info.howfar_version,
        created=datetime.fromtimestamp(run.info.created_unix_ns / 1e9, UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        command=shlex.join(run.info.command),
        server={"kind": run.info.server_kind, "version": run.info.server_version},
        workload=workload_line(run.info.stored_plan, run.info.environment),
        operation_unit=table.unit,
        blocks=max((len(_good_blocks(run, arm.name)) for arm in run.info.arms), default=0),
        complete_blocks=complete_blocks(table, floors.target),
        noise_floor=floors.noise_floor(),
        link_noise_floor=floors.noise_floor(over_link=True),
        aa_ratio=floors.baseline_ratios.get(Metric.THROUGHPUT),
        cpu_noise_floor=floors.noise_floor(Metric.CPU),
        link_cpu_noise_floor=floors.noise_floor(Metric.CPU, over_link=True),
        comparisons=floors.comparisons,
        target_half_width=floors.target,
        stop=run.stop.value if run.stop else None,
        void_trials=voids,
        void_rate=voids / (len(plan_run.trials) + len(left_out)) if plan_run.trials else None,
        good_trials=len(plan_run.trials) - voids - repeated,
        left_out_trials=len(left_out - disturbed),
        missing_trials=_count_missing(plan_run),
        missing_s=_missing_s(measured, table.blocks),
        measured_s=_trials_s(plan_run) if plan_run.trials else None,
        void_shift=_void_shift(undisturbed, table),
        void_ratio_shift=_void_ratio_shift(undisturbed, table),
        idle=idle_states(run),
        hosts=summarise_hosts(run, table),
        controls=run_controls,
        void_reasons=_count_void_reasons(filter(ends_attempt, plan_run.trials)),
        voids=count_voids(filter(ends_attempt, plan_run.trials)),
        disturbance=disturbance,
        unused=find_unused(measured),
        others_cpus=machine.others_cpus,
        machine_cpus=machine.cpus,
        baseline_spread=baseline_spread(table),
        cpu_scatter=machine.cpu_scatter,
        speed_scatter=machine.speed_scatter,
        steal_share=machine.steal_share,
        answer=answer,
        verdict=answer.sentence,
        advice=() if answer.is_missing else _all_advice(run, disturbance, advice or (), is_busy),
        cells=mark_refuted_limits(without_remedies(cells) if answer.is_missing else cells, confirmation_results),
        lost_levels=_lost_levels(measured.info),
        unmeasured=tuple(_unmeasured(run, arm) for arm in run.info.arms if not _good_blocks(run, arm.name)),
        trials=_trial_points(table),
        environment=run.info.environment,
        warnings=warnings,
        diagnostics=_describe_warnings(warnings, cells, machine, floors),
        confirmations=confirmation_results,
        unconfirmed=unconfirmed(confirmed),
        findings=findings,
    )


def _describe_warnings(
    warnings: Sequence[Diagnostic], cells: Sequence[CellSummary], machine: Machine, floors: NoiseFloors
) -> tuple[Finding, ...]:
    """The warnings of a run, then those of its cells, as findings."""
    known = {
        Diagnostic.UNEVEN_CPUS: {"cpu_scatter": machine.cpu_scatter},
        Diagnostic.BUSY_MACHINE: {
            "others_cpus": machine.others_cpus,
            "cpus": machine.cpus,
            "steal_share": machine.steal_share,
        },
        Diagnostic.AA_EXCLUDES_ONE: {"noise_floor": floors.noise_floor()},
    }

    def figures(values: Mapping[str, float | None]) -> dict[str, str | int | float]:
        return {name: value for name, value in values.items() if value is not None}

    def cell_figures_of(warning: Diagnostic, cell: CellSummary) -> dict[str, str | int | float]:
        if warning is Diagnostic.WIDE_INTERVAL and cell.ratio is not None:
            return figures({"half_width": half_width(cell.ratio), "requested": floors.target})
        if warning is Diagnostic.LINK_NOT_AS_REQUESTED and cell.scatter is not None:
            return figures({"rtt_off": cell.scatter.rtt_off, "shift": cell.scatter.shift, "late": cell.scatter.late})
        return {"trials": cell.trials}

    of_run = (Finding(id=warning.id, parameters=figures(known.get(warning, {}))) for warning in warnings)
    of_cells = (
        Finding(id=warning.id, subject=cell.arm, parameters=cell_figures_of(warning, cell))
        for cell in cells
        for warning in cell.warnings
    )
    return (*of_run, *of_cells)


def _lost_levels(info: RunInfo) -> tuple[str, ...]:
    """Notes on the levels of the plan that were not measured, where neither an option nor another note says why."""
    notes = describe_lost_levels(info.plan_toml, info.quick, info.stored_plan.factors or {})
    known = info.environment.not_as_requested
    return tuple(
        note
        for factor, note in notes.items()
        if f"--{factor}" not in info.command and not any(other.startswith(note) for other in known)
    )


def _count_missing(run: Run) -> int:
    """Number of places in blocks in which each trial was void."""
    good = {(trial.arm, trial.block) for trial in run.trials if trial.status is TrialStatus.OK}
    return len({(trial.arm, trial.block) for trial in filter(ends_attempt, run.trials)} - good)


def _missing_s(run: Run, blocks: int) -> float | None:
    """Seconds in which a run with so many blocks would measure those that an answer lacks. None: it lacks none, or has no block."""
    if not 0 < blocks < MIN_BLOCKS:
        return None
    return _trials_s(run) / blocks * (MIN_BLOCKS - blocks)


def _trials_s(run: Run) -> float:
    return sum(trial.ended_unix_ns - trial.started_unix_ns for trial in run.trials) / 1e9


def _all_advice(
    run: Run, disturbance: Disturbance | None, advice: Sequence[Advice], is_busy: bool = False
) -> tuple[Advice, ...]:
    """The advice of the experiment, after that to repeat a disturbed run. A quick run never ends without advice. `is_busy`: whether
    other work is a reason to doubt it."""
    found = one_of_each_kind((*advise_on_run(disturbance, shlex.join(run.info.command)), *advice))
    return found or ((advise_full_plan(run.info.command, is_busy),) if run.info.quick else ())


def _answer(evidence: RunEvidence, findings: Findings, experiments: Sequence[Analysis]) -> Answer:
    """The answer of the first experiment that has one; with too few blocks, how many there are."""
    question = evidence.table.run.info.stored_plan.question or ""
    if evidence.table.blocks < MIN_BLOCKS and evidence.cells:
        missing = not_yet(evidence.table.blocks)
        return Answer(question=question, sentence=sentence([missing], {}), findings=(missing,))
    conclusions = ((experiment, experiment.conclude(evidence, findings)) for experiment in experiments)
    author, found = next(((author, found) for author, found in conclusions if found), (Analysis(), ()))
    reasons = author.explain(evidence, findings) if found else ()
    return Answer(
        question=question,
        sentence=sentence(found, author.texts),
        findings=found,
        why=sentence(reasons, {**causes.CAUSES, **author.texts}),
        causes=reasons,
    )


def _acknowledgement_s(table: TrialTable, arm: Arm, experiments: Sequence[Analysis]) -> float | None:
    waits = (experiment.acknowledgement_s(table, arm) for experiment in experiments)
    return next((wait for wait in waits if wait is not None), None)


def _findings(evidence: RunEvidence, experiments: Sequence[Analysis]) -> Findings:
    """Collect the findings of all experiments. Experiments with a model of their own come first; if one of them found something,
    the later ones, such as the model of sessions, are not applied."""
    all_findings: Findings = {key: None for experiment in experiments for key in experiment.findings}
    blocks = sorted({block for good_trials in evidence.table.good.values() for block in good_trials})
    evidence_without = cache(evidence.without_blocks)

    def analyse(
        experiment: Analysis, blocks_left_out: frozenset[int], whole_run_findings: Mapping[str, Part | None]
    ) -> Mapping[str, Part | None]:
        return experiment.analyse(replace(evidence_without(blocks_left_out), whole_run_findings=whole_run_findings))

    for experiment in experiments:
        findings = analyse_with_intervals(partial(analyse, experiment), blocks, experiment.findings)
        findings = {key: None if part is None else experiment.with_sentences(part) for key, part in findings.items()}
        all_findings |= findings
        if experiment.own_model and any(value is not None for value in findings.values()):
            break
    return all_findings


def _without_answer(findings: Findings, experiments: Sequence[Analysis]) -> Findings:
    author_by_key = {key: experiment for experiment in experiments for key in experiment.findings}
    return {
        key: None if part is None else author_by_key[key].without_answer(key, part) for key, part in findings.items()
    }


def _count_void_reasons(trials: Iterable[Trial]) -> dict[str, int]:
    reasons = (
        violation(DISTURBED).sentence if is_repeated(trial) else trial.void_reason or violation(NO_REASON).sentence
        for trial in trials
        if trial.status is TrialStatus.VOID
    )
    return dict(sorted(Counter(reasons).items()))


def _good_blocks(run: Run, arm: str) -> set[int]:
    """Blocks in which an arm was measured, or in which the effect of its fault was recorded."""
    good_trials = (trial for trial in run.trials if trial.arm == arm and trial.status is TrialStatus.OK)
    return {
        t.block for t in good_trials if t.fault is not None or (t.measured is not None and t.measured.transactions > 0)
    }


def _unmeasured(run: Run, arm: Arm) -> Unmeasured:
    trials = [trial for trial in run.trials if trial.arm == arm.name and not is_good(trial)]
    return Unmeasured(
        arm=arm.name,
        factors=arm.factors,
        void_trials=len(trials),
        reasons=_count_void_reasons(trials),
        voids=count_voids(trials),
    )


def _void_shift(trials: Sequence[Trial], table: TrialTable) -> float | None:
    """Largest shift of an arm's geometric mean by the excluded ones of these trials: void ones, and good ones beside a void one."""
    return _largest_shift(
        (
            _log_rates(table, table.measured(arm.name)),
            _log_rates(table, (trial.measured for trial in trials if trial.arm == arm.name)),
        )
        for arm in table.run.info.arms
    )


def _void_ratio_shift(trials: Sequence[Trial], table: TrialTable) -> float | None:
    """Largest shift of an arm's ratio by excluded ones of these trials, with one ratio for each attempt at a block in which both arms
    were measured."""
    logs_by_arm: dict[str, dict[tuple[int, int], float]] = {}
    for trial in trials:
        if trial.measured is not None and (rate := table.rate(trial.measured)):
            logs_by_arm.setdefault(trial.arm, {})[trial.block, trial.attempt] = math.log(rate)
    pairs = []
    for arm in table.run.info.arms:
        if reference := table.compared_reference(arm):
            arm_logs, reference_logs = logs_by_arm.get(arm.name, {}), logs_by_arm.get(reference.name, {})
            counted_logs = [math.log(ratio) for ratio in table.block_ratios(arm.name, reference.name)]
            pairs.append(
                (
                    counted_logs,
                    [
                        arm_logs[attempt] - reference_logs[attempt]
                        for attempt in arm_logs.keys() & reference_logs.keys()
                    ],
                )
            )
    return _largest_shift(pairs)


def _largest_shift(logs: Iterable[tuple[Sequence[float], Sequence[float]]]) -> float | None:
    """Largest difference of means, as a share, over pairs of the values that count and all values. None: nothing was excluded."""
    shifts = [abs(fmean(values) - fmean(counted)) for counted, values in logs if counted and len(values) > len(counted)]
    return math.expm1(max(shifts)) if shifts else None


def _log_rates(table: TrialTable, measured: Iterable[Measured | None]) -> list[float]:
    return [math.log(rate) for trial in measured if trial is not None and (rate := table.rate(trial))]


def _trial_points(table: TrialTable) -> tuple[TrialPoint, ...]:
    points = []
    for trial in sorted(table.run.trials, key=lambda t: t.number):
        good = trial.status is TrialStatus.OK and trial.fault is None
        points.append(
            TrialPoint(
                number=trial.number,
                block=trial.block,
                arm=trial.arm,
                qps=table.rate(trial.measured) if good and trial.measured else None,
                cpu_pressure=trial.load.psi_cpu_some_share if trial.load else None,
                others_cpus=others_cpus_in_trial(trial),
            )
        )
    return tuple(points)


def _session_warnings(
    run: Run, machine: Machine, floors: NoiseFloors, run_controls: Sequence[Control], disturbed: bool
) -> list[Diagnostic]:
    repeat_ratios = [control.measured for control in run_controls if control.is_same]
    unpaired_duplicates = {arm.name for arm in run.info.arms if arm.role is ArmRole.DUPLICATE} - {
        control.arm for control in run_controls
    }
    repeat_ratios += (
        [floors.baseline_ratios[Metric.THROUGHPUT]]
        if Metric.THROUGHPUT in floors.baseline_ratios and unpaired_duplicates
        else []
    )
    adjusted_ratios = [simultaneous(ratio, len(repeat_ratios)) for ratio in repeat_ratios]
    missed = any(control.recovered is False and not control.is_same for control in run_controls)
    warnings = [Diagnostic.DISTURBED] if disturbed else []
    return warnings + session_warnings(adjusted_ratios, missed, machine, max_connections(run))
