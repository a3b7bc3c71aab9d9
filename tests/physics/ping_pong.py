"""A TCP ping-pong without howfar's code: `serve HOST` returns bytes, `ask HOST` measures round trips, also over loopback."""

from __future__ import annotations

import json
import socket
import statistics
import sys
import threading
import time

PORT = 7007
ROUNDS = 70
TIMES = 3
TIMEOUT_S = 60.0


def serve(listener: socket.socket) -> None:
    """Serve one connection after the other."""
    while True:
        peer, _ = listener.accept()
        with peer:
            peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            while peer.recv(1):
                peer.sendall(b"x")


def connect(host: str, port: int) -> socket.socket:
    """Connect, retrying for up to TIMEOUT_S: the other side may still be starting."""
    deadline = time.monotonic() + TIMEOUT_S
    while True:
        try:
            return socket.create_connection((host, port), timeout=TIMEOUT_S)
        except ConnectionRefusedError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.02)


def measure_rtt_ns(host: str, port: int) -> int:
    """Median round trip in ns."""
    with connect(host, port) as peer:
        peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        times = []
        for _ in range(ROUNDS):
            start = time.perf_counter_ns()
            peer.sendall(b"x")
            peer.recv(1)
            times.append(time.perf_counter_ns() - start)
    return int(statistics.median(times))


def main() -> None:
    role, host = sys.argv[1:3]
    if role == "serve":
        serve(socket.create_server((host, PORT)))
        return
    listener = socket.create_server(("127.0.0.1", 0))
    threading.Thread(target=serve, args=(listener,), daemon=True).start()
    loopback_ns = measure_rtt_ns("127.0.0.1", listener.getsockname()[1])
    print(
        json.dumps({"link_p50s_ns": [measure_rtt_ns(host, PORT) for _ in range(TIMES)], "loopback_p50_ns": loopback_ns})
    )


if __name__ == "__main__":
    main()
