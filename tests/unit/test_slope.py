"""Figures computed from the times of an application behind the tap."""

from __future__ import annotations

import dataclasses
import http.server
import json
import os
import random
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
from tests.unit.made_recording import is_answer_first

from howfar.cli.predict import _read_slopes
from howfar.cli.screen import show_result
from howfar.contract.messages import Target, TcpTarget, UnixTarget
from howfar.errors import UsageError
from howfar.recording import slope
from howfar.recording.insertion import NamedServer
from howfar.recording.other_programs import BlockWatch
from howfar.recording.slope import Costs, Observation, Slope, SlopeRequest, WarmUp, analyze, document
from howfar.recording.tap import Tap
from howfar.report import terminal
from howfar.report.document import AdviceBlock, Answer, Table
from howfar.stats.estimate import Estimate

DELAYS_NS = (0, 1_000_000, 2_000_000, 5_000_000)
COSTS = Costs(tap_us=0, loopback_us=8, idle="polling")
WARM_UP = WarmUp(1, False)


def line(delay_ms: float) -> float:
    return 12 + 53 * delay_ms


def observed(
    time_ms: Callable[[float], float] = line,
    *,
    blocks: int = 8,
    noise_ms: float = 0.3,
    late: float = 0.0,
    seed: int = 1,
) -> list[Observation]:
    """Observations of a page of 53 round trips. `late`: share by which each delay is longer than requested."""
    chance = random.Random(seed)
    found = []
    for block in range(blocks):
        for delay_ns in (*DELAYS_NS, None):
            added_ms = (delay_ns or 0) * (1 + late) / 1e6
            took_ms = time_ms(added_ms) + chance.gauss(0, noise_ms)
            found.append(
                Observation(
                    block=block, delay_ns=delay_ns, held_ns=delay_ns or 0, echo_ns=round(30_000 + added_ms * 1e6),
                    took_ns=round(took_ms * 1e6), round_trips=51 if delay_ns is not None else 0, connections=1,
                )
            )  # fmt: skip
    return found


def analyzed(
    observations: list[Observation], costs: Costs = COSTS, warm_up: WarmUp = WARM_UP, server: str = "/s"
) -> Slope:
    began_unix_ns = 1_764_338_700_000_000_000
    return analyze(observations, costs, warm_up, server=server, began_unix_ns=began_unix_ns, measured_s=41.6)


def test_the_slope_is_the_number_of_round_trips() -> None:
    found = analyzed(observed())
    assert found.slope.value == pytest.approx(53, rel=0.01)
    assert found.intercept_ms.value == pytest.approx(12, rel=0.05)
    assert found.times["5ms"].value == pytest.approx(12 + 53 * 5, rel=0.01)
    assert found.times["loopback"].value == pytest.approx(found.times["now"].value + 53 * 0.008, rel=0.01)


def test_intervals_hold_the_truth() -> None:
    """200 runs of 95 % intervals; 12 or more misses have a chance of 0.7 %, 20 practically none."""
    held = 0
    for seed in range(200):
        slope = analyzed(observed(seed=seed)).slope
        assert slope.low is not None and slope.high is not None
        held += slope.low <= 53 <= slope.high
    assert held >= 180


def test_a_delay_that_is_late_is_no_round_trip() -> None:
    assert analyzed(observed(late=0.03)).slope.value == pytest.approx(53, rel=0.01)


def test_what_the_tap_costs_is_taken_off() -> None:
    costs = COSTS.model_copy(update={"tap_us": 20.0})
    assert analyzed(observed(), costs).intercept_ms.value == pytest.approx(12 - 53 * 0.02, rel=0.05)


def test_a_kink_is_named_where_it_is() -> None:
    def times_out(delay_ms: float) -> float:
        return line(delay_ms) + (200 if delay_ms > 2 else 0)

    (kink,) = analyzed(observed(times_out)).kinks
    assert (kink.from_ns, kink.to_ns) == (2_000_000, 5_000_000)
    assert "kink" in screen(analyzed(observed(times_out)))
    assert not analyzed(observed()).kinks


def test_too_few_blocks_give_no_answer_and_no_times_of_other_paths() -> None:
    found = analyzed(observed(blocks=3))
    assert found.slope.low is None
    assert "No answer" in screen(found) and "--blocks 4" in screen(found)
    assert not any(isinstance(block, Table | AdviceBlock) for block in document(found, "page.php").blocks)


def test_a_line_that_misses_the_present_path_is_said() -> None:
    seen = [
        one.model_copy(update={"took_ns": one.took_ns + 5_000_000}) if one.delay_ns is None else one
        for one in observed()
    ]
    assert "which without the tap takes" in screen(analyzed(seen))


