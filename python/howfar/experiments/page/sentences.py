"""Findings about pages as text: the answer, its causes, and advice. Every sentence is computed from a run's figures."""

from __future__ import annotations

import math
from collections.abc import Sequence

from howfar.analysis.advice import Advice
from howfar.experiments.page.findings import PageArm, PageChoice, PageFindings, RouteError
from howfar.experiments.page.labels import (
    crossing_text,
    format_ms,
    has_several,
    in_flight_text,
    join_clauses,
    prediction_note,
    prediction_text,
    with_interval,
)
from howfar.services import SERVICES
from howfar.stats.estimate import Estimate
from howfar.stats.intervals import Resolution, Threshold, excludes_one, excludes_zero, floor_text, interval_text
from howfar.units import format_duration_ns

_EXAMPLE_WORKERS = 20
"""Workers of a common PHP pool, for an example."""
_SOCKET_LINES = (
    "# phpredis",
    "$redis->pconnect('/run/redis/redis-server.sock');",
    "# memcached -s listens on a socket, and on no port",
    "$memcached->addServer('/run/memcached/memcached.sock', 0);",
)
ArmPair = tuple[PageArm, PageArm]


def page_sentences(findings: PageFindings) -> tuple[str, ...]:
    """The sentences about findings, the answer first. `findings.sentences` is still empty."""
    sentence_functions = (
        _answer_sentence,
        _emulator_sentence,
        _tcp_sentence,
        round_trips_sentence,
        _connects_sentence,
        _workers_sentence,
        _model_sentence,
        _published_sentence,
    )
    return tuple(sentence for sentence_of in sentence_functions if (sentence := sentence_of(findings)))


def page_verdict(findings: PageFindings) -> str:
    """The answer of a run about pages. Empty: the figures show nothing yet."""
    return findings.sentences[0] if findings.sentences else ""


# ---------------------------------------------------------------- one machine or two


def _answer_sentence(findings: PageFindings) -> str:
    choices = findings.headline_choices()
    if not choices:
        return _no_answer(findings.arms)
    has_same_threads = not has_several(choice.threads for choice in choices)
    clauses = [
        _ratio_clause(choice)
        + ("" if has_same_threads else f" ({in_flight_text(choice.threads)})")
        + _unresolved_reason(choice, findings.threshold(2))
        for choice in choices
    ]
    in_flight_clause = f", with {in_flight_text(choices[0].threads)}" if has_same_threads else ""
    text = f"{_answer_lead(choices)}: two machines served {join_clauses(clauses)} as one{in_flight_clause}."
    crossings = [
        f"{choice.page} page {crossing_text(crossing)}{prediction_note(crossing)}"
        for choice in choices
        if (crossing := findings.crossing(choice)) is not None
    ]
    return text + (f" Application CPU from which a second machine pays: {'; '.join(crossings)}." if crossings else "")


def _ratio_clause(choice: PageChoice) -> str:
    return f"{interval_text(choice.two_over_one)} times as many {choice.page} pages"


def _answer_lead(choices: Sequence[PageChoice]) -> str:
    winners = {choice.better for choice in choices}
    resolved_winners = winners - {"not resolved"}
    if len(resolved_winners) == 2:
        return "It depends on the page"
    if not resolved_winners:
        return "No difference is resolved"
    lead = "One machine with sockets is faster" if resolved_winners == {"one"} else "Two machines are faster"
    return lead if resolved_winners == winners else f"{lead} where the difference is resolved"


def _unresolved_reason(choice: PageChoice, threshold: Threshold) -> str:
    """Why a choice is not resolved, in brackets. Empty: it is resolved, or it has no interval, which the text next to the figure
    states."""
    ratio = choice.two_over_one
    if choice.better != "not resolved" or ratio.low is None:
        return ""
    if not excludes_one(ratio):
        return " (interval includes 1)"
    if threshold.floor is None:
        return " (unknown noise floor)"
    if abs(math.log(ratio.value)) < math.log1p(threshold.floor):
        return f" (within the noise floor of {floor_text(threshold.floor)})"
    return f" (possibly chance in {threshold.comparisons} comparisons)"


def _no_answer(arms: Sequence[PageArm]) -> str:
    """The answer if no page was measured on both one machine and two."""
    machines = {arm.machines for arm in arms}
    if not machines:
        return ""
    missing = "two machines" if 2 not in machines else "one machine with sockets"
    return f"No answer: no page was measured on {missing} in the same block as on the other."


