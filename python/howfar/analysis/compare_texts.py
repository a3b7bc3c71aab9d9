"""Texts of the comparison of runs."""

from __future__ import annotations

from howfar.analysis.answer import NOT_YET
from howfar.findings import Texts

QUESTIONS: Texts = {
    "two": "Do these two runs give the same result?",
    "several": "Do these runs give the same result?",
}
ORDINALS = ("first", "second", "third", "fourth", "fifth", "sixth", "seventh", "eighth", "ninth", "tenth")
ANSWERS: Texts = {
    # Of two runs, each arm that differs.
    "differs": "probably not: in the {run} run, {subject} has {estimate:more} throughput",
    "differs, next": "{subject} {estimate:more}",
    # Of several runs, the arm that differs most from the first run.
    "differs-most": "probably not: compared with the first run, {subject} has {estimate:more} throughput in the {run} run",
    "differs-most, next": "{subject} {estimate:more} in the {run} one",
    "same": "yes, within {within:upper}: no difference in the throughput of {arms:of arm} is more than chance",
    # Of several runs, those that the answer is not about.
    "left-out": "left out: the {subject} run",
    # Without an answer.
    NOT_YET: "no answer yet: one run has {blocks} of the {needed} blocks that an answer needs; each measures everything once",
    "too-wide": "too close to call: throughput may differ by up to {within:upper}",
    "other-unit": "no answer: the first run counts {unit}, and the {run} run {other}",
    "other-workload": "no answer: the {run} run and the first have different workloads",
    "nothing-shared": "no answer: the runs share no arm with the same factor levels",
    "given-rates": "no answer from throughput, because each shared arm has a given rate: compare transaction times",
}
LEFT_OUT: Texts = {
    "other-unit": "The {run} run is left out of the answer: it counts {other}, and the first run {unit}.",
    "other-workload": "The {run} run is left out of the answer: its workload differs from the first run's.",
}
CAUSES: Texts = {
    "path": "the machine is not the cause: relative to each run's baseline, {subject} has {estimate:more} throughput in the {run} run",
    "path, next": "{subject} {estimate:more}",
    "machine": "relative to each run's baseline, no arm of the {run} run differs, within {within:upper}: this points to the machine, "
    "not a path",
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
    "factors": "levels of factors",
    "workload": "the workload",
    "data": "the data",
    "timing": "the length of trials",
    "keys": "the keys",
    "server": "the server",
    "howfar": "the version of howfar",
    "kernel": "the kernel",
    "cpu_model": "the CPU model",
    "cpu_count": "the number of CPUs",
    "governor": "the CPU governor",
    "placement": "the placement on CPUs",
    "congestion_control_default": "congestion control",
    "virtual_machine": "the virtual machine",
}
"""Facts that may differ, by the first part of their name."""
CERTAINTY: Texts = {
    "trials": "{fewest} to {most} trials of each arm",
    "equal-trials": "{most:of trial} of each arm",
    "width": "95 % intervals within {width}",
    "chance": "some intervals that exclude 1 are too close to call: one of {comparisons:of comparison} may exclude 1 by chance",
    "apart": "the runs were not interleaved, so a difference may come from the time between them",
}
ADVICE: Texts = {
    "interleave": "For a firm answer, measure both as arms of one plan, as in `howfar plans paths`.",
    "because-interleave": "Arms of one run alternate, so changes of the machine affect all of them alike.",
    "continue": "Measure more, for 10 minutes each:",
    "same-plan": "Compare with another run of the first run's command:",
}
VERDICTS: Texts = {
    "other-levels": "other factor levels",
    "given-rate": "at a given rate",
    "unresolved": "too close to call",
    "faster": "more",
    "slower": "fewer",
}
"""Below the ratio of each arm."""
TABLES: Texts = {
    "answers": "The answer of each run",
    "throughput": "Throughput",
    "ratios": "The {run} run, relative to the first",
    "facts": "What else differs",
    "times": "p50 and p99: time per {operation}.",
    "lacking": "-: unknown, or a trial has fewer than {fewest} transactions beyond that percentile.",
    "only": "Only in the {run} run: {arms}.",
}
HOSTS: Texts = {
    "incomparable": "No arm can be compared: none has equal factors and a similar link. Run the laboratory with the plan "
    "used on the hosts.",
    "unresolved": "Whether laboratory and hosts agree is too close to call: no arm has an interval; the ratio to the baseline "
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
    "far-laboratory": "{far}. Run the laboratory with what was measured between the hosts: {options}.",
    "far-unknown": "{far}.",
}
