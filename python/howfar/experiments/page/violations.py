"""Message templates for the violations that the experiment on web pages finds."""

from __future__ import annotations

from howfar.contract.violation import ViolationText

VIOLATIONS = (
    ViolationText(
        "php-at-other-address",
        "{service:word} sees PHP connect from {client!r} instead of {expected_client!r}",
        "{service:word} sees PHP connect from another address",
        older_sentences=("{service:word} sees PHP at {client!r}, the path comes from {expected_client!r}",),
    ),
    ViolationText(
        "service-counts",
        "{service:word} counted {counted:d} {quantity}, but {pages:d} pages reported {reported:d}",
        "{service:word} and the pages counted different numbers of {quantity}",
        older_sentences=("{service:word} counted {counted:d} {quantity} of {pages:d} pages, which told {reported:d}",),
    ),
    ViolationText(
        "reported-round-trips",
        "{pages:d} pages reported {reported:d} round trips to {service:word} instead of {expected:d}",
        "pages reported another number of round trips to {service:word} than the script has",
        older_sentences=("{pages:d} pages told {reported:d} turns to {service:word}, the script has {expected:d}",),
    ),
    ViolationText(
        "reported-connections",
        "{pages:d} pages reported {reported:d} connections to {service:word} instead of one each",
        "pages did not report one connection to {service:word} each",
        older_sentences=("{pages:d} pages told {reported:d} connects to {service:word}, each was to make one",),
    ),
    ViolationText("pages-missed-keys", "the pages missed {misses:d} keys of {keys:d}", "the pages missed keys"),
    ViolationText(
        "persistent-connections",
        "{service:word} counted {connections:d} connections of {children:d} PHP processes instead of one each",
        "{service:word} counted more connections than PHP processes",
        older_sentences=(
            "{service:word} counted {connections:d} connections of {children:d} children, which were to keep one each",
        ),
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
        "pages did not make one connection to {service:word} each",
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
