"""Observations around a measured window: parsers on recorded text, and counters that never shrink."""

from __future__ import annotations

import os
import socket
import struct
import time
from collections.abc import Mapping
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from howfar.errors import ServerCrashed
from howfar.lab import window as window_tcp
from howfar.lab.environment import WRITE_SIZES, measure_fsync_ns
from howfar.lab.network import Host
from howfar.lab.window import (
    ConnectionCounts,
    LabWindowWatch,
    SocketDiag,
    ThreadClocks,
    WatchTargets,
    busy_shares,
    last_cpu,
    parse_connections,
    server_growth,
    share_to_server,
    tcp_record,
)
from howfar.lab.window_network import (
    NetworkReading,
    ProcFile,
    Traffic,
    count_frames,
    network_samples,
    parse_segments,
    parse_timeouts,
    parse_traffic,
)

_DEV = """Inter-|   Receive                                                |  Transmit
 face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets errs drop fifo colls carrier compressed
    lo: 3000 {4} 0    0    0     0          0         0 3000 {4} 0    0    0     0       0          0
    s0:{0} {1}    0    0    0     0          0         0 {2} {3}    0    0    0     0       0          0
"""
_SNMP = """Ip: Forwarding DefaultTTL
Ip: 2 64
Tcp: RtoAlgorithm RtoMin RtoMax MaxConn ActiveOpens InSegs OutSegs RetransSegs InErrs OutRsts InCsumErrors
Tcp: 1 200 120000 -1 16 21 {} {} 0 5 0
"""
_HERE = Host("here", None)


def _dev(received: tuple[int, int], sent: tuple[int, int], looped: int = 30) -> bytes:
    """`/proc/net/dev` with these counters; `looped`: packets over the loopback."""
    return _DEV.format(*received, *sent, looped).encode()


def _snmp(sent: int, again: int) -> bytes:
    return _SNMP.format(sent, again).encode()


def test_an_interface_is_found_also_where_no_space_follows_its_name() -> None:
    assert parse_traffic(_dev((123456789, 17), (5, 1)), "s0") == Traffic(123456789, 17, 5, 1)
    assert parse_traffic(_dev((1, 1), (1, 1)), "s") is None


def test_segments_include_those_sent_again() -> None:
    assert parse_segments(_snmp(100, 7)).sent == 107
    assert parse_segments(b"Ip: Forwarding\nIp: 2\n").sent == 0


def test_timers_that_ran_out_are_told_where_the_kernel_counts_them() -> None:
    netstat = b"TcpExt: SyncookiesSent TCPTimeouts TCPSpuriousRTOs\nTcpExt: 3 17 1\nIpExt: InNoRoutes\nIpExt: 0\n"
    assert parse_timeouts(netstat) == 17
    assert parse_timeouts(b"TcpExt: SyncookiesSent\nTcpExt: 3\n") is None
    here = ProcFile(Path("/proc/self/net/netstat"))
    assert parse_timeouts(here.read()) is not None, "of this kernel"
    here.close()


def test_a_super_packet_counts_as_the_frames_that_a_card_would_send() -> None:
    payload, frames = 44 * 1448, 44
    full = payload + frames * 66
    assert count_frames(payload + 66, 1, frames) == (full, frames)
    assert count_frames(full, frames, 0) == (full, frames), "what is no segment of TCP's is still a frame"


_STEP = st.tuples(*[st.integers(0, 50)] * 6)


def _looks(steps: list[tuple[int, ...]]) -> list[NetworkReading]:
    """Looks at counters that grow by each step: packets and super-packets' segments in each direction, retransmitted segments."""
    packets_in = packets_out = client = server = client_again = server_again = 0
    looks = []
    for at, step in enumerate(steps):
        packets_in, packets_out = packets_in + step[0], packets_out + step[1]
        client, server = client + step[2], server + step[3]
        client_again, server_again = client_again + step[4], server_again + step[5]
        dev = _dev((packets_in * 66, packets_in), (packets_out * 1514, packets_out))
        looks.append(
            NetworkReading(
                at * 250_000_000 + 9, dev, _snmp(server, server_again), _snmp(client, client_again), at, 2 * at
            )
        )
    return looks


