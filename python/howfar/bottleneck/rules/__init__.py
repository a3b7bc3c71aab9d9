"""The rules of attribution, in the order in which they are asked. The first that finds something names the limit.

A rule is a function of the evidence and the cycle, in the file of its kind; a new one is a function and its place in `RULES`.
Thresholds stand beside the rules with their reasons; docs/limits.md is the same in words. Not here: what would change a limit
(`counterfactual.py`).
"""

from __future__ import annotations

from howfar.analysis.findings import Cycle
from howfar.bottleneck.evidence import Evidence
from howfar.bottleneck.rules.cpus import (
    busy_machine,
    client_thread,
    cpu_queue,
    full_cpus,
    one_thread,
    waiting_client,
)
from howfar.bottleneck.rules.finding import Finding, Rule
from howfar.bottleneck.rules.inside import acknowledgements, commits, errors, locks, server_wait
from howfar.bottleneck.rules.links import full_link, held_windows, loss
from howfar.bottleneck.rules.rounds import latency, not_established, own_round

RULES: tuple[Rule, ...] = (
    errors,
    full_link,
    client_thread,
    full_cpus,
    one_thread,
    cpu_queue,
    waiting_client,
    held_windows,
    loss,
    acknowledgements,
    commits,
    locks,
    server_wait,
    latency,
    own_round,
    busy_machine,
)


def judge(evidence: Evidence, cycle: Cycle) -> Finding:
    """The first rule's answer, or the refusal."""
    for rule in RULES:
        found = rule(evidence, cycle)
        if found is not None:
            return found
    return not_established(evidence, cycle)
