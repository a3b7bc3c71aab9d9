"""Message templates for the violations that the core finds: links, CPUs, sessions, servers, hops, counts and failures.

`older_sentences` has earlier wordings, by which files without ids are read.
"""

from __future__ import annotations

from howfar.contract.violation import DISTURBED, FAILED, NO_REASON, OTHER, ViolationText

_LINK = (
    ViolationText(
        "late-packets",
        "packets to the {end:server|client} were late on the emulated link by {lateness_ns:duration} (p{percentile:g}, "
        "limit {allowed_ns:duration}): the machine was too busy, or the emulator was suspended",
        "packets to the {end} were late on the emulated link",
        over_link=True,
        older_sentences=(
            (
                "the link to {end:server|client} was late by {lateness_ns:duration} (p{percentile:g}, "
                "allowed {allowed_ns:duration}): the machine was too busy, or the emulator was stopped"
            ),
            (
                "packets to the {end:server|client} were late on the emulated link by {lateness_ns:duration} (p{percentile:g}, "
                "allowed {allowed_ns:duration}): the machine was too busy, or the emulator was stopped"
            ),
        ),
    ),
    ViolationText(
        "link-lost-packets",
        "the link to the {end:server|client} itself lost packets (segments without buffer: {arena_segments:d}, "
        "not sent: {transmit_segments:d}; packets at a full socket: {socket_packets:d})",
        over_link=True,
        older_sentences=(
            (
                "the link to the {end:server|client} lost what no queue explains (segments: arena {arena_segments:d}, "
                "transmit {transmit_segments:d}; packets: socket {socket_packets:d})"
            ),
        ),
    ),
    ViolationText(
        "link-mean-lateness",
        "round trips over the link were {change_ns:duration} {change:longer|shorter} on average than requested "
        "(limit {allowed_ns:duration}, {allowed_share:.0%} of a round trip): the machine was too busy for the emulator",
        "round trips over the link were {change} on average than requested",
        over_link=True,
        older_sentences=(
            (
                "the link made each round trip {change_ns:duration} {change:longer|shorter} on average "
                "(allowed {allowed_ns:duration}, {allowed_share:.0%} of a round trip): the machine was too busy for the emulator"
            ),
            (
                "the link made each round trip {change_ns:duration} {change:longer|shorter} on average "
                "(allowed {allowed_ns:duration}, {allowed_share:.0%} of one): the machine was too busy for the emulator"
            ),
        ),
    ),
    ViolationText(
        "link-interrupted",
        "the link to the {end:server|client} was interrupted, and {segments:d} segments were lost",
        over_link=True,
        older_sentences=("the link to {end:server|client} was interrupted, which lost {segments:d} segments",),
    ),
    ViolationText(
        "link-rtt",
        "the link's unloaded RTT was {measured_ns:duration} instead of {requested_ns:duration}",
        "the link's unloaded RTT was not as requested",
        over_link=True,
        older_sentences=(
            "the link's RTT at rest was {measured_ns:duration}, requested {requested_ns:duration}",
            "the link's unloaded RTT was {measured_ns:duration}, requested {requested_ns:duration}",
        ),
    ),
    ViolationText(
        "link-rtt-with-transmission",
        "the link's unloaded RTT was {measured_ns:duration} instead of {requested_ns:duration} plus "
        "{transmission_ns:duration} for sending the ping at the link's rate",
        "the link's unloaded RTT was not as requested",
        over_link=True,
        older_sentences=(
            (
                "the link's RTT at rest was {measured_ns:duration}, requested {requested_ns:duration} and "
                "{transmission_ns:duration} for the ping's own bytes at the rate"
            ),
            (
                "the link's unloaded RTT was {measured_ns:duration}, requested {requested_ns:duration} and "
                "{transmission_ns:duration} for the ping's own bytes at the rate"
            ),
        ),
    ),
    ViolationText(
        "link-not-crossed",
        "no packet crossed the link to the {end:server|client}: the load took another path",
        over_link=True,
        older_sentences=("no packet crossed the link to {end:server|client}: the load took another path",),
    ),
    ViolationText(
        "link-carried-too-little",
        "the link to the {end:server|client} carried only {carried_bytes:d} of the {counted_bytes:d} bytes that the server "
        "counted: not all of the load went over it",
        "not all of the load went over the link to the {end}",
        over_link=True,
        older_sentences=(
            (
                "the link to {end:server|client} carried {carried_bytes:d} bytes, the server counted {counted_bytes:d}: "
                "not all of the load went over it"
            ),
        ),
    ),
    ViolationText(
        "link-script-failed",
        "the changes of the link ended {at_ns:duration} after the start, because one failed: {message}",
        "the link could not be changed",
        over_link=True,
        older_sentences=("the link could not be changed at {at_ns:duration}, nor after that: {message}",),
    ),
    ViolationText(
        "real-rtt-changed",
        "the RTT from host {from_host} to host {to_host} was {now_ns:duration}, but {before_ns:duration} before the run",
        "the RTT from host {from_host} to host {to_host} changed",
        older_sentences=(
            (
                "the RTT from host {from_host} to host {to_host} was {now_ns:duration}, and {before_ns:duration} "
                "before the run"
            ),
        ),
    ),
    ViolationText(
        "host-interrupted",
        "host {host} received nothing for {silence_s:.1f} s from the machine that runs howfar",
        "host {host} received nothing from the machine that runs howfar",
    ),
)
_CPUS = (
    ViolationText(
        "cpus-not-polling",
        "idle CPUs could sleep: the kernel's limit on their wake-up latency was {limit_us:d} µs, not 0",
        older_sentences=("idle CPUs were not kept polling: the kernel's limit is {limit_us:d} µs",),
    ),
    ViolationText(
        "cpu-slept",
        "CPU {cpu} should have polled while idle, but slept {sleeps_per_s:.0f} times a second",
        "CPUs should have polled while idle, but slept",
        older_sentences=("CPU {cpu} was to poll while idle and slept {sleeps_per_s:.0f} times a second",),
    ),
)
_SESSION = (
    ViolationText(
        "session-address-family",
        "the session's address family was {obtained:word}, but the path requires {required}",
        older_sentences=("the session was of address family {obtained:word}, the path requires {required}",),
    ),
    ViolationText(
        "socket-of-other-process",
        "process {pid:d} answered on the socket, not {expected_pid:d}",
        "another process answered on the socket",
    ),
    ViolationText(
        "session-peer",
        "the session's peer was {peer} instead of {expected_peer}",
        "the session's peer was another than the path's",
        older_sentences=("the session's peer was {peer}, the path leads to {expected_peer}",),
    ),
    ViolationText(
        "session-encryption",
        "according to the {reporter}, the session was {obtained_tls:tls} instead of {expected_tls:tls}",
        "according to the {reporter}, the session was {obtained_tls:tls}",
        older_sentences=("for the {reporter} the session was {obtained_tls:tls}, expected {expected_tls:tls}",),
    ),
    ViolationText(
        "other-client",
        "the server sees the connection come from {client!r} instead of {expected_client!r}",
        "the server sees the connection come from another address",
        older_sentences=("the server sees its client at {client!r}, the path comes from {expected_client!r}",),
    ),
    ViolationText(
        "reported-encryption",
        "the server reports a session as {obtained_tls:tls} instead of {expected_tls:tls}",
        "the server reports a session as {obtained_tls:tls}",
        older_sentences=("the server says a session is {obtained_tls:tls}, expected {expected_tls:tls}",),
    ),
    ViolationText(
        "reported-compression",
        "the server reports compression of a session that cannot have it",
        older_sentences=("the server says the session is compressed",),
    ),
    ViolationText("socket-not-obtained", "a Unix socket was requested, but {obtained:word} was obtained"),
    ViolationText("address-family-not-obtained", "{requested:word} was requested, but {obtained:word} was obtained"),
    ViolationText(
        "nagle",
        "TCP_NODELAY was requested, but Nagle's algorithm is enabled",
        older_sentences=("TCP_NODELAY was requested, but Nagle's algorithm is in force",),
    ),
    ViolationText("unrequested-tls", "no TLS was requested, but {obtained:word} was obtained"),
    ViolationText(
        "no-tls",
        "TLS was requested, but the session is not encrypted",
        older_sentences=("TLS was requested, but the session is plain",),
    ),
    ViolationText("tls-version", "TLS {requested:word} was requested, but {obtained:word} was obtained"),
    ViolationText("tls-cipher", "the cipher {requested:word} was requested, but {obtained:word} was obtained"),
    ViolationText(
        "session-resumed",
        "a TLS session was resumed, although that was not requested",
        older_sentences=("sessions were not to be resumed, and one was",),
    ),
    ViolationText(
        "session-not-resumed",
        "the second connection did not resume the TLS session, although that was requested",
        older_sentences=("sessions were to be resumed, but the second connection's was not",),
    ),
    ViolationText(
        "encryption-ends-in-between",
        "the session has {client_side} on this side, but the server reports {server_side}: a program in between terminates "
        "TLS, and how it connects to the server is unknown",
        "a program in between terminates TLS",
        older_sentences=(
            (
                "the session has {client_side} on this side, and the server reports {server_side}: a program in between ends "
                "the encryption, and what lies behind it is unknown"
            ),
        ),
    ),
    ViolationText("unrequested-compression", "no compression was requested, but {obtained:word} was obtained"),
    ViolationText("compression", "{requested:word} compression was requested, but {obtained:word} was obtained"),
    ViolationText(
        "compression-level",
        "compression level {requested:d} was requested, but {obtained:d} was obtained",
        "the compression level was not as requested",
    ),
)
_SERVER = (
    ViolationText(
        "no-plain-text",
        "the server does not accept unencrypted connections at {address}",
        older_sentences=("the server does not answer plain text at {address}",),
    ),
    ViolationText(
        "no-tls-at-address",
        "the server should accept TLS at {address}, but does not",
        older_sentences=("the server was to speak TLS at {address} and does not",),
    ),
    ViolationText(
        "plain-text-at-address",
        "the server accepts unencrypted connections at {address}, where it should only accept TLS",
        older_sentences=("the server speaks plain text at {address}, where it was to speak TLS only",),
    ),
    ViolationText(
        "pages-read",
        "the server read {pages:d} pages from files during the trial: the data was not all in memory",
        "the server read pages from files during the trial",
    ),
    ViolationText(
        "too-few-commits",
        "the server counted only {counted:d} commits, but the load made {commits:d} or more",
        "the server counted fewer commits than the load",
        older_sentences=("the server counted {counted:d} commits, the load at least {commits:d}",),
    ),
    ViolationText(
        "unrequested-network",
        "the server should not use the network, but does (TCP ports: {ports})",
        older_sentences=("the server was to have no network but listens on TCP ports: {ports}",),
    ),
    ViolationText(
        "other-ports",
        "the server listens on the TCP ports {ports} instead of {expected_ports}",
        "the server does not listen on the requested TCP ports only",
        older_sentences=("the server listens on the TCP ports {ports}, it was to listen on {expected_ports}",),
    ),
    ViolationText(
        "other-sockets",
        "the server listens on the sockets {sockets} instead of {expected_sockets}",
        "the server does not listen on the requested sockets only",
        older_sentences=("the server listens on the sockets {sockets}, it was to listen on {expected_sockets}",),
    ),
    ViolationText(
        "keys-evicted",
        "the server evicted {keys:d} keys during the trial: its memory was too small for them",
        "the server evicted keys during the trial",
    ),
    ViolationText(
        "connections-rejected", "the server rejected {connections:d} connections", "the server rejected connections"
    ),
    ViolationText(
        "server-setting",
        "the server's {setting} is {value!r} instead of {requested!r}",
        "the server's {setting} is not as requested",
        older_sentences=("the server's {setting} is {value!r}, it was to be {requested!r}",),
    ),
    ViolationText("server-forked", "the server forked to write its data to a file during the trial"),
    ViolationText(
        "server-stopped-listening",
        "the server stopped listening during the trial: its limit of connections was reached",
        older_sentences=("the server stopped listening during the trial: it had all the connections that it allows",),
    ),
)
_HOPS = (
    ViolationText(
        "hop-processes",
        "the forwarder on the {hop} had only {processes:d} processes for {connections:d} connections",
        "the forwarder on the {hop} had too few processes",
        older_sentences=("the forwarder of the {hop} had {processes:d} processes for {connections:d} connections",),
    ),
    ViolationText(
        "hop-connections",
        "only {carried:d} of {connections:d} connections went through the hop on the {hop}",
        "not all connections went through the hop on the {hop}",
        older_sentences=("the hop of the {hop}: {carried:d} connections went through it, not {connections:d}",),
    ),
    ViolationText(
        "hop-carried-nothing",
        "the hop on the {hop} carried no {quantity}",
        older_sentences=("the hop of the {hop}: it carried no {quantity}",),
    ),
)
_COUNTS = (
    ViolationText(
        "too-few-requests",
        "it counted only {counted:d} requests, but the pages made {reported:d} or more",
        "the server counted fewer requests than the pages",
        older_sentences=("it counted {counted:d} requests, the pages reported at least {reported:d}",),
    ),
    ViolationText(
        "too-few-lookups",
        "it looked up only {counted:d} keys, but the pages asked for {reported:d} or more",
        "the server looked up fewer keys than the pages asked for",
        older_sentences=("it looked for {counted:d} keys, the pages reported at least {reported:d}",),
    ),
    ViolationText(
        "keys-missing",
        "it lacked {keys:d} of the keys that the pages asked for, although all had been set",
        "the server lacked keys",
        older_sentences=("it did not have {keys:d} of the keys that the pages looked for, all of which were set",),
    ),
    ViolationText(
        "counts-differ",
        "the clients received answers to {clients:d} {quantity}, but the server counted {server:d}",
        "the clients and the server counted different numbers of {quantity}",
        older_sentences=("the clients had answers to {clients:d} {quantity}, the server counted {server:d}",),
    ),
    ViolationText(
        "keys-not-found",
        "{keys:one key was|keys were} not found, although all were set",
        "keys were not found",
    ),
    ViolationText(
        "nothing-measured",
        "no {unit} ended in the measured window",
        older_sentences=("not one {unit} ended in the measured window",),
    ),
    ViolationText(
        "due-transactions",
        "{due:d} transactions were due in the window instead of about {expected:.0f}",
        "the number of transactions due did not match the requested rate",
    ),
)
_FAILURES = (
    ViolationText(FAILED, "{message}", in_older_files=False),
    ViolationText(OTHER, "{text}", in_older_files=False),
    ViolationText(NO_REASON, "no reason recorded"),
    ViolationText(DISTURBED, "other programs disturbed the trial", older_sentences=("other programs disturbed it",)),
    ViolationText(
        "disturbed-by",
        "other programs disturbed the trial: {program} used {used_cpus:.1f} of {machine_cpus:one CPU|CPUs}",
        "other programs disturbed the trial",
        older_sentences=("other programs disturbed it: {program} used {used_cpus:.1f} of {machine_cpus:one CPU|CPUs}",),
    ),
)
VIOLATIONS = (*_LINK, *_CPUS, *_SESSION, *_SERVER, *_HOPS, *_COUNTS, *_FAILURES)
