"""Which of a run's settings stands for a page, where one must: for the answer, for advice, for the first screen."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from howfar.experiments.page.findings import Application, PageArm, PageChoice

_PATHS = ("socket", "tcp", "remote", "forwarded-socket")
Rank = tuple[bool, bool, int, int]


def rank(application: Application | str, connect: str, app_cpu_ns: int, threads: int) -> Rank:
    """Least first: the real application, connections that stay, nothing computed beyond a page's own needs, the most in flight."""
    return application != "php", connect != "persistent", app_cpu_ns, -threads


def way_rank(of: PageArm | PageChoice) -> tuple[int, int, int]:
    """Least first: the plainest path, the shortest link, the fastest."""
    path = _PATHS.index(of.path) if of.path in _PATHS else len(_PATHS)
    return path, of.rtt_ns or 0, -(of.rate_bps or 0)


def chief_choices(choices: Iterable[PageChoice]) -> list[PageChoice]:
    """One of each page, in the order of the plan."""
    found: dict[str, PageChoice] = {}
    for choice in choices:
        known = found.get(choice.page)
        if known is None or _order(choice) < _order(known):
            found[choice.page] = choice
    return list(found.values())


def _order(choice: PageChoice) -> tuple[Rank, tuple[int, int, int]]:
    return rank(choice.application, choice.connect, choice.app_cpu_ns, choice.threads), way_rank(choice)


def pair_of(arms: Sequence[PageArm], choice: PageChoice) -> tuple[PageArm, PageArm] | None:
    """What a choice compares: one machine with sockets, and two."""
    alike = [
        arm
        for arm in arms
        if (arm.page, arm.connect, arm.application, arm.app_cpu_ns, arm.threads)
        == (choice.page, choice.connect, choice.application, choice.app_cpu_ns, choice.threads)
    ]
    one = next((arm for arm in alike if arm.path == "socket"), None)
    two = next((arm for arm in alike if way_rank(arm) == way_rank(choice)), None)
    return None if one is None or two is None else (one, two)
