"""What servers support of compressed sessions."""

from __future__ import annotations

from howfar.experiments.network.factors import COMPRESSION, requested_compression
from howfar.lab.servers.features import find_features
from howfar.lab.servers.kinds import find_server
from howfar.plan.factor import Level
from howfar.plan.types import Plan
from howfar.runner.preflight import ServerSupport


def _unsupported_levels(plan: Plan) -> dict[str, dict[Level, str]]:
    """Levels of compression that the server does not support, with the reason."""
    levels: tuple[str, ...] = getattr(plan.factors, COMPRESSION.name)
    requests = {level: request for level in levels if (request := requested_compression(level)) is not None}
    if not requests:
        return {}
    program = find_server(plan.factors.server[0])
    algorithms = find_features(program).compression
    available = f"only {' and '.join(algorithms)}" if algorithms else "its protocol has no compression"
    return {
        COMPRESSION.name: {
            level: f"{program.kind} {program.version} has no {request.algorithm}, {available}"
            for level, request in requests.items()
            if request.algorithm not in algorithms
        }
    }


SERVER_SUPPORT = (ServerSupport(_unsupported_levels),)
