"""Findings about pages as text: the answer, what it is made of, and what to do. Every sentence is a function of a run's figures."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from howfar.analysis.summary import Advice
from howfar.experiments.page.findings import (
    Crossing,
    PageArm,
    PageChoice,
    PageFindings,
    PageModel,
    RouteError,
    crossing_of,
    headline_choices,
    pair_of,
    route_of,
    route_rank,
    swept_setting,
)
from howfar.stats.intervals import Resolution, excludes_one, interval_text, resolve
from howfar.units import format_duration_ns

_WORKERS = 20
"""Of a common pool of PHP workers, for an example."""
_SOCKET_LINES = (
    "# PHP, PDO; `howfar doctor` finds this machine's path",
    "mysql:unix_socket=/run/mysqld/mysqld.sock;dbname=shop",
    "# phpredis",
    "$redis->pconnect('/run/redis/redis-server.sock');",
    "# memcached -s listens on a socket, and on no port",
    "$memcached->addServer('/run/memcached/memcached.sock', 0);",
)
Pair = tuple[PageArm, PageArm]


def page_sentences(findings: PageFindings) -> tuple[str, ...]:
    """The answer first. `findings` has no sentences yet."""
    found = [
        _answer(findings),
        _link(findings),
        _tcp(findings),
        round_trips_sentence(findings),
        _connects(findings),
        _workers(findings),
        _model(findings.model),
        _published(findings),
    ]
    return tuple(sentence for sentence in found if sentence)


def page_verdict(findings: PageFindings) -> str:
    """The answer of such a run. Empty: its figures say nothing yet."""
    return findings.sentences[0] if findings.sentences else ""


# ---------------------------------------------------------------- phrases


def milliseconds(value: float) -> str:
    """`9.1`, `0.24`, `152`: at most three digits."""
    return f"{value:.0f}" if value >= 100 else f"{value:.2g}" if value < 10 else f"{value:.3g}"


def in_flight(threads: int) -> str:
    return f"{threads} in flight"


def pays_from(crossing: Crossing) -> str:
    """The application CPU from which a second machine pays: `38 [31, 45] ms`, `38 [31, > 64.9] ms` if no measurement closes the
    interval; without a crossing, what is known instead."""
    least, most = (milliseconds(end) for end in crossing.swept_ms)
    if (found := crossing.measured_ms) is not None:
        if found.low is None and found.high is None:
            return f"{milliseconds(found.value)} ms (no interval)"
        low = f"< {least}" if found.low is None else milliseconds(found.low)
        high = f"> {most}" if found.high is None else milliseconds(found.high)
        return f"{milliseconds(found.value)} [{low}, {high}] ms"
    match crossing.always:
        case "one":
            return f"none up to {most} ms"
        case "two":
            return f"{least} ms or less"
        case None:
            return f"not resolved between {least} and {most} ms"


def predicted_from(crossing: Crossing) -> str:
    """The same by the model: `39 ms`, `none`, `4.9 ms or less`. Empty: no model, or it changes more than once."""
    if crossing.predicted_ms is not None:
        return f"{milliseconds(crossing.predicted_ms)} ms"
    match crossing.predicted_always:
        case "one":
            return "none"
        case "two":
            return f"{milliseconds(crossing.swept_ms[0])} ms or less"
        case None:
            return ""


# ---------------------------------------------------------------- one machine or two


def _answer(findings: PageFindings) -> str:
    shown = headline_choices(findings.choices)
    if not shown:
        return _no_answer(findings.arms)
    same = len({choice.threads for choice in shown}) == 1
    clauses = [_served(choice, findings.noise_floor, not same) for choice in shown]
    with_flight = f", with {in_flight(shown[0].threads)}" if same else ""
    text = f"{_lead(shown)}: two machines served {_listed(clauses)} as one{with_flight}."
    flips = [
        f"{choice.page} page {pays_from(crossing)}{_prediction(crossing)}"
        for choice in shown
        if (crossing := crossing_of(findings.crossings, choice)) is not None
    ]
    return text + (f" Application CPU from which a second machine pays: {'; '.join(flips)}." if flips else "")


def _lead(shown: Sequence[PageChoice]) -> str:
    better = {choice.better for choice in shown}
    resolved = better - {"not resolved"}
    if len(resolved) == 2:
        return "It depends on the page"
    if not resolved:
        return "No difference is resolved"
    lead = "One machine with sockets is faster" if resolved == {"one"} else "Two machines are faster"
    return lead if resolved == better else f"{lead} where the difference is resolved"


def _served(choice: PageChoice, floor: float | None, with_flight: bool) -> str:
    flight = f" ({in_flight(choice.threads)})" if with_flight else ""
    return f"{interval_text(choice.two_over_one)} times as many {choice.page} pages{flight}{_unresolved(choice, floor)}"


def _unresolved(choice: PageChoice, floor: float | None) -> str:
    """The reason. Empty: it is resolved, or one block has no interval, which stands beside the figure."""
    ratio = choice.two_over_one
    if choice.better != "not resolved" or ratio.low is None:
        return ""
    if not excludes_one(ratio):
        return " (interval includes 1)"
    return " (unknown noise floor)" if floor is None else f" (within the noise floor of {floor * 100:.2g} %)"


def _prediction(crossing: Crossing) -> str:
    """In brackets. Empty: there is no model, or it changes more than once."""
    predicted = predicted_from(crossing)
    if not predicted:
        return ""
    alike = (
        crossing.measured_ms is None and crossing.always is not None and crossing.always == crossing.predicted_always
    )
    return " (as predicted)" if alike else f" (predicted: {predicted})"


def _no_answer(arms: Sequence[PageArm]) -> str:
    """No page was measured on both."""
    machines = {arm.machines for arm in arms}
    if not machines:
        return ""
    missing = "two machines" if 2 not in machines else "one machine with sockets"
    return f"No answer: no page was measured on {missing} in the same block as on the other."


def _listed(clauses: Sequence[str]) -> str:
    """`a`, `a and b`, `a, b and c`."""
    return " and ".join(part for part in (", ".join(clauses[:-1]), clauses[-1]) if part)


# ---------------------------------------------------------------- what it is made of


def _link(findings: PageFindings) -> str:
    """What the emulator uses, which a real network does not."""
    shown = headline_choices(findings.choices)
    pairs = [pair for choice in shown if (pair := pair_of(findings.arms, choice)) is not None]
    two = [arm for _, arm in pairs if arm.cpu_ms.get("link")]
    if not two:
        return ""
    arm = max(two, key=emulator_cpus)
    text = (
        f"The emulated link used {emulator_cpus(arm):.2f} CPUs of this machine ({arm.arm}); a real network would not."
    )
    moved = [
        f"{milliseconds(crossing.without_link_cpu_ms)} ms for the {crossing.page} page"
        + (f" (instead of {milliseconds(crossing.predicted_ms)})" if crossing.predicted_ms is not None else "")
        for choice in shown
        if (crossing := crossing_of(findings.crossings, choice)) is not None
        and crossing.without_link_cpu_ms is not None
        and (crossing.predicted_ms is not None or crossing.predicted_always == "one")
    ]
    if not moved:
        return text
    return (
        f"{text} Without it, the model predicts that a second machine pays from less application CPU: {_listed(moved)}."
    )


def emulator_cpus(arm: PageArm) -> float:
    """CPUs that the link's emulator kept busy."""
    return arm.cpu_ms.get("link", 0.0) * arm.pages_per_s.value / 1e3


