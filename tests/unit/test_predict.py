"""Predictions of recordings whose truth is known by arithmetic."""

from __future__ import annotations

import dataclasses
import math
import re
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.made_recording import FLOOR_NS, TAP_NS, Step, costs, is_answer_first, loop, made
from tests.unit.test_slope import analyzed, observed

from howfar.contract.messages import Replayed
from howfar.recording import replay
from howfar.recording.changes import find_changes
from howfar.recording.costs import CostBlock, PathCosts, Sizes, SlowStartWindow, choose_sizes
from howfar.recording.facts import RecordingFacts
from howfar.recording.page_costs import cost_pages
from howfar.recording.path_session import present_tls, rhythm_of_recording
from howfar.recording.predict import PRESENT_MISS_SHARE, PathPrediction, analyze, quantiles
from howfar.recording.prediction_report import MeasuredPage, Measurement, as_json, compare, document
from howfar.recording.recording import Recording
from howfar.recording.summary import document as summary_document
from howfar.recording.summary import summarise_recording
from howfar.report import html, terminal
from howfar.report.document import AdviceBlock, Answer, Chart, Details, Document, Table
from howfar.report.terminal import VISIBLE_LINES
from howfar.stats.estimate import Estimate

NOW = costs(FLOOR_NS / 1e3)
FAR = costs(540, label="remote, RTT 0.5ms", rtt_ns=500_000, noise=0.01, connect_us=560)
PAGE = [
    Step("SELECT option FROM options WHERE name = ?", keys=1),
    *loop(94),
    *loop(10, "SELECT * FROM tag WHERE post = ?"),
]
TRIPS = len(PAGE)
ADDED_MS = TRIPS * (540 - FLOOR_NS / 1e3) / 1e3


def true_ms(extra_ms: float = 0.0) -> float:
    """The true time of a page: gap, server time and path of each round trip; 336 ns are for its sizes."""
    return TRIPS * (100_000 + 80_000 + FLOOR_NS + 336) / 1e6 + extra_ms


def predicted(recording: Recording, target: PathCosts = FAR, now: PathCosts = NOW) -> PathPrediction:
    return analyze(recording, now, target)


@pytest.fixture(scope="module")
def recording(tmp_path_factory: pytest.TempPathFactory) -> Recording:
    return made(tmp_path_factory.mktemp("made") / "front.recording", PAGE)


def test_the_time_now_is_without_the_tap(recording: Recording) -> None:
    (page,) = predicted(recording).pages
    assert page.now.p50_ms.value == pytest.approx(true_ms(), rel=0.01)
    assert abs(page.present_error) < 0.01


def test_bottom_up_holds_the_truth(recording: Recording) -> None:
    (page,) = predicted(recording).pages
    found = page.bottom_up.p50_ms
    assert found.value == pytest.approx(true_ms(ADDED_MS), rel=0.02)
    assert found.low is not None and found.high is not None
    assert found.low < true_ms(ADDED_MS) < found.high
    assert page.round_trips == TRIPS
    assert page.bottom_up.p95_ms.value >= found.value


def test_a_present_path_that_is_missed_ends_the_prediction(recording: Recording) -> None:
    """Round trips cost 40 µs more now than when recorded, which is a twentieth of the predicted time."""
    found = analyze(recording, NOW, FAR, None, FLOOR_NS + 40_000)
    assert [page.name for page in found.missed] == ["front"]
    text = terminal.render(document(found, (), cost_pages(recording, NOW, FAR)), 100, colour=False)
    assert "has changed by too much" in text and "howfar record" in text and "What to do" not in text
    assert as_json(found, ())["pages"][0]["p50_ms"]["bottom_up"] is None  # type: ignore[index]


