"""Links by name, with the public source of each figure: `named_links.toml`, read."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from functools import cache
from importlib import resources

from howfar.errors import QuantityError
from howfar.lab.link.settings import apply
from howfar.lab.link.spec import LinkSpec

_WORDS = ("about", "source", "stated", "ours")


@dataclass(frozen=True)
class NamedLink:
    name: str
    asked: LinkSpec
    said: dict[str, str]
    """What the file says, in the words of `settings.py`."""
    about: str
    source: str
    stated: str
    """What the source says."""
    ours: str
    """What was rounded, or is no figure of a source."""


@cache
def named_links() -> dict[str, NamedLink]:
    """All of them, in the order of the file."""
    text = (resources.files("howfar.lab.link") / "named_links.toml").read_text(encoding="utf-8")
    return {name: _read(name, table) for name, table in tomllib.loads(text).items()}


def find_link(name: str) -> NamedLink:
    """Raises QuantityError."""
    links = named_links()
    if name not in links:
        raise QuantityError(f"no link is called {name!r}", f"Known: {', '.join(links)}; `howfar links` explains them.")
    return links[name]


def _read(name: str, table: dict[str, str]) -> NamedLink:
    said = {word: value for word, value in table.items() if word not in _WORDS}
    asked = LinkSpec(rtt_ns=0, rate_bps=None)
    for word, value in said.items():
        asked = apply(asked, word, value)
    return NamedLink(name=name, asked=asked, said=said, **{word: table[word] for word in _WORDS})
