"""What a run says of pages, for a spreadsheet: columns beside those of a cell, whose rates and CPU are of pages then too. Times in
milliseconds, turns in microseconds; an empty field is unknown."""

from __future__ import annotations

from howfar.analysis.summary import Summary
from howfar.experiments.page.findings import PageArm, PageChoice, PageFindings, TurnCost
from howfar.experiments.page.report import words
from howfar.stats.estimate import Estimate

Line = dict[str, object]


def told(summary: Summary) -> dict[str, Line]:
    """By arm. Every arm has the same columns; none at all where the run is not about pages."""
    findings = summary.pages
    if findings is None:
        return {}
    lines = {arm.arm: _line(arm, _choice(arm, findings)) for arm in findings.arms}
    names = dict.fromkeys(name for line in lines.values() for name in line)
    return {arm: {name: line.get(name, "") for name in names} for arm, line in lines.items()}


def _choice(arm: PageArm, findings: PageFindings) -> PageChoice | None:
    """On the line of the arm with two machines that it is about."""
    if arm.machines == 1:
        return None
    mine = words.setting_of(arm), words.way_of(arm)
    return next((each for each in findings.choices if (words.setting_of(each), words.way_of(each)) == mine), None)


def _line(arm: PageArm, choice: PageChoice | None) -> Line:
    return {
        "page": arm.page,
        "application": arm.application,
        "machines": arm.machines,
        "app_cpu_ns": arm.app_cpu_ns,
        **_limits("pages_per_s", arm.pages_per_s),
        **_limits("page_ms", arm.page_ms),
        "p50_ms": _number(arm.p50_ms),  # as everywhere else, not that of all trials' pages together
        "share_over_13_ms": _number(arm.over_noticed),
        "share_over_75_ms": _number(arm.over_degraded),
        "own_cpu_ms": _number(arm.own_cpu_ms),
        **{f"{role}_cpu_ms": _number(cpu) for role, cpu in arm.cpu_ms.items()},
        **{f"{machine}_busy": _number(busy) for machine, busy in arm.busy.items()},
        **{name: value for cost in arm.turns for name, value in _turns(cost).items()},
        "rtt_ms": _number(arm.rtt_ms),
        "predicted_p50_ms": _number(arm.predicted_p50_ms),
        "predicted_error": _number(arm.predicted_error),
        **(_compared(choice) if choice else {}),
    }


def _turns(cost: TurnCost) -> Line:
    found = {
        "turns": cost.turns,
        "turn_us": cost.mean_us,
        "connects": cost.connects,
        "connect_us": cost.connect_us,
        "bytes_to_server": cost.bytes_to_server,
        "bytes_to_client": cost.bytes_to_client,
    }
    return {f"{cost.service}_{name}": _number(value) for name, value in found.items()}


def _compared(choice: PageChoice) -> Line:
    return {
        "app_cpu_total_ms": _number(choice.app_cpu_total_ms),
        **_limits("two_over_one", choice.two_over_one),
        "two_over_one_predicted": _number(choice.predicted),
        **_limits("tcp_over_socket", choice.tcp_over_socket),
        "better": choice.better,
    }


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.6g}"


def _limits(name: str, found: Estimate | None) -> Line:
    low, high = (found.low, found.high) if found else (None, None)
    return {name: _number(found.value if found else None), f"{name}_low": _number(low), f"{name}_high": _number(high)}
