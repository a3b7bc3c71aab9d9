"""PHP-FPM in a stage: it is given its page there, and proven to do it. See `howfar.testbed.Application`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from howfar.engine.messages import (
    FastCgi,
    Observed,
    PageScript,
    UnixTarget,
)
from howfar.engine.process import Launcher
from howfar.engine.rules import services_of
from howfar.lab.php.php_fpm import PAGES, Answer, PhpFpm, Program, check, for_proof, parameters
from howfar.lab.php.proof import PageProof, await_alone, good, kept, prove
from howfar.lab.reached import Reached
from howfar.testbed import StageReceipt

ENDS_WITH = "howfar page done\n"
_PAGE = PAGES / "page.php"
_PATIENCE_S = 60.0
"""For one page over a slow link."""


class PhpApplication:
    """See `howfar.testbed.Application`."""

    def __init__(self, work: Path, pool: PhpFpm, about: dict[str, Any], servers: Sequence[Reached]) -> None:
        self._work = work
        self._pool = pool
        self._about = about
        self._servers = servers
        self._script: PageScript | None = None
        self._proof = PageProof({}, ())

    @property
    def observed(self) -> Observed:
        """With its children."""
        return Observed(role="application", pid=self._pool.pid)

    def install(self, script: PageScript) -> FastCgi:
        """Raises PlanError where PHP cannot do it, LabError where it fails."""
        check(script)
        if self._script is None:
            await_alone(self._servers)
        self._script = script
        cgi = self._written(script, "page.json")
        if (like := for_proof(script)) is not None:
            self._proof = prove(self._servers, like, lambda us: self._page(like, us), self._pool.children + 1)
        return cgi

    def obtained(self) -> StageReceipt:
        """After the load. Raises LabError when it has died."""
        self._pool.check_alive("during the trial")
        receipt = {**self._about, "children": self._pool.children, "pid": self._pool.pid, "proof": self._proof.receipt}
        violations = [*self._proof.violations, *self._pool.losses()]
        if not self._about["opcache"]:
            violations.append("PHP compiled its pages anew each time")
        script = self._script
        if script is not None and script.connect == "persistent":
            used = [one for one in self._servers if one.name in services_of(script)]
            after = kept(used, self._pool.children, self._proof.connections)
            receipt["after"] = after.receipt
            violations += after.violations
        return StageReceipt(
            {"application": receipt}, tuple(f"application: {sentence}" for sentence in dict.fromkeys(violations))
        )

    def _page(self, script: PageScript, linger_us: int) -> Answer:
        cgi = self._written(script, "proof.json")
        answer = self._pool.ask({**cgi.parameters, "HOWFAR_LINGER_US": str(linger_us)}, _PATIENCE_S)
        return good(answer, ENDS_WITH)

    def _written(self, script: PageScript, name: str) -> FastCgi:
        """Passwords are in it: only we may read it."""
        file = self._work / name
        file.unlink(missing_ok=True)
        file.touch(mode=0o600)
        file.write_text(script.model_dump_json())
        return FastCgi(
            target=UnixTarget(path=str(self._pool.socket)),
            parameters=parameters(_PAGE, HOWFAR_PAGE=str(file)),
            ends_with=ENDS_WITH,
        )


@contextmanager
def php_application(
    program: Program, work: Path, launcher: Launcher, children: int, servers: Sequence[Reached]
) -> Iterator[PhpApplication]:
    """A pool that answers. Raises LabError."""
    work.mkdir(exist_ok=True)
    pool = PhpFpm(program, work, launcher, children)
    try:
        yield PhpApplication(work, pool, pool.become_ready(), servers)
    finally:
        pool.stop()
