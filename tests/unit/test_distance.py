"""The parts of a measurement of one server: percentiles, who answers, which path, limits, pages."""

from __future__ import annotations

import json
import math
import random
import socket
import statistics
import threading
import time
from itertools import pairwise
from types import SimpleNamespace
from typing import Any, Literal, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit import made_distance

from howfar.contract.messages import Asked, Opened
from howfar.distance import requests
from howfar.distance.limits import METRICS, judge, parse_limit
from howfar.distance.meaning import PAGE_REQUESTS, add_meaning, named_rtts
from howfar.distance.path import endpoint_host, path_facts
from howfar.distance.record import (
    MAX_CONNECTS,
    MAX_COUNT,
    MAX_REQUESTS,
    Latencies,
    percentile,
    percentile_interval,
    supports_percentile,
)
from howfar.distance.requests import Identity, identify
from howfar.distance.resolve import NameFailed, look_up_name
from howfar.doctor.peer_location import PeerFact, PeerLocation
from howfar.doctor.procfs import Process
from howfar.engine.process import parse_event
from howfar.errors import UsageError
from howfar.services import ServiceName

# ---------------------------------------------------------------- percentiles


@given(st.lists(st.integers(1, 10**9), min_size=1, max_size=400), st.sampled_from([0.5, 0.95, 0.99]))
def test_a_percentile_is_a_sample_that_so_many_do_not_exceed(samples: list[int], share: float) -> None:
    ordered = sorted(samples)
    found = percentile(ordered, share)
    assert found in ordered
    assert sum(one <= found for one in ordered) >= share * len(ordered)
    assert sum(one < found for one in ordered) < share * len(ordered) + 1e-9


def test_a_percentile_needs_three_samples_beyond_it() -> None:
    assert [supports_percentile(count, 0.95) for count in (59, 60)] == [False, True]
    assert [supports_percentile(count, 0.99) for count in (299, 300)] == [False, True]
    few = Latencies.from_samples("x", range(1, 60))
    assert (few.p95_ns, few.p99_ns) == (None, None)
    many = Latencies.from_samples("x", range(1, 321))
    assert (many.p50_ns, many.p95_ns, many.p99_ns) == (160, 304, 317)


@pytest.mark.parametrize("share", [0.5, 0.95])
def test_an_interval_of_a_percentile_holds_it_as_often_as_it_says(share: float) -> None:
    """Exponential samples; over 2000 draws, a coverage of 95 % has a standard error of half a percent."""
    generator = random.Random(7)
    truth = -math.log(1 - share) * 1e6
    held = 0
    for _ in range(2000):
        found = percentile_interval(sorted(round(generator.expovariate(1e-6)) for _ in range(120)), share)
        assert found[0] is not None and found[1] is not None
        held += found[0] <= truth <= found[1]
    assert 0.94 <= held / 2000 <= 0.985


def test_too_few_samples_bound_a_percentile_on_one_side_or_none() -> None:
    assert percentile_interval([1, 2, 3, 4, 5], 0.5) == (None, None)
    assert percentile_interval(list(range(6)), 0.5) == (0, 5)
    low, high = percentile_interval(list(range(320)), 0.99)
    assert low is not None and low < 317 and high is None, "368 samples bound p99 from above"


# ---------------------------------------------------------------- who answers


@pytest.mark.parametrize(
    ("version", "comment", "product"),
    [
        ("10.11.19-MariaDB-0+deb12u1", "Debian 12", "MariaDB 10.11.19"),
        ("8.4.6", "MySQL Community Server - GPL", "MySQL 8.4.6"),
        ("8.0.36-28", "Percona Server (GPL)", "Percona Server 8.0.36"),
    ],
)
def test_a_mysql_server_has_the_name_of_its_maker(version: str, comment: str, product: str) -> None:
    answer = [["7", version, comment, "/run/mysqld/mysqld.sock", "app1:40000"]]
    found = identify("mysql", [answer])
    assert (found.product, found.connection_id, found.socket) == (product, 7, "/run/mysqld/mysqld.sock")
    assert found.client_address == "app1:40000"


def test_other_servers_say_who_they_are() -> None:
    postgres = identify(
        "postgresql", [[["4711", "15.18 (Debian 15.18-0+deb12u1)", "10.0.0.1", "40000", "10.0.0.2", "5432"]]]
    )
    assert postgres == Identity(
        product="PostgreSQL 15.18", connection_id=4711, client_address="10.0.0.1:40000", server_address="10.0.0.2:5432"
    )
    redis = identify(
        "redis",
        [[["# Server\r\nredis_version:7.2.4\r\nvalkey_version:8.0.1"]], [["id=3 addr=[::1]:40000 laddr=[::1]:6379"]]],
    )
    assert (redis.product, redis.connection_id, redis.client_address) == ("Valkey 8.0.1", 3, "[::1]:40000")
    assert identify("redis", [[["redis_version:7.0.15"]], [["id=3 addr=/run/redis.sock:0"]]]).is_by_socket
    assert identify("memcached", [[["VERSION 1.6.18"]]]).product == "Memcached 1.6.18"


