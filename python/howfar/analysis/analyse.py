"""From a run's records to its answer: `summarise`. Pure: the same run gives the same summary, on any machine, at any time."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from howfar.analysis import signs
from howfar.analysis.advice import advise
from howfar.analysis.budget import time_split_us
from howfar.analysis.economics.compression import compression
from howfar.analysis.economics.encryption import encryption
from howfar.analysis.link_facts import link_facts
from howfar.analysis.plateau import complete_blocks, settled
from howfar.analysis.published import find_published
from howfar.analysis.scaling import scaling
from howfar.analysis.signs import baseline_spread, others_cpus, others_in
from howfar.analysis.summary import (
    NOT_THE_PATH,
    Advice,
    Bound,
    BytesPerTxn,
    CellSummary,
    CpuPerQuery,
    KeyReads,
    Summary,
    TrialPoint,
    Unmeasured,
    Warning,
)
from howfar.analysis.trials import (
    TrialTable,
    Value,
    median_latency_ns,
    path_cpu_us,
    qps,
    rate_unit,
    role_cpu_us,
    transaction_histogram,
    trial_table,
)
from howfar.analysis.verdict import verdict
from howfar.analysis.workload_line import asked, workload_line
from howfar.bottleneck.confirmation import confirmations, doubted, refuted_sentence, unadvised, unconfirmed
from howfar.bottleneck.connecting import connect_turns
from howfar.bottleneck.cycle import setting_of
from howfar.bottleneck.limit import find_limit
from howfar.bottleneck.traffic import network_series
from howfar.experiments.page.analysis import page_findings
from howfar.experiments.page.arms import is_a_page, is_of_pages
from howfar.experiments.page.sentences import page_advice, page_verdict
from howfar.experiments.replication.advice import replication_advice
from howfar.experiments.replication.analysis import waits_s
from howfar.experiments.replication.arms import server_kind
from howfar.experiments.replication.trade import ReplicationFindings, replication_findings, replication_verdict
from howfar.model.facts import arm_facts
from howfar.model.page import what_if
from howfar.plan.factors import breaks
from howfar.stats import histograms
from howfar.stats.estimate import Estimate
from howfar.stats.intervals import (
    RatioJudgement,
    Resolution,
    blocks_needed,
    judge_ratio,
    mean_interval,
    noise_floor,
    resolve,
)
from howfar.store.records import Arm, ArmRole, Measured, Run, TrialStatus, confirmation_part, plan_part

DEFAULT_TARGET = 0.02
"""Half-width asked for where a plan does not say."""

IDENTITY = Estimate(value=1.0, low=1.0, high=1.0)
"""The baseline over itself."""


def summarise(run: Run) -> Summary:
    """The whole answer. Arms without a good trial are in `unmeasured`; a run without any has no cells and says so."""
    confirmed = confirmation_part(run)
    run = plan_part(run)
    table = trial_table(run)
    floors = _Floors(table)
    rest = settled(run, floors.target)
    facts, workload = arm_facts(run), run.info.plan.get("workload", {})
    cells = tuple(_cell(table, arm, floors, arm.name in rest) for arm in run.info.arms if table.measured(arm.name))
    about = {cell.arm for cell in cells if cell.limit is None or cell.limit.resource not in NOT_THE_PATH}
    facts = tuple(replace(each, valid=each.arm.name in about) for each in facts)
    tested = confirmations(confirmed)
    replication = replication_findings(table)
    pages = page_findings(table, floors.throughput)
    found = page_verdict(pages) if pages else replication_verdict(replication) if replication else ""
    if is_of_pages(table):
        facts = ()  # a page is no session: it has its own model, in Summary.pages
    sessions = () if replication else facts  # their model knows of no replica, and Summary.replication has its own
    return Summary(
        run=run.info.run_id,
        plan=run.info.plan_name,
        quick=run.info.quick,
        howfar=run.info.howfar_version,
        created=datetime.fromtimestamp(run.info.created_unix_ns / 1e9, UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        command=shlex.join(run.info.command),
        server={"kind": run.info.server_kind, "version": run.info.server_version},
        workload=workload_line(run.info.plan, run.info.environment),
        asked=asked(run.info.plan),
        blocks=_most_trials(run),
        complete_blocks=complete_blocks(table, floors.target),
        noise_floor=floors.throughput,
        aa_ratio=floors.aa,
        cpu_noise_floor=floors.cpu,
        target_half_width=floors.target,
        stop=run.stop.value if run.stop else None,
        void_trials=sum(trial.status is TrialStatus.VOID for trial in run.trials),
        void_reasons=_reasons(run, None),
        others_cpus=others_cpus(run.trials),
        machine_cpus=_machine_cpus(run),
        baseline_spread=baseline_spread(table),
        verdict=verdict(cells, table, floors.throughput, floors.aa, refuted_sentence(cells, tested), found),
        advice=page_advice(pages) if pages else _advice(unadvised(cells, tested), table, replication),
        cells=doubted(cells, tested),
        unmeasured=tuple(_unmeasured(table, arm) for arm in run.info.arms if not _good(run, arm.name)),
        trials=_points(run),
        environment=run.info.environment,
        warnings=tuple(_session_warnings(run, floors.aa)),
        confirmations=tested,
        unconfirmed=unconfirmed(confirmed),
        scaling=scaling(run, sessions),
        compression=compression(facts, workload, floors.throughput),
        encryption=encryption(facts, workload, floors.throughput),
        what_if=what_if(sessions, workload),
        replication=replication,
        pages=pages,
    )


class _Floors:
    """What the A/A arm says about this session, and the width asked for."""

    def __init__(self, table: TrialTable) -> None:
        self.aa = self._aa(table, qps)
        aa_cpu = self._aa(table, path_cpu_us)
        self.throughput = noise_floor(self.aa) if self.aa else None
        self.cpu = noise_floor(aa_cpu) if aa_cpu else None
        self.target = _target(table.run.info.plan)

    @staticmethod
    def _aa(table: TrialTable, value: Value) -> Estimate | None:
        arm = next((arm for arm in table.run.info.arms if arm.role is ArmRole.DUPLICATE), None)
        judged = _judged(table, arm.name, value) if arm else None
        return judged.quoted if judged else None


def _target(plan: Mapping[str, Any]) -> float:
    timing = plan.get("timing")
    target = timing.get("target_half_width") if isinstance(timing, Mapping) else None
    return float(target) if isinstance(target, int | float) and target > 0 else DEFAULT_TARGET


def _judged(table: TrialTable, arm: str, value: Value) -> RatioJudgement | None:
    if table.baseline is None:
        return None
    ratios = table.block_ratios(arm, table.baseline.name, value)
    return judge_ratio(ratios) if ratios else None


def _quoted(table: TrialTable, arm: Arm, value: Value) -> Estimate | None:
    if arm.role is ArmRole.BASELINE:
        return IDENTITY
    judged = _judged(table, arm.name, value)
    return judged.quoted if judged else None


def _cell(table: TrialTable, arm: Arm, floors: _Floors, rests: bool) -> CellSummary:
    trials = table.measured(arm.name)
    whole = list(table.trials[arm.name].values())
    baseline = arm.role is ArmRole.BASELINE
    broken = breaks(arm.factors)  # each trial is another accident: no ratio of theirs is a result
    page = is_a_page(
        arm
    )  # the engine is then an application, or a visitor: no rule about a load generator's sessions holds
    judged = None if baseline or broken else _judged(table, arm.name, qps)
    cpu_ratio = None if broken else _quoted(table, arm, path_cpu_us)
    transactions = sum(trial.transactions for trial in trials)
    records = [record for trial in trials if (record := transaction_histogram(trial))]
    merged = histograms.merge(records)
    receipts = [t.receipt for t in table.run.trials if t.arm == arm.name and t.status is TrialStatus.OK]
    link = link_facts(arm.factors, receipts)
    rest_rtt_s = link.rest_rtt_ns / 1e9 if link.rest_rtt_ns is not None else None
    _, cycle, limit = find_limit(
        whole, setting_of(table.run.info, arm, threads_of(arm), rest_rtt_s, waits_s(table, arm))
    )
    ratio = IDENTITY if baseline else judged.quoted if judged else None
    bound = _cpu_bound(arm, table.baseline)
    warnings = [w for w in signs.arm_warnings(trials, link) if not (page and w is Warning.CLIENT_LIMITED)]
    warnings += signs.ratio_warnings(judged, floors.target) if judged else []
    return CellSummary(
        factors=arm.factors,
        arm=arm.name,
        role=arm.role,
        trials=len(trials),
        void_trials=len(table.void(arm.name)),
        qps=mean_interval([value for trial in trials if (value := qps(trial)) is not None]),
        ratio=ratio,
        mean_ratio=IDENTITY if baseline else judged.mean if judged else None,
        rank_ratio=IDENTITY if baseline else judged.rank if judged else None,
        block_ratios=tuple(table.block_ratios(arm.name, table.baseline.name, qps)) if table.baseline else (),
        blocks_needed=blocks_needed(judged.sd_log, floors.target) if judged and judged.sd_log is not None else None,
        resolution=Resolution.BASELINE if baseline else resolve(ratio, floors.throughput),
        cpu_resolution=Resolution.BASELINE if baseline else _cpu_resolution(cpu_ratio, floors.cpu, bound),
        cpu_us_per_query=_cpu(trials),
        cpu_ratio=cpu_ratio,
        cpu_bound=bound,
        latency_ms=histograms.latency_ms(merged, records),
        latency_curve=histograms.curve(merged),
        latency_ratio=_quoted(table, arm, median_latency_ns),
        turns_per_txn=sum(trial.turns for trial in trials) / transactions + connect_turns(receipts, arm.factors),
        queries_per_txn=sum(trial.queries for trial in trials) / transactions,
        bytes_per_txn=_bytes(trials, transactions, counted=arm.factors.get("application") != "php"),
        time_split_us={} if page else time_split_us(cycle),
        rest_rtt_ns=link.rest_rtt_ns,
        receipt=receipts[-1] if receipts else {},
        published=find_published(table.run.info.plan_name, arm.factors) if arm.role is not ArmRole.DUPLICATE else None,
        settled_after=len(trials) if rests else None,
        warnings=tuple(warnings),
        cycle=None if broken or page else cycle,  # half of the window may be an outage: nothing limits it but that
        limit=None if broken or page else limit,
        network=network_series(whole[-1], arm.factors),
        keys=_key_reads(table, trials),
    )


def _bytes(trials: Sequence[Measured], transactions: int, counted: bool) -> BytesPerTxn:
    if not counted:  # what the engine sees is FastCGI
        return BytesPerTxn(to_server=None, to_client=None)
    return BytesPerTxn(
        to_server=sum(trial.bytes_to_server for trial in trials) / transactions,
        to_client=sum(trial.bytes_to_client for trial in trials) / transactions,
    )


def _key_reads(table: TrialTable, trials: Sequence[Measured]) -> KeyReads | None:
    """Of workloads of keys, and of pages: by the engine's count, or by what an application's pages told."""
    if asked(table.run.info.plan) == "queries":
        return None
    counted = [(each.hits, each.misses) for trial in trials for each in trial.services]
    told = [(trial.told.get("hits", 0), trial.told.get("misses", 0)) for trial in trials if trial.told]
    found = counted + told
    return KeyReads(hits=sum(hits for hits, _ in found), misses=sum(misses for _, misses in found)) if found else None


def _passes_link(arm: Arm) -> bool:
    """Only cells on paths over the link have the link's factors."""
    return "rtt_ns" in arm.factors or "rate_bps" in arm.factors


