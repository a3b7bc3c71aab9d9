"""The advice where the kernel makes no namespaces: it names what is missing, and never tells root to run as root. Also, which signals
the sandbox passes on to the command inside."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from howfar.cli import session
from howfar.lab import sandbox
from howfar.lab.sandbox import (
    REALTIME_OPTION,
    TIMING_OPTIONS,
    describe_lacking_timing,
    lacking_timing,
    missing_right,
    remedy,
)
from howfar.plan.load import load_plan


@pytest.mark.parametrize(
    ("is_root", "lacking", "in_chroot", "wanted"),
    [
        (False, (), False, "Run as root"),
        (True, ("SYS_ADMIN",), False, "CAP_SYS_ADMIN"),
        (True, ("SYS_ADMIN",), True, "CAP_SYS_ADMIN"),
        (True, ("NET_ADMIN", "NET_RAW"), False, "--cap-add NET_ADMIN --cap-add NET_RAW"),
        (True, (), True, "chroot"),
        (True, (), False, "seccomp"),
    ],
)
def test_the_advice_names_what_is_missing(
    is_root: bool, lacking: tuple[str, ...], in_chroot: bool, wanted: str
) -> None:
    sentence = missing_right(is_root, lacking, in_chroot)
    assert wanted in sentence
    assert ("Run as root" in sentence) is (not is_root)


def test_only_switches_that_forbid_are_named(tmp_path: Path) -> None:
    for name in ("user", "kernel"):
        (tmp_path / name).mkdir()
    (tmp_path / "user/max_user_namespaces").write_text("96551\n")
    assert "max_user_namespaces" not in remedy(tmp_path)
    (tmp_path / "user/max_user_namespaces").write_text("0\n")
    (tmp_path / "kernel/apparmor_restrict_unprivileged_userns").write_text("1\n")
    assert "or set user.max_user_namespaces to 10000 (it is 0)" in remedy(tmp_path)
    assert "or set kernel.apparmor_restrict_unprivileged_userns to 0 (it is 1). The paths socket and tcp" in remedy(
        tmp_path
    )


@pytest.mark.parametrize(
    ("realtime", "device", "user_namespace", "container", "options"),
    [
        (True, True, False, True, None),
        (False, True, False, False, TIMING_OPTIONS[:1]),
        (True, False, False, True, TIMING_OPTIONS[1:]),
        (False, False, True, True, TIMING_OPTIONS),
        (False, False, True, False, None),
    ],
)
def test_options_that_a_container_lacks_for_packets_in_time_are_named(
    realtime: bool, device: bool, user_namespace: bool, container: bool, options: tuple[str, ...] | None
) -> None:
    sentence = describe_lacking_timing(realtime, device, user_namespace, container)
    if options is None:
        assert sentence is None
    else:
        assert sentence is not None and sentence.endswith(" ".join(options))
        assert all(option in sentence for option in options) and ("root" in sentence) is user_namespace
        assert all(option not in sentence for option in TIMING_OPTIONS if option not in options)


def test_a_container_with_the_capability_but_without_time_in_its_control_group_is_told_so() -> None:
    sentence = describe_lacking_timing(False, True, False, True, has_nice=True)
    assert sentence is not None and sentence.endswith(REALTIME_OPTION) and TIMING_OPTIONS[0] not in sentence


def test_users_are_not_told_about_a_container(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    assert lacking_timing() is None


def test_a_run_says_what_delays_packets_only_if_packets_cross_a_link(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sandbox, "lacking_timing", lambda: "packets of the link may be late")
    plan = load_plan("paths", True, []).plan
    assert session.machine_notes(plan) == ["packets of the link may be late"]
    local = plan.model_copy(update={"factors": plan.factors.model_copy(update={"path": ("socket", "tcp")})})
    assert session.machine_notes(local) == []
    monkeypatch.setattr(sandbox, "lacking_timing", lambda: None)
    assert session.machine_notes(plan) == []


_OF_A_USER, _OF_THE_KERNEL = 0, 0x80
"""Sender of a signal: a user's process, or the kernel."""


@pytest.mark.parametrize(
    ("number", "code", "handler", "goes_on"),
    [
        (signal.SIGINT, _OF_A_USER, signal.SIG_DFL, True),
        (signal.SIGINT, _OF_THE_KERNEL, signal.SIG_DFL, False),
        (signal.SIGTERM, _OF_A_USER, signal.SIG_DFL, True),
        (signal.SIGCHLD, _OF_A_USER, signal.SIG_DFL, False),
        (signal.SIGHUP, _OF_A_USER, signal.SIG_DFL, True),
        (signal.SIGHUP, _OF_THE_KERNEL, signal.SIG_DFL, True),
        (signal.SIGHUP, _OF_A_USER, signal.SIG_IGN, False),
        (signal.SIGHUP, _OF_THE_KERNEL, signal.SIG_IGN, False),
    ],
)
def test_a_signal_goes_on_to_the_inside_unless_it_is_there_or_was_ignored(
    number: signal.Signals, code: int, handler: signal.Handlers, goes_on: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(signal, "getsignal", {number: handler}.__getitem__)
    assert sandbox._must_forward(number, code) is goes_on