@given(
    st.sampled_from(["mysql", "postgresql", "redis", "memcached"]),
    st.lists(st.lists(st.lists(st.one_of(st.none(), st.text(max_size=30)), max_size=7), max_size=3), max_size=3),
)
def test_a_server_may_answer_anything(service: ServiceName, answers: list[list[list[str | None]]]) -> None:
    assert isinstance(identify(service, answers), Identity)


# ---------------------------------------------------------------- which path


def opened(
    local: str | None = "10.0.7.3:40000", peer: str = "10.0.4.17:3306", number: int | None = 7, pid: int | None = None
) -> Opened:
    return Opened(
        steps=(), address_family="unix" if local is None else "inet", local_address=local, peer_address=peer, peer_pid=pid,
        server_version="x", connection_id=number, auth_method="none", tls_version=None, tls_cipher=None, tls_group=None,
        tls_resumed=False, handshake_rtt_ns=None, syn_retransmits=None, path_mtu=None,
    )  # fmt: skip


def located(
    here: bool | None = False, same: bool | None = None, listener: str | None = None, translated: bool = False
) -> PeerLocation:
    process = None if listener is None else Process(pid=9, name=listener, uid=0, parent=1, arguments=(listener,))
    passed_on: Literal["forwarder", "translation"] | None = (
        "translation" if translated else "forwarder" if listener else None
    )
    return PeerLocation(PeerFact(here, "x"), PeerFact(same, "y"), process, f"{listener} (pid 9)", passed_on)


def between(one: Opened, identity: Identity, query_us: float = 100, ping_us: float = 90) -> list[str | None]:
    return [
        fact.what
        for fact in path_facts(
            one, located(), identity, [round(query_us * 1000)] * 9, [round(ping_us * 1000)] * 9
        ).between
    ]


@pytest.mark.parametrize(
    ("one", "identity", "what"),
    [
        (opened(), Identity(connection_id=7, client_address="10.0.7.3:40000"), []),
        (opened(), Identity(), []),
        (opened(), Identity(connection_id=8), ["a pooler or proxy"]),
        (opened(), Identity(client_address="10.0.9.9:51515"), ["a proxy or NAT"]),
        (opened(), Identity(client_address="10.0.9.9:40000"), ["NAT"]),
        (opened(), Identity(client_address="app1.example:40000"), []),
        (opened(), Identity(client_address="[::ffff:10.0.7.3]:40000"), []),
        (opened(), Identity(is_by_socket=True), ["a proxy"]),
        (opened(), Identity(server_address="172.17.0.2:3306"), ["a proxy or NAT"]),
        (opened(), Identity(proxy_name="ProxySQL"), ["ProxySQL"]),
        (opened(local=None, peer="/s"), Identity(is_by_socket=True), []),
        (opened(local=None, peer="/s"), Identity(client_address="127.0.0.1:40000"), ["a forwarder"]),
    ],
)
def test_what_is_between_shows_itself(one: Opened, identity: Identity, what: list[str]) -> None:
    assert between(one, identity) == what


def test_pings_that_are_much_quicker_than_requests_are_named() -> None:
    assert between(opened(), Identity(), query_us=3_000, ping_us=30) == [None]
    assert between(opened(), Identity(), query_us=60, ping_us=20) == [], "a statement costs some microseconds anywhere"


@pytest.mark.parametrize(
    ("one", "location", "kind"),
    [
        (opened("127.0.0.1:40000", "127.0.0.1:3306"), located(True, True), "loopback"),
        (opened("[::1]:40000", "[::1]:3306"), located(True, None), "loopback"),
        (opened("127.0.0.1:40000", "127.0.0.1:3306"), located(True, False, translated=True), "passed_on"),
        (opened("10.0.7.3:40000", "10.0.7.3:3306"), located(True, True), "this_machine"),
        (opened(), located(False), "other_machine"),
        (opened(), located(None), "unknown"),
        (opened("[fe80::1%2]:40000", "[fe80::2%2]:3306"), located(False), "other_machine"),
        (opened(None, "/s", pid=7), located(True, True), "socket"),
    ],
)
def test_the_kind_of_path_follows_from_both_ends(one: Opened, location: PeerLocation, kind: str) -> None:
    assert path_facts(one, location, Identity(), [], []).kind == kind


