"""Predicts the time of recorded pages on another path in two ways. No I/O; the entry point is `analyze`.

Bottom-up: the sum of a page's gaps (the application's own time), the server's time, and what each of its round trips costs on that
path, which depends on the bytes sent each way. Slope: the present time, plus the added cost of the round trips for which, according to
`howfar slope`, the page waits.

Intervals are prediction intervals, for another run. They come from resampling pages and blocks of costs, include the uncertainty of
CPU sleep, and cover both the machine's state during the recording and its present state.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from howfar.recording.costs import PathCosts
from howfar.recording.other_programs import BusyPrograms, find_busy_calibration, find_busy_pages, merge_found
from howfar.recording.page_costs import CostedPage, cost_pages, median_pages, sequential_trips, tap_ns
from howfar.recording.recording import Recording, cold_start_note, uncertainty_note
from howfar.recording.slope import Slope
from howfar.recording.summary import tap_us
from howfar.stats.estimate import Estimate, Part
from howfar.stats.intervals import MIN_BLOCKS, are_disjoint, mean_interval, t_quantile

PRESENT_MISS_SHARE = 0.05
"""No prediction is given if the time on the present path has changed since the recording by more than this share of the prediction."""
SMALL_WINDOW = 1 << 14
"""A small receive buffer, in bytes, such as some applications set."""
RESAMPLES = 2000
"""Number of resamples behind an interval."""
_SEED = 20_261
_NORMAL_QUANTILE = 1.96
_CURVE_RTTS_NS = tuple(1000 * us for us in (100, 200, 500, 1000, 2000, 5000, 10_000, 20_000, 50_000, 100_000))


class Quantiles(Part):
    """Quantiles of a page's time in ms."""

    p50_ms: Estimate
    p95_ms: Estimate


class Parts(Part):
    """The parts of a page's time, in ms; they add up to the median."""

    application_ms: float
    path_ms: float
    """Path time. Of connects it includes only how much longer they take than on the present path; the rest is in the application's
    time."""
    server_ms: float


class Miss(Part):
    """Why the prediction for the present path is wrong: what each cause adds to the recorded time, in ms, as the mean over pages."""

    beyond_ms: float
    """Excess because the round trips together took longer than the page."""
    clipped_ms: float
    """Excess because round trips took less time than the path costs, so that their server time was set to 0."""
    shift_ms: float
    """Difference because the time of a round trip without work has changed since the recording."""


