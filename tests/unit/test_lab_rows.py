"""Generated rows have sysbench's form and depend on nothing but their place."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from howfar.lab.servers.contents import CHUNK_ROWS, find_rows, row_chunk, row_chunks

DIGITS = find_rows("digits")

_LINE = re.compile(r"(\d{10})\t(\d{10})\t(\d{11}(?:-\d{11}){9})\t(\d{11}(?:-\d{11}){4})")


@settings(max_examples=20)
@given(st.integers(1, 10**9), st.integers(1, 200), st.integers(1, 10**9))
def test_every_row_has_sysbenchs_form(first: int, count: int, size: int) -> None:
    lines = row_chunk(DIGITS, first, count, size).decode("ascii").splitlines()
    assert len(lines) == count
    for number, line in enumerate(lines, start=first):
        match = _LINE.fullmatch(line)
        assert match is not None, line
        assert int(match[1]) == number
        assert 1 <= int(match[2]) <= size
        assert (len(match[3]), len(match[4])) == (119, 59)


def test_rows_are_the_same_each_time_and_differ_among_themselves() -> None:
    assert row_chunk(DIGITS, 1, 50, 1000) == row_chunk(DIGITS, 1, 50, 1000)
    pads = {line.rsplit(b"\t", 1)[1] for line in row_chunk(DIGITS, 1, 50, 1000).splitlines()}
    assert len(pads) == 50


@pytest.mark.parametrize("size", [1, 100, CHUNK_ROWS, CHUNK_ROWS + 1])
def test_chunks_make_the_whole_table(size: int) -> None:
    chunks = list(row_chunks(DIGITS, size))
    assert sum(chunk.count(b"\n") for chunk in chunks) == size
    assert int(chunks[-1].splitlines()[-1].split(b"\t")[0]) == size


def test_digits_are_even() -> None:
    """100 rows x 165 digits = 16500; each digit 1650 times, standard deviation sqrt(16500 x 0.09) = 39: five of them allowed."""
    text = b"".join(b"".join(line.split(b"\t")[2:]) for line in row_chunk(DIGITS, 1, 100, 100).splitlines())
    for digit in b"0123456789":
        assert abs(text.count(digit) - 1650) < 200
