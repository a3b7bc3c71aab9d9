"""The report of a run about pages, as an experiment: `Pages`. Its order is a reader's: one machine or two, from when a second one
pays, where a page's time goes, who notices, how well a model predicts it, and what the run does not say."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from howfar.analysis.summary import Summary
from howfar.experiments.page import charts
from howfar.experiments.page.charts import (
    headline_crossings,
    headline_levels,
    quietest,
    split_arms,
    swept_levels,
    time_parts,
)
from howfar.experiments.page.findings import (
    Crossing,
    PageArm,
    PageChoice,
    PageFindings,
    TurnCost,
    arms_of,
    fewest_in_flight,
    headline_settings,
    route_of,
    setting_of,
    swept_setting,
)
from howfar.experiments.page.labels import (
    APPLICATIONS,
    DEGRADED_MS,
    NOTICED_MS,
    SERVICES,
    busy,
    path_cpu_ms,
    route_name,
    series_names,
    setting_names,
    several,
    share_of_pages,
    where,
    with_limits,
)
from howfar.experiments.page.sentences import emulator_cpus, in_flight, milliseconds, pays_from, predicted_from
from howfar.report.document import (
    Block,
    Bullets,
    Card,
    Chart,
    Column,
    Details,
    Document,
    Table,
    Text,
    plain,
)
from howfar.report.figures import UNKNOWN, number, ratio, share
from howfar.report.frame import cell_records, frame, trials
from howfar.stats.estimate import Estimate

QUANTILES = (0.9, 0.95, 0.99, 0.999)
"""Of the pages of all trials together; the p50 beside them is that of every other table."""
ROLES = ("application", "visitor", "server", "redis", "memcached", "forwarder", "link")
BETTER = {"one": "one machine", "two": "two machines", "not resolved": "not resolved"}
Head = str | tuple[str, str]
Line = dict[str, object]


class Pages:
    """One machine or two for a web page."""

    name = "page"

    def applies(self, summary: Summary) -> bool:
        return summary.pages is not None

    def document(self, summary: Summary) -> Document:
        found = summary.pages
        assert found is not None, "it applies"
        limits = tuple(_limits(summary, found))
        sentences = tuple(sentence for sentence in found.sentences if sentence not in summary.verdict)
        sections = [
            details("When a second machine pays", _crossing_blocks(found), True),
            details("More findings", [Bullets(sentences)] if sentences else [], True),
            details("Where the time goes", _time_blocks(found), True),
            details("Latency", [_latency_chart(summary, found)], True),
            details("The model", _model_blocks(found), True),
            details("CPU", [cpu_table(found, _headline_arms(found))], True),
            details("Published figures", [published_table(found)], True),
            details("Every arm", [*_other_blocks(found), arms_table(found), cpu_table(found, found.arms)]),
            details("Limits of this run", [Bullets(limits)] if limits else [], True),
        ]
        lines = page_records(found)
        main = (_crossing_chart(summary, found), first_table(found))
        return frame(
            summary,
            [block for block in main if block is not None],
            cards=_cards(found),
            below=[*(section for section in sections if section is not None), *trials(summary)],
            records=[{**record, **lines.get(str(record["arm"]), {})} for record in cell_records(summary)],
        )


def details(title: str, blocks: Sequence[Block | None], unfolded: bool = False) -> Details | None:
    """None: nothing to show."""
    kept = tuple(block for block in blocks if block is not None)
    return Details(title, kept, unfolded) if kept else None


def _table(
    title: str, heads: Sequence[Head], rows: Sequence[Sequence[str]], notes: Sequence[str] = (), main: bool = False
) -> Table | None:
    """None: no rows."""
    pairs = [(head, "") if isinstance(head, str) else head for head in heads]
    columns = tuple(Column(head, lower, left=index == 0) for index, (head, lower) in enumerate(pairs))
    return Table(title, columns, tuple(plain(*row) for row in rows), tuple(notes), main) if rows else None


# ---------------------------------------------------------------- one machine or two


def _cards(findings: PageFindings) -> tuple[Card, ...]:
    """A card a page: which is better, by how much, and from when the other is."""
    crossings = {(each.page, route_of(each)): each for each in headline_crossings(findings)}
    found = []
    for setting in headline_settings(findings):
        alike = [choice for choice in findings.choices if setting_of(choice) == setting]
        if not alike:
            continue
        choice = alike[0]
        over = f" ({route_name(choice, alike)})" if len(alike) > 1 else ""
        meaning = (
            f"two machines{over} serve {ratio(choice.two_over_one)} of its pages a second, {in_flight(setting.threads)}"
        )
        lines = []
        if (crossing := crossings.get((choice.page, route_of(choice)))) is not None:
            predicted = predicted_from(crossing)
            aside = f" (predicted: {predicted})" if predicted else ""
            lines.append(f"application CPU from which the second machine pays: {pays_from(crossing)}{aside}")
            if crossing.without_link_cpu_ms is not None and crossing.predicted_always != "two":
                free = milliseconds(crossing.without_link_cpu_ms)
                lines.append(f"without the emulator's CPU, by the model: {free} ms")
        lines += [script] if (script := findings.scripts.get(setting.page, "")) else []
        found.append(Card(f"{setting.page} page", BETTER[choice.better], meaning, tuple(lines)))
    return tuple(found)


def first_table(findings: PageFindings) -> Table | None:
    """Page x machines, in each page's headline setting."""
    settings = headline_settings(findings)
    single = any(fewest_in_flight(findings, setting) != setting for setting in settings)
    fewest = sorted({fewest_in_flight(findings, setting).threads for setting in settings})
    most = sorted({setting.threads for setting in settings})
    flight = [*([_one_of(fewest, "fewest")] if single else []), _one_of(most, "most")]
    heads: list[Head] = [("", ""), ("pages/s", "[95 %]"), ("p50 ms, in", f"flight {', '.join(flight)}")]
    heads += [("over", f"{NOTICED_MS} ms"), ("over", f"{DEGRADED_MS} ms"), ("CPU ms", "a page")]
    rows = []
    for setting in settings:
        quiet = {route_of(arm): arm for arm in arms_of(findings, fewest_in_flight(findings, setting))}
        for arm in arms_of(findings, setting):
            same = quiet.get(route_of(arm))
            p50 = f"{number(same.p50_ms if same else None)}, {number(arm.p50_ms)}" if single else number(arm.p50_ms)
            slow = share_of_pages(arm.over_noticed), share_of_pages(arm.over_degraded)
            name = f"{setting.page}: {where(arm, findings)}"
            rows.append([name, with_limits(arm.pages_per_s), p50, *slow, number(path_cpu_ms(arm))])
    real = " or ".join(sorted({APPLICATIONS[setting.application] for setting in settings}))
    counts = f"{_and(most)} in flight{f' and {_and(fewest)}' if single else ''}"
    note = f"Pages of {real}, {counts}. People notice delays from {NOTICED_MS} ms. CPU: without the link's emulator."
    return _table("One machine or two?", heads, rows, (note,), main=True)


