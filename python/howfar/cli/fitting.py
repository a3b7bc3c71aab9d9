"""Ask this machine and the plan's server what they can do, and fit the plan to it."""

from __future__ import annotations

from howfar.plan.fitting import Fitted, check_rows, resumed_in_full, with_rows, without_levels
from howfar.plan.sessions import session_asked
from howfar.plan.types import Plan


def fit(plan: Plan) -> Fitted:
    """The plan without what cannot be had here. The server is started and asked once, then its answer is kept.

    Raises ServerMissing, ServerCrashed, LabError; PlanError when nothing is left.
    """
    if not plan.data.fit:
        check_rows(plan, _rows_at_all(plan))
    able = without_levels(plan, _lacking(plan))
    sized = with_rows(able.plan, _most_rows(plan) if plan.data.fit else 0)
    return Fitted(sized.plan, (*able.said, *sized.said, *resumed_in_full(sized.plan)))


def _rows_at_all(plan: Plan) -> int:
    from howfar.lab.room import rows_at_all

    return rows_at_all(plan.data)


def _most_rows(plan: Plan) -> int:
    from howfar.lab.room import rows_that_fit
    from howfar.lab.servers.kinds import find_server

    return rows_that_fit(plan.data, plan.factors.content, find_server(plan.factors.server[0]))


def _lacking(plan: Plan) -> dict[str, dict[str, str]]:
    """Levels of encryption and compression that the server has not, with the reason."""
    from howfar.lab.servers.features import features
    from howfar.lab.servers.kinds import find_server

    algorithms = {level: session_asked({"compression": level}).algorithm for level in plan.factors.compression}
    versions = {level: session_asked({"tls": level}).tls for level in plan.factors.tls}
    if not (any(algorithms.values()) or any(versions.values())):
        return {}
    program = find_server(plan.factors.server[0])
    found = features(program)
    who = f"{program.kind} {program.version}"
    return {
        "compression": {
            level: f"{who} has no {algorithm}, only {' and '.join(found.compression) or 'no compression'}"
            for level, algorithm in algorithms.items()
            if algorithm and algorithm not in found.compression
        },
        "tls": {
            level: f"{who} was built without TLS" for level, version in versions.items() if version and not found.tls
        },
    }
