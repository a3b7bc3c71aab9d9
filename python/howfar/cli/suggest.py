"""Suggestions for a command line that was refused: similar names, and equivalents of other programs' words.

`explain` is called once, where errors are shown, and so applies to all commands. A suggestion names only options that the command has.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import PurePath

import click

from howfar.errors import HowfarError, did_you_mean, nearest
from howfar.file_kinds import KINDS

TARGET_USAGE = "`howfar TARGET`, for example `howfar mysql://user@host/db` or `howfar HOST:3306`"
_RUN_NAME = "`howfar run NAME`; `howfar plans` lists the names"

COMMANDS: dict[str, str] = {
    **dict.fromkeys(
        ("ping", "distance", "connect", "dsn", "test", "check", "probe", "measure", "latency", "rtt", "url"),
        TARGET_USAGE,
    ),
    **dict.fromkeys(("show", "html", "open", "view", "print", "csv", "json", "markdown", "md"), "`howfar report FILE`"),
    **dict.fromkeys(("watch", "monitor", "live", "top"), "`howfar --watch TARGET`"),
    **dict.fromkeys(("start", "execute", "exec", "experiment", "quick", "full", "all"), _RUN_NAME),
    **dict.fromkeys(("list", "ls"), "`howfar plans`, `howfar links` or `howfar servers`"),
    **dict.fromkeys(("install", "get"), "`howfar servers get NAME`"),
    **dict.fromkeys(("continue", "extend"), "`howfar resume FILE`"),
    **dict.fromkeys(("diff", "vs"), "`howfar compare BEFORE AFTER`"),
    **dict.fromkeys(("trace", "profile", "capture", "analyze", "analyse", "tap"), "`howfar record -- YOUR COMMAND`"),
    **dict.fromkeys(("count", "roundtrips", "round-trips", "queries"), "`howfar slope -- YOUR COMMAND`"),
    **dict.fromkeys(("simulate", "forecast", "estimate", "what-if"), "`howfar predict RECORDING --rtt TIME`"),
    **dict.fromkeys(("repeat", "play"), "`howfar replay RECORDING`"),
    **dict.fromkeys(("status", "diagnose", "examine", "scan"), "`howfar doctor`"),
    **dict.fromkeys(
        ("netem", "emulate", "sandbox", "shell", "proxy", "toxiproxy"), "`howfar lab --rtt TIME -- COMMAND`"
    ),
    **dict.fromkeys(("sysbench", "pgbench", "mysqlslap", "benchmark", "stress"), "`howfar load TARGET oltp_read_only`"),
    **dict.fromkeys(("cluster-up", "join", "up"), "`howfar hosts up`"),
    **dict.fromkeys(("down", "leave"), "`howfar hosts down`"),
    **dict.fromkeys(("man", "manual", "usage", "commands", "options"), "`howfar help`"),
    "latency": f"{TARGET_USAGE}. To run the plan of that name: `howfar run latency`",
    "plan": "`howfar plans NAME` to see a plan, `howfar run NAME` to run it",
}
"""Words that are not commands -> the equivalent command."""

_REPORT_FORMATS = "`howfar report FILE` with `--json`, `--csv`, `--md` or `--html`, when the run has ended"
_OUT_EQUIVALENTS = {**dict.fromkeys(("-o", "--output", "--file", "--save"), "--out")}
_TIME_EQUIVALENTS = {
    **dict.fromkeys(("-t", "-d", "-T", "--duration", "--time", "--runtime", "--timeout", "--max-time"), "--time-budget")
}
_RTT_AND_RATE_EQUIVALENTS = {
    **dict.fromkeys(("--latency", "--delay", "--ping", "--distance"), "--rtt"),
    **dict.fromkeys(("--bandwidth", "--speed", "--throughput"), "--rate"),
}
_LINK_EQUIVALENTS = {
    **_RTT_AND_RATE_EQUIVALENTS,
    **dict.fromkeys(("--network", "--profile"), "--link"),
    **dict.fromkeys(("--packet-loss", "--drop"), "--loss"),
}
_PASSWORD_EQUIVALENTS = {
    **dict.fromkeys(("-p", "--password", "--passwd", "--pass", "-W"), "--password-file or --ask-password")
}
TARGET_FORM = "the target itself: mysql://USER@HOST:PORT/DATABASE"
_TARGET_EQUIVALENTS = {
    **dict.fromkeys(("-n", "-c", "--number", "--requests", "--samples", "--repeat", "--times"), "--count"),
    **dict.fromkeys(("-i", "--every", "--rate", "--wait"), "--interval"),
    **dict.fromkeys(("-t", "-w", "-f", "--follow", "--live", "--monitor", "--duration", "--time"), "--watch"),
    **dict.fromkeys(("--threshold", "--max", "--limit", "--assert"), "--fail-if, such as --fail-if 'p95>2ms'"),
    **dict.fromkeys(("-P", "-u", "-U", "--host", "--port", "--db", "--database", "--dbname"), TARGET_FORM),
    **dict.fromkeys(("--dsn", "--url", "--uri", "--target"), TARGET_FORM),
    **dict.fromkeys(("-V", "-v"), "--version"),
    **dict.fromkeys(("--format", "--output-format", "-o", "--output"), "--json, --csv or --prometheus FILE"),
    **_PASSWORD_EQUIVALENTS,
}
_RUN_EQUIVALENTS = {
    **_TIME_EQUIVALENTS,
    **_OUT_EQUIVALENTS,
    **_RTT_AND_RATE_EQUIVALENTS,
    **dict.fromkeys(("--json", "--csv", "--md", "--markdown", "--format"), _REPORT_FORMATS),
    **dict.fromkeys(("-c", "-j", "--connections", "--concurrency", "--thread-count"), "--threads"),
    **dict.fromkeys(("--database", "--db", "--engine", "--kind"), "--server"),
    **dict.fromkeys(("--long", "--complete", "--slow"), "--full"),
    **dict.fromkeys(("--fast", "--short", "--brief"), "no option: short is the default, and --full takes hours"),
    **dict.fromkeys(
        ("--host", "--url", "--uri"), "`howfar TARGET` or `howfar load TARGET oltp_read_only`, for your own server"
    ),
    **dict.fromkeys(("--hosts", "--remote", "--ssh"), "--on"),
    **dict.fromkeys(("--plan", "--workload", "--test"), "the name alone: `howfar run NAME`"),
    **dict.fromkeys(("--tls", "--ssl"), "`howfar run encryption`"),
    **dict.fromkeys(("--compress", "--compression"), "`howfar run compression`"),
    **dict.fromkeys(("--paths",), "--path"),
    **dict.fromkeys(("--blocks", "--runs", "--repeat", "--precision", "--accuracy"), "--time-budget or --target"),
    **dict.fromkeys(("-v", "--verbose"), "--details"),
}
_FORM_EQUIVALENTS = {
    **dict.fromkeys(("-o", "--output", "--out", "--file", "--save", "--page", "--pdf", "--open"), "--html=FILE"),
    **dict.fromkeys(("--format", "-f", "--as", "--type"), "--json, --csv, --md or --html"),
    **dict.fromkeys(("--markdown",), "--md"),
}
_REPORT_EQUIVALENTS = {
    **_FORM_EQUIVALENTS,
    **dict.fromkeys(("-v", "--verbose", "--full", "--long", "--all"), "--details"),
}
_PREDICTION_EQUIVALENTS = {
    **_LINK_EQUIVALENTS,
    **dict.fromkeys(("-n", "--runs", "--repeat"), "--blocks"),
    **dict.fromkeys(("-o", "--out", "--output"), "--json, and > FILE"),
}
OPTIONS: dict[str, Mapping[str, str]] = {
    "": _TARGET_EQUIVALENTS,
    "run": _RUN_EQUIVALENTS,
    "resume": {
        **_TIME_EQUIVALENTS,
        **dict.fromkeys(("--full", "--quick"), "`howfar run NAME` for a new run: this one keeps its plan"),
        "--precision": "--target",
    },
    "confirm": {**dict.fromkeys(("--time-budget", "--duration"), "`howfar resume FILE --confirm --time-budget TIME`")},
    "report": _REPORT_EQUIVALENTS,
    "compare": _FORM_EQUIVALENTS,
    "plans": {**dict.fromkeys(("--full", "--quick", "--verbose", "-v", "--long"), "`howfar plans NAME`")},
    "doctor": {
        **dict.fromkeys(
            ("--host", "--port", "--dsn", "--server", "--socket", "-P"), "the address alone: `howfar doctor TARGET`"
        ),
        **dict.fromkeys(("--duration", "--time", "-t"), "--watch"),
        **dict.fromkeys(("--fail", "--exit-code"), "--strict"),
        "-u": "--user",
        **_PASSWORD_EQUIVALENTS,
    },
    "slope": {
        **_TIME_EQUIVALENTS,
        **dict.fromkeys(("-o", "--out", "--output"), "--json, and > FILE"),
        **dict.fromkeys(("-n", "--runs", "--repeat"), "--blocks"),
        **dict.fromkeys(("--delay", "--latency", "--rtt"), "--delays"),
        **dict.fromkeys(("--host", "--dsn", "--target", "--database"), "--server"),
    },
    "record": {
        **dict.fromkeys(("-t", "--duration", "--time-budget"), "--time"),
        **_OUT_EQUIVALENTS,
        **dict.fromkeys(("--host", "--dsn", "--target", "--database", "--port"), "--server"),
        **dict.fromkeys(("-i", "--iface", "--device"), "--interface"),
        **dict.fromkeys(("-r", "--read"), "--pcap"),
        **dict.fromkeys(("--url", "--web"), "--http"),
    },
    "predict": _PREDICTION_EQUIVALENTS,
    "replay": _PREDICTION_EQUIVALENTS,
    "lab": {
        **_LINK_EQUIVALENTS,
        "--duration": "`timeout` before the command",
        **dict.fromkeys(("--out", "--json"), "--receipt"),
        **dict.fromkeys(("--database", "--db"), "--server"),
        "--dsn": "--server, for a server that the laboratory starts",
    },
    "servers": {"--install": "`howfar servers get NAME`"},
}
"""By command (empty: `howfar TARGET`): options of other programs or other commands -> the equivalent that the command accepts."""

SUBCOMMANDS: dict[str, Mapping[str, str]] = {
    "servers": {
        **dict.fromkeys(("install", "add", "fetch", "download"), "`howfar servers get NAME`"),
        **dict.fromkeys(
            ("remove", "uninstall", "delete", "rm"), "`rm -r` on its directory, which `howfar servers` shows"
        ),
        **dict.fromkeys(("show", "ls"), "`howfar servers list`"),
    },
    "hosts": {
        **dict.fromkeys(("start", "join", "add", "connect"), "`howfar hosts up`"),
        **dict.fromkeys(("stop", "leave", "release", "remove"), "`howfar hosts down`"),
        **dict.fromkeys(("list", "ls", "status", "test", "ping"), "`howfar hosts show`"),
        **dict.fromkeys(("run",), "`howfar run NAME --on FILE`"),
    },
    "bench": {
        **dict.fromkeys(
            ("load", "sysbench", "server", "database"), "`howfar load TARGET oltp_read_only`, for your own server"
        ),
        **dict.fromkeys(("run", "self", "all"), "`howfar bench engine` or `howfar bench link`"),
    },
}
"""By group: words that are not its subcommands -> the equivalent command."""


class UnknownCommand(click.UsageError):
    """A word where a command was expected."""

    def __init__(self, word: str, known: Sequence[str], context: click.Context) -> None:
        super().__init__(f"no such command: {word}", context)
        self.word, self.known = word, known


class Group(click.Group):
    """A group whose help shows each subcommand's whole first sentence, and whose unknown words get a suggestion."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if self.get_command(ctx, args[0]) is None and not ctx.resilient_parsing:
            raise UnknownCommand(args[0], self.list_commands(ctx), ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            commands = ((name, self.get_command(ctx, name)) for name in self.list_commands(ctx))
            formatter.write_dl([(name, first_sentence(command)) for name, command in commands if command is not None])


def first_sentence(command: click.Command) -> str:
    return command.get_short_help_str(limit=1000)


def explain(error: HowfarError | click.ClickException, words: Sequence[str]) -> tuple[str, str]:
    """Message and advice for a refused command line, whose words are given."""
    if (split := _split_quantity(words)) is not None:
        option, number, unit = split
        return f"{option} {number} {unit}: a number and its unit are one word", f"Write {option} {number}{unit}."
    if isinstance(error, HowfarError):
        return error.message, error.advice
    context = error.ctx if isinstance(error, click.UsageError) else None
    path = context.command_path.strip() if context else "howfar"
    suggestions = "".join(_suggestions(error, context, path.partition(" ")[2], words)) if context else ""
    # Click's own suggestions include names that differ much from what was typed.
    message = error.message if isinstance(error, click.NoSuchOption) else error.format_message()
    option_hint = "" if isinstance(error, UnknownCommand) else f"`{path} --help` lists the options."
    return message[:1].lower() + message[1:].rstrip("."), f"{suggestions}{option_hint}".strip()


def _suggestions(error: click.ClickException, context: click.Context, name: str, words: Sequence[str]) -> Iterator[str]:
    if isinstance(error, UnknownCommand):
        yield _suggest_for_command(error.word, error.known, name)
    elif isinstance(error, click.NoSuchOption):
        yield _suggest_for_option(error.option_name, context, name)
    elif (
        isinstance(error, click.BadParameter) and error.param is not None and isinstance(error.param.type, click.Choice)
    ):
        yield from (did_you_mean(word, error.param.type.choices) for word in words if repr(word) in error.message)
    elif isinstance(error, click.BadParameter) and error.param is not None:
        yield _suggest_for_list(error.param, words)
    elif unparsed := _unparsed_words(context, name, words):
        yield _suggest_for_words(unparsed, context, name)


def _suggest_for_command(word: str, known: Sequence[str], group: str) -> str:
    equivalents = SUBCOMMANDS.get(group, {}) if group else COMMANDS
    if word in equivalents:
        return f"Use {equivalents[word]}.\n"
    if group:
        similar = nearest(word, known)
        return f"Did you mean `howfar {group} {similar}`?\n" if similar else f"Known: {', '.join(known)}.\n"
    from howfar.plan.load import shipped_plans  # pydantic, imported only after a mistake

    plan = nearest(word, shipped_plans())
    if word == plan:
        return f"It is a plan: `howfar run {word}` runs it.\n"
    if word in _SERVER_WORDS:
        return f"For your server: {TARGET_USAGE}. For one in the laboratory: `howfar run paths --server {_SERVER_WORDS[word]}`.\n"
    host_suggestion = (
        f"As a host: `howfar {word}:3306` (MySQL), :5432 (PostgreSQL), :6379 (Redis) or :11211 (Memcached).\n"
    )
    if (similar := nearest(word, [*known, *equivalents])) is not None:
        command = f"Use {equivalents[similar]}.\n" if similar in equivalents else f"Did you mean `howfar {similar}`?\n"
        return command + host_suggestion if _HOST_HINTS.search(word) else command
    if plan is not None and not _HOST_HINTS.search(word):
        return f"Did you mean `howfar run {plan}`?\n"
    return f"For a database: {TARGET_USAGE}.\n{host_suggestion}`howfar help` lists the commands.\n"


_HOST_HINTS = re.compile(r"[0-9]|db|sql|pg|host|srv|redis|cache|prod|stag|primary|replica")
"""Parts that host names often contain."""


_SERVER_WORDS = {
    **{name: name for name in ("mariadb", "mysql", "postgresql", "redis", "valkey", "memcached")},
    **dict.fromkeys(("postgres", "pgsql", "pg", "psql"), "postgresql"),
}


def _option_names(context: click.Context) -> list[str]:
    return [
        name
        for param in context.command.get_params(context)
        if isinstance(param, click.Option) and not param.hidden
        for name in (*param.opts, *param.secondary_opts)
    ]


def is_accepted(suggestion: str, options: Sequence[str]) -> bool:
    """Whether all options that a suggestion names, outside of whole commands, are among the command's."""
    own_text = re.sub(r"`[^`]*`|'[^']*'", "", suggestion)
    return all(option in options or option == "--version" for option in re.findall(r"--[a-z][a-z-]*", own_text))


def _suggest_for_option(option: str, context: click.Context, name: str) -> str:
    options = _option_names(context)
    equivalent = OPTIONS.get(name, {}).get(option)
    if equivalent is not None and is_accepted(equivalent, options):
        return f"Use {equivalent}.\n"
    return did_you_mean(option, [known for known in options if known.startswith("--")]).replace("? ", "?\n")


def _suggest_for_list(param: click.Parameter, words: Sequence[str]) -> str:
    """Advice if several numbers were given where only one is expected; otherwise empty."""
    has_number_list = any(re.fullmatch(r"\d+(,\d+)+", word.rpartition("=")[2]) for word in words)
    if not has_number_list or not isinstance(param.type, click.types.IntParamType):
        return ""
    return f"{param.opts[0]} takes one number. For several, write `{param.name} = [1, 4]` below [factors] in a plan of your own.\n"


def _unparsed_words(context: click.Context, name: str, words: Sequence[str]) -> list[str]:
    """The words that the command does not accept."""
    own_words = list(words)[len(name.split()) :]
    try:
        return list(context.command.make_parser(context).parse_args(own_words)[1])
    except click.UsageError:
        return []


def _suggest_for_words(unparsed: Sequence[str], context: click.Context, name: str) -> str:
    word, options = unparsed[0], _option_names(context)
    if word in _SERVER_WORDS and "--server" in options:
        return f"Use --server {_SERVER_WORDS[word]}.\n"
    if re.fullmatch(r"[0-9.]+(ns|us|µs|ms)", word) and "--rtt" in options:
        return f"Use --rtt {word}.\n"
    if re.fullmatch(r"[0-9.]+[kmgKMG]?(bit|bps)(/s)?", word) and "--rate" in options:
        return f"Use --rate {word}.\n"
    if re.fullmatch(r"[0-9.]+(s|m|min|h)", word) and "--time-budget" in options:
        return f"Use --time-budget {word}.\n"
    if word in ("json", "csv", "md", "html") and f"--{word}" in options:
        return f"Use --{word}.\n"
    if name == "run":
        return "One plan a run. The other words need an option before them, such as --server or --path.\n"
    if name == "report":
        return "One run a report; `howfar compare BEFORE AFTER` compares two.\n"
    if not name and re.fullmatch(r"[a-z][a-z-]*", word):
        return f"The command comes first: `howfar {word} …`, if that is one; `howfar help` lists them.\n"
    return ""


_UNITS = r"(ns|us|µs|ms|s|m|min|h|bit|kbit|mbit|gbit|[kmg]bps|[kmgt]?i?b|%)"


def _split_quantity(words: Sequence[str]) -> tuple[str, str, str] | None:
    """An option, a number and its unit that were typed as three words (`--rtt 5 ms`) or two (`--rtt=5 ms`); None if there are none."""
    own_words = list(words[: words.index("--")] if "--" in words else words)
    for word, unit in pairwise(own_words):
        if not re.fullmatch(_UNITS, unit, re.IGNORECASE):
            continue
        previous = own_words[own_words.index(word) - 1] if own_words.index(word) else ""
        option, number = word.split("=", 1) if word.startswith("--") and "=" in word else (previous, word)
        if option.startswith("-") and re.fullmatch(r"[0-9]+(\.[0-9]+)?", number):
            return option, number, unit
    return None


_COMMAND_BY_SUFFIX = {".toml": "`howfar run {0}`", **{kind.suffix: kind.reader for kind in KINDS}}


def command_for_file(word: str) -> str | None:
    """The command that takes a file with such a name; None if no command does."""
    command = _COMMAND_BY_SUFFIX.get(PurePath(word).suffix)
    return None if command is None else command.format(word)
