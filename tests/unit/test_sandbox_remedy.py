"""The advice where the kernel makes no namespaces: it names what is missing, and never tells root to run as root. Also, which signals
the sandbox passes on to the command inside."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from howfar.lab import sandbox
from howfar.lab.sandbox import missing_right, remedy


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
