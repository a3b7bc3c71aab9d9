"""The screens of `howfar TARGET`, against golden texts that a person has read, and what must hold for all of them.

`HOWFAR_GOLDEN=write pytest tests/unit/test_distance_screen.py` writes the goldens anew; read the difference before committing it.
"""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator
from tests.unit import made_distance
from tests.unit.rendered import GOLDEN, is_golden

from howfar.cli.main import cli
from howfar.distance.formats import csv_text, prometheus_text
from howfar.distance.record import Distance, schema_text
from howfar.distance.screen import LINES, WIDTH, failure_lines, format_number, format_time, render
from howfar.distance.watch import Moment, WatchResults, log_line, render_screen, summary_lines

SCREENS: dict[str, Callable[[], Distance]] = {
    "remote": made_distance.remote,
    "socket": made_distance.socket,
    "pooler": made_distance.pooler,
    "far": made_distance.far,
}


@pytest.mark.parametrize("name", SCREENS)
def test_screen(name: str) -> None:
    is_golden(GOLDEN / f"distance-{name}.txt", render(SCREENS[name]()) + "\n")


@pytest.mark.parametrize("name", SCREENS)
def test_a_screen_fits_a_terminal_of_24_lines_and_80_columns(name: str) -> None:
    lines = render(SCREENS[name]()).splitlines()
    assert len(lines) <= LINES
    assert max(map(len, lines)) <= WIDTH


@pytest.mark.parametrize("width", range(40, 81))
@pytest.mark.parametrize("name", SCREENS)
def test_a_screen_fits_a_narrow_terminal_and_keeps_its_figures(name: str, width: int) -> None:
    narrow, wide = render(SCREENS[name](), width), render(SCREENS[name]()).splitlines()
    assert max(map(len, narrow.splitlines())) <= width
    # Other lines may be omitted if there are too many.
    for start in (
        wide[0],
        "one request",
        "  network",
        "new connection",
        "a page of",
        "  reused",
        "  new ",
        "  another region",
    ):
        for line in (line for line in wide if line.startswith(start)):
            assert {word for word in line.split() if word.replace(".", "").isdigit()} <= {*narrow.split()}, narrow


@pytest.mark.parametrize("name", SCREENS)
def test_the_text_has_no_time_that_json_lacks(name: str) -> None:
    """Every time on the screen is a field of the record, or a difference that is labelled as one."""
    distance = SCREENS[name]()
    numbers = {format_time(ns) for ns in _integers(json.loads(distance.model_dump_json()))}
    request, network = distance.request, distance.network_ns
    assert request is not None and distance.connection is not None
    lookup = distance.name.took_ns if distance.name is not None else 0
    numbers |= {format_time(request.middle_ns - (network or 0)), format_time(distance.connection.took_ns + lookup)}
    numbers |= {f"{other.rtt_ns / 1e6:g} ms" for other in distance.elsewhere if other.rtt_ns is not None}
    numbers |= {
        address.why.rpartition("in ")[2]
        for address in (distance.name.addresses if distance.name else ())
        if address.why
    }
    for time in re.findall(r"[\d.,]+ (?:µs|ms|s)\b", render(distance)):
        assert time in numbers or time in _with_unit_of_p50(distance), time


def _integers(value: object) -> list[int]:
    if isinstance(value, dict):
        return [one for part in value.values() for one in _integers(part)]
    if isinstance(value, list):
        return [one for part in value for one in _integers(part)]
    return [value] if isinstance(value, int) and not isinstance(value, bool) else []


def _with_unit_of_p50(distance: Distance) -> set[str]:
    assert distance.request is not None
    unit = format_time(distance.request.middle_ns).rpartition(" ")[2]
    factor = {"µs": 1e3, "ms": 1e6, "s": 1e9}[unit]
    return {f"{format_number(distance.request.mean_ns / factor)} {unit}"}


def test_a_failure_says_what_worked_and_what_to_do() -> None:
    is_golden(GOLDEN / "distance-silent.txt", "\n".join(failure_lines(made_distance.silent())) + "\n")


