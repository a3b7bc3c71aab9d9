"""What a reader should take home of pages, in sentences made of this run's figures; the first answers "one machine or two?"."""

from __future__ import annotations

import math
from collections.abc import Sequence

from howfar.experiments.page.chief import chief_choices, pair_of, way_rank
from howfar.experiments.page.findings import Crossing, PageArm, PageChoice, PageFindings, PageModel, WayError
from howfar.stats.estimate import Estimate
from howfar.stats.intervals import Resolution, excludes_one, interval_text, resolve
from howfar.units import format_duration_ns

_WORKERS = 20
"""Of an ordinary pool of PHP workers, for an example."""
Pair = tuple[PageArm, PageArm]


def page_sentences(told: PageFindings) -> tuple[str, ...]:
    """The answer first. `told` has none yet."""
    found = [
        _answer(told),
        _link(told),
        _tcp(told),
        of_turns(told),
        _connects(told),
        _workers(told),
        _model(told.model),
        _theirs(told),
    ]
    return tuple(sentence for sentence in found if sentence)


def milliseconds(value: float) -> str:
    """`9.1`, `0.24`, `152`: three digits at most."""
    return f"{value:.0f}" if value >= 100 else f"{value:.2g}" if value < 10 else f"{value:.3g}"


def ms_interval(estimate: Estimate) -> str:
    """`38 [31, 45] ms`; an end that nothing measured closes is said. Without either: one block."""
    low, high = estimate.low, estimate.high
    if low is None and high is None:
        return f"{milliseconds(estimate.value)} ms (no interval)"
    left = "below what was measured" if low is None else milliseconds(low)
    right = "beyond what was measured" if high is None else milliseconds(high)
    return f"{milliseconds(estimate.value)} [{left}, {right}] ms"


# ---------------------------------------------------------------- one or two


def _answer(told: PageFindings) -> str:
    shown = chief_choices(told.choices)
    if not shown:
        return _without(told.arms)
    clauses = [_clause(told, choice, shown) for choice in shown]
    return f"{_lead(shown)}: {'; '.join(clauses)}."


def _lead(shown: Sequence[PageChoice]) -> str:
    better = {choice.better for choice in shown}
    told = better - {"not resolved"}
    if len(told) == 2:
        return "It depends on the page"
    if not told:
        return "Neither is told from the other"
    lead = "One machine with sockets" if told == {"one"} else "Two machines"
    return lead if told == better else f"{lead}, where they are told apart"


def _clause(told: PageFindings, choice: PageChoice, shown: Sequence[PageChoice]) -> str:
    pair = pair_of(told.arms, choice)
    text = f"the {choice.page} page"
    if pair is not None:
        said = choice is not shown[0] and len({each.threads for each in shown}) == 1
        flight = "" if said else f"{_flight(choice.threads)}; "
        text += (
            f" takes {milliseconds(pair[0].page_ms.value)} ms on one and {milliseconds(pair[1].page_ms.value)} on two "
            f"({flight}{interval_text(choice.two_over_one)} of the pages{_untold(choice, told.noise_floor)})"
        )
    crossing = next((each for each in told.crossings if _same(each, choice)), None)
    of = " of application CPU" if choice is shown[0] else ""  # said once
    return text + (f", {_flips(crossing, of)}" if crossing is not None else "")


def _untold(choice: PageChoice, floor: float | None) -> str:
    """Why it is not resolved. Empty: it is, or one block has no interval, which is said with the figure."""
    ratio = choice.two_over_one
    if choice.better != "not resolved" or ratio.low is None:
        return ""
    if not excludes_one(ratio):
        return ", which is not told from 1"
    return ", of an unknown noise floor" if floor is None else f", within the noise floor of {floor * 100:.2g} %"


def crossing_words(crossings: Sequence[Crossing], choices: Sequence[PageChoice], choice: PageChoice) -> str:
    """Where the answer for this page flips, and how near it came where it does not. Empty: its application CPU was not varied."""
    crossing = crossing_of(crossings, choice)
    if crossing is None:
        return ""
    text = _flips(crossing)
    if crossing.measured_ms is not None or crossing.always is not None:
        return text
    best = max(crossing_choices(choices, crossing), key=lambda each: each.two_over_one.value)
    return (
        f"{text}: the most measured was {interval_text(best.two_over_one)} at {milliseconds(best.app_cpu_total_ms)} ms"
    )


def crossing_of(crossings: Sequence[Crossing], choice: PageChoice) -> Crossing | None:
    return next((each for each in crossings if _same(each, choice)), None)


def crossing_choices(choices: Sequence[PageChoice], crossing: Crossing) -> list[PageChoice]:
    """The levels that it was looked for on."""
    return [choice for choice in choices if _same(crossing, choice)]


