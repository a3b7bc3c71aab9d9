"""What a run says of pages, as tables of text: terminal, Markdown and page lay the same ones out."""

from __future__ import annotations

from collections.abc import Sequence

from howfar.experiments.page.findings import Crossing, PageArm, PageChoice, PageFindings, TurnCost
from howfar.experiments.page.report import words
from howfar.experiments.page.report.words import Setting
from howfar.report import figures
from howfar.report.tables import Head, Table, share, single

FIRST = "One machine or two?"
FLIPS = "Where the second machine begins to pay"


def first(findings: PageFindings) -> Table | None:
    """Page x machines, of each page's chief setting."""
    settings = words.chief(findings)
    if not settings:
        return None
    lone = any(words.alone(findings, setting) != setting for setting in settings)
    fewest = {words.alone(findings, setting).threads for setting in settings}
    most = {setting.threads for setting in settings}
    flight = [*([_one_of(fewest, "fewest")] if lone else []), _one_of(most, "most")]
    heads: list[Head] = [("", ""), ("pages/s", "[95 %]"), ("p50 ms, in", f"flight {', '.join(flight)}")]
    heads += [("over", f"{words.NOTICED_MS} ms"), ("over", f"{words.DEGRADED_MS} ms"), ("CPU ms", "a page")]
    rows = tuple(
        (f"{setting.page}: {words.where(arm, findings)}", *_first_cells(findings, arm, lone))
        for setting in settings
        for arm in words.arms_of(findings, setting)
    )
    return Table(FIRST, tuple(heads), rows, tuple(_first_notes(findings, settings, lone)))


def _one_of(counts: set[int], otherwise: str) -> str:
    return str(min(counts)) if len(counts) == 1 else otherwise


def _first_cells(findings: PageFindings, arm: PageArm, lone: bool) -> list[str]:
    p50 = words.ms(arm.p50_ms)
    if lone:
        quiet = words.alone(findings, words.setting_of(arm))
        same = next((each for each in words.arms_of(findings, quiet) if _alike(each, arm)), None)
        p50 = f"{words.ms(same.p50_ms if same else None)}, {p50}"
    shares = words.share(arm.over_noticed), words.share(arm.over_degraded)
    return [words.with_limits(arm.pages_per_s), p50, *shares, words.ms(words.path_cpu_ms(arm))]


def _alike(one: PageArm, other: PageArm) -> bool:
    """On the same path over a link that was asked for alike."""
    return words.way_of(one) == words.way_of(other)


def _first_notes(findings: PageFindings, settings: Sequence[Setting], lone: bool) -> list[str]:
    real = {words.APPLICATIONS[setting.application] for setting in settings}
    notes: list[str] = []
    flight = " and ".join(str(count) for count in sorted({setting.threads for setting in settings}))
    fewest = " and ".join(str(count) for count in sorted({words.alone(findings, each).threads for each in settings}))
    also = f", and {'one alone' if fewest == '1' else fewest}" if lone else ""
    notes.append(
        f"Pages of {' or '.join(sorted(real))}, {flight} in flight{also}: a visitor asks for its next "
        f"page when it has the last one. From {words.NOTICED_MS} ms on people notice a delay, from {words.DEGRADED_MS} ms on the "
        f"experience is degraded{': shares of the pages with all in flight' if lone else ''}. CPU: of all processes but the link's "
        "emulator."
    )
    return notes


def flips(crossings: Sequence[Crossing]) -> Table | None:
    """The application's CPU a page at which one machine and two make as many pages."""
    if not crossings:
        return None
    heads: tuple[Head, ...] = (
        ("page", ""),
        ("second machine", "pays from"),
        ("foreseen", ""),
        ("measured", "from, to"),
    )
    unloaded = any(crossing.without_link_cpu_ms is not None for crossing in crossings)
    if unloaded:
        heads = (*heads[:3], ("without the", "emulator"), heads[3])
    rows = tuple(
        _flip(name, crossing, unloaded) for name, crossing in zip(words.series(crossings), crossings, strict=True)
    )
    note = (
        "Application CPU a page in all, in ms: what the page needs by itself and what it was asked to compute beyond."
    )
    notes = [note]
    if unloaded:
        notes.append("Without the emulator: by the model, if the emulated link took no CPU from the machines.")
    return Table(FLIPS, heads, rows, tuple(notes))


