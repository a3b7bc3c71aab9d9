"""Computes the meaning of a distance: the time of a page, its time on other paths, and kilometres."""

from __future__ import annotations

import tomllib
from importlib import resources

from howfar.distance.record import Distance, Elsewhere, Page
from howfar.units import parse_duration_ns

PAGE_REQUESTS = (10, 60, 200)
FIBRE_KM_PER_MS = 200.0
"""Speed of light in glass: 299,792 km/s divided by a refractive index of 1.47 to 1.5."""
_LINKS = (("same zone", "same-zone"), ("another zone", "cross-zone"), ("another region", "region"))
"""Pairs of a path's name on the screen and the named link that has its RTT."""


def add_meaning(distance: Distance, socket_saving_ns: int | None = None) -> Distance:
    """The distance with its meaning, or unchanged if nothing was measured.

    `socket_saving_ns`: time that a request would save over the server's Unix socket on this machine; None if it has no socket here.
    """
    request, connection = distance.request, distance.connection
    if request is None or connection is None:
        return distance
    network_ns = distance.network_ns
    lookup_ns = distance.name.took_ns if distance.name is not None else 0
    opening_ns = connection.took_ns + lookup_ns
    pages = tuple(
        Page(requests=count, kept_ns=count * request.mean_ns, new_ns=opening_ns + count * request.mean_ns)
        for count in PAGE_REQUESTS
    )
    server_ns = max(request.mean_ns - (network_ns or 0), 0)
    elsewhere = tuple(
        Elsewhere(name=name, rtt_ns=rtt_ns, kept_ns=tuple(count * (server_ns + rtt_ns) for count in PAGE_REQUESTS))
        for name, rtt_ns in named_rtts()
    )
    if socket_saving_ns is not None and network_ns is not None:
        # A socket cannot save more than TCP costs; on a busy machine the measured saving may be larger.
        request_ns = request.mean_ns - min(socket_saving_ns, network_ns, request.min_ns)
        socket_pages = Elsewhere(
            name="its socket", rtt_ns=None, kept_ns=tuple(count * request_ns for count in PAGE_REQUESTS)
        )
        elsewhere = (socket_pages, *elsewhere)
    is_remote = (
        network_ns is not None and distance.path is not None and distance.path.kind in ("other_machine", "unknown")
    )
    light_km = network_ns / 1e6 / 2 * FIBRE_KM_PER_MS if is_remote and network_ns is not None else None
    return distance.model_copy(update={"pages": pages, "elsewhere": elsewhere, "light_km": light_km})


def named_rtts() -> tuple[tuple[str, int], ...]:
    """Return the names and RTTs of the other paths for which times of pages are computed."""
    links = tomllib.loads((resources.files("howfar.plan") / "named_links.toml").read_text(encoding="utf-8"))
    return tuple((name, parse_duration_ns(links[link]["rtt"])) for name, link in _LINKS)