def _one_of(counts: Sequence[int], otherwise: str) -> str:
    return str(counts[0]) if len(counts) == 1 else otherwise


def _and(counts: Sequence[int]) -> str:
    return " and ".join(str(count) for count in counts)


def _crossing_chart(summary: Summary, findings: PageFindings) -> Chart | None:
    if not swept_levels(findings):
        return None
    caption = (
        "Points: measured, with 95 % intervals; one machine is the one with sockets."
        + (" Dashed: the model." if any(found.curve_ms for found in findings.crossings) else "")
        + (
            " Diamond: where both are equal, with its interval."
            if any(c.measured_ms for c in findings.crossings)
            else ""
        )
        + (" Grey band: the noise floor." if summary.noise_floor else "")
    )
    return Chart(
        name="crossing",
        title="Pages a second with two machines over one, against the application's CPU a page",
        caption=caption,
        make=partial(charts.crossing_chart, findings, summary.noise_floor),
        data=choices_table(headline_levels(findings), tcp=True),
    )


def _crossing_blocks(findings: PageFindings) -> list[Block | None]:
    return [crossings_table(headline_crossings(findings)), choices_table(headline_levels(findings))]


def crossings_table(crossings: Sequence[Crossing]) -> Table | None:
    """The application's CPU a page from which two machines serve more pages than one."""
    unloaded = any(crossing.without_link_cpu_ms is not None for crossing in crossings)
    rows = []
    for name, crossing in zip(series_names(crossings), crossings, strict=True):
        free = crossing.without_link_cpu_ms
        without = [] if not unloaded else [UNKNOWN if free is None else f"{milliseconds(free)} ms"]
        measured = ", ".join(milliseconds(end) for end in crossing.swept_ms)
        rows.append([name, pays_from(crossing), predicted_from(crossing) or UNKNOWN, *without, measured])
    heads: list[Head] = ["page", ("second machine", "pays from"), "predicted", ("measured", "from, to")]
    notes = [
        "Application CPU a page in all, in ms: the page's own needs and what it was requested to compute in addition."
    ]
    if unloaded:
        heads.insert(3, ("without the", "emulator"))
        notes.append("Without the emulator: by the model, if the emulated link took no CPU from the machines.")
    return _table("Application CPU from which a second machine pays", heads, rows, notes)