def _cpu_bound(arm: Arm, baseline: Arm | None) -> Bound:
    if baseline is None or _passes_link(arm) == _passes_link(baseline):
        return Bound.MEASURED
    return Bound.AT_LEAST if _passes_link(arm) else Bound.AT_MOST


def _cpu_resolution(cpu_ratio: Estimate | None, floor: float | None, bound: Bound) -> Resolution:
    """More CPU a query is slower. What a bound cannot show is not claimed: "at least 0.9" may be more than 1."""
    found = resolve(cpu_ratio, floor)
    turned = {Resolution.FASTER: Resolution.SLOWER, Resolution.SLOWER: Resolution.FASTER}
    claimed = turned.get(found, found)
    beyond = {Bound.AT_LEAST: Resolution.FASTER, Bound.AT_MOST: Resolution.SLOWER}
    return Resolution.NOT_RESOLVED if claimed is beyond.get(bound) else claimed


def threads_of(arm: Arm) -> int:
    """Connections of an arm; one where its factors do not say."""
    threads = arm.factors.get("threads", 1)
    return int(threads) if isinstance(threads, int | float) else 1


def _cpu(trials: Sequence[Measured]) -> CpuPerQuery:
    def role(name: str) -> Estimate | None:
        values = [value for trial in trials if (value := role_cpu_us(trial, name)) is not None]
        return mean_interval(values) if values else None

    nothing = Estimate(value=0.0, low=None, high=None)
    return CpuPerQuery(
        client=role("client") or nothing,
        server=role("server") or nothing,
        forwarder=role("forwarder"),
        link=role("link"),
    )