def test_a_miss_that_is_small_there_widens_the_interval(recording: Recording) -> None:
    """Round trips cost 40 µs more, or less, now than when recorded: a run may be either, so the interval includes both."""
    far = costs(5040, label="remote, RTT 5ms", rtt_ns=5_000_000, noise=0.001)
    there_ms = true_ms(TRIPS * (5040 - FLOOR_NS / 1e3) / 1e3)
    for shift_ns in (40_000, -40_000):
        found = analyze(recording, NOW, far, None, FLOOR_NS + shift_ns, rtts_ns=(10_000_000,))
        (page,) = found.pages
        assert not page.is_missed
        assert abs(page.present_error) > PRESENT_MISS_SHARE
        for times, more_ms in ((page.bottom_up, 0), (page.at_rtt[10_000_000], TRIPS * 5)):
            found_ms = times.p50_ms
            assert found_ms.low is not None and found_ms.high is not None
            for true in (there_ms + more_ms, there_ms + more_ms + TRIPS * shift_ns / 1e6):
                assert found_ms.low < true < found_ms.high
            assert found_ms.high - found_ms.low < 2.5 * TRIPS * 40_000 / 1e6


def test_how_far_the_processors_sleep_is_in_the_interval(recording: Recording) -> None:
    """It adds 0.1 ms per round trip that waits for the link, towards both limits."""
    (without,) = predicted(recording).pages
    (page,) = predicted(recording, FAR.model_copy(update={"waking_ns": 100_000.0})).pages
    narrow, wide = without.bottom_up.p50_ms, page.bottom_up.p50_ms
    assert wide.value == narrow.value
    assert wide.low is not None and wide.high is not None and narrow.low is not None and narrow.high is not None
    assert wide.value - wide.low == pytest.approx(math.hypot(narrow.value - narrow.low, TRIPS * 0.1))
    assert wide.high - wide.value == pytest.approx(math.hypot(narrow.high - narrow.value, TRIPS * 0.1))