def tcp_is_slower(choice: PageChoice, floor: float | None) -> bool:
    """Resolved from 1, and beyond the noise floor."""
    return resolve(choice.tcp_over_socket, floor) is Resolution.SLOWER


def _tcp(findings: PageFindings) -> str:
    known = [(c, ratio) for c in headline_choices(findings.choices) if (ratio := c.tcp_over_socket) is not None]
    if not known:
        return ""
    slower = [choice.page for choice, _ in known if tcp_is_slower(choice, findings.noise_floor)]
    served = [
        f"{interval_text(ratio)} times as many {choice.page} pages{'' if choice.page in slower else ' (not resolved)'}"
        for choice, ratio in known
    ]
    hint = "; connect to localhost or to the socket's path, not to 127.0.0.1" if slower else ""
    return f"On one machine, loopback TCP served {_listed(served)} as sockets{hint}."


def round_trips_sentence(findings: PageFindings) -> str:
    """What a round trip costs with one page in flight, and what fewer would change."""
    pairs = _single(findings)
    if not pairs:
        return ""
    one, two = max(pairs, key=lambda pair: sum(cost.turns for cost in pair[1].turns))
    count = sum(cost.turns for cost in two.turns)
    more_ms = two.page_ms.value - one.page_ms.value
    if count < 1 or more_ms <= 0:
        return ""
    text = (
        f"On two machines each round trip takes {more_ms / count:.2g} ms longer, which adds {milliseconds(more_ms)} ms for the "
        f"{count:.0f} of the {one.page} page (1 in flight)"
    )
    choice = next((choice for choice in headline_choices(findings.choices) if choice.page == one.page), None)
    crossing = crossing_of(findings.crossings, choice) if choice is not None else None
    if crossing is None or crossing.predicted_ms is None or crossing.half_turns_ms is None:
        return text + "."
    return (
        f"{text}; half as many would move the crossing from {milliseconds(crossing.predicted_ms)} to "
        f"{milliseconds(crossing.half_turns_ms)} ms (model, {in_flight(crossing.threads)})."
    )


