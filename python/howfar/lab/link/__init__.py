"""The link as the laboratory sees it. `asked.py`: what is asked; `settings.py`, `named.py`, `script.py`, `traces.py`: where that comes
from; `backends/`: how packets get across; `running.py`: a link in use; `calibrate.py`: its RTT made right."""

from howfar.lab.link.running import Link, goodput_times_ns, open_link
from howfar.lab.link.spec import WAYS, DirectionSpec, LinkSpec, WayName

__all__ = ["WAYS", "DirectionSpec", "Link", "LinkSpec", "WayName", "goodput_times_ns", "open_link"]
