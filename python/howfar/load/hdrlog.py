"""All histograms of a load as an HdrHistogram log, format 1.3: one line for each, told apart by its tag. Pure.

Read by HistogramLogReader, HistogramLogAnalyzer and the like. Unit 1 ns; the column of maxima is in ms, as is the custom.
"""

from __future__ import annotations

from howfar.load.figures import Result

FORMAT = "1.3"
NS_PER_MS = 1e6


def hdr_log(result: Result) -> str:
    """The whole file. Times are seconds from its StartTime, the beginning of the measured window."""
    begin_s = result.measuring.unix_time_ns / 1e9
    lines = [
        f"#[Histogram log format version {FORMAT}]",
        f"#[StartTime: {begin_s:.3f} (seconds since epoch), beginning of the measured window]",
        f"#[BaseTime: {begin_s:.3f} (seconds since epoch)]",
        '"StartTimestamp","Interval_Length","Interval_Max","Interval_Compressed_Histogram"',
    ]
    for histogram in result.finished.histograms:
        if histogram.count:
            lines.append(
                f"Tag={histogram.kind},0.000,{result.seconds:.3f},{histogram.max_ns / NS_PER_MS:.3f},{histogram.data}"
            )
    return "\n".join(lines) + "\n"