def costly_connections(findings: PageFindings) -> list[Pair]:
    """Real pages that open connections for each page, and the same with kept connections, if the difference is resolved: on sockets
    and on the plainest route to a second machine, with the fewest in flight."""

    def kin(arm: PageArm) -> tuple[object, ...]:
        return arm.page, arm.application, route_rank(arm), arm.app_cpu_ns, arm.threads

    found: dict[tuple[str, int], Pair] = {}
    for arm in sorted(findings.arms, key=lambda each: (each.threads, each.app_cpu_ns, route_rank(each))):
        if arm.connect == "persistent" or arm.application != "php" or arm.path == "tcp":
            continue
        kept = next((each for each in findings.arms if each.connect == "persistent" and kin(each) == kin(arm)), None)
        if kept is not None:
            found.setdefault((arm.page, arm.machines), (arm, kept))
    return [pair for pair in found.values() if _longer(*pair, findings.noise_floor)]


def _longer(arm: PageArm, kept: PageArm, floor: float | None) -> bool:
    low, high = arm.page_ms.low, kept.page_ms.high
    if low is None or high is None or floor is None:
        return False
    return low > high and math.log(arm.page_ms.value / kept.page_ms.value) > math.log1p(floor)


def _connects(findings: PageFindings) -> str:
    clauses = [
        f"{milliseconds(arm.page_ms.value - kept.page_ms.value)} ms to the {arm.page} page "
        f"{'on sockets' if arm.machines == 1 else 'on two machines'} ({in_flight(arm.threads)})"
        for arm, kept in costly_connections(findings)
    ]
    return f"Opening connections for each page adds {_listed(clauses)}." if clauses else ""


def _workers(findings: PageFindings) -> str:
    """Two limits, of which the lower one holds: that of workers, and that of processors, estimated from a single page."""
    pairs = [pair for pair in _single(findings) if pair[0].application == "php"]
    if not pairs:
        return ""
    pair = max(pairs, key=lambda pair: pair[1].page_ms.value)
    workers = [f"{_WORKERS * 1e3 / arm.page_ms.value:.0f}" for arm in pair]
    allowed = [
        f"{arm.pages_per_s.value / fullest:.0f}" for arm in pair if (fullest := max(arm.busy.values(), default=0))
    ]
    text = (
        f"PHP workers limit throughput to workers / page time: {_WORKERS} of them serve at most {workers[0]} {pair[0].page} pages a "
        f"second on one machine and {workers[1]} on two"
    )
    return text + (f"; the processors here allow {allowed[0]} and {allowed[1]}." if len(allowed) == 2 else ".")


def _model(model: PageModel) -> str:
    found = []
    if model.mean_error is not None and model.worst_error is not None:
        arms = "arm" if model.arms == 1 else "arms"
        routes = [f"{_route_name(model, route)} {route.mean_error * 100:.1f} %" for route in model.by_way]
        by_route = f" ({', '.join(routes)})" if len(routes) > 1 else ""
        bar = "" if model.within_bar else ", more than the 10 % that it should stay within"
        found.append(
            f"The model predicts the p50 of {model.arms} {arms} of real pages with a mean error of {model.mean_error * 100:.1f} %"
            f"{by_route} and a largest of {abs(model.worst_error) * 100:.1f} % ({model.worst_arm}){bar}."
        )
    if model.impossible:
        arms = "arm has" if len(model.impossible) == 1 else "arms have"
        found.append(
            f"{len(model.impossible)} {arms} no prediction: a single page that it needs was faster than its parts can be."
        )
    return " ".join(found)


def _route_name(model: PageModel, route: RouteError) -> str:
    several = len({each.rtt_ns for each in model.by_way if each.rtt_ns is not None}) > 1
    return route.path + (f" {format_duration_ns(route.rtt_ns)}" if several and route.rtt_ns is not None else "")


def _published(findings: PageFindings) -> str:
    clauses = [
        f"{two:.0f} ms on two machines and {one:.0f} on one ({one / two:.2f} times as many pages; here {ours:.2f} for the {page} page)"
        for page, two, one, ours in findings.published
        if ours is not None
    ]
    return f"Published, for other machines: {'; '.join(clauses)}." if clauses else ""


