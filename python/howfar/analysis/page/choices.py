"""One machine or two, for each page, application CPU and number in flight; and where the answer flips."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from statistics import geometric_mean
from typing import Literal

from howfar.analysis.estimate import Estimate
from howfar.analysis.intervals import judge_ratio, resolve
from howfar.analysis.page.arms import PageTrials, Place, ratios
from howfar.analysis.page.crossing import BEYOND, Curve, Level, model_crossing, model_curve, pays_from
from howfar.analysis.page.findings import Crossing, PageChoice
from howfar.analysis.page.foresee import SOCKET, TWO, BlockForesight, Foresight, Way
from howfar.analysis.page.machines import Machinery, Processors
from howfar.analysis.page.model import Network
from howfar.analysis.summary import Resolution

_SOCKET_WAY: Way = (SOCKET, None, None)
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
        for one, two in _pairs(arms):
            judged = _ratio(two, one)
            if judged is None:
                continue
            tcp = _like(arms, one, ("tcp",))
            model = foreseen.get(place)
            found.append(
                PageChoice(
                    page=place.page,
                    connect=place.connect,
                    application=place.application,
                    app_cpu_ns=one.app_cpu_ns,
                    app_cpu_total_ms=application_cpu_s(one, processors) * 1e3,
                    threads=one.threads,
                    two_over_one=judged,
                    tcp_over_socket=_ratio(tcp, one) if tcp is not None else None,
                    better=_BETTER.get(resolve(judged, floor), "not resolved"),
                    predicted=_predicted(model, one, two) if model is not None else None,
                )
            )
    return tuple(found)


def crossings(
    places: Mapping[Place, Sequence[PageTrials]], foreseen: Mapping[Place, Foresight], processors: Processors
) -> tuple[Crossing, ...]:
    """For each page and number in flight with at least two levels of application CPU."""
    found = []
    for place, arms in places.items():
        by_threads: dict[int, list[_Pair]] = {}
        for one, two in _pairs(arms):
            if ratios(two, one):
                by_threads.setdefault(one.threads, []).append((one, two))
        found += [
            _crossing(place, threads, pairs, foreseen.get(place), processors)
            for threads, pairs in sorted(by_threads.items())
            if len(pairs) > 1
        ]
    return tuple(found)


def application_cpu_s(arm: PageTrials, processors: Processors) -> float:
    """What the application computes for a page: by its own word, else by its processes."""
    own = arm.own_cpu_s
    return own if own is not None else Machinery(arm, processors).cpu_s.get("application", 0.0)


def _crossing(
    place: Place, threads: int, pairs: Sequence[_Pair], model: Foresight | None, processors: Processors
) -> Crossing:
    levels = [Level(application_cpu_s(one, processors) * 1e3, ratios(two, one)) for one, two in pairs]
    measured = Curve(levels).found()
    swept = (min(level.cpu_ms for level in levels), max(level.cpu_ms for level in levels))
    found = Crossing(
        page=place.page,
        connect=place.connect,
        application=place.application,
        threads=threads,
        measured_ms=measured.crossing,
        always=measured.always,
        predicted_ms=None,
        swept_ms=swept,
        curve_ms=(),
        curve_ratio=(),
    )
    seen = _Model(model, pairs[0][1].way, threads) if model is not None else None
    return found if seen is None or not seen.usable else found.model_copy(update=seen.crossing(swept))


class _Model:
    """Two over one as a function of application CPU, in milliseconds a page: the geometric mean over the blocks that tell."""

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
        return geometric_mean(found)


def _without_link_cpu(_: BlockForesight, network: Network) -> Network:
    return network.without_link_cpu()


def _predicted(model: Foresight, one: PageTrials, two: PageTrials) -> float | None:
    extra_s = (one.app_cpu_ns - model.least_ns) / 1e9
    found = []
    for block in model.telling(two.way, one.threads):
        networks = [block.network(way, one.threads, extra_s) for way in (_SOCKET_WAY, two.way)]
        if networks[0] is not None and networks[1] is not None:
            found.append(networks[0].cycle_s(one.threads) / networks[1].cycle_s(one.threads))
    return geometric_mean(found) if found else None


def _pairs(arms: Sequence[PageTrials]) -> list[_Pair]:
    """One machine with sockets and two, alike in all else."""
    ones = [arm for arm in arms if arm.path == SOCKET]
    return [(one, two) for one in ones if (two := _like(arms, one, TWO)) is not None]


def _like(arms: Sequence[PageTrials], one: PageTrials, paths: Sequence[str]) -> PageTrials | None:
    """On the first of these paths that there is; of several links the first."""
    alike = [arm for arm in arms if (arm.threads, arm.app_cpu_ns) == (one.threads, one.app_cpu_ns)]
    return next((arm for path in paths for arm in alike if arm.path == path), None)


def _ratio(above: PageTrials, below: PageTrials) -> Estimate | None:
    found = list(ratios(above, below).values())
    return judge_ratio(found).quoted if found else None
