"""Texts about limits, by id: the limit, the evidence for it, and changes that would or would not help."""

from __future__ import annotations

from howfar.bottleneck.acknowledgement import ACKNOWLEDGEMENT
from howfar.findings import Texts
from howfar.model.resource import Resource

LIMITS: Texts = {
    "errors": "{share:share} of the transactions got an error from the server",
    "full-link": "the link {direction} is full{bursts:? in bursts}: {speed:exact} of {ceiling:exact} MiB/s",
    "full-link-of-small-packets": "the link {direction} is full{bursts:? in bursts}: {speed:exact} MiB/s of small packets, which with "
    "headers use {used:share} of its rate",
    "busy-load-generator": "the load generator's busiest thread was on a CPU for {share:share} of the time",
    "full-cpu": "the CPU on the {host}'s side is full: {users}",
    "full-cpus": "the CPUs of both hosts are full: {users}",
    "busy-thread": "one thread of the {role} was on a CPU for {share:share} of the time, while other CPUs had idle time",
    "busy-thread-and-cpus": "one thread of the {role} was on a CPU for {share:share} of the time, and the other CPUs were full too",
    "busy-emulator": "one thread of howfar's link emulator was on a CPU for {share:share} of the time",
    "waiting-server": "the server waited for a CPU for {share:share} of transaction time (CPU in use by: {users})",
    "waiting-load-generator": "the load generator waited for a CPU for {share:share} of the time (CPU in use by: {users})",
    "receive-window": "the {receiver}'s receive window holds the {sender} back for {share:share} of its sending time",
    "send-buffer": "the {sender}'s send buffer holds it back for {share:share} of its sending time",
    "loss": "segments are lost: {share:share} were retransmitted{not_full:?, although the link is not full}",
    "acknowledgement": ACKNOWLEDGEMENT.limit,
    "commit": "commits wait for the disk for {share:share} of transaction time, {write_ns:time} for each durable write",
    "lock": "transactions wait for each other's row locks for {share:share} of their time",
    "server-wait": "statements seem to wait inside the server, and no counter explains {share:share} of transaction time",
    "round-trips": "round trips take {share:share} of transaction time: {round_trips:n} of {rtt_ns:time} each",
    "one-at-a-time": "no resource is known to be full: each connection runs one transaction at a time and spends "
    "{share:share} of it on {part}",
    "crowded-machine": "other programs occupy the machine, and no counter explains {share:share} of transaction time",
    # The limit is unknown.
    "perhaps-full-link": "the limit is unknown: the link {direction} carries {speed:exact} MiB/s, at least {share:share} of what one "
    "connection got before the run, and may be full",
    "unknown": "the limit is unknown: no counter shows a full resource, and transaction time consists of {parts}",
    "differing-trials": "the limit is unknown: the {trials} trials have different limits ({counts}), and their pooled figures "
    "match none of them",
}

RESOURCE_NAMES = {Resource.INSTRUMENT_CPU: "CPU of howfar's link emulator", Resource.INVALID: "other programs"}
"""Names of resources for readers, where the value of `Resource` needs an explanation."""


def resource_name(resource: Resource) -> str:
    return RESOURCE_NAMES.get(resource, resource.value)


NOTES: dict[Resource, str] = {
    Resource.CLIENT_CPU: "these figures describe the load generator",
    Resource.INSTRUMENT_CPU: "howfar's link emulator is part of this measurement, not of your network",
    Resource.INVALID: "these figures describe the other programs on this machine",
}
"""Notes on limits that are not limits of the path."""
NO_DOMINANT_USER = "no single program dominates"
"""The note on full CPUs without a dominant user."""

FACTS: Texts = {
    "failures": "{share:share} of the transactions failed ({limit:share} or more makes this a different workload)",
    "wire-use": "the link {direction} carries {used:share} of its rate, including headers",
    "longer-round-trips": "round trips take {ratio:.1f} times as long as the shortest",
    "dropping-queue": "{speed:exact} MiB/s were sent into the link, whose queue drops the excess",
    "queue": "the link queues up to {kb:.0f} kB",
    "thread-time": "the busiest thread was on a CPU for {share:share} of the time ({limit:share} or more counts as fully "
    "busy)",
    "cpu-use": "{used:share} of the {host}'s CPU is in use: {users}",
    "cpu-time": "transactions spend {share:share} of their time on these CPUs or waiting for them",
    "waiting": "the {role} waited for a CPU for {share:share} of the time (more than {limit:share} limits throughput)",
    "sending-time": "the {sender} has data to send for {share:share} of the time",
    "window": "each round trip of {rtt_ns:time} carries one window",
    "window-without-link": "there is no link, so round trips are short",
    "retransmits": "retransmitted segments per transaction: {count:n} (below {limit:share} of all segments, retransmissions cost "
    "almost nothing)",
    "timeouts": "retransmission timeouts per transaction, of 200 ms each: {count:n}",
    "unknown-timeouts": "retransmission timeouts were not counted, so every retransmission is taken for one: the time lost is "
    "an upper bound",
    "primary-wait": ACKNOWLEDGEMENT.measured,
    "unknown-primary-wait": ACKNOWLEDGEMENT.unmeasured,
    "writes": "durable writes per transaction: {count:n}",
    "writes-in-turn": "one after another, these writes take {share:share} of the time",
    "lock-waits": "waits for row locks per transaction: {count:n}",
    "lock-time": "these waits take at most {ms:.2f} ms per transaction",
    "statements": "{running:.0f} of {connections} connections had a statement in progress when trials ended",
    "transaction": "a transaction takes {transaction_ns:time}",
    # What is in use, if nothing is known to be full.
    "load-cpu-use": "this load uses {used:share} of the {host}'s CPU",
    "link-use": "{bound:?at most }{used:share} of the link {direction} is in use",
    "unknown-windows": "windows and send buffers are unknown, because connections are short-lived",
    "unproven": "{share:share} of transaction time is unexplained or known only as an upper bound: a full resource could "
    "hide there",
    # Trials, judged one by one.
    "agreeing-trials": "judged one by one, {count} of {trials} trials have the same limit",
    "together": "the pooled trials point to {limit}, which no single trial does",
}

