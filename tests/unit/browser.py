"""A headless Chromium, controlled through two pipes (the DevTools protocol): no driver, no port, no dependency. For tests only."""

from __future__ import annotations

import json
import os
import select
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

PROGRAMS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
TIMEOUT_S = 60
"""Timeout of each answer, long enough for a busy machine."""

FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
    "--remote-debugging-pipe",
)


AS_3_AND_4 = """import fcntl, os, sys
ours = [fcntl.fcntl(int(number), fcntl.F_DUPFD, 10) for number in sys.argv[1:3]]
for wanted, number in zip((3, 4), ours):
    os.dup2(number, wanted)
os.execv(sys.argv[3], sys.argv[3:])
"""
"""Program that execs the browser with the pipes as descriptors 3 and 4, as the protocol requires; here they have other numbers."""


def program() -> str | None:
    return next((found for name in PROGRAMS if (found := shutil.which(name))), None)


class Page:
    """One tab. `heard` are its events since the last page was opened."""

    def __init__(self, read: int, write: int) -> None:
        self._read, self._write = read, write
        self._buffer = b""
        self._number = 0
        self._session: str | None = None
        self.heard: list[dict[str, Any]] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **parameters: Any) -> Any:
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next()
            if answer.get("id") == self._number:
                assert "error" not in answer, f"{method}: {answer['error']}"
                return answer["result"]
            self.heard.append(answer)

    def _next(self) -> dict[str, Any]:
        until = time.monotonic() + TIMEOUT_S
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._read], [], [], max(0.0, until - time.monotonic()))
            assert ready, "the browser does not answer"
            more = os.read(self._read, 1 << 16)
            assert more, "the browser has gone"
            self._buffer += more
        line, _, self._buffer = self._buffer.partition(b"\0")
        found: dict[str, Any] = json.loads(line)
        return found

    def open(self, path: Path, width: int = 1280) -> None:
        """Loads the page from its file, scripts included, and discards earlier events."""
        self.heard.clear()
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=False)
        self.call("Page.navigate", url=path.absolute().as_uri())
        while not any(event.get("method") == "Page.loadEventFired" for event in self.heard):
            self.heard.append(self._next())

    def value(self, expression: str) -> Any:
        found = self.call("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in found, found["exceptionDetails"]
        return found["result"].get("value")

    def complaints(self) -> list[dict[str, Any]]:
        """Exceptions, console output and log entries."""
        kinds = ("Runtime.exceptionThrown", "Runtime.consoleAPICalled", "Log.entryAdded")
        return [event for event in self.heard if event.get("method") in kinds]

    def requests(self) -> list[str]:
        """URLs that the page requested, including its own file."""
        return [e["params"]["request"]["url"] for e in self.heard if e.get("method") == "Network.requestWillBeSent"]


@contextmanager
def browser() -> Iterator[Page]:
    found = program()
    assert found is not None, "ask program() first"
    to_browser, from_browser = os.pipe(), os.pipe()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        process = subprocess.Popen(
            [
                sys.executable,
                "-c",
                AS_3_AND_4,
                str(to_browser[0]),
                str(from_browser[1]),
                found,
                *FLAGS,
                f"--user-data-dir={profile}",
            ],
            pass_fds=(to_browser[0], from_browser[1]),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(to_browser[0])
        os.close(from_browser[1])
        try:
            page = Page(from_browser[0], to_browser[1])
            yield page
            page._session = None
            page.call("Browser.close")
            process.wait(timeout=TIMEOUT_S)
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()
            os.close(to_browser[1])
            os.close(from_browser[0])
