"""Which back-ends work on this machine: each is really tried, in the sandbox, with packets across it. Nothing is guessed from names
of modules or versions, and no interface of the machine is touched."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass, replace

from howfar.errors import HowfarError, LabError
from howfar.lab import sandbox
from howfar.lab.link.backends import Backend, backends
from howfar.lab.link.running import Link, open_link
from howfar.lab.link.spec import LinkSpec
from howfar.lab.network import Host, build_network, share_cpus, usable_cpus

_QDISCS = {
    "tbf": "tbf rate 1gbit burst 128kb limit 1mb",
    "htb": "htb default 1",
    "netem": "netem delay 1ms",
}
_SCRATCH = "scratch0"


@dataclass(frozen=True)
class Presence:
    name: str
    about: str
    works: bool
    notes: tuple[str, ...]
    """What was found, or why it does not work."""


def try_all() -> tuple[Presence, ...]:
    """Call in the sandbox."""
    assert sandbox.inside(), "a trial elsewhere would touch the machine's network"
    return tuple(_try(backend) for backend in backends().values())


def _try(backend: Backend) -> Presence:
    notes: list[str] = []
    try:
        with ExitStack() as ledger:
            network = build_network(ledger)
            shares = share_cpus(usable_cpus())
            bare = LinkSpec(rtt_ns=0, rate_bps=None)
            spec = bare if backend.NAME == "none" else replace(bare, rate_bps=10**9)
            client, server = network.client.launcher(shares.client), network.server.launcher(shares.server)
            known = {spec.calm(): {"compensate_ns": 0}}
            link = ledger.enter_context(open_link(network, spec, client, server, known, backend=backend.NAME))
            notes += _notes(link)
            if backend.NAME == "kernel":
                notes += _qdiscs()
    except HowfarError as error:
        return Presence(backend.NAME, backend.ABOUT, False, (error.message,))
    return Presence(backend.NAME, backend.ABOUT, True, tuple(notes))


def _notes(link: Link) -> list[str]:
    link.ping_from_idle()  # a packet crosses it, there and back
    ready = link.ready
    if ready is None:
        return []
    scheduling = (
        "real-time class" if ready.realtime else "short time slice" if ready.short_slice else "ordinary scheduling"
    )
    return [scheduling, "super-packets kept" if ready.offload else "no offload: slower"]


def _qdiscs() -> list[str]:
    missing = missing_qdiscs()
    return [f"{name} is not here ({missing[name]})" if name in missing else f"{name} works" for name in _QDISCS]


def missing_qdiscs() -> dict[str, str]:
    """Which disciplines this kernel lacks, and what it says: each is added to an interface made for that. Call in the sandbox."""
    base = Host("base", None)
    missing: dict[str, str] = {}
    base.ip([f"link add name {_SCRATCH} type veth peer name {_SCRATCH}p"])
    try:
        for name, arguments in _QDISCS.items():
            try:
                base.tc([f"qdisc add dev {_SCRATCH} root {arguments}"])
            except LabError as error:
                missing[name] = error.message.rpartition("failed: ")[2].splitlines()[0]
                continue
            base.tc([f"qdisc del dev {_SCRATCH} root"])
    finally:
        base.ip([f"link del dev {_SCRATCH}"])
    return missing
