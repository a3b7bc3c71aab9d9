"""Findings about pages as text: the answer, what it is made of, and what to do. Every sentence is a function of a run's figures."""

from __future__ import annotations

import math
from collections.abc import Sequence

from howfar.analysis.advice import Advice
from howfar.experiments.page.findings import PageArm, PageChoice, PageFindings, RouteError
from howfar.experiments.page.labels import (
    by_model,
    in_flight,
    listed,
    milliseconds,
    pays_from,
    prediction_note,
    several,
    with_interval,
)
from howfar.services import SERVICES
from howfar.stats.estimate import Estimate
from howfar.stats.intervals import Resolution, Threshold, excludes_one, excludes_zero, floor_text, interval_text
from howfar.units import format_duration_ns

_WORKERS = 20
"""Workers of a common PHP pool, for an example."""
_SOCKET_LINES = (
    "# phpredis",
    "$redis->pconnect('/run/redis/redis-server.sock');",
    "# memcached -s listens on a socket, and on no port",
    "$memcached->addServer('/run/memcached/memcached.sock', 0);",
)
Pair = tuple[PageArm, PageArm]


def page_sentences(findings: PageFindings) -> tuple[str, ...]:
    """The sentences of findings, the answer first. `findings` has no sentences yet."""
    made = (_answer, _link, _tcp, round_trips_sentence, _connects, _workers, _model, _published)
    return tuple(sentence for make in made if (sentence := make(findings)))


def page_verdict(findings: PageFindings) -> str:
    """The answer of a run about pages. Empty: its figures show nothing yet."""
    return findings.sentences[0] if findings.sentences else ""


# ---------------------------------------------------------------- one machine or two


def _answer(findings: PageFindings) -> str:
    shown = findings.headline_choices()
    if not shown:
        return _no_answer(findings.arms)
    same = not several(choice.threads for choice in shown)
    clauses = [
        _times(choice)
        + ("" if same else f" ({in_flight(choice.threads)})")
        + _unresolved(choice, findings.threshold(2))
        for choice in shown
    ]
    with_flight = f", with {in_flight(shown[0].threads)}" if same else ""
    text = f"{_lead(shown)}: two machines served {listed(clauses)} as one{with_flight}."
    flips = [
        f"{choice.page} page {pays_from(crossing)}{prediction_note(crossing)}"
        for choice in shown
        if (crossing := findings.crossing(choice)) is not None
    ]
    return text + (f" Application CPU from which a second machine pays: {'; '.join(flips)}." if flips else "")


def _times(choice: PageChoice) -> str:
    return f"{interval_text(choice.two_over_one)} times as many {choice.page} pages"


def _lead(shown: Sequence[PageChoice]) -> str:
    better = {choice.better for choice in shown}
    resolved = better - {"not resolved"}
    if len(resolved) == 2:
        return "It depends on the page"
    if not resolved:
        return "No difference is resolved"
    lead = "One machine with sockets is faster" if resolved == {"one"} else "Two machines are faster"
    return lead if resolved == better else f"{lead} where the difference is resolved"


def _unresolved(choice: PageChoice, threshold: Threshold) -> str:
    """Why a choice is not resolved. Empty: it is resolved, or one block has no interval, which the text next to the figure states."""
    ratio = choice.two_over_one
    if choice.better != "not resolved" or ratio.low is None:
        return ""
    if not excludes_one(ratio):
        return " (interval includes 1)"
    if threshold.floor is None:
        return " (unknown noise floor)"
    if abs(math.log(ratio.value)) < math.log1p(threshold.floor):
        return f" (within the noise floor of {floor_text(threshold.floor)})"
    return f" (possibly chance in {threshold.claims} comparisons)"


def _no_answer(arms: Sequence[PageArm]) -> str:
    """The answer if no page was measured on both one machine and two."""
    machines = {arm.machines for arm in arms}
    if not machines:
        return ""
    missing = "two machines" if 2 not in machines else "one machine with sockets"
    return f"No answer: no page was measured on {missing} in the same block as on the other."


