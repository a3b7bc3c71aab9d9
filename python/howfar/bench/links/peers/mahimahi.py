"""mahimahi is detected but not measured; the reason takes the place of its figures."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from howfar.bench.links.figures import LinkPoint
from howfar.bench.links.probes import BareCable, ProbedLink
from howfar.errors import MissingError

_PROGRAMS = ("mm-delay", "mm-link")


class Mahimahi:
    NAME = "mahimahi"
    DELAYS = True

    def find(self) -> str:
        """Raises MissingError, always: with the reason."""
        absent = [name for name in _PROGRAMS if shutil.which(name) is None]
        if absent:
            raise MissingError(
                f"{' and '.join(absent)} {'is' if len(absent) == 1 else 'are'} not installed;",
                "Debian 12 has no package of mahimahi.",
            )
        raise MissingError(
            "mahimahi's programs are setuid root and refuse root; each makes a network of its own with a TUN device, iptables and",
            "dnsmasq, which this laboratory does not prepare.",
        )

    @contextmanager
    def open(self, cable: BareCable) -> Iterator[Callable[[LinkPoint], tuple[ProbedLink, str]]]:
        raise MissingError("mahimahi cannot be opened")
        yield  # a context manager has one
