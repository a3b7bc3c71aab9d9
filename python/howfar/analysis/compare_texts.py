"""Message templates for the comparison of runs."""

from __future__ import annotations

from howfar.analysis.answer import NOT_YET
from howfar.findings import Texts

QUESTIONS: Texts = {
    "two": "Do these two runs give the same result?",
    "several": "Do these runs give the same result?",
}
ORDINALS = ("first", "second", "third", "fourth", "fifth", "sixth", "seventh", "eighth", "ninth", "tenth")
ANSWERS: Texts = {
    # Two runs: a clause for each arm that differs.
    "differs": "probably not: in the {run} run, {subject} has {estimate:more} throughput",
    "differs, next": "{subject} {estimate:more}",
    # Several runs: the arm that differs most from the first run.
    "differs-most": "probably not: compared with the first run, {subject} has {estimate:more} throughput in the {run} run",
    "differs-most, next": "{subject} {estimate:more} in the {run} one",
    "same": "yes, within {within:upper}: the throughput of {arms:of arm} differs no more than by chance",
    # Several runs: those that the answer leaves out.
    "left-out": "left out: the {subject} run",
    # No answer.
    NOT_YET: "no answer yet: one of the runs has only {blocks} of the {needed} blocks needed; a block measures each arm once",
    "too-wide": "too close to call: throughput may differ by up to {within:upper}",
    "other-unit": "no answer: the first run counts {unit}, and the {run} run {other}",
    "other-workload": "no answer: the {run} run and the first have different workloads",
    "nothing-shared": "no answer: the runs share no arm with the same factor levels",
    "given-rates": "throughput does not answer this, because every shared arm has a fixed rate: compare transaction times",
}
LEFT_OUT: Texts = {
    "other-unit": "The {run} run is left out of the answer: it counts {other}, and the first run {unit}.",
    "other-workload": "The {run} run is left out of the answer: its workload differs from the first run's.",
}
CAUSES: Texts = {
    "path": "the machine is not the cause: relative to each run's baseline, {subject} has {estimate:more} throughput in the {run} run",
    "path, next": "{subject} {estimate:more}",
    "machine": "relative to each run's baseline, all arms of the {run} run are the same to within {within:upper}: this points to "
    "the machine, not a path",
    "unclear": "whether a path or the machine changed in the {run} run is too close to call",
    "facts": "the {run} run differs in {subject}",
    "facts, after path": "that run also differs in {subject}",
    "facts, after machine": "that run also differs in {subject}",
    "facts, after unclear": "that run also differs in {subject}",
}
FACTS: Texts = {
    "plan": "the plan",
    "quick": "the option --quick",
    "baseline": "the baseline",
    "factors": "factor levels",
    "workload": "the workload",
    "data": "the data",
    "timing": "the length of trials",
    "keys": "the keys of the stores",
    "server": "the server",
    "howfar": "the version of howfar",
    "kernel": "the kernel",
    "cpu_model": "the CPU model",
    "cpu_count": "the number of CPUs",
    "governor": "the CPU governor",
    "placement": "the CPUs that programs run on",
    "congestion_control_default": "congestion control",
    "virtual_machine": "virtualization",
}
"""Facts in which runs may differ, by the part of their name before the colon."""
CERTAINTY: Texts = {
    "trials": "{fewest} to {most} trials per arm",
    "equal-trials": "{most:of trial} per arm",
    "width": "95 % intervals no wider than {width}",
    "chance": "some intervals exclude 1 but do not count as differences: one of {comparisons:of comparison} may do so by chance",
    "apart": "the runs were not interleaved, so something that changed between them may be the cause",
}
ADVICE: Texts = {
    "interleave": "For a firm answer, measure what you compare as arms of one plan, as in `howfar plans paths`.",
    "because-interleave": "Arms of one run alternate, so a change in the machine affects all of them alike.",
    "continue": "Continue these runs, for 10 minutes each:",
    "same-plan": "To compare again, repeat the first run:",
}
VERDICTS: Texts = {
    "other-levels": "other factor levels",
    "given-rate": "at a fixed rate",
    "unresolved": "too close to call",
    "faster": "more",
    "slower": "fewer",
}
"""Printed under each arm's ratio in a table."""
TABLES: Texts = {
    "answers": "Each run's answer",
    "throughput": "Throughput",
    "ratios": "The {run} run, relative to the first",
    "facts": "What else differs",
    "times": "p50 and p99: time per {operation}.",
    "lacking": "- is unknown, or a trial has fewer than {fewest} transactions beyond that percentile.",
    "only": "Only in the {run} run: {arms}.",
}
HOSTS: Texts = {
    "incomparable": "No arm can be compared: none has the same factor levels and a similar link in both runs. Repeat the run in "
    "the laboratory with the plan used between the hosts.",
    "unresolved": "Whether laboratory and hosts agree cannot be judged, because no arm has an interval; the ratio to the baseline "
    "{worst}.",
    "worst": "differs most for {arm}, by a factor of {ratio}",
    "agreement": "Between laboratory and hosts, the ratio to the baseline agrees within {tolerance:share} for {agrees} of "
    "{judged:of arm}{partly:? with an interval}{differs}{wide}; it {worst}.",
    "differs": ", differs for {count}",
    "wide": ", and for {count} the interval is too wide to tell",
    "links": "The links are not the same: {differences}.",
    "link": "{name} {one} {first} and {other} {second} ({change:+.0f} %)",
    "far": "The link differs too much to compare {arms}",
    "far-runs": "{far}: {one} before, {other} after.",
    "far-laboratory": "{far}. Repeat the run in the laboratory with what was measured between the hosts: {options}.",
    "far-unknown": "{far}.",
}
