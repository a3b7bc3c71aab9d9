"""Recordings of third-party applications and synthetic ones: findings, prediction, and replay on real paths."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from howfar.errors import MissingError
from howfar.paths import PATHS, check_programs
from howfar.recording.changes import find_changes
from howfar.recording.facts import RecordingFacts
from howfar.recording.page_costs import cost_pages
from howfar.recording.recording import Recording, RecordingFile, TimedPage, read
from tests.lab.howfar_runs import HOWFAR, run_howfar
from tests.lab.undisturbed import skip_if_disturbed
from tests.rarely import rarely_but
from tests.unit.made_recording import connection_of, costs, digest_of, round_trip_of

pytestmark = pytest.mark.usefixtures("namespaces")
BENCH = Path(__file__).parents[2] / "benches" / "applications" / "predicted.py"
DJANGO = Path("/usr/lib/python3/dist-packages/django")
WORDPRESS = Path(os.environ.get("WORDPRESS", BENCH.parents[2] / ".boot/wordpress/usr/share/wordpress"))
PAGES, WARM, POSTS = 4, 3, 60
LINK = ("--path", "remote", "--rtt", "10ms", "--json")
FAR = costs(540, label="remote", rtt_ns=500_000, connect_us=560)


@dataclass(frozen=True)
class Recorded:
    path: Path
    counted: Counter[str]
    """The server's own counters during the recording."""

    @property
    def recording(self) -> Recording:
        return read(self.path)