# ---------------------------------------------------------------- causes


def _emulator_sentence(findings: PageFindings) -> str:
    """Sentence on the CPU that the emulator uses; a real network would use none."""
    choices = findings.headline_choices()
    remote_arms = [pair[1] for choice in choices if (pair := findings.pair(choice)) and pair[1].cpu_ms.get("link")]
    if not remote_arms:
        return ""
    arm = max(remote_arms, key=lambda arm: arm.emulator_cpus)
    text = f"The emulated link used {arm.emulator_cpus:.2f} CPUs of this machine ({arm.arm}); a real network would not."
    clauses = [
        f"{prediction_text(crossing, 'without_link_cpu_ms')} for the {crossing.page} page"
        + (f" (instead of {prediction_text(crossing, 'predicted_ms')})" if crossing.predicted_ms is not None else "")
        for choice in choices
        if (crossing := findings.crossing(choice)) is not None
        and crossing.without_link_cpu_ms is not None
        and (crossing.predicted_ms is not None or crossing.predicted_always == "one")
    ]
    if not clauses:
        return text
    return f"{text} Without it, the model predicts that a second machine pays from less application CPU: {join_clauses(clauses)}."


def tcp_is_slower(choice: PageChoice, threshold: Threshold) -> bool:
    """Whether TCP is slower than sockets, significantly and beyond the noise floor."""
    return threshold.resolve(choice.tcp_over_socket) is Resolution.SLOWER


def _tcp_sentence(findings: PageFindings) -> str:
    choices_with_tcp = [
        (choice, ratio) for choice in findings.headline_choices() if (ratio := choice.tcp_over_socket) is not None
    ]
    if not choices_with_tcp:
        return ""
    slower = [choice for choice, _ in choices_with_tcp if tcp_is_slower(choice, findings.threshold(1))]
    clauses = [
        f"{interval_text(ratio)} times as many {choice.page} pages{'' if choice in slower else ' (not resolved)'}"
        for choice, ratio in choices_with_tcp
    ]
    hint = "; connect to localhost or to the socket's path, not to 127.0.0.1" if slower else ""
    return f"On one machine, loopback TCP served {join_clauses(clauses)} as sockets{hint}."


def _cost_of_most_round_trips(findings: PageFindings) -> tuple[Estimate, float, PageArm, PageChoice] | None:
    """The page with the most round trips, with one in flight: how much longer it takes on two machines, its number of round trips, its
    arm on two machines, and the choice. None: it does not take longer."""
    candidates = [
        (choice.longer_ms, sum(cost.turns for cost in pair[1].turns), pair[1], choice)
        for choice in findings.headline_choices(threads=1)
        if choice.longer_ms is not None and (pair := findings.pair(choice)) is not None
    ]
    costliest = max(candidates, key=lambda candidate: candidate[1], default=None)
    return None if costliest is None or costliest[1] < 1 or costliest[0].value <= 0 else costliest


def round_trips_sentence(findings: PageFindings) -> str:
    """Sentence on the cost of a round trip with one page in flight, and on the effect of fewer round trips."""
    costliest = _cost_of_most_round_trips(findings)
    if costliest is None:
        return ""
    longer, count, remote_arm, _ = costliest
    text = (
        f"On two machines, each round trip takes {with_interval(longer, lambda ms: f'{ms / count:.2g}')} ms longer, which adds "
        f"{with_interval(longer)} ms for the {count:.0f} of the {remote_arm.page} page (1 in flight)"
    )
    if not excludes_zero(longer):
        return f"{text}: not resolved."
    choice = next((choice for choice in findings.headline_choices() if choice.page == remote_arm.page), None)
    crossing = findings.crossing(choice) if choice is not None else None
    if crossing is None or crossing.predicted_ms is None or crossing.half_turns_ms is None:
        return text + "."
    return (
        f"{text}; half as many would move the crossing to {prediction_text(crossing, 'half_turns_ms')}, from "
        f"{prediction_text(crossing, 'predicted_ms')} (model, {in_flight_text(crossing.threads)})."
    )