class PagePrediction(Part):
    """The prediction for all pages of one name."""

    name: str
    pages: int
    unsure: str | None
    """A note that the page's begin and end are uncertain, if they were not marked."""
    cold: str | None
    """A note about a first page that took much longer."""
    round_trips: float
    """Mean number of round trips that a page waits for."""
    overlapped: float
    """Mean number of round trips of a page that overlap a longer one and are not in `round_trips`."""
    connects: float
    """Mean number of connections that a page opens."""
    now: Quantiles
    """Times as recorded, without the time that the tap added."""
    later: Quantiles | None
    """Times of a later recording, without the time that its tap added. None if no later recording exists."""
    present: Quantiles
    """Times predicted for the path on which the page was recorded."""
    bottom_up: Quantiles
    slope: Quantiles | None
    """Times predicted from the page's slope; None if the slope is unknown."""
    serial_share: float | None
    """Round trips that the page waits for according to the slope, divided by the round trips counted."""
    parts_now: Parts
    parts: Parts
    """Parts on the target path."""
    median_round_trips: float
    """Number of round trips of the pages that `parts` describes: the page of median time on the target path, or the mean of two."""
    median_added_connect_ms: float
    """The part of `parts.path_ms` by which the connects of these pages take longer than on the present path."""
    miss: Miss
    clipped: float
    """Share of round trips that took less than the path costs now."""
    small_window_ms: float | None
    """p50 if the application's receive buffer held only 16 kB. None if that has no effect: no larger answer, or no link."""
    failing: dict[str, tuple[int, int]]
    """Statements that the server refused, with the numbers of failures and of runs in all pages."""
    at_rtt: dict[int, Quantiles]
    """Times at the other requested RTTs of the same link, by RTT in ns."""
    curve_ms: dict[int, float]
    """p50 by RTT in ns, other things equal; empty if the target crosses no link."""
    others: BusyPrograms | None
    """Other programs while these pages were recorded; None if unknown."""
    later_others: BusyPrograms | None
    """The same, for the later recording."""

    @property
    def present_error(self) -> float:
        """The relative error of the p50 on the present path."""
        return self.present.p50_ms.value / self.now.p50_ms.value - 1

    @property
    def later_error(self) -> float | None:
        """Relative change of the p50 since it was recorded."""
        return None if self.later is None else self.later.p50_ms.value / self.now.p50_ms.value - 1

    @property
    def is_missed(self) -> bool:
        """Whether the prediction starts from a wrong time: the time on the present path has changed too much since the recording, or
        the recording contradicts itself."""
        drifts_ms = [times.p50_ms.value - self.now.p50_ms.value for times in (self.present, self.later) if times]
        shortest_ms = min(times.p50_ms.value for times in (self.bottom_up, *self.at_rtt.values()))
        is_wrong = self.miss.beyond_ms > PRESENT_MISS_SHARE * self.now.p50_ms.value
        return is_wrong or max(map(abs, drifts_ms)) > PRESENT_MISS_SHARE * shortest_ms

    @property
    def is_explained(self) -> bool | None:
        """Whether the intervals of both predictions overlap; None without two intervals."""
        if self.slope is None:
            return None
        disagree = are_disjoint(self.bottom_up.p50_ms, self.slope.p50_ms)
        return None if disagree is None else not disagree

    @property
    def residual_ms(self) -> float | None:
        """Bottom-up minus slope."""
        return None if self.slope is None else self.bottom_up.p50_ms.value - self.slope.p50_ms.value


class PathPrediction(Part):
    """The prediction of a recording on a path."""

    present: str
    target: str
    pages: tuple[PagePrediction, ...]
    cost_now_us: Estimate
    """Cost of a round trip with the smallest request and answer, on the present path."""
    cost_us: Estimate
    """The same cost on the target path."""
    connect_us: Estimate
    resuming_us: Estimate
    """Additional computing time of application and server, because they wait longer on the target path; costs include it."""
    waking_us: float
    """See `PathCosts.waking_ns`; for the target."""
    floor_us: float | None
    """Time of a round trip without server work, as the recorder measured it after the recording."""
    floor_now_us: float | None
    """The same time, measured again for the prediction."""
    tap_us: Estimate | None
    """Time that the recorder added to a round trip, which is subtracted; None if unknown."""
    encrypted: bool
    """Whether the target path encrypts and the present one does not."""
    unplaced: int
    """Round trips that belong to no page."""
    void: tuple[str, ...]
    """The reason for each block of costs that was left out."""
    contested: dict[str, int]
    """Number of pages left out because they share round trips with another page, by name."""
    left_out: dict[str, int]
    """Number of pages that failed or are impossible, by name and reason."""
    recorded_unix_ns: int | None = None
    """When the recording began; None if unknown."""
    others: BusyPrograms | None = None
    """Other programs while the paths were measured for the prediction; None if unknown."""
    others_calibrating: BusyPrograms | None = None
    """Other programs that were busy while the recorder's cost was measured after the recording; None if none were, or if unknown."""

    @property
    def missed(self) -> tuple[PagePrediction, ...]:
        """Pages for which no prediction is given, because it would start from a wrong time."""
        return tuple(page for page in self.pages if page.is_missed)