def record_application(app: str, folder: Path) -> Recorded:
    command = [sys.executable, str(BENCH), "--apps", app, "--pages", str(PAGES), "--record-only", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return Recorded(folder / f"{app}.recording", Counter(json.loads(done.stdout)))


def check_prediction(recording: Path, round_trips: Mapping[str, float], blocks: int) -> None:
    """Check what a busy machine cannot change: pages, round trips, and that each round trip takes at least an RTT."""
    done = run_howfar("predict", str(recording), *LINK, "--blocks", str(blocks), timeout_s=300)
    skip_if_disturbed(done.stderr)
    assert done.returncode in (0, 7), done.stderr
    pages = {page["name"]: page for page in json.loads(done.stdout)["pages"]}
    assert {name: page["round_trips"] for name, page in pages.items()} == round_trips
    for name, page in pages.items():
        if page["missed"]:
            assert page["p50_ms"]["bottom_up"] is None
            continue
        found = page["p50_ms"]["bottom_up"]
        assert blocks < 4 or found["low"] < found["value"] < found["high"]
        assert found["value"] > round_trips[name] * 10


def make_recording(
    path: Path, protocol: str, transport: str = "unix", digest: str | None = None, method: str = "tap"
) -> Path:
    """A synthetic recording of a page with ten round trips on one connection."""
    floor_ns = 20_000 if method == "tap" else 0
    file = RecordingFile(path, RecordingFacts(method=method, transport=transport, floor_ns=floor_ns, tap_ns=0))
    file.add_connections([connection_of(1, protocol, 0, None, None, None, False, 0, 0)])
    file.add_digests([digest_of(1, protocol, digest)] if digest else [])
    digest_id = 1 if digest else None
    begin_times = [1_000_000 * number for number in range(1, 11)]
    file.add_round_trips(
        round_trip_of(
            at,
            1,
            None,
            at,
            at,
            at + 30_000,
            at + 30_000,
            20,
            20,
            1,
            "select",
            digest_id,
            None,
            "operation",
            None,
            False,
        )
        for at in begin_times
    )
    file.add_pages([TimedPage(1, "page", "mark", 1.0, None, 500_000, 11_000_000)])
    assert file.assign_pages() == 0
    file.finish(RecordingFacts(tls=False, protocol=protocol))
    return path


@pytest.mark.parametrize("transport", rarely_but(["tcp"], ["unix", "tcp"]))
def test_a_recording_over_either_transport_is_predicted(transport: str, tmp_path: Path) -> None:
    """The synthetic recording's present time may deviate from the prediction: then the exit code is 7."""
    path = make_recording(tmp_path / "a.recording", "redis", transport)
    done = run_howfar("predict", str(path), "--rtt", "10ms", "--blocks", "1", "--json", timeout_s=120)
    skip_if_disturbed(done.stderr)
    assert done.returncode in (0, 7), done.stderr
    assert json.loads(done.stdout)["pages"][0]["round_trips"] == 10


@pytest.mark.parametrize(
    "case",
    rarely_but(
        [("memcached", "nutcracker")],
        [
            *(("postgresql", path) for path in PATHS if path.startswith("pgbouncer")),
            ("redis", "nutcracker"),
            ("memcached", "nutcracker"),
        ],
    ),
    ids="-".join,
)
def test_a_pooler_carries_the_round_trips_of_a_replay(case: tuple[str, str], tmp_path: Path) -> None:
    """A recording of packets includes all waiting times, so its replay has gaps of 10.2 ms in all. From a tap's recording it would
    subtract the time that the tap did not observe, which depends on the machine."""
    protocol, path = case
    try:
        check_programs(PATHS[path])
    except MissingError as error:
        pytest.skip(f"{error.message}: {error.advice}")
    recording = make_recording(tmp_path / "a.recording", protocol, method="packets")
    link = ("--rtt", "10ms") if PATHS[path].crosses_link else ()
    done = run_howfar("replay", str(recording), "--path", path, *link, "--blocks", "1", "--json", timeout_s=120)
    skip_if_disturbed(done.stderr)
    assert done.returncode == 0, done.stderr
    (page,) = json.loads(done.stdout)["pages"]
    assert page["p50_ms"]["value"] > (100 if link else 10), "ten round trips, or the gaps of the page"


def test_pages_are_repeated_on_a_server_with_given_statements(postgresql: None, tmp_path: Path) -> None:
    """The server counts each statement as often as it was recorded."""
    recording = make_recording(tmp_path / "a.recording", "postgresql", digest="SELECT c FROM sbtest1 WHERE id = ?")
    (tmp_path / "a.sql").write_text("SELECT c\nFROM sbtest1\nWHERE id = 7;\n")
    (tmp_path / "none.sql").write_text("SELECT 1;\n")
    replay = f"{HOWFAR} replay {recording} --blocks 2 --statements"
    counted = "psql -qtAc 'SELECT seq_scan + idx_scan FROM pg_stat_user_tables WHERE relname = $$sbtest1$$'"
    seen = f"sleep 1.1; {counted}"  # a session publishes its counts at its end, at most once a second
    inner = f"{seen}; {replay} a.sql --json >found.json && {seen}; {replay} none.sql; echo $?"
    lab = ("lab", "--server", "postgresql", "--tables", "1", "--table-size", "10", "--path", "tcp")
    done = run_howfar(*lab, "--", "sh", "-c", inner, timeout_s=120, cwd=tmp_path)
    before, after, code = done.stdout.split()
    assert (int(after) - int(before), code) == (3 * 10, "2"), done.stderr
    (page,) = json.loads((tmp_path / "found.json").read_text())["pages"]
    assert page["round_trips"] == 10 and page["left_out"] == {}
    assert page["repeated"]["p50_ms"]["value"] > 9, "there are ten gaps of almost a millisecond"


def test_a_replay_without_writes_is_a_read_only_session(postgresql: None, tmp_path: Path) -> None:
    recording = make_recording(tmp_path / "a.recording", "postgresql", digest="SELECT nextval(?)")
    (tmp_path / "a.sql").write_text("SELECT nextval('seen');\n")
    replay = f"{HOWFAR} replay {recording} --blocks 2 --statements a.sql"
    last = "psql -qtAc 'SELECT last_value, is_called FROM seen'"
    inner = f"psql -qc 'CREATE SEQUENCE seen'; {replay}; echo $?; {last}; {replay} --writes --json >/dev/null; echo $?; {last}"
    done = run_howfar(
        "lab", "--server", "postgresql", "--path", "socket", "--", "sh", "-c", inner, timeout_s=120, cwd=tmp_path
    )
    assert done.stdout.split() == ["5", "1|f", "0", "30|t"], done.stderr
    assert "page: " in done.stderr and "read-only transaction" in done.stderr
    assert "Without --writes, the session is read-only" in done.stderr


@pytest.fixture(scope="module")
def django(postgresql: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Recorded]:
    if not DJANGO.is_dir():
        pytest.skip("Debian's python3-django is not installed: ./setup --tests")
    yield record_application("django", tmp_path_factory.mktemp("django"))


@pytest.fixture(scope="module")
def wordpress(mariadb: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Recorded]:
    if not (WORDPRESS / "wp-settings.php").is_file():
        pytest.skip("Debian's wordpress is not unpacked: ./setup --tests")
    yield record_application("wordpress", tmp_path_factory.mktemp("wordpress"))


def test_the_loop_of_a_django_page_is_found_and_the_page_without_it_has_none(django: Recorded) -> None:
    recording = django.recording
    assert recording.facts.commands["select"] == (PAGES + 2) * (1 + POSTS + 1), "two pages of each kind warm up"
    costed = cost_pages(recording, costs(20), FAR)
    assert {name: [len(page.trips) for page in pages] for name, pages in costed.items()} == {
        "list": [1 + POSTS] * PAGES,
        "joined": [1] * PAGES,
    }
    (loop,) = [change for change in find_changes(costed) if change.kind == "loop"]
    assert (loop.page, loop.count) == ("list", POSTS)
    assert "blog_author" in loop.digest
    assert loop.low_ms == pytest.approx((POSTS - 1) * 0.54, rel=0.05)


@pytest.mark.thorough
def test_django_is_predicted_and_replayed_over_a_link(django: Recorded) -> None:
    check_prediction(django.path, {"list": 1 + POSTS, "joined": 1}, blocks=4)
    done = run_howfar("replay", str(django.path), *LINK, "--pages", "1", "--blocks", "1", timeout_s=300)
    assert done.returncode == 0, done.stderr
    replayed = {page["name"]: page for page in json.loads(done.stdout)["pages"]}
    assert replayed["list"]["p50_ms"]["value"] > (1 + POSTS) * 10
    assert replayed["list"]["p50_ms"]["value"] > 10 * replayed["joined"]["p50_ms"]["value"]


def test_all_requests_of_wordpress_are_recorded_without_literals(wordpress: Recorded) -> None:
    recording = wordpress.recording
    commands = Counter(recording.facts.commands)
    assert recording.facts.unknown == {}
    counted = {"select": "Com_select", "set": "Com_set_option", "login": "Connections"}
    assert {name: commands[name] for name in counted} == {name: wordpress.counted[by] for name, by in counted.items()}
    assert commands["login"] == 2 * (PAGES + WARM)
    content = wordpress.path.read_bytes()
    assert b"wp_comments" in content
    for secret in (b"post-7", b"words words", b"so it is", b"nobody@", b"twentytwentyone"):
        assert secret not in content


def test_wordpress_connects_once_and_repeats_statements(wordpress: Recorded) -> None:
    costed = cost_pages(wordpress.recording, costs(20), FAR)
    assert {name: len(pages) for name, pages in costed.items()} == {"/": PAGES, "/index.php/*/": PAGES}
    for pages in costed.values():
        assert {page.connects for page in pages} == {1}
        assert len({len(page.trips) for page in pages}) == 1
        assert len(pages[0].trips) > 20
    assert {"connect", "cache", "initial"} <= {one.kind for one in find_changes(costed)}


@pytest.mark.thorough
def test_wordpress_is_predicted_over_a_link(wordpress: Recorded) -> None:
    costed = cost_pages(wordpress.recording, costs(20), FAR)
    check_prediction(wordpress.path, {name: len(pages[0].trips) for name, pages in costed.items()}, blocks=1)
