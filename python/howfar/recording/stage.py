"""A server that does no work, behind a path of the laboratory: what round trips cost there, and replays of recorded pages.

Both paths, the present one and the target, stay open while blocks alternate between them in random order. A block in which the
link was not as requested is void and repeated. On one machine both ends may run where the application and its server did.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path as FilePath
from typing import Any, Generic, TypeVar

from howfar.engine.messages import (
    AnswerJob,
    NullReady,
    Replayed,
    ReplayJob,
    ReplayPage,
    ReplayStep,
    ServerTls,
    Speech,
    TcpListen,
    TcpTarget,
    Tls,
    UnixTarget,
)
from howfar.engine.process import EngineProcess, Launcher
from howfar.errors import LabError, LinkFailed
from howfar.lab.laboratory import Lab
from howfar.lab.link import Link
from howfar.lab.link.receipt import OF_A_PLAN, link_violations
from howfar.lab.network import usable_cpus
from howfar.lab.reached import Ends, LabPathContext
from howfar.paths import Path
from howfar.plan.sessions import TlsVersion
from howfar.recording.calibration import Placement, Rhythm
from howfar.recording.costs import (
    SMALLEST,
    CostBlock,
    PathCosts,
    Sizes,
    rounds_at,
    settle_rounds,
    trimmed_mean,
)

_PORT = 3306
_ACCOUNT = "howfar"
"""Name of the account and of the database."""
_CONNECTS = 8
_SEED = 20_262
_WORK_LEAST_NS, _WORK_MOST_NS = 20_000, 1_000_000
_WAITS_NS = 250_000_000
_WAITS_FEWEST, _WAITS_MOST = 8, 60
_LARGEST, _LEAST_LARGEST, _MOST_SENDING_S = 1 << 26, 1 << 16, 0.25
"""Larger answers cost as much in proportion as the largest that is measured."""
_OBJECTS = 24_000
_OBJECTS_SEED = 20_264


@dataclass(frozen=True)
class _Answering:
    """The server that does no work, in the form that a path needs."""

    kind: str
    socket: FilePath
    port: int | None
    pid: int

    def query(self, sql: str) -> list[dict[str, Any]]:
        """Answer a path's query about an account: none has a password."""
        return [{"rolpassword": None}]


@dataclass(frozen=True)
class OpenPath:
    """One path to its own server, ready."""

    path: Path
    target: UnixTarget | TcpTarget
    tls: Tls | None
    speech: Speech
    client: Launcher
    link: Link | None

    @property
    def rtt_ns(self) -> int:
        return self.link.spec.rtt_ns if self.link is not None else 0

    @property
    def waking_ns(self) -> float:
        """See `PathCosts.waking_ns`; 0 without a link."""
        return self.link.waking_ns if self.link is not None else 0.0

    def sending_ns(self, to_server: int, to_client: int) -> float:
        """Time that the link's rate needs for so many bytes."""
        if self.link is None:
            return 0.0
        spec = self.link.spec
        rates = (spec.mean_rate_bps("to_server"), spec.mean_rate_bps("to_client"))
        return sum(8e9 * size / rate for size, rate in zip((to_server, to_client), rates, strict=True) if rate)

    def largest(self) -> tuple[int, int]:
        """Largest sizes to measure, to the server and to the client: what the link's rate sends in a quarter of a second."""
        if self.link is None:
            return _LARGEST, _LARGEST
        rates = (self.link.spec.mean_rate_bps("to_server"), self.link.spec.mean_rate_bps("to_client"))
        to_server, to_client = (
            _LARGEST if rate is None else max(_LEAST_LARGEST, min(_LARGEST, round(rate / 8 * _MOST_SENDING_S)))
            for rate in rates
        )
        return to_server, to_client

    def replay(self, pages: Sequence[ReplayPage]) -> list[Replayed]:
        """Replay pages on this path. Raises EngineError."""
        job = ReplayJob(target=self.target, tls=self.tls, speech=self.speech, pages=tuple(pages))
        with EngineProcess(job, self.client) as engine:
            found = [engine.read() for _ in pages]
        return [event for event in found if isinstance(event, Replayed)]

    def begin(self) -> Callable[[], tuple[str, ...]]:
        """Watch the link from now on; the result says where it was not as requested."""
        link = self.link
        if link is None:
            return tuple
        at_rest = link.at_rest()
        if link.spec.has_effects:
            link.arm()
        link.counters(reset=True)
        return lambda: link_violations(link, at_rest, link.counters(), OF_A_PLAN)


