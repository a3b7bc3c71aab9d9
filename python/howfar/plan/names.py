"""What a cell and its levels are called: names of arms, and levels as a plan writes them."""

from __future__ import annotations

from howfar.plan.page import NO_PAGE
from howfar.plan.types import Factors
from howfar.units import format_duration_ns, format_rate_bps

Level = str | int | float | bool

LINK_FACTORS = ("rtt_ns", "rate_bps")
MODE_WORDS = {
    "off": "no binary log",
    "none": "no replica",
    "async": "asynchronous",
    "after-sync": "semi-sync AFTER_SYNC",
    "after-commit": "semi-sync AFTER_COMMIT",
}
APPLICATION_WORDS = {"php": "PHP", "engine": "engine"}
_OF_A_PAGE = ("page", "path", "application", "threads")
"""How the name of a page begins."""


def _show(factor: str, level: Level) -> str:
    match factor:
        case "threads":
            return f"{level} thread{'' if level == 1 else 's'}"
        case "rtt_ns":
            return f"RTT {format_duration_ns(float(level))}"
        case "rate_bps":
            return format_rate_bps(float(level))
        case "tls":
            return "plain" if level == "off" else f"TLS {level}".replace("-", " ")
        case "compression":
            return "uncompressed" if level == "off" else str(level)
        case "replication":
            return MODE_WORDS[str(level)]
        case "replica_rtt_ns":
            return f"replica RTT {format_duration_ns(float(level))}"
        case "replica_rate_bps":
            return f"replica link {format_rate_bps(float(level))}"
        case "replicas":
            return f"{level} replica{'' if level == 1 else 's'}"
        case "wait_for":
            return f"wait for {level}"
        case "durability":
            return f"durability {level}"
        case "replica_tls":
            return "replication plain" if level == "off" else "replication TLS"
        case "replica_compression":
            return "replication uncompressed" if level == "off" else f"replication {level}"
        case "fault":
            return "no fault" if level == "none" else str(level)
        case "connect":
            return "connect per transaction" if level == "per-transaction" else "persistent"
        case _:
            return str(level)


def _show_of_page(factor: str, level: Level) -> str:
    match factor:
        case "threads":
            return f"{level} in flight"
        case "application":
            return APPLICATION_WORDS[str(level)]
        case "app_cpu_ns":
            return f"{float(level) / 1e6:g} ms CPU"
        case "connect":
            return "connect per page" if level == "per-transaction" else "persistent"
        case _:
            return _show(factor, level)


def cell_name(factors: dict[str, Level], varied: list[str]) -> str:
    """The path, then the level of every other factor that is varied."""
    if factors.get("page", NO_PAGE) != NO_PAGE:
        order = [*_OF_A_PAGE, *(factor for factor in varied if factor not in _OF_A_PAGE)]
        said = [factor for factor in order if factor in factors and (factor in varied or factor == "path")]
        return ", ".join(_show_of_page(factor, factors[factor]) for factor in said)
    said = ["path", *(factor for factor in varied if factor != "path")]
    words = ", ".join(_show(factor, factors[factor]) for factor in said if factor in factors)
    return words.removeprefix(f"{factors['path']}, ") if "path" not in varied and "replication" in varied else words


def in_toml(factor: str) -> str:
    return Factors.model_fields[factor].alias or factor


def shown(factor: str, level: Level) -> str:
    if factor == "app_cpu_ns":
        return format_duration_ns(float(level))
    if factor in (*LINK_FACTORS, "replica_rtt_ns", "replica_rate_bps"):
        return _show(factor, level).removeprefix("replica ").removeprefix("link ").removeprefix("RTT ")
    return str(level)


def written(factor: str, level: Level) -> str:
    """As a plan has it: `rate = '1gbit'`, `threads = 16`."""
    text = shown(factor, level)
    return f"{in_toml(factor)} = {text if factor in ('threads', 'replicas', 'wait_for') else repr(text)}"