def quantiles(times_ns: np.ndarray, draws: int = RESAMPLES, prediction_interval: bool = False) -> Quantiles:
    """Quantiles of times, an array of shape (pages, blocks of costs). Intervals need four pages and four blocks. They are confidence
    intervals for the mean over blocks; with `prediction_interval`, they predict the quantiles of as many pages in one more block."""
    mean = times_ns.mean(axis=1)
    pages, blocks = times_ns.shape
    values = np.quantile(mean, (0.5, 0.95)) / 1e6
    if pages < MIN_BLOCKS or blocks < MIN_BLOCKS:
        return Quantiles(p50_ms=_without_interval(values[0], pages), p95_ms=_without_interval(values[1], pages))
    rng = np.random.default_rng(_SEED)

    def resample_pages(times: np.ndarray) -> np.ndarray:
        sample = np.take_along_axis(times, rng.integers(pages, size=(pages, draws)), axis=0)
        return np.asarray(np.quantile(sample, (0.5, 0.95), axis=0) / 1e6)

    weights = rng.multinomial(blocks, np.full(blocks, 1 / blocks), size=draws).T / blocks
    if prediction_interval:
        weights += np.eye(blocks)[:, rng.integers(blocks, size=draws)] - 1 / blocks
    resamples = resample_pages(times_ns @ weights)
    if prediction_interval:
        resamples += resample_pages(np.broadcast_to(mean[:, None], (pages, draws))) - values[:, None]
    p50, p95 = (
        resampled_estimate(float(value), resamples[index], min(pages, blocks)) for index, value in enumerate(values)
    )
    return Quantiles(p50_ms=p50, p95_ms=p95)


def predicted_quantiles(pages: Sequence[CostedPage]) -> Quantiles:
    """Quantiles of the predicted times on the target path. The limits cover the ranges of pages with overlapping round trips."""
    central = quantiles(np.asarray([page.predicted_ns for page in pages]), prediction_interval=True)
    if all(page.overlap_range is None for page in pages):
        return central
    shortest, longest = (
        quantiles(np.asarray([page.range_ns[side] for page in pages]), prediction_interval=True) for side in (0, 1)
    )

    def replace_limits(estimate: Estimate, low: Estimate, high: Estimate) -> Estimate:
        low_limit, high_limit = (
            low.value if low.low is None else low.low,
            high.value if high.high is None else high.high,
        )
        return estimate.model_copy(
            update={"low": min(low_limit, estimate.value), "high": max(high_limit, estimate.value)}
        )

    return Quantiles(
        p50_ms=replace_limits(central.p50_ms, shortest.p50_ms, longest.p50_ms),
        p95_ms=replace_limits(central.p95_ms, shortest.p95_ms, longest.p95_ms),
    )


def widen(
    times: Quantiles, unknown_ms: float, recorded_times: Quantiles, alternatives: Sequence[Quantiles | None]
) -> Quantiles:
    """Widen the limits of quantiles for two more uncertainties: `unknown_ms` in both directions, and the state of the machine.

    `recorded_times` and `alternatives` are times of the same pages on the present path, obtained in different ways. The limits of
    `times` are moved outwards by the differences between them.
    """

    def widen_estimate(estimate: Estimate, recorded_time: Estimate, present_times: Sequence[Estimate]) -> Estimate:
        if estimate.low is None or estimate.high is None:
            return estimate
        drifts = [0.0, *(other.value - recorded_time.value for other in present_times)]
        below, above = (
            math.hypot(side, unknown_ms) for side in (estimate.value - estimate.low, estimate.high - estimate.value)
        )
        low, high = estimate.value - below + min(drifts), estimate.value + above + max(drifts)
        return estimate.model_copy(update={"low": max(low, 0.0), "high": high})

    known = [other for other in alternatives if other is not None]
    return Quantiles(
        p50_ms=widen_estimate(times.p50_ms, recorded_times.p50_ms, [other.p50_ms for other in known]),
        p95_ms=widen_estimate(times.p95_ms, recorded_times.p95_ms, [other.p95_ms for other in known]),
    )


def resampled_estimate(value: float, resamples: np.ndarray, count: int) -> Estimate:
    """A time with limits from resamples. The limits are at least 0, and corrected for small samples: by Student's quantile, and for
    the bias of the variance."""
    factor = t_quantile(count - 1) / _NORMAL_QUANTILE * math.sqrt(count / (count - 1))
    low, high = np.quantile(resamples, (0.025, 0.975))
    return Estimate(
        value=value,
        low=max(value - factor * max(value - float(low), 0.0), 0.0),
        high=value + factor * max(float(high) - value, 0.0),
        n=count,
    )