@contextmanager
def open_path(
    lab: Lab, path: Path, tls: TlsVersion | None, number: int, placement: Placement, speech: Speech = "sizes"
) -> Iterator[OpenPath]:
    """Start the server and open the path. `number` keeps two of them apart; `placement` is for a path on one machine.

    Raises LabError, MissingError.
    """
    with ExitStack() as ledger:
        work = lab.work / f"null-{number}"
        work.mkdir(exist_ok=True)
        port = _PORT + 10 * number
        # Where a program that speaks PostgreSQL looks for it.
        socket = work / f".s.PGSQL.{port}"
        files = lab.certificates() if tls else None
        proof = (
            ServerTls(cert_file=str(files.certificate), key_file=str(files.key), versions=tls)
            if files and tls
            else None
        )
        listen = UnixTarget(path=str(socket)) if path.by_socket else TcpListen(host="0.0.0.0", port=port)
        on_server, on_client = lab.shares.server, lab.shares.client
        if path.machines == 1:
            on_server, on_client = placement.server or usable_cpus(), placement.application or usable_cpus()
        launcher = lab.server_host.launcher(on_server)
        server = EngineProcess(AnswerJob(listen=listen, tls=proof, speech=speech), launcher)
        ledger.enter_context(server)
        if not isinstance(server.read(), NullReady):
            raise LabError("the server that does no work did not start", "Please report this.")
        client_host = lab.client_host_of(path)
        ends = Ends(
            work,
            client_host,
            lab.server_host,
            lab.client_host.launcher(lab.shares.client),
            lab.server_host.launcher(lab.shares.server),
            lab.certificates,
        )
        kind = "mariadb" if speech == "sizes" else speech
        running = _Answering(kind, socket, None if path.by_socket and speech == "sizes" else port, server.pid)
        context = LabPathContext(running=running, ledger=ledger, ends=ends, user=_ACCOUNT, database=_ACCOUNT)
        endpoint = path.open(context)
        target: UnixTarget | TcpTarget
        if endpoint.socket is not None:
            target = UnixTarget(path=endpoint.socket)
        else:
            assert endpoint.host is not None and endpoint.port is not None, "an endpoint is a socket, or host and port"
            target = TcpTarget(host=endpoint.host, port=endpoint.port)
        known = (
            Tls(
                versions=tls,
                verify="full",
                ca_file=str(files.ca),
                server_name=endpoint.host or "localhost",
                resumption=False,
            )
            if files and tls
            else None
        )
        client = client_host.launcher(on_client)
        yield OpenPath(path, target, known, speech, client, lab.link if path.crosses_link else None)


def measure(
    paths: Sequence[OpenPath],
    labels: Sequence[str],
    sizes: Sizes,
    rhythm: Rhythm,
    blocks: int,
    say: Callable[[str], None],
) -> list[PathCosts]:
    """Measure costs of each path in blocks, without those in which the link was not as requested. Raises LinkFailed if all are."""
    works = (Computing(rhythm.gap_ns), Computing(rhythm.server_ns))
    chosen = random.Random(_SEED)

    def block() -> dict[int, CostBlock]:
        return {
            number: resumed(valid(paths[number], lambda path: _block(path, sizes, rhythm)), works, rhythm)
            for number in chosen.sample(range(len(paths)), len(paths))
        }

    expected_ns = sum(_expected_ns(path, sizes, rhythm) for path in paths)
    what = f"round trip costs, {max(expected_ns / 1e9, 1):.0f} s a block or more"
    found = in_blocks(blocks, block, what, say)
    return [
        PathCosts(
            label=label,
            sizes=sizes,
            blocks=tuple(costs[number] for costs in found.blocks),
            link_rtt_ns=path.rtt_ns,
            encrypted=path.tls is not None,
            waking_ns=path.waking_ns,
            by_socket=path.path.by_socket,
            void=found.void,
        )
        for number, (path, label) in enumerate(zip(paths, labels, strict=True))
    ]


