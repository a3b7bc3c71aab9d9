"""The answer of a run: one sentence, made by templates from findings that are data."""

from __future__ import annotations

import math

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from howfar import findings
from howfar.analysis.answer import MAX_WORDS, NOT_YET, UNRESOLVED, not_yet, sentence
from howfar.experiments.registry import EXPERIMENTS
from howfar.findings import Finding, capital, fill, join_clauses
from howfar.stats.estimate import Estimate
from howfar.stats.intervals import MIN_BLOCKS

TEXTS = {
    "less": "{subject} is {estimate:slower} than {baseline}",
    "less, next": "{subject} {estimate:slower}",
    "count": "{subject} serves {n:n} pages",
    "same": "{subject} serves as many pages",
    "same, after count": "{subject} as many",
}


def less(subject: str, ratio: float) -> Finding:
    """A finding with a ratio."""
    return Finding(
        id="less",
        subject=subject,
        estimate=Estimate(value=ratio, low=None, high=None),
        parameters={"baseline": "socket"},
    )


def unresolved(subject: str) -> Finding:
    return Finding(id=UNRESOLVED, subject=subject, parameters={"baseline": "socket"})


@pytest.mark.parametrize(
    ("ratio", "text"),
    [
        (0.19, "5.3 times slower"),
        (0.5, "2.0 times slower"),
        (0.84, "16 % slower"),
        (1.05, "5 % faster"),
        (12, "12 times faster"),
    ],
)
def test_a_ratio_is_said_as_people_say_it(ratio: float, text: str) -> None:
    assert sentence([less("the path", ratio)], TEXTS) == f"The path is {text} than socket."


@pytest.mark.parametrize(("form", "text"), [("slower", "as fast"), ("fewer", "as many"), ("more", "as much")])
def test_a_ratio_of_one_is_no_difference(form: str, text: str) -> None:
    assert fill(f"{{ratio:{form}}}", ratio=1.0) == text
    assert fill("{ratio:slower}", ratio=1.004) == "0.4 % faster"


@pytest.mark.parametrize(
    ("ratio", "text"),
    [
        (0.0, "100 % slower"),
        (5e-324, "100 % slower"),
        (0.99999999, "as fast"),
        (1.0004, "as fast"),
        (math.inf, "unknown"),
    ],
)
def test_an_extreme_ratio_has_words(ratio: float, text: str) -> None:
    assert fill("{ratio:slower}", ratio=ratio) == text
    assert fill("{ratio:slower}", ratio=Estimate.model_construct(value=ratio, low=None, high=None)) == text


@given(st.floats(-1e250, 1e250) | st.sampled_from([math.inf, -math.inf, math.nan]))
@example(0.0)
def test_each_format_has_a_text_for_each_number(value: float) -> None:
    texts = {fill(f"{{value:{form}}}", value=value) for form in (*findings._FORMATS, "of thing", ".0f")}
    assert all(texts) and (math.isfinite(value) or texts == {"unknown"})


@pytest.mark.parametrize("form", ["n", "table", "count", "exact"])
@pytest.mark.parametrize("value", [4e-9, 4e-5, 0.0412, 0.9999, 1, 16.02, 99.96, 1234.5, 11_734.2, 5e7, 0.0, -2.5e-6])
def test_no_number_has_an_exponent(form: str, value: float) -> None:
    text = fill(f"{{value:{form}}}", value=value)
    assert set(text) <= set("-0123456789.,")
    assert float(text.replace(",", "")) == pytest.approx(value, rel=0.05)


def test_names_keep_their_small_letters_at_the_beginning_of_a_sentence() -> None:
    assert capital("pgbouncer-tcp, 16 connections: slower") == "pgbouncer-tcp, 16 connections: slower"
    assert capital("synchronous_commit is off") == "synchronous_commit is off"
    assert capital("commits wait") == "Commits wait"


def test_clauses_make_one_sentence() -> None:
    assert join_clauses(iter(("commits wait", "locks do not"))) == "Commits wait; locks do not."
    assert join_clauses(()) == ""


def test_findings_of_one_kind_share_a_clause() -> None:
    findings = [less("remote", 0.25), less("ssh", 0.2), unresolved("tcp"), unresolved("haproxy")]
    assert (
        sentence(findings, TEXTS)
        == "remote is 4.0 times slower than socket, ssh 5.0 times slower; too close to call: tcp and haproxy against socket."
    )


def test_a_clause_may_depend_on_the_one_before() -> None:
    count = Finding(id="count", subject="tcp", parameters={"n": 8})
    same = Finding(id="same", subject="ssh")
    assert sentence([count, same], TEXTS) == "tcp serves 8 pages; ssh as many."
    assert sentence([same, count], TEXTS) == "ssh serves as many pages; tcp serves 8 pages."


def test_a_sentence_ends_before_the_finding_that_would_make_it_too_long() -> None:
    findings = [less(f"path {number} by way of {number} hops", 0.1 + number / 20) for number in range(9)]
    text = sentence(findings, TEXTS)
    assert 20 <= len(text.split()) <= MAX_WORDS and text.endswith("slower.")


def test_no_findings_make_no_sentence() -> None:
    assert sentence([], TEXTS) == ""


def test_too_few_blocks_are_no_answer() -> None:
    finding = not_yet(MIN_BLOCKS - 1)
    assert (
        finding.id == NOT_YET
        and sentence([finding], {})
        == "No answer yet: this run has 3 of the 4 blocks that an answer needs; each measures everything once."
    )


def test_each_template_has_an_id_of_its_own_experiment() -> None:
    for experiment in EXPERIMENTS:
        assert not {UNRESOLVED, NOT_YET} & experiment.texts.keys(), "a common text has one wording"


def test_subjects_that_do_not_fit_are_counted() -> None:
    """A clause never ends as if it named all; and what follows it is not said instead of them."""
    many = [Finding(id="slow", subject=f"the path called number {number}") for number in range(9)]
    texts = {"slow": "slower are {subject}", "other": "{subject} is another matter"}
    text = sentence([*many, Finding(id="other", subject="haproxy")], texts)
    assert len(text.split()) <= MAX_WORDS
    named = text.count("number")
    assert 1 <= named < 9 and text.endswith(f"and {9 - named} more.")
