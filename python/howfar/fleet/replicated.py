"""A primary with replicas on the user's hosts: the members held there, and the driver's side. See `howfar.lab.replicated`."""

from __future__ import annotations

import secrets
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

from howfar.engine.messages import LinkStats, RttResult
from howfar.errors import LabError, PlanError
from howfar.fleet.distances import real_link
from howfar.fleet.joined import Link
from howfar.fleet.remote import Held, RemoteHost
from howfar.fleet.serving import PREPARES_S, WORK, HeldServer, RemoteServer, ServerOrder
from howfar.lab.environment import allow_descriptors
from howfar.lab.network import Cpus, Host
from howfar.lab.replicated import Replicated, prepared, replication_spec
from howfar.lab.replication import Pair, ReplicationSpec, Wire
from howfar.lab.replication.dialect import Seed, Source, replication_dialect
from howfar.lab.replication.member import Member
from howfar.lab.replication.pair import check, join
from howfar.lab.servers import Ask, Seer, ServerContext, TableServer
from howfar.lab.servers.kinds import find_server
from howfar.store.records import FactorValue

_PATIENCE = 5.0
"""A look at a pair costs its hosts milliseconds of Ray's workers: so much longer are the intervals than in the laboratory."""
_ASKS_S = 30.0
"""Beyond a statement's own patience."""


class MemberSide(HeldServer):
    """The object held on a member's host: a server that was begun on data of its own, and sessions with it."""

    def __init__(self, order: ServerOrder, seed: Seed) -> None:
        shutil.rmtree(order.work, ignore_errors=True)
        order.work.mkdir(mode=0o700, parents=True)
        self._work = order.work
        allow_descriptors(order.connections)
        program = find_server(order.server)
        place = ServerContext(
            order.work, Host(seed.name, None), order.cpus, order.connections, namespaced=True, address=order.address
        )
        self._running = self._table = replication_dialect(program.kind).begin(seed, place, program, order.tables)
        self._sessions: dict[str, tuple[ExitStack, Ask]] = {}

    def told(self) -> tuple[dict[str, Any], Seer, str]:
        return *self.facts(), self._table.password

    def begin(self, patience_s: float, as_client: bool) -> str:
        ledger, key = ExitStack(), secrets.token_hex(4)
        self._sessions[key] = (ledger, ledger.enter_context(self._table.asking(patience_s, as_client=as_client)))
        return key

    def ask(self, key: str, sql: str) -> list[dict[str, Any]]:
        return self._sessions[key][1](sql)

    def end(self, key: str) -> None:
        self._sessions.pop(key)[0].close()

    def close(self) -> None:
        self.stop()
        shutil.rmtree(self._work, ignore_errors=True)


class RemoteMember(RemoteServer):
    """The part of a `TableServer` that a pair needs, seen from the driver."""

    def __init__(self, side: Held) -> None:
        facts, seer, self.password = side.call("told")
        super().__init__(side, facts, seer)

    def become_ready(self) -> None:
        self.side.call("of_server", "become_ready", (), patience_s=PREPARES_S)
        self.version = self.side.call("told")[0]["version"]

    def free_bytes(self) -> int:
        return int(self._ask("free_bytes"))

    def log_lines(self) -> list[str]:
        return list(self._ask("log_lines"))

    def kill(self) -> None:
        self._ask("kill")

    @contextmanager
    def asking(self, patience_s: float, *, as_client: bool = False) -> Iterator[Ask]:
        key = self.side.call("begin", patience_s, as_client)
        try:
            yield lambda sql: self.side.call("ask", key, sql, patience_s=patience_s + _ASKS_S)
        finally:
            with suppress(LabError):  # of a server that has gone there is nothing to end
                self.side.call("end", key)

    def stop(self) -> None:
        """Its data goes with it; one on a lost host has gone already."""
        self.side.drop()


@dataclass(frozen=True)
class RealWire(Wire):
    """The link that is there between the hosts of a replica and of its primary."""

    number: int
    link: Link
    facts: Mapping[str, Any]
    """See `distances.Distance.facts`."""

    @property
    def name(self) -> str:
        return f"replica{self.number}"

    @property
    def rtt_ns(self) -> int:
        return int(self.facts["rtt_ns"]["p50"])

    def alive(self) -> bool:
        return True

    def sent_bytes(self) -> int | None:
        return None

    def begin(self) -> tuple[RttResult, ...]:
        return (self.link.ping(),)

    def pid(self) -> int | None:
        return None

    def counters(self) -> LinkStats | None:
        return None

    def receipt(self, probes: Sequence[RttResult], stats: LinkStats | None) -> dict[str, Any]:
        return real_link(probes[-1], self.facts)


class HostsReplication:
    """What all trials with replication have in common."""

    def __init__(
        self,
        order: ServerOrder,
        primary: RemoteHost,
        replicas: Sequence[tuple[RemoteHost, Cpus]],
        facts: Callable[[RemoteHost], tuple[Link, Mapping[str, Any]]],
    ) -> None:
        """`order`: of the primary; `facts`: the open link from a replica's host, and what was measured of it. Raises PlanError."""
        self._order, self._primary, self._replicas, self._facts = order, primary, replicas, facts

    def _check(self, spec: ReplicationSpec, kind: str) -> None:
        check(spec, replication_dialect(kind))
        if kind == "postgresql":
            raise PlanError(
                "a replica of PostgreSQL begins as a copy of its primary's files, which hosts of your own do not exchange",
                "Measure MariaDB or MySQL here; the laboratory (without --on) has PostgreSQL's replication.",
            )
        if spec.tls:
            raise PlanError(
                "between hosts of your own, replication is not encrypted yet",
                "The laboratory (without --on) encrypts it.",
            )

    @contextmanager
    def serving(self, factors: Mapping[str, FactorValue], prepare: tuple[str, ...], kind: str) -> Iterator[Replicated]:
        """A proven pair as a cell asks for it. Raises LabError, PlanError."""
        spec = replication_spec(factors)
        self._check(spec, kind)
        dialect, secret = replication_dialect(kind), secrets.token_urlsafe(18)
        address = self._primary.spec.address
        source = Source(address, ServerContext.port_on(dialect.port), secret, None, spec.compression)
        chosen = self._replicas[: spec.replicas]
        if len(chosen) < spec.replicas:
            raise PlanError(
                f"a cell has {spec.replicas} replicas, and {len(chosen)} hosts may be one",
                "Name a host for each: --place replica=c,replica=d.",
            )
        seeds = [Seed("primary", 0, spec, secret, None, None)]
        seeds += [Seed(f"replica{number}", number, spec, secret, None, source) for number in range(1, len(chosen) + 1)]
        hosts = ((self._primary, self._order.cpus), *chosen)
        with ExitStack() as ledger, ThreadPoolExecutor(len(hosts)) as pool:

            def begin(seed: Seed, at: tuple[RemoteHost, Cpus]) -> Member:
                order = self._order.on(at[0].spec.address, at[1], WORK / seed.name)
                held = at[0].hold(partial(MemberSide, order, seed), patience_s=PREPARES_S, called=seed.name)
                ledger.callback(held.drop)
                return Member(seed.name, cast(TableServer, RemoteMember(held)), dialect, spec)

            primary, *replicas = pool.map(begin, seeds, hosts)
            links = [self._facts(host) for host, _ in chosen]
            wires = tuple(RealWire(number, *each) for number, each in enumerate(links, 1))
            pair = Pair(spec, dialect, primary, tuple(replicas), wires, patience=_PATIENCE)
            join(pair, [source] * len(chosen))
            yield prepared(pair, None, factors, prepare, ledger)
