"""Texts about crashes, and the names of the faults."""

from __future__ import annotations

from typing import NamedTuple

from howfar.findings import Texts


class FaultTexts(NamedTuple):
    """One level of the factor `fault`, for readers."""

    name: str
    """Short name for labels of charts; `text` explains it."""
    clause: str
    text: str = ""


_UNTIL_KILLED = "and the primary continues until it is killed a second later"
_KILLED_AFTER_JOIN = "a second after it is synchronized, the primary is killed, and all rows must be on that node"
FAULT_TEXTS = {
    "cut": FaultTexts(
        "link cut", "the link was cut and then the primary was killed", "both directions are cut, " + _UNTIL_KILLED
    ),
    "cut-to-replica": FaultTexts(
        "link to replica cut",
        "the link to the replica was cut and then the primary was killed",
        "packets to the replica are dropped, " + _UNTIL_KILLED,
    ),
    "kill-primary": FaultTexts(
        "server killed",
        "the primary's server was killed",
        "SIGKILL to the primary's server; its kernel still delivers what was in the sockets",
    ),
    "stop-replica": FaultTexts(
        "replica stopped first",
        "the replica stopped and then the primary was killed",
        "the replica stops receiving, " + _UNTIL_KILLED,
    ),
    "cut-to-primary": FaultTexts(
        "link from replica cut",
        "the link from the replica was cut and then the primary was killed",
        "packets from the replica are dropped, " + _UNTIL_KILLED,
    ),
    "cut-off-primary": FaultTexts(
        "primary cut off",
        "the primary was cut off from the other nodes and later killed",
        "its links to all other nodes are cut and its clients still reach it; it is killed a second after the others resume",
    ),
    "partition": FaultTexts(
        "partition",
        "the primary and another node were cut off from the majority",
        "the links of the primary and another node to the others are cut, and clients still reach both; the primary is killed a "
        "second after the others resume",
    ),
    "cut-off-member": FaultTexts(
        "member cut off",
        "another node was cut off",
        "all links of a node that no load writes to are cut; a client of its own tries to write there",
    ),
    "member-returns": FaultTexts(
        "member away for 3 s",
        "another node was cut off for 3 s",
        "all links of a node that no load writes to are cut and restored 3 s later, before the others expel it",
    ),
    "member-restarts": FaultTexts(
        "member restarts",
        "another node was shut down for 3 s and joined again",
        "a node that no load writes to is shut down, and started again with its data 3 s later; " + _KILLED_AFTER_JOIN,
    ),
    "member-joins": FaultTexts(
        "new member",
        "another node was replaced by one without data",
        "a node that no load writes to is shut down, and one without data joins in its place; " + _KILLED_AFTER_JOIN,
    ),
    "slow-member": FaultTexts(
        "slow member",
        "another node was slow",
        "the server of a node that no load writes to runs only 10 ms of every 100 ms, for 10 s",
    ),
    "replica-leaves": FaultTexts("replica leaves", "the replica left"),
}
"""Faults by their level."""

_NONE_LOST = "none was lost with {subject} in {crashes:of crash crashes}{several:? of several kinds}"

