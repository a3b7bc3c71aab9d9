"""Charts of single pages: what their time is made of, how long they take beside what people notice, and how well they were foreseen.
What is drawn: functions of a summary and a width give a chart, or None."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import altair as alt

from howfar.analysis.summary import Summary
from howfar.experiments.page.findings import PageArm, PageFindings
from howfar.experiments.page.report import tables, words
from howfar.report import palette
from howfar.report.charts import PHONE, Drawable, log_ticks, pick, values

ROW = 34
PARTS = ("computing as asked", "MySQL turns", "Redis turns", "Memcached turns", "connects", "application, waiting")
COLOURS = (palette.PARTS[4], palette.PARTS[0], palette.PARTS[3], palette.PARTS[1], palette.PARTS[2], palette.PARTS[5])
SIGNED = "datum.value == 0 ? '0' : format(100 * datum.value, '+.0f') + ' %'"
"""Labels of an axis of shares."""

BAR = 0.1
"""Within this the model is to be."""


def parts(arm: PageArm) -> dict[str, float]:
    """Milliseconds of a page by what its own clock says; they add up to the page. Turns are whole: the application's work to send and
    read them is in them. Where the parts came out longer than the page, the last is 0 and the others are cut in proportion."""
    found = {PARTS[0]: arm.app_cpu_ns / 1e6}
    for name, service in zip(PARTS[1:4], ("mysql", "redis", "memcached"), strict=True):
        found[name] = sum(cost.turns * cost.mean_us for cost in arm.turns if cost.service == service) / 1e3
    found[PARTS[4]] = sum(cost.connects * cost.connect_us for cost in arm.turns if cost.connect_us is not None) / 1e3
    known, whole = sum(found.values()), arm.page_ms.value
    if known > whole:
        found = {name: ms * whole / known for name, ms in found.items()}
    return found | {PARTS[5]: max(whole - known, 0.0)}


def split_arms(findings: PageFindings) -> dict[str, list[PageArm]]:
    """Of each page its chief application's arms with fewest pages in flight, as far as they told of their turns."""
    found = {}
    for chief in words.chief(findings):
        quiet = next(
            setting
            for setting in tables.quiet(findings)
            if (setting.page, setting.application, setting.connect) == (chief.page, chief.application, chief.connect)
        )
        if arms := [arm for arm in words.arms_of(findings, quiet) if arm.turns]:
            found[chief.page] = arms
    return found


def split(summary: Summary, width: int) -> Drawable | None:
    """A bar a path, a panel a page: pages differ too much in length for one axis."""
    findings = summary.pages
    drawn = split_arms(findings) if findings else {}
    if findings is None or not drawn:
        return None
    present = [part for part in PARTS if any(parts(arm)[part] > 0 for arms in drawn.values() for arm in arms)]
    panels = [
        _split_panel(page, arms, findings, present, width, first=index == 0)
        for index, (page, arms) in enumerate(drawn.items())
    ]
    return panels[0] if len(panels) == 1 else alt.vconcat(*panels, spacing=14)


def _split_panel(
    page: str, arms: Sequence[PageArm], findings: PageFindings, present: list[str], width: int, first: bool
) -> Drawable:
    narrow = width < PHONE
    names = [words.where(arm, findings) for arm in arms]
    named = list(zip(names, arms, strict=True))
    bars = [
        {"bar": name, "part": part, "order": order, "ms": parts(arm)[part]}
        for name, arm in named
        for order, part in enumerate(PARTS)
        if part in present
    ]
    ends = [{"bar": name, "ms": arm.page_ms.value, "text": f"{words.ms(arm.page_ms.value)} ms"} for name, arm in named]
    most = max(arm.page_ms.value for arm in arms) * (1.35 if narrow else 1.14)
    legend = alt.Legend(orient="top", title=None, columns=2 if narrow else 6, symbolType="square", labelLimit=170)
    colour = alt.Color(
        "part:N",
        sort=present,
        scale=alt.Scale(domain=present, range=[COLOURS[PARTS.index(part)] for part in present]),
        legend=legend if first else None,
    )
    y = alt.Y("bar:N", sort=names, title=None, axis=alt.Axis(labelLimit=150, ticks=False, domain=False, labelPadding=6))
    x = alt.X(
        "ms:Q",
        stack="zero",
        scale=alt.Scale(domain=[0, most], nice=False),
        axis=alt.Axis(tickCount=5, format=".3~r"),
        title="ms a page (mean)",
    )
    end = alt.X("ms:Q", scale=alt.Scale(domain=[0, most], nice=False))
    text = alt.Chart(values(ends)).mark_text(align="left", dx=5, color=palette.INK, fontSize=11 if narrow else 13)
    return alt.layer(
        alt.Chart(values(bars)).mark_bar(size=19).encode(x=x, y=y, color=colour, order=alt.Order("order:Q")),
        text.encode(x=end, y=y, text="text:N"),
    ).properties(width=width, height=ROW * len(arms), title=alt.TitleParams(f"{page}, {_flight(arms)}", anchor="start"))