class Computing:
    """A computation that takes `work_ns` when nothing came between; it walks through objects, as scripting languages do.

    After a wait it takes longer: meanwhile others use the processor's caches, and on a virtual machine also its neighbours. A
    recording does not show that.
    """

    def __init__(self, work_ns: int) -> None:
        objects = [(number, f"name {number}", [number] * 5) for number in range(_OBJECTS)]
        random.Random(_OBJECTS_SEED).shuffle(objects)
        self._objects = objects[: _OBJECTS // 100]
        work_ns = min(max(work_ns, _WORK_LEAST_NS), _WORK_MOST_NS)
        each_ns = min(self._took_ns() for _ in range(20)) / len(self._objects)
        self._objects = objects[: max(round(work_ns / each_ns), 1)]

    def _took_ns(self) -> int:
        # Of this thread: without waiting for a processor.
        began, total = time.thread_time_ns(), 0
        for number, name, tags in self._objects:
            total += number + len(name) + sum(tags)
        return time.thread_time_ns() - began

    def longer_ns(self, wait_ns: float) -> float:
        """How much longer the computation takes after a wait of `wait_ns` than without one."""
        longer = []
        for _ in range(max(_WAITS_FEWEST, min(_WAITS_MOST, int(_WAITS_NS / max(wait_ns, 1))))):
            warm = min(self._took_ns() for _ in range(3))
            time.sleep(wait_ns / 1e9)
            longer.append(self._took_ns() - warm)
        return max(trimmed_mean(longer), 0.0)


def resumed(block: CostBlock, works: tuple[Computing, Computing], rhythm: Rhythm) -> CostBlock:
    """The block with what its wait costs the computing after it, of application and server, each of which waits for the other."""
    application, server = works
    longer_ns = application.longer_ns(block.cost_ns[0] + rhythm.server_ns)
    longer_ns += server.longer_ns(block.cost_ns[0] + rhythm.gap_ns)
    return block.model_copy(
        update={"cost_ns": tuple(cost + longer_ns for cost in block.cost_ns), "resuming_ns": longer_ns}
    )


_ATTEMPTS = 4
_TRIES, _LATE_SHARE = 3, 0.03


_Result = TypeVar("_Result")


@dataclass(frozen=True)
class Blocks(Generic[_Result]):
    """The results of blocks, and why others have none."""

    blocks: list[_Result]
    void: tuple[str, ...]


def in_blocks(count: int, act: Callable[[], _Result], what: str, say: Callable[[str], None]) -> Blocks[_Result]:
    """Do `act` once a block. A block whose link cannot be had is left out. Raises LinkFailed if none is left."""
    found: list[_Result] = []
    void: list[LinkFailed] = []
    for number in range(1, count + 1):
        say(f"{what}, block {number} of {count}")
        try:
            found.append(act())
        except LinkFailed as failed:
            void.append(failed)
            say(f"block {number} is left out: {failed.message}")
    if not found:
        raise void[-1]
    return Blocks(found, tuple(failed.message for failed in void))


def valid(path: OpenPath, act: Callable[[OpenPath], _Result]) -> _Result:
    """Return the result of `act` from an attempt in which the link was as requested; bounded retries. Raises LinkFailed."""
    violations: tuple[str, ...] = ()
    for _ in range(_ATTEMPTS):
        violated = path.begin()
        result = act(path)
        violations = violated()
        if not violations:
            return result
    raise LinkFailed(
        f"the link could not be had as requested in {_ATTEMPTS} attempts: {violations[0]}",
        "Try again when less runs on this machine.",
    )


def _block(path: OpenPath, sizes: Sizes, rhythm: Rhythm) -> CostBlock:
    """The one of a few tries in which client and server waited least for a processor, which is not the path's time."""
    best: tuple[float, CostBlock] | None = None
    for _ in range(_TRIES):
        late, block = _measured(path, sizes, rhythm)
        if best is None or late < best[0]:
            best = late, block
        if late <= _LATE_SHARE:
            break
    assert best is not None, "there is a first try"
    return best[1]


def _counts(path: OpenPath, sizes: Sizes, rhythm: Rhythm) -> list[tuple[int, float]]:
    """How many round trips of each size are measured that count, and the time of one."""
    each_ns = [path.rtt_ns + rhythm.each_ns + path.sending_ns(*pair) for pair in sizes.pairs]
    return [(rounds_at(one), one) for one in each_ns]


def _expected_ns(path: OpenPath, sizes: Sizes, rhythm: Rhythm) -> float:
    """About how long a block takes, if it need not be repeated."""
    settle = settle_rounds(path.rtt_ns)
    return _CONNECTS * 2 * path.rtt_ns + sum((settle + rounds) * ns for rounds, ns in _counts(path, sizes, rhythm))


def _measured(path: OpenPath, sizes: Sizes, rhythm: Rhythm) -> tuple[float, CostBlock]:
    """Each size on one warm connection of its own, and a few connects; before it the share of waiting for a processor."""
    settle = settle_rounds(path.rtt_ns)
    pages = [
        ReplayPage(steps=(rhythm.step(to_server, to_client, number),) * (settle + rounds))
        for number, ((to_server, to_client), (rounds, _)) in enumerate(
            zip(sizes.pairs, _counts(path, sizes, rhythm), strict=True)
        )
    ]
    connect = ReplayStep(connection=len(pages), opens=True, bytes_to_server=SMALLEST[0], bytes_to_client=SMALLEST[1])
    pages.append(ReplayPage(steps=(connect,) * _CONNECTS))
    *measured, connects = path.replay(pages)
    block = CostBlock(
        cost_ns=tuple(trimmed_mean(page.round_trips_ns[settle:]) - rhythm.server_ns for page in measured),
        connect_ns=trimmed_mean(connects.opened_ns[1:]),
    )
    late_ns = sum(page.client_late_ns + page.server_late_ns for page in measured)
    return late_ns / sum(page.took_ns for page in measured), block
