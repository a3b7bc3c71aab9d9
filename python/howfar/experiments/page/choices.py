"""One machine or two, for each page, way to the second machine, application CPU and number in flight; and where the answer flips.

What is compared differs in nothing but the way: a crossing is of one way, and each way has its own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from statistics import median
from typing import Literal

from howfar.experiments.page.arms import PageTrials, Place, Way, ratios
from howfar.experiments.page.crossing import BEYOND, Curve, Level, model_always, model_crossing, model_curve, pays_from
from howfar.experiments.page.findings import Crossing, PageChoice
from howfar.experiments.page.foresee import SOCKET, BlockForesight, Foresight
from howfar.experiments.page.machines import Machinery, Processors
from howfar.experiments.page.model import Network
from howfar.stats.estimate import Estimate
from howfar.stats.intervals import Resolution, judge_ratio, resolve

_SOCKET_WAY = Way(SOCKET, None, None)
_BETTER: dict[Resolution, Literal["one", "two"]] = {Resolution.FASTER: "two", Resolution.SLOWER: "one"}
_Pair = tuple[PageTrials, PageTrials]


def page_choices(
    places: Mapping[Place, Sequence[PageTrials]],
    foreseen: Mapping[Place, Foresight],
    processors: Processors,
    floor: float | None,
) -> tuple[PageChoice, ...]:
    """Where both were measured in one block, in the order of the plan."""
    found = []
    for place, arms in places.items():
        model = foreseen.get(place)
        found += [
            choice
            for one, two in _pairs(arms)
            if (choice := _choice(arms, one, two, model, processors, floor)) is not None
        ]
    return tuple(found)


def _choice(
    arms: Sequence[PageTrials],
    one: PageTrials,
    two: PageTrials,
    model: Foresight | None,
    processors: Processors,
    floor: float | None,
) -> PageChoice | None:
    """None: never both good in one block."""
    judged = _ratio(two, one)
    if judged is None:
        return None
    tcp = next((arm for arm in _alike(arms, one) if arm.path == "tcp"), None)
    return PageChoice(
        page=one.page,
        connect=one.connect,
        application=one.application,
        app_cpu_ns=one.app_cpu_ns,
        app_cpu_total_ms=application_cpu_s(one, processors) * 1e3,
        threads=one.threads,
        path=two.path,
        rtt_ns=two.rtt_ns,
        rate_bps=two.rate_bps,
        two_over_one=judged,
        tcp_over_socket=_ratio(tcp, one) if tcp is not None else None,
        better=_BETTER.get(resolve(judged, floor), "not resolved"),
        predicted=_predicted(model, one, two) if model is not None else None,
    )


def crossings(
    places: Mapping[Place, Sequence[PageTrials]],
    foreseen: Mapping[Place, Foresight],
    processors: Processors,
    floor: float | None,
) -> tuple[Crossing, ...]:
    """For each page, way and number in flight with at least two levels of application CPU."""
    found = []
    for place, arms in places.items():
        swept: dict[tuple[Way, int], list[_Pair]] = {}
        for one, two in _pairs(arms):
            if ratios(two, one):
                swept.setdefault((two.way, one.threads), []).append((one, two))
        found += [
            _crossing(pairs, foreseen.get(place), processors, floor) for pairs in swept.values() if len(pairs) > 1
        ]
    return tuple(found)


def application_cpu_s(arm: PageTrials, processors: Processors) -> float:
    """What the application computes for a page: by its own word, else by its processes."""
    own = arm.own_cpu_s
    return own if own is not None else Machinery(arm, processors).cpu_s.get("application", 0.0)


def _crossing(pairs: Sequence[_Pair], model: Foresight | None, processors: Processors, floor: float | None) -> Crossing:
    """Of pairs that differ in application CPU alone."""
    levels = [Level(application_cpu_s(one, processors) * 1e3, ratios(two, one)) for one, two in pairs]
    measured = Curve(levels, floor).found()
    swept = (min(level.cpu_ms for level in levels), max(level.cpu_ms for level in levels))
    _, two = pairs[0]
    found = Crossing(
        page=two.page,
        connect=two.connect,
        application=two.application,
        threads=two.threads,
        path=two.path,
        rtt_ns=two.rtt_ns,
        rate_bps=two.rate_bps,
        measured_ms=measured.crossing,
        always=measured.always,
        predicted_ms=None,
        swept_ms=swept,
        curve_ms=(),
        curve_ratio=(),
    )
    seen = _Model(model, two.way, two.threads) if model is not None else None
    return found if seen is None or not seen.usable else found.model_copy(update=seen.crossing(swept))


class _Model:
    """Two over one as a function of application CPU, in milliseconds a page: the median over the blocks that tell."""

    def __init__(self, foresight: Foresight, way: Way, threads: int) -> None:
        self._way, self._threads = way, threads
        self._blocks = foresight.telling(way, threads)
        self._least_s = [block.own_cpu_s(threads) for block in self._blocks]

    @property
    def usable(self) -> bool:
        return bool(self._blocks)

    @property
    def _least_ms(self) -> float:
        return max(self._least_s) * 1e3

    def crossing(self, swept: tuple[float, float]) -> dict[str, object]:
        """What the model has to say in a `Crossing`."""
        ends = self._least_ms, swept[1] * BEYOND
        curve_ms, curve_ratio = model_curve(self._as_it_is, *swept)
        return {
            "predicted_ms": model_crossing(self._as_it_is, *ends),
            "predicted_always": model_always(self._as_it_is, *ends),
            "curve_ms": curve_ms,
            "curve_ratio": curve_ratio,
            "without_link_cpu_ms": pays_from(partial(self._ratio, change=_without_link_cpu), *ends),
            "half_turns_ms": pays_from(partial(self._ratio, change=self._half), *ends),
        }

    def _as_it_is(self, cpu_ms: float) -> float:
        return self._ratio(cpu_ms, lambda block, network: network)

    def _half(self, block: BlockForesight, network: Network) -> Network:
        return block.fewer_turns(network, self._way, self._threads, 0.5)

    def _ratio(self, cpu_ms: float, change: Callable[[BlockForesight, Network], Network]) -> float:
        found = []
        for block, least_s in zip(self._blocks, self._least_s, strict=True):
            extra_s = cpu_ms / 1e3 - least_s
            one = block.network(_SOCKET_WAY, self._threads, extra_s)
            two = block.network(self._way, self._threads, extra_s)
            assert one is not None and two is not None, "only of blocks that tell"
            found.append(one.cycle_s(self._threads) / change(block, two).cycle_s(self._threads))
        return median(found)


def _without_link_cpu(_: BlockForesight, network: Network) -> Network:
    return network.without_link_cpu()


def _predicted(model: Foresight, one: PageTrials, two: PageTrials) -> float | None:
    extra_s = (one.app_cpu_ns - model.least_ns) / 1e9
    found = []
    for block in model.telling(two.way, one.threads):
        networks = [block.network(way, one.threads, extra_s) for way in (_SOCKET_WAY, two.way)]
        if networks[0] is not None and networks[1] is not None:
            found.append(networks[0].cycle_s(one.threads) / networks[1].cycle_s(one.threads))
    return median(found) if found else None


def _pairs(arms: Sequence[PageTrials]) -> list[_Pair]:
    """One machine with sockets and two, alike in all else; with each way that there is."""
    return [(one, two) for one in arms if one.path == SOCKET for two in _alike(arms, one) if two.machines == 2]


def _alike(arms: Sequence[PageTrials], one: PageTrials) -> list[PageTrials]:
    """As many in flight, with as much application CPU."""
    return [arm for arm in arms if (arm.threads, arm.app_cpu_ns) == (one.threads, one.app_cpu_ns)]


def _ratio(above: PageTrials, below: PageTrials) -> Estimate | None:
    found = list(ratios(above, below).values())
    return judge_ratio(found).quoted if found else None
