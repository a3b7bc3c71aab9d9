"""`report/what_if.js` against `model/what_if.py`, by vectors: the file is what Python gives, and JavaScript gives the same."""

from __future__ import annotations

import json
import shutil
import subprocess
import tempfile
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
from tests.unit.what_if_vectors import FILE, vectors

RELATIVE = 1e-9
NEVER_SLOWER_S = 0.010
"""The bar of one answer at 2048 connections. The page's own clock says how long the fastest of several took."""

SCRIPT = files("howfar.report") / "what_if.js"
CHECK = """
const answers = vectors.map(({ base, cases }) => cases.map(({ settings }) => howfarWhatIf(base, settings)));
const { base } = vectors[0];
const settings = { threads: 2048, rtt_s: 0.0002, rate_bps: 1e9, tls: true, connect_each: true, compression: "zlib" };
const took = [];
for (let round = 0; round < 50; round += 1) {
  const began = performance.now();
  howfarWhatIf(base, settings);
  took.push((performance.now() - began) / 1000);
}
const found = JSON.stringify({ answers, fastest_s: Math.min(...took) });
"""


def _stored() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(FILE.read_text("utf-8"))
    return found


def _javascript() -> dict[str, Any]:
    """What the script answers, by node or by a browser without a window; skips where there is neither."""
    program = f"{SCRIPT.read_text('utf-8')}\nconst vectors = {FILE.read_text('utf-8')};\n{CHECK}"
    node = shutil.which("node") or shutil.which("nodejs")
    if node:
        ran = subprocess.run(
            [node, "-"], input=f"{program}console.log(found);", capture_output=True, text=True, timeout=60
        )
        assert ran.returncode == 0, ran.stderr
        answered: dict[str, Any] = json.loads(ran.stdout)
        return answered
    browser = next((path for name in ("chromium", "google-chrome", "chrome") if (path := shutil.which(name))), None)
    if browser is None:
        pytest.skip("NOT CHECKED: the page's model needs node or chromium, and this machine has neither")
    with tempfile.TemporaryDirectory() as folder:
        page = Path(folder, "page.html")
        page.write_text(
            f"<pre id=out></pre><script>{program}document.getElementById('out').textContent = found;</script>"
        )
        flags = ["--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={folder}/profile", "--dump-dom"]
        ran = subprocess.run([browser, *flags, page.as_uri()], capture_output=True, text=True, timeout=120)
    text = ran.stdout.partition('<pre id="out">')[2].partition("</pre>")[0]
    found: dict[str, Any] = json.loads(text)
    return found


def _alike(one: dict[str, Any], other: dict[str, Any]) -> None:
    assert one["limits"] == other["limits"]
    for name in ("tps", "cycle_s", "knee"):
        assert one[name] == pytest.approx(other[name], rel=RELATIVE), name


def test_the_vectors_are_what_python_gives() -> None:
    stored = _stored()
    made = json.loads(json.dumps(vectors()))
    assert [each["base"] for each in stored] == [each["base"] for each in made], (
        "run `python -m tests.unit.what_if_vectors`"
    )
    for one, other in zip(stored, made, strict=True):
        for before, now in zip(one["cases"], other["cases"], strict=True):
            assert before["settings"] == now["settings"]
            _alike(before["answer"], now["answer"])


def test_the_vectors_reach_every_limit() -> None:
    seen = {case["answer"]["limits"] for each in _stored() for case in each["cases"]}
    assert {"server CPU", "link to client", "latency", "CPU of both"} <= seen


def test_javascript_gives_the_same_in_time() -> None:
    answered = _javascript()
    for each, answers in zip(_stored(), answered["answers"], strict=True):
        for case, answer in zip(each["cases"], answers, strict=True):
            _alike(case["answer"], answer)
    assert answered["fastest_s"] < NEVER_SLOWER_S
