"""Texts of page runs: findings, advice, limitations, and notes of tables."""

from __future__ import annotations

from howfar.findings import Texts

TEXTS: Texts = {
    # The answer, at each page's headline setting.
    "difference": "two machines serve {estimate:fewer} {subject} pages than one",
    "difference, next": "{estimate:fewer} {subject} pages",
    "unclear": "{subject} pages: too close to call",
    "all-unclear": "whether one machine or two is faster for {subject} pages is too close to call",
    "break-even": "two win above {cpu_ms:table} ms CPU per {subject} page",
    "break-even, next": "{cpu_ms:table} ms per {subject} page",
    "always-gains": "{subject} pages gain from two even with {cpu_ms:table} ms application CPU",
    "never-gains": "{subject} pages never gain from two, even with {cpu_ms:table} ms application CPU",
    "no-pair": "no answer: no page was measured both on one machine with sockets and on two machines",
    # Causes, each a sentence of its own.
    "tcp": "on one machine, TCP serves {estimate:fewer} {subject} pages than sockets",
    "tcp-unclear": "on one machine, TCP against sockets is too close to call for {subject} pages",
    "round-trips": "with one page in flight, the {round_trips:n} round trips of a {subject} page take {estimate:table} ms longer on "
    "two machines, {each_ms:n} ms each",
    "round-trips-unclear": "whether the {round_trips:n} round trips of a {subject} page take longer on two machines is too close to "
    "call",
    "connecting": "a {subject} page on {location} takes {estimate:table} ms longer if it opens new connections",
    "workers": "{workers} PHP workers serve at most {one:n} {subject} pages a second on one machine and {two:n} on two",
    "workers-and-cpus": "{workers} PHP workers serve at most {one:n} {subject} pages a second on one machine and {two:n} on two; "
    "the CPUs here allow {cpus_one:n} and {cpus_two:n}",
    "model": "the model predicts the median time of {cells:of cell} within {worst:share}, on average within {mean:share}",
    "model-misses": "the model misses the median time of real pages by up to {worst:share}, on average by {mean:share}, but "
    "should stay within {bar:share}",
    "impossible": "the model has no prediction for {cells:of cell}: a page it is based on was faster than its parts allow",
}
TITLES: Texts = {
    "crossing": "Pages per second, two machines relative to one, by the application's CPU per page",
    "split": "Parts of a page's time, by path",
    "split-round-trips": "On two machines, a {page} page spends {round_trips_ms:table} of its {page_ms:table} ms in round trips",
    "latency": "How long pages take, by path",
}
"""Titles of charts. A chart with a finding has the finding as its title."""
ADVICE: Texts = {
    "one": "Keep application and servers on one machine, with sockets, for {pages} pages.",
    "two": "Give the application its own machine, for {pages} pages.",
    "needs": "A {page} page needs {own:table} ms of application CPU.",
    "needs, crossing": "A {page} page needs {own:table} ms of application CPU and breaks even at {crossing}.",
    "needs, best": "A {page} page needs {own:table} ms of application CPU; two machines do best with {cpu_ms:table} ms, serving "
    "{ratio} times as many pages as one.",
    "near": "The emulated link takes CPU that a real one does not: a page near that point needs a test on two real machines.",
    "beyond": "The emulated link takes CPU that a real one does not: without it this page may be beyond that point, so test it on "
    "two real machines.",
    "sockets": "On one machine, connect through the sockets: {how}.",
    "round-trips": "Before you use a second machine, cut the round trips of the {page} page. {ways}.",
    "keep": "Reuse connections across pages: {ways}.",
}
SOCKET_LINES = {
    "redis": ("# phpredis", "$redis->pconnect('/run/redis/redis-server.sock');"),
    "memcached": (
        "# memcached -s listens on a socket, and on no port",
        "$memcached->addServer('/run/memcached/memcached.sock', 0);",
    ),
}
"""PHP's lines for the socket of a service without SQL."""
KEEPING_SQL = "PDO::ATTR_PERSISTENT"
KEEPING = {"redis": "pconnect for Redis", "memcached": "a persistent_id for Memcached"}
"""How PHP keeps its connections to a service without SQL."""
CROSSINGS: Texts = {
    # The application's CPU per page from which a second machine pays.
    "axis": "application's CPU per page on one machine, ms{own:?, its own needs included}",
    "interval": "{ms} [{low}, {high}] ms",
    "no interval": "{ms} ms (no interval)",
    "two": "{min_ms} ms or less",
    "one": "none up to {max_ms} ms",
    "unresolved": "too close to call between {min_ms} and {max_ms} ms",
}
REASONS: Texts = {
    "no-interval": "there is no interval",
    "includes-1": "the interval includes 1",
    "no-floor": "the noise floor is unknown",
    "within-floor": "it is within the noise floor{floor}",
    "chance": "1 of {comparisons} comparisons may differ that much by chance",
}
"""Why a comparison is too close to call."""
LIMITS: Texts = {
    "emulator": "Both machines are on one computer, and the emulated link between them uses its CPUs: up to {cpus:.2f}{of_cpus} in "
    "{arm}, {link} ms per page in addition to {others} ms of everything else. A real link takes no CPU for emulation, so two real "
    "machines may perform better than shown here.",
    "half": "Each machine has {own:of CPU}, half of this computer's; a second machine doubles them. This run does not show when "
    "two larger machines pay off; they need more pages in flight to saturate.",
    "visitor": "The visitor speaks FastCGI to PHP-FPM on the application's machine, as a web server does, and uses at most {share} "
    "of a page's CPU, {visitor} ms in {arm}. There is no HTTP and no TLS to the visitor.",
    "closed-loop": "A closed loop of {visitors} visitors without pauses: one shows how long a page takes, several show what a machine "
    "can serve. Visitors who arrive at random wait longer near saturation than the shares over {noticed} and {degraded} ms suggest.",
}
NOTES: Texts = {
    "round-trips": "A {page} page makes {counts} round trips.",
    "first": "Pages of {application}. p50 with {fewest} in flight, the rest with {most}. People notice delays from {noticed} ms. "
    "App CPU is that of the application alone.",
    "machines": "Two machines are two halves of this computer's CPUs, joined by an emulated link.",
    "shown": "{shown} of the run's {cells} cells; the others are under {section}.",
    "crossing": "Total application CPU per page: the page's own needs plus the requested additional computation.",
    "without emulator": "Without the emulator and with half the round trips: by the model.",
    "choices": "Pages per second, paired by block; one machine uses sockets.",
    "break-even": "Break-even of {page} pages: {crossing} of application CPU.",
    "unclear": "Too close to call for {page} pages: {reason}.",
    "clock": "From the first byte sent to the last byte read, by the application's own clock; fewest pages in flight.",
    "kept": "PHP checks whether a kept connection still works: one more round trip each to {targets}.",
    "rest": "At rest, the link takes {us} µs; the remainder is waking CPUs and waiting for them.",
    "model": "Predicted from the real page on sockets, the engine's page on each path, and the link's unloaded RTT.",
    "no model": "No arm has a prediction, which needs real pages on sockets and the engine's page on each path.",
    "busy": "CPUs busy: of the one machine; of two, the application's and the servers'. All: without the link's emulator.",
    "published": "Published for other machines and another application. Here: two machines over one, for the same page.",
}
CAPTIONS: Texts = {
    "crossing": "Points: measured, with 95 % intervals; one machine uses sockets.",
    "crossing, model": " Dashed: the model.",
    "crossing, measured": " Diamond: where both are equal, with its interval.",
    "crossing, floor": " Grey band: the noise floor.",
    "split": "By the application's own clock. A round trip is counted from its first byte sent to its last byte read, including the "
    "application's work for it. The rest is the page's own code, the visitor's path to it, and waiting for a CPU.",
    "latency": "At 99 %, one page in a hundred took longer. Dotted: {noticed} ms, from which people notice a delay, and "
    "{degraded} ms, from which the experience is degraded.",
    "prediction": "On the dashed line the model is right; above it the page was faster than predicted. The grey band is ±10 %.",
}
