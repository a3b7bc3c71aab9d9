"""Distances as a measurement returns them, made from numbers that a person can check."""

from __future__ import annotations

from howfar.distance.meaning import add_meaning
from howfar.distance.record import (
    Address,
    Distance,
    Encryption,
    Fact,
    Failure,
    Latencies,
    Name,
    NewConnection,
    PathFacts,
    StepTime,
)

US = 1_000


def latencies(request: str, p50_us: float, count: int, spread: float = 0.1) -> Latencies:
    """Samples that differ from the median by up to the share `spread`; every fiftieth is three times the median."""
    samples = [
        round(p50_us * US * (3 if number % 50 == 49 else 1 - spread + 2 * spread * (number % 49) / 48))
        for number in range(count)
    ]
    return Latencies.from_samples(request, samples)


def connection(*steps: tuple[str, float, int], count: int = 5) -> NewConnection:
    times = tuple(
        StepTime.model_validate({"name": name, "took_ns": round(us * US), "round_trips": trips})
        for name, us, trips in steps
    )
    took = sum(step.took_ns for step in times)
    return NewConnection(
        count=count, took_ns=took, steps=times, round_trips=sum(step.round_trips for step in times), first_ns=2 * took
    )


def remote() -> Distance:
    """MariaDB 0.42 ms away, of which the network takes 0.35 ms."""
    return add_meaning(
        Distance(
            target="mysql://app@db.internal:3306/shop",
            began="2026-11-28T12:00:00.000+00:00",
            product="MariaDB 10.11.19",
            place="at db.internal:3306",
            name=Name(
                took_ns=900 * US,
                addresses=(
                    Address(
                        address="10.0.4.16", state="failed", waited_ns=5_000_000_000, why="no answer in 5.0 s"
                    ),
                    Address(address="10.0.4.17", state="used"),
                ),
            ),
            connection=connection(("connect", 360, 1), ("greeting", 400, 1), ("tls", 1100, 1), ("login", 800, 2)),
            encryption=Encryption(
                version="TLSv1.3", cipher="TLS_AES_256_GCM_SHA384", handshake="full", verified="nothing"
            ),
            path=PathFacts(
                kind="other_machine", text="another machine", evidence="from 10.0.7.3 to 10.0.4.17", mtu=1500,
                peer_address="10.0.4.17:3306", local_address="10.0.7.3:40000",
            ),
            first_request_ns=1_000 * US,
            request=latencies("SELECT 1", 420, 320),
            ping=latencies("COM_PING", 400, 160),
            network_ns=350 * US,
        )
    )  # fmt: skip


def socket() -> Distance:
    return add_meaning(
        Distance(
            target="mysql:///run/mysqld/mysqld.sock",
            began="2026-11-28T12:00:00.000+00:00",
            product="MariaDB 10.11.19",
            place="on /run/mysqld/mysqld.sock",
            connection=connection(("connect", 20, 0), ("greeting", 60, 1), ("login", 80, 1)),
            path=PathFacts(
                kind="socket", text="a Unix socket of this machine", evidence="the process 812 listens on it",
                peer_address="/run/mysqld/mysqld.sock",
            ),
            first_request_ns=90 * US,
            request=latencies("SELECT 1", 26, 320),
            ping=latencies("COM_PING", 16, 160),
        )
    )  # fmt: skip


def pooler() -> Distance:
    """PostgreSQL behind a nearby pooler that answers pings itself."""
    return add_meaning(
        Distance(
            target="postgresql://app@127.0.0.1:6432/shop",
            began="2026-11-28T12:00:00.000+00:00",
            product="PostgreSQL 15.18",
            place="at 127.0.0.1:6432",
            connection=connection(("connect", 40, 1), ("tls_request", 30, 1), ("login", 700, 3)),
            path=PathFacts(
                kind="loopback", text="this machine's loopback interface", evidence="127.0.0.1 is a loopback address",
                peer_address="127.0.0.1:6432", local_address="127.0.0.1:40000",
                between=(
                    Fact(
                        what="a pooler or proxy",
                        text="a pooler or proxy is in between",
                        evidence="the connection ID was 77 at login, but the server reports 4711",
                    ),
                ),
            ),
            first_request_ns=11_600 * US,
            request=latencies("SELECT 1", 580, 320),
            ping=latencies("Sync", 30, 160),
            network_ns=10 * US,
        )
    )  # fmt: skip


def far() -> Distance:
    """A server 85 ms away, with too few requests for a p95."""
    return add_meaning(
        Distance(
            target="mysql://app@eu.example.net:3306/shop",
            began="2026-11-28T12:00:00.000+00:00",
            product="MySQL 8.4.6",
            place="at eu.example.net:3306",
            name=Name(took_ns=12_000 * US, addresses=(Address(address="203.0.113.9", state="used"),)),
            connection=connection(
                ("connect", 85_000, 1), ("greeting", 85_200, 1), ("tls", 86_900, 1), ("login", 85_400, 1), count=1
            ),
            encryption=Encryption(
                version="TLSv1.3", cipher="TLS_AES_256_GCM_SHA384", handshake="full",
                verified="the CA in /etc/ssl/db.pem and the name eu.example.net",
            ),
            path=PathFacts(
                kind="other_machine", text="another machine", evidence="from 198.51.100.3 to 203.0.113.9", mtu=1500,
                peer_address="203.0.113.9:3306", local_address="198.51.100.3:40000",
            ),
            first_request_ns=86_000 * US,
            request=latencies("SELECT 1", 85_100, 45, 0.005),
            ping=latencies("COM_PING", 85_000, 9, 0.001),
            network_ns=84_600 * US,
        )
    )  # fmt: skip


def silent() -> Distance:
    """A server that never answers: packets to it are dropped."""
    return Distance(
        target="mysql://app@db.internal:3306/shop",
        began="2026-11-28T12:00:00.000+00:00",
        product=None,
        place="at db.internal:3306",
        name=Name(took_ns=900 * US, addresses=(Address(address="10.0.4.17", state="used"),)),
        failure=Failure(
            step="connect", code="connect", message="db.internal:3306 does not answer: 5 SYNs in 5.0 s, no refusal",
            advice="A closed port refuses at once: a firewall drops the packets, or the host is down.",
            waited_ns=5_000_000_000, syn_count=5,
        ),
    )  # fmt: skip
