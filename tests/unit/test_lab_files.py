"""Templates, work directories, the network's configuration text, machine facts: what needs no server and no namespace."""

from __future__ import annotations

import fcntl
import os
import time
from pathlib import Path

import pytest

from howfar.errors import LabError, PlanError
from howfar.lab import sandbox
from howfar.lab.cache import WORK, cache_home, file_system_of, lock, work_directory
from howfar.lab.environment import LoadWatch, busy_cpus, cpu_ticks, machine_facts
from howfar.lab.laboratory import LabRequest
from howfar.lab.network import host_batch, loopback_batch, middle_batch, tcp_memory_warning
from howfar.lab.sandbox import TCP_MEMORY
from howfar.lab.servers.table_store import copy_or_build_template, remove_unfinished_templates


def test_a_template_is_built_once(tmp_path: Path) -> None:
    built: list[Path] = []

    def build(where: Path) -> None:
        built.append(where)
        where.mkdir()
        (where / "file").write_text("content")

    assert not copy_or_build_template(tmp_path / "shelf", "t", tmp_path / "a", build)
    assert copy_or_build_template(tmp_path / "shelf", "t", tmp_path / "b", build)
    assert built == [tmp_path / "a"]
    assert (tmp_path / "b" / "file").read_text() == "content"


def test_a_failed_build_leaves_no_template(tmp_path: Path) -> None:
    def build(where: Path) -> None:
        where.mkdir()
        raise LabError("broken")

    with pytest.raises(LabError):
        copy_or_build_template(tmp_path / "shelf", "t", tmp_path / "a", build)
    assert {item.name for item in (tmp_path / "shelf").iterdir()} == {"lock"}


