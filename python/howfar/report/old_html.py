"""The report as one HTML file for screen (light, dark, phone) and paper. It fetches nothing; its only script is that of the what-if
sliders, where there are any. Start at `render`."""

from __future__ import annotations

from importlib.resources import files

from howfar.analysis.summary import Summary
from howfar.experiments.page.report import page as webpage_page
from howfar.report import palette
from howfar.report.fragments import text


def render(summary: Summary) -> str:
    """The whole page, UTF-8. The answer comes first; each chart has its figures as a table."""
    body = _body(summary)
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<meta http-equiv="Content-Security-Policy" content="{_policy(summary)}">'
        f"<title>howfar: {text(summary.plan)}</title><style>{_style()}</style></head>\n"
        f"<body><main>{body}</main></body></html>\n"
    )


def _body(summary: Summary) -> str:
    return webpage_page.body(summary)


def _policy(summary: Summary) -> str:
    return "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"


def _style() -> str:
    css = (files("howfar.report") / "style.css").read_text("utf-8")
    return f"{css}\n@media screen and (prefers-color-scheme: dark) {{\n{palette.dark_rules()}\n}}\n"