def _flips(crossing: Crossing, of: str = " of application CPU") -> str:
    least, most = (milliseconds(end) for end in crossing.swept_ms)
    aside = _foreseen(crossing)
    if crossing.measured_ms is not None:
        return f"and a second machine pays from {ms_interval(crossing.measured_ms)}{of}{aside}"
    if crossing.always == "one":
        return f"and a second machine pays nowhere up to {most} ms{of}{aside}"
    if crossing.always == "two":
        return f"and a second machine pays from {least} ms{of}, the least measured{aside}"
    return f"and no crossing is resolved from {least} to {most} ms{of}{aside}"


def _foreseen(crossing: Crossing) -> str:
    """Empty: there is no model, or it has the two change more than once."""
    if crossing.predicted_ms is not None:
        return f" (foreseen: {milliseconds(crossing.predicted_ms)} ms)"
    match crossing.predicted_always:
        case "one":
            nowhere = crossing.measured_ms is None and crossing.always != "two"
            return " (nor foreseen)" if nowhere else " (foreseen: nowhere)"
        case "two":
            return " (as foreseen)" if crossing.always == "two" else " (foreseen: from the least on)"
        case None:
            return ""


def _without(arms: Sequence[PageArm]) -> str:
    """No page was measured on both."""
    machines = {arm.machines for arm in arms}
    if not machines:
        return ""
    missing = "two machines" if 2 not in machines else "one machine with sockets"
    return f"No answer: no page was measured on {missing} in the same block as on the other."


# ---------------------------------------------------------------- what it is made of


def _link(told: PageFindings) -> str:
    """The instrument's part of it."""
    shown = chief_choices(told.choices)
    pairs = [pair for choice in shown if (pair := pair_of(told.arms, choice)) is not None]
    two = [arm for _, arm in pairs if arm.cpu_ms.get("link")]
    if not two:
        return ""
    arm = max(two, key=lambda each: each.cpu_ms["link"] * each.pages_per_s.value)
    cpus = arm.cpu_ms["link"] * arm.pages_per_s.value / 1e3
    text = f"The emulated link took {cpus:.2f} CPUs of this machine ({arm.arm}), which a real network would not"
    moved = [
        f"the {each.page} page from {milliseconds(each.without_link_cpu_ms)} ms"
        + (f" instead of {milliseconds(each.predicted_ms)}" if each.predicted_ms is not None else "")
        for each in told.crossings
        if each.without_link_cpu_ms is not None
        and (each.predicted_ms is not None or each.predicted_always == "one")
        and any(_same(each, choice) for choice in shown)
    ]
    without = f"; without that the model sees a second machine pay for {', for '.join(moved)} of application CPU"
    return text + (without if moved else "") + "."


def tcp_is_slower(choice: PageChoice, floor: float | None) -> bool:
    """Told from 1, and beyond the noise floor."""
    return resolve(choice.tcp_over_socket, floor) is Resolution.SLOWER


def _tcp(told: PageFindings) -> str:
    known = [(c, ratio) for c in chief_choices(told.choices) if (ratio := c.tcp_over_socket) is not None]
    if not known:
        return ""
    slower = [choice.page for choice, _ in known if tcp_is_slower(choice, told.noise_floor)]
    figures = [
        f"{interval_text(ratio)} of the {choice.page} pages{'' if choice.page in slower else ' (not resolved)'}"
        for choice, ratio in known
    ]
    hint = (
        ": set the host to localhost or the socket's path, not 127.0.0.1; `howfar doctor` has the lines"
        if slower
        else ""
    )
    return f"On one machine loopback TCP answers {' and '.join(figures)} that sockets do{hint}."


def of_turns(told: PageFindings) -> str:
    """What a turn costs, one page in flight, and what fewer of them would do."""
    pairs = _lone(told)
    if not pairs:
        return ""
    one, two = max(pairs, key=lambda pair: sum(cost.turns for cost in pair[1].turns))
    turns = sum(cost.turns for cost in two.turns)
    more_ms = two.page_ms.value - one.page_ms.value
    if turns < 1 or more_ms <= 0:
        return ""
    text = (
        f"Turns are the lever: on two machines each costs {more_ms / turns:.2g} ms more, "
        f"{turns:.0f} of them {milliseconds(more_ms)} ms of the {one.page} page (one in flight)"
    )
    chief = next((choice for choice in chief_choices(told.choices) if choice.page == one.page), None)
    crossing = next((each for each in told.crossings if chief is not None and _same(each, chief)), None)
    if crossing is None or crossing.predicted_ms is None or crossing.half_turns_ms is None:
        return text + "."
    return (
        text + f"; half of them would move the crossing from {milliseconds(crossing.predicted_ms)} to "
        f"{milliseconds(crossing.half_turns_ms)} ms (model, {_flight(crossing.threads)})."
    )


