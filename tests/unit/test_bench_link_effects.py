"""What the bench of the link says of loss and jitter, on counts that were made up."""

from __future__ import annotations

import random
from statistics import stdev
from types import SimpleNamespace
from typing import cast

import pytest

from howfar.bench.links import extras as link_extras
from howfar.bench.links.bars import judge_jitter, judge_loss
from howfar.bench.links.bench import OurLink, Request
from howfar.bench.links.extras import Extras, Lost, Spread, jittery, lossy
from howfar.bench.links.figures import FULL_TIMES
from howfar.bench.links.probes import BareCable
from howfar.lab.link import LinkAsked

OF = 10_000


def test_a_loss_is_right_inside_its_interval_and_nowhere_else() -> None:
    """Of 10 000 at 1 % a right link loses 75 to 126 in 99 of 100 cases: the deviation is 9.95."""
    met = {lost: judge_loss([lost], [OF], 0.01)[0].met for lost in (0, 73, 77, 100, 124, 128, 200)}
    assert met == {0: False, 73: False, 77: True, 100: True, 124: True, 128: False, 200: False}


def test_several_runs_are_judged_as_one_and_more_strictly() -> None:
    (verdict,) = judge_loss([120] * 10, [OF] * 10, 0.01)
    assert (verdict.median, verdict.best) == pytest.approx((1.2, 1.2))
    assert verdict.met_at_best, "one run may be as far off"
    assert not verdict.met, "ten runs may not"
    (verdict,) = judge_jitter([1.95] * 10, [1000] * 10, 2.0)
    assert verdict.median == pytest.approx(1.95)
    assert (verdict.met, verdict.met_at_best) == (False, True)


def test_the_interval_has_the_coverage_that_it_says() -> None:
    draw = random.Random(4)
    missed = 0
    for _ in range(400):
        missed += not judge_jitter([stdev(draw.gauss(10, 2) for _ in range(100))], [100], 2.0)[0].met
    assert 0 < missed <= 14, "four are expected; as many as that come by chance once in 20 000 cases"


def test_nothing_measured_is_nothing_judged() -> None:
    assert judge_loss([], [], 0.01) == judge_loss([0], [0], 0.01) == ()
    assert judge_jitter([], [], 2.0) == judge_jitter([0.0], [1], 2.0) == ()


class FakeLink:
    """A link that does what it is asked, and says what that was."""

    def __init__(self, backend: str) -> None:
        self.backend, self.ready = backend, object()
        self.network = SimpleNamespace(client=None, server=None)
        self.shaped: list[LinkAsked] = []
        self.armed = 0

    def shape(self, asked: LinkAsked) -> None:
        self.shaped.append(asked)

    def arm(self) -> None:
        self.armed += 1

    def counters(self, *, reset: bool = False) -> None:
        return None


def effects_of(monkeypatch: pytest.MonkeyPatch, backend: str) -> tuple[FakeLink, Extras]:
    monkeypatch.setattr(link_extras, "missing_program", lambda: "no redis")
    monkeypatch.setattr(link_extras, "count_lost", lambda client, server, count: Lost(count // 100, count))
    monkeypatch.setattr(link_extras, "spread", lambda client, server, count: Spread(2e6, count))
    link = FakeLink(backend)
    cable = cast(BareCable, SimpleNamespace(client_host=None, server_host=None))
    ours = cast(OurLink, SimpleNamespace(link=link))
    extras = Extras(ours, cable, None, 0, FULL_TIMES, seed=7)
    monkeypatch.setattr(extras, "_unlimited", lambda: extras._runs["unlimited", "ours"].append(20.0))
    return link, extras


def test_each_run_lets_loose_what_is_judged_with_a_seed_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    link, extras = effects_of(monkeypatch, "packet")
    for _ in range(3):
        for step in extras.steps():
            step()
    assert link.shaped == [kind(seed) for seed in (7, 8, 9) for kind in (lossy, jittery)]
    assert link.armed == 6
    loss, jitter = extras.found("packet", True)[-2:]
    assert (loss.name, jitter.name) == ("loss", "jitter")
    assert loss.ours is not None and loss.ours.runs == (1.0, 1.0, 1.0)
    assert jitter.ours is not None and jitter.ours.median == 2.0
    assert [(bar.bar, bar.met) for bar in (*loss.bars, *jitter.bars)] == [("loss, %", True), ("jitter, ms", True)]


def test_a_back_end_without_effects_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    link, extras = effects_of(monkeypatch, "none")
    for step in extras.steps():
        step()
    loss, jitter = extras.found("none", True)[-2:]
    assert link.armed == 0
    assert loss.ours is None and "no effect" in str(loss.skipped)
    assert jitter.ours is None and jitter.bars == ()


def test_every_bench_has_a_seed_of_its_own() -> None:
    assert Request(()).seed != Request(()).seed
