"""`howfar links`: the named links with the source of their figures, and which back-ends work here; the options of a link."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import click

from howfar.cli.completion import complete_links
from howfar.cli.sandbox_entry import run_in_sandbox
from howfar.cli.screen import columns, json_option, read_text, width
from howfar.errors import HowfarError, QuantityError, SandboxForbidden, UsageError
from howfar.lab import sandbox
from howfar.lab.link import DIRECTIONS, LinkSpec
from howfar.lab.link.backends import DEFAULT, NAMES, find_backend
from howfar.lab.link.running import BackendStatus, try_backends
from howfar.lab.link.settings import (
    NamedLink,
    Script,
    apply_setting,
    check_link,
    find_link,
    loss_share,
    named_links,
    parse_rate_trace,
    parse_rtt_trace,
    parse_script,
)
from howfar.lab.network import CONGESTION_CONTROL, TCP_PRESETS, TcpPreset
from howfar.units import format_duration_ns, format_rate_bps, format_share

_NO_VALUE = "-"


@click.command()
@click.argument("name", required=False, shell_complete=complete_links, metavar="[NAME]")
@json_option
def links(name: str | None, as_json: bool) -> None:
    """List the named links and the back-ends that work on this machine, or show the link called NAME.

    `stated` is what a link's source says; `ours` is what howfar rounded or chose. Each back-end is tried in its own namespaces.
    """
    if name is not None:
        link = find_link(name)
        if as_json:
            click.echo(json.dumps(_link_facts(link), indent=2))
        else:
            _show_links((link,))
        return
    forbidden: HowfarError | None = None
    if not sandbox.inside():
        try:
            sys.exit(run_in_sandbox())
        except SandboxForbidden as error:
            forbidden = error
    backends = () if forbidden else try_backends()
    if as_json:
        click.echo(json.dumps(_all_facts(backends, forbidden), indent=2))
        return
    _show_links(tuple(named_links().values()))
    click.echo("\nBack-ends on this machine (`--link-backend`):")
    for backend in backends:
        state = "works" if backend.works else "does not work"
        notes = f" ({'; '.join(backend.notes)})" if backend.notes else ""
        _print_paragraph(f"  {backend.name:<7} ", f"{state}: {backend.about}{notes}")
    if forbidden is not None:
        _print_paragraph("  ", f"none: {forbidden.message}. {forbidden.advice}")


def _show_links(selected: Sequence[NamedLink]) -> None:
    """Show links: a table of their figures, then the source of each."""
    headings: tuple[str, ...] = ("--link", "to server", "to client", "RTT", "jitter", "loss", "")
    for line in columns([headings, *map(_row, selected)]):
        click.echo(line)
    for link in selected:
        click.echo("")
        _print_paragraph(f"{link.name}: ", f"{link.source}. Stated: {link.stated} Ours: {link.ours}")


def _row(link: NamedLink) -> tuple[str, ...]:
    spec = link.spec
    rates = [spec.mean_rate_bps(name) for name in DIRECTIONS]
    return (
        link.name,
        *(_NO_VALUE if rate is None else format_rate_bps(rate) for rate in rates),
        format_duration_ns(spec.rtt_ns),
        link.options.get("jitter", _NO_VALUE).rpartition(":")[2],
        _format_loss(spec),
        link.about,
    )


def _format_loss(spec: LinkSpec) -> str:
    share = max(loss_share(spec.direction(name).loss) for name in DIRECTIONS)
    return format_share(share) if share else _NO_VALUE


def _print_paragraph(label: str, text: str) -> None:
    indent = " " * (len(label) if label.startswith(" ") else 2)
    click.echo(click.wrap_text(label + text, width=width(), subsequent_indent=indent))


def _link_facts(link: NamedLink) -> dict[str, object]:
    return {
        "name": link.name,
        "about": link.about,
        "rate_to_server_bps": link.spec.mean_rate_bps("to_server"),
        "rate_to_client_bps": link.spec.mean_rate_bps("to_client"),
        "rtt_ns": link.spec.rtt_ns,
        "queue_to_server_bytes": link.spec.queue_bytes("to_server"),
        "queue_to_client_bytes": link.spec.queue_bytes("to_client"),
        "options": link.options,
        "source": link.source,
        "stated": link.stated,
        "ours": link.ours,
    }


def _all_facts(backends: tuple[BackendStatus, ...], forbidden: HowfarError | None) -> dict[str, object]:
    return {
        "links": [_link_facts(link) for link in named_links().values()],
        "backends": [
            {"name": backend.name, "works": backend.works, "about": backend.about, "notes": list(backend.notes)}
            for backend in backends
        ],
        "sandbox": None if forbidden is None else forbidden.message,
    }


_RTT, _RATE = "0.2ms", "1gbit"
_MAX_BYTES = 16 * 2**20
_Command = TypeVar("_Command", bound=Callable[..., Any])

_DIRECTION = "Here and below, DIRECTION is to-server or to-client, for one of them only."
_OPTIONS: tuple[tuple[str, str, str], ...] = (
    ("rtt", "DURATION", f"Round trip time of the link.  [default: {_RTT}]"),
    ("delay-to-server", "DURATION", "One-way delay to the server.  [default: half the RTT]"),
    ("rate", "RATE", f"Rate of the link in each direction, or `none` for no limit.  [default: {_RATE}]"),
    ("rate-to-server", "RATE", "Rate towards the server."),
    ("rate-to-client", "RATE", "Rate towards the client."),
    ("mtu", "BYTES", "Largest IP packet.  [default: 1500]"),
    (
        "queue",
        "SIZE",
        f"Size of the bottleneck queue, in bytes or as time at the link's rate. {_DIRECTION}  [default: one RTT, at least 10ms]",
    ),
    ("jitter", "SPEC", "Variation of the delay: 2ms, 2ms:normal or 2ms:pareto[:shape]."),
    ("loss", "SHARE", "Share of segments that are lost, such as 1%."),
    ("loss-burst", "LENGTH", "Mean length of the bursts in which segments are lost."),
    ("duplicate", "SHARE", "Share of segments that arrive twice."),
    ("corrupt", "SHARE", "Share of segments that arrive with one bit flipped."),
    ("reorder", "on|off", "Whether jitter may reorder packets.  [default: off]"),
    (
        "outage",
        "AT:FOR[/EVERY]",
        "When the link is down, such as 5s:1s/30s; time 0 is the start of CMD in `howfar lab`.",
    ),
    ("seed", "NUMBER", "Seed of all random effects.  [default: 0]"),
)
"""Options in the order in which they are applied."""
_PER_DIRECTION = {"queue", "jitter", "loss", "loss-burst", "duplicate", "corrupt", "reorder", "outage"}


@dataclass(frozen=True)
class LinkChoice:
    """The link that the options describe."""

    spec: LinkSpec
    script: Script
    backend: str
    tcp: TcpPreset
    congestion_control: str
    link_name: str | None
    has_options: bool
    """Whether any option of a link was given."""
    wants_only_link: bool
    """Whether an option other than RTT, rate and TCP is given; then the user wants the link, not a database."""


def link_options(command: _Command) -> _Command:
    """Give a command all options of a link; `read_link` takes the values."""
    file = click.Path(exists=True, dir_okay=False, path_type=Path)
    options = [
        click.option(
            "--link",
            "link_name",
            shell_complete=complete_links,
            metavar="NAME",
            help="A named link; `howfar links` lists them.",
        ),
        *(
            click.option(
                f"--{word}",
                multiple=word in _PER_DIRECTION,
                metavar=f"[DIRECTION:]{metavar}" if word in _PER_DIRECTION else metavar,
                help=about,
            )
            for word, metavar, about in _OPTIONS
        ),
        click.option(
            "--rtt-trace",
            type=file,
            help="File of measured round trip times, one per line, that the link's RTT follows.",
        ),
        click.option(
            "--rate-trace",
            type=file,
            help="File with lines such as `10ms 5mbit`, or a mahimahi trace; for both directions.",
        ),
        click.option(
            "--link-script",
            type=file,
            help="Changes during `howfar lab`, in lines such as `5s rtt 50ms` or `10s down 2s`.",
        ),
        click.option(
            "--link-backend",
            type=click.Choice(NAMES),
            help=f"Back-end that emulates the link; none is a bare cable.  [default: {DEFAULT}]",
        ),
        click.option(
            "--tcp",
            type=click.Choice(TCP_PRESETS),
            help=f"Size of TCP's buffers: tuned to the link, or stock, the kernel's default.  [default: {TCP_PRESETS[0]}]",
        ),
        click.option(
            "--congestion-control",
            help=f"Congestion control algorithm of TCP on both hosts.  [default: {CONGESTION_CONTROL}]",
        ),
    ]
    for option in reversed(options):
        command = option(command)
    return command


def read_link(
    *,
    link_name: str | None,
    link_backend: str | None,
    link_script: Path | None,
    rtt_trace: Path | None,
    rate_trace: Path | None,
    tcp: TcpPreset | None,
    congestion_control: str | None,
    **settings: str | tuple[str, ...] | None,
) -> LinkChoice:
    """The link from the values of `link_options`. `settings`: the values of the options in `_OPTIONS`. Raises UsageError."""
    given_options = {word: value for word, _, _ in _OPTIONS if (value := settings[word.replace("-", "_")])}
    backend = link_backend or DEFAULT
    spec = _build_spec(given_options, link_name, backend, rtt_trace, rate_trace)
    script = Script(spec)
    if link_script is not None:
        script = parse_script(read_text(link_script, "--link-script", _MAX_BYTES), spec, str(link_script))
    try:
        check_link(script.all_specs())
    except QuantityError as error:
        raise UsageError(error.message, error.advice) from error
    for later_spec in script.all_specs():
        find_backend(backend, later_spec)
    files = (rtt_trace, rate_trace, link_script)
    wants_only_link = bool(link_name is not None or set(given_options) - {"rtt", "rate"} or any(files) or link_backend)
    return LinkChoice(
        spec=script.initial,
        script=script,
        backend=backend,
        tcp=tcp or TCP_PRESETS[0],
        congestion_control=congestion_control or CONGESTION_CONTROL,
        link_name=link_name,
        has_options=bool(wants_only_link or given_options or tcp or congestion_control),
        wants_only_link=wants_only_link,
    )


def _build_spec(
    given_options: Mapping[str, str | tuple[str, ...]],
    name: str | None,
    backend: str,
    rtt_file: Path | None,
    rate_file: Path | None,
) -> LinkSpec:
    try:
        spec = find_link(name).spec if name is not None else LinkSpec(rtt_ns=0, rate_bps=None)
    except QuantityError as error:
        raise UsageError(f"--link {name}: {error.message}", error.advice) from error
    if name is None and backend != "none":
        spec = apply_setting(apply_setting(spec, "rtt", _RTT), "rate", _RATE)
    trace_jitter = None
    if rtt_file is not None:
        min_rtt_ns, trace_jitter = _parse_file("--rtt-trace", rtt_file, parse_rtt_trace)
        spec = replace(spec, rtt_ns=min_rtt_ns, to_client=replace(spec.to_client, jitter=trace_jitter))
    for word, value in given_options.items():
        texts = value if isinstance(value, tuple) else (value,)
        for text in texts:
            try:
                spec = apply_setting(spec, word, text)
            except QuantityError as error:
                raise UsageError(f"--{word} {text}: {error.message}", error.advice) from error
        directions = [
            text.partition(":")[0] if text.startswith(("to-server:", "to-client:")) else "both" for text in texts
        ]
        if len(set(directions)) < len(directions):
            raise UsageError(f"--{word} is given twice for the same direction: {', '.join(texts)}", "Leave one out.")
    if trace_jitter is not None and spec.to_client.jitter != trace_jitter:
        raise UsageError(
            "--rtt-trace and --jitter both vary the delay to the client", "Leave one out, or use --jitter to-server:…."
        )
    if rate_file is not None:
        rate_options = [f"--{word}" for word in ("rate", "rate-to-server", "rate-to-client") if word in given_options]
        if rate_options:
            raise UsageError(f"--rate-trace and {rate_options[0]} both set the rate", "Leave one out.")
        steps = _parse_file("--rate-trace", rate_file, parse_rate_trace)
        spec = replace(
            spec,
            to_server=replace(spec.to_server, rate_trace=steps),
            to_client=replace(spec.to_client, rate_trace=steps),
        )
    return spec


_Value = TypeVar("_Value")


def _parse_file(option: str, path: Path, parse: Callable[[str], _Value]) -> _Value:
    try:
        return parse(read_text(path, option, _MAX_BYTES))
    except QuantityError as error:
        raise UsageError(f"{option} {path}: {error.message}", error.advice) from error