def choices_table(found: Sequence[PageChoice], tcp: bool = False) -> Table | None:
    """Each comparison of one machine and two, as the application computes more. `tcp`: of the two kinds of one machine, too."""

    def series(choice: PageChoice) -> tuple[object, ...]:
        return swept_setting(choice).subject, route_of(choice)

    order = list(dict.fromkeys(series(choice) for choice in found))
    found = sorted(found, key=lambda each: (order.index(series(each)), -each.threads, each.app_cpu_total_ms))
    rows = [
        [
            name,
            number(choice.app_cpu_total_ms),
            ratio(choice.two_over_one),
            UNKNOWN if choice.predicted is None else f"{choice.predicted:.2f}",
            choice.better,
            *([ratio(choice.tcp_over_socket)] if tcp else []),
        ]
        for name, choice in zip(series_names(found), found, strict=True)
    ]
    heads: list[Head] = ["page", ("application", "CPU ms"), ("two over one", "[95 %]"), "predicted", "better"]
    heads += [("TCP over", "sockets [95 %]")] if tcp else []
    note = (
        "Pages a second, paired by block; one machine is the one with sockets. Not resolved: the interval includes 1, or the "
        "difference is smaller than the noise floor."
    )
    return _table("Two machines over one", heads, rows, (note,))


def _other_blocks(findings: PageFindings) -> list[Block | None]:
    """What the headline settings leave out."""
    levels, crossings = headline_levels(findings), headline_crossings(findings)
    return [
        choices_table([choice for choice in findings.choices if choice not in levels], tcp=True),
        crossings_table([crossing for crossing in findings.crossings if crossing not in crossings]),
    ]


# ---------------------------------------------------------------- where the time goes


def _time_blocks(findings: PageFindings) -> list[Block | None]:
    arms = [(page, arm) for page, found in split_arms(findings).items() for arm in found]
    rows = [
        [
            f"{page}: {where(arm, findings)}",
            *(number(ms) for ms in time_parts(arm).values()),
            number(arm.page_ms.value),
        ]
        for page, arm in arms
    ]
    chart = Chart(
        name="split",
        title="What a page's time is made of, by path",
        caption=(
            "By the application's own clock. A round trip is counted from its first byte sent to its last byte read, including the "
            "application's work for it. The rest is the page's own code, the visitor's path to it, and waiting for a CPU."
        ),
        make=partial(charts.split_chart, findings),
        data=_table("", ["ms a page", *charts.PARTS, "page"], rows),
    )
    return [chart if rows else None, round_trips_table(findings)]


