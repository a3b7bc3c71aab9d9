"""Texts of all reports about the set-up of a run, its certainty and its method."""

from __future__ import annotations

from collections.abc import Mapping

from howfar.analysis.diagnostics import Diagnostic
from howfar.findings import Texts

SETUP: Texts = {
    # Where client and server ran.
    "placement isolated": "client and server on different CPUs, which emulators and other programs may use too (placement isolated)",
    "placement machines": "each host with an equal share of the CPUs (placement machines)",
    "placement": "placement {levels}",
    "hosts": "client{several:?s} on host{several:?s} {clients}, server on host {server}{on_local:? (with the client "
    "on local paths)}{hop:?, the program of {hop_paths} on host {hop}} (placement {placement})",
    "swapped": "client and server on hosts {first} and {second}, which swapped roles from block to block{ratio:?: with {first} as the "
    "server, the baseline did {ratio} times as many operations per second as with {second}, which is {meaning}} (placement "
    "{placement})",
    "hosts differ": "a difference between the hosts, not between paths",
    "hosts may be equal": "too close to call",
    # Idle states, and the link.
    "idle": "idle CPUs {levels}",
    "as found": "as found ({driver}{halts:?, {halts} sleeps/s})",
    "no driver": "the kernel has no idle driver",
    "link": "link {levels}",
    "no link": "no path over a link",
    "rtt": "RTT {rtts}",
    "rtt measured": "RTT {rtts} (measured {measured} unloaded)",
    "rtt not measured": "RTT {rtts} (not measured)",
    "server links": "{servers} over RTT {rtts}",
    "one link": "link {rtt:time}{rate:?, {rate:rate}}",
    "between hosts": "Between {distances}{swapped:? (roles swapped from block to block)}",
    "distance": "hosts {first} and {second}: RTT {rtt} µs, goodput {gbps:.3g} Gb/s",
}

SESSION: Texts = {
    "blocks": "{blocks:of block}{one:?, one of them incomplete}{several:?, {several} of them incomplete}",
    "void": "{void} more {one:?was}{several:?were} void{mostly:?, mostly} because {cause}; {one:?it}{several:?they}"
    "{left_out:? and the {left_out} good ones of the same block{several:?s}} {again}",
    "all again": "{several:?were}{one:?was} measured again",
    "some again": "were measured again, but {missing:of measurement} {lack:?are}{lacks:?is} still missing",
    "not again": "{several:?were}{one:?was} not measured again",
    "again on resume": "will be measured again when the run is resumed",
    # Why it ended without an answer.
    "few": "as requested, everything was measured {incomplete:?at most }{blocks:of time}; an answer needs {needed}",
    "few good": "stopped after the requested number of measurements, too few of which were good",
    "no intervals": "no intervals, because there are fewer than {needed} blocks",
    "widest": "widest interval of a ratio{has_rates:? of throughputs} {width} (requested {wanted})",
}
STOPS: Mapping[str | None, str] = {
    "width": "stopped because every interval was as narrow as requested",
    "time": "stopped by the time budget",
    "blocks": "stopped after the requested number of measurements",
    "interrupted": "interrupted",
    None: "the run has not ended",
}
"""Why a run ended."""

WARNINGS: Texts = {
    "some cells": "{count} of {cells} cells",
    # A host that limited its load.
    "late": "host {host} began late in {trials} of {of} trials, by at most {most}: the host or the network to it was busy, and its "
    "warm-up was shorter by that time",
    "clipped": "host {host} sent requests later than they were due in {trials} of {of} trials (99th percentile up to {most}): it "
    "could not sustain its rate",
    "limited": "host {host} used {most} of a CPU for one thread of the client in {trials} of {of} trials: the client was the limit "
    "there; add CPUs, or hosts with --clients",
    # An arm without a good trial.
    "unmeasured": "{arm}: no good trial ({void} void): {reason}{others:?; or {others}}.",
    "never reached": "it was never run",
}

