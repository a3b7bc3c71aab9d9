"""The middleware of docs/examples, run unchanged."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from howfar.recording.marks import VARIABLE, Marks

EXAMPLES = Path(__file__).parents[2] / "docs" / "examples"
USES = {
    "py": """
from marked import marked
served = marked(lambda environ, start_response: [b"done"])
assert list(served({"PATH_INFO": "/shop/17"}, None)) == [b"done"]
""",
    "js": """
const marked = require("./marked.js");
const { EventEmitter } = require("node:events");
const response = new EventEmitter();
marked({ path: "/shop/17" }, response, () => response.emit("finish"));
""",
    "rb": """
require "./marked.rb"
Marked.new(->(env) { [200, {}, ["done"]] }).call({"PATH_INFO" => "/shop/17"})
""",
}


@pytest.mark.parametrize(
    ("suffix", "command"), [("py", (sys.executable, "-c")), ("js", ("node", "-e")), ("rb", ("ruby", "-e"))]
)
def test_the_middleware_marks_a_page(suffix: str, command: tuple[str, str], tmp_path: Path) -> None:
    """[app-21] The middleware is loaded from its own file, as by an application."""
    if shutil.which(command[0]) is None:
        pytest.skip(f"{command[0]} is not installed: the middleware for it is not run")
    shutil.copy(EXAMPLES / f"marked.{suffix}", tmp_path)
    with Marks() as marks:
        environment = {VARIABLE: marks.address, "PATH": "/usr/bin:/bin"}
        subprocess.run([*command, USES[suffix]], env=environment, check=True, timeout=30, cwd=tmp_path)
    (page,) = marks.pages
    assert (page.name, page.method, marks.malformed) == ("/shop/*", "http", 0)
    assert page.took_ns >= 0