def round_trips_table(findings: PageFindings) -> Table | None:
    """Microseconds a round trip, a column a path: the quietest arms of each page, application and connections."""
    settings = quietest(findings)
    arms = [{where(arm, findings): arm for arm in arms_of(findings, each) if arm.turns} for each in settings]
    columns = list(dict.fromkeys(name for found in arms for name in found))
    columns.sort(key=lambda column: not column.startswith("one"))  # stable: paths stay in the run's order
    rows = []
    for name, found in zip(setting_names(settings), arms, strict=True):
        for service in dict.fromkeys(cost.service for arm in found.values() for cost in arm.turns):
            costs = [_cost(found.get(column), service) for column in columns]
            known = [cost for cost in costs if cost is not None]
            called = f"{name}: {SERVICES.get(service, service)}"
            means = [number(cost.mean_us if cost else None) for cost in costs]
            rows.append([called, f"{known[0].turns:.4g}", *means])
            if any(cost.connect_us is not None for cost in known):
                connects = f"{max(cost.connects for cost in known):.3g}"
                connecting = [number(cost.connect_us if cost else None) for cost in costs]
                rows.append([f"{called} connect", connects, *connecting])
    heads: list[Head] = [
        ("µs a round trip", "to"),
        ("round trips", "a page"),
        *(_two_lines(column) for column in columns),
    ]
    notes = ["From the first byte sent to the last byte read, by the application's own clock; fewest pages in flight."]
    if any(setting.application == "php" and setting.connect == "persistent" for setting in settings):
        notes.append("PHP checks whether a kept connection still works: one more round trip to MySQL, one to Redis.")
    return _table("What a round trip costs", heads, rows, notes)


def _cost(arm: PageArm | None, service: str) -> TurnCost | None:
    return next((cost for cost in arm.turns if cost.service == service), None) if arm else None


def _two_lines(column: str) -> Head:
    one, _, rest = column.partition(", ")
    return f"{one} machine{'' if one == 'one' else 's'}", rest


def _latency_chart(summary: Summary, findings: PageFindings) -> Chart | None:
    curves = {cell.arm: [(point.quantile, point.ms) for point in cell.latency_curve] for cell in summary.cells}
    rows = []
    for arm in _headline_arms(findings):
        tail = [next((ms for at, ms in curves.get(arm.arm, ()) if at >= quantile), None) for quantile in QUANTILES]
        slow = share_of_pages(arm.over_noticed), share_of_pages(arm.over_degraded)
        name = f"{arm.page}, {in_flight(arm.threads)}: {where(arm, findings)}"
        rows.append([name, *(number(value) for value in (arm.p50_ms, *tail)), *slow])
    if not any(curves.get(arm.arm) for arm in _headline_arms(findings)):
        return None
    quantiles = [f"{quantile * 100:g} %" for quantile in QUANTILES]
    return Chart(
        name="latency",
        title="How long pages take, by path, beside what people notice",
        caption=(
            f"At 99 %, one page in a hundred took longer. Dotted: {NOTICED_MS} ms, from which people notice a delay, and "
            f"{DEGRADED_MS} ms, from which the experience is degraded."
        ),
        make=partial(charts.latency_chart, findings, curves),
        data=_table("", ["ms", "p50", *quantiles, f"over {NOTICED_MS} ms", f"over {DEGRADED_MS} ms"], rows),
    )


def _headline_arms(findings: PageFindings) -> list[PageArm]:
    return [arm for setting in headline_settings(findings) for arm in arms_of(findings, setting)]


# ---------------------------------------------------------------- model, CPU, published


