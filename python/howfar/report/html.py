"""The report as one HTML file: no network, no script, for screen (light, dark, phone) and paper. Start at `render`."""

from __future__ import annotations

from importlib.resources import files

from howfar.analysis.summary import Summary
from howfar.report import gallery, palette, sections
from howfar.report.fragments import text


def render(summary: Summary) -> str:
    """The whole page, UTF-8. The answer comes first; each chart has its figures as a table."""
    body = "".join(
        (
            sections.answer(summary),
            sections.warnings(summary),
            sections.advice(summary),
            sections.main_table(summary),
            gallery.ratio_plot(summary),
            gallery.time_plot(summary),
            gallery.latency_plot(summary),
            gallery.cpu_plot(summary),
            gallery.throughput_plot(summary),
            sections.method(summary),
            sections.receipts(summary),
            sections.footer(summary),
        )
    )
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>howfar: {text(summary.plan)}</title><style>{_style()}</style></head>\n"
        f"<body><main>{body}</main></body></html>\n"
    )


def _style() -> str:
    css = (files("howfar.report") / "style.css").read_text("utf-8")
    return f"{css}\n@media screen and (prefers-color-scheme: dark) {{\n{palette.dark_rules()}\n}}\n"