METHOD: Texts = {
    # Blocks and comparisons.
    "design": "in each of {blocks:of complete-block}, every cell was measured once, in random order{settled:?, except cells that had "
    "settled on a plateau}{incomplete:?; {incomplete:of more-block} {lack} some cells}. A ratio is the geometric mean of the blocks' "
    "ratios, so it may differ from the ratio of two figures in the table; its interval comes from the scatter between blocks. "
    "Intervals have 95 % confidence. The run makes up to {comparisons} comparisons. A difference counts as more than chance only "
    "if the interval of its ratio at confidence 1 - 5 % / {comparisons} also excludes 1: the chance that one or more of these "
    "differences are false is at most 5 % in the whole run. Intervals of costs, break-even points, predictions and confirmations "
    "stay at 95 %",
    # Controls.
    "controls": "controls: {controls}",
    "same": "{reference} against itself {measured}{quantile:? in p99}{outcome}",
    "longer": "an RTT increase of {injected:,g} µs{levels:?, in a separate pair of arms ({levels}),} measured as {value} {interval} "
    "µs{outcome}",
    "no interval": "(no interval)",
    # The noise floor.
    "floor": "noise floor {floor}: {baseline}, measured twice under two names, gave {ratio}. Smaller effects are too "
    "close to call{others:? (under the conditions of {others}, that arm's own A/A ratio applies)}{cpu:?; for CPU per {unit}, the "
    "floor is {cpu}}",
    "no floor": "noise floor: unknown. The second measurement of the baseline (A/A) has no interval, so every difference is too close "
    "to call",
    "floor over the link": "{floor}, over the link {over_link}",
    "settled": "settled on a plateau and measured no further: {arms}",
    "settled arm": "{arm} (after {blocks} blocks)",
    "unconfirmed": "not tested: {limits}",
    "keys": "all {keys:,} keys that were read had a value",
    "missing keys": "reads of keys without a value, which a server answers faster: {shares}",
    # The machine.
    "others": "other programs kept {cpus}{machine:? of {machine}} CPUs busy in the median trial{steal:?; "
    "other virtual machines on this machine's host took {steal} of the CPU time}{busy:?. This machine counts as busy}",
    "others unknown": "how many CPUs other programs used was not recorded",
    "pressure": "in the median trial, some task (of client, server or others) waited for a CPU {share} of the time",
    "spread": "CPU per {unit} {varied} throughput: over the trials of {baseline}, it varied by a factor of "
    "{cpu:.2f}, and {units} per second by a factor of {throughput:.2f}",
    "varied less": "varied less than",
    "varied not less": "did not vary less than",
    # The instrument.
    "emulator": "the link's emulator used at most {cpus}{machine:? of {machine}} CPUs ({arm})",
    "scatter": "the link's unloaded RTT varied from block to block by {rtt} (standard deviation), which alone would change the ratio "
    "of {arm} by {alone}; it changed by {total}",
    "shift": "on average the unloaded RTT was {rtt} {longer} than requested, which alone makes the figures of {arm} "
    "{shift} {lower}. Intervals and controls refer to the measured RTT and do not show this",
    "late": "stalls of the machine delayed packets on the link, which alone makes the figures of {arm} {late} lower; the same stalls "
    "slow the other paths too",
    "limits": "what limits each cell: {limits}",
    "instrument's limits": "the load generator limits {load} of {cells} cells, and the link's emulator {emulator}",
    "busy": "on {arms}, the load generator's busiest thread was fully busy, so the figures describe it",
    "cpu": "a CPU ratio marked {sign} is a bound: on paths over the link, the kernel's receive work runs {where} and is not counted, "
    "while on the loopback it is charged to the sender and counted. Nothing beyond the bound is claimed",
    "cpu of a link": "in interrupts",
    "cpu of the emulator": "in the emulator's threads",
    # Void trials.
    "void": "{trials:of void-trial}, excluded from all figures{several:? (a trial may have several reasons)}: {reasons}",
    "left out": "also excluded: {trials:of good-trial}, because another trial of the same block was void; the block was then repeated",
    "void shift": "with all excluded trials counted, no cell's mean would differ by more than {cell}{ratio:?, and no ratio by more "
    "than {ratio}}",
    "void over the link": "trials over the link can be void for more reasons than others",
    "published": "published elsewhere: {source}. Not our measurement",
}

