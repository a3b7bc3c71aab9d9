"""What is advised where the kernel makes no namespaces: what is missing, and never that root should run as root."""

from __future__ import annotations

import pytest

from howfar.lab.sandbox import missing_right


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
