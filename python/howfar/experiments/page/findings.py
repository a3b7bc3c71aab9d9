"""What a run of pages says: one machine or two, where the answer flips, and how well a model foresees it. Types only; each is
public in the report's JSON.

They are made by `find.py`. A *page* is one request to the application; *pages in flight* is the factor `threads`: so many visitors,
each asking for its next page when it has the last one. One machine: paths `socket` and `tcp`; two: `remote` and `forwarded-socket`.
"""

from __future__ import annotations

from typing import Literal

from howfar.stats.estimate import Estimate, Part

Application = Literal["php", "engine"]
"""A real one, or the engine's own run of the same turns."""
Machines = Literal[1, 2]


class TurnCost(Part):
    """One service in one arm, by the application's own clock; with several pages in flight their waiting for each other is in it."""

    service: str
    turns: float
    """A page."""
    mean_us: float
    """Of a turn, from its first byte sent to its last byte read."""
    connects: float
    """A page."""
    connect_us: float | None
    """None: connections stay."""
    bytes_to_server: float | None
    bytes_to_client: float | None
    """A page, of the protocol. None: a real application does not count them."""


class PageArm(Part):
    """One arm: a page, an application, a path, so much application CPU, so many pages in flight."""

    arm: str
    page: str
    application: Application
    path: str
    machines: Machines
    connect: str
    app_cpu_ns: int
    """Asked beyond what the page needs anyway."""
    threads: int
    pages_per_s: Estimate
    page_ms: Estimate
    """Mean time of a page: pages in flight / pages a second."""
    p50_ms: float
    p95_ms: float
    p99_ms: float
    over_noticed: float
    """Share of pages that took longer than people notice (13 ms)."""
    over_degraded: float
    """Share that took longer than 75 ms, where the experience is degraded."""
    cpu_ms: dict[str, float]
    """CPU a page by role: `application` (PHP, or the engine that runs the script), `visitor`, `server`, `redis`, `memcached`,
    `forwarder`, `link`."""
    own_cpu_ms: float | None
    """What the application itself says it used a page. None: it does not."""
    turns: tuple[TurnCost, ...]
    busy: dict[str, float]
    """How full each machine's CPUs were: `application`, `database`; one machine: `both`."""
    rtt_ns: int | None = None
    """As asked of the link, which it is named by. None: no link."""
    rate_bps: int | None = None
    """Likewise."""
    rtt_ms: float | None
    """Of the link at rest. None: no link."""
    predicted_p50_ms: float | None
    """By the model, from other arms only. None: an arm that the model is made of."""
    predicted_error: float | None
    """predicted / measured - 1."""


class PageChoice(Part):
    """One machine or two, for one page with so much application CPU and so many in flight."""

    page: str
    connect: str
    application: Application
    app_cpu_ns: int
    app_cpu_total_ms: float
    """What the application computes for a page in all, its own needs included, as measured."""
    threads: int
    path: str
    """To the second machine."""
    rtt_ns: int | None = None
    """As asked of its link; None: the plan does not say."""
    rate_bps: int | None = None
    two_over_one: Estimate
    """Pages a second with two machines over one with sockets, paired by block."""
    tcp_over_socket: Estimate | None
    """One machine: loopback TCP over sockets."""
    better: Literal["one", "two", "not resolved"]
    predicted: float | None
    """`two_over_one` by the model."""


class Crossing(Part):
    """Where the second machine begins to pay, as application CPU a page grows."""

    page: str
    connect: str
    application: Application
    threads: int
    path: str
    """To the second machine."""
    rtt_ns: int | None = None
    """As asked of its link; None: the plan does not say."""
    rate_bps: int | None = None
    measured_ms: Estimate | None
    """Total application CPU a page where both are equal. None: no crossing within what was measured."""
    always: Literal["one", "two"] | None
    """Where there is none: which one is better all along, told from 1 and beyond the noise floor at each."""
    predicted_ms: float | None
    """The same by the model. None: the model sees no crossing in its range, or there is no model (`curve_ms` is empty)."""
    predicted_always: Literal["one", "two"] | None = None
    """Where the model sees none: which one it says is better all along. None: there is no model."""
    swept_ms: tuple[float, float]
    """Least and most total application CPU that was measured."""
    curve_ms: tuple[float, ...]
    curve_ratio: tuple[float, ...]
    """The model's two over one, at such CPU."""
    without_link_cpu_ms: float | None = None
    """The model's crossing if the emulated link took no CPU from the machines; the least that the application computes, where
    two machines are then ahead all along."""
    half_turns_ms: float | None = None
    """The model's crossing if the page did the same with half as many turns, likewise."""


class WayError(Part):
    """The model's error on one way."""

    path: str
    rtt_ns: int | None
    """As asked of its link. None: no link."""
    arms: int
    mean_error: float
    """Of the sizes of the errors."""
    worst_error: float


class PageModel(Part):
    """How far the model was from what was measured on arms that it is not made of."""

    arms: int
    mean_error: float | None
    worst_error: float | None
    worst_arm: str | None
    within_bar: bool | None
    """Every p50 within 10 %."""
    by_way: tuple[WayError, ...] = ()
    impossible: tuple[str, ...] = ()
    """Arms that are not foreseen because a page alone that the model would be made of was quicker than its parts can be."""


class PageFindings(Part):
    arms: tuple[PageArm, ...]
    choices: tuple[PageChoice, ...]
    crossings: tuple[Crossing, ...]
    model: PageModel
    """Of real pages, foreseen from the engine's page on each path and the real page on sockets."""
    scripts: dict[str, str]
    """Each page in a line: its turns."""
    noise_floor: float | None = None
    """What this session can tell, of throughput; a difference of less is not resolved."""
    published: tuple[tuple[str, float, float, float | None], ...]
    """Of set-up C: the page there, its ms on two machines and on one, ours as two over one for the like page."""
    sentences: tuple[str, ...]
    """What a reader should take home; the first answers "one machine or two?"."""
