"""`howfar load --search`: one open-loop load after another until the highest rate that holds the goal is known."""

from __future__ import annotations

import json
from dataclasses import asdict

import click

from howfar.cli.load_run import measure
from howfar.engine.messages import Arrivals, LoadJob
from howfar.errors import EngineError
from howfar.load.cmdline import Options
from howfar.load.report_human import time
from howfar.load.result import Result
from howfar.load.search import MOST_TRIALS, Goal, Trial, answer, next_rate, sentence
from howfar.load.verdict import Stamp


def search(options: Options, job: LoadJob, goal: Goal) -> Result | None:
    """The result of the last trial that held at the answer; None when none held. Raises EngineError, Stopped."""
    high = options.value("search-high")
    low = min(options.value("search-low"), high) if high else options.value("search-low")
    trials: list[Trial] = []
    results: dict[float, Result] = {}
    while (rate := next_rate(trials, low, high)) is not None:
        arrivals = Arrivals(rate_per_s=rate, shape=options.value("arrivals"), burst=options.value("burst"))
        tried = job.model_copy(update={"arrivals": arrivals, "seed": (job.seed + len(trials)) % 2**63})
        result = measure(options, tried, quiet=True)
        if result.verdict.has(Stamp.VOID):
            raise EngineError(
                f"the search ended: {'; '.join(result.mismatches)}",
                "Correct the server or the options, and search again.",
            )
        trial = judged(result, goal, rate)
        trials.append(trial)
        if trial.held:
            results[rate] = result
        _show(options, trial, len(trials), result)
    found = answer(trials)
    if options.value("json"):
        click.echo(
            json.dumps({"event": "search", "goal": str(goal), **asdict(found), "trials": [asdict(t) for t in trials]})
        )
    else:
        click.echo(f"\n{sentence(goal, found)}")
        if any("client" in trial.why_not for trial in trials):
            click.echo("In trials that failed this client was short of CPU: the server may carry more.")
    return results.get(found.rate) if found.rate is not None else None


def judged(result: Result, goal: Goal, rate: float) -> Trial:
    """Whether a trial holds the goal: by the upper bound, so that what was never answered counts against it."""
    at = result.transaction.at(goal.share)
    if at is None:
        return Trial(rate, None, False, "nothing was answered")
    reasons = []
    reasons += [str(stamp) for stamp in (Stamp.FAILING, Stamp.OVERLOADED) if result.verdict.has(stamp)]
    if at.high_ns is None or at.high_ns >= goal.limit_ns:
        reasons.append(f"{'' if at.exact else '≥ '}{time(at.low_ns)}")
        if at.low_ns < goal.limit_ns:
            missing = result.transaction.all_requests.count - result.transaction.answered.count
            reasons.append(f"{missing} unanswered at the end leave it open (a longer --time has fewer in a thousand)")
    if reasons:
        reasons += [str(stamp) for stamp in (Stamp.CLIENT_LIMITED, Stamp.LATE) if result.verdict.has(stamp)]
    return Trial(rate, at.low_ns, not at.exact, ", ".join(reasons))


def _show(options: Options, trial: Trial, number: int, result: Result) -> None:
    if options.value("json"):
        click.echo(json.dumps({"event": "trial", "number": number, **asdict(trial)}))
        return
    seen = "-" if trial.observed_ns is None else time(trial.observed_ns)
    carried = result.per_second(result.finished.transactions)
    verdict = "holds" if trial.held else f"fails: {trial.why_not}"
    click.echo(
        f"trial {number:2d} of at most {MOST_TRIALS}: {trial.rate:>12,.1f}/s due {carried:>12,.1f}/s answered  {seen:>9}  {verdict}"
    )