def _without_interval(value: float, count: int) -> Estimate:
    return Estimate(value=float(value), low=None, high=None, n=count)


def analyze(
    recording: Recording,
    present: PathCosts,
    target: PathCosts,
    slopes: Mapping[str, Slope] | None = None,
    floor_now_ns: float | None = None,
    later_recording: Recording | None = None,
    rtts_ns: Sequence[int] = (),
    others: Sequence[BusyPrograms] = (),
) -> PathPrediction:
    """Predict every page. `slopes`: by page name. `floor_now_ns`: time of a round trip without server work, as the recorder measures
    it now. `later_recording`: a later recording of the same pages. `rtts_ns`: other RTTs of the target's link. `others`: what other
    programs did while the costs were measured."""
    floor_ns = recording.facts.floor_ns or 0
    shift_ns = floor_now_ns - floor_ns if floor_ns and floor_now_ns else 0.0
    costed = cost_pages(recording, present, target)
    costed_by_rtt = {rtt_ns: cost_pages(recording, present, target.at_rtt(rtt_ns)) for rtt_ns in rtts_ns}
    at_rtt = {
        name: {rtt_ns: predicted_quantiles(pages[name]) for rtt_ns, pages in costed_by_rtt.items()} for name in costed
    }
    return PathPrediction(
        present=present.label,
        target=target.label,
        pages=tuple(
            _predict_page(
                name,
                pages,
                (slopes or {}).get(name),
                (present, target),
                shift_ns,
                _later_quantiles(later_recording, name),
                at_rtt[name],
                (_others_during(recording, name), _others_during(later_recording, name)),
            )
            for name, pages in costed.items()
        ),
        cost_now_us=_mean_estimate(present.smallest_ns / 1e3),
        cost_us=_mean_estimate(target.smallest_ns / 1e3),
        connect_us=_mean_estimate(target.connect_ns / 1e3),
        resuming_us=_mean_estimate((target.resuming_ns - present.resuming_ns) / 1e3),
        waking_us=target.waking_ns / 1e3,
        floor_us=floor_ns / 1e3 or None,
        floor_now_us=None if floor_now_ns is None else floor_now_ns / 1e3,
        tap_us=tap_us(recording.facts),
        encrypted=target.encrypted and not present.encrypted,
        unplaced=sum(trip.page_id is None and trip.is_answered for trip in recording.round_trips),
        void=target.void,
        contested=Counter(page.name for page in recording.pages if page.contested),
        left_out=dict(recording.left_out),
        recorded_unix_ns=recording.facts.began_unix_ns,
        others=merge_found(others),
        others_calibrating=find_busy_calibration(recording.facts.others),
    )


def _others_during(recording: Recording | None, name: str) -> BusyPrograms | None:
    """What other programs did while pages of this name were recorded; None if unknown."""
    if recording is None:
        return None
    pages = [(page.begun_ns, page.ended_ns) for page in recording.pages if page.name == name and page.round_trips]
    return find_busy_pages(recording.facts.others, pages)


def _later_quantiles(recording: Recording | None, name: str) -> Quantiles | None:
    """Times of a page in another recording, without the time that its tap added; None if it has no such page."""
    if recording is None:
        return None
    tap_ns_per_trip = tap_ns(recording)
    times_ns = [
        page.took_ns - tap_ns_per_trip * len(sequential_trips(page, recording, {})[0])
        for page in recording.pages
        if page.name == name and page.round_trips
    ]
    return quantiles(np.asarray([[ns] * MIN_BLOCKS for ns in times_ns])) if times_ns else None


def _mean_estimate(values: np.ndarray) -> Estimate:
    return mean_interval([float(value) for value in values])


