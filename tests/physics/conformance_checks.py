"""The checks of the conformance suite: they compare traffic over a link with the request and with physical limits.

Each is a function of a running link that returns whether its observation is right, and the observation. A random quantity must be in
the interval that contains it in 999 of 1000 cases.
"""

from __future__ import annotations

import contextlib
import socket
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from scipy.stats import binom, chi2

from howfar.bench.links import probes
from howfar.bench.links.probes import Datagrams, udp_errors
from howfar.contract.receipt import TcpSettings
from howfar.contract.violation import sentences
from howfar.lab.link import Link, LinkSpec
from howfar.lab.link.receipt import RUN_LIMITS, link_receipt
from howfar.lab.link.settings import apply_setting
from howfar.lab.network import CLIENT_ADDRESS, SERVER_ADDRESS
from howfar.plan.quantities import rtt_tolerance_ns

FRAME_BYTES = 28 + 38
"""Bytes on the wire that UDP over IPv4 over Ethernet adds to its payload."""


def datagrams(link: Link) -> AbstractContextManager[Datagrams]:
    return probes.datagrams(link.network.client, link.network.server)


@contextmanager
def stream(link: Link) -> Iterator[tuple[socket.socket, socket.socket]]:
    """A TCP connection over the link: the client's socket and the server's."""
    listener = link.network.server.run(lambda: socket.create_server((SERVER_ADDRESS, 0)))
    address = listener.getsockname()

    def connect() -> socket.socket:
        client = socket.create_connection(address, timeout=60, source_address=(CLIENT_ADDRESS, 0))
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return client

    client = link.network.client.run(connect)
    server, _ = listener.accept()
    server.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    server.settimeout(60)
    try:
        yield client, server
    finally:
        for each in (client, server, listener):
            with contextlib.suppress(OSError):
                each.close()


_MS = 1_000_000
_P_VALUE = 0.001
Observation = tuple[bool, dict[str, Any]]


@dataclass(frozen=True)
class Check:
    name: str
    options: tuple[str, ...]
    """The link's options."""
    observe: Callable[[Link], Observation]
    calibrated: bool = False
    burst: bool = True
    """Whether the check also applies to a back-end that lets a burst through at any speed."""

    def spec(self) -> LinkSpec:
        spec = LinkSpec(rtt_ns=0, rate_bps=None)
        for option in self.options:
            word, _, value = option.partition(" ")
            spec = apply_setting(spec, word, value)
        return spec


def is_plausible(count: int, total: int, share: float) -> bool:
    """Whether `count` of `total` is plausible for a probability of `share`."""
    low, high = binom.interval(1 - _P_VALUE, total, share)
    return bool(low <= count <= high)


def bytes_cross(link: Link) -> Observation:
    """A stream of bytes arrives unchanged."""
    sent = bytes(range(256)) * 4096
    with stream(link) as (client, server):
        writer = threading.Thread(target=client.sendall, args=(sent,))
        writer.start()
        got = b""
        while len(got) < len(sent):
            got += server.recv(1 << 20)
        writer.join()
    return got == sent, {"bytes": len(got)}


def round_trips(link: Link) -> Observation:
    """n successive round trips take at least n RTTs, and their median is hardly more than an RTT."""
    rtt_ns, times = link.rest_rtt_ns(link.spec), []

    with stream(link) as (client, server):

        def echo() -> None:
            while data := server.recv(1):
                server.sendall(data)

        answering = threading.Thread(target=echo)
        answering.start()
        for _ in range(30):
            start_ns = time.monotonic_ns()
            client.sendall(b"x")
            client.recv(1)
            times.append(time.monotonic_ns() - start_ns)
        client.close()
        answering.join()
    p50, allowed = statistics.median(times), rtt_tolerance_ns(link.spec.rtt_ns)
    # Calibration subtracts the mean time of wake-ups, so a round trip without a wake-up may be early by that much.
    long_enough = sum(times) >= len(times) * (rtt_ns - allowed)
    return long_enough and p50 <= rtt_ns + 3 * allowed, {"rtt_ns": rtt_ns, "p50_ns": p50, "total_ns": sum(times)}


def slow_round_trips(link: Link) -> Observation:
    """`round_trips` on a link on which a ping's bytes take 1.46 ms, which the link's receipt must not report as a violation."""
    right, facts = round_trips(link)
    violations = sentences(link_receipt(link, link.measure_rtt_at_rest(), None, TcpSettings()).violations(RUN_LIMITS))
    return right and not violations, {**facts, "violations": violations}