def test_a_recording_that_cannot_be_right_is_not_predicted_however_far(recording: Recording) -> None:
    far = costs(100_040, label="remote, RTT 100ms", rtt_ns=100_000_000)
    shorter = [dataclasses.replace(page, ended_ns=page.begun_ns + page.took_ns // 3) for page in recording.pages]
    found = analyze(dataclasses.replace(recording, pages=tuple(shorter)), NOW, far)
    assert [page.name for page in found.missed] == ["front"]


def test_the_interval_is_of_another_run() -> None:
    """Blocks of costs differ by 2 %, pages by 3 %; another run has another block and other pages."""
    chance, inside, runs = np.random.default_rng(5), 0, 400

    def blocks_of(count: int) -> np.ndarray:
        return np.asarray(100 * chance.normal(1, 0.03, size=(20, 1)) + 100 * chance.normal(0, 0.02, size=count))

    for _ in range(runs):
        found = quantiles(1e6 * blocks_of(6), draws=200, prediction_interval=True).p50_ms
        assert found.low is not None and found.high is not None
        inside += found.low <= float(np.median(blocks_of(1))) <= found.high
    assert 0.9 < inside / runs < 1


def test_what_the_recorder_does_not_see_of_a_round_trip_is_no_time_of_the_application(recording: Recording) -> None:
    """Waking the other side takes 50 µs that the recorder, which runs beside it, does not see; pages take as long as before."""
    found = analyze(recording, costs(70, noise=0.01), costs(610, label="remote", rtt_ns=500_000), None, FLOOR_NS)
    assert not found.missed
    (page,) = found.pages
    assert page.bottom_up.p50_ms.value == pytest.approx(true_ms(TRIPS * 0.540), rel=0.02)
    assert page.parts_now.server_ms == pytest.approx(TRIPS * 0.080, rel=0.05)
    assert page.parts_now.application_ms == pytest.approx(TRIPS * (0.100 - 0.050), rel=0.05)
    assert page.clipped == 0


def test_an_application_that_became_slower_is_seen_in_a_later_recording(recording: Recording, tmp_path: Path) -> None:
    slower = [dataclasses.replace(step, gap_ns=round(step.gap_ns * 1.5)) for step in PAGE]
    same, other = made(tmp_path / "same.recording", PAGE, seed=6), made(tmp_path / "other.recording", slower)
    assert not analyze(recording, NOW, FAR, later_recording=same).missed
    found = analyze(recording, NOW, FAR, later_recording=other)
    (page,) = found.missed
    assert page.later_error == pytest.approx(TRIPS * 50_000 / 1e6 / true_ms(), rel=0.05)
    text = terminal.render(document(found, (), cost_pages(recording, NOW, FAR)), 100, colour=False)
    assert "recorded again" in text


def test_the_rhythm_is_that_of_the_pages(recording: Recording) -> None:
    found = rhythm_of_recording(recording)
    assert found.gap_ns == pytest.approx(100_000 + TAP_NS, rel=0.02)
    assert found.server_ns == pytest.approx(80_000 + FLOOR_NS + 336, rel=0.02)
    assert (found.to_server, found.to_client) == (60, 300)


def test_several_rtts_are_predicted_from_one_measurement(recording: Recording) -> None:
    found = analyze(recording, NOW, FAR, rtts_ns=(500_000, 5_000_000, 20_000_000))
    (page,) = found.pages
    assert page.at_rtt[500_000] == page.bottom_up
    for rtt_ns, times in page.at_rtt.items():
        expected = true_ms(ADDED_MS + TRIPS * (rtt_ns - 500_000) / 1e6)
        assert times.p50_ms.value == pytest.approx(expected, rel=0.02)
        assert times.p50_ms.value == pytest.approx(page.curve_ms[rtt_ns])
    text = terminal.render(document(found, (), cost_pages(recording, NOW, FAR)), 80, colour=False)
    assert "p50 at RTT" in text and "20ms" in text
    assert set(as_json(found, ())["pages"][0]["at_rtt"]) == {"0.5ms", "5ms", "20ms"}  # type: ignore[index]


def test_a_slope_that_agrees_explains(recording: Recording) -> None:
    slope = analyzed(observed(lambda delay_ms: true_ms() + TRIPS * delay_ms))
    (page,) = analyze(recording, NOW, FAR, {"front": slope}).pages
    assert page.is_explained
    assert page.slope is not None
    assert page.slope.p50_ms.value == pytest.approx(page.bottom_up.p50_ms.value, rel=0.02)


def test_a_slope_of_half_the_round_trips_does_not_explain(recording: Recording) -> None:
    slope = analyzed(observed(lambda delay_ms: true_ms() + TRIPS / 2 * delay_ms))
    found = analyze(recording, NOW, FAR, {"front": slope})
    (page,) = found.pages
    assert page.is_explained is False
    assert page.residual_ms == pytest.approx(ADDED_MS / 2, rel=0.1)
    swapped = page.model_copy(update={"bottom_up": page.slope, "slope": page.bottom_up})
    for shown in (found, found.model_copy(update={"pages": (swapped,)})):
        text = " ".join(
            terminal.render(document(shown, (), cost_pages(recording, NOW, FAR)), 100, colour=False).split()
        )
        assert "not explained" in text and f": {page.residual_ms:.1f} ms apart" in text


def test_a_connect_costs_what_the_path_says(tmp_path: Path) -> None:
    steps = [Step("login", keys=None, phase="connect"), *loop(5)]
    recording = made(tmp_path / "c.recording", steps, connect=True)
    (page,) = predicted(recording).pages
    assert page.connects == 1
    without = made(tmp_path / "p.recording", steps)
    (kept,) = predicted(without).pages
    longer = page.bottom_up.p50_ms.value - page.now.p50_ms.value - (kept.bottom_up.p50_ms.value - kept.now.p50_ms.value)
    assert longer == pytest.approx((560 - 30) / 1e3, rel=0.05)


@pytest.mark.parametrize(("protocol", "with_tls"), [("mysql", 2), ("postgresql", 3)])
def test_a_connection_with_tls_has_its_handshake_once(protocol: str, with_tls: int, tmp_path: Path) -> None:
    """The handshake is among the round trips before the first command, and in the time to connect: a target with TLS costs the same if
    the recording had none. PostgreSQL has one more round trip, to request TLS."""

    def dearer_ms(tls: bool, login_round_trips: int) -> float:
        recording = made(tmp_path / f"{tls}", loop(5), connect=True)
        changed = {
            number: one.model_copy(update={"protocol": protocol, "tls": tls, "login_round_trips": login_round_trips})
            for number, one in recording.connection_by_id.items()
        }
        now, far = costs(20, encrypted=tls), costs(540, connect_us=560, encrypted=True)
        (page,) = predicted(dataclasses.replace(recording, connection_by_id=changed), far, now).pages
        return page.bottom_up.p50_ms.value - page.now.p50_ms.value

    expected = (560 - 30 + (5 + with_tls - 1) * (540 - 20)) / 1e3
    assert dearer_ms(True, with_tls) == pytest.approx(expected)
    assert dearer_ms(False, 1) == pytest.approx(expected)


@pytest.mark.parametrize(("tls", "version"), [(True, "1.3"), (False, None)])
def test_paths_of_a_recording_with_tls_are_measured_with_tls_1_3(
    recording: Recording, tls: bool, version: str | None
) -> None:
    facts = recording.facts.updated(RecordingFacts(tls=tls))
    assert present_tls(dataclasses.replace(recording, facts=facts)) == version


def test_windows_double_while_answers_fill_them() -> None:
    """14.48 kB are sent at once, 43.4 kB in two rounds, 101 kB in three; a second answer finds the window open."""
    sizes = (8, 14_480, 14_481, 43_440, 43_441, 101_360)
    assert [len(SlowStartWindow().earlier_rounds(size)) for size in sizes] == [0, 0, 1, 1, 2, 2]
    assert SlowStartWindow().earlier_rounds(101_360) == (14_480, 28_960)
    window = SlowStartWindow()
    assert [len(window.earlier_rounds(43_000)) for _ in range(3)] == [1, 0, 0]


def test_sizes_reach_from_the_smallest_to_the_largest() -> None:
    sizes = choose_sizes([60, 900], [11, 250_000])
    assert (sizes.to_server[0], sizes.to_server[-1]) == (16, 900)
    assert (sizes.to_client[0], sizes.to_client[-1]) == (8, 250_000)
    assert choose_sizes([5], [5]).pairs == ((16, 8),)


@settings(deadline=None, max_examples=30)
@given(
    pages=st.integers(1, 12),
    jitter=st.floats(0, 1),
    cold=st.floats(0.1, 1000),
    path_ns=st.integers(1000, 60_000),
    smallest_us=st.floats(5, 5000),
)
def test_no_time_is_negative_and_parts_add_up(
    pages: int, jitter: float, cold: float, path_ns: int, smallest_us: float, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """[app-12] [app-13]"""
    path = tmp_path_factory.mktemp("made") / "a.recording"
    recording = made(path, loop(6), pages=pages, jitter=jitter, cold=cold, path_ns=path_ns)
    slope = analyzed(observed(lambda delay_ms: 3 + 6 * delay_ms))
    (page,) = analyze(recording, NOW, costs(smallest_us, noise=0.1), {"front": slope}).pages
    assert page.slope is not None
    for found in (page.now, page.present, page.bottom_up, page.slope):
        for one in (found.p50_ms, found.p95_ms):
            assert one.value >= 0 and (one.low is None or 0 <= one.low <= one.value)
    for parts, whole in ((page.parts_now, page.now), (page.parts, page.bottom_up)):
        each = (parts.application_ms, parts.path_ms, parts.server_ms)
        assert min(each) > -1e-9 and sum(each) == pytest.approx(whole.p50_ms.value)
    (recorded,) = summarise_recording(recording).pages
    assert recorded.took_ms.low is None or 0 < recorded.took_ms.low <= recorded.took_ms.value


def test_a_recording_and_its_prediction_have_one_statistic_and_name_a_cold_page(tmp_path: Path) -> None:
    """[app-11]"""
    recording = made(tmp_path / "c.recording", loop(6), pages=9, cold=100)
    found, (recorded,) = predicted(recording), summarise_recording(recording).pages
    (page,) = found.pages
    assert page.now.p50_ms.value == pytest.approx(recorded.took_ms.value - 6 * TAP_NS / 1e6)
    assert page.cold == recorded.cold and page.cold is not None
    for report in (
        document(found, (), cost_pages(recording, NOW, FAR)),
        summary_document(summarise_recording(recording), "a"),
    ):
        assert "the first page took" in terminal.render(report, 100, colour=False)
    assert predicted(made(tmp_path / "w.recording", loop(6), pages=9)).pages[0].cold is None


def test_a_miss_has_the_reason_that_is_large_enough(recording: Recording) -> None:
    """[cli-14] If the parts of a page add up to much more than the page, a shift of 12 ns per round trip is not the reason."""
    pages = tuple(
        dataclasses.replace(page, ended_ns=page.begun_ns + page.took_ns // 4) if number else page
        for number, page in enumerate(recording.pages)
    )
    (page,) = (found := analyze(dataclasses.replace(recording, pages=pages), NOW, FAR, None, FLOOR_NS + 12)).missed
    assert page.miss.beyond_ms > 100 * abs(page.miss.shift_ms)
    text = terminal.render(document(found, (), {}), 100, colour=False)
    assert "No answer for remote, RTT 0.5ms: the times of this recording contradict" in " ".join(text.split())
    assert "longer together than the page" in " ".join(text.split())
    assert "a round trip without work" not in text.split("How it was predicted")[0]


def test_statements_that_the_server_refused_are_counted(tmp_path: Path) -> None:
    """[app-9]"""
    recording = made(
        tmp_path / "f.recording", [*loop(3), *[Step("SELECT * FROM no_such_table", failed=True)] * 5], pages=4
    )
    found = predicted(recording)
    assert found.pages[0].failing == {"SELECT * FROM no_such_table": (20, 20)}
    assert "no_such_table" in terminal.render(document(found, (), cost_pages(recording, NOW, FAR)), 100, colour=False)


def test_a_stranger_sees_it_at_once(recording: Recording) -> None:
    found = predicted(recording)
    laid = cost_pages(recording, NOW, FAR)
    report = document(found, find_changes(laid), laid)
    text = terminal.render(report, 100, colour=False)
    in_sight = " ".join(" ".join(text.splitlines()[-VISIBLE_LINES:]).split())
    assert "94 of its 105 round trips are one loop" in in_sight
    assert "<svg" in html.render(report)


def test_the_answer_is_short_and_there_is_none_from_too_few_blocks(recording: Recording, tmp_path: Path) -> None:
    laid = cost_pages(recording, NOW, FAR)
    answer = is_answer_first(document(predicted(recording), find_changes(laid), laid))
    assert "3.6 times slower" in answer.text and "of 75.7 ms there" in answer.why
    lonely = made(tmp_path / "one.recording", PAGE, pages=1)
    laid = cost_pages(lonely, NOW, FAR)
    found = predicted(lonely)
    answer = is_answer_first(document(found, find_changes(laid), laid))
    assert answer.text.endswith("ms are predicted on remote, RTT 0.5ms.") and "times slower" not in answer.text
    assert "no interval, as fewer than 4 pages" in str(answer.certainty), (
        "one page is an answer, but without an interval"
    )
    few = found.model_copy(update={"cost_us": found.cost_us.model_copy(update={"n": 3})})
    report = document(few, find_changes(laid), laid)
    assert not any(isinstance(block, Table | AdviceBlock) for block in report.blocks)
    assert isinstance(report.blocks[0], Answer) and report.blocks[0].text.startswith(
        "No answer yet: 1 page in 3 blocks"
    )
    assert "--blocks 4" in str(report.blocks[-1])


@pytest.mark.parametrize(
    ("low", "high", "finding"),
    [(None, None, "times"), (98, 103, "same"), (40, 170, "between"), (101, 103, "change"), (90, 99, "change")],
)
def test_only_a_narrow_interval_says_that_two_times_are_the_same(
    low: float | None, high: float | None, finding: str
) -> None:
    assert compare(100, Estimate(value=100, low=low, high=high)) == finding


def test_an_interval_too_wide_to_tell_is_the_answer(recording: Recording) -> None:
    found = predicted(recording)
    (page,) = found.pages
    now_ms = page.now.p50_ms.value
    wide = Estimate(value=now_ms * 1.01, low=now_ms - 15, high=now_ms + 60)
    there = page.bottom_up.model_copy(update={"p50_ms": wide})
    shown = found.model_copy(update={"pages": (page.model_copy(update={"bottom_up": there}),)})
    answer = is_answer_first(document(shown, (), cost_pages(recording, NOW, FAR)))
    assert f"between {now_ms - 15:.2f} and {now_ms + 60:.1f} ms" in answer.text


def test_the_cause_adds_up_with_connects_and_a_broken_number_of_round_trips(tmp_path: Path) -> None:
    """Two medians of 12 and 13 round trips; each page opens a connection, which takes 0.53 ms longer there."""
    recording = made(tmp_path / "c.recording", [Step("login", keys=None, phase="connect"), *loop(12)], connect=True)
    found, laid = predicted(recording), cost_pages(recording, NOW, FAR)
    pages = [
        dataclasses.replace(page, trips=page.trips[: 13 - number % 2]) for number, page in enumerate(laid["front"])
    ]
    (page,) = found.pages
    assert page.median_added_connect_ms == pytest.approx(0.53)
    mixed = page.model_copy(update={"median_round_trips": 12.4})
    answer = is_answer_first(document(found.model_copy(update={"pages": (mixed,)}), (), {"front": pages}))
    trips, each, connects, path = re.findall(r"[\d.]+", answer.why)[:4]
    assert trips == "12.4" and "0.53 ms of longer connects" in answer.why
    assert float(trips) * float(each) + float(connects) == pytest.approx(float(path), abs=0.01 * float(path))


def test_a_measurement_is_compared_with_predictions_of_its_path_alone(recording: Recording) -> None:
    found, laid = predicted(recording), cost_pages(recording, NOW, FAR)
    (page,) = found.pages

    def errors(target: str, rtt_ns: int) -> tuple[str, int]:
        """The predicted time beside a measurement, and the number of points in the chart."""
        times = MeasuredPage(name="front", p50_ms=page.bottom_up.p50_ms, p95_ms=page.bottom_up.p95_ms)
        report = document(found, (), laid, [Measurement(target=target, rtt_ns=rtt_ns, pages=(times,))])
        (details,) = (block for block in report.blocks if isinstance(block, Details))
        (table,) = (one for one in details.blocks if isinstance(one, Table) and one.rows[0][0].text == target)
        (chart,) = (one for one in details.blocks if isinstance(one, Chart) and one.name == "rtt-front")
        return table.rows[0][2].text, len(chart.make.args[1])  # type: ignore[attr-defined]

    assert errors("remote, RTT 0.5ms", 500_000) == (f"{page.bottom_up.p50_ms.value:.1f}", 1)
    assert errors("remote, RTT 5ms", 5_000_000) == (f"{page.curve_ms[5_000_000]:.0f}", 1)
    for other in ("remote, RTT 5ms, 1gbit", "remote, RTT 5ms, TLS 1.3", "ssh, RTT 5ms"):
        assert errors(other, 5_000_000) == ("unknown", 0)


def test_blocks_left_out_are_counted_by_reason(recording: Recording) -> None:
    target = FAR.model_copy(update={"void": ("slow", "late", "slow", "a", "b", "c")})
    found = predicted(recording, target)
    text = " ".join(terminal.render(document(found, (), cost_pages(recording, NOW, target)), 100, colour=False).split())
    assert "6 blocks left out: slow (2 blocks); late (1 block); a (1 block)." in text


def test_a_replay_says_whether_the_prediction_was_right_and_which_end_was_late(recording: Recording) -> None:
    costed, found = cost_pages(recording, NOW, FAR), predicted(recording)

    def replayed(took_ms: float, blocks: int = 6, late_ns: int = 0) -> Document:
        one = Replayed(
            took_ns=round(took_ms * 1e6), opened_ns=(), round_trips_ns=(), client_late_ns=late_ns, server_late_ns=0
        )
        pages = [{"front": [one] * len(costed["front"])}] * blocks
        return replay.document(replay.analyze(costed, pages, found, 500_000))

    assert "as predicted" in is_answer_first(replayed(75.5)).text
    assert "too long" in is_answer_first(replayed(50)).text
    assert "too short" in is_answer_first(replayed(90)).text
    unsure = dict.fromkeys(("p50_ms", "p95_ms"), Estimate(value=50, low=20, high=100))
    page = replay.ReplayedPage(
        name="front", pages=6, **unsure, predicted=found.pages[0].bottom_up, client_late=0, server_late=0
    )
    wide = replay.Replay(target="remote", rtt_ns=500_000, blocks=6, pages=(page,), recorded_unix_ns=None)
    assert "as predicted" not in is_answer_first(replay.document(wide)).text
    assert "a tool that fell behind" in str(is_answer_first(replayed(75.5, late_ns=9_000_000)).certainty)
    first, *_, last = replayed(75.5, blocks=1).blocks
    assert isinstance(first, Answer) and first.text.startswith("No answer yet") and "--blocks 4" in str(last)


def test_an_answer_waits_for_slow_start_on_a_new_connection_alone(tmp_path: Path) -> None:
    """20 kB exceed the initial window, but not the window that they leave behind."""
    far = costs(5000, label="remote", rtt_ns=5_000_000)
    kept, fresh = (
        cost_pages(
            made(tmp_path / f"{connect}", [Step("SELECT body", to_client=20_000)], connect=connect), costs(20), far
        )
        for connect in (False, True)
    )
    assert [len(page.trips[0].rounds) for page in kept["front"]] == [1] + [0] * 29
    assert [len(page.trips[0].rounds) for page in fresh["front"]] == [1] * 30


def test_what_is_sent_while_slow_start_waits_is_counted_once() -> None:
    """At 1 us per KiB the first round of a 43.4 kB answer takes 14 us to send, and only the rest of the RTT is waiting. Beyond the
    largest size measured, costs grow in proportion."""
    sizes = Sizes(to_server=(16,), to_client=(8, 102_408))
    block = CostBlock(cost_ns=(5e6, 5e6 + 100_000), connect_ns=0)
    path = PathCosts(label="remote", sizes=sizes, blocks=(block, block), link_rtt_ns=5_000_000)
    waited = path.slow_start_ns([(), (14_480,), (14_480, 10 << 30)])
    sending_ns = 100_000 * (14_480 - 8) / 102_400
    assert waited.tolist() == [[0, pytest.approx(5e6 - sending_ns), pytest.approx(5e6 - sending_ns)]] * 2
    assert path.costs_ns([16], [8 + 2 * 102_400])[0, 0] == pytest.approx(5e6 + 200_000)
    assert path.slow_start_ns([(14_480,)], 10_000).tolist() == [[0], [0]], "sent in more than this RTT"
    same = path.model_copy(update={"link_rtt_ns": 0})
    assert same.slow_start_ns([(14_480,)]).tolist() == [[0], [0]]


def test_a_window_closes_while_nothing_is_sent() -> None:
    window = SlowStartWindow()
    assert [len(window.earlier_rounds(200_000)) for _ in range(2)] == [3, 0]
    window.apply_idle_time(150_000_000)
    assert not window.earlier_rounds(200_000)
    window.apply_idle_time(60_000_000_000)
    assert len(window.earlier_rounds(200_000)) == 3
