"""Texts of the report of a load."""

from __future__ import annotations

from howfar.findings import Texts

QUESTION = "How fast is this server under this load?"
QUESTION_OF_SEARCH = "How much load does this server sustain with {goal}?"
ANSWERS: Texts = {
    "void": "no answer: the session differs from the request",
    "failing": "no answer: too many requests did not succeed",
    "overloaded": "less than {due:count} transactions/s: {unanswered:share} of the requests due were not answered",
    "closed": "{rate:table} transactions/s in a closed loop over {connections:of connection}, with {p99}",
    "client-limited": "at least {rate:table} transactions/s: this client was at its limit",
    "none-due": "no answer: no request was due in the window",
    "sustained": "it sustains {due:count} transactions/s, with {p99}",
    "answered": "{answered:share} of the requests due at {due:count} transactions/s were answered in the window, with {p99}",
    # Of a search.
    "found": "{rate:table} transactions/s is the highest rate that met {goal}",
    "at_least": "at least {rate:table} transactions/s: no rate up to that missed {goal}",
    "below": "less than {failed:table} transactions/s: no rate that was tried met {goal}",
    "unclear": "between {rate:table} and {failed:table} transactions/s: the trials were inconclusive",
}
P99: Texts = {
    "exact": "a p99 of {time}",
    "bound": "a p99 of at least {time}",
    "unknown": "an unknown p99",
}
CAUSES: Texts = {
    "waits": "each connection runs one transaction at a time, which takes {mean} on average",
    "answered": "{answered:,} of {due:,} requests due were answered; at most {queued:,} were queued",
    "stamp": "{because}",
    "repeated": "it met the goal all {repeats} times, while {failed:table} transactions/s failed",
}
CERTAINTY: Texts = {
    "run": "one run of {seconds:count} s with {transactions:of transaction}",
    "valid": "no check found a problem",
    "errors": "{errors:of error} counted, and no other problem found",
    "doubtful": "the load was {stamps}",
    "disturbed": "{others}",
    "unknown": "{unknown:of check} could not be made",
    "trials": "{trials:of trial}, {repeats} of them at {rate:table} transactions/s",
    "only-trials": "{trials:of trial}",
    "disturbed-trials": "in a trial that failed, {others}",
    "client": "in trials that failed this client was short of CPU, so the server may sustain more",
}
ADVICE: Texts = {
    "repeat": "Repeat it: one run says nothing about variation between runs.",
    "longer": "Run longer, so that steadiness can be judged.",
    "rate": "For response times as users see them, set a --rate below {rate:table}, or search for one with --search 'p99<…'.",
    "at_least": "Raise --search-high to try higher rates.",
    "unclear": "Search again with a longer --time.",
    "below": "Search again with a lower --search-low.",
    "quiet": "Stop other programs, such as {program}, and search again.",
}
LOOPS: Texts = {
    "closed": "closed loop",
    "poisson": "open loop, {due:count} transactions/s due, Poisson",
    "constant": "open loop, {due:count} transactions/s due, evenly spaced",
    "bursts": "open loop, {due:count} transactions/s due, bursts of {burst}",
}
SETTING: Texts = {
    "connections": "{connections:of connection}",
    "with-idle": "{connections:of connection} and {idle:,} idle ones",
    "window": "{seconds:count} s, no warm-up",
    "window-warm": "{seconds:count} s after {warmup:count} s of warm-up",
    "seed": "seed {seed}",
}
LATENCY_NOTES: Texts = {
    "open": "response: from when due; service: from the first byte sent; lateness: how late this client sent.",
    "closed": "Finished transactions: a closed loop sends nothing while it waits, so a stall affects at most one per connection.",
    "in-flight": "In flight at the end: {count:,}, the oldest for {age}: {compared}; the figures of {kind} and statements cover "
    "answered requests only.",
    "in-flight-longer": "longer than the p99 of {kind}",
    "in-flight-none": "none finished",
}
HISTOGRAM = "Latencies in ms, in sysbench's buckets"
LINES: Texts = {
    "stamp": "{stamp}: {because}.",
    "unknown": "not judged: {check}: {reason}.",
    "requests": "{due:,} requests due: {answered:,} answered, {unanswered:,} not{failed}; at most {queued:,} queued.",
    "failed": ", {failed:,} failed",
    "errors": "Errors: {errors}",
    "loss": "Last disconnect: {message}. {advice}",
    "session": "Session: {server}, connection {connection}, login by {plugin}, statements {mode}",
    "transport": "Transport: {transport}",
    "layers": "Layers: {tls}; {compression}",
    "client": "Client: {cost}{busy}; {memory}; {driver}",
    "client-cost": "{cpu} CPU/query; ",
    "busiest": "busiest of {threads} threads on a CPU {share:.0%} of the window",
    "one-thread": "its thread on a CPU {share:.0%} of the window",
    "tcp": "TCP: RTT p50 {p50}, max {most}; {retransmits:,} segments retransmitted",
}