TEXTS: Texts = {
    # The answer.
    "broken-promise": "{lost:n} of {acknowledged:n} acknowledged commits were lost with {subject}, which should lose none",
    "isolated-writes": "a cut-off {subject} node acknowledged {writes:of commit} by itself",
    "member-joins": "a new {subject} node is fully synchronized after {estimate:table} s",
    "member-restarts": "a restarted {subject} node is fully synchronized after {estimate:table} s",
    "member-joins, after member-restarts": "a new one after {estimate:table} s",
    "meanwhile": "while a node joins, clients make {estimate:fewer} commits",
    "lost": "a crash lost {estimate:count} acknowledged commits with {subject}",
    "lost, next": "{estimate:count} with {subject}",
    "isolated-silence": "no cut-off node acknowledged a commit by itself in {cuts:of cut}",
    "none-lost": "no acknowledged commit was lost with {subject} in {crashes:of crash crashes}{several:? of several kinds}",
    "none-lost, after lost": _NONE_LOST,
    "none-lost, after broken-promise": _NONE_LOST,
    "none-lost, next": "with {subject} in {crashes:of crash crashes}{several:? of several kinds}",
    "stall": "with {subject}, clients waited {estimate:table} s when {fault}",
    # Why commits are lost.
    "unprotected": "with {subject}, the primary acknowledges commits that no replica has; the earliest lost one was {age_ms:.3g} ms "
    "old",
    # Why a node takes long to join.
    "fetched-rest": "a restarted node fetches what it missed, {megabytes:.3g} MB by {how}",
    "fetched-all": "a new node fetches all data, {megabytes:.3g} MB by {how}",
    # Details below the answer.
    "worst": "with {subject}, the worst crash lost {most:of commit}, when {fault}",
    "age": "with {subject}, when {fault}, the earliest lost commit had been acknowledged {age_ms:.3g} ms before the fault",
    "bound": "with {subject}, none of {acknowledged:n} acknowledged commits was lost in {crashes:of crash crashes}{several:? of "
    "several kinds}, so at most {share:upper} of crashes lose any",
    "cuts-bound": "at most {share:upper} of cuts let a cut-off node acknowledge commits by itself",
    "donor-limit": "with {subject}, the donor's link was the bottleneck while the node joined: it was busy for {busy:share} of the "
    "time",
    "early-reads": "with {subject}, {early:n} of the {seen:n} commits that other sessions saw were not yet acknowledged, or never "
    "were",
    "early-reads-by": "with {subject}, {early:n} of the {seen:n} commits that other sessions saw were not yet acknowledged, or never "
    "were; the median was seen {lead_ms:.3g} ms before its acknowledgement",
    "phantoms": "{phantoms:n} of the commits that other sessions saw with {subject} were lost in the crash",
    "applied": "in {crashes:of crash crashes}, {applied:of commit} reached the survivor without an acknowledgement: a client that "
    "retries applies them twice",
    "refused": "in {crashes:of crash crashes}, {applied:of commit} reached the survivor though their clients received an error: a "
    "client that retries applies them twice",
    # Notes of the table of losses.
    "rows": '{crashes:of crash crashes} per row{uneven:? at most}; "applied, not acknowledged" (on the survivor, but the client got '
    'no answer) and "others read, then lost" (what other sessions read and the crash undid) are totals over all '
    "crashes of a row",
    "without-commit": '"s without a commit": the longest time in which no client of the nodes that kept serving had a commit '
    'acknowledged, with the 95 % interval of the mean; "by a node cut off": all writes that it acknowledged without the others',
    "rate-meanwhile": '"meanwhile": the rate while a member was cut off, slow or joining, relative to the rate before',
    "not-back": '"synchronized" excludes {trials:of trial} in which the member was not synchronized again within a minute',
    "received": '"MB": bytes received by the joining node from the start of its server until it was synchronized (kernel counters, '
    "all its links, including the load's writes); \"link busy\": the share of that time in which its donor's link was sending",
    # The table and the chart of joins.
    "join-rows": '"s without a commit": the longest time in which no client had a commit acknowledged; in square brackets, 95 % '
    "intervals",
    "joins-caption": "from the start of the node's server until it is synchronized; the mean of its joins",
    # Titles of the chart.
    "most-lost": "up to {most:n} acknowledged commits lost in one crash: {subject}, {fault}",
    "losses-axis": "acknowledged commits lost in one crash{phantoms:?; triangles: read by others, then lost}",
    "losses-caption": "each mark is one crash; the axis is linear from 0 to 1 and logarithmic beyond{predicted:?. Vertical line and "
    "grey band: predicted, with its interval}{phantoms:?. Filled triangle: rows that others read, then lost}",
    "moments-caption": "for each mode the crash with the median loss ({fault}). Acknowledgements after the bar turns red were known "
    "only to clients and the primary. The takeover starts when the primary is dead",
    "nothing-lost": "no crash lost an acknowledged commit",
    # Why to trust a loss of zero.
    "machine-failure": "a failure of the primary's machine would have lost what was acknowledged before the cut took effect: "
    "{losses}; where two figures are given, they count up to the start and up to the end of the cut",
    "machine-failure-loss": "{subject} {before} in {crashes:of crash crashes}",
    "no-machine-failure": "no trial cut the replica's link before killing the primary, so the failure of a machine was not measured",
    "rule-out": "{crashes:of crash crashes} without a loss show, at 95 % confidence, that at most {share:upper} of crashes lose "
    "any",
    "rule-out-together": "all {crashes:of crash crashes} of modes that should lose nothing, with {acknowledged:of commit}, show "
    "that at most {share:upper} of such crashes lose any",
    "can-find": "the same accounting found {lost:n} lost commits in this run, so it can find them",
    "cannot-show": "no mode of this run lost any commit, so this run does not show that the accounting would find a loss",
    "accounts": "{acknowledged:n} acknowledged keys in the clients' logs were compared with all keys on the survivors: every "
    "account adds up",
    "void": "void, excluded from all figures: {crashes:of crash crashes}",
}
