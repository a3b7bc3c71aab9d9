"""What the commands about an application say: `slope`, `record`, `predict` and `replay`, also at a real server.

Fields have the formats of sentences in `howfar.findings`. Names of pages and commands are printed as they are, so a sentence has its
capital letter and its full stop in its template; only the clauses of `certainty` are joined to a sentence by rule.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from howfar.findings import Texts, fill, join, join_clauses
from howfar.report.document import AdviceBlock, Block, Heading, Text
from howfar.report.texts import SEPARATOR
from howfar.stats.estimate import Estimate
from howfar.stats.intervals import MIN_BLOCKS
from howfar.units import format_utc

TEXTS: Texts = {
    # Lines that several reports share.
    "when": "{is_recorded:?recorded }{when}",
    "interval": "95 % interval from {low} to {high}",
    "no-interval": "no interval, as fewer than {needed} pages were recorded",
    "doubtful": "doubtful because of {doubts}",
    "others/doubt": "other programs, such as {program}",
    "others/blocks": "{use} in {disturbed} of {of:of block}",
    "others/blocks/again/one": ", which was measured again",
    "others/blocks/again/several": ", which were measured again",
    "others/blocks/out/one": ", which does not count",
    "others/blocks/out/several": ", which do not count",
    "others/blocks/again-out/several": ", which were measured again or do not count",
    "others/blocks/counted/several": ", {counted} of them in the figures",
    # slope: the answer.
    "slope/question": "How many round trips does {subject} wait for, and what would a longer distance cost?",
    "slope/duration": "{blocks:of block} in {seconds:.0f} s",
    "slope/answer/some": "{subject} waits for {trips:.1f} round trips in sequence; 0.5 ms more RTT adds {added} to its {now}.",
    "slope/answer/all": (
        "{subject} waits for all of its {counted:.1f} round trips in sequence; 0.5 ms more RTT adds {added} to its {now}."
    ),
    "slope/answer/unresolved": (
        "{subject} waits for {low:.1f} to {high:.1f} of its {counted:.1f} round trips; 0.5 ms more RTT adds {least} to {most}."
    ),
    "slope/answer/dear": (
        "{subject} waits for {counted:.1f} round trips, and each costs more than the delay; 0.5 ms more RTT adds {added}."
    ),
    "slope/answer/none": "{subject} takes {now} and waits for no round trip that delays could show.",
    "slope/answer/missing": "No answer yet: {blocks:of block} of times, and an answer needs {needed}.",
    "slope/next/missing": "Measure {needed} blocks or more, with the same options: `howfar slope --blocks {needed} -- COMMAND`.",
    # slope: why, how sure, and what to do.
    "slope/why/some": "{intercept} without a delay, plus {trips:.1f} times the added RTT; {counts}, of which some possibly overlap.",
    "slope/why/all": "{intercept} without a delay, plus {trips:.1f} times the added RTT; {counts}.",
    "slope/why/unresolved": "{intercept} without a delay, plus {low:.1f} to {steepest:.1f} times the added RTT; {counts}.",
    "slope/why/dear": (
        "{intercept} without a delay, plus {trips:.1f} times the added RTT; {counts}. Each costs more, possibly because computing is "
        "slower after a wait."
    ),
    "slope/why/none": "{intercept} without a delay, and as much with each delay; {counts}.",
    "slope/counts": "the tap counted {trips:.1f} round trips and {connections:.1f} connects",
    "slope/width": "{blocks:of block}; 95 % interval from {low:.1f} to {high:.1f} round trips",
    "slope/doubt/others": "other programs",
    "slope/doubt/falling": "times that were still falling after {pages} pages to warm up",
    "slope/doubt/slower-first": "a first block that took {share:share} longer than the last",
    "slope/doubt/faster-first": "a first block that took {share:share} less than the last",
    "slope/doubt/kink": "a kink of the line",
    "slope/doubt/line": "a line that misses the present path",
    "slope/do/quiet": "Stop other programs, such as {program}, and measure again",
    "slope/do/quiet/because": "{use} in {counted} of the blocks that count.",
    "slope/do/record": "See which statements these are: howfar record, with the same command, then howfar predict",
    "slope/do/record/because": "Each round trip that is not needed saves one RTT, here and at any distance.",
    "slope/do/blocks": "Measure again with --blocks {blocks}",
    "slope/do/blocks/because": "An interval is about half as wide with four times as many blocks.",
    "slope/do/warm-up": "Measure again with --warmup {pages}",
    "slope/do/warm-up/because": "An application that still becomes faster has a line that is too steep or too flat.",
    # slope: the rest of the report.
    "slope/programs": "Programs used CPUs meanwhile, possibly those of the application: {use}.",
    "slope/kink": (
        "The line has a kink: below an added {start} the slope is {before}, up to {end} it is {after}. A timeout, an exhausted "
        "pool or overlapping work can cause this; do not rely on times beyond it."
    ),
    "slope/line": "The line says {now} for the present path, which without the tap takes {measured}.",
    "slope/measured": "Measured on the present path without the tap: {measured}.",
    "slope/method": (
        "{blocks:of block}, each with every added delay once, in random order, after {warm_ups} to warm up. On a network a connect "
        "is a round trip too. Those that overlap count once in the slope. The tap costs {tap_us:.0f} µs per round trip, which was "
        "subtracted. Idle CPUs were {idle}. Bandwidth and encryption are not in these times."
    ),
    # record: the answer.
    "record/question": "Which round trips does this application make, and how long do its pages wait for them?",
    "record/kind/unix": "{protocol} over a Unix socket",
    "record/kind/tcp": "{protocol} over TCP",
    "record/counts": "{trips:of round-trip} over {connections:of connection} in {took:time}",
    "record/answer/one": (
        "{page} takes {took} with {trips:of round-trip} to the database, and waits for them {waiting:share} of that time."
    ),
    "record/answer/most": (
        "Most time goes to {page}: {took} with {trips:of round-trip}, for which it waits {waiting:share} of that time."
    ),
    "record/answer/no-page": "No answer: {trips:of round-trip} over {connections:of connection} belong to no page that can be used.",
    "record/answer/nothing": "No answer: no round trip with an answer was recorded.",
    "record/next/no-page": (
        "Record again with pages: `howfar record --gaps -- COMMAND`, or with --http or --php, or `howfar mark` around what you do."
    ),
    "record/next/nothing": "Record again while the application uses its database: `howfar record -- COMMAND`.",
    # record: why, how sure, and what to do.
    "record/why": "{each:,} × {mean} = {total} of the {took} are waits for {statement}.",
    "record/few": "only {pages:of page}, too few for an interval",
    "record/cost": "recording itself took at least {share} of the time of a page",
    "record/do/quiet": "Stop other programs, such as {program}, and record again",
    "record/do/quiet/because": "{use} during {disturbed:,} of {of:of page} of {page}.",
    "record/doubt/stopped": "a recording that is not complete",
    "record/doubt/bytes": "bytes that were not passed on",
    "record/doubt/left-out": "{pages:of page} left out",
    "record/doubt/no-page": "{trips:of round-trip} outside any page",
    "record/doubt/cold": "a cold first page",
    "record/doubt/gaps": "a begin and end inferred from pauses",
    "record/do/nagle": "Set TCP_NODELAY, or send each request in one write",
    "record/do/nagle/because": (
        "{requests:of small-request} took about 40 ms to send, probably because Nagle's algorithm held the second part back until a "
        "delayed ACK came."
    ),
    "record/do/predict": "See what another path would cost, and what to change: howfar predict {file} --path remote --rtt 0.5ms",
    "record/do/predict/because": "A longer distance lengthens each of the {trips:of round-trip} of {page}.",
    "record/do/repeat": "Record {page} at least {needed} times: an interval needs as many pages",
    "record/do/repeat/because": "No interval can be computed from {pages:of page}.",
    # record: warnings.
    "record/stopped": (
        "The recording is not complete: {reason}. The application was not disturbed; the figures are of the round trips before that."
    ),
    "record/bytes": "Not every byte that came was passed on: a connection broke while bytes were on their way.",
    "record/exit-code": "The command ended with exit code {code}.",
    "record/busy": "{page}: other programs were busy during {disturbed:,} of {of:of page}; {use}.",
    "record/busy/perhaps-own": (
        "{page}: programs were busy during {disturbed:,} of {of:of page}, possibly those of the application; {use}."
    ),
    "record/busy/calibration": "What the tap costs may be wrong: while it was measured after the recording, {use}.",
    "record/left-out": "{page}: {pages:of page} in no page's figure ({reason}).",
    "record/sending": "{page} also sends requests for {share} of its time: from the first byte of each to the last.",
    "record/syns": (
        "{connects:of connect} had to be asked for again (the first packet, or its answer, was lost): that cost {took} in all."
    ),
    "record/name": (
        "The command names the server {name}, which the recorder replaced by its own address: without it, each connect also pays "
        "{lookup} for the lookup{dead}, measured here."
    ),
    "record/name/dead": ", and {took} for its first address, {address}",
    "record/unknown": "Not known: {reason} ({count:,}).",
    # record: how it was recorded.
    "record/more-pages": "{count} more in the recording.",
    "record/more-statements": "{statements:of more-statement} with {trips:of round-trip}.",
    "record/tls": "Connections were encrypted, so round trips have no names.",
    "record/tap-unknown": "What the tap added is not known.",
    "record/tap": (
        "With pauses and sizes as in this recording, a round trip takes {added} µs more through the tap, and {floor_us:.0f} µs "
        "between tap and a server without work, which is taken off the server's time."
    ),
    "record/packets": "Packets were captured: no program was on the application's path.",
    "record/capture": "Capturing packets kept {share} of a CPU busy, beside what the kernel takes to copy each.",
    "record/capture/doubt": "capturing packets kept {share} of a CPU busy",
    "record/file": "The recording, {file}, holds no literal, key or value.",
    # Notes on pages, of recordings and predictions.
    "page/inferred": (
        "{page}: its begin and end were inferred from pauses between round trips (confidence {confidence:.0%}); its time excludes "
        "what the application computes before the first and after the last round trip."
    ),
    "page/cold": (
        "{page}: the first page took {first_ms:table} ms, and the others {typical_ms:table} ms in the median. It was probably cold; "
        "quantiles above the median show it."
    ),
    # predict: the answer.
    "predict/question": "How long would these pages take on {target}, and which change would save most?",
    "predict/counts": "{pages:of page} in {blocks:of block}",
    "predict/paths": "from {present} to {target}",
    "predict/answer/change": "{page} takes {now} ms now, and would take {there} ms on {target}: {ratio:slower}.",
    "predict/answer/same": "{page} takes {now} ms now, and would take about as long on {target}: {there} ms.",
    "predict/answer/between": "{page} takes {now} ms now, and would take between {low} and {high} ms on {target}.",
    "predict/answer/times": "{page} takes {now} ms now, and {there} ms are predicted on {target}.",
    "predict/answer/unexplained": "No answer for {page} on {target}: its two predictions disagree.",
    "predict/answer/contested": "No answer for {target}: pages overlap, so which of them made a round trip is not known.",
    "predict/answer/empty": "No answer for {target}: no page of this recording made a round trip.",
    "predict/answer/changed": "No answer for {target}: the time on the present path, {present}, has changed by too much.",
    "predict/answer/busy": "No answer for {target}: {cause}.",
    "predict/answer/contradictory": "No answer for {target}: the times of this recording contradict each other.",
    "predict/answer/few": "No answer yet: {pages:of page} in {blocks:of block}, and a prediction needs {needed} blocks.",
    "predict/next/unexplained": "Measure its round trips again: `howfar slope --json`, with as many blocks, for --slope.",
    "predict/next/contested": "Record one page at a time: `howfar record -- COMMAND`.",
    "predict/next/empty": "Record pages that use the database: `howfar record -- COMMAND`.",
    "predict/next/changed": "Record again on this machine, and predict that recording at once: `howfar record -- COMMAND`.",
    "predict/next/contradictory": "Record again with this version of howfar: `howfar record -- COMMAND`.",
    "predict/next/busy": "{remedy}, with the same options.",
    "predict/next/blocks": "Measure {needed} blocks or more, with the same options: `howfar predict RECORDING --blocks {needed}`.",
    # predict: why, how sure, and what to do.
    "predict/why": "{trips:of round-trip} × {each} ms{connects} = {path} of {total} ms there, and {path_now} of {now} ms now.",
    "predict/why/longer": " + {took} ms of longer connects",
    "predict/why/shorter": " - {took} ms of shorter connects",
    "predict/why/loop": (
        "{looped:,} of its {trips:of round-trip} are one loop; one request instead would save {low} to {high} ms there."
    ),
    "predict/why/nagle": (
        "{count:,} of its {trips:of request} are sent in two writes; TCP_NODELAY would save {low} to {high} ms there."
    ),
    "predict/present": "the time on the present path is predicted within {error:upper}",
    "predict/doubt/void": "{blocks:of block} left out",
    "predict/doubt/left-out": "{pages:of page} left out",
    "predict/doubt/missed": "{pages:of page} whose present time is missed",
    "predict/doubt/overlap": "round trips that overlap",
    "predict/doubt/gaps": "a begin and end inferred from pauses",
    "predict/doubt/cold": "a cold first page",
    "predict/doubt/tls": "a TLS library that was not measured",
    "predict/do": "{change}: {statement}",
    "predict/do/because": "It would save {low} to {high} ms per page of {page} there.",
    # What to change: docs/predict.md explains each.
    "change/nagle": "set TCP_NODELAY",
    "change/loop": "one request for all keys",
    "change/connect": "keep the connection open",
    "change/transaction": "no transaction for one",
    "change/memo": "remember the answer",
    "change/cache": "cache between pages",
    "change/initial": "set once for a connection",
    "change/prepare": "prepare once, or interpolate",
    "change/fetch": "raise the fetch size",
    "change/bytes": "fetch fewer bytes",
    "change/pipeline": "perhaps send together",
    "changes/range": "Minimum: path costs only. Maximum: also the time of server and application for what is left out.",
    "changes/sum": "Rows overlap and do not add up. None is certain: only its author knows what the application can do without.",
    # predict: warnings.
    "predict/contested": (
        "{page}: {pages:of page} left out, because round trips in its time may be those of another page: marks or requests overlap. "
        "Record one page at a time."
    ),
    "predict/missed/later": "{page}: {now} as recorded, {later} as recorded again ({error:+.0%}){because}",
    "predict/missed/later/because": (
        ", possibly because the application or its server has changed, or other programs used the CPUs. Other paths are not "
        "predicted. Record again while the machine does what it will do later."
    ),
    "predict/missed/later/busy": ", possibly because {causes}. Other paths are not predicted. {remedy}",
    "predict/missed/present": (
        "{page}: {now} ms as recorded, {present} ms as predicted for the same path ({error:+.0%}). Other paths are not "
        "predicted: {reason}{because}"
    ),
    "predict/missed/beyond": "its round trips last {beyond} ms longer together than the page",
    "predict/missed/beyond/because": ", so times or marks of this recording are wrong. Record again with this version.",
    "predict/missed/clipped": "{share:.0%} of its round trips took less than one without work ({idle})",
    "predict/missed/clipped/because": (
        ", possibly because the machine is slower now than when it was recorded, or the recording is from another one. Record again, "
        "or predict on a quieter machine."
    ),
    "predict/missed/shift": (
        "a round trip without work took {before:.0f} µs when it was recorded and takes {now:.0f} µs now, by the same measure"
    ),
    "predict/missed/shift/because": ". Record again, or predict on a quieter machine.",
    "predict/missed/busy": ", possibly because {causes}. {remedy}",
    "predict/while/recorded": "{use} while these pages were recorded",
    "predict/while/later": "{use} while they were recorded again",
    "predict/while/calibrated": "{use} while the cost of recording was measured",
    "predict/while/now": "{use} while the paths were measured",
    "predict/quiet/record": "Stop other programs, such as {program}, record again, and predict that recording at once",
    "predict/quiet/predict": "Stop other programs, such as {program}, and predict again",
    "predict/idle/then": "{us:.0f} µs when it was recorded",
    "predict/idle/now": "{us:.0f} µs",
    "predict/left-out": "{reason} ({pages:of page}, in no figure).",
    "predict/unexplained": (
        "{page}: not explained. Bottom-up {bottom_up}, by slope {slope}: {residual} ms apart, more than both intervals. Round "
        "trips that overlap, a cache or a timeout can cause this."
    ),
    "predict/failing": "{page}: {failed:,} of {runs:of run} of {statement} failed; there is no advice about them.",
    "predict/window": (
        "{page}: with a receive buffer of {kib} kB in the application it would take {took} ms. Its size is not recorded; the "
        "kernel's own grows as needed."
    ),
    "predict/few-pages": "{page}: fewer than {needed} pages allow no interval.",
    "predict/clipped": (
        "{page}: {share:.0%} of the round trips took less than one without work; their server time counts as 0, so the page may be "
        "predicted too long."
    ),
    "predict/overlapped": (
        "{page}: {trips:of round-trip} overlap others, so its interval reaches from the longest chain of one connection to the "
        "recorded order. Which of them wait for others is not known; `howfar slope` measures it."
    ),
    "predict/void": "{blocks:of block} left out: {reasons}.",
    "predict/void/reason": "{reason} ({blocks:of block})",
    "predict/tls": (
        "Over TLS a page may take longer than its interval says, most of all one that connects anew: the application's own TLS "
        "library is not measured (docs/predict.md)."
    ),
    "predict/unplaced": "{trips:of round-trip} of the recording belong to no page.",
    # predict: the rest of the report.
    "predict/limits-on": "{limits} on {target}",
    "predict/page": "{page}: where the time goes",
    "predict/waterfall": "The median page, now and on {target}",
    "predict/waterfall/caption": "Each row is a round trip: what the application does before it, the path, the server.",
    "predict/by-rtt": "Predicted time over RTT",
    "predict/by-rtt/caption": "The line is predicted; points were measured, with their intervals.",
    "predict/slope-hint": "By slope: give --slope FILE, from `howfar slope --json` of the same page, for a second prediction.",
    "predict/method": (
        "A round trip of the smallest size, with pauses as recorded, costs {now_us:.0f} µs on {present} and {there_us:.0f} µs on "
        "{target}, measured in {blocks:of block} on this machine just now; connecting there takes {connect_us:.0f} µs. Each page "
        "is its own time (gaps), the server's time, and the cost of each of its round trips by its sizes; an answer that fills the "
        "window of a new connection waits for more rounds. In the costs is what waiting does to the computing after it, of "
        "application and server, whose caches others use meanwhile: {resuming_us:+.0f} µs there, by a program that is not yours."
    ),
    "predict/method/tap": "What the recorder added, {added} µs per round trip, is subtracted.",
    "predict/method/tap-unknown": "What the recorder added is not known: it is in the application's time.",
    "predict/method/interval": (
        "Intervals are of another run: {resamples:,} resamples of pages and blocks{waking}, and from the time as recorded to the time "
        "of the present path now. They have no error of the method in them; what that was in tests with applications is in "
        "docs/predict.md."
    ),
    "predict/method/waking": (
        ", these {resuming_us:.0f} µs and {waking_us:.0f} µs per round trip (how much longer the link takes to CPUs that sleep, "
        "which yours may or may not do)"
    ),
    # replay on a path.
    "replay/question": "How long do these pages take on {target}, and was the prediction right?",
    "replay/blocks": "{blocks:of block} of {pages:of page}",
    "replay/answer/right": "{page} took {took} ms on {target}, as predicted: {predicted} ms.",
    "replay/answer/wide": "{page} took {took} ms on {target}; that is within the uncertainty of the prediction, {predicted} ms.",
    "replay/answer/long": "{page} took {took} ms on {target}; the prediction of {predicted} ms was {share:share} too long.",
    "replay/answer/short": "{page} took {took} ms on {target}; the prediction of {predicted} ms was {share:share} too short.",
    "replay/answer/unpredicted": "{page} took {took} ms on {target}; there is no prediction to compare that with.",
    "replay/answer/missing": "No answer yet: {pages:of page} in {blocks:of block}, and an answer needs {needed} of each.",
    "replay/next/pages": (
        "Record {needed} pages or more: `howfar record -- sh -c 'for i in 1 2 3 4 5 6; do howfar mark page -- COMMAND; done'`."
    ),
    "replay/next/blocks": "Measure {needed} blocks or more, with the same options: `howfar replay RECORDING --blocks {needed}`.",
    "replay/why": "The predicted interval is from {low} to {high} ms; gaps and the server's times are as recorded.",
    "replay/sure": (
        "{pages:of page} in {blocks:of block}; {interval}; the tool was late by {client:.1%} and the server by {server:.1%}"
    ),
    "replay/doubt/tool": "a tool that fell behind",
    "replay/doubt/server": "a server that fell behind",
    "replay/do/quiet": "Replay on a quieter machine",
    "replay/behind/tool": "{page}: this tool was behind the recording by {share:.1%} of the time: the replay is too slow by as much.",
    "replay/behind/server": (
        "{page}: the server was behind the recording by {share:.1%} of the time: the replay is too slow by as much."
    ),
    "replay/do/measured": "Set the replay beside the prediction: howfar replay --json, then howfar predict --measured FILE",
    "replay/do/measured/because": "Its report then has the measured times in its charts, and the error of each page.",
    "replay/method": (
        "{blocks:of block}, each with every page once. Gaps between round trips and the server's times are those of the recording; "
        "the server answers as many bytes as were recorded, and no statement is needed."
    ),
    # replay at a real server.
    "repeat/question": "How long do these pages take at a real server, and how long did they take when they were recorded?",
    "repeat/answer/change": "{page} took {took} ms on {server}, and {recorded} ms when it was recorded: {ratio:slower}.",
    "repeat/answer/same": "{page} took {took} ms on {server}, about as long as when it was recorded.",
    "repeat/answer/between": "{page} took between {low} and {high} ms on {server}, and {recorded} ms when it was recorded.",
    "repeat/why": "Its {trips:of statement} took {waiting} ms, and {recorded} ms then.",
    "repeat/why/connecting": "Connecting took {connecting} ms, and {recorded} ms then.",
    "repeat/sure": "{pages:of page} in {blocks:of block}; {interval}; the tool was late by {client:.1%}",
    "repeat/doubt/lacking": "pages without statements",
    "repeat/do/predict": "See what to change: howfar predict, with the same recording",
    "repeat/do/predict/because": "It lists the round trips that the pages could do without.",
    "repeat/lacking": "Left out: {reason}.",
    "repeat/left-out": "{page}: round trips that are no statements were left out ({listed}, in {pages:of page}).",
    "repeat/no-statement": "{page} ({pages:of page}) has no statement",
    "repeat/lacks": "{page} ({pages:of page}) lacks {missing:of statement}: {listed}",
    "repeat/method": (
        "{blocks:of block}, each with every page once, on {server} as it is, after one that is not counted. Gaps between round "
        "trips are those of the recording. Statements are those given, as text: what the application prepared is not prepared here."
    ),
    "repeat/read-only": "Sessions were read only.",
    # Messages while a recording is made.
    "say/warm-up/url": "pages to warm up",
    "say/warm-up/command": "a run to warm up",
    "say/block": "block {number} of {count}",
    "say/block/of": "{title}, block {number} of {count}",
    "say/block/left-out": "block {number} is left out: {reason}",
    "say/costs": "round trip costs, {seconds:.0f} s a block or more",
    "say/recording": "recording",
    "say/recording/http": "recording; requests to http://{address}/ are pages",
    "say/recording/packets": "recording packets on {interface}",
    "say/left-processes": "the application left processes behind; the tap goes on for them and ends with them",
    "say/waiting": "waiting until other programs are quiet: {program}",
    "say/calibrating": "the recording is complete; measuring what the tap costs takes about {seconds:.0f} s",
    "say/not-calibrated": "what the tap costs was not measured: interrupted",
    "say/ends-there": "{reason}; the recording ends there",
    "say/failed-pages": "answered with a server's error (5xx), so their times are those of a failure: {pages}",
    "say/failed-pages/each": "{count} of {total} pages {page}",
    "say/name-lost": "the name {name} was replaced by the tap's address, and its lookup failed just now: {reason}",
    "say/name": (
        "the recording leaves out the lookup of {name}, which takes {lookup} here{dead}; an application pays it at each connect"
    ),
    "say/name/dead": ", and the attempt at its first address, {address}, which took {took}",
    "say/restarting": "restarting {unit}",
    "say/drop-in-gone": "the drop-in is gone; until its next restart {unit} goes through the tap, unrecorded",
    "say/unmarked-php": (
        "pages of --php: no script marked one (PHP's own server prepends to no router script: use --http HOST:PORT there)"
    ),
    "say/unmarked-http": "pages of --http: no HTTP/1 request came through the tap",
    # Errors: what was tried and what came back.
    "error/no-url": "{url!r} is not an http URL",
    "error/no-url/reason": "{url!r} is not an http URL: {reason}",
    "error/unanswered": "{url} was not answered: {reason}",
    "error/unanswered/in-time": "{url} was not answered within {seconds:.0f} s: {reason}",
    "error/status": "{url} answered {status} {reason}",
    "error/no-connect": "the tap could not connect to the server for the application: {reason}",
    "error/no-round-trip": "the command (exit code {code}) made no round trip through the tap",
    "error/nothing-recorded": "nothing was recorded: {reason}",
    "error/listen-too": "{advice} A service that runs already: --listen, and configure it to connect there.",
    "error/no-unit": "{unit!r} is no name of a unit",
    "error/drop-in-exists": "{path} exists: {unit} is being recorded, or its recorder and its switch were killed",
    "error/drop-in-unwritten": "{path} cannot be written: {reason}",
    "error/no-process": "{unit} has no process after its restart",
    "error/systemctl-slow": "systemctl {arguments} did not end",
    "error/systemctl": "systemctl {arguments}: {reason}",
    "error/no-repeat": "no page can be repeated: {reasons}",
    "error/may-change": "statements may change data: {statements}",
    "error/no-packet": "no round trip to port {port} was seen{kinds}",
    "error/no-packets": ": there were no packets",
    "error/packet-kinds": ": of {packets:of packet}, {kinds}",
    "error/no-transport": "the recording does not say how the application reached its server ({transport!r})",
    "error/other-protocol": (
        "a program on the path {path} reads the protocol of {protocols}, and the protocol of the recording is {protocol}"
    ),
    "error/unspoken-protocol": (
        "a program on the path {path} reads the protocol of {protocol}, which the server of predictions and replays does not speak"
    ),
    "error/no-usable-page": "no page of the recording is usable ({reasons})",
    "error/no-whole-page": "the recording is not complete ({reason}), and has no whole page",
    "error/link": "the link could not be had as requested in {attempts} attempts: {reason}",
    "error/link/others": "Stop other programs, such as {program}, and try again.",
    "error/tcpdump": "tcpdump did not begin: {reason}",
}


def phrase(name: str, /, **figures: Any) -> str:
    """The text of this name with its figures."""
    return fill(TEXTS[name], **figures)


def certainty(parts: Iterable[str], doubts: Iterable[str]) -> str:
    """How sure an answer is, in one line: what it rests on, and what casts doubt on it."""
    listed = join(list(doubts))
    return join_clauses([*parts, *([phrase("doubtful", doubts=listed)] if listed else [])])


def format_ms(value: float) -> str:
    """Format milliseconds with three digits."""
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"


def interval(estimate: Estimate) -> str:
    """The interval of a time in ms, for `certainty`."""
    if estimate.low is None or estimate.high is None:
        return phrase("no-interval", needed=MIN_BLOCKS)
    return phrase("interval", low=format_ms(estimate.low), high=f"{format_ms(estimate.high)} ms")


def rounded_count(value: float) -> float:
    """A mean number with one decimal, an int if that decimal is 0; below 0.05 with one significant digit."""
    rounded = round(value, 1) or float(f"{value:.1g}")
    return int(rounded) if rounded == int(rounded) else rounded


def setting(*parts: str | None, unix_ns: int | None, is_recorded: bool) -> str:
    """What was measured, on what and when, in one line. None and empty parts are unknown. `is_recorded`: the time is that
    of an earlier recording."""
    when = phrase("when", when=format_utc(unix_ns), is_recorded=is_recorded) if unix_ns else None
    return SEPARATOR.join(filter(None, (*parts, when)))


def advise(name: str, /, because: str = "", **figures: Any) -> AdviceBlock:
    """The advice of this name. `because`: its reason, if that has no text of its own."""
    return AdviceBlock(phrase(name, **figures), because or phrase(f"{name}/because", **figures))


def next_step(name: str, /, **figures: Any) -> list[Block]:
    """The command that gets an answer where there is none."""
    return [Heading("How to get an answer"), Text(phrase(name, **figures))]