def _model_blocks(findings: PageFindings) -> list[Block | None]:
    if findings.model.mean_error is None:
        return [Text("No arm has a prediction: it takes real pages on sockets and the engine's page on each path.")]
    rows = [
        [arm.arm, number(arm.p50_ms), number(arm.predicted_p50_ms), f"{100 * (arm.predicted_error or 0.0):+.1f} %"]
        for arm in findings.arms
        if arm.predicted_p50_ms is not None
    ]
    chart = Chart(
        name="prediction",
        title="The model's error at each page, against its median time",
        caption="On the dashed line the model is right; above it the page was faster than predicted. The grey band is ±10 %.",
        make=partial(charts.prediction_chart, findings),
        data=_table("", ["page", "p50 ms", "predicted", "error"], rows),
    )
    made = "Predicted from the real page on sockets, the engine's page on each path, and the link's RTT at rest."
    errors = _table("Predicted and measured", ["page", "p50 ms", "predicted", "error"], rows, (made,))
    return [chart, errors, agreement_table(findings)]


def agreement_table(findings: PageFindings) -> Table | None:
    """The engine's run of the same round trips beside the real application's page, wherever both were measured."""
    engine = {(_apart_from_application(arm)): arm for arm in findings.arms if arm.application == "engine"}
    pairs = [
        (arm, twin)
        for arm in findings.arms
        if arm.application == "php" and (twin := engine.get(_apart_from_application(arm))) is not None
    ]
    pages = list(dict.fromkeys(arm.page for arm in findings.arms))
    pairs.sort(key=lambda pair: (pages.index(pair[0].page), -pair[0].threads, pair[0].app_cpu_ns, pair[0].machines))
    rows = [
        [
            f"{name}: {where(arm, findings)}",
            number(arm.p50_ms),
            number(twin.p50_ms),
            f"{twin.p50_ms / arm.p50_ms:.2f}" if arm.p50_ms else UNKNOWN,
            number(arm.cpu_ms.get("application")),
            number(twin.cpu_ms.get("application")),
        ]
        for name, (arm, twin) in zip(setting_names([setting_of(arm) for arm, _ in pairs]), pairs, strict=True)
    ]
    heads: list[Head] = [
        "page",
        ("p50 ms", "PHP"),
        ("p50 ms", "engine"),
        ("engine", "over PHP"),
        ("CPU ms", "PHP"),
        ("CPU ms", "engine"),
    ]
    note = "The engine's page is the same round trips without an application: what it lacks is PHP's own time."
    return _table("The engine's page and the real one", heads, rows, (note,))


def _apart_from_application(arm: PageArm) -> tuple[object, ...]:
    return arm.page, route_of(arm), arm.connect, arm.app_cpu_ns, arm.threads


def cpu_table(findings: PageFindings, arms: Sequence[PageArm]) -> Table | None:
    """CPU a page by role, and how busy the machines were."""
    roles = [role for role in ROLES if any(role in arm.cpu_ms for arm in arms)]
    roles += sorted({role for arm in arms for role in arm.cpu_ms} - set(roles))
    rows = [
        [f"{name}: {where(arm, findings)}", *(number(arm.cpu_ms.get(role)) for role in roles), busy(arm)]
        for name, arm in zip(setting_names([setting_of(arm) for arm in arms]), arms, strict=True)
    ]
    heads: list[Head] = ["CPU ms a page", *(("link's", "emulator") if role == "link" else role for role in roles)]
    note = "CPUs busy: of the one machine; of two, the application's and the servers'."
    return _table("CPU by role", [*heads, ("CPUs", "busy")], rows if roles else (), (note,))


def published_table(findings: PageFindings) -> Table | None:
    rows = [
        [page, number(two), number(one), f"{one / two:.2f}" if two else UNKNOWN, number(ours)]
        for page, two, one, ours in findings.published
    ]
    heads: list[Head] = [
        "published",
        ("two machines", "ms"),
        ("one machine", "ms"),
        ("two", "over one"),
        ("ours, two", "over one"),
    ]
    note = (
        "Two over one: of pages a second, with the fewest in flight. Other machines, network and application: compare which of the "
        "two is better."
    )
    return _table("Published by others", heads, rows, (note,))


