"""PHP-FPM in a stage: it is given its page there, and proven to do it. See `howfar.testbed.Application`."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from howfar.engine.messages import FastCgi, Observed, PageScript, ServiceName, UnixTarget
from howfar.engine.process import Launcher
from howfar.engine.rules import services_of
from howfar.errors import LabError
from howfar.lab.php.php_fpm import PAGES, Answer, PhpFpm, Program, check, for_proof, keys_of, parameters, round_trips_of
from howfar.lab.reached import Reached
from howfar.lab.servers import Counted, TableServer
from howfar.lab.servers.key_value import KeyValueServer
from howfar.testbed import StageReceipt

Reported = Mapping[str, int]
_SETTLES_S = 3.0
"""Long for a server to notice that a client has gone."""
_POLL_S = 0.005


def count(one: Reached) -> Counted:
    """Raises LabError."""
    running = one.running
    if isinstance(running, KeyValueServer):
        metrics = running.metrics()
        keys = (metrics.lookup_hits or 0) + (metrics.lookup_misses or 0)
        return Counted(metrics.requests, keys, metrics.connections or 0, len(running.others()), 0)
    assert isinstance(running, TableServer)
    return running.counted()


def _own(one: Reached) -> int:
    """Turns that one `count` takes: for SQL the status, for Redis INFO, CLIENT ID and CLIENT LIST."""
    return 3 if isinstance(one.running, KeyValueServer) else 1


def clients(one: Reached) -> tuple[str, ...]:
    """Where a server sees its clients; ours is left out. Raises LabError."""
    running = one.running
    if isinstance(running, KeyValueServer):
        return running.others()
    assert isinstance(running, TableServer)
    return running.clients()


def await_alone(servers: Sequence[Reached]) -> None:
    """Until clients that came before are gone: the goodbye of one is counted when it arrives. Raises LabError."""
    deadline = time.monotonic() + _SETTLES_S
    for one in servers:
        while count(one).present > 0:
            if time.monotonic() > deadline:
                raise LabError(f"{one.name} has clients before an application has asked it: {', '.join(clients(one))}")
            time.sleep(_POLL_S)


@dataclass(frozen=True)
class PageProof:
    receipt: dict[str, object]
    violations: tuple[str, ...]
    connections: Mapping[ServiceName, int] = field(default_factory=dict)
    """That each server had counted when it began."""


def prove(servers: Sequence[Reached], script: PageScript, page: Callable[[int], Answer], pages: int) -> PageProof:
    """`page` asks for one page of `script`, which keeps its connections so many microseconds longer. Raises LabError."""
    used = [one for one in servers if one.name in services_of(script)]
    before = {one.name: count(one) for one in used}
    reported: Counter[str] = Counter()
    for _ in range(pages):
        reported.update(page(0).reported)
    found = _unlike_script(reported, script, pages)
    counted = {}
    for one in used:
        counted[one.name], unlike = _counted_alike(one, before[one.name], reported, script, pages)
        found += unlike
    seen = _seen(used, page)
    found += _strangers(used, seen)
    receipt: dict[str, object] = {"pages": pages, "told": dict(reported), "counted": counted, "seen": seen}
    return PageProof(receipt, tuple(found), {name: counted.connections for name, counted in before.items()})


def _unlike_script(reported: Reported, script: PageScript, pages: int) -> list[str]:
    wanted = round_trips_of(script)
    found = []
    for name in services_of(script):
        round_trips = reported[f"{name}_turns"] - reported[f"{name}_checks"]
        if round_trips != wanted[name] * pages:
            found.append(f"{pages} pages told {round_trips} turns to {name}, the script has {wanted[name] * pages}")
        if script.connect == "per_page" and wanted[name] and reported[f"{name}_connects"] != pages:
            found.append(f"{pages} pages told {reported[f'{name}_connects']} connects to {name}, each was to make one")
    if missed := reported["misses"]:
        found.append(f"the pages missed {missed} keys of {sum(keys_of(script).values()) * pages}")
    return found


def _counted_alike(
    one: Reached, before: Counted, reported: Reported, script: PageScript, pages: int
) -> tuple[dict[str, int], list[str]]:
    """What the server counted, and where that is not what the pages reported."""
    name, deadline, queries = one.name, time.monotonic() + _SETTLES_S, 1
    store = isinstance(one.running, KeyValueServer)
    after = count(one)
    while script.connect == "per_page" and after.present > before.present and time.monotonic() < deadline:
        time.sleep(_POLL_S)
        after, queries = count(one), queries + 1
    connects = reported[f"{name}_connects"]
    counted = {"connects": after.connections - before.connections}
    wanted = {"connects": connects}
    if before.round_trips is not None and after.round_trips is not None:
        counted["turns"] = after.round_trips - before.round_trips - queries * _own(one)
        wanted["turns"] = reported[f"{name}_turns"]
        if not store and script.connect == "per_page":
            wanted["turns"] += connects  # the goodbye of each, which has no answer
    if store:
        counted["keys"], wanted["keys"] = after.keys - before.keys, keys_of(script)[name] * pages
    else:
        counted["encrypted"] = after.encrypted - before.encrypted
        wanted["encrypted"] = connects if services_of(script)[name].tls is not None else 0
    return counted, [
        f"{name} counted {counted[what]} {what} of {pages} pages, which told {wanted[what]}"
        for what in counted
        if counted[what] != wanted[what]
    ]


def _seen(used: Sequence[Reached], page: Callable[[int], Answer]) -> dict[ServiceName, tuple[str, ...]]:
    """Whom each server sees while a page has its connections; a page that was too quick for that is made to stay longer."""
    seen: dict[ServiceName, tuple[str, ...]] = {}
    for linger_us in (20_000, 200_000, 2_000_000):
        with ThreadPoolExecutor(max_workers=1) as executor:
            staying: Future[Answer] = executor.submit(page, linger_us)
            while True:
                for one in used:
                    if one.name not in seen and (found := clients(one)):
                        seen[one.name] = found
                if len(seen) == len(used) or staying.done():
                    break
                time.sleep(_POLL_S)
            staying.result()
        if len(seen) == len(used):
            break
    return seen


def _strangers(used: Sequence[Reached], seen: Mapping[ServiceName, tuple[str, ...]]) -> list[str]:
    """Clients that do not come by the stage's path."""
    found = []
    for one in used:
        wrong = {
            place for place in seen.get(one.name, ("nowhere",)) if place.partition(":")[0] != one.endpoint.seen_from
        }
        found += [
            f"{one.name} sees PHP at {place!r}, the path comes from {one.endpoint.seen_from!r}" for place in wrong
        ]
    return found


