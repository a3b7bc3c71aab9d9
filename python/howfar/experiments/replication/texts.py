"""Texts of the comparison of replication modes."""

from __future__ import annotations

from howfar.findings import Texts

TEXTS: Texts = {
    # The answer.
    "slowed-connection": "with {subject} and a replica {rtt_ns:time} away, one connection makes {estimate:table} commits/s instead of "
    "{alone:table}",
    "one-connection": "with {subject} and a replica {rtt_ns:time} away, one connection makes {estimate:table} commits/s",
    "connections": "a replica {rtt_ns:time} away: {estimate:table} commits/s from {threads:of connection} with {subject}",
    "connections, next": "{estimate:table} with {subject}",
    "many": "{threads} make {estimate:table}",
    "many, next": "{estimate:table} with {subject}",
    "asynchronous": "with asynchronous replication no commit waits: {threads:of connection} made {estimate:table} commits/s",
    # The main table.
    "costs": "What waiting for a replica costs",
    "costs-and-losses": "What waiting for a replica costs, and what a crash loses",
    "losses": "What a crash loses, and what each mode costs",
    "connections-noted": "{threads:of connection}{intervals:?; 95 % intervals in square brackets}",
    "strict": "durability strict: each commit is flushed before it is acknowledged{memory:?; the data directory is on a RAM "
    "disk, so flushing costs nearly nothing}",
    "relaxed": "durability relaxed: the log is flushed every second, not at each commit",
    "off": "durability off: no commit is flushed before it is acknowledged",
    "fewer-blocks": "with {subject}, the ratio is from the {blocks:of block} with both modes, the rate from {trials:of "
    "trial}",
    "shared-cpus": "all servers share this machine's CPUs: replicas take CPU time from their primary",
    "no-crashes": "what a crash loses was not measured: howfar run crash measures it",
    "other-crashes": "other kinds of crashes are below, in What a crash loses",
    "little-proof": '"< {share:upper}": the share of crashes that may lose commits, at 95 % confidence',
    "round-trips": "with {threads:of connection} a commit takes {estimate:.2f} round trips with {subject}",
    "round-trips, next": "{estimate:.2f} with {subject}",
    "two-groups": "MariaDB has two groups of commits in flight: the second holds the binary log, so further commits wait until the "
    "first is acknowledged",
    # Titles of the charts.
    "delay station": "connections wait concurrently: {threads} make {estimate:table} times as many commits as one",
    "serial": "connections queue: {threads} make only {estimate:table} times as many commits as one",
    "between": "{threads} connections make {estimate:table} times as many commits as one",
    "growth-unknown": "commits/s by connections, mode and distance",
    "split": "a commit with {subject} from {threads:of connection} takes {estimate:.2f} round trips",
    "split-unknown": "parts of a commit's time, by mode and connections",
    "panel": "RTT {rtt} to the replica",
    "lag-title": "How far the replica was behind over one trial of each mode",
    # Captions of the charts.
    "throughput-caption": "points: measured, with 95 % intervals where there are enough blocks"
    "{predicted:?. Dashed: predicted}{published:?. Crosses: published figures, one connection}",
    "split-caption": "Local work: a commit of as many connections without a replica; with MariaDB's AFTER_COMMIT, a commit at this "
    "rate. Wire: one unloaded round trip. Waiting: the rest, which is queueing for the acknowledgement of others and the "
    "replica's own work. RTT: the cost of the acknowledgement in round trips.",
    "lag-caption": "The last good trials with the most connections: transactions committed on the primary and not yet applied on the "
    "replica.",
    # Details.
    "splits": "Where does a commit's time go{rtt:? at {rtt}}?",
    "prediction-errors": "in percent: the error of the prediction. {predicted} of {figures} figures are predicted; the model uses the "
    "others",
    "published-head": "one connection, RTT {rtt}",
    "published-durability": "there, no commit was flushed (innodb_flush_log_at_trx_commit = 0); ours: durability {durability}",
    "one-connection-limit": "{estimate:table} commits/s is what one connection can make over {rtt_ns:time}: a round trip of "
    "{wire_ms:.3g} ms allows {sum:table} at most",
    "one-connection-sum": "{estimate:table} commits/s is what one connection can make over {rtt_ns:time}: {local_ms:.2g} ms of local "
    "work and a round trip of {wire_ms:.3g} ms allow {sum:table}",
    "published": "published for one connection: {estimate:table} commits/s with {subject}",
    "model": "the model predicts {cells:of cell} with a mean error of {mean:share}, at most {worst:share} with {subject}, from the "
    "commits without a replica, the unloaded round trip, and the remaining time of a single connection's commit",
    # When to use a mode.
    "use none": "where losing the machine may lose all data",
    "use async": "where a crash may lose acknowledged commits: {loss}",
    "use commit-off": "where even a crash of the server's program may lose acknowledged commits: {loss}",
    "use after-commit": "where {safe}, and it does no harm that readers {seen:?saw}{unseen:?may see} commits that a crash undoes",
    "use remote-write": "where {safe} unless both machines die at once",
    "use safe": "where {safe}, and no reader may see a commit that a crash undoes",
    "safe": "no acknowledged commit may be lost",
    "not-safe": "{lost:of acknowledged-commit} may be lost, although none should",
    "lost-here": "{lost:count} per crash here",
    "in-flight": "at this rate {commits:n} are in flight to the replica at any moment",
    "in-flight-unknown": "those in flight when it happens",
    # Advice.
    "safe-mode": "Where no acknowledged commit may be lost, replicate {how}.",
    "asynchronous-mode": "Where a crash may lose the last commits, replicate asynchronously.",
    "rate": "{rate:table} commits/s with {threads:of connection}",
    "over": " over {rtt_ns:time}",
    "relative": ", {ratio:fewer} than {reference}",
    "not-strict": "measured with durability {durability}, but these settings flush each commit",
    "other-mode": "{mode} makes {rate:table}{clause}",
    "after-commit-shows": ", but shows commits before they are safe",
    "after-sync-shows": ", and shows none before it is safe",
    "none-lost": "none of {acknowledged:n} acknowledged commits was lost in {crashes:of crash crashes}",
    "no-proof": "none was lost in {crashes:of crash crashes}, which does not prove that none can be",
    "phantoms": "with AFTER_COMMIT, others saw {phantoms:of commit} that a crash undid",
    "worst-fault": "the worst fault ({fault}) lost {lost:count} per crash",
    "always-in-flight": "so {commits:n} commits are always in flight to the replica",
    "more-connections": "Before giving up acknowledgements, use more connections or more rows per transaction.",
    "waits-together": "Over {rtt_ns:time}, one connection makes {rate:table} commits/s; {threads} make {growth:table} times as "
    "many, because they wait concurrently.",
    "monitor": "Let a semi-synchronous primary wait instead of falling back silently, and monitor its status.",
    "without-replica": "With {mode}, it acknowledged {bound:?at least }{commits:count} commits without a replica.",
    "second-replica": "Let a commit wait for any one of two replicas, so that the loss of one of them stops no commit.",
    "stood-still": "With {mode} and {replicas:of replica}, nothing was acknowledged for {stall_s:table} s, until the missing "
    "replica was back.",
    "keep-data": "Start a node that was away with its data: one without fetches everything.",
    "kept-data": "A node was synchronized after {with_data_s:.3g} s with its data, and after {without_data_s:.3g} s without.",
    "cluster": "Rely on what the cluster has acknowledged; let the application repeat only what it has not.",
    "cluster-lost-none": "With {mode}, none of {commits:count} acknowledged commits was lost in {crashes:count} crashes.",
    # Evidence.
    "flush": "writing and flushing 512 bytes{system:? on {system}} took {took} (median){memory:?: that is memory. On a disk every "
    "commit, or group of commits, costs one more flush on each server}{levels:?. Durability: {levels}}",
    "flush-unknown": "the cost of a flush to disk is unknown{levels:?. Durability: {levels}}",
    "counted": "in the last good trials of {cells:of cell} waiting for a replica, the primary counted {acknowledged:n} "
    "acknowledgements, of commits or of groups of them, and {without:of commit} without one; one such commit makes a trial void",
    "fastest": "independent of counters: no median commit that waits for a replica took less than {round_trips:.2f} round trips",
    "not-as-configured": "trials void because replication was not as configured: {void}",
}
