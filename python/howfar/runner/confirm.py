"""Confirmation: after a plan's blocks, change what was named as the limit for three blocks, and measure both ways.

What is to be done is decided once, from the plan's trials, and kept in the run file before the first trial: a run that is killed
here goes on with the same pairs. Not here: what suits which limit, and whether it was confirmed (`analysis/`).
"""

from __future__ import annotations

from howfar.analysis.analyse import summarise
from howfar.analysis.findings import Intervention, Unconfirmed
from howfar.bottleneck.confirmation import choose, pair
from howfar.store import events
from howfar.store.parts import plan_part
from howfar.store.records import Arm, Run, StopReason
from howfar.store.run_file import RunFile


def to_confirm(run: Run) -> tuple[str, ...]:
    """Arms whose limits were chosen to be put to the test, or would be now; none: there is nothing to confirm."""
    begun = events.confirmation(run.events)
    if begun is not None:
        return tuple(Intervention.model_validate(chosen).arm for chosen in begun.asked)
    run = plan_part(run)
    return tuple(chosen.arm for chosen in choose(summarise(run), run.info.arms).asked)


def decide(file: RunFile, stop: StopReason) -> tuple[Arm, ...]:
    """Enter in the run file what will be confirmed. Gives the new arms."""
    run = plan_part(file.read())
    choice = choose(summarise(run), run.info.arms)
    arms = tuple(arm for chosen in choice.asked for arm in pair(chosen, run.info.arms))
    file.confirm(
        arms,
        events.confirming(
            stop,
            [chosen.model_dump(mode="json") for chosen in choice.asked],
            [refused.model_dump(mode="json") for refused in choice.refused],
        ),
    )
    return arms


def confirmation_lines(run: Run) -> tuple[str, ...]:
    """What is put to the test, and what cannot be, for who watches."""
    begun = events.confirmation(run.events)
    assert begun is not None, "a confirmation is decided before it is shown"
    asked = (Intervention.model_validate(chosen) for chosen in begun.asked)
    refused = (Unconfirmed.model_validate(said) for said in begun.refused)
    lines = (
        *(f"{c.arm}: {c.resource.value}? {c.changed}: {c.predicted:.2f} times as fast if so" for c in asked),
        *(f"{u.arm}: {u.resource.value} cannot be confirmed: {u.why}" for u in refused),
    )
    return lines or ("no limit was named that could be confirmed",)