REMEDIES: Texts = {
    "faster-link": "a link with {factor:g} times the rate",
    "much-faster-link": "a much faster link",
    "fewer-bytes-to-client": "fewer bytes to the client, with {savers}{savers:? or }fewer columns and rows",
    "fewer-bytes-to-server": "fewer bytes to the server{savers:?, with }{savers}",
    "server-cpu": "twice the CPU for the server",
    "emulator-apart": "separate CPUs for howfar's link emulator (part of this measurement, not your network), which used "
    "{emulator:share} of the server's CPU",
    "client-cpu": "more CPU for the load generator, or a second load generator",
    "emulator-cpu": "a machine with spare CPUs for howfar's link emulator",
    "no-forwarder": "plain TCP instead of a forwarder, or, if one thread serves each connection, more connections",
    "server-threads": "more threads of the server for this work, or, if one thread serves each connection, more connections",
    "receive-window": "a larger receive window (net.ipv4.tcp_rmem of the receiver)",
    "send-buffer": "a larger send buffer (net.ipv4.tcp_wmem of the sender)",
    "more-windows": "more connections, each with a window of its own",
    "no-loss": "a path without loss",
    "less-delay": "more connections, since a loss delays only one of them",
    "no-disk": "commits that do not wait for the disk",
    "shared-writes": "more connections, whose commits share writes",
    "faster-disk": "a faster disk",
    "nearer-server": ACKNOWLEDGEMENT.nearer,
    "more-waits": ACKNOWLEDGEMENT.more_waits,
    "no-wait": ACKNOWLEDGEMENT.no_wait,
    "no-lock-waits": "shorter transactions or writes to other rows, to avoid lock waits",
    "fewer-round-trips": "half the RTT (or half the round trips)",
    "more-connections": "twice the connections",
    "server-waits": "less waiting inside the server; its process list shows during the load what sessions wait for",
    "no-errors": "a run without these errors, because failing transactions are a different workload",
    "quiet-machine": "a run without other programs on the machine",
    "one-change": "a run that changes one thing at a time",
    "separate-cpus": "separate CPUs for each of these programs; which of them would gain most is unknown",
    "undecided": "whether {one} or {other} helps more is too close to call",
}
"""Changes that would help. If the gain can be bounded, the change is put into one of `EFFECTS`. `savers`: `BYTE_SAVERS`."""

EFFECTS: Texts = {
    "about": "{change}, for about {gain:n} times the throughput{interval}",
    "at-most": "{change}, for at most {gain:n} times the throughput{interval}{perhaps:? (perhaps hardly any gain)}"
    "{next:?, until {next} is full}",
    "none": "{change}, for hardly any more throughput{next:?, because {next} is also full}",
}
NEXT_LIMITS: Texts = {
    "link": "the link {direction}",
    "cpu": "the {host}'s CPU",
    "load-generator": "the load generator",
}

NON_REMEDIES: Texts = {
    "connections-or-cpu": "more connections, or more CPU on either side",
    "connections": "more connections",
    "bandwidth": "more bandwidth, because {bound:?at most }{used:share} of the link is used",
    "path-or-server": "any change of path or server, because these figures would not show it",
    "other-than-wait": ACKNOWLEDGEMENT.no_help,
    "server-cpu": "more CPU for the server, because only {cpu_used:share} of it is in use",
}

DIRECTIONS = {"to_client": "to the client", "to_server": "to the server"}
CPU_USERS = {"link": "howfar's link emulator", "others": "other programs"}
"""Names of users of a CPU. Other users are named by their role."""
NO_CPU_USERS = "no known program"
CPU_USER_SHARE, PART_SHARE = "{name} {share:share}", "{share:share} {name}"
"""Entries in lists: a user of a CPU, and a part of transaction time."""
TRIALS_PER_LIMIT = "{limit} in {count}"
INTERVALS: Texts = {"one": " (one block)", "few": " ({figures})", "many": " [{figures}]"}
"""By the number of blocks: one; too few for an interval, so their values; enough for an interval."""
UNEXPLAINED = "unexplained"
"""The name of time that no part explains."""

TESTS: Texts = {
    # What a test rules out.
    "rules-out-link": "the link",
    "rules-out-shared": "a limit that connections share",
    "rules-out-own": "a limit that each connection has for itself",
    # Why a limit was not tested.
    "too-little": "too few connections to halve, and the link is used too little for its rate to matter",
    "near": "{changed} would have too small an effect to be seen: the next limit is near",
    "unmeasured": "no block has both the original and the changed cell",
    "untestable": "the laboratory cannot change this resource alone",
    f"untestable {Resource.COMMIT.id}": "how many transactions share one durable write cannot be predicted",
    f"untestable {Resource.ACKNOWLEDGEMENT.id}": ACKNOWLEDGEMENT.untestable,
    f"untestable {Resource.ERRORS.id}": "transactions fail",
    f"untestable {Resource.INVALID.id}": "the figures themselves are not valid",
    f"untestable {Resource.NOT_ESTABLISHED.id}": "no limit was established",
    # What a test showed.
    "refuted": "refuted by a test: {outcome}",
    "outcome": "{changed} gave {measured} times the throughput, not {predicted:.2f} times",
}
"""Texts of the tests of limits."""
