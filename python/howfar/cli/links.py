"""`howfar links`: the links that `--link` can name, with the source of their figures, and which ways to make one work here."""

from __future__ import annotations

import json
import sys
from typing import Any

import click

from howfar.cli.screen import width
from howfar.errors import HowfarError, SandboxForbidden
from howfar.lab import sandbox
from howfar.lab.link import WAYS, LinkAsked
from howfar.lab.link.named import NamedLink, named_links
from howfar.lab.link.present import Presence, try_all
from howfar.lab.link.settings import loss_share
from howfar.units import format_duration_ns, format_rate_bps, format_share

_NONE = "-"


@click.command()
@click.option("--json", "as_json", is_flag=True, help="All of it as JSON.")
def links(as_json: bool) -> None:
    """List the links by name, and which back-ends work on this machine.

    `stated` is what a link's source says, `ours` what was rounded or chosen. Each back-end is really tried, in namespaces of its own.
    """
    forbidden: HowfarError | None = None
    if not sandbox.inside():
        try:
            sys.exit(sandbox.run_inside())
        except SandboxForbidden as error:
            forbidden = error
    found = () if forbidden else try_all()
    if as_json:
        click.echo(json.dumps(_facts(found, forbidden), indent=2))
        return
    rows: list[tuple[str, ...]] = [("--link", "to server", "to client", "RTT", "jitter", "loss", "")]
    rows += [_row(link) for link in named_links().values()]
    _table(rows)
    for link in named_links().values():
        click.echo("")
        _paragraph(f"{link.name}: ", f"{link.source}. Stated: {link.stated} Ours: {link.ours}")
    click.echo("\nBack-ends here (`--link-backend`):")
    for one in found:
        state = "works" if one.works else "does not work"
        notes = f" ({'; '.join(one.notes)})" if one.notes else ""
        _paragraph(f"  {one.name:<7} ", f"{state}: {one.about}{notes}")
    if forbidden is not None:
        _paragraph("  ", f"none: {forbidden.message}. {forbidden.advice}")


def _row(link: NamedLink) -> tuple[str, ...]:
    asked = link.asked
    rates = [asked.mean_rate_bps(name) for name in WAYS]
    return (
        link.name,
        *(_NONE if rate is None else format_rate_bps(rate) for rate in rates),
        format_duration_ns(asked.rtt_ns),
        link.said.get("jitter", _NONE).rpartition(":")[2],
        _loss(asked),
        link.about,
    )


def _loss(asked: LinkAsked) -> str:
    share = max(loss_share(asked.way(name).loss) for name in WAYS)
    return format_share(share) if share else _NONE


def _table(rows: list[tuple[str, ...]]) -> None:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for row in rows:
        click.echo("  ".join(f"{word:<{size}}" for word, size in zip(row, widths, strict=True)).rstrip())


def _paragraph(head: str, text: str) -> None:
    indent = " " * (len(head) if head.startswith(" ") else 2)
    click.echo(click.wrap_text(head + text, width=width(), subsequent_indent=indent))


def _facts(found: tuple[Presence, ...], forbidden: HowfarError | None) -> dict[str, Any]:
    return {
        "links": [
            {
                "name": link.name,
                "about": link.about,
                "rate_to_server_bps": link.asked.mean_rate_bps("to_server"),
                "rate_to_client_bps": link.asked.mean_rate_bps("to_client"),
                "rtt_ns": link.asked.rtt_ns,
                "queue_to_server_bytes": link.asked.queue_bytes("to_server"),
                "queue_to_client_bytes": link.asked.queue_bytes("to_client"),
                "options": link.said,
                "source": link.source,
                "stated": link.stated,
                "ours": link.ours,
            }
            for link in named_links().values()
        ],
        "backends": [
            {"name": one.name, "works": one.works, "about": one.about, "notes": list(one.notes)} for one in found
        ],
        "sandbox": None if forbidden is None else forbidden.message,
    }
