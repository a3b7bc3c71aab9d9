"""What is advised where the kernel makes no namespaces: what is missing, and never that root should run as root."""

from __future__ import annotations

import pytest

from howfar.lab.sandbox import _missing_right


@pytest.mark.parametrize(
    ("is_root", "has_sys_admin", "in_chroot", "wanted"),
    [
        (False, False, False, "Run as root"),
        (True, False, False, "CAP_SYS_ADMIN"),
        (True, False, True, "CAP_SYS_ADMIN"),
        (True, True, True, "chroot"),
        (True, True, False, "seccomp"),
    ],
)
def test_the_advice_names_what_is_missing(is_root: bool, has_sys_admin: bool, in_chroot: bool, wanted: str) -> None:
    said = _missing_right(is_root, has_sys_admin, in_chroot)
    assert wanted in said
    assert ("Run as root" in said) is (not is_root)
