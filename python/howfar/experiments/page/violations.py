"""The templates of the violations of pages and their application."""

from __future__ import annotations

from howfar.contract.violation import ViolationText

VIOLATIONS = (
    ViolationText(
        "php-at-other-address", "{service:word} sees PHP at {client!r}, the path comes from {expected_client!r}"
    ),
    ViolationText(
        "service-counts",
        "{service:word} counted {counted:d} {quantity} of {pages:d} pages, which told {reported:d}",
        "{service:word} counted another number of {quantity} than the pages",
    ),
    ViolationText(
        "reported-round-trips",
        "{pages:d} pages told {reported:d} turns to {service:word}, the script has {expected:d}",
        "pages reported another number of round trips to {service:word} than the script has",
    ),
    ViolationText(
        "reported-connections",
        "{pages:d} pages told {reported:d} connects to {service:word}, each was to make one",
        "pages reported another number of connections to {service:word} than one each",
    ),
    ViolationText("pages-missed-keys", "the pages missed {misses:d} keys of {keys:d}", "the pages missed keys"),
    ViolationText(
        "persistent-connections",
        "{service:word} counted {connections:d} connections of {children:d} children, which were to keep one each",
        "{service:word} counted more connections than children",
    ),
    ViolationText("php-child-died", "{message}", in_older_files=False),
    ViolationText("php-not-cached", "PHP compiled its pages anew each time"),
    ViolationText("no-session-receipt", "{subject} has no receipt"),
    ViolationText(
        "pages-without-report",
        "{reported:d} of {pages:d} pages reported what they did",
        "pages did not report what they did",
    ),
    ViolationText(
        "page-round-trips",
        "{pages:d} pages made {counted:d} round trips to {service:word} instead of {expected:d}",
        "pages made another number of round trips to {service:word} than the script has",
    ),
    ViolationText(
        "page-connections",
        "{pages:d} pages made {counted:d} connections to {service:word} instead of {expected:d}",
        "pages made another number of connections to {service:word} than one each",
    ),
    ViolationText(
        "page-keys",
        "{pages:d} pages found {counted:d} keys instead of {expected:d}",
        "pages found another number of keys",
    ),
    ViolationText(
        "pages-computed-less",
        "{pages:d} pages computed for {computed_ns:d} ns instead of {requested_ns:d} ns",
        "pages computed for less time than requested",
    ),
    ViolationText(
        "pages-computed-more",
        "{pages:d} pages reported more computing ({computed_ns:d} ns) than CPU time ({cpu_ns:d} ns)",
        "pages reported more computing than CPU time",
    ),
    ViolationText(
        "page-computed-less",
        "a page computed for {computed_ns:.0f} ns on average instead of {requested_ns:d} ns",
        "a page computed for less time than requested",
    ),
)
