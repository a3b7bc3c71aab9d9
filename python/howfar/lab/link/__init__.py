"""The laboratory's link, which has a requested delay, rate and further effects.

`spec.py`: the request. `settings.py` parses it from options and scripts, and has named links and traces. `backends/`: how packets are
carried. `running.py`: a link in use, its calibration, and which back-ends work here. `receipt.py`: whether the link was as requested.
"""

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