def _predict_page(
    name: str,
    pages: Sequence[CostedPage],
    slope: Slope | None,
    costs: tuple[PathCosts, PathCosts],
    shift_ns: float,
    later: Quantiles | None,
    at_rtt: dict[int, Quantiles],
    others: tuple[BusyPrograms | None, BusyPrograms | None],
) -> PagePrediction:
    present_costs, target = costs
    blocks = len(target.blocks)
    recorded_ns = np.asarray([[page.took_ns] * blocks for page in pages])
    now = quantiles(recorded_ns)
    present = quantiles(np.asarray([page.present_ns(shift_ns) for page in pages]))

    # These costs were not measured with the application itself, so they count as uncertainty.
    unknown_ns = math.hypot(target.waking_ns, float((target.resuming_ns - present_costs.resuming_ns).mean()))
    unknown_ms = unknown_ns * float(np.mean([page.rtts for page in pages])) / 1e6

    def widen_for_unknowns(times: Quantiles) -> Quantiles:
        return widen(times, unknown_ms, now, (present, later))

    predicted = widen_for_unknowns(predicted_quantiles(pages))
    by_slope = None
    if slope is not None:
        by_slope = widen_for_unknowns(
            _predict_by_slope(quantiles(recorded_ns, prediction_interval=True), pages, slope, costs)
        )
    round_trips = float(np.mean([len(page.trips) for page in pages]))
    median = median_pages(pages, lambda page: float(page.predicted_ns.mean()))
    return PagePrediction(
        name=name,
        pages=len(pages),
        unsure=uncertainty_note(name, [page.page for page in pages]),
        cold=cold_start_note(name, [page.page for page in pages]),
        round_trips=round_trips,
        overlapped=float(np.mean([page.overlapped for page in pages])),
        connects=float(np.mean([page.connects for page in pages])),
        now=now,
        later=later,
        present=present,
        bottom_up=predicted,
        slope=by_slope,
        serial_share=None if slope is None else slope.slope.value / (slope.round_trips or round_trips),
        parts_now=_split_time(pages, lambda page: page.took_ns),
        parts=_split_time(pages, lambda page: float(page.predicted_ns.mean())),
        median_round_trips=float(np.mean([len(page.trips) for page in median])),
        median_added_connect_ms=float(np.mean([page.added_connect_ns for page in median])) / 1e6,
        miss=_explain_miss(pages, shift_ns),
        clipped=float(np.mean([page.clipped for page in pages])),
        small_window_ms=_small_window_ms(pages, predicted, target),
        failing=_count_failures(pages),
        at_rtt={rtt_ns: widen_for_unknowns(times) for rtt_ns, times in at_rtt.items()},
        curve_ms=_rtt_curve(predicted, pages, target),
        others=others[0],
        later_others=others[1],
    )


def _split_time(pages: Sequence[CostedPage], took_ns: Callable[[CostedPage], float]) -> Parts:
    parts_of_pages = []
    for page in median_pages(pages, took_ns):
        total = took_ns(page)
        application = min(page.application_ns, total)
        server = min(float(page.server_ns.sum(axis=1).mean()), total - application)
        parts_of_pages.append((application, total - application - server, server))
    application, path, server = np.mean(parts_of_pages, axis=0) / 1e6
    return Parts(application_ms=application, path_ms=path, server_ms=server)


def _explain_miss(pages: Sequence[CostedPage], shift_ns: float) -> Miss:
    """The terms by which `CostedPage.present_ns` differs from the recorded time."""
    observed_ns = np.asarray([page.observed_ns.sum() for page in pages])
    path_ns = np.asarray([page.path_ns.sum(axis=1).mean() for page in pages])
    took_ns = np.asarray([page.took_ns for page in pages])
    return Miss(
        beyond_ms=float(np.maximum(observed_ns - took_ns, 0.0).mean()) / 1e6,
        clipped_ms=float(np.maximum(path_ns - observed_ns, 0.0).mean()) / 1e6,
        shift_ms=float(np.mean([len(page.trips) for page in pages])) * shift_ns / 1e6,
    )