def _flip(name: str, crossing: Crossing, unloaded: bool) -> tuple[str, ...]:
    cells = [name, words.flips_at(crossing), words.foreseen_at(crossing)]
    if unloaded:
        found = crossing.without_link_cpu_ms
        cells.append(figures.UNKNOWN if found is None else f"{words.milliseconds(found)} ms")
    least, most = crossing.swept_ms
    return (*cells, f"{words.milliseconds(least)}, {words.milliseconds(most)}")


def other_crossings(findings: PageFindings) -> list[Crossing]:
    chosen = words.chief_crossings(findings)
    return [crossing for crossing in findings.crossings if crossing not in chosen]


def choices(found: Sequence[PageChoice], wide: bool = False) -> Table | None:
    """Each comparison of one machine and two, as the application computes more. `wide`: of both kinds of one machine too."""
    if not found:
        return None
    order = list(dict.fromkeys(_of(choice) for choice in found))
    found = sorted(found, key=lambda c: (order.index(_of(c)), -c.threads, c.app_cpu_total_ms))
    rows = tuple(
        (
            name,
            words.ms(choice.app_cpu_total_ms),
            figures.ratio(choice.two_over_one),
            figures.UNKNOWN if choice.predicted is None else f"{choice.predicted:.2f}",
            choice.better,
            *([figures.ratio(choice.tcp_over_socket)] if wide else []),
        )
        for name, choice in zip(words.series(found), found, strict=True)
    )
    heads: list[Head] = [
        ("page", ""),
        ("application", "CPU ms"),
        ("two over one", "[95 %]"),
        ("fore-", "seen"),
        ("better", ""),
    ]
    heads += [("TCP over", "sockets [95 %]")] if wide else []
    note = (
        "Pages a second, paired by block; one machine is the one with sockets. Not resolved: the interval includes 1, or the "
        "difference is smaller than the noise floor."
    )
    return Table("Two machines over one", tuple(heads), rows, (note,))


def _of(choice: PageChoice) -> tuple[str, str, str, words.Way]:
    return choice.page, choice.application, choice.connect, words.way_of(choice)


def turns(findings: PageFindings, wide: bool = False) -> Table | None:
    """Microseconds a turn, a column a path: of each page the arms with fewest pages in flight. `wide`: of other applications and
    connections than the chief ones too."""
    chief = {(found.page, found.application, found.connect) for found in words.chief(findings)}
    settings = [found for found in quiet(findings) if wide or (found.page, found.application, found.connect) in chief]
    columns = list(
        dict.fromkeys(
            words.where(arm, findings) for setting in settings for arm in words.arms_of(findings, setting) if arm.turns
        )
    )
    columns.sort(key=lambda column: not column.startswith("one"))  # stable: paths stay in the run's order
    rows = []
    for setting, name in zip(settings, words.names(settings), strict=True):
        arms = {words.where(arm, findings): arm for arm in words.arms_of(findings, setting) if arm.turns}
        for service in dict.fromkeys(cost.service for arm in arms.values() for cost in arm.turns):
            rows += _turn_rows(name, service, [words.cost_of(arms.get(column), service) for column in columns])
    if not rows:
        return None
    heads = (("µs a turn to", ""), ("turns", "a page"), *(_two_lines(column) for column in columns))
    notes = ["From the first byte sent to the last byte read, by the application's own clock; fewest pages in flight."]
    if any(setting.application == "php" and setting.connect == "persistent" for setting in settings):
        notes.append("PHP asks a connection that it kept whether it lives: a turn more to MySQL, one more to Redis.")
    return Table("What a turn costs", heads, tuple(rows), tuple(notes))