def kept(used: Sequence[Reached], children: int, since: Mapping[ServiceName, int]) -> PageProof:
    """After the load, where connections are kept: who is there still, and that no child has made more than one. `since`: connections
    that each server had counted before any of theirs. Raises LabError."""
    seen = {one.name: clients(one) for one in used}
    made = {one.name: count(one).connections - since[one.name] for one in used if one.name in since}
    found = _strangers(used, seen)
    for name, connections in made.items():
        if connections > children:
            found.append(
                f"{name} counted {connections} connections of {children} children, which were to keep one each"
            )
    return PageProof({"seen": seen, "connections": made}, tuple(found))


def good(answer: Answer, ends_with: str) -> Answer:
    """Raises LabError with what the application said."""
    if answer.status == 200 and answer.body.endswith(ends_with):
        return answer
    output = (answer.body or answer.complaints).strip()[:500] or "nothing"
    raise LabError(f"the application answered with status {answer.status} and said: {output}")


ENDS_WITH = "howfar page done\n"
_PAGE = PAGES / "page.php"
LIBPQ_SOCKET = ".s.PGSQL.5432"
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
        file.write_text(self._reachable(script).model_dump_json())
        return FastCgi(
            target=UnixTarget(path=str(self._pool.socket)),
            parameters=parameters(_PAGE, HOWFAR_PAGE=str(file)),
            ends_with=ENDS_WITH,
        )

    def _reachable(self, script: PageScript) -> PageScript:
        """libpq takes the directory of a socket, and looks for one name in there: a forwarded socket has another."""
        service = script.postgresql
        if service is None or not isinstance(service.target, UnixTarget):
            return script
        named = self._work / LIBPQ_SOCKET
        named.unlink(missing_ok=True)
        named.symlink_to(service.target.path)
        target = UnixTarget(path=str(named))
        return script.model_copy(update={"postgresql": service.model_copy(update={"target": target})})


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