BLOCKS: Texts = {
    "cpu bound": "{more:?+: plus}{both:? and }{less:?-: minus} the kernel's receive work over the link, not counted",
    "single values": "(…): values of single blocks",
    "ratios": "ratios are means over repetitions and may differ from the ratio of two rows",
    "published": "published: {sources}, on other machines and versions",
    # The network between hosts.
    "hosts": "Median round trip of one byte over TCP, unloaded and with all CPUs awake; goodput of one connection. Zones: {zones}.",
    # Every trial.
    "trials title": "Half of the trials are within {half:share} of the median of their cell, all within {most:share}",
    "trials axis": "Every trial relative to the median of its cell, in order of execution. ",
    "trials": "A trend or a jump within blocks would show here; what all cells of a block share cancels in the ratios.",
    "trials of blocks": "Dot and line: median and middle 80 % of the trials of a block. {trials}",
    # Receipts, and how to repeat the run.
    "receipts": "A receipt proves a path's actual settings during a trial; these are from the last good trials. A trial whose receipt "
    "differs from the request is void. The receipt of {arm} is shown in full, the others only where they differ.",
    "repeat": "howfar {howfar}, run {run}, begun {created}. All figures are computed from the run file; `howfar report` computes them "
    "again.",
}

SEPARATOR = " · "
"""Between the parts of the line that says what was measured, when and on what."""

SCREEN: Texts = {
    "more": "More with --details{titles:?: {titles}}. Charts: --html.",
    "figures": "The figures of the chart as a table",
    "what now": "What now",
    "steps above": "{count:of step} above; the first: {first}.",
    "run file": "{what}, where FILE is this run's file",
}
"""Texts only for the terminal or only for the page."""