def quiet(findings: PageFindings) -> list[Setting]:
    """Of each page, application and way to connect: fewest pages in flight, and nothing computed beyond."""
    found: dict[tuple[str, str, str], Setting] = {}
    for arm in findings.arms:
        mine = words.setting_of(arm)
        key = (mine.page, mine.application, mine.connect)
        best = found.get(key, mine)
        found[key] = min(best, mine, key=lambda each: (each.app_cpu_ns, each.threads))
    return list(found.values())


def _turn_rows(name: str, service: str, costs: Sequence[TurnCost | None]) -> list[tuple[str, ...]]:
    known = [cost for cost in costs if cost is not None]
    called = f"{name}: {words.SERVICES.get(service, service)}"
    rows = [(called, f"{known[0].turns:.4g}", *(_us(cost.mean_us if cost else None) for cost in costs))]
    if any(cost.connect_us is not None for cost in known):
        connects = max(cost.connects for cost in known)
        rows.append(
            (f"{called} connect", f"{connects:.3g}", *(_us(cost.connect_us if cost else None) for cost in costs))
        )
    return rows


def _us(value: float | None) -> str:
    return figures.number(value)


def _two_lines(column: str) -> Head:
    one, _, rest = column.partition(", ")
    return f"{one} machine{'' if one == 'one' else 's'}", rest


FEW = 8
"""Errors that a narrow report lists."""


def foreseen(findings: PageFindings, wide: bool = False) -> Table | None:
    """Arms that the model is not made of: `wide`: each, else those that it missed most."""
    arms = [arm for arm in findings.arms if arm.predicted_p50_ms is not None]
    if not arms:
        return None
    more = 0 if wide else len(arms) - FEW
    if more > 0:
        arms = sorted(arms, key=lambda arm: -abs(arm.predicted_error or 0.0))[:FEW]
    rows = tuple(
        (arm.arm, words.ms(arm.p50_ms), words.ms(arm.predicted_p50_ms), share(arm.predicted_error, signed=True))
        for arm in arms
    )
    heads = single("page", "p50 ms", "foreseen", "off by")
    notes = [f"Those that it missed most; it was nearer at the {more} others."] if more > 0 else []
    return Table("The real page and the modelled one", heads, rows, (*notes, *model_notes(findings)))


def model_notes(findings: PageFindings) -> list[str]:
    model = findings.model
    if model.mean_error is None or model.worst_error is None:
        return ["No arm could be foreseen: it takes real pages on sockets and the engine's page on each path."]
    worst = f" ({model.worst_arm})" if model.worst_arm else ""
    said = (
        f"{model.arms} arms foreseen, off by {share(model.mean_error)} on average and by {share(abs(model.worst_error))} at "
        f"worst{worst}."
    )
    bar = "" if model.within_bar is None else f" Each within 10 %: {'yes' if model.within_bar else 'no'}."
    made = "Made of the real page on sockets, the engine's page on each path, and the link's RTT at rest."
    return [said + bar, made]