def test_a_forwarder_that_listens_is_named() -> None:
    facts = path_facts(opened(), located(True, True, "docker-proxy"), Identity(), [], [])
    assert [fact.what for fact in facts.between] == ["docker-proxy"]


def test_hosts_are_compared_without_what_only_writing_adds() -> None:
    assert endpoint_host("[::ffff:10.0.0.1]:80") == endpoint_host("10.0.0.1:80") == "10.0.0.1"
    assert endpoint_host("[fe80::1%eth0]:80") == "fe80::1"


# ---------------------------------------------------------------- interpretation


def test_a_page_waits_for_the_mean_of_its_requests_and_once_for_its_connection() -> None:
    distance = made_distance.remote()
    assert distance.request is not None and distance.connection is not None and distance.name is not None
    mean, opening = distance.request.mean_ns, distance.connection.took_ns + distance.name.took_ns
    for page, count in zip(distance.pages, PAGE_REQUESTS, strict=True):
        assert (page.kept_ns, page.new_ns) == (count * mean, count * mean + opening)
    for other in distance.elsewhere:
        assert other.rtt_ns is not None and distance.network_ns is not None
        assert other.kept_ns == tuple(count * (mean - distance.network_ns + other.rtt_ns) for count in PAGE_REQUESTS)


def test_light_goes_200_km_of_fibre_in_a_millisecond() -> None:
    assert made_distance.remote().light_km == pytest.approx(0.35 / 2 * 200)
    assert made_distance.socket().light_km is None
    assert made_distance.pooler().light_km is None, "on the loopback there is no distance"


def test_the_named_links_are_in_the_order_of_distance() -> None:
    rtts = [rtt for _, rtt in named_rtts()]
    assert rtts == sorted(rtts) and rtts[0] > 0


def test_by_its_socket_a_request_takes_what_tcp_costs_less() -> None:
    plain = made_distance.pooler()
    other = add_meaning(plain, 8_000).elsewhere[0]
    assert plain.request is not None
    assert other.rtt_ns is None and other.kept_ns[1] == 60 * (plain.request.mean_ns - 8_000)
    most = add_meaning(plain, 10**9).elsewhere[0]
    assert most.kept_ns[1] == 60 * (plain.request.mean_ns - (plain.network_ns or 0)), "TCP costs no more than it does"


def test_the_documented_bounds_hold_for_what_is_sent() -> None:
    from howfar.distance import measure

    others = (
        1 + measure._PROBE_COUNT + max(len(one.identity) + (one.bulk is not None) for one in requests.REQUESTS.values())
    )
    assert MAX_COUNT + others <= MAX_REQUESTS
    for one in (measure._NEAR_ROUND, measure._FAR_ROUND):
        assert (one.requests + 1) * one.max_rounds <= MAX_COUNT
    pings = math.ceil(measure._MIN_P95_COUNT / measure._FAR_ROUND.requests)
    assert pings >= 6, "with a p95 of the requests there is a median of the pings"
    assert measure.NEAR_CONNECTS <= MAX_CONNECTS


@given(st.text(), st.text(min_size=1))
def test_what_a_server_says_of_an_error_is_one_line_that_does_not_act(message: str, refusal: str) -> None:
    failed = {"event": "failed", "code": "server_error", "message": message, "advice": "a\nb"}
    asked = {"event": "asked", "began_ns": 1, "late_ns": 0, "latencies_ns": [[1]], "refusals": [refusal, None], "lost": failed,
             "min_rtt_ns": None, "retransmits": None}  # fmt: skip
    read = parse_event(json.dumps(asked))
    assert isinstance(read, Asked) and read.lost is not None and read.refusals[0] is not None
    assert all(
        one.isprintable() or one == "\u00a0" for one in (read.lost.message + read.refusals[0]).replace("\u3000", "")
    )
    assert read.lost.advice == "a\nb", "that is howfar's own"


class _Session:
    """A server whose answers to requests and pings take `each_ns`; the first two take five times that."""

    def __init__(self, each_ns: int) -> None:
        self.sent: list[tuple[str, ...]] = []
        self._each_ns = each_ns

    def ask(self, turn: list[tuple[str, ...]], rounds: int, within_ns: int) -> Asked:
        latencies: list[list[int]] = [[] for _ in turn]
        spent = 0
        for number in range(rounds):
            if number and spent > within_ns:
                break
            for one, words in zip(latencies, turn, strict=True):
                one.append(self._each_ns * (5 if len(self.sent) < 2 else 1))
                self.sent.append(words)
                spent += one[-1]
        return Asked(
            began_ns=0, late_ns=0, latencies_ns=tuple(map(tuple, latencies)), refusals=(None,) * len(turn), lost=None,
            min_rtt_ns=None, retransmits=None,
        )  # fmt: skip