# ---------------------------------------------------------------- what it is made of


def _link(findings: PageFindings) -> str:
    """Sentence on the CPU that the emulator uses, which a real network does not."""
    shown = findings.headline_choices()
    two = [pair[1] for choice in shown if (pair := findings.pair(choice)) and pair[1].cpu_ms.get("link")]
    if not two:
        return ""
    arm = max(two, key=lambda each: each.emulator_cpus)
    text = f"The emulated link used {arm.emulator_cpus:.2f} CPUs of this machine ({arm.arm}); a real network would not."
    moved = [
        f"{by_model(crossing, 'without_link_cpu_ms')} for the {crossing.page} page"
        + (f" (instead of {by_model(crossing, 'predicted_ms')})" if crossing.predicted_ms is not None else "")
        for choice in shown
        if (crossing := findings.crossing(choice)) is not None
        and crossing.without_link_cpu_ms is not None
        and (crossing.predicted_ms is not None or crossing.predicted_always == "one")
    ]
    if not moved:
        return text
    return (
        f"{text} Without it, the model predicts that a second machine pays from less application CPU: {listed(moved)}."
    )


def tcp_is_slower(choice: PageChoice, threshold: Threshold) -> bool:
    """Whether TCP is slower than sockets, resolved from 1 and beyond the noise floor."""
    return threshold.resolve(choice.tcp_over_socket) is Resolution.SLOWER


def _tcp(findings: PageFindings) -> str:
    known = [(c, ratio) for c in findings.headline_choices() if (ratio := c.tcp_over_socket) is not None]
    if not known:
        return ""
    slower = [choice for choice, _ in known if tcp_is_slower(choice, findings.threshold(1))]
    served = [
        f"{interval_text(ratio)} times as many {choice.page} pages{'' if choice in slower else ' (not resolved)'}"
        for choice, ratio in known
    ]
    hint = "; connect to localhost or to the socket's path, not to 127.0.0.1" if slower else ""
    return f"On one machine, loopback TCP served {listed(served)} as sockets{hint}."


def _longer_by_turns(findings: PageFindings) -> tuple[Estimate, float, PageArm, PageChoice] | None:
    """How much longer the page with the most round trips takes on two machines with one in flight, their number, its arm, and the
    choice. None: it does not take longer."""
    found = [
        (choice.longer_ms, sum(cost.turns for cost in pair[1].turns), pair[1], choice)
        for choice in findings.headline_choices(threads=1)
        if choice.longer_ms is not None and (pair := findings.pair(choice)) is not None
    ]
    most = max(found, key=lambda each: each[1], default=None)
    return None if most is None or most[1] < 1 or most[0].value <= 0 else most


def round_trips_sentence(findings: PageFindings) -> str:
    """What a round trip costs with one page in flight, and what fewer would change."""
    found = _longer_by_turns(findings)
    if found is None:
        return ""
    longer, count, two, _ = found
    text = (
        f"On two machines, each round trip takes {with_interval(longer, lambda ms: f'{ms / count:.2g}')} ms longer, which adds "
        f"{with_interval(longer)} ms for the {count:.0f} of the {two.page} page (1 in flight)"
    )
    if not excludes_zero(longer):
        return f"{text}: not resolved."
    choice = next((choice for choice in findings.headline_choices() if choice.page == two.page), None)
    crossing = findings.crossing(choice) if choice is not None else None
    if crossing is None or crossing.predicted_ms is None or crossing.half_turns_ms is None:
        return text + "."
    return (
        f"{text}; half as many would move the crossing to {by_model(crossing, 'half_turns_ms')}, from "
        f"{by_model(crossing, 'predicted_ms')} (model, {in_flight(crossing.threads)})."
    )


