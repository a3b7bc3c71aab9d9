"""The link as the laboratory sees it. `spec.py`: what is requested; `settings.py` parses it from options and scripts; `library.py`:
named links, and traces; `backends/`: how packets get across; `running.py`: a link in use, and its calibration; `receipt.py`: whether
it was what was requested; `present.py`: which back-ends work here."""

from howfar.lab.link.running import Link, goodput_times_ns, open_link
from howfar.lab.link.spec import DIRECTIONS, LOCAL_NETWORK, DirectionName, DirectionSpec, LinkSpec

__all__ = [
    "DIRECTIONS",
    "LOCAL_NETWORK",
    "DirectionName",
    "DirectionSpec",
    "Link",
    "LinkSpec",
    "goodput_times_ns",
    "open_link",
]