@given(st.lists(_STEP, min_size=2, max_size=8))
def test_nothing_ever_shrinks(steps: list[tuple[int, ...]]) -> None:
    found = network_samples(_looks(steps), "s0", "ethernet", None)
    assert len(found) == len(steps) - 1
    names = ("at_ns", "to_server_bytes", "to_client_bytes", "to_server_packets", "to_client_packets", "retransmits")
    for name in names:
        row = [0, *(getattr(sample, name) for sample in found)]
        assert row == sorted(row), name
    assert found[0].at_ns == 250_000_000
    assert [sample.to_client_queue_bytes for sample in found] == [2 * at for at in range(1, len(steps))]


@pytest.mark.parametrize(("at_client", "at_server"), [(0, 0), (40, 0), (0, 40), (7, 40)])
def test_segments_that_a_host_sent_to_itself_are_no_frames_of_the_link(at_client: int, at_server: int) -> None:
    """Two super-packets of 10 segments to the server, one of 30 to the client; plus segments to a program on either host."""
    looks = [
        NetworkReading(0, _dev((0, 0), (0, 0)), _snmp(30, 0), _snmp(30, 0), client_dev=_dev((0, 0), (0, 0))),
        NetworkReading(
            1,
            _dev((2 * 7306, 2), (43_506, 1), 30 + at_server),
            _snmp(60 + at_server, 0),
            _snmp(50 + at_client, 0),
            client_dev=_dev((43_506, 1), (2 * 7306, 2), 30 + at_client),
        ),
    ]
    (sample,) = network_samples(looks, "s0", "ethernet", None)
    assert (sample.to_server_packets, sample.to_client_packets) == (20, 30)
    assert (sample.to_server_bytes, sample.to_client_bytes) == (2 * 7306 + 18 * 66, 43_506 + 29 * 66)


@given(st.integers(0, 10**12), st.floats(0, 1))
def test_on_the_loopback_each_byte_is_counted_once(grown: int, share: float) -> None:
    text = "lo: {0} {1} 0 0 0 0 0 0 {0} {1} 0 0 0 0 0 0\n"
    looks = [NetworkReading(0, text.format(7, 1).encode(), _snmp(0, 0), None)]
    looks.append(NetworkReading(1, text.format(7 + grown, 4).encode(), _snmp(9, 2), None))
    (sample,) = network_samples(looks, "lo", "loopback", share)
    assert abs(sample.to_server_bytes + sample.to_client_bytes - grown) <= 1
    assert sample.to_server_packets + sample.to_client_packets == 3
    assert sample.retransmits == 2, "one host's segments are not counted twice"
    assert network_samples(looks, "lo", "loopback", None) == ()