def _single(findings: PageFindings) -> list[Pair]:
    """One page in flight, on sockets and on two machines, with the least application CPU; the real application if there is one."""
    shown = headline_choices(choice for choice in findings.choices if choice.threads == 1)
    return [pair for choice in shown if (pair := pair_of(findings.arms, choice)) is not None]


# ---------------------------------------------------------------- advice


def page_advice(findings: PageFindings) -> tuple[Advice, ...]:
    """In the order in which a reader decides; each because of a resolved figure."""
    shown = headline_choices(findings.choices)
    pieces = [
        _machines(findings, [choice for choice in shown if choice.better == "one"]),
        _machines(findings, [choice for choice in shown if choice.better == "two"]),
        _sockets(findings, shown),
        _fewer_round_trips(findings),
        _keep_connections(findings),
    ]
    return tuple(advice for advice in pieces if advice is not None)


def _machines(findings: PageFindings, choices: Sequence[PageChoice]) -> Advice | None:
    """Of choices with one result."""
    if not choices:
        return None
    one = choices[0].better == "one"
    action = (
        "Keep application and servers on one machine, with sockets" if one else "Give the application its own machine"
    )
    because = [
        f"Two machines served {interval_text(choice.two_over_one)} times as many {choice.page} pages{_flip(findings, choice)}."
        for choice in choices
    ]
    return Advice(
        action=f"{action}, for pages like {_listed([choice.page for choice in choices])}.",
        because=" ".join(because),
    )


def _flip(findings: PageFindings, choice: PageChoice) -> str:
    """Where the answer for this page changes, and how near it came if it does not. Empty: its application CPU was not varied."""
    crossing = crossing_of(findings.crossings, choice)
    if crossing is None:
        return ""
    without = _without_emulator(crossing) if choice.better == "one" else ""
    if crossing.measured_ms is not None:
        return f" and pay from {pays_from(crossing)} of application CPU a page{without}"
    best = max(levels_of(findings.choices, crossing), key=lambda each: each.two_over_one.value)
    with_cpu = f"{milliseconds(best.app_cpu_total_ms)} ms of application CPU a page"
    return f", at most {interval_text(best.two_over_one)} times with {with_cpu}{without}"


def _without_emulator(crossing: Crossing | None) -> str:
    """Two machines here share their processors with the link's emulator: advice against them has to say so."""
    if crossing is None or crossing.without_link_cpu_ms is None:
        return ""
    from_ms = milliseconds(crossing.without_link_cpu_ms)
    return f" (from {from_ms} ms without the emulator's CPU, by the model: near there, measure on two real machines)"


def levels_of(choices: Iterable[PageChoice], crossing: Crossing) -> list[PageChoice]:
    """The choices in which a crossing was looked for."""
    wanted = swept_setting(crossing), route_of(crossing)
    return [choice for choice in choices if (swept_setting(choice), route_of(choice)) == wanted]


def _sockets(findings: PageFindings, shown: Sequence[PageChoice]) -> Advice | None:
    slower = [
        (choice, ratio)
        for choice in shown
        if (ratio := choice.tcp_over_socket) is not None and tcp_is_slower(choice, findings.noise_floor)
    ]
    if not slower:
        return None
    choice, ratio = min(slower, key=lambda pair: pair[1].value)
    return Advice(
        action="On one machine, connect through the sockets: host=localhost, not 127.0.0.1.",
        because=f"Loopback TCP served {interval_text(ratio)} times as many {choice.page} pages as sockets.",
        lines=_SOCKET_LINES,
    )


def _fewer_round_trips(findings: PageFindings) -> Advice | None:
    """Where one machine is faster somewhere, and round trips are what costs."""
    sentence = round_trips_sentence(findings)
    if not sentence or not any(choice.better == "one" for choice in findings.choices):
        return None
    return Advice(
        action="Before a second machine, cut the page's round trips: one query with IN or JOIN for many, MGET, getMulti.",
        because=sentence,
    )


def _keep_connections(findings: PageFindings) -> Advice | None:
    pairs = costly_connections(findings)
    if not pairs:
        return None
    arm, kept = max(pairs, key=lambda pair: pair[0].page_ms.value - pair[1].page_ms.value)
    return Advice(
        action="Keep connections between pages: PDO::ATTR_PERSISTENT, pconnect, a persistent_id for Memcached.",
        because=f"{arm.arm}: {milliseconds(arm.page_ms.value)} ms a page instead of {milliseconds(kept.page_ms.value)}.",
    )
