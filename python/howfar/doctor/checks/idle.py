"""Idle CPUs that take long to wake, which a client and a server that take turns pay for at each message."""

from __future__ import annotations

from howfar.doctor.checks.context import Context, Draft, format_interval, resolved
from howfar.doctor.findings import Change, Gain, Severity

MATTERS_SHARE = 0.05
"""Of a round trip: less is not worth the power."""

_LINES = (
    Change(
        where="tuned, for the whole machine",
        lines=("tuned-adm profile latency-performance   # or network-latency",),
        restarts=False,
    ),
    Change(
        where="/etc/systemd/system/no-deep-idle.service, without tuned",
        lines=(
            "[Service]",
            "ExecStart=/bin/sh -c 'exec 3>/dev/cpu_dma_latency; printf \"\\\\0\\\\0\\\\0\\\\0\" >&3; exec sleep infinity'",
            "[Install]",
            "WantedBy=multi-user.target",
        ),
        restarts=False,
    ),
    Change(
        where="the kernel's command line, from the next boot on",
        lines=("cpuidle_haltpoll.force=1   # a guest polls for a moment, then sleeps", "idle=poll   # never sleeps"),
        restarts=False,
    ),
)


def idle_states(context: Context) -> list[Draft]:
    """Waking CPUs is a resolved part of a round trip. A note: what it costs in power is for the owner to weigh."""
    cost = context.server.idle
    if cost is None or not resolved(cost.waking) or cost.waking.median < MATTERS_SHARE * cost.as_found.median:
        return []
    share = cost.waking.median / cost.as_found.median
    says = (
        f"waking idle CPUs is {share:.0%} of a round trip to it after a pause of 1 ms ({format_interval(cost.waking)} of "
        f"{format_interval(cost.as_found)}; idle driver {cost.driver or 'unknown'}, governor {cost.governor or 'unknown'})"
    ).replace("%", " %", 1)
    gain = Gain(
        says=f"{format_interval(cost.waking)} per round trip; the price: CPUs that never sleep use the power of busy ones",
        basis=f"pings over {cost.transport.value}, alternately with 0 held in /dev/cpu_dma_latency",
        saves_ns=cost.waking,
    )
    return [Draft(says, _LINES, gain, Severity.NOTE)]
