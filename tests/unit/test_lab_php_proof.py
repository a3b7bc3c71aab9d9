"""Proof of an application's pages: a made-up server counts, made-up pages report, and each false report is found."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast

import pytest

from howfar.contract.messages import (
    CustomStatement,
    PageScript,
    QueryStep,
    Service,
    UnixTarget,
)
from howfar.contract.violation import sentences, violation
from howfar.errors import LabError
from howfar.experiments.page.lab.php_fpm import (
    PageProof,
    PhpReply,
    check_persistent_connections,
    prove_page,
    wait_until_no_clients,
)
from howfar.lab.connected_server import ConnectedServer
from howfar.lab.servers.sql_store import SqlServer

ROUND_TRIPS = 3


@dataclass
class MadeServer(SqlServer):
    """Counts as MySQL does, including our own queries and each goodbye."""

    questions: int = 100
    pings: int = 0
    connections: int = 7
    here: list[str] = field(default_factory=list)

    def query(self, sql: str, called: str | None = None) -> list[dict[str, Any]]:
        self.questions += 1
        if "PROCESSLIST" in sql:
            return [{"HOST": host} for host in self.here]
        counted = {
            "Questions": self.questions,
            "Com_admin_commands": self.pings,
            "Connections": self.connections,
            "Threads_connected": len(self.here) + 1,
            "Ssl_finished_accepts": 0,
        }
        return [{"Variable_name": name, "Value": value} for name, value in counted.items()]

    def meet(self, host: str) -> None:
        self.connections += 1
        self.here.append(host)

    def part(self) -> None:
        self.questions += 1
        self.here.pop()


@dataclass
class MadePages:
    """Pages of one child process, which keeps its connection if `persistent`."""

    server: MadeServer
    persistent: bool = True
    host: str = "localhost"
    lie: dict[str, int] = field(default_factory=dict)
    missing_round_trips: int = 0

    def page(self, linger_us: int) -> PhpReply:
        opened = not (self.persistent and self.server.here)
        if opened:
            self.server.meet(self.host)
        else:
            self.server.pings += 1
        self.server.questions += ROUND_TRIPS - self.missing_round_trips
        reported = {
            "mysql_turns": ROUND_TRIPS + (not opened),
            "mysql_checks": int(not opened),
            "mysql_connects": int(opened),
            "misses": 0,
        }
        reported |= {name: reported[name] + more for name, more in self.lie.items()}
        if not self.persistent and linger_us == 0:
            self.server.part()
        return PhpReply(200, {"x-howfar-page": ",".join(f"{name}={value}" for name, value in reported.items())}, "", "")


def reached(server: MadeServer) -> ConnectedServer:
    started = SimpleNamespace(user="u")
    endpoint = SimpleNamespace(expected_client_host="localhost")
    return cast(
        ConnectedServer, SimpleNamespace(name="mysql", running=server, started=started, endpoint=endpoint, store=None)
    )


def proven(**changes: Any) -> PageProof:
    server = MadeServer()
    pages = MadePages(server, **changes)
    script = PageScript(
        mysql=Service(user="", database="", target=UnixTarget(path="/s")),
        statements=(CustomStatement(name="one", sql="SELECT 1"),),
        steps=(QueryStep(statement="one", repeat=ROUND_TRIPS),),
        connect="persistent" if pages.persistent else "per_page",
    )
    return prove_page([reached(server)], script, pages.page, 3)


def test_honest_pages_pass() -> None:
    for persistent in (True, False):
        proof = proven(persistent=persistent)
        assert proof.violations == ()
        assert proof.connections == {"mysql": 7}
        assert proof.receipt.seen == {"mysql": ["localhost"]}


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"lie": {"mysql_turns": 1}}, "reported 12 round trips to mysql instead of 9"),
        ({"missing_round_trips": 1}, "mysql counted 8 round trips, but 3 pages reported 11"),
        ({"lie": {"mysql_connects": 1}}, "mysql counted 1 connections, but 3 pages reported 4"),
        ({"lie": {"misses": 2}}, "missed 6 keys"),
        ({"host": "10.0.0.1:5"}, "sees PHP connect from '10.0.0.1:5' instead of 'localhost'"),
        ({"persistent": False, "lie": {"mysql_connects": -1}}, "reported 0 connections to mysql instead of one each"),
    ],
)
def test_each_lie_is_found(changes: dict[str, Any], says: str) -> None:
    assert any(says in sentence for sentence in sentences(proven(**changes).violations))


def test_children_that_connect_again_are_found() -> None:
    server = MadeServer()
    server.meet("localhost")
    server.meet("localhost")
    assert check_persistent_connections([reached(server)], 2, {"mysql": 7})[1] == ()
    server.part()
    server.meet("localhost")
    _, found = check_persistent_connections([reached(server)], 2, {"mysql": 7})
    assert found == (violation("persistent-connections", service="mysql", connections=3, children=2),)


def test_a_proof_waits_until_earlier_clients_are_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    server = MadeServer()
    server.meet("localhost")
    original = server.query
    left = 3

    def query(sql: str) -> list[dict[str, Any]]:
        nonlocal left
        left -= 1
        if left == 0:
            server.part()
        return original(sql)

    monkeypatch.setattr(server, "query", query)
    wait_until_no_clients([reached(server)])
    assert server.here == []
    server.meet("localhost")
    monkeypatch.setattr("howfar.experiments.page.lab.php_fpm._DISCONNECT_TIMEOUT_S", 0.0)
    with pytest.raises(LabError) as found:
        wait_until_no_clients([reached(server)])
    assert "mysql has clients before" in found.value.message