def arms_table(findings: PageFindings) -> Table | None:
    rows = [
        [
            arm.arm,
            with_limits(arm.pages_per_s),
            with_limits(arm.page_ms),
            " / ".join(number(value) for value in (arm.p50_ms, arm.p95_ms, arm.p99_ms)),
            share_of_pages(arm.over_noticed),
            share_of_pages(arm.over_degraded),
            number(arm.own_cpu_ms),
            number(path_cpu_ms(arm)),
        ]
        for arm in findings.arms
    ]
    times = ["page", "pages/s [95 %]", "ms a page [95 %]", "p50 / p95 / p99"]
    return _table("", [*times, f"over {NOTICED_MS} ms", f"over {DEGRADED_MS} ms", "own CPU ms", "CPU ms"], rows)


# ---------------------------------------------------------------- limits of the run


def _limits(summary: Summary, findings: PageFindings) -> list[str]:
    """What a careful reader asks, answered from the run's figures."""
    lines = [
        _one_computer(summary, findings),
        _small(summary),
        _visitor(findings),
        _waking(findings),
        _closed(findings),
    ]
    return [line for line in lines if line]


def _one_computer(summary: Summary, findings: PageFindings) -> str:
    """The strongest objection: the emulator takes from both machines what a network card would not."""
    two = [arm for arm in findings.arms if arm.machines == 2 and arm.cpu_ms.get("link")]
    if not two:
        return ""
    arm = max(two, key=emulator_cpus)
    of = f" of {summary.machine_cpus}" if summary.machine_cpus else ""
    text = (
        f"Both machines are on one computer, and the emulated link between them uses its CPUs: up to {emulator_cpus(arm):.2f}{of} "
        f"({arm.arm}), {number(arm.cpu_ms['link'])} ms a page beside {number(path_cpu_ms(arm))} ms of everything else. Two real "
        "machines are better than they look here."
    )
    crossings = headline_crossings(findings)
    routes = several(route_of(crossing) for crossing in crossings)
    freed = [
        f"{crossing.page} page{f' ({route_name(crossing, crossings)})' if routes else ''} "
        f"{milliseconds(crossing.without_link_cpu_ms)} ms instead of {predicted_from(crossing) or 'unknown'}"
        for crossing in crossings
        if crossing.without_link_cpu_ms is not None and crossing.predicted_always != "two"
    ]
    return text + (
        f" If the link used no CPU, the model has the second machine pay from: {'; '.join(freed)}." if freed else ""
    )


def _small(summary: Summary) -> str:
    if not summary.machine_cpus or summary.machine_cpus < 2:
        return ""
    each = summary.machine_cpus // 2
    return (
        f"Each machine has {each} CPU{'' if each == 1 else 's'}, half of this computer's; a second machine doubles them. A machine "
        "with more CPUs needs more pages in flight to be saturated; this run does not say from when two of those pay."
    )


def _visitor(findings: PageFindings) -> str:
    seen = [arm for arm in findings.arms if arm.cpu_ms.get("visitor")]
    if not seen:
        return ""
    most = max(seen, key=lambda arm: arm.cpu_ms["visitor"] / path_cpu_ms(arm))
    return (
        f"The visitor speaks FastCGI to PHP-FPM on the application's machine, as a web server does, and uses at most "
        f"{share(most.cpu_ms['visitor'] / path_cpu_ms(most))} of a page's CPU ({number(most.cpu_ms['visitor'])} ms, {most.arm}). "
        "There is no HTTP and no TLS to the visitor."
    )


