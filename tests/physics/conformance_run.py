"""A program of the conformance suite: runs all checks of one back-end in the sandbox and prints the results as JSON.

A check that fails is repeated a few times: other programs on this machine disturb it differently each time, but a faulty link fails
each time.
"""

from __future__ import annotations

import json
import sys
import time
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from howfar.contract.receipt import LinkCalibration
from howfar.errors import HowfarError
from howfar.lab import sandbox
from howfar.lab.link import DIRECTIONS, Link, LinkSpec, open_link
from howfar.lab.link.backends import backends
from howfar.lab.link.backends.kernel_qdiscs import qdisc_batch
from howfar.lab.link.running import missing_qdiscs
from howfar.lab.network import build_network, share_cpus, usable_cpus

if TYPE_CHECKING:
    from tests.physics.conformance_checks import Check

PAUSES_S = (0.0, 0.0, 0.0, 1.0, 2.0, 5.0, 5.0, 5.0)
"""Pause before each attempt; disturbances often last seconds."""
_NO_EFFECTS = LinkSpec(rtt_ns=0, rate_bps=None)


def run(link: Link, check: Check) -> dict[str, Any]:
    spec = check.spec()
    obstacle = find_obstacle(link.backend, spec, check)
    if obstacle is not None:
        return {"skipped": obstacle}
    seen: list[dict[str, Any]] = []
    for attempt, pause_s in enumerate(PAUSES_S):
        time.sleep(pause_s)
        # Another seed for each attempt: with one sequence in a thousand a correct link fails. netem has no seed.
        spec = LinkSpec(**{**vars(spec), "seed": 0 if link.backend == "kernel" else attempt})
        try:
            if not check.calibrated:
                link.calibrations[spec.without_effects()] = LinkCalibration(compensate_ns=0, rtt_p50_ns=spec.rtt_ns)
            link.shape(spec)
            link.start_effects()
            right, facts = check.observe(link)
        except HowfarError as error:
            right, facts = False, {"failed": error.message}
        seen.append(facts)
        if right:
            return {"right": True, "seen": seen}
    return {"right": False, "seen": seen}


def find_obstacle(backend: str, spec: LinkSpec, check: Check) -> str | None:
    """Why a check is impossible with this back-end; None if it is possible."""
    reason = backends()[backend].refusal_reason(spec)
    if reason is not None or backend != "kernel":
        return reason
    if not check.burst:
        return "tbf's bucket of 128 kB lets the burst through before the queue is used"
    missing = missing_qdiscs()
    for kind in ("tbf", "netem"):
        if kind in missing and any(f": {kind} " in line for name in DIRECTIONS for line in qdisc_batch(spec, name, 0)):
            return f"{kind} is not here ({missing[kind]})"
    return None


def main() -> None:
    from tests.physics.conformance_checks import CHECKS  # scipy is slow to load, and not needed outside the sandbox

    name = sys.argv[1]
    with ExitStack() as stack:
        network = build_network(stack)
        shares = share_cpus(usable_cpus())
        known = {_NO_EFFECTS.without_effects(): LinkCalibration(compensate_ns=0, rtt_p50_ns=0)}
        try:
            launchers = (network.client.launcher(shares.client), network.server.launcher(shares.server))
            link = stack.enter_context(
                open_link(network, _NO_EFFECTS, *launchers, known, backend=name, with_goodput=False)
            )
        except HowfarError as error:
            print(json.dumps({"absent": error.message}))
            return
        print(json.dumps({check.name: run(link, check) for check in CHECKS.values()}))


if __name__ == "__main__":
    if not sandbox.inside():
        sys.exit(sandbox.run_inside())
    main()