def test_a_failed_copy_leaves_no_template(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk that became full is not full any more."""
    half_cp = tmp_path / "cp"
    half_cp.write_text(
        '#!/bin/sh\nfor last; do :; done\n/bin/mkdir "$last" && echo "No space left on device" >&2\nexit 1\n'
    )
    half_cp.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(LabError, match="No space left"):
        copy_or_build_template(tmp_path / "shelf", "t", tmp_path / "a", lambda where: where.mkdir())
    assert {item.name for item in (tmp_path / "shelf").iterdir()} == {"lock"}


def test_half_made_templates_of_the_dead_are_removed(tmp_path: Path) -> None:
    stale = tmp_path / "shelf" / "building-99"
    stale.mkdir(parents=True)
    copy_or_build_template(tmp_path / "shelf", "t", tmp_path / "a", lambda where: where.mkdir())
    assert not stale.exists()


def test_what_goes_away_while_a_shelf_is_measured_takes_nothing(tmp_path: Path) -> None:
    """A dangling link stands for a file that was removed between the reading of its name and of its size."""
    old = tmp_path / "shelf" / "old"
    old.mkdir(parents=True)
    (old / "gone").symlink_to(tmp_path / "nothing")
    assert not copy_or_build_template(tmp_path / "shelf", "t", tmp_path / "a", lambda where: where.mkdir())
    assert old.is_dir()


def test_holes_stay_holes(tmp_path: Path) -> None:
    def build(where: Path) -> None:
        where.mkdir()
        with (where / "sparse").open("wb") as file:
            file.truncate(64 * 2**20)

    copy_or_build_template(tmp_path / "shelf", "t", tmp_path / "a", build)
    kept = (tmp_path / "shelf" / "t" / "sparse").stat()
    assert kept.st_size == 64 * 2**20
    assert kept.st_blocks * 512 < 2**20


def test_the_work_directory_goes_and_those_of_the_dead_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    dead = cache_home() / "work" / "1-dead"
    dead.mkdir(parents=True)
    held = cache_home() / "work" / "2-held"
    held.mkdir()
    descriptor = os.open(held, os.O_RDONLY)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    with work_directory(0) as where:
        assert where.is_dir()
        assert not dead.exists()
        assert held.exists()
    assert not where.exists()
    os.close(descriptor)


def test_the_work_directory_lies_where_the_user_wants_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(sandbox, "inside", lambda: True)
    monkeypatch.setattr(sandbox, "mount_memory", lambda *_: pytest.fail("memory is not what was asked for"))
    (tmp_path / "disk").mkdir()
    (tmp_path / "cache").mkdir()
    monkeypatch.setenv(WORK, str(tmp_path / "disk"))
    with work_directory(0) as where:
        assert where.is_relative_to(tmp_path / "disk")
        assert where.is_dir()
    assert not where.exists()
    for wrong in (str(tmp_path / "nowhere"), "disk", "/proc/version"):
        monkeypatch.setenv(WORK, wrong)
        with pytest.raises(LabError, match=WORK), work_directory(0):
            pass


def test_a_socket_path_that_the_kernel_would_refuse_is_refused_early(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / ("x" * 100)))
    with pytest.raises(LabError, match="107"), work_directory(0):
        pass


def test_every_line_names_its_device_with_the_keyword() -> None:
    """`ip` accepts abbreviated keywords: an interface name without `dev` before it may be taken for one."""
    lines = [
        *middle_batch(7, 8),
        *loopback_batch("cubic"),
        *host_batch("client", "cubic"),
        *host_batch("server", None),
    ]
    for line in lines:
        fields = line.split()
        for name in ("c0", "s0", "lc", "ls", "lo"):
            for position, word in enumerate(fields):
                if word == name:
                    assert fields[position - 1] in ("dev", "name"), line


def test_hosts_know_each_other_without_asking() -> None:
    client, server = "\n".join(host_batch("client", "cubic")), "\n".join(host_batch("server", None))
    assert "neigh replace 10.77.0.2 lladdr 02:00:0a:4d:00:02 dev c0 nud permanent" in client
    assert "neigh replace 10.77.0.1 lladdr 02:00:0a:4d:00:01 dev s0 nud permanent" in server
    assert "neigh replace fd00:77::2 lladdr 02:00:0a:4d:00:02 dev c0 nud permanent" in client
    assert client.count("congctl cubic") == 2, "IPv4 and IPv6"
    assert "\n".join(loopback_batch("cubic")).count("congctl cubic") == 1
    assert "fd00" not in "\n".join(host_batch("client", "cubic", ipv6=False))
    assert "congctl" not in server


def test_middle_ends_keep_silent() -> None:
    lines = middle_batch(7, 8)
    assert "link set dev lc arp off up" in lines
    assert "link set dev ls arp off up" in lines
    assert "link set dev c0 netns /proc/self/fd/7" in lines


def test_facts_and_load_are_read_from_this_kernel() -> None:
    facts = machine_facts()
    assert facts.cpu_count == os.cpu_count()
    assert facts.kernel == os.uname().release
    load = LoadWatch().finish()
    assert load.load_average_1m >= 0
    assert load.steal_share is None or load.steal_share >= 0


def test_busy_is_neither_idle_nor_waiting_nor_stolen() -> None:
    """The fields are user, nice, system, idle, iowait, irq, softirq, steal, guest, guest_nice."""
    ticks = cpu_ticks("cpu  1 20 300 4000 50000 600000 7000000 80000000 9 9\ncpu0 1 1")
    assert ticks is not None and ticks[:2] == (54000, 80000000)
    assert cpu_ticks("cpu  1 2 3 4") is None
    assert cpu_ticks(None) is None


def test_work_that_the_ticks_did_not_see_is_the_time_that_was_not_idle() -> None:
    """Two CPUs, one second: ticks saw 22 of 58 hundredths of work, the idle clock is exact. If no counter moved: None."""
    before, after = cpu_ticks("cpu  0 0 0 0 0 0 0 0"), cpu_ticks("cpu  20 0 2 131 1 0 0 10")
    assert before is not None and after is not None
    assert busy_cpus(before, after, 1.0, 100, 2) == pytest.approx(0.58)
    assert busy_cpus(before, before, 1.0, 100, 2) is None


def test_a_busy_loop_is_seen_as_busy() -> None:
    """The loop uses 0.3 s of CPU time by its own clock; the machine cannot have used less, except for whole ticks."""
    watch, started = LoadWatch(), time.process_time()
    before = time.monotonic()
    while time.process_time() - started < 0.3:
        pass
    load, elapsed = watch.finish(), time.monotonic() - before
    assert load.busy_cpus is not None
    assert load.busy_cpus * elapsed >= 0.3 - 0.1
    assert load.busy_cpus <= (os.cpu_count() or 1) * 1.2


def test_file_system_of_proc_is_proc() -> None:
    assert file_system_of(Path("/proc")) == "proc"


def test_a_request_knows_whether_it_needs_a_link() -> None:
    assert LabRequest(paths=("socket", "remote")).needs_link
    assert not LabRequest(paths=("socket", "tcp")).needs_link
    with pytest.raises(PlanError):
        _ = LabRequest(paths=("pigeon",)).needs_link


def test_what_a_killed_builder_left_goes_unless_somebody_builds(tmp_path: Path) -> None:
    for shelf in ("empty", "loaded"):
        (tmp_path / shelf / "building-1" / "mysql").mkdir(parents=True)
    with lock(tmp_path / "empty" / "lock", exclusive=True):
        remove_unfinished_templates(tmp_path)
    assert [path.parent.name for path in tmp_path.glob("*/building-1")] == ["empty"]
    remove_unfinished_templates(tmp_path)
    assert not list(tmp_path.glob("*/building-1"))


@pytest.mark.parametrize(("named", "home", "expected"), [("rel", "h", "h/.cache/howfar"), ("", "h", "h/.cache/howfar")])
def test_a_relative_cache_is_ignored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, named: str, home: str, expected: str
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", named)
    monkeypatch.setenv("HOME", str(tmp_path / home))
    assert cache_home() == tmp_path / expected
    assert not (tmp_path / "rel").exists()


def test_a_link_larger_than_the_machines_tcp_memory_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """tcp_mem counts pages: above the second figure the kernel begins to save memory."""
    pages = 2**30 // os.sysconf("SC_PAGE_SIZE")
    monkeypatch.setenv(TCP_MEMORY, f"{pages // 2}\t{pages}\t{2 * pages}")
    assert tcp_memory_warning(2**28) is None
    assert "1024 MiB" in (tcp_memory_warning(2**28 + 1) or "")
    monkeypatch.setenv(TCP_MEMORY, "")
    assert tcp_memory_warning(2**40) is None, "unknown is no accusation"
