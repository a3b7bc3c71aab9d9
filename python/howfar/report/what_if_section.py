"""The what-if section of the page: a table of a few settings for every reader, and sliders where scripts run. The model is
`what_if.js`, the same arithmetic as the analysis has; `what_if_page.js` is its face. Nothing is fetched."""

from __future__ import annotations

import base64
import hashlib
import json
from importlib.resources import files

from howfar.analysis.findings import WhatIf, WhatIfSettings
from howfar.analysis.summary import Summary
from howfar.model.what_if import is_known
from howfar.report import tables
from howfar.report.fragments import details, sentence, table, text

STEPS = 1000
"""Of each slider; `what_if_page.js` knows the same number."""


def measured_settings(base: WhatIf) -> WhatIfSettings:
    """Those of the measured point: a plain, uncompressed session that stays open."""
    if base.worked:
        return base.worked[0].settings
    return WhatIfSettings(
        threads=base.threads, rtt_s=base.rtt_s, rate_bps=base.rate_bps, tls=False, connect_each=False, compression="off"
    )


def script() -> str:
    """Model and face as one script."""
    return "\n".join((files("howfar.report") / name).read_text("utf-8") for name in ("what_if.js", "what_if_page.js"))


def script_hash() -> str:
    """What a content security policy calls the script by."""
    return "sha256-" + base64.b64encode(hashlib.sha256(script().encode()).digest()).decode("ascii")


def section(summary: Summary) -> str:
    """Empty without a fitted model."""
    base = summary.what_if
    if base is None:
        return ""
    start = measured_settings(base)
    worked = tables.what_if(summary)
    reading = ""
    if worked:
        inner = table([head for head, _ in worked.head], worked.rows)
        reading = f'<div class="worked">{details("A few settings as a table", inner, open_=True)}</div>'
    told = (
        f"Computed in this page by the model fitted to the measured cell {base.arm} (the diamond). Dashed line: the model at the "
        f"measured settings. {_beside(base)}How far to trust it elsewhere: its errors against what was measured stand under “What "
        "the model said”."
    )
    return (
        f'<h2 id="what-if-head">What if?</h2><p class="muted small">{sentence(told)}</p>'
        f'<form id="what-if" hidden aria-labelledby="what-if-head">{_controls(base, start)}{_answer()}</form>{reading}'
        f"{_data('what-if-base', base.model_dump_json(exclude={'worked'}))}{_data('what-if-measured', start.model_dump_json())}"
        f"<script>{script()}</script>"
    )


def _beside(base: WhatIf) -> str:
    return f"{tables.model_beside_measured(base)} " if base.worked else ""


def _data(name: str, plain: str) -> str:
    """JSON that no text of it can end early."""
    return f'<script type="application/json" id="{name}">{json.dumps(json.loads(plain)).replace("<", chr(92) + "u003c")}</script>'


def _slider(name: str, label: str) -> str:
    return (
        f'<label class="slider"><span>{text(label)} <output data-shown="{name}"></output></span>'
        f'<input type="range" name="{name}" min="0" max="{STEPS}" step="1"></label>'
    )


def _check(name: str, label: str, known: bool = True) -> str:
    """A box that stays off where nothing is known of what it costs."""
    off, why = ("", "") if known else (" disabled", ' <span class="muted">(not measured in this run)</span>')
    return f'<label class="check"><input type="checkbox" name="{name}"{off}> {text(label)}{why}</label>'


def _controls(base: WhatIf, start: WhatIfSettings) -> str:
    algorithms = "".join(
        f'<option value="{text(name)}">{text(said)}</option>'
        for name, said in [("off", "none"), *((each.algorithm, each.algorithm) for each in base.compression)]
    )
    linked = "" if start.rate_bps is not None else _check("linked", "over a link")
    return (
        '<div class="controls">'
        + _slider("rate_bps", "link rate")
        + _slider("rtt_s", "round trip")
        + _slider("threads", "connections")
        + f'<div class="switches">{linked}{_check("tls", "TLS", is_known(base, tls=True, connect_each=False))}'
        + _check("connect_each", "connect for every transaction", is_known(base, tls=False, connect_each=True))
        + f'<label class="check">compression <select name="compression">{algorithms}</select></label>'
        + '<button type="button" name="reset">back to the measured point</button></div></div>'
    )


def _answer() -> str:
    lines = "".join(f'<div class="muted" data-shown="{name}"></div>' for name in ("ratio", "limits", "cycle", "knee"))
    return (
        f'<div class="outcome"><div class="answer" role="status"><b data-shown="tps"></b><div>transactions a second</div>{lines}</div>'
        '<svg viewBox="0 0 680 260" role="img"><title>Throughput against connections: '
        "the measured point and the chosen one</title></svg></div>"
    )
