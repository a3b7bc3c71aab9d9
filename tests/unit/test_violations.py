"""The reasons of void trials: ids with parameters, their sentences, and how they are read from older files."""

from __future__ import annotations

import string
from typing import Any

import pytest
from tests.made import build_trial

from howfar.analysis.voids import count_kinds, count_voids
from howfar.contract.violation import (
    FAILED,
    OTHER,
    Violation,
    ViolationText,
    join_sentences,
    sentences,
    violation,
    violation_texts,
)
from howfar.store.records import TrialStatus
from howfar.store.void_reasons import parse_reason

EXAMPLES: dict[str, Any] = {
    "d": 3,
    "duration": 2_000_000,
    "ms": 1_500_000,
    "times": 2,
    "tls": "TLSv1.3",
    ".0%": 0.02,
    ".0f": 7.0,
    ".1f": 1.5,
    "g": 99.9,
}
"""A value for each format of a field."""
LATE = (
    "packets to the client were late on the emulated link by 5.5ms (p99.9, limit 5ms): the machine was too busy, or the "
    "emulator was suspended"
)
MINIMUM_WORDS = 3


def example(text: ViolationText) -> dict[str, Any]:
    """Parameters that fit all fields of a template."""
    values: dict[str, Any] = {}
    for _, name, form, _ in string.Formatter().parse(text.sentence):
        if name and name != "subject":
            form = form or ""
            one_of_several = form.partition("|")[0] if "|" in form and not form.startswith("one ") else ""
            values[name] = one_of_several or (4 if form.startswith("one ") else EXAMPLES.get(form, name))
    return values


@pytest.mark.parametrize("text", violation_texts().values(), ids=lambda text: text.id)
def test_every_template_makes_a_sentence_and_a_cause_without_figures(text: ViolationText) -> None:
    found = violation(text.id, "replica1", **example(text))
    assert found.sentence.count("unknown") == text.sentence.count("unknown") and "{" not in found.sentence
    assert found.sentence.count("replica1") == 1
    for _, name, _, _ in string.Formatter().parse(text.cause_template):
        assert not name or isinstance(example(text).get(name, ""), str), f"{text.id}: the cause has a figure"
    assert len(found.cause.split()) >= MINIMUM_WORDS or text.id in (FAILED, OTHER) or "message" in example(text)


@pytest.mark.parametrize(
    "text", [text for text in violation_texts().values() if text.in_older_files], ids=lambda text: text.id
)
def test_the_sentence_of_every_template_is_read_back(text: ViolationText) -> None:
    """As the files of format 8 and older have it. A subject that the sentence does not name precedes it."""
    found = violation(text.id, "replica1", **example(text))
    assert parse_reason(found.sentence) == (found,)


@pytest.mark.parametrize(
    ("found", "words"),
    [
        (violation("late-packets", end="client", lateness_ns=5_500_000, percentile=99.9, allowed_ns=5_000_000), LATE),
        (
            violation("link-lost-packets", end="server", arena_segments=1, transmit_segments=0, socket_packets=None),
            "the link to the server itself lost packets (segments without buffer: 1, not sent: 0; packets at a full socket: unknown)",
        ),
        (
            violation("cpu-slept", "host c", cpu="0", sleeps_per_s=900.2),
            "host c: CPU 0 should have polled while idle, but slept 900 times a second",
        ),
        (
            violation("session-encryption", reporter="server", obtained_tls="", expected_tls="TLSv1.3"),
            "according to the server, the session was in plain text instead of encrypted (TLSv1.3)",
        ),
        (violation("keys-not-found", keys=1), "1 key was not found, although all were set"),
        (
            violation("disturbed-by", program="cargo (pid 4711)", used_cpus=1.0, machine_cpus=2),
            "other programs disturbed the trial: cargo (pid 4711) used 1.0 of 2 CPUs",
        ),
        (violation("of-a-newer-version", size_bytes=7), "of-a-newer-version (size_bytes 7)"),
    ],
    ids=lambda value: value if isinstance(value, str) else value.id,
)
def test_sentences_read_as_before(found: Any, words: str) -> None:
    assert found.sentence == words


def test_a_reason_of_an_older_file_is_split_into_its_violations() -> None:
    late = violation(
        "late-packets", "replica1", end="client", lateness_ns=5_500_000, percentile=99.9, allowed_ns=5_000_000
    )
    lost = violation("link-lost-packets", end="server", arena_segments=1, transmit_segments=0, socket_packets=3)
    died = violation(OTHER, text="the engine died")
    assert parse_reason(join_sentences((late, lost, died))) == (late, lost, died)
    assert parse_reason("") == ()


def test_what_an_older_version_said_of_late_packets_is_the_same_violation() -> None:
    (old,) = parse_reason(
        "the link to client was late by 2ms (p99, allowed 1ms): the machine was too busy, or the emulator was stopped"
    )
    assert (old.id, old.parameters["percentile"]) == ("late-packets", 99)
    assert old.cause == "packets to the client were late on the emulated link"


def test_a_sentence_that_was_cut_off_is_recognised() -> None:
    (found,) = parse_reason(LATE[:-20])
    assert found.sentence == LATE
    assert [each.id for each in parse_reason(LATE[:60])] == ["other"], "a figure may be missing"


def test_violations_that_differ_in_figures_only_are_one_kind() -> None:
    def late(ns: int, subject: str = "") -> Any:
        return violation("late-packets", subject, end="client", lateness_ns=ns, percentile=99.9, allowed_ns=5)

    kinds = count_kinds(
        [(0, (late(7), late(7))), (1, (late(9),)), (2, (late(9, "replica1"), violation(FAILED, message="x 1")))]
    )
    assert [(kind.id, kind.subject, kind.count, kind.varies) for kind in kinds] == [
        ("late-packets", "", 2, True),
        ("late-packets", "replica1", 1, False),
        ("failed", "", 1, False),
    ]
    assert kinds[0].ranges == {"lateness_ns": (7, 9)} and kinds[0].trials == (0, 1)
    messages = [(number, (violation(FAILED, message=f"no answer in {number} s"),)) for number in range(3)]
    assert [(kind.count, kind.varies) for kind in count_kinds(messages)] == [(3, True)], "a message has figures too"
    (kind,) = count_kinds([(0, (late(7), late(9)))])
    assert (kind.count, kind.parameters["lateness_ns"], kind.ranges) == (1, 9, {})


def test_a_void_trial_without_a_reason_counts_too() -> None:
    trial = build_trial(0, "socket", status=TrialStatus.VOID, measured=None)
    assert [kind.id for kind in count_voids([trial])] == ["no-reason"]


def test_a_subject_of_a_subject_is_named_after_it() -> None:
    found = violation("keys-evicted", keys=3).at("redis").at("host c")
    assert sentences([found]) == (
        "host c: redis: the server evicted 3 keys during the trial: its memory was too small for them",
    )


def test_odd_parameters_of_a_damaged_file_still_make_a_sentence() -> None:
    odd = Violation(
        id="late-packets", parameters={"subject": "x", "lateness_ns": "much", "percentile": 1, "allowed_ns": -3.5}
    )
    assert odd.sentence.startswith("packets to the unknown were late on the emulated link by much (p1, limit ")
    assert Violation(id="keys-evicted", parameters={"keys": 1.5}).sentence.startswith("the server evicted 1.5 keys")
