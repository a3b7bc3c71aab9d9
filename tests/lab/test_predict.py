"""Recordings of applications that nobody here wrote: what is found in them, and that they are predicted and replayed on real paths."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from howfar.recording.changes import changes
from howfar.recording.predict import lay_out
from howfar.recording.recording import Recording, read
from tests.unit.made_recording import costs

pytestmark = pytest.mark.usefixtures("namespaces")
HOWFAR = str(Path(sys.executable).with_name("howfar"))
BENCH = Path(__file__).parents[2] / "benches" / "applications" / "predicted.py"
DJANGO = Path("/usr/lib/python3/dist-packages/django")
WORDPRESS = Path(os.environ.get("WORDPRESS", "/usr/share/wordpress"))
PAGES, POSTS = 5, 60
FAR = costs(540, label="remote", rtt_ns=500_000, connect_us=560)


def recorded(app: str, folder: Path) -> Path:
    command = [sys.executable, str(BENCH), "--apps", app, "--pages", str(PAGES), "--record-only", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return folder / f"{app}.recording"


@pytest.fixture(scope="module")
def django(postgresql: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    if not DJANGO.is_dir():
        pytest.skip("Debian's python3-django is not installed: ./setup --tests")
    yield recorded("django", tmp_path_factory.mktemp("django"))


def test_the_loop_of_a_django_page_is_found_and_the_page_without_it_has_none(django: Path) -> None:
    recording = read(django)
    laid = lay_out(recording, costs(20), FAR)
    assert {name: [len(page.trips) for page in pages] for name, pages in laid.items()} == {
        "list": [1 + POSTS] * PAGES,
        "joined": [1] * PAGES,
    }
    (loop,) = [one for one in changes(laid) if one.kind == "loop"]
    assert (loop.page, loop.count) == ("list", POSTS)
    assert "blog_author" in loop.digest
    assert loop.low_ms == pytest.approx((POSTS - 1) * 0.54, rel=0.05)


def test_django_is_predicted_and_replayed_over_a_link(django: Path) -> None:
    """What a busy machine cannot change: which pages there are, how many round trips, and that 60 of them take 60 RTTs at least."""
    link = ["--path", "remote", "--rtt", "10ms", "--json"]
    done = subprocess.run(
        [HOWFAR, "predict", str(django), *link, "--blocks", "4"], capture_output=True, text=True, timeout=300
    )
    assert done.returncode in (0, 7), done.stderr
    pages = {page["name"]: page for page in json.loads(done.stdout)["pages"]}
    assert {name: page["round_trips"] for name, page in pages.items()} == {"list": 1 + POSTS, "joined": 1}
    if not pages["list"]["missed"]:
        found = pages["list"]["p50_ms"]["bottom_up"]
        assert found["low"] < found["value"] < found["high"]
        assert found["value"] > (1 + POSTS) * 10
    link += ["--pages", "1", "--blocks", "1"]
    done = subprocess.run([HOWFAR, "replay", str(django), *link], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    replayed = {page["name"]: page for page in json.loads(done.stdout)["pages"]}
    assert replayed["list"]["p50_ms"]["value"] > (1 + POSTS) * 10
    assert replayed["list"]["p50_ms"]["value"] > 10 * replayed["joined"]["p50_ms"]["value"]


@pytest.mark.thorough
def test_wordpress_connects_once_and_repeats_itself(mariadb: None, tmp_path: Path) -> None:
    if not (WORDPRESS / "wp-settings.php").is_file():
        pytest.skip("WordPress is not here: unpack Debian's wordpress and a theme, and name its folder in WORDPRESS")
    recording: Recording = read(recorded("wordpress", tmp_path))
    laid = lay_out(recording, costs(20), FAR)
    front = laid["/"]
    assert {page.connects for page in front} == {1}
    assert min(len(page.trips) for page in front) > 10
    kinds = {one.kind for one in changes(laid)}
    assert {"connect", "cache", "initial"} <= kinds
