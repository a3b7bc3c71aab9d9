"""What a reader should take home of pages, in sentences made of this run's figures; the first answers "one machine or two?"."""

from __future__ import annotations

from collections.abc import Sequence

from howfar.analysis.estimate import Estimate
from howfar.analysis.intervals import interval_text
from howfar.analysis.page.findings import Crossing, PageArm, PageChoice, PageFindings, PageModel
from howfar.analysis.page.foresee import TWO

_WORKERS = 20
"""Of an ordinary pool of PHP workers, for an example."""


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
    """`38 [31, 45] ms`; an end that nothing measured closes is said."""
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
    better = {choice.better for choice in shown}
    lead = {
        frozenset({"one"}): "One machine with sockets",
        frozenset({"two"}): "Two machines",
        frozenset({"not resolved"}): "Neither is told from the other",
    }.get(frozenset(better), "It depends on the page")
    clauses = [_clause(told, choice) for choice in shown]
    return f"{lead}: {'; '.join(clauses)}."


def chief_choices(choices: Sequence[PageChoice]) -> list[PageChoice]:
    """Of each page one: the real application's, with connections that stay, the most in flight, the least application CPU."""
    found: dict[str, PageChoice] = {}
    for choice in sorted(
        choices,
        key=lambda c: (c.application != "php", c.connect != "persistent", -c.threads, c.app_cpu_ns),
    ):
        found.setdefault(choice.page, choice)
    return [found[page] for page in dict.fromkeys(choice.page for choice in choices)]


def _clause(told: PageFindings, choice: PageChoice) -> str:
    one, two = (arm_of(told.arms, choice, paths) for paths in (("socket",), TWO))
    text = f"the {choice.page} page"
    if one is not None and two is not None:
        text += (
            f" takes {milliseconds(one.page_ms.value)} ms on one and {milliseconds(two.page_ms.value)} ms on two "
            f"({_flight(choice.threads)}; two answer {interval_text(choice.two_over_one)} of the pages"
            f"{'' if choice.better != 'not resolved' else ', which is not told from 1'})"
        )
    crossing = crossing_words(told.crossings, told.choices, choice)
    return text + (f", {crossing}" if crossing else "")


def crossing_words(crossings: Sequence[Crossing], choices: Sequence[PageChoice], choice: PageChoice) -> str:
    """Where the answer for this page flips. Empty: its application CPU was not varied."""
    crossing = next((each for each in crossings if _same(each, choice)), None)
    return "" if crossing is None else _flips(crossing, crossing_choices(choices, crossing))


def crossing_choices(choices: Sequence[PageChoice], crossing: Crossing) -> list[PageChoice]:
    """The levels that it was looked for on."""
    return [choice for choice in choices if _same(crossing, choice)]


def _flips(crossing: Crossing, choices: Sequence[PageChoice]) -> str:
    least, most = (milliseconds(end) for end in crossing.swept_ms)
    foreseen = f"{milliseconds(crossing.predicted_ms)} ms" if crossing.predicted_ms is not None else None
    if crossing.measured_ms is not None:
        text = f"and a second machine pays from {ms_interval(crossing.measured_ms)} of application CPU a page"
        return text + (f" (foreseen: {foreseen})" if foreseen else "")
    aside = f" (foreseen: from {foreseen})" if foreseen else ""
    if foreseen is None and crossing.without_link_cpu_ms is not None:
        aside = (
            " (nor foreseen: the emulated link takes CPU from both machines; without that the model sees it pay from "
            f"{milliseconds(crossing.without_link_cpu_ms)} ms)"
        )
    if crossing.always == "one":
        return f"and a second machine pays nowhere up to {most} ms of application CPU a page{aside}"
    if crossing.always == "two":
        return f"and a second machine pays from {least} ms of application CPU a page, the least measured{aside}"
    best = max(choices, key=lambda choice: choice.two_over_one.value)
    return (
        f"and no crossing is resolved from {least} to {most} ms of application CPU a page: two answer at most "
        f"{interval_text(best.two_over_one)} of the pages, at {milliseconds(best.app_cpu_total_ms)} ms{aside}"
    )


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
    shown = {choice.page: choice for choice in chief_choices(told.choices)}
    two = [arm for choice in shown.values() if (arm := arm_of(told.arms, choice, TWO)) and arm.cpu_ms.get("link")]
    if not two:
        return ""
    arm = max(two, key=lambda each: each.cpu_ms["link"] * each.pages_per_s.value)
    cpus = arm.cpu_ms["link"] * arm.pages_per_s.value / 1e3
    text = f"The emulated link took {cpus:.2f} CPUs of this machine ({arm.arm}), which a real network would not"
    moved = [
        f"the {each.page} page would cross at {milliseconds(each.without_link_cpu_ms)} ms"
        for each in told.crossings
        if each.without_link_cpu_ms is not None
        and each.predicted_ms is not None  # else the answer has said it
        and any(_same(each, choice) for choice in shown.values())
    ]
    return text + (f"; without that the model says {', '.join(moved)} of application CPU" if moved else "") + "."


