"""Rules about the way: a full link, windows that hold a sender back, lost segments."""

from __future__ import annotations

from howfar.analysis.findings import Cycle, Resource
from howfar.bottleneck.cycle import LOSS, LOSS_COUNTS_SHARE, part_us
from howfar.bottleneck.evidence import Evidence
from howfar.bottleneck.rules.finding import FULL_SHARE, Confidence, Finding
from howfar.bottleneck.traffic import Way
from howfar.bottleneck.words import WAY_WORDS, milliseconds, percent, speed, speed_pair

BURSTY_SHARE, BURSTY_STRETCH = 0.90, 2.0
"""A link that is nearly full on the mean and makes round trips twice as long is full in bursts."""
DROPPED = 1.01
"""More sent into a link than it carries, by the grain of counting."""
HELD_SHARE, HELD_WINDOW_SHARE = 0.30, 0.10
"""Of the time with data to send, that a window held it back; and of the whole window, else it is three tenths of nothing."""
LOSS_MATTERS_SHARE = 0.10
"""Of the cycle, in waiting for what was lost: less is not what holds anything back."""


def full_link(evidence: Evidence, cycle: Cycle) -> Finding | None:
    """The busier direction against what its rate lets pass."""
    way = max(evidence.ways, key=lambda way: way.used or 0.0, default=None)
    if way is None or way.used is None:
        return None
    stretch = max((tcp.rtt_stretch or 0.0 for tcp in evidence.tcp.values()), default=0.0)
    bursty = way.used >= BURSTY_SHARE and stretch > BURSTY_STRETCH
    if way.used < FULL_SHARE and not bursty:
        return None
    full = way.used >= FULL_SHARE
    facts = [f"the wire {WAY_WORDS[way.name]} carries {percent(way.used)} of its rate, framing in"]
    facts += [f"round trips take {stretch:.1f} times the shortest"] if stretch > BURSTY_STRETCH else []
    if way.offered_bytes_per_s > DROPPED * way.interface_bytes_per_s:
        facts.append(f"{speed(way.offered_bytes_per_s)} MiB/s were sent into it: its queue drops what does not fit")
    facts += [f"up to {way.queue_bytes / 1e3:.0f} kB wait in its queue"] if way.queue_bytes else []
    resource = Resource.LINK_TO_CLIENT if way.name == "to_client" else Resource.LINK_TO_SERVER
    words = f"the link {WAY_WORDS[way.name]} is {'full' if full else 'full in bursts'}: {speed_pair(way)}"
    return Finding(resource, words, tuple(facts), _trust(way, full))


def _trust(way: Way, full: bool) -> Confidence:
    """What no interface counted is reckoned; a mean below the threshold is inferred."""
    return "high" if full and way.counted else "medium"


def held_windows(evidence: Evidence, cycle: Cycle) -> Finding | None:
    """The sender had data and was not allowed to send: by the receiver's window, or its own buffer."""
    for host, tcp in sorted(evidence.tcp.items(), key=lambda item: item[0] != "server"):
        receiver = "client" if host == "server" else "server"
        sending = f"{percent(tcp.busy_share)} of the window"
        if tcp.rwnd_of_busy > HELD_SHARE and tcp.rwnd_of_window > HELD_WINDOW_SHARE:
            words = f"the {receiver}'s receive window holds the {host} back for {percent(tcp.rwnd_of_busy)} of its sending time"
            return Finding(
                Resource.RECEIVE_WINDOW, words, (f"sending time is {sending}", _window_words(evidence)), "high"
            )
        if tcp.sndbuf_of_busy > HELD_SHARE and tcp.sndbuf_of_window > HELD_WINDOW_SHARE:
            words = f"the {host}'s send buffer holds it back for {percent(tcp.sndbuf_of_busy)} of its sending time"
            return Finding(Resource.SEND_BUFFER, words, (f"sending time is {sending}", _window_words(evidence)), "high")
    return None


def _window_words(evidence: Evidence) -> str:
    rtt = evidence.setting.rest_rtt_s
    return f"a window passes once in a round trip of {milliseconds(rtt)}" if rtt else "no link: its round trip is short"


def loss(evidence: Evidence, cycle: Cycle) -> Finding | None:
    """Segments that had to be sent again, while nothing was full."""
    share = evidence.retransmit_share
    if share is None or share <= LOSS_COUNTS_SHARE or part_us(cycle, LOSS) <= LOSS_MATTERS_SHARE * cycle.us:
        return None
    words = f"segments are lost: {percent(share)} were sent again, while the link is not full"
    facts: tuple[str, ...] = (
        f"{evidence.retransmits:.2g} segments sent again a transaction (from {percent(LOSS_COUNTS_SHARE)} of them it counts)",
    )
    if evidence.timeouts is None:
        return Finding(
            Resource.LOSS, words, (*facts, "timers that ran out were not counted: the cost is an upper bound"), "low"
        )
    facts += (f"{evidence.timeouts:.2g} timers ran out a transaction, 200 ms each",)
    return Finding(Resource.LOSS, words, facts, "high" if share > 3 * LOSS_COUNTS_SHARE else "medium")
