"""Infers pages that were not marked from the gaps between round trips. No I/O.

A gap between two pages, a *rest*, is longer than one within a page, a *pause*. Both spread over several orders of magnitude, so their
logarithms are modelled as two normal distributions, fitted by expectation maximization. The model gives the probability that a gap is
a rest. The confidence of a page is the probability that the gaps before and after it are rests and no gap within it is one.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from howfar.recording.recording import TimedPage

_MIN_GAPS = 8
"""Minimum number of pauses, and of rests, from which their spread can be estimated."""
_ITERATIONS = 100
_MIN_SPREAD = 0.05
"""Minimum standard deviation of a gap's logarithm: because of clock and scheduler, even equal gaps vary by this much."""
_MIN_ASHMAN_D = 3.0
"""Minimum of Ashman's D. Two normal distributions have two peaks from D = 2 on; a single one, cut in two, has a D of up to 2.7."""
_MAX_NAME = 100


class TimedRoundTrip(NamedTuple):
    """A round trip, as returned by `RecordingFile.ordered_round_trips`."""

    id: int
    connection: int
    pid: int | None
    begun_ns: int
    ended_ns: int
    statement: str | None


@dataclass(frozen=True)
class GapModel:
    """Two normal distributions of a gap's logarithm: first that of pauses within a page, then that of rests between pages."""

    means: tuple[float, float]
    spreads: tuple[float, float]
    shares: tuple[float, float]

    def probability(self, log_gaps: np.ndarray) -> np.ndarray:
        """Probability that gaps with these logarithms are rests: 0 below the mean of pauses, 1 above the mean of rests, so that the
        tails of the wider distribution do not count."""
        pause, rest = (
            math.log(share / spread) - ((log_gaps - mean) / spread) ** 2 / 2
            for mean, spread, share in zip(self.means, self.spreads, self.shares, strict=True)
        )
        probability_of_rest = 1 / (1 + np.exp(np.minimum(pause - rest, 700.0)))
        return np.asarray(
            np.where(log_gaps <= self.means[0], 0.0, np.where(log_gaps >= self.means[1], 1.0, probability_of_rest))
        )


def fit_gap_model(log_gaps: np.ndarray) -> GapModel | None:
    """Fit distributions of pauses and rests to the logarithms of gaps. None if the gaps are of one kind, or too few."""
    if len(log_gaps) < 2 * _MIN_GAPS or np.ptp(log_gaps) == 0:
        return None
    rest_probability = (log_gaps > _otsu_threshold(log_gaps)).astype(float)
    for _ in range(_ITERATIONS):
        weights = np.asarray([1 - rest_probability, rest_probability])
        counts = np.maximum(weights.sum(axis=1), 1e-9)
        means = weights @ log_gaps / counts
        spreads = np.maximum(np.sqrt((weights * (log_gaps - means[:, None]) ** 2).sum(axis=1) / counts), _MIN_SPREAD)
        model = GapModel(
            (means[0], means[1]), (spreads[0], spreads[1]), (counts[0] / len(log_gaps), counts[1] / len(log_gaps))
        )
        rest_probability = model.probability(log_gaps)
    ashman_d = math.sqrt(2) * (means[1] - means[0]) / math.hypot(*spreads)
    return model if ashman_d > _MIN_ASHMAN_D and counts.min() >= _MIN_GAPS else None


def _otsu_threshold(values: np.ndarray) -> float:
    """The threshold that maximizes the variance between the two groups (Otsu)."""
    ordered = np.sort(values)
    sums = np.cumsum(ordered)[:-1]
    below = np.arange(1, len(values))
    variances_between = (sums * len(values) - ordered.sum() * below) ** 2 / (below * (len(values) - below))
    index = int(variances_between.argmax())
    return float(ordered[index] + ordered[index + 1]) / 2


def logarithms(gaps_ns: Iterable[int]) -> np.ndarray:
    """Logarithms of gaps. Gaps below a microsecond, which clocks do not resolve, count as one microsecond."""
    return np.asarray(np.log10(np.maximum(np.fromiter(gaps_ns, dtype=float), 1_000.0)))


def pages_by_gaps(
    rows: Iterable[tuple[int, int, int | None, int, int, str | None]],
) -> tuple[list[TimedPage], dict[int, int]]:
    """The pages, and the page ID of each round trip; both are empty if rests cannot be distinguished from pauses.

    Pages are searched in each process separately, and in each connection whose process is unknown."""
    streams: dict[tuple[int | None, int], list[TimedRoundTrip]] = defaultdict(list)
    for row in map(TimedRoundTrip._make, rows):
        streams[row.pid, 0 if row.pid is not None else row.connection].append(row)
    gaps = {trip_id: gap_ns for stream in streams.values() for trip_id, gap_ns in _gaps_before(stream)}
    log_gaps = logarithms(gaps.values())
    model = fit_gap_model(log_gaps)
    if model is None:
        return [], {}
    rest_probability_by_id = dict(zip(gaps, model.probability(log_gaps).tolist(), strict=True))
    pages: list[TimedPage] = []
    page_ids: dict[int, int] = {}
    names: dict[frozenset[str | None], str] = {}
    for (pid, _), stream in streams.items():
        # The beginning and the end of a stream are certainly the beginning and the end of a page.
        rest_probabilities = [1.0, *(rest_probability_by_id.get(trip.id, 0.0) for trip in stream[1:]), 1.0]
        page_borders = [index for index, probability in enumerate(rest_probabilities) if probability > 0.5]
        for first, end in pairwise(page_borders):
            trips = stream[first:end]
            confidence = (
                rest_probabilities[first]
                * math.prod(1 - probability for probability in rest_probabilities[first + 1 : end])
                * rest_probabilities[end]
            )
            page_id, ended_ns = len(pages) + 1, max(trip.ended_ns for trip in trips)
            pages.append(
                TimedPage(
                    page_id,
                    _page_name(trips, names),
                    "gap",
                    round(confidence, 3),
                    pid,
                    trips[0].begun_ns,
                    ended_ns,
                )
            )
            page_ids |= {trip.id: page_id for trip in trips}
    return pages, page_ids


def _gaps_before(stream: Sequence[TimedRoundTrip]) -> Iterator[tuple[int, int]]:
    """The ID of each round trip with the gap before it, except the first and those that begin before an earlier one ends."""
    ended_ns = stream[0].ended_ns
    for trip in stream[1:]:
        if trip.begun_ns > ended_ns:
            yield trip.id, trip.begun_ns - ended_ns
        ended_ns = max(ended_ns, trip.ended_ns)


def _page_name(trips: Sequence[TimedRoundTrip], names: dict[frozenset[str | None], str]) -> str:
    """Name of a page: its first statement. Pages with the same set of statements have the same name; pages that begin with the
    same statement but have another set get a number in addition."""
    statements = frozenset(trip.statement for trip in trips)
    if statements not in names:
        name = next((trip.statement for trip in trips if trip.statement), "page")[:_MAX_NAME]
        used_names, suffix = set(names.values()), 2
        while (names.setdefault(statements, name)) in used_names:
            names[statements] = f"{name} ({suffix})"
            suffix += 1
    return names[statements]
