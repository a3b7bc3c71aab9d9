"""The conclusion of a load or a search: the answer to its question, how sure it is, and what to do next. No I/O."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from howfar.analysis.answer import Answer, sentence
from howfar.contract.receipt import ProgramUse
from howfar.findings import Finding, fill, join, join_clauses
from howfar.load.result import PercentileBounds, Result, format_latency
from howfar.load.search import Goal, SearchResult
from howfar.load.texts import ADVICE, ANSWERS, CAUSES, CERTAINTY, P99, QUESTION, QUESTION_OF_SEARCH
from howfar.load.verdict import STEADINESS, UNANSWERED_SHARE, Stamp
from howfar.other_programs import busiest, program_name

_STAMPS_WITHOUT_ANSWER = (Stamp.VOID, Stamp.FAILING)
"""Stamps of results that do not answer the question."""
_NONE_DUE = "none-due"
"""Id of the finding that an open loop had no request, so that there is no answer. No stamp says so."""


@dataclass(frozen=True)
class Conclusion:
    """The answer, and the lines below it."""

    answer: Answer
    certainty: str
    """How sure the answer is; empty if there is no answer."""
    advice: tuple[str, ...]


def _conclude(
    question: str, answer_finding: Finding, causes: tuple[Finding, ...], certainty: str, advice: Iterable[str]
) -> Conclusion:
    answer = Answer(
        question=question,
        sentence=sentence([answer_finding], ANSWERS),
        findings=(answer_finding,),
        why=sentence(causes, CAUSES),
        causes=causes,
    )
    return Conclusion(answer, certainty, tuple(dict.fromkeys(advice)))


def conclude(result: Result) -> Conclusion:
    """The conclusion of one load."""
    answer_finding, verdict = _find_answer(result), result.verdict
    advice = [finding.advice for finding in verdict.findings] or [
        ADVICE["longer" if STEADINESS in verdict.unknown else "repeat"]
    ]
    if not verdict.findings and not result.open_loop:
        advice.append(fill(ADVICE["rate"], rate=result.per_second(result.finished.transactions)))
    return _conclude(
        QUESTION, answer_finding, _find_causes(result, answer_finding), _certainty(result, answer_finding), advice
    )


def _find_answer(result: Result) -> Finding:
    """A finding: the load that the server sustains, or why the result does not show it."""
    arrivals, requests, verdict = result.job.arrivals, result.finished.open_loop, result.verdict
    for stamp in _STAMPS_WITHOUT_ANSWER:
        if verdict.has_stamp(stamp):
            return Finding(id=stamp)
    rate, p99 = result.per_second(result.finished.transactions), _p99_text(result.transaction.percentile(0.99))
    if arrivals is not None:
        assert requests is not None, "an open loop has an account of its requests"
        if not requests.due:
            return Finding(id=_NONE_DUE)
        share = requests.unanswered / requests.due
        if verdict.has_stamp(Stamp.OVERLOADED):
            return Finding(id=Stamp.OVERLOADED, parameters={"due": arrivals.rate_per_s, "unanswered": share})
        if share > UNANSWERED_SHARE or not verdict.is_steady:
            answered = requests.answered / requests.due
            return Finding(id="answered", parameters={"due": arrivals.rate_per_s, "answered": answered, "p99": p99})
        return Finding(id="sustained", parameters={"due": arrivals.rate_per_s, "p99": p99})
    if verdict.has_stamp(Stamp.CLIENT_LIMITED):
        return Finding(id=Stamp.CLIENT_LIMITED, parameters={"rate": rate})
    return Finding(id="closed", parameters={"rate": rate, "connections": result.job.connections, "p99": p99})


def _p99_text(bound: PercentileBounds | None) -> str:
    if bound is None:
        return P99["unknown"]
    return fill(P99["exact" if bound.exact else "bound"], time=format_latency(bound.low_ns))


def _find_causes(result: Result, answer_finding: Finding) -> tuple[Finding, ...]:
    """The causes of the answer: the reason for its stamp, or what the load waited for."""
    if answer_finding.id == _NONE_DUE:
        return ()
    requests = result.finished.open_loop
    reasons = [finding.because for finding in result.verdict.findings if finding.stamp == answer_finding.id]
    if (reasons and requests is None) or answer_finding.id in _STAMPS_WITHOUT_ANSWER:
        return (Finding(id="stamp", parameters={"because": reasons[0]}),)
    if requests is None:
        return (Finding(id="waits", parameters={"mean": format_latency(result.transaction.mean_ns)}),)
    figures = {"answered": requests.answered, "due": requests.due, "queued": requests.backlog_max}
    return (Finding(id="answered", parameters=dict(figures)),)


def _certainty(result: Result, answer_finding: Finding) -> str:
    """How sure the answer is, in one line; empty if there is no answer."""
    verdict = result.verdict
    others = [finding.because for finding in verdict.findings if finding.stamp is Stamp.DISTURBED]
    unsaid = (answer_finding.id, Stamp.DISTURBED)
    doubts = [finding.stamp for finding in verdict.findings if finding.stamp not in unsaid]
    if answer_finding.id in (*_STAMPS_WITHOUT_ANSWER, _NONE_DUE):
        return ""
    clauses = [
        "run",
        *(["doubtful"] if doubts else []),
        *(["disturbed"] if others else []),
        *([] if verdict.findings else ["errors" if result.errors else "valid"]),
    ]
    clauses += ["unknown"] if verdict.unknown else []
    return _certainty_text(
        clauses,
        seconds=result.seconds,
        transactions=result.finished.transactions,
        stamps=join(doubts),
        others="".join(others),
        errors=result.errors,
        unknown=len(verdict.unknown),
    )


def conclude_search(
    goal: Goal, search_result: SearchResult, is_client_limited: bool, programs: Sequence[ProgramUse] = ()
) -> Conclusion:
    """The conclusion of a search. `is_client_limited`: whether the client was short of CPU in trials that failed. `programs`: other
    programs that were busy in one of these."""
    figures = {
        "rate": search_result.rate,
        "failed": search_result.failed_at,
        "goal": str(goal),
        "repeats": search_result.repeats,
    }
    parameters = {name: value for name, value in figures.items() if value is not None}
    causes = (Finding(id="repeated", parameters=parameters),) if search_result.kind == "found" else ()
    clauses = ["trials" if search_result.repeats else "only-trials", *(["client"] if is_client_limited else [])]
    clauses += ["disturbed-trials"] if programs else []
    certainty = _certainty_text(
        clauses,
        trials=search_result.trials,
        repeats=search_result.repeats,
        rate=search_result.rate,
        others=busiest(programs) if programs else "",
    )
    finding = Finding(id=search_result.kind, parameters=parameters)
    advice = [fill(ADVICE["quiet"], program=program_name(programs[0].name, programs[0].pid))] if programs else []
    advice += [ADVICE[finding.id]] if finding.id in ADVICE else []
    return _conclude(fill(QUESTION_OF_SEARCH, goal=goal), finding, causes, certainty, advice)


def _certainty_text(names: Iterable[str], **figures: object) -> str:
    return join_clauses(fill(CERTAINTY[name], **figures) for name in names)