def costly_connections(findings: PageFindings) -> list[tuple[PageArm, Estimate]]:
    """Real pages that open connections for each page, and how many milliseconds longer a page takes than with kept connections, if
    that is resolved. They are on sockets or on the simplest route to a second machine, with the fewest pages in flight."""
    arms_by_page: dict[tuple[str, int], tuple[PageArm, Estimate]] = {}
    for arm in sorted(findings.arms, key=lambda entry: (entry.threads, entry.app_cpu_ns, entry.route.rank)):
        if arm.application == "php" and arm.path != "tcp" and arm.connecting_ms is not None:
            arms_by_page.setdefault((arm.page, arm.machines), (arm, arm.connecting_ms))
    return [
        entry
        for entry in arms_by_page.values()
        if findings.threshold(entry[0].machines).resolve(entry[0].over_kept) is Resolution.SLOWER
    ]


def _connects_sentence(findings: PageFindings) -> str:
    clauses = [
        f"{with_interval(extra_ms)} ms to the {arm.page} page "
        f"{'on sockets' if arm.machines == 1 else 'on two machines'} ({in_flight_text(arm.threads)})"
        for arm, extra_ms in costly_connections(findings)
    ]
    return f"Opening connections for each page adds {join_clauses(clauses)}." if clauses else ""


def _workers_sentence(findings: PageFindings) -> str:
    """Sentence on two limits of throughput: PHP workers, and processors, both estimated from a single page in flight."""
    pairs = [pair for pair in _single_page_pairs(findings) if pair[0].application == "php"]
    if not pairs:
        return ""
    pair = max(pairs, key=lambda pair: pair[1].page_ms.value)
    one, two = (
        with_interval(_invert(arm.page_ms), lambda per_ms: f"{_EXAMPLE_WORKERS * 1e3 * per_ms:.0f}") for arm in pair
    )
    cpu_bounds = [with_interval(arm.allowed_per_s, "{:.0f}".format) for arm in pair if arm.allowed_per_s is not None]
    text = (
        f"PHP workers limit throughput to workers / page time: {_EXAMPLE_WORKERS} of them serve at most {one} {pair[0].page} pages a "
        f"second on one machine and {two} on two"
    )
    return text + (f"; the processors here allow {cpu_bounds[0]} and {cpu_bounds[1]}." if len(cpu_bounds) == 2 else ".")


def _invert(estimate: Estimate) -> Estimate:
    """One over an estimate above 0."""
    if estimate.low is None or estimate.high is None or estimate.low <= 0:
        return Estimate(value=1 / estimate.value, low=None, high=None)
    return Estimate(value=1 / estimate.value, low=1 / estimate.high, high=1 / estimate.low)


def _model_sentence(findings: PageFindings) -> str:
    model, sentences = findings.model, list[str]()
    if model.mean_error is not None and model.worst_error is not None:
        arms = "arm" if model.arms == 1 else "arms"
        has_several_links = has_several(route.rtt_ns for route in model.by_way if route.rtt_ns is not None)
        routes = [f"{_route_label(route, has_several_links)} {route.mean_error * 100:.1f} %" for route in model.by_way]
        by_route = f" ({', '.join(routes)})" if len(routes) > 1 else ""
        bar_clause = "" if model.within_bar else ", more than the 10 % that it should stay within"
        sentences.append(
            f"The model predicts the p50 of {model.arms} {arms} of real pages with a mean error of {model.mean_error * 100:.1f} %"
            f"{by_route} and a largest of {abs(model.worst_error) * 100:.1f} % ({model.worst_arm}){bar_clause}."
        )
    if model.impossible:
        arms = "arm has" if len(model.impossible) == 1 else "arms have"
        sentences.append(
            f"{len(model.impossible)} {arms} no prediction: a single page that it needs was faster than its parts can be."
        )
    return " ".join(sentences)


def _route_label(route: RouteError, with_rtt: bool) -> str:
    """Name of a route. `with_rtt`: there are several, so its RTT is added."""
    return route.path + (f" {format_duration_ns(route.rtt_ns)}" if with_rtt and route.rtt_ns is not None else "")


def _published_sentence(findings: PageFindings) -> str:
    clauses = [
        f"{two:.0f} ms on two machines and {one:.0f} on one ({one / two:.2f} times as many pages; here {ours:.2f} for the {page} page)"
        for page, two, one, ours in findings.published
        if ours is not None
    ]
    return f"Published, for other machines and another application: {'; '.join(clauses)}." if clauses else ""


def _single_page_pairs(findings: PageFindings) -> list[ArmPair]:
    """Pairs of arms with one page in flight, on sockets and on two machines, with the least application CPU; those of the real
    application if there are any."""
    return [pair for choice in findings.headline_choices(threads=1) if (pair := findings.pair(choice)) is not None]


