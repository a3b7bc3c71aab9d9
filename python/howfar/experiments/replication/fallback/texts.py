"""Texts about a primary whose replica is away."""

from __future__ import annotations

from howfar.findings import Texts

TEXTS: Texts = {
    # The caption of a trial's chart.
    "trial-caption": "one trial (number {number} in the run file): {events}",
    # The answer.
    "fell-back": "with {subject}, commits stalled for {stall_s:table} s; then the primary acknowledged {censored:?at least }"
    "{stated:count} commits that no replica had",
    "waited": "with {subject}, commits stalled for {stall_s:table} s, until the replica was back",
    "went-on": "with {subject} and {replicas:of replica}, the primary continues: it never waits longer than {stall_s:table} s",
    "fell-back, next": "with {subject} they stalled for {stall_s:table} s; then it acknowledged {censored:?at least }{stated:count}",
    "waited, next": "with {subject} for {stall_s:table} s",
    # Why.
    "timed-out": "the primary's own timeout ends the wait after {timeout_s:count} s; what only the primary has is lost if it crashes",
    "waits": "the primary has no timeout: until a replica is back, it acknowledges nothing",
    "others": "an acknowledgement of any one of its {replicas:of replica} is enough, and others were connected",
    # Notes of the table.
    "means": "means over {trials:of trial}{several:? for each mode}{intervals:?; 95 % intervals in brackets, where there are "
    "enough trials}",
    "no-timeout": "with {subject}, this server has no timeout and does not fall back",
    "held-off": "with {subject}, the primary switched back only after the load ended in {held_off} of {trials:of trial}",
    "lower-bound": '"or more": commits waited for the replica again only when the load had ended, or not at all',
    # Title and caption of the chart of one trial.
    "alone-in-trial": "in one trial, {unprotected:of commit} acknowledged without a replica",
    "unprotected": "{unprotected:,} commits not acknowledged by a replica",
    "stood-still": "in one trial, no commit for {stall_s:table} s while the replica was away",
    "link-cut": "at {left_s:.1f} s the link is cut",
    "fell": "from {fell_s:.1f} s the primary acknowledges without its replica",
    "link-back": "at {returned_s:.1f} s the link returns",
    "reconnected": "at {reconnected_s:.1f} s the replica is connected",
    "never-back": "no commit waits for it until the end of the trial",
    "back-after-load": "only at {back_s:.1f} s, when the load has ended, would commits wait for it again",
    "back": "at {back_s:.1f} s commits wait for it again",
    "lag-panel": "below: transactions that the replica lacks; a gap: unknown",
    # Details.
    "silent-log": "the primary ({subject}) logged nothing about it",
    "log": "the primary ({subject}) logged only this about it",
    "sources": "trials: {trials}; commits are counted from the clients' logs, states by querying the primary",
    "queries": "queries of the primary's state are {apart_s:table} s apart in the median",
}