@given(st.integers(10_000, 300_000_000), st.sampled_from([1, 6, 72, 368]))
def test_pings_go_in_turn_with_the_requests_that_they_are_compared_with(each_ns: int, least: int) -> None:
    from howfar.distance.measure import _PROBE_COUNT, MeasurementOptions, _Measurement

    session = _Session(each_ns)
    server: Any = SimpleNamespace(service="mysql")
    doing = _Measurement(
        server, MeasurementOptions(min_count=least), cast(Any, session), time.monotonic(), made_distance.silent()
    )
    samples = doing._send_requests()
    assert len(session.sent) <= _PROBE_COUNT + MAX_COUNT and len(samples.query) >= least
    if samples.ping:
        assert statistics.median(samples.ping) == statistics.median(samples.query) == each_ns
        assert len(samples.query) in (2 * len(samples.ping), 5 * len(samples.ping))
        places = [at for at, words in enumerate(session.sent) if words == ()]
        assert max(after - before for before, after in pairwise(places)) <= 6 if len(places) > 1 else True


# ---------------------------------------------------------------- limits


@pytest.mark.parametrize(
    ("text", "verdict"),
    [
        ("p50>1ms", "passed"),
        ("p50>0.1ms", "crossed"),
        ("p50 >= 420us", "undecided"),
        ("network>0.3ms", "crossed"),
        ("connect>1s", "passed"),
        ("page60>1s", "passed"),
        ("page200>10ms", "crossed"),
        ("p99>50ms", "undecided"),
        ("p99>0.45ms", "crossed"),
    ],
)
def test_a_limit_is_crossed_only_with_its_whole_interval(text: str, verdict: str) -> None:
    assert judge(parse_limit(text), made_distance.remote()).verdict == verdict


def test_a_figure_that_was_not_measured_decides_nothing() -> None:
    assert {judge(parse_limit(f"{metric}>1ms"), made_distance.silent()).verdict for metric in METRICS} == {
        "undecided",
        "passed",
    }
    assert judge(parse_limit("p95>1ms"), made_distance.far()).verdict == "undecided", "45 requests have no p95"


def test_a_limit_that_fails_below_is_refused_with_what_was_meant() -> None:
    for text in ("p50<1ms", "p50 <= 1ms"):
        with pytest.raises(UsageError) as refused:
            parse_limit(text)
        assert "p50>1ms" in refused.value.advice


@pytest.mark.parametrize("metric", METRICS)
def test_the_least_count_is_the_first_with_which_a_limit_can_be_passed(metric: str) -> None:
    limit = parse_limit(f"{metric}>1s")

    def verdict(count: int) -> str:
        return judge(
            limit, made_distance.remote().model_copy(update={"request": Latencies.from_samples("x", [1] * count)})
        ).verdict

    assert limit.min_count <= MAX_COUNT
    if metric in ("p50", "p95", "p99"):
        assert [verdict(limit.min_count - 1), verdict(limit.min_count)] == ["undecided", "passed"]
    assert parse_limit("p99>1s").min_count == 368


@pytest.mark.parametrize("text", ["p96>1ms", "p95", "p95>1", "p95>>1ms", ">1ms", "p95>fast", ""])
def test_a_limit_that_cannot_be_read_is_refused_with_what_can(text: str) -> None:
    with pytest.raises(UsageError) as refused:
        parse_limit(text)
    assert "--fail-if" in refused.value.message and refused.value.advice


# ---------------------------------------------------------------- names


def test_a_name_is_looked_up_with_its_time() -> None:
    took_ns, addresses = look_up_name("localhost", 3306, 5)
    assert took_ns > 0 and set(addresses) <= {"127.0.0.1", "::1"} and addresses


@pytest.mark.parametrize("name", ["no-such-host.invalid", "a..b", "x" * 70 + ".invalid"])
def test_a_name_that_is_not_known_is_a_failure_of_its_own(name: str) -> None:
    with pytest.raises(NameFailed, match="is not known"):
        look_up_name(name, 3306, 5)


def test_a_resolver_that_does_not_answer_costs_its_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    over = threading.Event()
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: [] if over.wait(60) else None)
    with pytest.raises(NameFailed, match=r"within 0\.05 s"):
        look_up_name("db.internal", 3306, 0.05)
    over.set()
