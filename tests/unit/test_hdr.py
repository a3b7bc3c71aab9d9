"""HDR histograms compared with HdrHistogram's own Python library, and hostile ones."""

from __future__ import annotations

import base64
import struct
import zlib

import numpy as np
import pytest
from hdrh.histogram import HdrHistogram
from hypothesis import given, settings
from hypothesis import strategies as st

from howfar.stats import hdr
from howfar.stats.hdr import MAX_NS, SIGNIFICANT_DIGITS, Counts, bucket_max_ns, bucket_min_ns, decode, encode
from howfar.stats.histograms import merge_data, share_above, value_at

VALUES = st.lists(
    st.tuples(st.integers(1, 1 << 46).map(lambda n: n >> (n % 46)), st.integers(1, 1 << 40)), min_size=1, max_size=60
)
PERCENTILES = (0, 1, 25, 50, 90, 95, 99, 99.9, 100)


def library(samples: list[tuple[int, int]]) -> HdrHistogram:
    found = HdrHistogram(1, MAX_NS, SIGNIFICANT_DIGITS)
    for value, count in samples:
        found.record_value(value, count)
    return found


@given(VALUES)
def test_values_are_those_of_the_library(samples: list[tuple[int, int]]) -> None:
    theirs = library(samples)
    ours = decode(theirs.encode().decode())
    assert ours.total == theirs.get_total_count()
    for each in PERCENTILES:
        assert value_at(ours, each / 100) == theirs.get_value_at_percentile(each / 100 * 100)


@given(VALUES, VALUES)
def test_a_sum_is_that_of_the_library_which_reads_it_too(
    one: list[tuple[int, int]], other: list[tuple[int, int]]
) -> None:
    theirs = library([*one, *other])
    ours = merge_data([library(one).encode().decode(), library(other).encode().decode()])
    again = HdrHistogram.decode(encode(ours))
    assert again.get_total_count() == theirs.get_total_count()
    for each in PERCENTILES:
        assert again.get_value_at_percentile(each) == theirs.get_value_at_percentile(each)
    assert np.array_equal(decode(encode(ours)).by_bucket, np.trim_zeros(ours.by_bucket, "b"))


@given(st.integers(0, 1 << 47))
def test_a_value_is_in_its_bucket(value: int) -> None:
    theirs = HdrHistogram(1, 1 << 48, SIGNIFICANT_DIGITS)
    bucket = next(iter(np.flatnonzero(decode(_one(value)).by_bucket)))
    assert (bucket_min_ns(int(bucket)), bucket_max_ns(int(bucket))) == (
        theirs.get_lowest_equivalent_value(value),
        theirs.get_highest_equivalent_value(value),
    )


def _one(value: int) -> str:
    histogram = HdrHistogram(1, 1 << 48, SIGNIFICANT_DIGITS)
    histogram.record_value(value)
    return str(histogram.encode().decode())


def test_shares_count_what_is_above() -> None:
    merged = decode(library([(1_000_000, 3), (2_000_000, 1)]).encode().decode())
    assert share_above(merged, 1_500_000) == 0.25
    assert share_above(hdr.empty_counts(), 1) == 0 and value_at(hdr.empty_counts(), 0.5) == 0


@settings(max_examples=300)
@given(st.binary(max_size=200), st.integers(0, 300), st.integers(0, 255))
def test_what_is_no_histogram_is_refused(some: bytes, at: int, byte: int) -> None:
    """Random bytes, and a histogram with one byte changed inside or outside of its compressed part."""
    outer = bytearray(base64.b64decode(_one(123_456_789)))
    inner = bytearray(zlib.decompress(outer[8:]))
    inner[at % len(inner)] = byte
    outer[at % len(outer)] = byte
    for data in (some, bytes(outer), _packed(bytes(inner)), _packed(some)):
        try:
            assert len(decode(base64.b64encode(data).decode()).by_bucket) <= 1 << 16
        except ValueError as error:
            assert "histogram" in str(error)
    with pytest.raises(ValueError, match="histogram"):
        decode("no base64!")


def _packed(inner: bytes) -> bytes:
    packed = zlib.compress(inner)
    return struct.pack(">II", 0x1C849314, len(packed)) + packed


def test_a_histogram_that_unpacks_to_gigabytes_is_refused() -> None:
    inner = struct.pack(">IIIIQQd", 0x1C849313, 1 << 28, 0, 3, 1, MAX_NS, 1.0) + bytes(1 << 28)
    with pytest.raises(ValueError, match="longer or shorter"):
        decode(base64.b64encode(_packed(inner)).decode())
    wide = struct.pack(">IIIIQQd", 0x1C849313, 8, 0, 3, 1, MAX_NS, 1.0) + b"\xff" * 7 + b"\x7f"
    with pytest.raises(ValueError, match="too many buckets"):
        decode(base64.b64encode(_packed(wide)).decode())


def test_counts_of_two_lengths_add_up() -> None:
    assert Counts(np.array([1])).add(Counts(np.array([1, 2]))).by_bucket.tolist() == [2, 2]