def _tcp(told: PageFindings) -> str:
    told_tcp = [choice for choice in chief_choices(told.choices) if choice.tcp_over_socket is not None]
    if not told_tcp:
        return ""
    figures = [
        f"{interval_text(choice.tcp_over_socket)} of the {choice.page} pages"
        for choice in told_tcp
        if choice.tcp_over_socket is not None
    ]
    below = any(c.tcp_over_socket is not None and (c.tcp_over_socket.high or 1.0) < 1 for c in told_tcp)
    hint = (
        ": set the host to localhost or the socket's path, not 127.0.0.1; `howfar doctor` has the lines"
        if below
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
    if turns < 1:
        return ""
    more_ms = two.page_ms.value - one.page_ms.value
    text = (
        f"Turns are the lever: on two machines each costs {more_ms / turns:.2g} ms more, "
        f"{turns:.0f} of them {milliseconds(more_ms)} ms of the {one.page} page (one in flight)"
    )
    chief = next((choice for choice in chief_choices(told.choices) if choice.page == one.page), None)
    crossing = next((each for each in told.crossings if chief is not None and _same(each, chief)), None)
    if chief is None or crossing is None or crossing.predicted_ms is None:
        return text + "."
    halved = crossing.half_turns_ms
    if halved is None:
        return text + "."
    return (
        text + f"; half of them would move the crossing from {milliseconds(crossing.predicted_ms)} to "
        f"{milliseconds(halved)} ms (model, {_flight(chief.threads)})."
    )


def _connects(told: PageFindings) -> str:
    """Connections for each page against those that stay, one page in flight."""
    clauses = []
    for arm in told.arms:
        if arm.connect == "persistent" or arm.path not in ("socket", *TWO):
            continue
        kept = next((each for each in told.arms if _but_connect(each) == _but_connect(arm) and each is not arm), None)
        if kept is not None and arm.threads == 1 and kept.connect == "persistent":
            more = arm.page_ms.value - kept.page_ms.value
            where = "on sockets" if arm.path == "socket" else "on two machines"
            clauses.append(f"{milliseconds(more)} ms of the {arm.page} page {where}")
    return f"Opening connections for each page costs {', '.join(clauses[:4])}." if clauses else ""


def _workers(told: PageFindings) -> str:
    """The sentence that users will remember."""
    pairs = [pair for pair in _lone(told) if pair[0].application == "php"]
    if not pairs:
        return ""
    one, two = max(pairs, key=lambda pair: pair[1].page_ms.value)
    most = [_WORKERS * 1e3 / arm.page_ms.value for arm in (one, two)]
    return (
        f"PHP workers are a bound of their own, workers / page time: {_WORKERS} of them make at most {most[0]:.0f} {one.page} "
        f"pages a second on one machine and {most[1]:.0f} on two, however idle its processors are."
    )


def _model(model: PageModel) -> str:
    return " ".join(sentence for sentence in (_error(model), _impossible(model)) if sentence)


def _impossible(model: PageModel) -> str:
    if not model.impossible:
        return ""
    arms = "arm is" if len(model.impossible) == 1 else "arms are"
    return f"{len(model.impossible)} {arms} not foreseen: a page alone that the model would be made of was quicker than its parts can be."


def _error(model: PageModel) -> str:
    if model.mean_error is None or model.worst_error is None:
        return ""
    arms = "arm" if model.arms == 1 else "arms"
    bar = "" if model.within_bar else ", which is beyond the 10 % that it should hold"
    return (
        f"The model foresees the p50 of {model.arms} {arms} of real pages with an error of {model.mean_error * 100:.1f} % "
        f"on the mean, {abs(model.worst_error) * 100:.1f} % at worst ({model.worst_arm}){bar}: from the real page on sockets and "
        "the engine's page on each path."
    )


def _theirs(told: PageFindings) -> str:
    rows = [row for row in told.published if row[3] is not None]
    if not rows:
        return ""
    clauses = [
        f"{two:.0f} ms on two machines and {one:.0f} on one ({one / two:.2f} of the pages; here {ours:.2f} of the {page} ones)"
        for page, two, one, ours in rows
    ]
    return f"Published, of other machines: {'; '.join(clauses)}."


def _lone(told: PageFindings) -> list[tuple[PageArm, PageArm]]:
    """One page in flight, on sockets and on two machines, the least application CPU; the real application where there is one."""
    lone = [choice for choice in told.choices if choice.threads == 1]
    shown = chief_choices(lone)
    both = [(arm_of(told.arms, choice, ("socket",)), arm_of(told.arms, choice, TWO)) for choice in shown]
    return [(one, two) for one, two in both if one is not None and two is not None]


def arm_of(arms: Sequence[PageArm], choice: PageChoice, paths: Sequence[str]) -> PageArm | None:
    """Of a choice, on the first of these paths that there is."""
    alike = [
        arm
        for arm in arms
        if (arm.page, arm.connect, arm.application, arm.app_cpu_ns, arm.threads)
        == (choice.page, choice.connect, choice.application, choice.app_cpu_ns, choice.threads)
    ]
    return next((arm for path in paths for arm in alike if arm.path == path), None)


def _but_connect(arm: PageArm) -> tuple[object, ...]:
    return (arm.page, arm.application, arm.path, arm.app_cpu_ns, arm.threads)


def _same(crossing: Crossing, choice: PageChoice) -> bool:
    return (crossing.page, crossing.connect, crossing.application, crossing.threads) == (
        choice.page,
        choice.connect,
        choice.application,
        choice.threads,
    )


def _flight(threads: int) -> str:
    return f"{threads} in flight"
