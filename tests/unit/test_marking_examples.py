"""The middleware of docs/recording.md, run as it stands there."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from howfar.recording.marks import VARIABLE, Marks

DOCUMENT = Path(__file__).parents[2] / "docs" / "recording.md"
USES = {
    "python": """
served = marked(lambda environ, start_response: [b"done"])
assert list(served({"PATH_INFO": "/shop/17"}, None)) == [b"done"]
""",
    "js": """
const { EventEmitter } = require("node:events");
const response = new EventEmitter();
marked({ path: "/shop/17" }, response, () => response.emit("finish"));
""",
    "ruby": """
Marked.new(->(env) { [200, {}, ["done"]] }).call({"PATH_INFO" => "/shop/17"})
""",
}


@pytest.mark.parametrize(
    ("language", "command"), [("python", (sys.executable, "-c")), ("js", ("node", "-e")), ("ruby", ("ruby", "-e"))]
)
def test_the_middleware_marks_a_page(language: str, command: tuple[str, str]) -> None:
    if shutil.which(command[0]) is None:
        pytest.skip(f"{command[0]} is not installed: the middleware for it is not run")
    (example,) = re.findall(rf"```{language}\n(.*?)```", DOCUMENT.read_text(), re.DOTALL)
    with Marks() as marks:
        environment = {VARIABLE: marks.address, "PATH": "/usr/bin:/bin"}
        subprocess.run([*command, example + USES[language]], env=environment, check=True, timeout=30)
    (page,) = marks.pages
    assert (page.name, page.method, marks.malformed) == ("/shop/*", "http", 0)
    assert page.took_ns >= 0
