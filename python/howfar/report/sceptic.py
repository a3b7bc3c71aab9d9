"""What a sceptic attacks first, answered from the run's own figures; and the limits that no figure removes."""

from __future__ import annotations

from howfar.analysis.summary import Summary, Warning
from howfar.analysis.workload_line import ONE
from howfar.report import figures
from howfar.report.grid import is_grid
from howfar.report.sceptic_page import page_questions
from howfar.stats.intervals import half_width, half_width_text
from howfar.store.records import ArmRole

RECEIPTS = (
    "Each trial has a receipt, below: address family and peer as the kernel gives them, encryption and compression as the "
    "server gives them. Where one differs from what was asked, the trial is void."
)
NETWORK = (
    "Packets and TCP are the kernel's own. Rate and delay of the link between two network namespaces are made by an emulator, "
    "whose RTT at rest is measured and stands in the receipt. A real network also has jitter, loss and neighbours."
)
LATENCIES = (
    "Closed loop: each connection sends its next transaction when the last one is answered. They are service times at this many "
    "connections, not the response times of users who arrive when they like."
)
LIMITS = (
    "It is this workload with its data in memory, on this machine, at this many connections. Bigger results, more connections, "
    "disks and other servers move the ratios; run the plan with your own figures."
)


def questions(summary: Summary) -> list[tuple[str, str]]:
    """(question, answer) in the order in which they are asked."""
    several = is_grid(summary)
    if summary.pages:
        return page_questions(summary) + _of_pages(summary)
    found = [
        ("Is it not just noise?", _noise(summary)),
        ("Was the machine busy?", _busy(summary)),
        ("Is it the load generator that is slow?", "" if several else _client(summary)),
        ("Is all CPU counted?", _cpu(summary)),
        ("Were bad results thrown away?", _voids(summary)),
        ("Is it really the path that is named?", RECEIPTS),
        ("Is the network real?", NETWORK),
        ("What do the latencies mean?", LATENCIES),
        ("What does it not say?", LIMITS),
    ]
    return [pair for pair in found if pair[1]]


def _of_pages(summary: Summary) -> list[tuple[str, str]]:
    """What remains to be asked: what the latencies and the limits are, it has answered."""
    return [
        ("Is it not just noise?", _noise(summary)),
        ("Was the machine busy?", _busy(summary)),
        ("Were bad results thrown away?", _voids(summary)),
        ("Is it really the path that is named?", RECEIPTS),
        ("Is the network real?", NETWORK),
    ]


def _noise(summary: Summary) -> str:
    design = (
        f"In each of {summary.complete_blocks} complete blocks every path was measured once, in random order"
        f"{_but_settled(summary)}; a ratio compares "
        "trials of the same block, and its interval comes from the scatter between blocks, never from seconds within a trial. "
    )
    if summary.aa_ratio is None or summary.noise_floor is None:
        return design + "There is no A/A interval, so nothing is called different."
    check = (
        f"The baseline also ran under a second name; the two came out at {figures.ratio(summary.aa_ratio)}. "
        f"Effects smaller than this floor ({figures.share(summary.noise_floor)}) are called not resolved."
    )
    widths = [
        width
        for cell in figures.shown_cells(summary)
        if cell.ratio and cell.role is not ArmRole.BASELINE and (width := half_width(cell.ratio)) is not None
    ]
    return design + check + (f" The widest interval is {half_width_text(max(widths))}." if widths else "")


def _but_settled(summary: Summary) -> str:
    return ", but those that had settled on a plateau" if any(c.settled_after for c in summary.cells) else ""


def _busy(summary: Summary) -> str:
    pressure = sorted(trial.cpu_pressure for trial in summary.trials if trial.cpu_pressure is not None)
    known = (
        f"In the median trial some task waited for a CPU {figures.share(pressure[len(pressure) // 2])} of the time, our own client "
        "and server included. "
        if pressure
        else "This kernel does not say how long tasks waited for a CPU. "
    )
    return " ".join(part for part in (known + _others(summary), _judged(summary), _spread(summary)) if part)


def _others(summary: Summary) -> str:
    if summary.others_cpus is None:
        return "How much of the machine others used is not recorded."
    machine = f" of {summary.machine_cpus}" if summary.machine_cpus else ""
    return f"Others kept {figures.cpus(summary.others_cpus)}{machine} CPUs busy in the median trial."


def _judged(summary: Summary) -> str:
    if Warning.BUSY_MACHINE in summary.warnings:
        return "The machine counts as busy (CPUs in other hands, time stolen, or disks waited for): repeat on a quieter one."
    return "" if summary.others_cpus is None else "That is little."


def _spread(summary: Summary) -> str:
    """Whether CPU a query was the steadier figure here is for this run to say."""
    spread, base = summary.baseline_spread, figures.baseline_name(summary)
    if spread is None or spread.cpu_per_query is None:
        return ""
    one = ONE[summary.asked]
    seen = f"the slowest and the fastest trial of {base} lie a factor of {spread.qps:.2f} apart in {summary.asked} per second"
    cpu = f"its CPU a {one} a factor of {spread.cpu_per_query:.2f}"
    if spread.cpu_per_query < spread.qps:
        return f"Load moves CPU a {one} as well, but less than the clock: {seen}, {cpu}."
    return f"In this run CPU a {one} was no steadier than the clock: {seen}, {cpu}."


def _client(summary: Summary) -> str:
    limited = [cell.arm for cell in summary.cells if Warning.CLIENT_LIMITED in cell.warnings]
    if limited:
        return f"On {', '.join(limited)} its busiest thread had no time left: there the figure is about the load generator."
    return "No: its busiest thread had time left on every path. Its own CPU is in the table as the first summand."


def _cpu(summary: Summary) -> str:
    charged = "Client, server and forwarder are counted by the scheduler, kernel work on their behalf included. "
    return charged + (figures.cpu_note(summary) or "No path of this run differs from the baseline in passing the link.")


VOIDING = (
    " One rule is not even-handed: only paths over the link can be void for a disturbed machine (late packets, a wrong round trip), "
    "and are then measured again, later, while the block's baseline stays. In a simulation in which a tenth of the trials were "
    "disturbed, this flattered those paths by 1.6 %."
)


def _voids(summary: Summary) -> str:
    voiding = "" if summary.replication else VOIDING
    if not summary.void_trials:
        return "No trial was void, and none was left out." + voiding
    return (
        figures.void_line(summary).replace("in no figure above", "in no figure")
        + " The rules were fixed before the run, and look at receipts and errors, never at speed."
        + voiding
    )