@pytest.mark.parametrize("count", [1, 2, 5, 6])
def test_a_percentile_that_the_count_does_not_support_is_not_printed(count: int) -> None:
    made = made_distance.remote().model_copy(
        update={"request": made_distance.latencies("SELECT 1", 420, count), "ping": None}
    )
    first, *_, sample = render(made).splitlines()[:5]
    assert ("p50" in render(made)) == (count >= 6) == ("judging by" not in first)
    assert sample == f"  sample        {count} x SELECT 1, one at a time"
    assert ("mean " in render(made)) == (count > 1)
    assert ("request_p50_ns" in csv_text(made)) == (count >= 6)


@pytest.mark.parametrize("count", [1, 5, 6])
def test_so_few_pings_have_no_median(count: int) -> None:
    made = made_distance.remote().model_copy(update={"ping": made_distance.latencies("COM_PING", 400, count)})
    assert ("(COM_PING)" in render(made)) == (count >= 6)
    assert f"{count} ping" in render(made)


def test_csv() -> None:
    text = csv_text(made_distance.remote())
    rows = list(csv.DictReader(io.StringIO(text)))
    assert {row["metric"]: row["value"] for row in rows}["request_p50_ns"] == str(
        made_distance.remote().request.p50_ns  # type: ignore[union-attr]
    )
    is_golden(GOLDEN / "distance.csv", text)


def test_prometheus_text_is_one_gauge_a_name_with_its_help() -> None:
    text = prometheus_text(made_distance.remote())
    is_golden(GOLDEN / "distance.prom", text)
    assert "howfar_up" in prometheus_text(made_distance.silent())
    assert re.search(r"^howfar_up\{[^}]*\} 0$", prometheus_text(made_distance.silent()), re.MULTILINE)


@pytest.mark.parametrize("made", [*SCREENS.values(), made_distance.silent])
def test_json_follows_its_schema_also_on_failure(made: Callable[[], Distance]) -> None:
    Draft202012Validator(json.loads(schema_text())).validate(json.loads(made().model_dump_json()))


def test_json_of_the_servers_here_follows_it_too() -> None:
    done = CliRunner().invoke(cli, ["--json"])
    assert done.exit_code == 0
    Draft202012Validator(json.loads(schema_text())).validate(json.loads(done.output))


def test_the_schema_is_current() -> None:
    file = GOLDEN.parents[1] / "schema" / "distance.json"
    assert file.read_text() == schema_text(), "python -m howfar.distance.record"


@pytest.mark.parametrize(
    ("ns", "text"),
    [(900, "0.90 µs"), (9_960, "10 µs"), (42_000, "42 µs"), (99_999, "100 µs"), (100_000, "0.10 ms"), (416_000, "0.42 ms"),
     (85_100_000, "85 ms"), (999_900_000, "1,000 ms"), (5_123_000_000, "5.1 s")],
)  # fmt: skip
def test_times_have_two_significant_digits(ns: int, text: str) -> None:
    assert format_time(ns) == text


BEGAN = datetime(2026, 11, 28, 12, 0, 0, tzinfo=UTC)
BROKE = "the connection to 10.0.4.17:3306 broke: Connection reset by peer"


def _at(seconds: float) -> Moment:
    return Moment(BEGAN + timedelta(seconds=seconds), round(seconds * 1e9))


def _watched(until: int = 400) -> WatchResults:
    """A watch in which no request due at 200 s to 202 s is answered; at 202.9 s the server is back."""
    watched = WatchResults(title="mysql://app@db.internal:3306/shop: SELECT 1", interval_ns=1_000_000_000)
    for second in range(until):
        if 200 <= second < 203:
            watched.record_loss(BROKE if second == 200 else "no connection", _at(second))
            watched.record_unreachable()
            continue
        if second == 203:
            watched.record_recovery(_at(202.9))
        latency_ns = 420_000 + 1_000 * (second * 37 % 60) + (2_000_000 if second == 300 else 0)
        watched.record_answer(latency_ns, _at(second))
    watched.skipped = 2
    return watched


