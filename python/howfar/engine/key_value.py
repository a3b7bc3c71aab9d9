"""A workload of Redis or Memcached: commands on keys that are drawn, instead of statements.

Not here: what comes back (`load_events.py`). `crates/record` mirrors these types.
"""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from howfar.engine.message import Message
from howfar.engine.workloads import Distribution

KEY_DIGITS = 12
MOST_BYTES_AT_ONCE = 64 * 2**20
"""Of the values of one request, or of one reply, with their keys: a connection of the engine holds as much."""
LONGEST_VALUE = 2**20
"""Bytes. By default Memcached refuses values a little shorter than this already."""


class FixedSize(Message):
    """Every value has so many bytes."""

    kind: Literal["fixed"] = "fixed"
    bytes: int = Field(default=100, ge=0, le=LONGEST_VALUE)


class UniformSize(Message):
    """From low..=high, each as likely as any other."""

    kind: Literal["uniform"] = "uniform"
    low: int = Field(ge=0, le=LONGEST_VALUE)
    high: int = Field(ge=0, le=LONGEST_VALUE)

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.low > self.high:
            raise ValueError("low is above high")
        return self


class LognormalSize(Message):
    """Half are shorter than `median`; `sigma` is the deviation of the natural logarithm. What is longer than `most` is cut to it."""

    kind: Literal["lognormal"] = "lognormal"
    median: int = Field(ge=1, le=LONGEST_VALUE)
    sigma: float = Field(ge=0, le=10)
    most: int = Field(ge=1, le=LONGEST_VALUE)

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.median > self.most:
            raise ValueError("the median is above the most")
        return self


class Size(Message):
    bytes: int = Field(ge=0, le=LONGEST_VALUE)
    weight: int = Field(default=1, ge=1, le=1_000_000)


class ListedSizes(Message):
    """Each with its share of all weights."""

    kind: Literal["listed"] = "listed"
    sizes: tuple[Size, ...] = Field(min_length=1, max_length=256)


Sizes = Annotated[FixedSize | UniformSize | LognormalSize | ListedSizes, Field(discriminator="kind")]


def _longest(value: Sizes) -> int:
    match value:
        case FixedSize():
            return value.bytes
        case UniformSize():
            return value.high
        case LognormalSize():
            return value.most
        case ListedSizes():
            return max(size.bytes for size in value.sizes)


class KeyValue(Message):
    """A transaction is one request of `pipeline` commands and all their replies; its latency ends with the last byte.

    A key is `key_prefix` and its number from 1 in twelve digits. Its value depends on its number alone, in length and content: a
    tables job with the same workload sets (`prepare`), reads (`warmup`) or deletes (`cleanup`) all keys, and what a load sets are
    the same values again.
    """

    kind: Literal["key_value"] = "key_value"
    protocol: Literal["resp2", "resp3", "memcached_text", "memcached_meta"]
    """Redis: each session of `resp3` begins with HELLO 3, one of `resp2` with AUTH if there is a password."""
    keys: int = Field(default=10_000, ge=1, lt=10**12)
    key_prefix: str = Field(default="key:", pattern=r"^[A-Za-z0-9:_.-]{0,64}$")
    distribution: Distribution = Distribution(kind="uniform")
    get: int = Field(default=9, ge=0, le=1_000_000)
    """Weights of the commands; each one is drawn with its share of their sum."""
    set: int = Field(default=1, ge=0, le=1_000_000)
    multi_get: int = Field(default=0, ge=0, le=1_000_000)
    """`keys_each` keys at once: MGET, `get` with several keys, or quiet `mg`s and an `mn`."""
    delete: int = Field(default=0, ge=0, le=1_000_000)
    keys_each: int = Field(default=10, ge=1, le=1000)
    value: Sizes = FixedSize()
    pipeline: int = Field(default=1, ge=1, le=1000)
    """Commands sent at once; the next request waits for the replies to all."""
    on_error: Literal["stop", "count"] = "stop"
    """An error that the server answers a command with ends the job, or is counted under its first word. No command is sent again."""

    @model_validator(mode="after")
    def _some_command(self) -> Self:
        if not (self.get or self.set or self.multi_get or self.delete):
            raise ValueError("some command needs a weight above 0")
        return self

    @model_validator(mode="after")
    def _bounded_at_once(self) -> Self:
        if not self.fits_at_once(max(self.pipeline, self.keys_each if self.multi_get else 1)):
            raise ValueError("pipeline and keys_each times the longest value with its key must be 64 MiB at most")
        return self

    def fits_at_once(self, keys: int) -> bool:
        """A reply with so many of the longest values, and their keys."""
        return keys * (_longest(self.value) + len(self.key_prefix) + KEY_DIGITS) <= MOST_BYTES_AT_ONCE

    @property
    def is_redis(self) -> bool:
        return self.protocol in ("resp2", "resp3")