def _small_window_ms(pages: Sequence[CostedPage], predicted: Quantiles, target: PathCosts) -> float | None:
    """p50 with a small receive buffer: an answer then takes one RTT per 16 kB, regardless of the link's rate."""

    def added_ns(page: CostedPage) -> float:
        extra_windows = np.asarray([max(-(-trip.to_client // SMALL_WINDOW) - 1, 0) for trip in page.trips])
        target_cost_ns = page.path.target_cost_ns.mean(axis=0) - page.smallest_ns.mean()
        return float(np.maximum(extra_windows * target.link_rtt_ns - target_cost_ns, 0.0)[extra_windows > 0].sum())

    added_ms = float(np.median([added_ns(page) for page in pages])) / 1e6
    return predicted.p50_ms.value + added_ms if added_ms else None


def _count_failures(pages: Sequence[CostedPage]) -> dict[str, tuple[int, int]]:
    trips = [trip for page in pages for trip in page.trips]
    runs, failed = (Counter(trip.text for trip in group) for group in (trips, (trip for trip in trips if trip.failed)))
    return {text: (count, runs[text]) for text, count in failed.most_common()}


def _predict_by_slope(
    now: Quantiles, pages: Sequence[CostedPage], slope: Slope, costs: tuple[PathCosts, PathCosts]
) -> Quantiles:
    """The recorded times, plus the added cost of as many round trips as the slope states, plus the added costs of larger sizes and of
    connects, as measured in the laboratory."""
    present, target = costs
    added = _mean_estimate((target.smallest_ns - present.smallest_ns) / 1e6)
    other_added_ns = []
    for page in pages:
        by_size_ns = page.path.added_ns - (target.smallest_ns - present.smallest_ns)[:, None]
        by_connects_ns = page.added_connect_ns.mean() - page.connects * added.value * 1e6
        other_added_ns.append(by_size_ns.sum(axis=1).mean() + by_connects_ns)
    added_ms = slope.slope.value * added.value + float(np.mean(other_added_ns)) / 1e6
    errors_ms = [
        width * factor
        for width, factor in ((_half_width(slope.slope), added.value), (_half_width(added), slope.slope.value))
    ]

    def add_to(estimate: Estimate) -> Estimate:
        if estimate.low is None or estimate.high is None or slope.slope.low is None:
            return _without_interval(estimate.value + added_ms, len(pages))
        below, above = (
            math.hypot(*errors_ms, side) for side in (estimate.value - estimate.low, estimate.high - estimate.value)
        )
        value = estimate.value + added_ms
        return Estimate(value=value, low=max(value - below, 0.0), high=value + above, n=len(pages))

    return Quantiles(p50_ms=add_to(now.p50_ms), p95_ms=add_to(now.p95_ms))


def _half_width(estimate: Estimate) -> float:
    return 0.0 if estimate.low is None or estimate.high is None else (estimate.high - estimate.low) / 2


def _rtt_curve(predicted: Quantiles, pages: Sequence[CostedPage], target: PathCosts) -> dict[int, float]:
    """p50 by RTT, if only the link's RTT changes. The RTT affects round trips, connects and slow start."""
    if not target.link_rtt_ns:
        return {}

    rounds = sorted({trip.rounds for page in pages for trip in page.trips})

    def waits_ns(rtt_ns: int) -> np.ndarray:
        """Total wait of each page that depends on the RTT."""
        waits = [page.rtts * rtt_ns for page in pages]
        slow_start_ns = dict(zip(rounds, target.slow_start_ns(rounds, rtt_ns).mean(axis=0), strict=True))
        return np.add(waits, [sum(slow_start_ns[trip.rounds] for trip in page.trips) for page in pages])

    measured_ns = waits_ns(target.link_rtt_ns)
    return {
        rtt_ns: predicted.p50_ms.value + float(np.median(waits_ns(rtt_ns) - measured_ns)) / 1e6
        for rtt_ns in sorted({*_CURVE_RTTS_NS, target.link_rtt_ns})
    }
