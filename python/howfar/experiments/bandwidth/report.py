"""Links, connections or other factors varied together: throughput of every cell, its limit, and how it scales."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from howfar.analysis.summary import Findings, RunEvidence, Summary
from howfar.experiments.bandwidth import curves
from howfar.experiments.bandwidth.analysis import Scaling, scaling, verdict, worded
from howfar.experiments.compression.analysis import costs as compression_costs
from howfar.experiments.encryption.analysis import connecting
from howfar.experiments.experiment import Experiment, Keys
from howfar.experiments.grid import grid_document
from howfar.experiments.pairs import levels
from howfar.model.facts import ArmFacts
from howfar.model.fit import Series, fit, series, settings_of
from howfar.model.what_if import WhatIf, WhatIfSettings, WhatIfWorked, answer, is_known
from howfar.paths import is_modelled
from howfar.plan.factors import ORDINARY
from howfar.report.document import Document
from howfar.report.grid import is_grid
from howfar.stats.estimate import Part

VARIED = ("tls", "compression", "connect")
_FAST_BPS, _SLOW_BPS = 10e9, 100e6
_FAR_S = 0.001


def what_if(facts: Sequence[ArmFacts], workload: Mapping[str, Any], like: Part | None = None) -> WhatIf | None:
    """The fitted model with its predictions, from the plain curve over a link with the highest throughput, else on loopback. `like`:
    the finding about the complete run, whose curve and settings are reused. None: no plain cell can be modelled, or the plan varies
    none of the settings."""
    if not any(levels(facts, name) for name in VARIED) and len({each.threads for each in facts}) < 2:
        return None
    plain = [each for each in series(facts) if is_modelled(each.factors.get("path")) and _is_plain(each)]
    linked = [each for each in plain if not each.local]
    whole = like if isinstance(like, WhatIf) else None
    if whole is not None:
        linked = plain = [each for each in plain if whole.arm in (facts.arm.name for facts in each.arms)]
    if not plain:
        return None
    chosen = max(linked or plain, key=lambda each: (len(each.arms) > 1, each.top.tps.value))
    content = chosen.top.level("content")
    costs = {"compression": compression_costs(facts, content), **connecting(facts)}
    base = fit(chosen.arms, workload).model_copy(update=costs)
    settings = _settings(base, chosen.top) if whole is None else [each.settings for each in whole.worked]
    known = {"off", *(each.algorithm for each in base.compression)}
    settings = [one for one in settings if one.compression in known and is_known(base, one.tls, one.connect_each)]
    worked = tuple(WhatIfWorked(settings=each, answer=answer(base, each)) for each in settings)
    return (whole or base).model_copy(update={"worked": worked})


def _is_plain(one: Series) -> bool:
    """Whether a series has persistent connections and neither TLS nor compression; its other factors may have any level."""
    return all(one.factors.get(name, ORDINARY[name]) == ORDINARY[name] for name in VARIED)


def _settings(base: WhatIf, top: ArmFacts) -> list[WhatIfSettings]:
    """Settings to predict: the measured point, then one thing changed at a time."""
    now = settings_of(top)
    found = [now]

    def also(**changed: object) -> None:
        found.append(now.model_copy(update=changed))

    for threads in (1, 2 * now.threads):
        also(threads=min(threads, base.threads_most))
    also(rtt_s=now.rtt_s + _FAR_S)
    for rate in (_SLOW_BPS, 1e9, _FAST_BPS):
        also(rate_bps=rate)
    for tls, connect_each in ((True, False), (False, True), (True, True)):
        if is_known(base, tls, connect_each):
            also(tls=tls, connect_each=connect_each)
    for each in base.compression:
        also(compression=each.algorithm)
        also(compression=each.algorithm, rate_bps=_SLOW_BPS)
    return [each for number, each in enumerate(found) if each not in found[:number]]


class Bandwidth(Experiment):
    name = "bandwidth"
    findings: ClassVar[Keys] = {"scaling": Scaling, "what_if": WhatIf}

    def analyse(self, evidence: RunEvidence) -> Mapping[str, Part | None]:
        return {
            "scaling": scaling(evidence.table.run, evidence.facts),
            "what_if": what_if(evidence.facts, evidence.workload, evidence.whole.get("what_if")),
        }

    def worded(self, found: Part) -> Part:
        return worded(found) if isinstance(found, Scaling) else found

    def verdict(self, evidence: RunEvidence, findings: Findings) -> str:
        return verdict(evidence)

    def applies(self, summary: Summary) -> bool:
        return summary.found(Scaling) is not None or is_grid(summary)

    def document(self, summary: Summary) -> Document:
        return grid_document(summary, chart=curves.scaling(summary))
