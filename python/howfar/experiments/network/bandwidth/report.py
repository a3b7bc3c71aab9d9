"""Links, connections or other factors varied together: throughput of every cell, its limit, and how it scales."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

from howfar.analysis.summary import Findings, RunEvidence, Summary
from howfar.experiments.experiment import Experiment, Keys
from howfar.experiments.network.arm_pairs import changed_levels
from howfar.experiments.network.bandwidth.analysis import Scaling, conclude, explain, scaling
from howfar.experiments.network.bandwidth.texts import TEXTS
from howfar.experiments.network.compression.analysis import algorithm_costs
from howfar.experiments.network.encryption.analysis import connect_costs
from howfar.experiments.network.fit import Series, fit, series, settings_of
from howfar.experiments.network.grid import grid_document
from howfar.experiments.network.what_if import WhatIf, WhatIfSettings, WhatIfWorked, answer, is_known
from howfar.findings import Finding
from howfar.model.facts import ArmFacts
from howfar.paths import is_modelled
from howfar.plan.factors import CONTENT, IMPLIED_LEVELS, PATH
from howfar.plan.workload import Workload
from howfar.report.document import Document
from howfar.report.grid import is_grid
from howfar.stats.estimate import Part

VARIED = ("tls", "compression", "connect")
_FAST_BPS, _SLOW_BPS = 10e9, 100e6
_FAR_S = 0.001


def what_if(
    facts: Sequence[ArmFacts], workload: Workload | None, whole_run_finding: Part | None = None
) -> WhatIf | None:
    """The fitted model with its predictions, from the plain curve over a link with the highest throughput, else on loopback.
    `whole_run_finding`: the finding about the complete run, whose curve and settings are reused. None: no plain cell can be modelled,
    or the plan varies none of the settings."""
    if not any(changed_levels(facts, name) for name in VARIED) and len({arm.threads for arm in facts}) < 2:
        return None
    plain_series = [
        one_series
        for one_series in series(facts)
        if is_modelled(PATH.level_or_none(one_series.factors)) and _is_plain(one_series)
    ]
    link_series = [one_series for one_series in plain_series if not one_series.is_local]
    whole_run = whole_run_finding if isinstance(whole_run_finding, WhatIf) else None
    if whole_run is not None:
        link_series = plain_series = [
            one_series for one_series in plain_series if whole_run.arm in (facts.arm.name for facts in one_series.arms)
        ]
    if not plain_series:
        return None
    base_series = max(
        link_series or plain_series, key=lambda one_series: (len(one_series.arms) > 1, one_series.top.tps.value)
    )
    content = CONTENT.level_in(base_series.top.arm.factors)
    costs = {"compression": algorithm_costs(facts, content), **connect_costs(facts)}
    base = fit(base_series.arms, workload).model_copy(update=costs)
    settings = (
        _settings(base, base_series.top) if whole_run is None else [example.settings for example in whole_run.worked]
    )
    known = {"off", *(compression.algorithm for compression in base.compression)}
    settings = [
        setting
        for setting in settings
        if setting.compression in known and is_known(base, setting.tls, setting.connect_each)
    ]
    worked = tuple(WhatIfWorked(settings=setting, answer=answer(base, setting)) for setting in settings)
    return (whole_run or base).model_copy(update={"worked": worked})


def _is_plain(one_series: Series) -> bool:
    """Whether a series has persistent connections and neither TLS nor compression; its other factors may have any level."""
    return all(one_series.factors.get(name, IMPLIED_LEVELS[name]) == IMPLIED_LEVELS[name] for name in VARIED)


def _settings(base: WhatIf, top: ArmFacts) -> list[WhatIfSettings]:
    """Settings to predict: the measured point, then one thing changed at a time."""
    measured = settings_of(top)
    settings = [measured]

    def add(**changed: object) -> None:
        settings.append(measured.model_copy(update=changed))

    for threads in (1, 2 * measured.threads):
        add(threads=min(threads, base.max_threads))
    add(rtt_s=measured.rtt_s + _FAR_S)
    for rate in (_SLOW_BPS, 1e9, _FAST_BPS):
        add(rate_bps=rate)
    for tls, connect_each in ((True, False), (False, True), (True, True)):
        if is_known(base, tls, connect_each):
            add(tls=tls, connect_each=connect_each)
    for compression in base.compression:
        add(compression=compression.algorithm)
        add(compression=compression.algorithm, rate_bps=_SLOW_BPS)
    return [setting for index, setting in enumerate(settings) if setting not in settings[:index]]


class BandwidthExperiment(Experiment):
    name = "bandwidth"
    texts = TEXTS
    findings: ClassVar[Keys] = {"scaling": Scaling, "what_if": WhatIf}

    def analyse(self, evidence: RunEvidence) -> Mapping[str, Part | None]:
        return {
            "scaling": scaling(evidence.table.run, evidence.facts),
            "what_if": what_if(evidence.facts, evidence.workload, evidence.whole_run_findings.get("what_if")),
        }

    def without_answer(self, key: str, finding: Part) -> Part | None:
        return None if isinstance(finding, WhatIf) else finding

    def conclude(self, evidence: RunEvidence, findings: Findings) -> tuple[Finding, ...]:
        return conclude(evidence)

    def explain(self, evidence: RunEvidence, findings: Findings) -> tuple[Finding, ...]:
        return explain(evidence)

    def applies(self, summary: Summary) -> bool:
        return summary.find_findings(Scaling) is not None or is_grid(summary)

    def document(self, summary: Summary) -> Document:
        return grid_document(summary)