def agreement(findings: PageFindings, wide: bool = False) -> Table | None:
    """The engine's run of the same turns beside the real application's page. `wide`: wherever both are, else of chief settings."""
    chief = words.chief(findings)
    chief += [words.alone(findings, setting) for setting in chief]
    engine = {_place(arm): arm for arm in findings.arms if arm.application == "engine"}
    pairs = [
        (arm, twin)
        for arm in findings.arms
        if arm.application == "php" and (twin := engine.get(_place(arm))) is not None
        if wide or words.setting_of(arm) in chief
    ]
    if not pairs:
        return None
    pages = words.pages(findings)
    pairs.sort(key=lambda pair: (pages.index(pair[0].page), -pair[0].threads, pair[0].app_cpu_ns, pair[0].machines))
    settings = words.names([words.setting_of(arm) for arm, _ in pairs])
    rows = tuple(
        (
            f"{name}: {words.where(arm, findings)}",
            words.ms(arm.p50_ms),
            words.ms(twin.p50_ms),
            f"{twin.p50_ms / arm.p50_ms:.2f}" if arm.p50_ms else figures.UNKNOWN,
            words.ms(arm.cpu_ms.get("application")),
            words.ms(twin.cpu_ms.get("application")),
        )
        for name, (arm, twin) in zip(settings, pairs, strict=True)
    )
    heads = (
        ("page", ""),
        ("p50 ms", "PHP"),
        ("p50 ms", "engine"),
        ("engine", "of PHP"),
        ("CPU ms", "PHP"),
        ("CPU ms", "engine"),
    )
    note = "The engine's page is the same turns without an application round them: what it lacks is PHP's own time."
    return Table("The engine's page beside the real one", heads, rows, (note,))


def _place(arm: PageArm) -> tuple[str, words.Way, str, int, int]:
    return arm.page, words.way_of(arm), arm.connect, arm.app_cpu_ns, arm.threads


ROLES = ("application", "visitor", "server", "redis", "memcached", "forwarder", "link")


def cpu(findings: PageFindings, arms: Sequence[PageArm]) -> Table | None:
    """CPU a page by who spent it, and how full the machines were."""
    roles = [role for role in ROLES if any(role in arm.cpu_ms for arm in arms)]
    roles += sorted({role for arm in arms for role in arm.cpu_ms} - set(roles))
    if not roles:
        return None
    settings = words.names([words.setting_of(arm) for arm in arms])
    rows = tuple(
        (
            f"{name}: {words.where(arm, findings)}",
            *(words.ms(arm.cpu_ms.get(role)) for role in roles),
            _busy(arm),
        )
        for name, arm in zip(settings, arms, strict=True)
    )
    heads = (
        ("CPU ms a page", ""),
        *((("link's", "emulator") if role == "link" else (role, "")) for role in roles),
        ("CPUs", "busy"),
    )
    note = "CPUs busy: of the one machine; of two, the application's and the servers'."
    return Table("Who spends the CPU", heads, rows, (note,))


def _busy(arm: PageArm) -> str:
    """`99 %`; of two machines `41 %, 87 %`."""
    found = [arm.busy[machine] for machine in ("both", "application", "database") if machine in arm.busy]
    return ", ".join(f"{value * 100:.0f} %" for value in found) or figures.UNKNOWN


def published(findings: PageFindings) -> Table | None:
    if not findings.published:
        return None
    rows = tuple(
        (page, words.ms(two), words.ms(one), f"{one / two:.2f}" if two else figures.UNKNOWN, figures.number(ours))
        for page, two, one, ours in findings.published
    )
    heads = (
        ("published elsewhere", ""),
        ("two machines", "ms"),
        ("one machine", "ms"),
        ("two", "over one"),
        ("ours, two", "over one"),
    )
    note = "Two over one: of the pages a second, fewest in flight. Other machines and another application: compare what it is over."
    return Table("What others published", heads, rows, (note,))


def everything(findings: PageFindings) -> Table | None:
    """A row an arm."""
    if not findings.arms:
        return None
    rows = tuple(
        (
            arm.arm,
            words.with_limits(arm.pages_per_s),
            words.with_limits(arm.page_ms),
            " / ".join(words.ms(value) for value in (arm.p50_ms, arm.p95_ms, arm.p99_ms)),
            words.share(arm.over_noticed),
            words.share(arm.over_degraded),
            words.ms(arm.own_cpu_ms),
            words.ms(words.path_cpu_ms(arm)),
        )
        for arm in findings.arms
    )
    heads = single(
        "page",
        "pages/s [95 %]",
        "ms a page [95 %]",
        "p50 / p95 / p99",
        "over 13 ms",
        "over 75 ms",
        "own CPU ms",
        "CPU ms",
    )
    return Table("Every arm", heads, rows)