def _waking(findings: PageFindings) -> str:
    """What a round trip over the link takes longer than one over loopback, beside the link's own."""
    two_machines = [arm for arm in findings.arms if arm.machines == 2 and arm.rtt_ms is not None]
    for two in sorted(two_machines, key=lambda arm: (arm.threads, arm.app_cpu_ns, arm.application != "php")):
        near = next((a for a in findings.arms if a.path == "tcp" and setting_of(a) == setting_of(two)), None)
        pairs = [(cost, _cost(near, cost.service)) for cost in two.turns]
        more = [
            f"{SERVICES.get(cost.service, cost.service)} {number(cost.mean_us - other.mean_us)} µs"
            for cost, other in pairs
            if other is not None
        ]
        if more and two.rtt_ms is not None:
            return (
                f"With {in_flight(two.threads)} ({two.arm}), a round trip takes longer than over loopback TCP by {', '.join(more)}; "
                f"the link's own at rest is {number(two.rtt_ms * 1e3)} µs. The rest is waking processors and waiting for them, which "
                "this run does not separate."
            )
    return ""


def _closed(findings: PageFindings) -> str:
    threads = sorted({arm.threads for arm in findings.arms})
    if not threads:
        return ""
    return (
        f"A closed loop of {_and(threads)} visitors without pauses: one shows how long a page takes, several show what a machine can "
        f"serve. Visitors who arrive at random wait longer near saturation than the shares over {NOTICED_MS} and {DEGRADED_MS} ms say."
    )


# ---------------------------------------------------------------- records


def page_records(findings: PageFindings) -> dict[str, Line]:
    """By arm: columns beside those of a cell."""
    choices = {(setting_of(choice), route_of(choice)): choice for choice in reversed(findings.choices)}
    return {arm.arm: _record(arm, choices.get((setting_of(arm), route_of(arm)))) for arm in findings.arms}


def _record(arm: PageArm, choice: PageChoice | None) -> Line:
    """`choice`: of an arm with two machines, the comparison with one."""
    figures: dict[str, float | None] = {
        "p50_ms": arm.p50_ms,
        "share_over_13_ms": arm.over_noticed,
        "share_over_75_ms": arm.over_degraded,
        "own_cpu_ms": arm.own_cpu_ms,
        **{f"{role}_cpu_ms": cpu for role, cpu in arm.cpu_ms.items()},
        **{f"{machine}_busy": share for machine, share in arm.busy.items()},
        **{f"{cost.service}_{name}": value for cost in arm.turns for name, value in _cost_figures(cost).items()},
        "rtt_ms": arm.rtt_ms,
        "predicted_p50_ms": arm.predicted_p50_ms,
        "predicted_error": arm.predicted_error,
    }
    record: Line = {
        "page": arm.page,
        "application": arm.application,
        "machines": arm.machines,
        "app_cpu_ns": arm.app_cpu_ns,
        **_with_limits("pages_per_s", arm.pages_per_s),
        **_with_limits("page_ms", arm.page_ms),
        **{name: _written(value) for name, value in figures.items()},
    }
    if choice is None:
        return record
    return {
        **record,
        "app_cpu_total_ms": _written(choice.app_cpu_total_ms),
        **_with_limits("two_over_one", choice.two_over_one),
        "two_over_one_predicted": _written(choice.predicted),
        **_with_limits("tcp_over_socket", choice.tcp_over_socket),
        "better": choice.better,
    }


def _cost_figures(cost: TurnCost) -> dict[str, float | None]:
    return {
        "turns": cost.turns,
        "turn_us": cost.mean_us,
        "connects": cost.connects,
        "connect_us": cost.connect_us,
        "bytes_to_server": cost.bytes_to_server,
        "bytes_to_client": cost.bytes_to_client,
    }


def _written(value: float | None) -> str:
    return "" if value is None else f"{value:.6g}"


def _with_limits(name: str, found: Estimate | None) -> Line:
    low, high = (found.low, found.high) if found else (None, None)
    return {
        name: _written(found.value if found else None),
        f"{name}_low": _written(low),
        f"{name}_high": _written(high),
    }