@pytest.mark.parametrize(("width", "height"), [(80, 24), (120, 40)])
def test_the_live_screen_fits_and_is_as_read(width: int, height: int) -> None:
    text = render_screen(_watched(), None, _at(400).ns, width, height)
    assert len(text.splitlines()) < height
    assert max(map(len, text.splitlines())) <= width
    if width == 80:
        is_golden(GOLDEN / "distance-watch.txt", text + "\n")


def test_a_request_that_hangs_shows_its_age() -> None:
    assert "waiting for 3.0 s" in render_screen(_watched(), 3_000_000_000, _at(400).ns, 80, 24)
    assert "waiting" not in render_screen(_watched(), 300_000, _at(400).ns, 80, 24)


def test_a_watch_that_has_seen_nothing_has_a_screen() -> None:
    empty = WatchResults(title="x", interval_ns=1_000_000_000)
    assert "no answer yet" in render_screen(empty, None, 0, 80, 24)
    assert "0 requests: 0 answered" in "\n".join(summary_lines(empty, 0))


def test_an_outage_and_slow_requests_stay_in_the_summary_with_their_time() -> None:
    lines = list(summary_lines(_watched(), _at(400).ns))
    assert "400 requests" not in lines[1] and "397 answered, 3 lost, 2 skipped" in lines[1]
    assert f"2026-11-28 12:03:20 to 12:03:22  unreachable for 2.9 s, 3 lost: {BROKE}" in lines
    assert "2026-11-28 12:05:00  slow: 2.4 ms" in lines


def test_an_outage_that_goes_on_is_the_first_thing_on_every_line() -> None:
    watched, now = _watched(202), _at(210)
    assert "now    unreachable for 10 s" in render_screen(watched, None, now.ns, 80, 24)
    assert "12:03:20 to now  unreachable for 10 s, 2 lost" in render_screen(watched, None, now.ns, 80, 24)
    assert log_line(watched, now).startswith("12:03:30  unreachable for 10 s  200 answered, 2 lost")


def test_errors_are_an_outage_of_another_name_that_ends_with_the_next_answer() -> None:
    watched = WatchResults(title="x", interval_ns=1)
    for second in range(3):
        watched.record_loss("an error: LOADING", _at(second))
    watched.record_answer(1, _at(3))
    (outage,) = watched.outages
    assert (outage.kind, outage.lost, outage.duration_ns(0), watched.outage) == ("errors", 3, 3_000_000_000, None)


@given(st.lists(st.sampled_from(["answered", "lost", "back"]), max_size=30))
def test_every_lost_request_is_in_exactly_one_outage(happened: list[str]) -> None:
    watched = WatchResults(title="x", interval_ns=1)
    runs = 0
    for second, (what, before) in enumerate(zip(happened, ["back", *happened], strict=False)):
        if what == "lost":
            watched.record_loss("why", _at(second))
        elif what == "answered":
            watched.record_answer(1, _at(second))
        else:
            watched.record_recovery(_at(second))
        runs += what == "lost" != before
    assert watched.outage_count + (watched.outage is not None) == runs
    kept = [*watched.outages, *([] if watched.outage is None else [watched.outage])]
    assert watched.lost == happened.count("lost") and (runs > 5 or sum(one.lost for one in kept) == watched.lost)


def test_percentiles_of_a_watch_are_those_of_its_samples_to_three_digits() -> None:
    watched = WatchResults(title="x", interval_ns=1)
    samples = [1_000 + 17 * (number * 7919 % 3000) for number in range(3000)]
    for one in samples:
        watched.record_answer(one, _at(0))
    for share in (0.5, 0.95, 0.99):
        exact = sorted(samples)[round(share * len(samples)) - 1]
        found = watched.quantile_ns(share)
        assert found is not None and abs(found - exact) / exact < 0.006
