"""Made-up findings of the doctor: one server, its clients and floors."""

from __future__ import annotations

from howfar.doctor.checks import Context, run_checks
from howfar.doctor.findings import (
    Client,
    Finding,
    IdleCost,
    Kind,
    Listener,
    MinimumLatency,
    Rates,
    Server,
    SocketFile,
    Transport,
)
from howfar.doctor.minimum_latency import make_median

SOCKET = Listener(
    path="/run/s.sock", host=None, port=None, tls="none",
    file=SocketFile(mode=0o777, owner="x", group="x", who="every account"), state="works",
)  # fmt: skip
PORT = Listener(path=None, host="127.0.0.1", port=3306, tls="none", file=None, state="works")


def client(**changes: object) -> Client:
    made = Client(
        program="php-fpm8.2", pids=(7,), user="www-data", local=True, address=None, by="tcp", connections=1, connects_seen=1,
        tls=False, compressed=False, may_use_socket=True, bundle_looks=0, bundle_reads=0, bundle_connects=0,
    )  # fmt: skip
    return made.model_copy(update=changes)


def floor(transport: Transport, trip: float, connect: float) -> MinimumLatency:
    return MinimumLatency(
        transport=transport, where="x", pings_per_round=15, round_trip_ns=make_median([trip] * 24),
        connect_ns=make_median([connect] * 24), round_trips_ns=(trip,) * 24, connects_ns=(connect,) * 24,
    )  # fmt: skip


def server(*clients: Client, **changes: object) -> Server:
    made = Server(
        kind=Kind.MYSQL, name="MariaDB 10.11.19", pid=1, user="mysql", named=False, logged_in=True, listeners=(SOCKET, PORT),
        listeners_complete=True,
        tls="none", compression="zlib", config_file=None, socket_connections=0, rates=Rates(connects=0, statements=0, tls_connects=0),
        clients=clients, floors=(floor(Transport.SOCKET, 20e3, 150e3), floor(Transport.TCP, 26e3, 220e3)),
        idle=None, bundle_ns=None, ignored=(),
        findings=(), unseen=(),
    )  # fmt: skip
    return made.model_copy(update=changes)


def looked(seen: Server, path: str = "/run/own/s.sock") -> tuple[Finding, ...]:
    return run_checks(Context(seen, (), samples=100, watched_s=1.0, free_path=path))


def found(seen: Server) -> set[str]:
    return {finding.check for finding in looked(seen)}


def idle(as_found_ns: float, polling_ns: float, noise_ns: float = 100) -> IdleCost:
    rounds = [as_found_ns - polling_ns + noise_ns * (number % 5 - 2) for number in range(24)]
    return IdleCost(
        transport=Transport.SOCKET, as_found=make_median([as_found_ns] * 24), polling=make_median([polling_ns] * 24),
        waking=make_median(rounds), driver="haltpoll", governor="haltpoll",
    )  # fmt: skip