def costly_connections(findings: PageFindings) -> list[tuple[PageArm, Estimate]]:
    """Real pages that open connections for each page, and how many milliseconds longer each takes than with kept ones, if that is
    resolved: on sockets and on the plainest route to a second machine, with the fewest in flight."""
    found: dict[tuple[str, int], tuple[PageArm, Estimate]] = {}
    for arm in sorted(findings.arms, key=lambda each: (each.threads, each.app_cpu_ns, each.route.rank)):
        if arm.application == "php" and arm.path != "tcp" and arm.connecting_ms is not None:
            found.setdefault((arm.page, arm.machines), (arm, arm.connecting_ms))
    return [
        each
        for each in found.values()
        if findings.threshold(each[0].machines).resolve(each[0].over_kept) is Resolution.SLOWER
    ]


def _connects(findings: PageFindings) -> str:
    clauses = [
        f"{with_interval(longer)} ms to the {arm.page} page "
        f"{'on sockets' if arm.machines == 1 else 'on two machines'} ({in_flight(arm.threads)})"
        for arm, longer in costly_connections(findings)
    ]
    return f"Opening connections for each page adds {listed(clauses)}." if clauses else ""


def _workers(findings: PageFindings) -> str:
    """Sentence on two limits, of which the lower one applies: workers, and processors, as estimated from a single page."""
    pairs = [pair for pair in _single(findings) if pair[0].application == "php"]
    if not pairs:
        return ""
    pair = max(pairs, key=lambda pair: pair[1].page_ms.value)
    one, two = (with_interval(_inverse(arm.page_ms), lambda per_ms: f"{_WORKERS * 1e3 * per_ms:.0f}") for arm in pair)
    allowed = [with_interval(arm.allowed_per_s, "{:.0f}".format) for arm in pair if arm.allowed_per_s is not None]
    text = (
        f"PHP workers limit throughput to workers / page time: {_WORKERS} of them serve at most {one} {pair[0].page} pages a "
        f"second on one machine and {two} on two"
    )
    return text + (f"; the processors here allow {allowed[0]} and {allowed[1]}." if len(allowed) == 2 else ".")


def _inverse(found: Estimate) -> Estimate:
    """One over an estimate above 0."""
    if found.low is None or found.high is None or found.low <= 0:
        return Estimate(value=1 / found.value, low=None, high=None)
    return Estimate(value=1 / found.value, low=1 / found.high, high=1 / found.low)


def _model(findings: PageFindings) -> str:
    model, found = findings.model, list[str]()
    if model.mean_error is not None and model.worst_error is not None:
        arms = "arm" if model.arms == 1 else "arms"
        links = several(each.rtt_ns for each in model.by_way if each.rtt_ns is not None)
        routes = [f"{_route(route, links)} {route.mean_error * 100:.1f} %" for route in model.by_way]
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


def _route(route: RouteError, links: bool) -> str:
    """Name of a route. `links`: there are several, so its RTT is added."""
    return route.path + (f" {format_duration_ns(route.rtt_ns)}" if links and route.rtt_ns is not None else "")


def _published(findings: PageFindings) -> str:
    clauses = [
        f"{two:.0f} ms on two machines and {one:.0f} on one ({one / two:.2f} times as many pages; here {ours:.2f} for the {page} page)"
        for page, two, one, ours in findings.published
        if ours is not None
    ]
    return f"Published, for other machines and another application: {'; '.join(clauses)}." if clauses else ""


def _single(findings: PageFindings) -> list[Pair]:
    """Pairs with one page in flight, on sockets and on two machines, with the least application CPU; of the real application if
    any."""
    return [pair for choice in findings.headline_choices(threads=1) if (pair := findings.pair(choice)) is not None]


# ---------------------------------------------------------------- advice


