"""Texts of advice, by id: what to do, and why."""

from __future__ import annotations

from howfar.bottleneck.acknowledgement import ACKNOWLEDGEMENT
from howfar.findings import Texts

ACTIONS: Texts = {
    # Against a limit, by its resource.
    "link-to-client": "send fewer bytes to the client (columns, rows{savers:?, }{savers}{savers:? where it pays off}), or use a "
    "faster link",
    "link-to-server": "send fewer bytes to the server, or use a faster link",
    "server-cpu": "give the server more CPU, or make its queries cheaper: a faster network would not help",
    "client-cpu": "give the load generator more CPU: these figures describe its own limit",
    "instrument-cpu": "measure these links on a machine with spare CPUs for howfar's link emulator before drawing conclusions",
    "forwarder-cpu": "remove the forwarder",
    "one-thread": "spread the work over more threads",
    "receive-window": "enlarge the receive window, or use more connections",
    "send-buffer": "enlarge the send buffer, or use more connections",
    "loss": "find out where segments are lost: no database setting will help",
    "commit": "make commits cheaper, with a faster disk, more commits at a time, or less durability where that is allowed",
    "acknowledgement": ACKNOWLEDGEMENT.action,
    "lock": "hold locks more briefly, with fewer round trips between first write and commit, or spread writes over more rows",
    "server-wait": "check on the server what its sessions wait for during the load",
    "latency": "use more connections: no resource is known to be full",
    "latency-of-bytes": "send fewer bytes, or use a faster link or more connections: each waits for its own bytes, but no resource is "
    "known to be full",
    "latency-of-round-trips": "use more connections or fewer round trips: no resource is known to be full",
    "errors": "remove the cause of the server's errors: these figures include them",
    "invalid": "repeat the run on an idle machine: these figures do not describe the path",
    "divided-cpu": "measure again with separate CPUs for load, howfar's link emulator and other programs before you buy CPUs",
    # About paths.
    "socket": "where application and server share a machine, connect through the socket: {how}",
    "fewer-round-trips": "with the server on another machine, make fewer round trips ({ways}) or move the application next to its data"
    "{no_bandwidth:?; more bandwidth will not help}",
    "resolve-round-trips": "round trips take about half of the time over the network: run longer to find out whether they or CPU time "
    "take more",
    "less-cpu-time": "first reduce the time spent in CPU and server: round trips take less than half of the time",
    "no-forwarding": "do not forward the socket to another machine for speed: its traffic still crosses the network",
    # About the run.
    "repeat-disturbed": "stop other programs{named} and run this again",
    "repeat-elsewhere": "run this again when this machine, or another one, is quiet",
    "full-plan": "for a firmer answer, {busy:?first stop other work, then }run the full plan",
    "enough-blocks": "run longer: an answer needs {needed} blocks, each of which measures everything once",
    "more-blocks": "run longer{quick:? (with --full)} or on a quieter machine: some differences are too close to call",
    "quieter-machine": "measure on a quieter machine: some differences are too close to call",
}
AT_RATE = "at {rate_bps:rate}, {action}"
"""The action against the limit over one of several links."""
SOCKET = "use it as the host"
SOCKET_OF_MYSQL = "write host=localhost, not 127.0.0.1"
"""MySQL's clients take `localhost` as the socket; others need its path, or that of its directory."""

SUCH_AS = ", such as {name},"

REASONS: Texts = {
    "repeat-disturbed": "other programs used up to {most:.1f} of {cpus:of CPU} in {disturbed} of {known:of trial}",
    "limit": "{arm}: {text}. What would help: {would_change}.{would_not:? What would not: {would_not}.}",
    "tcp-slower": "TCP on the same machine reaches {ratio} times the socket's {unit} per second",
    "tcp-cpu": "TCP uses {cpu_ratio} times the CPU per {one}",
    "round-trips": "over the network, a transaction makes {round_trips:of round-trip}; they take {link_ms:.2f} of its "
    "{transaction_ms:.2f} ms ({percent} %)",
    "round-trips, idle link": "over the network, a transaction makes {round_trips:of round-trip}; they take {link_ms:.2f} of its "
    "{transaction_ms:.2f} ms ({percent} %), while its bytes use {link_used:share} of the link's rate",
    "larger-part": "whether round trips or CPU time is the larger part is too close to call",
    "bandwidth": "whether more bandwidth helps is too close to call: about {faster_link} times the throughput at best",
    "busy-machine": "other programs used the CPUs: on a quiet machine, round trips take a larger share",
    "forwarded-slower": "the forwarded socket reaches {ratio} times the {unit} per second of plain TCP ({arm})",
    "forwarded-cpu": "each {one} costs {cpu_ratio} times the CPU through the forwarded socket",
    "no-intervals": "fewer blocks give no interval, and intervals can be trusted with {trusted} blocks or more",
    "blocks": "telling differences this small from chance takes {blocks}; this run has {present}",
    "blocks-at-most": "telling differences this small from chance takes up to {worst} blocks; this run has {present}",
    "blocks-of-cells": "telling differences this small from chance takes about {median} blocks in the median of {cells} cells, "
    "{worst} at worst ({arm}); this run has {present}",
    "too-many-blocks": "with this scatter, more than {max_blocks} blocks are needed to tell the difference of "
    "{unreachable} from chance; CPU per query may need fewer",
    "narrow-blocks": "about {narrow} blocks would make the intervals as narrow as requested",
    "disturbed": "some blocks were disturbed",
}
BLOCKS_OF_ARM = "about {blocks} blocks for {arm}"
CELLS = "{count} cells"