def _info(*, rtt_us: int, busy_us: int, out: int, again: int = 0, acked: int = 0, received: int = 0) -> bytes:
    bytes_ = bytearray(240)
    struct.pack_into("=I", bytes_, 68, rtt_us)
    struct.pack_into("=I", bytes_, 100, again)
    struct.pack_into("=QQIII", bytes_, 120, acked, received, out, out, 0)
    struct.pack_into("=I", bytes_, 148, rtt_us // 2)
    struct.pack_into("=QQQ", bytes_, 168, busy_us, busy_us // 2, 0)
    return bytes(bytes_)


def _message(cookie: int, info: bytes, peer: str = "10.0.0.2") -> bytes:
    """`struct inet_diag_msg` in which an attribute that was not requested precedes the requested one."""
    body = (
        bytes(24)
        + socket.inet_aton(peer)
        + bytes(16)
        + struct.pack("=Q", cookie)
        + bytes(20)
        + struct.pack("=HHB3x", 5, 8, 1)
    )
    body += struct.pack("=HH", 4 + len(info), 2) + info
    return struct.pack("=IHHII", 16 + len(body), 20, 2, 1, 0) + body


_DONE = struct.pack("=IHHIIi", 20, 3, 2, 1, 0, 0)


def test_connections_are_told_over_the_window_only() -> None:
    first = _message(1, _info(rtt_us=100, busy_us=5000, out=50, again=3, acked=10, received=4))
    before = parse_connections((first + _DONE,))
    again = _message(1, _info(rtt_us=300, busy_us=9000, out=80, again=4, acked=1010, received=104))
    new = _message(2, _info(rtt_us=500, busy_us=1000, out=20))
    after = parse_connections((again, new, _DONE))
    found = tcp_record("server", before, after)
    assert found is not None
    assert (found.connections, found.rtt_p50_ns, found.min_rtt_ns) == (2, 400_000, 150_000)
    assert (found.retransmits, found.segments_out) == (1, 50)
    assert (found.busy_ns, found.rwnd_limited_ns, found.sndbuf_limited_ns) == (5_000_000, 2_500_000, 0)
    to_server, to_client = 100 + 66 * 50, 1000 + 66 * 50
    assert share_to_server(before, after) == pytest.approx(to_server / (to_server + to_client))
    assert tcp_record("client", before, {}) is None


def test_a_host_s_connections_with_itself_are_left_out_where_they_are_another_program_s() -> None:
    """A proxy at 127.0.0.1 may have the server's port."""
    info = _info(rtt_us=100, busy_us=5000, out=50)
    peers = ("10.0.0.2", "127.0.0.1", "127.9.8.7", "128.0.0.1")
    answer = (*(_message(cookie, info, peer) for cookie, peer in enumerate(peers)), _DONE)
    assert [cookie[0] for cookie in parse_connections(answer, include_loopback=False)] == [0, 3]
    assert [cookie[0] for cookie in parse_connections(answer)] == [0, 1, 2, 3]


def test_an_older_kernel_tells_less_of_a_connection() -> None:
    old = window_tcp.parse_tcp_info(_info(rtt_us=100, busy_us=5, out=1)[:104])
    assert old == ConnectionCounts(100_000, None, 0, None, None, None, None, None, None, None)
    found = tcp_record("client", {}, {b"1": old})
    assert found is not None and found.busy_ns is None and found.segments_out is None
    assert share_to_server({}, {b"1": old}) is None


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 10**6)), max_size=8), st.integers(0, 2))
def test_a_record_never_shrinks(rows: list[tuple[int, int]], shift: int) -> None:
    def side(times: int) -> dict[bytes, ConnectionCounts]:
        return {
            bytes([key]): window_tcp.parse_tcp_info(_info(rtt_us=9, busy_us=value * times, out=1))
            for key, value in rows
        }

    found = tcp_record("server", side(shift), side(1))
    assert found is None or (found.busy_ns is not None and found.busy_ns >= 0)


def test_the_kernel_tells_of_a_connection_that_is_there() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        with socket.create_connection(("127.0.0.1", port)) as near, listener.accept()[0] as far:
            try:
                diags = [SocketDiag(_HERE, port, "client"), SocketDiag(_HERE, port, "server")]
                before = [parse_connections(diag.query()) for diag in diags]
            except OSError as error:
                pytest.skip(f"no sock_diag here: {error}")
            near.sendall(bytes(1000))
            assert len(far.recv(1000, socket.MSG_WAITALL)) == 1000
            after = [parse_connections(diag.query()) for diag in diags]
            for diag in diags:
                diag.close()
    assert [len(side) for side in before] == [len(side) for side in after] == [1, 1]
    share = share_to_server(before[1], after[1])
    assert share is not None and share > 0.5


def test_cpus_that_worked() -> None:
    before = b"cpu  9 0 0 9 0 0 0 0\ncpu0 100 0 0 50 0 0 0 0\ncpu1 10 5 5 90 0 0 0 0 0 0\nintr 7\n"
    after = b"cpu  9 0 0 9 0 0 0 0\ncpu0 301 0 0 50 0 0 0 0\ncpu1 10 15 5 231 0 0 0 9 0 0\nintr 9\n"
    shares = busy_shares(before, after, 2.0, 100)
    assert shares == {0: 1.0, 1: pytest.approx(0.25)}, (
        "of 200 ticks 141 idle and 9 stolen: 50 at work, of which 10 were sampled"
    )