def dear_connections(told: PageFindings) -> list[Pair]:
    """Real pages that open their connections anew, and those that keep them, where they are told apart: on sockets and on the plainest
    way to a second machine, the fewest in flight."""
    found: dict[tuple[str, int], Pair] = {}
    for arm in sorted(told.arms, key=lambda each: (each.threads, each.app_cpu_ns, way_rank(each))):
        if arm.connect == "persistent" or arm.application != "php" or arm.path == "tcp":
            continue
        kept = next((each for each in told.arms if each.connect == "persistent" and _kin(each) == _kin(arm)), None)
        if kept is not None and (arm.page, arm.machines) not in found:
            found[arm.page, arm.machines] = arm, kept
    return [pair for pair in found.values() if _longer(*pair, told.noise_floor)]


def _longer(arm: PageArm, kept: PageArm, floor: float | None) -> bool:
    low, high = arm.page_ms.low, kept.page_ms.high
    if low is None or high is None or floor is None:
        return False
    return low > high and math.log(arm.page_ms.value / kept.page_ms.value) > math.log1p(floor)


def _kin(arm: PageArm) -> tuple[object, ...]:
    """All but its connections."""
    return arm.page, arm.application, way_rank(arm), arm.app_cpu_ns, arm.threads


def _connects(told: PageFindings) -> str:
    clauses = [
        f"{milliseconds(arm.page_ms.value - kept.page_ms.value)} ms of the {arm.page} page "
        f"{'on sockets' if arm.machines == 1 else 'on two machines'} ({_flight(arm.threads)})"
        for arm, kept in dear_connections(told)
    ]
    return f"Opening connections for each page costs {', '.join(clauses)}." if clauses else ""


def _workers(told: PageFindings) -> str:
    """Two bounds, of which the lower holds: that of workers, and that of processors, by a page alone: with the emulator's part."""
    pairs = [pair for pair in _lone(told) if pair[0].application == "php"]
    if not pairs:
        return ""
    one, two = max(pairs, key=lambda pair: pair[1].page_ms.value)
    workers = [f"{_WORKERS * 1e3 / arm.page_ms.value:.0f}" for arm in (one, two)]
    passed = [
        f"{arm.pages_per_s.value / fullest:.0f}" for arm in (one, two) if (fullest := max(arm.busy.values(), default=0))
    ]
    text = (
        f"PHP workers are a bound of their own, workers / page time: for the {one.page} page {_WORKERS} of them would make at most "
        f"{workers[0]} a second on one machine and {workers[1]} on two"
    )
    return text + (f"; the processors here pass {passed[0]} and {passed[1]}." if len(passed) == 2 else ".")


def _model(model: PageModel) -> str:
    return " ".join(sentence for sentence in (_error(model), _impossible(model)) if sentence)


def _impossible(model: PageModel) -> str:
    if not model.impossible:
        return ""
    arms = "arm is" if len(model.impossible) == 1 else "arms are"
    why = "a page alone that they would be foreseen from was quicker than its parts can be"
    return f"{len(model.impossible)} {arms} not foreseen: {why}."


def _error(model: PageModel) -> str:
    if model.mean_error is None or model.worst_error is None:
        return ""
    arms = "arm" if model.arms == 1 else "arms"
    bar = "" if model.within_bar else ", which is beyond the 10 % that it should hold"
    ways = [f"{_link_name(model, way)} {way.mean_error * 100:.1f} %" for way in model.by_way]
    by_way = f"; {', '.join(ways)}" if len(ways) > 1 else ""
    return (
        f"The model foresees the p50 of {model.arms} {arms} of real pages with an error of {model.mean_error * 100:.1f} % "
        f"on the mean{by_way}; {abs(model.worst_error) * 100:.1f} % at worst ({model.worst_arm}){bar}: from the real page on "
        "sockets and the engine's page on each path."
    )


def _link_name(model: PageModel, way: WayError) -> str:
    several = len({each.rtt_ns for each in model.by_way if each.rtt_ns is not None}) > 1
    return way.path + (f" {format_duration_ns(way.rtt_ns)}" if several and way.rtt_ns is not None else "")


def _theirs(told: PageFindings) -> str:
    rows = [row for row in told.published if row[3] is not None]
    if not rows:
        return ""
    clauses = [
        f"{two:.0f} ms on two machines and {one:.0f} on one ({one / two:.2f} of the pages; here {ours:.2f} of the {page} ones)"
        for page, two, one, ours in rows
    ]
    return f"Published, of other machines: {'; '.join(clauses)}."


def _lone(told: PageFindings) -> list[Pair]:
    """One page in flight, on sockets and on two machines, the least application CPU; the real application where there is one."""
    shown = chief_choices(choice for choice in told.choices if choice.threads == 1)
    return [pair for choice in shown if (pair := pair_of(told.arms, choice)) is not None]


def _same(crossing: Crossing, choice: PageChoice) -> bool:
    """The choice is one of the crossing's levels."""
    return _swept(crossing) == _swept(choice)


def _swept(of: Crossing | PageChoice) -> tuple[object, ...]:
    """All but the application's CPU."""
    return of.page, of.connect, of.application, of.threads, of.path, of.rtt_ns, of.rate_bps


def _flight(threads: int) -> str:
    return f"{threads} in flight"