# ---------------------------------------------------------------- advice


def page_advice(findings: PageFindings) -> tuple[Advice, ...]:
    """Advice in the order in which a reader decides; each piece is based on a resolved figure."""
    choices = findings.headline_choices()
    candidates = (
        _machines_advice(findings, "Keep application and servers on one machine, with sockets", choices, "one"),
        _machines_advice(findings, "Give the application its own machine", choices, "two"),
        _sockets_advice(findings, choices),
        _round_trips_advice(findings),
        _kept_connections_advice(findings),
    )
    return tuple(advice for advice in candidates if advice is not None)


def _machines_advice(
    findings: PageFindings, action: str, all_choices: Sequence[PageChoice], better: str
) -> Advice | None:
    choices = [choice for choice in all_choices if choice.better == better]
    if not choices:
        return None
    because = [
        f"Two machines served {_ratio_clause(choice)}{_crossing_clause(findings, choice)}." for choice in choices
    ]
    return Advice(
        action=f"{action}, for pages such as {join_clauses([choice.page for choice in choices])}.",
        because=" ".join(because),
    )


def _crossing_clause(findings: PageFindings, choice: PageChoice) -> str:
    """Where the answer for this page changes, or how close it comes if it does not. Empty: its application CPU was not varied."""
    crossing = findings.crossing(choice)
    if crossing is None:
        return ""
    emulator_clause = ""
    if choice.better == "one" and crossing.without_link_cpu_ms is not None:
        # Two machines here share their processors with the emulator: advice against them has to say so.
        limits = crossing.without_link_cpu_ms_interval
        is_uncertain = limits is not None and (limits[0] or 0.0) <= choice.app_cpu_total_ms
        hint = "this page may be beyond that" if is_uncertain else "near there"
        emulator_clause = (
            f". Without the emulator's CPU they would be faster from {prediction_text(crossing, 'without_link_cpu_ms')}, by "
            "the model: "
            f"{hint}, measure on two real machines"
        )
    if crossing.measured_ms is not None:
        return f", and are faster from {crossing_text(crossing)} of application CPU per page{emulator_clause}"
    series_choices = [other for other in findings.choices if other.series == crossing.series]
    best = max(series_choices, key=lambda other: other.two_over_one.value)
    with_cpu = f"{format_ms(best.app_cpu_total_ms)} ms of application CPU per page"
    return f", at most {interval_text(best.two_over_one)} times with {with_cpu}{emulator_clause}"


def _sockets_advice(findings: PageFindings, choices: Sequence[PageChoice]) -> Advice | None:
    slower = [
        (ratio, choice)
        for choice in choices
        if (ratio := choice.tcp_over_socket) is not None and tcp_is_slower(choice, findings.threshold(1))
    ]
    if not slower:
        return None
    ratio, choice = min(slower, key=lambda pair: pair[0].value)
    services_used = {cost.service for arm in findings.arms for cost in arm.turns}
    php = next((service.php for service in SERVICES.values() if service.php and service.name in services_used), None)
    _, php_text, php_line = php or SERVICES["mysql"].php or ("", "", "")
    return Advice(
        action=f"On one machine, connect through the sockets: {php_text}.",
        because=f"Loopback TCP served {interval_text(ratio)} times as many {choice.page} pages as sockets.",
        lines=("# PHP, PDO; `howfar doctor` finds this machine's path", php_line, *_SOCKET_LINES),
    )


def _round_trips_advice(findings: PageFindings) -> Advice | None:
    """Advice to save round trips, if one machine is faster for the page with the most of them, by a resolved figure."""
    costliest = _cost_of_most_round_trips(findings)
    if costliest is None or not excludes_zero(costliest[0]) or costliest[-1].better != "one":
        return None
    return Advice(
        action="Before using a second machine, cut the page's round trips: MGET, getMulti, or one query with IN or JOIN for "
        "many.",
        because=round_trips_sentence(findings),
    )


def _kept_connections_advice(findings: PageFindings) -> Advice | None:
    pairs = costly_connections(findings)
    if not pairs:
        return None
    arm, extra_ms = max(pairs, key=lambda pair: pair[1].value)
    return Advice(
        action="Keep connections between pages: PDO::ATTR_PERSISTENT, pconnect, a persistent_id for Memcached.",
        because=f"{arm.arm}: {format_ms(arm.page_ms.value)} ms per page, {with_interval(extra_ms)} ms more than with kept "
        "connections.",
    )
