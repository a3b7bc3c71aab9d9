"""Codec of HDR histograms as the engine sends them: unit 1 ns, three significant digits, compressed V2 encoding, base64.

The format is that of HdrHistogram (Java), class `AbstractHistogram`, method `encodeIntoCompressedByteBuffer`. The values of a bucket
do not depend on a histogram's largest value, so that counts of several histograms can be added.
"""

from __future__ import annotations

import base64
import binascii
import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

MAX_NS = 345_600_000_000_000
"""Four days, as in the engine's histograms: connecting, warm-up, window and a stall last at most a day each."""
SIGNIFICANT_DIGITS = 3

_PLAIN_COOKIE, _COMPRESSED_COOKIE = 0x1C849313, 0x1C849314
_OUTER_HEADER = struct.Struct(">II")
"""Cookie, and the number of bytes that follow."""
_INNER_HEADER = struct.Struct(">IIIIQQd")
"""Cookie, length of the counts, offset of the first, digits, lowest and highest value, and a ratio for real numbers."""
_HALF_BITS = 10
_HALF_STEPS = 1 << _HALF_BITS
"""Half of the linear steps of a power of two: 2 * 10^3 rounded up to 2048, halved."""
_MAX_BUCKETS = 64 * _HALF_STEPS
_MAX_VARINT_BYTES = 8
_MAX_BYTES = 4 * _MAX_BUCKETS * _MAX_VARINT_BYTES


@dataclass(frozen=True)
class Counts:
    """Number of samples in each bucket."""

    by_bucket: np.ndarray

    @property
    def total(self) -> int:
        return int(self.by_bucket.sum())

    def add(self, other: Counts) -> Counts:
        summed = np.zeros(max(len(self.by_bucket), len(other.by_bucket)), dtype=np.int64)
        for counts in (self, other):
            summed[: len(counts.by_bucket)] += counts.by_bucket
        return Counts(summed)


def empty_counts() -> Counts:
    return Counts(np.zeros(0, dtype=np.int64))


def bucket_min_ns(bucket: int) -> int:
    """The smallest value of a bucket, in ns."""
    doublings = max((bucket >> _HALF_BITS) - 1, 0)
    return (bucket - doublings * _HALF_STEPS) << doublings


def bucket_max_ns(bucket: int) -> int:
    """The largest value of a bucket, in ns."""
    return bucket_min_ns(bucket + 1) - 1


def decode(text: str) -> Counts:
    """Read a histogram. Raises ValueError, also if unit or digits are not the engine's."""
    try:
        outer = base64.b64decode(text, validate=True)
        cookie, length = _OUTER_HEADER.unpack_from(outer)
        if cookie != _COMPRESSED_COOKIE or length != len(outer) - _OUTER_HEADER.size:
            raise ValueError("this is no compressed HDR histogram")
        decompressor = zlib.decompressobj()
        inner = decompressor.decompress(outer[_OUTER_HEADER.size :], _MAX_BYTES)
        cookie, length, offset, digits, unit, *_ = _INNER_HEADER.unpack_from(inner)
    except (binascii.Error, zlib.error, struct.error) as error:
        raise ValueError(f"a histogram cannot be read: {error}") from None
    if cookie != _PLAIN_COOKIE or length != len(inner) - _INNER_HEADER.size or not decompressor.eof:
        raise ValueError("an HDR histogram is longer or shorter than it says")
    if (offset, digits, unit) != (0, SIGNIFICANT_DIGITS, 1):
        raise ValueError(f"an HDR histogram of {digits} digits and unit {unit} is not the engine's")
    return _counts_from_steps(_decode_varints(np.frombuffer(inner, dtype=np.uint8, offset=_INNER_HEADER.size)))


def encode(counts: Counts) -> str:
    """Write a histogram in the format that `decode` and HdrHistogram's own libraries read."""
    steps = b"".join(_encode_varint(step) for step in _steps_from_counts(counts))
    inner = _INNER_HEADER.pack(_PLAIN_COOKIE, len(steps), 0, SIGNIFICANT_DIGITS, 1, MAX_NS, 1.0) + steps
    packed = zlib.compress(inner)
    return base64.b64encode(_OUTER_HEADER.pack(_COMPRESSED_COOKIE, len(packed)) + packed).decode()


def _decode_varints(packed: np.ndarray) -> np.ndarray:
    """Signed numbers from groups of 7 bits, the lowest first; the last bit is the sign. Raises ValueError."""
    ends = np.flatnonzero(packed < 0x80)
    if len(packed) and (not len(ends) or ends[-1] != len(packed) - 1):
        raise ValueError("an HDR histogram ends within a number")
    starts = np.concatenate(([0], ends[:-1] + 1)) if len(ends) else ends
    lengths = ends - starts + 1
    max_length = int(lengths.max(initial=0))
    if max_length > _MAX_VARINT_BYTES:
        raise ValueError("a count of an HDR histogram is too large")
    numbers = np.zeros(len(ends), dtype=np.int64)
    for position in range(max_length):
        has_group = lengths > position
        numbers[has_group] |= (packed[starts[has_group] + position].astype(np.int64) & 0x7F) << (7 * position)
    return np.asarray((numbers >> 1) ^ -(numbers & 1))


def _counts_from_steps(steps: np.ndarray) -> Counts:
    """Counts by bucket; a negative step -n stands for n buckets without a sample. Raises ValueError."""
    widths = np.where(steps < 0, -steps, 1)
    # A sum of floats, because integers would overflow with absurd widths.
    if widths.sum(dtype=float) > _MAX_BUCKETS:
        raise ValueError("an HDR histogram has too many buckets")
    by_bucket = np.zeros(int(widths.sum()), dtype=np.int64)
    by_bucket[(np.cumsum(widths) - widths)[steps > 0]] = steps[steps > 0]
    return Counts(by_bucket)


def _steps_from_counts(counts: Counts) -> Iterator[int]:
    """The steps that `_counts_from_steps` reads."""
    last_bucket = -1
    for bucket in np.flatnonzero(counts.by_bucket).tolist():
        if (gap := bucket - last_bucket - 1) > 0:
            yield -gap if gap > 1 else 0
        yield int(counts.by_bucket[bucket])
        last_bucket = bucket


def _encode_varint(number: int) -> bytes:
    remaining, groups = (number << 1) ^ (number >> 63), bytearray()
    while remaining >= 0x80:
        groups.append(remaining & 0x7F | 0x80)
        remaining >>= 7
    return bytes((*groups, remaining))