@pytest.mark.parametrize("noise", [0.0, 0.3])
def test_pages_warm_up_until_their_times_stop_falling(noise: float) -> None:
    """[app-7] A page computes 60 ms at first and 10 ms in the end; the excess falls by 3 % with each request."""
    chance, asked = random.Random(3), 0

    def timer() -> float:
        nonlocal asked
        asked += 1
        return (0.010 + 0.050 * 0.97**asked) * (1 + noise * chance.expovariate(1))

    requested = SlopeRequest(NamedServer(UnixTarget(path="/a")), url="http://127.0.0.1/")
    warm = slope._warm_up(requested, timer)
    assert warm.pages == asked + 1 and not warm.still_falling
    assert 0.010 + 0.050 * 0.97**asked < 0.013
    assert slope._warm_up(dataclasses.replace(requested, warm_ups=5), timer) == WarmUp(5, False)
    assert slope._warm_up(dataclasses.replace(requested, url=None), timer) == WarmUp(1, False)
    assert slope._warm_up(dataclasses.replace(requested, budget_s=0), timer) == WarmUp(1, False), "too few to know"


def test_a_first_block_that_differs_from_the_last_is_said() -> None:
    """[app-7]"""
    drifting = [
        seen.model_copy(update={"took_ns": round(seen.took_ns * (1 + 0.5 * 0.5**seen.block))}) for seen in observed()
    ]
    assert analyzed(drifting).drift == pytest.approx(0.5, abs=0.05)
    assert "a first block that took" in str(is_answer_first(document(analyzed(drifting), "page.php")).certainty)
    assert "doubtful" not in str(is_answer_first(document(analyzed(observed()), "page.php")).certainty)


@pytest.mark.parametrize(
    ("round_trips", "noise_ms", "said"),
    [
        (60, 0.3, "waits for 5"),
        (49.5, 9.0, "waits for all of its 50.5 round trips"),
        (47, 0.3, "each costs more than the delay"),
        (49.5, 80.0, "of its 50.5 round trips; 0.5 ms more RTT adds"),
        (5, 30.0, "each costs more than the delay"),
    ],
)
def test_no_more_round_trips_are_waited_for_than_were_counted(round_trips: float, noise_ms: float, said: str) -> None:
    """[app-8]"""
    seen = [one.model_copy(update={"round_trips": round_trips}) for one in observed(noise_ms=noise_ms)]
    assert said in screen(analyzed(seen))


@pytest.mark.parametrize(
    ("round_trips", "time_ms", "noise_ms", "still_falling"),
    [(60, line, 0.3, False), (49.5, line, 9.0, True), (47, line, 0.3, False), (5, lambda _: 12.0, 0.3, False)],
)
def test_each_answer_is_short_and_says_why_and_how_sure(
    round_trips: float, time_ms: Callable[[float], float], noise_ms: float, still_falling: bool
) -> None:
    seen = [one.model_copy(update={"round_trips": round_trips}) for one in observed(time_ms, noise_ms=noise_ms)]
    found = analyzed(seen, warm_up=WarmUp(400, still_falling))
    answer = is_answer_first(document(found, "page.php"))
    assert ("still falling" in str(answer.certainty)) is still_falling


@pytest.mark.parametrize(
    ("low", "high", "finding"),
    [(0.5, 12, "unresolved"), (-1, 6, "unresolved"), (2, 8, "unresolved"), (9, 11, "all"), (4, 6, "some"), (11, 40, "dear"),
     (-0.5, 0.5, "none"), (-0.2, 3.7, "unresolved"), (-0.4, 0.6, "unresolved"), (6.5, 10.3, "some")],
)  # fmt: skip
def test_a_wide_interval_does_not_say_how_many_round_trips_are_waited_for(
    low: float, high: float, finding: str
) -> None:
    """The tap counted 10. Only an interval above all of them says more than that whatever its width."""
    interval = Estimate(value=(low + high) / 2, low=low, high=high)
    found = analyzed(observed()).model_copy(update={"slope": interval, "round_trips": 9.0, "connections": 1.0})
    assert slope._finding(found) == finding
    answer = is_answer_first(document(found, "page.php"))
    assert (f"waits for {max(low, 0):.1f} to {min(high, 10):.1f} of its 10.0" in answer.text) is (
        finding == "unresolved"
    )
    assert ("--blocks 32" in str(document(found, "page.php").blocks)) is (finding == "unresolved")


def test_the_setting_names_server_duration_and_day() -> None:
    found = analyzed(observed(), server="127.0.0.1:3306")
    assert document(found, "a").setting == "127.0.0.1:3306 · 8 blocks in 42 s · 2025-11-28 14:05 UTC"


@pytest.mark.parametrize(
    ("target", "shown"),
    [
        (UnixTarget(path="/run/s.sock"), "/run/s.sock"),
        (TcpTarget(host="10.0.0.1", port=3306), "10.0.0.1:3306"),
        (TcpTarget(host="::1", port=3306), "[::1]:3306"),
    ],
)
def test_the_server_is_named_by_its_path_or_by_host_and_port(target: Target, shown: str) -> None:
    assert slope._describe_address(target) == shown


def test_beyond_the_longest_delay_times_are_marked() -> None:
    rows = {row.split()[0]: row for row in screen(analyzed(observed())).splitlines() if row[:1].isdigit()}
    assert "extrapolated" in rows["85ms"] and "extrapolated" not in rows["5ms"]


def screen(found: Slope) -> str:
    return terminal.render(document(found, "page.php"), 100)


