"""Quantities with units: what is accepted, what is refused, and that nothing loses its unit."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from howfar.errors import QuantityError
from howfar.units import (
    format_duration_ns,
    format_rate_bps,
    format_share,
    format_size_bytes,
    parse_duration_ns,
    parse_rate_bps,
    parse_share,
    parse_size_bytes,
    spoken_span,
)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.4, "0 s"), (99.4, "99 s"), (99.6, "2 min"), (5_940, "99 min"), (5_999, "1.7 h"), (9_000, "2.5 h")],
)
def test_a_span_of_time_as_people_say_it(seconds: float, text: str) -> None:
    assert spoken_span(seconds) == text


@pytest.mark.parametrize(
    ("text", "ns"),
    [
        ("0.2ms", 200_000),
        ("10ms", 10_000_000),
        ("1s", 10**9),
        ("200us", 200_000),
        ("200µs", 200_000),
        (" 5 min ", 300 * 10**9),
        ("5m", 300 * 10**9),
    ],
)
def test_durations(text: str, ns: int) -> None:
    assert parse_duration_ns(text) == ns


@pytest.mark.parametrize(
    ("text", "bps"),
    [
        ("1gbit", 10**9),
        ("100Mbit/s", 10**8),
        ("2.5 gbit", 2_500_000_000),
        ("1Gbps", 10**9),
        ("1Gbit/s", 10**9),
        ("1Gb/s", 10**9),
        ("1g", 10**9),
        ("100M", 10**8),
        ("9600bps", 9600),
    ],
)
def test_rates(text: str, bps: int) -> None:
    assert parse_rate_bps(text) == bps


@pytest.mark.parametrize("text", ["1MB/s", "1GBps", "5Mx", "3Tbps"])
def test_a_refused_rate_is_repeated_as_it_was_typed(text: str) -> None:
    with pytest.raises(QuantityError) as caught:
        parse_rate_bps(text)
    assert text in caught.value.message and text.lstrip("0123456789") in caught.value.message


def test_sizes_and_shares() -> None:
    assert parse_size_bytes("64KiB") == 65536
    assert parse_size_bytes("64kB") == 64000
    assert parse_share("5%") == pytest.approx(0.05)
    assert format_share(0.05) == "5%"
    assert format_size_bytes(65536) == "64KiB"


BAD = [
    "10",
    " ",
    "ms",
    "fast",
    "nan",
    "NaN ms",
    "inf",
    "infms",
    "-1ms",
    "-0.5s",
    "1e999999999ms",
    "1e30s",
    "10 parsecs",
    "1,5ms",
    "0x10ms",
]


@pytest.mark.parametrize("text", BAD)
def test_no_duration(text: str) -> None:
    with pytest.raises(QuantityError) as caught:
        parse_duration_ns(text)
    assert repr(text) in caught.value.message
    assert caught.value.advice


@pytest.mark.parametrize("text", ["10", "fast", "nan", "-1gbit", "0gbit", "1e999999999gbit", "1KiB", "gbit"])
def test_no_rate(text: str) -> None:
    with pytest.raises(QuantityError):
        parse_rate_bps(text)


@pytest.mark.parametrize("text", ["5", "0.05", "-5%", "101%", "nan%", "%", "1e999%"])
def test_no_share(text: str) -> None:
    with pytest.raises(QuantityError):
        parse_share(text)


@given(st.text(max_size=20))
def test_any_text_is_a_quantity_or_a_quantity_error(text: str) -> None:
    for parse in (parse_duration_ns, parse_rate_bps, parse_size_bytes, parse_share):
        with contextlib.suppress(QuantityError):
            assert parse(text) >= 0


@given(st.integers(min_value=1, max_value=2**60))
def test_what_is_shown_can_be_read_and_is_the_same_to_four_digits(value: int) -> None:
    assert parse_duration_ns(format_duration_ns(value)) == pytest.approx(value, rel=1e-3, abs=1)
    assert parse_rate_bps(format_rate_bps(value)) == pytest.approx(value, rel=1e-3, abs=1)
    assert parse_size_bytes(format_size_bytes(value)) == pytest.approx(value, rel=1e-3, abs=1)