def test_short_wakes_are_work_too() -> None:
    """Timers wake a sleeper right after a tick, so no tick sees its work. Its own CPU clock does; the CPU cannot have worked less."""
    before, began_s, own_s = Path("/proc/stat").read_bytes(), time.monotonic(), time.process_time()
    while (elapsed_s := time.monotonic() - began_s) < 0.4:
        until_s = time.process_time() + 0.001
        while time.process_time() < until_s:
            pass
        time.sleep(0.002)
    own_s = time.process_time() - own_s
    shares = busy_shares(before, Path("/proc/stat").read_bytes(), elapsed_s, os.sysconf("SC_CLK_TCK"))
    edges_s = 0.02 * len(shares)
    assert sum(shares.values()) * elapsed_s >= own_s - edges_s


def test_a_thread_may_be_called_anything() -> None:
    numbers = " ".join(str(number) for number in range(4, 60))
    assert last_cpu(f"17 (a) S 9 (b)) R {numbers}".encode()) == 39


def test_threads_of_nobody_take_nothing(tmp_path: Path) -> None:
    clocks = ThreadClocks(None)
    clocks.sample()
    assert clocks.cpu_ns_by_cpu() == {}


def test_growth_leaves_out_the_look_itself_and_what_is_new() -> None:
    before = {"requests": 100, "bytes_sent": 5, "running": 9, "clients": 9}
    after = {"requests": 151, "bytes_sent": 4, "running": 3, "clients": 4, "commits": 7}
    assert server_growth(before, after) == {"requests": 50, "bytes_sent": 0, "running": 2, "clients": 4}


class _Server:
    """A server that answers `answers` times, then has crashed."""

    def __init__(self, answers: int) -> None:
        self.left = answers

    def __call__(self) -> Mapping[str, int]:
        if self.left == 0:
            raise ServerCrashed("the server ended")
        self.left -= 1
        return {"requests": 10 - self.left}


def _watch(answers: int) -> LabWindowWatch:
    """A watch long enough that some clock ticks remain even after a busy machine's late first look."""
    return LabWindowWatch(WatchTargets(_HERE, _HERE, None, None, _Server(answers)), 300_000_000)


def test_a_window_on_a_socket_has_counters_and_cpus_and_no_traffic() -> None:
    watch = _watch(2)
    watch._thread.join()  # it ends without a request
    window = watch.finish()
    assert window is not None
    assert (window.interface, window.network, window.tcp) == ("", (), ())
    assert window.server == {"requests": 0}
    assert window.cpus_busy
    assert window.sampling_cpu_ns > 0


def test_connections_that_were_closed_before_the_last_look_leave_the_traffic_to_see() -> None:
    """A busy machine looks late. Earlier traffic in each direction shows how to divide the loopback's bytes."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        with socket.create_connection(("127.0.0.1", port)) as near, listener.accept()[0] as far:
            near.sendall(bytes(1000))
            assert len(far.recv(1000, socket.MSG_WAITALL)) == 1000
            watch = LabWindowWatch(WatchTargets(_HERE, _HERE, port, None, server := _Server(2)), 60_000_000_000)
            while server.left == 2 and watch._thread.is_alive():  # the first look asks the server last
                watch._thread.join(0.001)
            if not watch._readings.tcp["server"]:
                watch.finish()
                pytest.skip("no sock_diag here")
        window = watch.finish()
    assert window is not None
    assert window.tcp == ()
    assert window.network, "four looks a second, of which the last is one"
    grown = window.network[-1]
    assert grown.to_server_bytes + grown.to_client_bytes > 0


@pytest.mark.parametrize(("answers", "seen"), [(0, False), (1, True)])
def test_a_server_that_dies_leaves_less_to_see_and_breaks_nothing(answers: int, seen: bool) -> None:
    window = _watch(answers).finish()
    assert (window is not None) is seen
    assert window is None or window.server == {}


def test_writes_that_must_be_on_the_disk_are_timed(tmp_path: Path) -> None:
    found = measure_fsync_ns(tmp_path)
    assert found is not None and set(found) == {str(size) for size in WRITE_SIZES}
    assert all(row.count and row.p50 and row.p99 and row.p50 <= row.p99 for row in found.values())
    assert list(tmp_path.iterdir()) == []
    assert measure_fsync_ns(tmp_path / "absent") is None