def _flight(arms: Sequence[PageArm]) -> str:
    """`1 in flight`."""
    return words.in_flight(arms[0].threads)


def latency(summary: Summary, width: int) -> Drawable | None:
    """How long pages took, a panel a page, a line a path, and what people notice."""
    findings = summary.pages
    if findings is None:
        return None
    curves = {cell.arm: cell.latency_curve for cell in summary.cells}
    panels: dict[str, list[dict[str, Any]]] = {}
    for setting in words.chief(findings):
        rows = [
            {"path": words.where(arm, findings), "tail": 1 / (1 - point.quantile), "ms": point.ms}
            for arm in words.arms_of(findings, setting)
            for point in curves.get(arm.arm, ())
            if point.ms > 0 and point.quantile < 1
        ]
        if rows:
            panels[f"{setting.page}, {words.in_flight(setting.threads)}"] = rows
    if not panels:
        return None
    names = list(dict.fromkeys(row["path"] for rows in panels.values() for row in rows))
    colours = path_colours(findings)
    look = alt.Scale(domain=names, range=[colours[name] for name in names])
    narrow = width < PHONE
    seen = [row["ms"] for rows in panels.values() for row in rows] + [words.DEGRADED_MS]
    heights = min(seen) / 1.15, max(seen) * 1.3
    each = width if narrow or len(panels) == 1 else (width - 60) // 2
    charts = [
        _latency_panel(title, rows, names, heights, look, (each, width), first=index == 0 or narrow)
        for index, (title, rows) in enumerate(panels.items())
    ]
    if len(charts) == 1:
        return charts[0]
    beside = 1 if narrow else 2
    lines = [alt.hconcat(*charts[at : at + beside], spacing=26) for at in range(0, len(charts), beside)]
    return lines[0] if len(lines) == 1 else alt.vconcat(*lines)


def _latency_panel(
    title: str,
    rows: list[dict[str, Any]],
    names: list[str],
    heights: tuple[float, float],
    look: alt.Scale,
    widths: tuple[int, int],
    first: bool,
) -> Drawable:
    """`heights` are those of all panels, with both thresholds in them; `widths`: of this panel, and of all."""
    lowest, highest = heights
    width, whole = widths
    last = max(row["tail"] for row in rows)
    ticks = [tail for tail in (1, 2, 10, 100, 1000, 10_000) if tail <= last]
    label = "datum.value <= 1 ? 'min' : format(100 * (1 - 1 / datum.value), '~r') + ' %'"
    legend = alt.Legend(orient="top", title=None, columns=1 if whole < PHONE else 4, labelLimit=180)
    dashes = alt.Scale(domain=names, range=pick(palette.DASHES, len(names)))
    x = alt.X(
        "tail:Q",
        scale=alt.Scale(type="log", domain=[1, last], nice=False),
        axis=alt.Axis(values=ticks, labelExpr=label, grid=False),
        title="this share of pages was faster",
    )
    y = alt.Y(
        "ms:Q",
        scale=alt.Scale(type="log", domain=[lowest, highest], nice=False),
        axis=alt.Axis(values=log_ticks(lowest, highest), format=".3~r"),
        title="ms a page" if first else None,
    )
    line = alt.Chart(values(rows)).mark_line(strokeWidth=2.2)
    layers: list[Any] = [
        line.encode(
            x=x,
            y=y,
            color=alt.Color("path:N", sort=names, scale=look, legend=legend),
            strokeDash=alt.StrokeDash("path:N", sort=names, scale=dashes, legend=legend),
        )
    ]
    marks = [
        {"tail": 1.0, "ms": float(at), "text": f"{at} ms"}
        for at in (words.NOTICED_MS, words.DEGRADED_MS)
        if lowest < at < highest
    ]
    if marks:
        data = alt.Chart(values(marks))
        layers += [
            data.mark_rule(color=palette.INK, strokeDash=[2, 3], strokeWidth=1.2).encode(y=y),
            data.mark_text(align="left", dx=4, dy=-6, color=palette.INK, fontSize=11).encode(x=x, y=y, text="text:N"),
        ]
    return alt.layer(*layers).properties(width=width, height=230, title=alt.TitleParams(title, anchor="start"))


