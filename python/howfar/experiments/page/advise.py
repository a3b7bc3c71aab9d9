"""What to do about pages, each piece because of a resolved figure of this run."""

from __future__ import annotations

from howfar.analysis.summary import Advice
from howfar.experiments.page.chief import chief_choices
from howfar.experiments.page.findings import PageChoice, PageFindings
from howfar.experiments.page.words import (
    crossing_of,
    crossing_words,
    dear_connections,
    milliseconds,
    of_turns,
    tcp_is_slower,
)
from howfar.stats.intervals import interval_text

_SOCKET_LINES = (
    "# PHP, PDO; `howfar doctor` knows this machine's",
    "mysql:unix_socket=/run/mysqld/mysqld.sock;dbname=shop",
    "# phpredis",
    "$redis->pconnect('/run/redis/redis-server.sock');",
    "# memcached: -s turns its port off",
    "$memcached->addServer('/run/memcached/memcached.sock', 0);",
)


def page_advice(found: PageFindings) -> tuple[Advice, ...]:
    """In the order in which a reader decides."""
    pieces = [_machines(found, choice) for choice in chief_choices(found.choices)]
    pieces += [_socket(found), _fewer_turns(found), _keep(found)]
    return tuple(advice for advice in pieces if advice is not None)


def _machines(found: PageFindings, choice: PageChoice) -> Advice | None:
    if choice.better == "not resolved":
        return None
    crossing = crossing_words(found.crossings, found.choices, choice)
    where = (
        "Keep application and servers on one machine, with sockets"
        if choice.better == "one"
        else "Give the application a machine of its own"
    )
    ground = (
        f"Two machines answer {interval_text(choice.two_over_one)} of the pages of one with sockets "
        f"({choice.threads} in flight, {milliseconds(choice.app_cpu_total_ms)} ms of application CPU a page)"
    )
    return Advice(
        action=f"{where}, for a page like the {choice.page} one.",
        because=ground + (f", {crossing}." if crossing else ".") + _between_real_machines(found, choice),
    )


def _between_real_machines(found: PageFindings, choice: PageChoice) -> str:
    """Two machines here share their processors with the link's emulator: advice against them has to say so."""
    crossing = crossing_of(found.crossings, choice)
    if choice.better != "one" or crossing is None or crossing.without_link_cpu_ms is None:
        return ""
    from_ms = milliseconds(crossing.without_link_cpu_ms)
    return (
        f" The emulated link takes CPU from both machines; without that the model sees the second one pay from {from_ms} ms: "
        "measure between two real machines before you decide near there."
    )


def _socket(found: PageFindings) -> Advice | None:
    slower = [
        (choice, ratio)
        for choice in chief_choices(found.choices)
        if (ratio := choice.tcp_over_socket) is not None and tcp_is_slower(choice, found.noise_floor)
    ]
    if not slower:
        return None
    choice, ratio = min(slower, key=lambda pair: pair[1].value)
    return Advice(
        action="Where application and servers share a machine, connect through the sockets: host=localhost, not 127.0.0.1.",
        because=f"Loopback TCP answers {interval_text(ratio)} of the {choice.page} pages that sockets do.",
        lines=_SOCKET_LINES,
    )


def _fewer_turns(found: PageFindings) -> Advice | None:
    """Where two machines are slower for one page at a time, and turns are many."""
    sentence = of_turns(found)
    if not sentence or not any(c.better == "one" for c in found.choices):
        return None
    return Advice(
        action="Before a second machine, cut the page's turns: one query with IN or JOIN for many, MGET, getMulti.",
        because=sentence,
    )


def _keep(found: PageFindings) -> Advice | None:
    """Connections that stay, where opening them for each page was measured to cost."""
    pairs = dear_connections(found)
    if not pairs:
        return None
    arm, kept = max(pairs, key=lambda pair: pair[0].page_ms.value - pair[1].page_ms.value)
    return Advice(
        action="Keep connections between pages: PDO::ATTR_PERSISTENT, pconnect, a persistent_id for Memcached.",
        because=f"{arm.arm}: {milliseconds(arm.page_ms.value)} ms a page against {milliseconds(kept.page_ms.value)}.",
    )
