"""What was measured besides the paths: connections, placement and link, in one line. What varies stands in the paths' names."""

from __future__ import annotations

from howfar.analysis.advice import capital
from howfar.analysis.summary import Summary
from howfar.report.figures import session_line, shown_cells
from howfar.store.records import FactorValue
from howfar.units import format_duration_ns, format_rate_bps

PLACEMENT = {
    "isolated": "client and server on different CPUs, which emulators and other programs may use too (placement isolated)",
    "machines": "each host with an equal share of the CPUs (placement machines)",
}


def setup_line(summary: Summary) -> str:
    """`2 connections; client and server on different CPUs, which ... (placement isolated); link 1gbit, RTT 0.2ms (measured ...)`.

    Empty for a run without figures.
    """
    if not shown_cells(summary):
        return ""
    return "; ".join(
        part for part in (_connections(summary), _placement(summary), _link(summary), _replica(summary)) if part
    )


def head_line(summary: Summary) -> str:
    """Workload, set-up, and the session, without the last full stop."""
    return ". ".join(part for part in (summary.workload, capital(setup_line(summary)), session_line(summary)) if part)


def _levels(summary: Summary, factor: str) -> list[FactorValue]:
    """Distinct levels: numbers ascending, words in the order of the arms."""
    found = list(dict.fromkeys(cell.factors[factor] for cell in shown_cells(summary) if factor in cell.factors))
    return sorted(found, key=float) if all(isinstance(level, int | float) for level in found) else found


def _several(texts: list[str]) -> str:
    return f"{', '.join(texts[:-1])} or {texts[-1]}"


def _connections(summary: Summary) -> str:
    levels = [str(level) for level in _levels(summary, "threads")]
    if summary.asked == "pages":
        if levels == ["1"]:
            return "1 page in flight"
        return f"{_several(levels) if len(levels) > 1 else levels[0]} pages in flight" if levels else ""
    if len(levels) > 1:
        return f"{_several(levels)} connections"
    return f"{levels[0]} connection{'' if levels[0] == '1' else 's'}" if levels else ""


def _placement(summary: Summary) -> str:
    levels = [str(level) for level in _levels(summary, "placement")]
    if len(levels) > 1:
        return f"placement {_several(levels)}"
    return PLACEMENT.get(levels[0], f"placement {levels[0]}") if levels else ""


def _link(summary: Summary) -> str:
    rates = [format_rate_bps(float(level)) for level in _levels(summary, "rate_bps")]
    rtts = [format_duration_ns(float(level)) for level in _levels(summary, "rtt_ns")]
    if not rates and not rtts:
        return "" if _replica(summary) else "no path over a link"
    parts = [_several(rates) if len(rates) > 1 else rates[0]] if rates else []
    if len(rtts) > 1:
        parts.append(f"RTT {_several(rtts)}")
    elif rtts:
        parts.append(f"RTT {rtts[0]}{_measured(summary)}")
    return f"link {', '.join(parts)}"


def _replica(summary: Summary) -> str:
    """The links between servers, which are no part of the clients' path."""
    rtts = [format_duration_ns(float(level)) for level in _levels(summary, "replica_rtt_ns")]
    rates = [format_rate_bps(float(level)) for level in _levels(summary, "replica_rate_bps")]
    if not rtts:
        return ""
    parts = [
        f"RTT {_several(rtts) if len(rtts) > 1 else rtts[0]}",
        *([_several(rates) if len(rates) > 1 else rates[0]] if rates else []),
    ]
    return f"replicas over {', '.join(parts)}"


def _measured(summary: Summary) -> str:
    """What links of the same settings had, from the nearest to the farthest."""
    found = sorted(cell.rest_rtt_ns for cell in shown_cells(summary) if cell.rest_rtt_ns is not None)
    if not found:
        return " (not measured)"
    texts = list(dict.fromkeys(format_duration_ns(rtt) for rtt in (found[0], found[-1])))
    return f" (measured {' to '.join(texts)} at rest)"