def foreseen(summary: Summary, width: int) -> Drawable | None:
    """How far off the model was, against the page's time: within the band it was within 10 %."""
    findings = summary.pages
    arms = [arm for arm in findings.arms if arm.predicted_error is not None] if findings else []
    if findings is None or not arms:
        return None
    pages = list(dict.fromkeys(arm.page for arm in arms))
    rows = [{"series": _series(arm, findings), "ms": arm.p50_ms, "off": arm.predicted_error or 0.0} for arm in arms]
    names = {_series(arm, findings): arm for arm in arms}
    farthest = max(1.5 * BAR, *(1.1 * abs(row["off"]) for row in rows))  # type: ignore[arg-type]
    low, high = min(arm.p50_ms for arm in arms) / 1.25, max(arm.p50_ms for arm in arms) * 1.25
    x = alt.X(
        "ms:Q",
        scale=alt.Scale(type="log", domain=[low, high], nice=False),
        axis=alt.Axis(values=log_ticks(low, high), format=".3~r", grid=False),
        title="p50 measured, ms",
    )
    scale = alt.Scale(domain=[-farthest, farthest], nice=False)
    y = alt.Y("off:Q", scale=scale, axis=alt.Axis(labelExpr=SIGNED, tickCount=7), title="foreseen, over measured")
    legend = alt.Legend(orient="top", title=None, labelLimit=180, columns=2 if width < PHONE else 4, symbolOpacity=1)
    of_paths = path_colours(findings)
    colours = [of_paths[words.where(arm, findings)] for arm in names.values()]
    shapes = [palette.SHAPES[pages.index(arm.page) % 8] for arm in names.values()]
    series = list(names)
    colour = alt.Color("series:N", sort=series, scale=alt.Scale(domain=series, range=colours), legend=legend)
    shape = alt.Shape("series:N", sort=series, scale=alt.Scale(domain=series, range=shapes), legend=legend)
    band = alt.Chart(values([{"off": -BAR, "to": BAR}])).mark_rect(color=palette.BAND)
    right = alt.Chart(values([{"off": 0.0}])).mark_rule(color=palette.MUTED, strokeDash=[4, 3], strokeWidth=1.2)
    points = alt.Chart(values(rows)).mark_point(filled=True, size=70, opacity=0.9)
    return alt.layer(
        band.encode(y=y, y2="to:Q"), right.encode(y=y), points.encode(x=x, y=y, color=colour, shape=shape)
    ).properties(width=width, height=200)


PATHS = ("socket", "tcp", "remote", "forwarded-socket")


def path_colours(findings: PageFindings) -> dict[str, str]:
    """Of each path its own, on every chart the same; further links take what is left."""
    wheres = {words.where(arm, findings): arm.path for arm in findings.arms}
    found: dict[str, str] = {}
    left = [*palette.SERIES[len(PATHS) :], *palette.SERIES]
    for name, path in wheres.items():
        own = palette.SERIES[PATHS.index(path)] if path in PATHS else left[0]
        found[name] = own if own not in found.values() else left.pop(0)
    return found


def _series(arm: PageArm, findings: PageFindings) -> str:
    return f"{arm.page}: {words.where(arm, findings)}"