SERVER, OWN = NamedServer(UnixTarget(path="/s")), UnixTarget(path="/tap")


@pytest.mark.parametrize(
    ("requested", "why"),
    [
        (SlopeRequest(SERVER, url="http://127.0.0.1:99999/", listen=OWN), "not an http URL: Port out of range"),
        (SlopeRequest(SERVER, url="http://127.0.0.1:x/", listen=OWN), "not an http URL: Port could not"),
        (SlopeRequest(SERVER, url="http://[::1/", listen=OWN), "not an http URL"),
        (SlopeRequest(SERVER, url="ftp://h/", listen=OWN), "not an http URL"),
        (SlopeRequest(SERVER, listen=OWN), "--listen needs --url"),
        (SlopeRequest(SERVER, ("php",), url="http://127.0.0.1/", listen=OWN), "for an application that already runs"),
    ],
)
def test_mistakes_are_told_as_such(requested: SlopeRequest, why: str) -> None:
    tap = cast(Tap, SimpleNamespace(address=OWN))
    with ExitStack() as stack, pytest.raises(UsageError, match=why):
        slope._timers(requested, tap, stack)


@pytest.mark.parametrize(("round_trips", "longest_ms"), [(51, 20), (90, 20), (1000, 5)])
def test_the_longest_delay_is_one_that_the_time_budget_allows(round_trips: int, longest_ms: int) -> None:
    """The slowdown of computing after a wait grows with the wait, so short delays alone give too high a slope."""
    counts = SimpleNamespace(round_trips=round_trips, connections=0)
    tap = cast(Tap, SimpleNamespace(set_delay=lambda _: counts))
    delays_ns = slope._choose_delays(SlopeRequest(SERVER, blocks=12), tap, lambda: 0.01)
    assert (delays_ns[0], delays_ns[-1]) == (0, longest_ms * 1_000_000)


def test_a_page_that_is_not_answered_any_more_is_said() -> None:
    """The application ends after the first block, or times out behind the longest delay."""
    answers = iter([0.01] * len(DELAYS_NS))

    def page() -> float:
        if (took_s := next(answers, None)) is None:
            raise ConnectionRefusedError("refused")
        return took_s

    tap = cast(Tap, SimpleNamespace(set_delay=lambda _: SimpleNamespace(round_trips=1, connections=1, held_ns=0)))
    echo = cast(slope.Echo, SimpleNamespace(measure_round_trip_ns=lambda _: 1))
    requested = SlopeRequest(SERVER, url="http://127.0.0.1/", listen=OWN)
    timers = (slope._timer_requiring_answers(requested, page), None)
    watch = BlockWatch(lambda: None, lambda _: True, lambda _: None)
    blocks = slope._measure_blocks(requested, DELAYS_NS, tap, echo, timers, lambda _: None, watch)
    with pytest.raises(UsageError, match="was not answered: refused"):
        list(blocks)


def test_a_url_may_have_characters_of_any_language() -> None:
    asked = []

    class Page(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with http.server.HTTPServer(("127.0.0.1", 0), Page) as server:
        thread = threading.Thread(target=server.handle_request)
        thread.start()
        url = f"http://127.0.0.1:{server.server_port}/gr\u00f6\u00dfe?a=b%20c"
        timer = slope._page_timer(SlopeRequest(SERVER, ("true",), url))
        assert timer() > 0
        thread.join(10)
    assert asked == ["/gr%C3%B6%C3%9Fe?a=b%20c"]


def test_ctrl_c_during_a_calibration_leaves_no_trace_of_the_echo(tmp_path: Path) -> None:
    """[cli-7] A terminal sends the signal to the process group, so a client of the echo ends without an orderly close."""
    script = f"""
import signal, time
from howfar.recording.slope import connect, run_echo_server
try:
    with run_echo_server({str(tmp_path / "echo" / "s")!r}) as target, connect(target) as line:
        line.send(b"?")
        print("ready", flush=True)
        time.sleep(60)
except KeyboardInterrupt:
    pass
"""
    (tmp_path / "echo").mkdir()
    command = [sys.executable, "-c", script]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True) as process:
        assert process.stdout is not None and process.stderr is not None
        assert process.stdout.readline() == b"ready\n"
        os.killpg(process.pid, signal.SIGINT)
        assert (process.stderr.read(), process.wait(30)) == (b"", 0)
    assert not (tmp_path / "echo").exists(), "the echo has removed its socket"


def test_json_begins_with_question_and_answer_and_can_be_read_by_predict(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = analyzed(observed())
    report = document(found, "page.php")
    show_result(found, report, as_json=True, no_colour=True)
    text = capsys.readouterr().out
    values = json.loads(text)
    (answer,) = (block for block in report.blocks if isinstance(block, Answer))
    assert list(values)[:2] == ["question", "answer"]
    assert values["question"] == report.question and values["answer"]["sentence"] == answer.text
    (tmp_path / "slope.json").write_text(text)
    stored = Slope.model_validate_json(found.model_dump_json())
    assert _read_slopes((f"front={tmp_path / 'slope.json'}",), ["front"]) == {"front": stored}
