"""Generated rows have sysbench's form and depend on nothing but their place."""

from __future__ import annotations

import re
import zlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from howfar.lab.servers.contents import CHUNK_ROWS, find_rows, row_chunk, row_chunks
from howfar.plan.factors import Content

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


def values(content: Content, count: int) -> list[tuple[bytes, bytes]]:
    """`c` and `pad` of rows as the server will hold them."""
    found = []
    for line in row_chunk(find_rows(content), 1, count, count).splitlines():
        _, _, c, pad = line.split(b"\t")
        found.append(
            (bytes.fromhex(c.decode()), bytes.fromhex(pad.decode())) if content == "incompressible" else (c, pad)
        )
    return found


@pytest.mark.parametrize("content", ["digits", "text", "incompressible"])
def test_every_content_fills_the_columns_alike(content: Content) -> None:
    """Answers of the same length, whatever they hold; CHAR would drop a space at the end."""
    rows = values(content, 500)
    assert {(len(c), len(pad)) for c, pad in rows} == {(119, 59)}
    assert len(set(rows)) == 500
    assert content == "incompressible" or not any(value.endswith(b" ") for row in rows for value in row)


@pytest.mark.parametrize(("content", "ratio"), [("digits", 0.52), ("text", 0.41), ("incompressible", 1.0)])
def test_each_content_compresses_as_its_file_says(content: Content, ratio: float) -> None:
    """In the frames of 16 KiB in which servers send it, zlib at their level."""
    stream = b"".join(c for c, _ in values(content, 2000))
    frames = [stream[start : start + 16384] for start in range(0, len(stream), 16384)]
    assert sum(len(zlib.compress(frame, 6)) for frame in frames) / len(stream) == pytest.approx(ratio, abs=0.01)


def test_text_is_plain_sentences() -> None:
    prose = b" ".join(c for c, _ in values("text", 2000)).decode("ascii")
    assert re.fullmatch(r"[A-Za-z .]+", prose)
    words = [word for word in re.split(r"[ .]+", prose.lower()) if word]
    assert 0.10 < words.count("the") / len(words) < 0.16, "1 / (1 + 1/2 + ... + 1/1146) = 0.131"