def _reasons(run: Run, arm: str | None) -> dict[str, int]:
    found = Counter(
        trial.void_reason or "no reason recorded"
        for trial in run.trials
        if trial.status is TrialStatus.VOID and arm in (None, trial.arm)
    )
    return dict(sorted(found.items()))


def _advice(
    cells: Sequence[CellSummary], table: TrialTable, replication: ReplicationFindings | None
) -> tuple[Advice, ...]:
    if replication is None:
        return advise(cells, table)
    mine = replication_advice(replication, server_kind(table.run.info, table.run.info.arms[0]))
    return (*mine, *advise(cells, table, limits=False)) if replication.cost is not None else mine


def _good(run: Run, arm: str) -> set[int]:
    """Blocks in which an arm was measured, or in which what its fault did was seen."""
    seen = (trial for trial in run.trials if trial.arm == arm and trial.status is TrialStatus.OK)
    return {t.block for t in seen if t.fault is not None or (t.measured is not None and t.measured.transactions > 0)}


def _most_trials(run: Run) -> int:
    return max((len(_good(run, arm.name)) for arm in run.info.arms), default=0)


def _unmeasured(table: TrialTable, arm: Arm) -> Unmeasured:
    voids = len(table.void(arm.name))
    return Unmeasured(arm=arm.name, factors=arm.factors, void_trials=voids, reasons=_reasons(table.run, arm.name))


def _points(run: Run) -> tuple[TrialPoint, ...]:
    points = []
    _, rate = rate_unit(run)
    for trial in sorted(run.trials, key=lambda t: t.number):
        good = trial.status is TrialStatus.OK and trial.measured is not None and trial.fault is None
        points.append(
            TrialPoint(
                number=trial.number,
                block=trial.block,
                arm=trial.arm,
                qps=rate(trial.measured) if good and trial.measured else None,
                cpu_pressure=trial.load.psi_cpu_some_share if trial.load else None,
                others_cpus=others_in(trial),
            )
        )
    return tuple(points)


def _session_warnings(run: Run, aa: Estimate | None) -> list[Warning]:
    loads = [trial.load for trial in run.trials if trial.load is not None]
    threads = max((threads_of(arm) for arm in run.info.arms), default=1)
    return signs.session_warnings(aa, loads, signs.Machine(_machine_cpus(run), others_cpus(run.trials)), threads)


def _machine_cpus(run: Run) -> int | None:
    return next((v for k in ("cpu_count", "cpus") if isinstance(v := run.info.environment.get(k), int)), None)
