"""The report of paths with programs on them: the cost of each, then the response times as for any plan with rates."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from howfar.analysis.summary import Findings, RunEvidence, Summary
from howfar.experiments.answer import floor_clause
from howfar.experiments.experiment import Experiment, Keys
from howfar.experiments.hops.analysis import HopCost, HopCosts, hop_costs, verdict
from howfar.experiments.hops.elsewhere import HopElsewhere
from howfar.experiments.hops.poolers import PoolerPays, PoolerRatio
from howfar.experiments.latency.analysis import Latency
from howfar.experiments.latency.report import charts, main_table, with_limits
from howfar.report import figures
from howfar.report.document import Block, Cell, Column, Details, Document, Fields, Table, table_of
from howfar.report.frame import cell_table, confirmations, frame, trials
from howfar.stats.estimate import Part
from howfar.stats.intervals import excludes_one
from howfar.stats.resample import within
from howfar.stats.trials import ONE


class Hops(Experiment):
    name = "hops"
    findings: ClassVar[Keys] = {"hops": HopCosts}

    def analyse(self, evidence: RunEvidence) -> Mapping[str, Part | None]:
        return {"hops": hop_costs(evidence)}

    def verdict(self, evidence: RunEvidence, findings: Findings) -> str:
        found = findings["hops"]
        if not isinstance(found, HopCosts):
            return ""
        against = f"{verdict(found, ONE[evidence.table.unit], with_limits)}{floor_clause(evidence)}."
        return " ".join([*map(pays, found.poolers), against])

    def document(self, summary: Summary) -> Document:
        found, latency = summary.the(HopCosts), summary.found(Latency)
        shown: tuple[Block, ...] = (*([poolers(found)] if found.poolers else []), costs(found, ONE[summary.asked]))
        below: tuple[Block, ...] = (Details("All cells", (cell_table(summary, main=False),)),)
        if latency is not None:
            shown, below = (*shown, main_table(latency)), (*charts(latency), *below)
        if found.elsewhere:
            shown = (*shown, elsewhere(found))
        return frame(summary, shown, below=(*below, *trials(summary), *confirmations(summary)))


def pays(pooler: PoolerPays) -> str:
    who = f"{pooler.path}, with clients that {_CLIENTS[pooler.connect]},"
    span = f"{pooler.ratios[0].threads} to {pooler.ratios[-1].threads} clients"
    if pooler.pays_from is not None:
        return f"{who} pays from {within(pooler.pays_from, pooler.pays_from_interval, figures.number)} clients."
    if pooler.always == "not told apart":
        return f"The number of clients from which {pooler.path} pays, if clients {_CLIENTS[pooler.connect]}, is not resolved ({span})."
    return f"{who} {pooler.always} throughput at {span}." if pooler.always == "costs" else f"{who} pays at {span}."


_KEPT = {"persistent": "connected", "per-transaction": "connect each time"}
_CLIENTS = {"persistent": "keep their connections", "per-transaction": "connect for each transaction"}


def poolers(found: HopCosts) -> Table:
    numbers = sorted({one.threads for pooler in found.poolers for one in pooler.ratios})
    columns = (
        Column("path", left=True),
        Column("clients", left=True),
        Column("pays from", "clients"),
        *(Column(f"{number} clients", f"of {found.baseline}'s; connections") for number in numbers),
    )
    rows = []
    for pooler in found.poolers:
        at = {one.threads: one for one in pooler.ratios}
        found_from = (
            None if pooler.pays_from is None else within(pooler.pays_from, pooler.pays_from_interval, figures.number)
        )
        cells = [Cell("" if number not in at else _ratio(at[number])) for number in numbers]
        rows.append((Cell(pooler.path), Cell(_KEPT[pooler.connect]), Cell(found_from or f"({pooler.always})"), *cells))
    note = (
        f"Throughput over {found.baseline}'s with as many clients, within blocks, and the connections to the server. A pooler pays "
        "from where the ratio rises through 1, on straight lines between the logarithms."
    )
    return Table("From how many clients a pooler pays", columns, tuple(rows), (note,), main=True, stack=True)


def _ratio(one: PoolerRatio) -> str:
    return with_limits(one.ratio) + ("" if one.to_server is None else f"; {one.to_server}")


def costs(found: HopCosts, unit: str) -> Table:
    at = "" if found.per_s is None else f"at {found.per_s:,.0f}/s"
    clients = found.clients or figures.UNKNOWN
    fields: Fields[HopCost] = {
        "path": lambda hop: hop.path,
        Column("programs", left=True): lambda hop: ", ".join(hop.programs),
        "connections\nclients / server": lambda hop: f"{clients} / {hop.to_server or figures.UNKNOWN}",
        f"throughput\nof {found.baseline}'s": _throughput,
        f"added p50 µs\n{at}": lambda hop: with_limits(hop.added_p50_us),
        f"added p99 µs\n{at}": lambda hop: with_limits(hop.added_p99_us),
        f"hop CPU µs\nper {unit}": lambda hop: with_limits(hop.cpu_us_per_query),
        f"a connect µs\n{found.baseline}: {with_limits(found.connect_us)}": lambda hop: with_limits(hop.connect_us),
    }
    note = (
        f"Against {found.baseline}, within blocks, with 95 % intervals (below four blocks their own values instead). *: a difference "
        "from the baseline's throughput that is resolved. Throughput and CPU time: in a closed loop. CPU time is that "
        "of all programs of the path; on the same CPUs it is taken from the client or the server. Per connect: the extra time of a "
        "transaction that opens its own connection."
    )
    return table_of("", found.hops, fields, (note,), main=True, stack=True)


def _throughput(hop: HopCost) -> str:
    resolved = " *" if hop.resolution and hop.resolution.is_difference else ""
    return f"{with_limits(hop.throughput_ratio)}{resolved}"


def elsewhere(found: HopCosts) -> Table:
    fields: Fields[HopElsewhere] = {
        "path": lambda one: one.path,
        Column("over", left=True): lambda one: one.over,
        Column("clients", left=True): lambda one: _KEPT[one.connect],
        "published": lambda one: figures.number(one.theirs),
        "here\n[95 % interval]": lambda one: with_limits(one.ours),
        Column("source", left=True): lambda one: one.source,
    }
    setups = dict.fromkeys(f"{one.source}: {one.setup}." for one in found.elsewhere)
    opposite = [
        f"{one.path}, clients {_KEPT[one.connect]}: the published ratio and ours lie on opposite sides of 1. The set-ups differ, and "
        "this run does not tell which difference is the cause."
        for one in found.elsewhere
        if excludes_one(one.ours) and (one.ours.value > 1) != (one.theirs > 1)
    ]
    note = "Throughput over that of the other path. Published: not our measurement, single runs on other machines, links and versions."
    notes = (note, *setups, *opposite)
    return table_of("Published elsewhere", found.elsewhere, fields, notes, main=True, stack=True)