def known_rate(link: Link) -> Observation:
    """B bytes take at least B / rate, and once the window is open the goodput is the rate without the framing."""
    rate_bps = link.spec.mean_rate_bps("to_server")
    assert rate_bps is not None
    size, arrived = 6 * 2**20, []
    with stream(link) as (client, server):
        start_ns = time.monotonic_ns()
        writer = threading.Thread(target=client.sendall, args=(b"\0" * size,))
        writer.start()
        total = 0
        while total < size:
            total += len(server.recv(1 << 16))
            arrived.append((time.monotonic_ns() - start_ns, total))
        writer.join()
    burst = 0 if link.backend == "packet" else 2 * 128 * 1024
    min_ns = (size - burst) * 8 * 10**9 // rate_bps
    (from_ns, from_bytes), (to_ns, to_bytes) = arrived[len(arrived) // 4], arrived[-1]
    goodput = (to_bytes - from_bytes) * 8 * 1e9 / (to_ns - from_ns)
    expected = link.spec.expected_goodput_bps("to_server")
    assert expected is not None
    facts = {"took_ns": to_ns, "min_ns": min_ns, "of_expected": goodput / expected}
    return to_ns >= min_ns and abs(goodput / expected - 1) <= 0.02, facts


def known_queue(link: Link) -> Observation:
    """Of a burst larger than the queue, the queue's limit, a packet on the wire, and the packets sent during the burst arrive."""
    payload, count = 1000, 200
    limit, rate_bps = link.spec.queue_bytes("to_server"), link.spec.mean_rate_bps("to_server")
    assert rate_bps is not None
    wire = payload + FRAME_BYTES
    with datagrams(link) as udp:
        start_ns = time.monotonic_ns()
        udp.send_all(count, payload, batch_size=count)
        sent_bytes = (time.monotonic_ns() - start_ns) * rate_bps / 8e9
        arrived = len(udp.finish(limit * 8 / rate_bps + 0.1).numbers)
    facts = {"arrived_bytes": arrived * wire, "limit_bytes": limit, "sent_during_burst_bytes": sent_bytes}
    return limit - wire <= arrived * wire <= limit + 2 * wire + sent_bytes, facts


def known_loss(link: Link) -> Observation:
    count = 4000
    with datagrams(link) as udp:
        udp.send_all(count)
        seen = udp.finish(0.0)
    lost = count - len(set(seen.numbers))
    facts = {"lost": lost, "of": count, "receiver_full": udp_errors(link.network.server)["RcvbufErrors"]}
    return is_plausible(lost, count, 0.1), facts


def known_bursts(link: Link) -> Observation:
    """Runs of losses have the requested mean length. The length is geometrically distributed, so its deviation is known."""
    count, length = 8000, 8.0
    with datagrams(link) as udp:
        udp.send_all(count)
        arrived = set(udp.finish(0.0).numbers)
    runs = [len(list(run)) for lost, run in groupby(range(count), key=lambda number: number not in arrived) if lost]
    lost, mean = sum(runs), statistics.mean(runs) if runs else 0.0
    deviation = (length * (length - 1) / max(len(runs), 1)) ** 0.5
    # Bursts of losses vary more than single losses: the share's deviation is larger by the root of about twice their length.
    share_off = abs(lost / count - 0.1) / (0.1 * 0.9 * 2 * length / count) ** 0.5
    facts = {"bursts": len(runs), "mean_length": mean, "allowed": 3.3 * deviation, "lost": lost, "of": count}
    return abs(mean - length) <= 3.3 * deviation and share_off <= 3.3, facts


def known_duplicates(link: Link) -> Observation:
    count = 2000
    with datagrams(link) as udp:
        udp.send_all(count)
        seen = udp.finish(0.0)
    twice = len(seen.numbers) - len(set(seen.numbers))
    return is_plausible(twice, count, 0.2) and len(set(seen.numbers)) == count, {"twice": twice, "of": count}


def known_corruption(link: Link) -> Observation:
    """The receiving kernel detects each corrupted packet by its checksum."""
    count = 2000
    before = udp_errors(link.network.server)
    with datagrams(link) as udp:
        udp.send_all(count)
        seen = udp.finish(0.0)
    after = udp_errors(link.network.server)
    errors, missing = after["InCsumErrors"] - before["InCsumErrors"], count - len(seen.numbers)
    facts = {"checksum_errors": errors, "missing": missing, "of": count}
    return is_plausible(errors, count, 0.2) and missing == errors, facts


def known_outage(link: Link) -> Observation:
    """The link is down from 200 ms to 500 ms: exactly the packets sent then are lost."""
    link.start_effects()
    start_ns = time.monotonic_ns()
    with datagrams(link) as udp:
        number, sent = 0, []
        while (now_ns := time.monotonic_ns() - start_ns) < 700 * _MS:
            sent.append(now_ns)
            udp.send(number, 100)
            number += 1
            time.sleep(0.002)
        arrived = set(udp.finish(0.0).numbers)
    lost = [at_ns for number, at_ns in enumerate(sent) if number not in arrived]
    edge_ns = 25 * _MS
    inside = [at_ns for at_ns in sent if 200 * _MS + edge_ns <= at_ns <= 500 * _MS - edge_ns]
    right = all(200 * _MS - edge_ns <= at_ns <= 500 * _MS + edge_ns for at_ns in lost)
    facts = {
        "lost": len(lost),
        "sent": len(sent),
        "from_ms": min(lost, default=0) / 1e6,
        "to_ms": max(lost, default=0) / 1e6,
    }
    return right and len(inside) > 20 and set(inside) <= set(lost), facts


def known_jitter(link: Link) -> Observation:
    """The one-way delay has the requested mean and deviation."""
    count, deviation_ns = 800, 2 * _MS
    with datagrams(link) as udp:
        for number in range(count):
            udp.send(number, 100)
            time.sleep(0.001)
        seen = udp.finish(0.0)
    mean_error_ns = statistics.mean(seen.one_way_ns) - link.spec.delay_ns("to_server")
    got = statistics.stdev(seen.one_way_ns) if len(seen.one_way_ns) > 1 else 0.0
    low, high = ((chi2.ppf(p, count - 1) / (count - 1)) ** 0.5 for p in (_P_VALUE / 2, 1 - _P_VALUE / 2))
    facts = {
        "mean_error_ns": mean_error_ns,
        "deviation_ns": got,
        "requested_ns": deviation_ns,
        "arrived": len(seen.numbers),
    }
    # On a busy machine the sender may have 0.2 ms between its timestamp and its packet.
    mean_right = abs(mean_error_ns) <= 3.3 * deviation_ns / count**0.5 + _MS / 5
    return len(seen.numbers) == count and mean_right and low <= got / deviation_ns <= high * 1.02, facts


def live_change(link: Link) -> Observation:
    """The RTT changes from 10 ms to 30 ms during traffic: no packet is lost, and packets have the delay of their time."""
    link.start_effects()
    start_ns = time.monotonic_ns()
    longer, changed_ns, number = apply_setting(link.spec, "rtt", "30ms"), 0, 0
    with datagrams(link) as udp:
        while (now_ns := time.monotonic_ns() - start_ns) < 400 * _MS:
            if now_ns > 200 * _MS and not changed_ns:
                link.change(longer, now_ns)
                changed_ns = time.time_ns()
            udp.send(number, 100)
            number += 1
            time.sleep(0.001)
        seen = udp.finish(0.0)
    edge_ns = 20 * _MS
    pairs = list(zip(seen.sent_at_ns, seen.one_way_ns, strict=True))
    before = [one_way_ns for sent, one_way_ns in pairs if sent < changed_ns - edge_ns]
    after = [one_way_ns for sent, one_way_ns in pairs if sent > changed_ns + edge_ns]
    delays_ns = statistics.median(before or [0]), statistics.median(after or [0])
    facts = {
        "sent": number,
        "arrived": len(seen.numbers),
        "before_ms": delays_ns[0] / 1e6,
        "after_ms": delays_ns[1] / 1e6,
    }
    right = abs(delays_ns[0] - 5 * _MS) <= _MS and abs(delays_ns[1] - 15 * _MS) <= _MS
    return right and sorted(seen.numbers) == list(range(number)), facts


CHECKS = {
    check.name: check
    for check in (
        Check("bytes", (), bytes_cross),
        Check("round-trips", ("rtt 20ms",), round_trips, calibrated=True),
        Check("slow-round-trips", ("rtt 10ms", "rate 1mbit"), slow_round_trips, calibrated=True),
        Check("rate", ("rate 100mbit",), known_rate),
        Check("queue", ("rate 1mbit", "queue 64KiB"), known_queue, burst=False),
        Check("loss", ("loss to-server:10%",), known_loss),
        Check("bursts", ("loss to-server:10%", "loss-burst to-server:8"), known_bursts),
        Check("duplicates", ("duplicate to-server:20%",), known_duplicates),
        Check("corruption", ("corrupt to-server:20%",), known_corruption),
        Check("outage", ("outage to-server:200ms:300ms",), known_outage),
        Check("jitter", ("rtt 20ms", "jitter to-server:2ms", "reorder to-server:on"), known_jitter),
        Check("live-change", ("rtt 10ms",), live_change),
    )
}