CERTAINTY: Texts = {
    # Before an answer of poor certainty.
    "uncertain": "uncertain:",
    "observed": "in this run,",
    # Without an answer.
    "missing": "Not yet: too few measurements for intervals",
    "resume": "howfar resume FILE",
    "resume-stopped": "howfar resume FILE --time-budget {minutes}min",
    # What to do before the command that gets an answer, and how long that takes.
    "to-answer": "For an answer, {quiet:?first {quiet}; then }measure {duration}",
    "to-continue": "For an answer, {quiet:?first {quiet}; then }continue this run, unless it is being measured now, {duration}",
    "stop-programs": "stop other programs{named}",
    "wait-for-quiet": "wait until this machine is quiet",
    "more-time": "for up to {minutes} more minutes{enough:?, which is usually enough}",
    "remaining": "for {remaining} more",
    "rest-of-time": "for the rest of the run's time budget",
    # How sure.
    "sure": "{verdict}: {measured}",
    "doubtful": "{verdict}, because of {warnings}; {measured}",
    "measured": "everything was measured {few:?only }{most:of time}, once in each block",
    "measured-unevenly": "everything was measured {few:?only }{fewest} to {most} times, once in each block",
    "floor": "differences in throughput below {floor} are too close to call: {reason}",
    "floor-of-arms": "differences in throughput below {floor} are too close to call: {reason}; for {arms}, those below {most}",
    "same-path": "the same path measured twice may differ that much",
    "chance": "1 of {comparisons:of comparison} may differ that much by chance",
    "very-wide": "{arm} may make anything from {low:n} to {high:n} times the {units}/s of {baseline}",
    "ratios": "ratios are means over blocks, so dividing the figures of two rows gives slightly different ones",
    "no-interval": "{arms} had too few good measurements to tell anything{cause:?, because others were void: {cause}}",
    "no-floor": "every difference in throughput is too close to call, because no path was measured twice",
    "wide-floor": "every difference in throughput is too close to call, because the path measured twice has too few blocks",
    "busy": "{steal:?other virtual machines on its host took {steal} of the CPU time}{programs:?other work kept this machine busy}",
    "disturbed": "other programs used up to {most:.1f} of {cpus:of CPU} in {disturbed} of {known:of trial}",
    "disturbed-by": "other programs, {mostly:?mostly }{among:?among them }{program}, used up to {most:.1f} of {cpus:of CPU} in "
    "{disturbed} of {known:of trial}",
    "unused": "{program} used up to {most:.1f} of {cpus:of CPU} in {trials} of {of:of trial}, which {fate}",
    "again": "{one:?was}{several:?were} measured again",
    "out": "{one:?does}{several:?do} not count",
    "quiet": "without the blocks of these trials, {arm} makes {estimate:fewer} {units}/s than {reference}",
    "quiet-unresolved": "without the blocks of these trials, {arm} is too close to {reference} to call",
}
DOUBTS: Mapping[Diagnostic, str] = {
    Diagnostic.DISTURBED: "void trials in every block",
    Diagnostic.BUSY_MACHINE: "{steal:?other virtual machines on its host, which took {steal} of the CPU time}"
    "{programs:?other work on this machine}",
    Diagnostic.AA_EXCLUDES_ONE: "two measurements of the same path that differ",
    Diagnostic.CONTROL_MISSED: "a control that missed a known effect",
    Diagnostic.LINK_NOT_AS_REQUESTED: "a link that was not as requested",
    Diagnostic.CLIENT_LIMITED: "a load generator at its limit",
}
"""Warnings that put the answer into question, the most serious first."""
MEANINGS: Mapping[Diagnostic, str] = {
    Diagnostic.CONTAMINATED_BLOCKS: (
        "the mean and the rank estimate disagree, so some trials were disturbed; the rank estimate is reported"
    ),
    Diagnostic.NOT_STEADY: "throughput changed during the trials, so a longer warm-up is needed",
    Diagnostic.CLIENT_LIMITED: "the load generator's busiest thread was fully busy, so the figure describes it, not the path",
    Diagnostic.BUSY_MACHINE: "other work kept this machine busy during the run",
    Diagnostic.UNEVEN_CPUS: (
        "the CPU time of the same work varied{scatter:? by ±{scatter}} between trials, which widens all intervals"
        "{speed:?; the speed of its CPUs, timed at both ends of each trial, varied by ±{speed}}"
        "{guess:?; other virtual machines on its host or the clock frequency may be the cause}"
    ),
    Diagnostic.WIDE_INTERVAL: "wider than requested; more trials would narrow it",
    Diagnostic.FEW_BLOCKS: "measured fewer than {few_blocks} times, so intervals may be too narrow",
    Diagnostic.DISTURBED: (
        "each time that everything was measured, a trial was void, so the figures come from the valid trials of the "
        "first times, which favours paths that cross the link; run again on a quieter machine"
    ),
    Diagnostic.AA_EXCLUDES_ONE: "the same path differs under two names, so differences of that size are too close to call",
    Diagnostic.LINK_NOT_AS_REQUESTED: (
        "the link's measured RTT differs from the requested one, or, between hosts, from that before the run"
    ),
    Diagnostic.CONTROL_MISSED: (
        "the interval of a known effect excludes its true size (by chance in one of 20 runs), so do not trust effects "
        "of the link that are no larger than this one"
    ),
}
"""Warnings as clauses, for every report. `scatter`: relative standard deviation of CPU times, if known; `guess`: whether its cause is
unknown."""
