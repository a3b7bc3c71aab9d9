"""Division into pages by idle gaps, on traffic of which the rests between pages are known."""

from __future__ import annotations

import math
import random

import pytest

from howfar.recording.gaps import fit_gap_model, logarithms, pages_by_gaps

Row = tuple[int, int, int | None, int, int, str | None]
MS = 1_000_000


def visits(
    rest_ms: float, *, pages: int = 300, seed: int = 1, pids: tuple[int | None, ...] = (7,)
) -> tuple[list[Row], set[int]]:
    """Pages of 5 to 15 round trips with pauses of about 0.3 ms, for each process or connection; and each page's first round trip."""
    chance = random.Random(seed)
    rows: list[Row] = []
    first: set[int] = set()
    for connection, pid in enumerate(pids):
        now = 0
        for _ in range(pages):
            now += round(chance.lognormvariate(math.log(rest_ms), 0.4) * MS)
            first.add(len(rows))
            for at in range(chance.randint(5, 15)):
                rows.append((len(rows), connection, pid, now, now + MS, "SELECT a" if at == 0 else "SELECT b"))
                now += MS + round(chance.lognormvariate(math.log(0.3), 0.7) * MS)
    return sorted(rows, key=lambda row: row[3]), first


@pytest.mark.parametrize("pids", [(7,), (7, 8, 9), (None, None)])
def test_long_rests_are_found_surely(pids: tuple[int | None, ...]) -> None:
    rows, first = visits(300, pids=pids)
    pages, placed = pages_by_gaps(rows)
    begun = {page.begun_ns for page in pages}
    assert len(pages) == len(first)
    assert begun == {row[3] for row in rows if row[0] in first}
    assert min(page.confidence for page in pages) > 0.99
    assert {page.name for page in pages} == {"SELECT a"}
    assert set(placed) == {row[0] for row in rows}


@pytest.mark.parametrize("rest_ms", [2.0, 4.0, 8.0])
def test_the_confidence_is_the_share_of_pages_that_are_right(rest_ms: float) -> None:
    """Where rests are hardly longer than pauses some pages are wrong; the stated confidence is right to within 5 % of all pages."""
    rows, first = visits(rest_ms, pages=2000)
    true = {frozenset(range(at, end)) for at, end in zip(sorted(first), [*sorted(first)[1:], len(rows)], strict=True)}
    pages, placed = pages_by_gaps(rows)
    held: dict[int, set[int]] = {}
    for number, page in placed.items():
        held.setdefault(page, set()).add(number)
    right = sum(frozenset(one) in true for one in held.values()) / len(pages)
    stated = sum(page.confidence for page in pages) / len(pages)
    assert stated == pytest.approx(right, abs=0.05)


def test_gaps_of_one_kind_are_no_rests() -> None:
    chance = random.Random(2)
    assert fit_gap_model(logarithms([round(chance.lognormvariate(math.log(MS), 0.7)) for _ in range(500)])) is None
    assert fit_gap_model(logarithms([MS] * 500)) is None
    assert fit_gap_model(logarithms([MS] * 7 + [1000 * MS] * 7)) is None, "too few of them"


def test_pages_that_send_other_statements_have_another_name() -> None:
    rows: list[Row] = []
    for page in range(40):
        for at in range(10):
            begun = page * 1000 * MS + at * 2 * MS
            statement = "SELECT a" if at == 0 else "SELECT b" if page % 2 else "SELECT c"
            rows.append((len(rows), 1, 7, begun, begun + MS + page, statement))
    pages, _ = pages_by_gaps(rows)
    assert {page.name for page in pages} == {"SELECT a", "SELECT a (2)"}
    assert [page.confidence for page in pages] == [1.0] * 40