def page_advice(findings: PageFindings) -> tuple[Advice, ...]:
    """Advice in the order in which a reader decides; each piece is based on a resolved figure."""
    shown = findings.headline_choices()
    pieces = (
        _machines(findings, "Keep application and servers on one machine, with sockets", shown, "one"),
        _machines(findings, "Give the application its own machine", shown, "two"),
        _sockets(findings, shown),
        _fewer_round_trips(findings),
        _keep_connections(findings),
    )
    return tuple(advice for advice in pieces if advice is not None)


def _machines(findings: PageFindings, action: str, shown: Sequence[PageChoice], better: str) -> Advice | None:
    choices = [choice for choice in shown if choice.better == better]
    if not choices:
        return None
    because = [f"Two machines served {_times(choice)}{_flip(findings, choice)}." for choice in choices]
    return Advice(
        action=f"{action}, for pages such as {listed([choice.page for choice in choices])}.", because=" ".join(because)
    )


def _flip(findings: PageFindings, choice: PageChoice) -> str:
    """Where the answer for this page changes, and how near it came if it does not. Empty: its application CPU was not varied."""
    crossing = findings.crossing(choice)
    if crossing is None:
        return ""
    without = ""
    if choice.better == "one" and crossing.without_link_cpu_ms is not None:
        # Two machines here share their processors with the emulator: advice against them has to say so.
        limits = crossing.without_link_cpu_ms_interval
        holds = limits is not None and (limits[0] or 0.0) <= choice.app_cpu_total_ms
        near = "this page may be beyond that" if holds else "near there"
        without = (
            f". Without the emulator's CPU they would be faster from {by_model(crossing, 'without_link_cpu_ms')}, by the model: "
            f"{near}, measure on two real machines"
        )
    if crossing.measured_ms is not None:
        return f", and are faster from {pays_from(crossing)} of application CPU per page{without}"
    levels = [each for each in findings.choices if each.series == crossing.series]
    best = max(levels, key=lambda each: each.two_over_one.value)
    with_cpu = f"{milliseconds(best.app_cpu_total_ms)} ms of application CPU per page"
    return f", at most {interval_text(best.two_over_one)} times with {with_cpu}{without}"


def _sockets(findings: PageFindings, shown: Sequence[PageChoice]) -> Advice | None:
    slower = [
        (ratio, choice)
        for choice in shown
        if (ratio := choice.tcp_over_socket) is not None and tcp_is_slower(choice, findings.threshold(1))
    ]
    if not slower:
        return None
    ratio, choice = min(slower, key=lambda pair: pair[0].value)
    asked = {cost.service for arm in findings.arms for cost in arm.turns}
    php = next((service.php for service in SERVICES.values() if service.php and service.name in asked), None)
    _, said, name = php or SERVICES["mysql"].php or ("", "", "")
    return Advice(
        action=f"On one machine, connect through the sockets: {said}.",
        because=f"Loopback TCP served {interval_text(ratio)} times as many {choice.page} pages as sockets.",
        lines=("# PHP, PDO; `howfar doctor` finds this machine's path", name, *_SOCKET_LINES),
    )


def _fewer_round_trips(findings: PageFindings) -> Advice | None:
    """Advice where one machine is faster for the page with the most round trips, by a resolved figure."""
    found = _longer_by_turns(findings)
    if found is None or not excludes_zero(found[0]) or found[-1].better != "one":
        return None
    return Advice(
        action="Before using a second machine, cut the page's round trips: MGET, getMulti, or one query with IN or JOIN for "
        "many.",
        because=round_trips_sentence(findings),
    )


def _keep_connections(findings: PageFindings) -> Advice | None:
    pairs = costly_connections(findings)
    if not pairs:
        return None
    arm, longer = max(pairs, key=lambda pair: pair[1].value)
    return Advice(
        action="Keep connections between pages: PDO::ATTR_PERSISTENT, pconnect, a persistent_id for Memcached.",
        because=f"{arm.arm}: {milliseconds(arm.page_ms.value)} ms per page, {with_interval(longer)} ms more than with kept "
        "connections.",
    )
