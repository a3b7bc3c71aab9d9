"""The messages that receipts hold: a part of `messages.py`. Generated from `schema/contract.json` by `generate.py`: do not edit."""

# ruff: noqa: E402, I001, RUF100
from typing import Literal

from howfar.contract.message import Message


class Receipt(Message):
    """What the first connection really is. `None` means: cannot be asked on this transport, or off; never "as asked"."""

    address_family: Literal["unix", "inet", "inet6"]
    local_address: str | None
    peer_address: str
    """Socket path, or `host:port`."""
    server_address: str | None = None
    """PostgreSQL's `inet_server_addr()` and port: where its own end of the connection is; None: on a Unix socket, or not asked."""
    peer_pid: int | None
    """`SO_PEERCRED`, Unix sockets only."""
    server_version: str
    server_connection_id: int | None
    """None: Memcached, which does not number them, and FastCGI."""
    auth_plugin: str
    """MySQL's plugin. PostgreSQL: `scram-sha-256`, `md5`, `password`, `none`. Redis and Memcached: `password`, `none`. FastCGI:
    `none`."""
    protocol_mode: Literal[
        "prepared", "text", "multi", "extended", "resp2", "resp3", "memcached_text", "memcached_meta", "fastcgi"
    ]
    tls_version: str | None
    """From the server's session status `Ssl_version` or its `pg_stat_ssl`; None: plain, or a key-value store, which does not tell."""
    tls_cipher: str | None
    tls_client_version: str | None = None
    """As our side negotiated it; not the server's where something between ends the encryption."""
    tls_client_cipher: str | None = None
    tls_group: str | None
    """Key exchange group, as our side negotiated it."""
    tls_retried: bool | None = None
    """The server did not take the first key share offered: the handshake took a round trip more."""
    tls_resumed: bool | None
    """Whether the second connection resumed the session of the first; None: no TLS, or a single connection that stays."""
    connect_turns: int | None = None
    """Round trips from `connect` to the last prepared statement, of the second connection if there is one: TCP 1, greeting 1, login
    1 and what its way adds, TLS 1 or 2, prepares 1 for 64. None: an engine of before."""
    compression: str | None
    """Algorithm in force: the server's session status where it tells (MySQL), zlib where it says only ON; None: off."""
    compression_level: int | None
    """As the server reports it; None where it does not."""
    tcp_mss: int | None
    tcp_nodelay: bool | None
    congestion_control: str | None
    driver: Literal["epoll", "io_uring", "threads"]
    """Who served the sockets; `threads`: each of its own, blocking, as a page job's."""
    client_threads: int
    client_cpus: tuple[int, ...]


class Drops(Message):
    """Segments not delivered, by cause. `queue`, `loss` and `outage` are what was asked; any other voids a trial."""

    queue: int
    loss: int
    outage: int
    arena: int
    socket: int | None
    """What the emulator never saw, because a buffer of the kernel's had no room. Packets, each a segment or a super-packet of many:
    the kernel tells no more. None: it did not tell at all."""
    transmit: int


class DirectionStats(Message):
    """Since the link began or since the last reset."""

    packets: int
    segments: int
    wire_bytes: int
    """Bytes on the emulated wire: each segment with its Ethernet framing (preamble, FCS, gap: 38 bytes)."""
    admitted: int
    """Segments that came while the line was up and the queue had room: `loss` is a share of these. Both are counted when they come."""
    drops: Drops
    duplicated: int
    corrupted: int
    reordered: int
    """Segments that left after one that had come later."""
    queue_bytes_max: int
    queue_bytes_lately: int | None = None
    """The most since the counters were last asked for, also without a reset. None: an engine of before."""
    lateness_mean_ns: int | None = None
    """Below 0: early. None: nothing left, or an engine of before."""
    lateness_p50_ns: int
    """How late packets left; 0 for those that left early."""
    lateness_p99_ns: int
    lateness_p999_ns: int
    lateness_max_ns: int
    cpu_ns: int


class Account(Message):
    """Open loop: every request due in the window is in exactly one of the last three."""

    due: int
    answered: int
    """Answered before the window's end."""
    unanswered: int
    """Begun or not, without an answer at the end of the window."""
    failed: int
    """Lost with a connection, or given up."""
    backlog_max: int
