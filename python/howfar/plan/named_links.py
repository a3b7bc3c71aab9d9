"""Links that plans and commands can name, such as a home connection or a satellite."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from importlib import resources

NAMED_LINKS: Mapping[str, Mapping[str, str]] = tomllib.loads(
    (resources.files("howfar.plan") / "named_links.toml").read_text(encoding="utf-8")
)
"""Named links, as text from their file; `lab/link/settings.py` converts them to links."""
