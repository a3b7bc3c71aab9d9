"""The charts of pages with their captions and tables, and the cards of the first screen. Functions give HTML, or nothing."""

from __future__ import annotations

from collections.abc import Mapping

from howfar.analysis.summary import Summary
from howfar.experiments.page.findings import Crossing, PageArm, PageFindings
from howfar.experiments.page.report import crossing_chart, page_charts, tables, words
from howfar.report import figures
from howfar.report.drawing import draw
from howfar.report.fragments import figure, sentence, table, text
from howfar.report.tables import Table

QUANTILES = (0.9, 0.95, 0.99, 0.999)
"""Of all trials' pages together; the p50 beside them is that of every other table."""


def shown(found: Table | None) -> str:
    """A table below a chart: its heads on one line."""
    return table([f"{upper} {lower}".strip() for upper, lower in found.head], found.rows) if found else ""


def cards(findings: PageFindings) -> str:
    """A card a page: which is better, by how much, and where that flips."""
    crossings = {(crossing.page, words.way_of(crossing)): crossing for crossing in words.chief_crossings(findings)}
    inner = "".join(
        _card(setting, findings, crossings)
        for setting in words.chief(findings)
        if len({arm.machines for arm in words.arms_of(findings, setting)}) > 1
    )
    return f'<div class="answers four">{inner}</div>' if inner else ""


BETTER = {"one": "one machine", "two": "two machines", "not resolved": "not resolved"}


def _card(setting: words.Setting, findings: PageFindings, crossings: Mapping[tuple[str, words.Way], Crossing]) -> str:
    alike = [found for found in findings.choices if words.setting_of(found) == setting]
    if not alike:
        return ""
    choice = alike[0]
    crossing = crossings.get((choice.page, words.way_of(choice)))
    over = f" ({words.by_way(choice, alike)})" if len(alike) > 1 else ""
    script = findings.scripts.get(setting.page, "")
    lines = [
        f"two machines{over} make {figures.ratio(choice.two_over_one)} of its pages a second, {setting.threads} in flight"
    ]
    if crossing is not None:
        lines.append(f"{_pays(crossing)}{_foreseen(crossing)}")
        if crossing.without_link_cpu_ms is not None and crossing.predicted_always != "two":
            lines.append(
                f"without the emulator's CPU, by the model: from {words.milliseconds(crossing.without_link_cpu_ms)} ms"
            )
    if script:
        lines.append(script)
    said = f"<div>{sentence(lines[0])}</div>" + "".join(
        f'<div class="muted">{sentence(line)}</div>' for line in lines[1:]
    )
    return f'<div class="answer"><span class="arm">{text(setting.page)} page</span><b>{text(BETTER[choice.better])}</b>{said}</div>'


def _pays(crossing: Crossing) -> str:
    least, most = (words.milliseconds(end) for end in crossing.swept_ms)
    if crossing.measured_ms is not None:
        return f"the second machine pays from {words.flips_at(crossing)} of application CPU a page"
    match crossing.always:
        case "one":
            return f"the second machine pays nowhere up to {most} ms of application CPU a page"
        case "two":
            return f"the second machine pays from {least} ms of application CPU a page, the least measured, or less"
        case None:
            return f"where the second machine begins to pay is not resolved from {least} to {most} ms of application CPU a page"


def _foreseen(crossing: Crossing) -> str:
    """Empty: nobody foresaw."""
    said = words.foreseen_at(crossing)
    return "" if said == figures.UNKNOWN else f" (foreseen: {said})"


def crossing(summary: Summary) -> str:
    findings = summary.pages
    title = "Pages a second with two machines over one, against the application's CPU a page"
    drawing = draw(crossing_chart.crossing, summary, title, "crossing")
    if findings is None or not drawing:
        return ""
    modelled = any(found.curve_ms for found in findings.crossings)
    flips = any(found.measured_ms for found in findings.crossings)
    caption = (
        "Points: measured, with 95 % intervals; one machine is the one with sockets."
        + (" Dashed: the model." if modelled else "")
        + (" Diamond: where both are equal, with its interval." if flips else "")
        + (" Grey band: the noise floor, not resolved." if summary.noise_floor else "")
    )
    return figure(drawing, caption, shown(tables.choices(words.chief_choices(findings), wide=True)))


def split(summary: Summary) -> str:
    findings = summary.pages
    drawing = draw(page_charts.split, summary, "What a page's time is made of, by path", "split")
    if findings is None or not drawing:
        return ""
    caption = (
        "By the application's own clock. A turn is counted from its first byte sent to its last byte read, the application's work "
        "for it included; the rest of the page is its own code between turns, the visitor's way to it, and waiting for a CPU."
    )
    arms = [(page, arm) for page, found in page_charts.split_arms(findings).items() for arm in found]
    rows = [
        [
            f"{page}: {words.where(arm, findings)}",
            *(words.ms(page_charts.parts(arm)[part]) for part in page_charts.PARTS),
            words.ms(arm.page_ms.value),
        ]
        for page, arm in arms
    ]
    return "<h2>Where does a page's time go?</h2>" + figure(
        drawing, caption, table(["ms a page", *page_charts.PARTS, "page"], rows)
    )


def latency(summary: Summary) -> str:
    findings = summary.pages
    drawing = draw(page_charts.latency, summary, "How long pages take, by path, beside what people notice", "latency")
    if findings is None or not drawing:
        return ""
    caption = (
        f"Read at 99 %: one page in a hundred took longer. Dotted: {words.NOTICED_MS} ms, from which on people notice a delay, and "
        f"{words.DEGRADED_MS} ms, from which on the experience is degraded."
    )
    curves = {cell.arm: cell.latency_curve for cell in summary.cells}
    arms = [arm for setting in words.chief(findings) for arm in words.arms_of(findings, setting)]
    rows = []
    for arm in arms:
        tail = [next((p.ms for p in curves.get(arm.arm, ()) if p.quantile >= q), None) for q in QUANTILES]
        over = [words.share(arm.over_noticed), words.share(arm.over_degraded)]
        rows.append([_named(arm, findings), *(words.ms(value) for value in (arm.p50_ms, *tail)), *over])
    head = ["ms", "p50", *(f"{quantile * 100:g} %" for quantile in QUANTILES), "over 13 ms", "over 75 ms"]
    return "<h2>Does anybody notice?</h2>" + figure(drawing, caption, table(head, rows))


def _named(arm: PageArm, findings: PageFindings) -> str:
    return f"{arm.page}, {words.in_flight(arm.threads)}: {words.where(arm, findings)}"


def foreseen(summary: Summary) -> str:
    findings = summary.pages
    drawing = draw(
        page_charts.foreseen, summary, "How far off the model was at each page, against its median time", "foreseen"
    )
    if findings is None:
        return ""
    said = "".join(f"<p>{sentence(note)}</p>" for note in tables.model_notes(findings))
    head = "<h2>Does a model foresee the real page?</h2>"
    if not drawing:
        return f"{head}{said}"
    caption = "On the dashed line the model is right, above it the page came faster than foreseen; the grey band is 10 % either way."
    return head + said + figure(drawing, caption, shown(tables.foreseen(findings, wide=True)))
