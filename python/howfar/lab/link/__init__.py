"""The laboratory's link. `spec.py`: what is requested; `settings.py` parses it from options and scripts, and has named links and
traces; `backends/`: how packets are carried; `running.py`: a link in use, its calibration, and which back-ends work here;
`receipt.py`: whether the link was what was requested."""

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
