"""What the comparison of runs says, in words."""

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
    NOT_YET: "no answer yet: a run has {blocks:of block}, and an answer needs {needed}",
    "too-wide": "too close to call: throughput may differ by up to {within:upper}",
    "other-unit": "no answer: the first run counts {unit}, and the {run} run {other}",
    "other-workload": "no answer: the workload of the {run} run is not that of the first",
    "nothing-shared": "no answer: the runs share no arm with the same factor levels",
    "given-rates": "no answer from throughput, because each shared arm has a given rate: compare the times of a transaction",
}
LEFT_OUT: Texts = {
    "other-unit": "The {run} run is left out of the answer: it counts {other}, and the first run {unit}.",
    "other-workload": "The {run} run is left out of the answer: its workload is not that of the first.",
}
CAUSES: Texts = {
    "path": "not the machine as a whole: relative to each run's baseline, {subject} has {estimate:more} throughput in the {run} run",
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
    "apart": "the runs were not interleaved, so a difference may come from the time between them",
}
ADVICE: Texts = {
    "interleave": "For a firm answer, measure both in one run: a plan with both as arms, as in `howfar plans paths`.",
    "because-interleave": "Arms of one run alternate, so that changes of the machine affect all of them alike.",
    "continue": "Measure more blocks:",
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
    "throughput": "Throughput",
    "ratios": "The {run} run, relative to the first",
    "facts": "What else differs",
    "times": "p50 and p99: time of a {operation}.",
    "lacking": "-: unknown, or a trial has fewer than {fewest} transactions beyond that percentile.",
    "only": "Only in the {run} run: {arms}.",
}
HOSTS: Texts = {
    "incomparable": "No arm can be compared: in none are the factors the same and the link near. Run the laboratory with the plan "
    "of the run on hosts.",
    "unresolved": "Whether laboratory and hosts agree is too close to call: no arm has an interval; the ratio to the baseline "
    "{worst}.",
    "worst": "differs most for {arm}, by a factor of {ratio}",
    "agreement": "Between laboratory and hosts, the ratio to the baseline agrees to {tolerance:share} for {agrees} of "
    "{judged:of arm}{partly:? with an interval}{differs}{wide}; it {worst}.",
    "differs": ", differs for {count}",
    "wide": ", and for {count} the interval is too wide to tell",
    "links": "The links are not the same: {differences}.",
    "link": "{name} {one} {first} and {other} {second} ({change:+.0f} %)",
    "far": "The link is too far off to compare {arms}",
    "far-runs": "{far}: {one} before, {other} after.",
    "far-laboratory": "{far}. Run the laboratory with what was measured between the hosts: {options}.",
    "far-unknown": "{far}.",
}
