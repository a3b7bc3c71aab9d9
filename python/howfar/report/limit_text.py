"""Limits as text: a letter next to each figure, the legend of letters, and sentences in which equal limits are grouped."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from howfar.analysis.cells import CellSummary
from howfar.analysis.summary import Summary
from howfar.bottleneck.limit import Limit
from howfar.bottleneck.texts import resource_name
from howfar.model.resource import Resource
from howfar.report.grid import Grid, arrange_grid

LOW_CONFIDENCE = "low"
"""The confidence that is shown by a lower-case letter."""

LETTERS: dict[Resource, str] = {
    Resource.CLIENT_CPU: "C",
    Resource.SERVER_CPU: "S",
    Resource.FORWARDER_CPU: "F",
    Resource.INSTRUMENT_CPU: "E",
    Resource.ONE_THREAD: "T",
    Resource.LINK_TO_CLIENT: "L",
    Resource.LINK_TO_SERVER: "U",
    Resource.RECEIVE_WINDOW: "W",
    Resource.SEND_BUFFER: "B",
    Resource.LOSS: "X",
    Resource.COMMIT: "M",
    Resource.ACKNOWLEDGEMENT: "Q",
    Resource.LOCK: "K",
    Resource.SERVER_WAIT: "A",
    Resource.LATENCY: "R",
    Resource.ERRORS: "#",
    Resource.INVALID: "!",
    Resource.NOT_ESTABLISHED: "?",
}
"""Letters of limits: one each, so that a figure and its limit fit into a narrow column."""


def limit_letter(limit: Limit | None, is_answered: bool = True) -> str:
    """Letter of a limit, in lower case if the confidence is low; a space if there is no limit, or no answer: a limit would be one."""
    if limit is None or not is_answered:
        return " "
    letter = LETTERS[limit.resource]
    return letter.lower() if limit.confidence == LOW_CONFIDENCE else letter


def cell_limit_text(cell: CellSummary) -> str:
    """The limit of a cell that has one: `remote: latency (low confidence)`."""
    assert cell.limit is not None, "the cell has a limit"
    known = cell.limit.resource is not Resource.NOT_ESTABLISHED
    low = " (low confidence)" if known and cell.limit.confidence == LOW_CONFIDENCE else ""
    return f"{cell.arm}: {resource_name(cell.limit.resource)}{low}"


def legend(summary: Summary) -> str:
    """Legend of the letters: `Limits: L link to client, S server CPU.` Empty if no cell has one, or without an answer."""
    limits = [] if summary.answer.is_missing else [cell.limit for cell in summary.cells if cell.limit]
    present = [resource for resource in Resource if any(limit.resource is resource for limit in limits)]
    if not present:
        return ""
    has_low = any(limit_letter(limit).islower() for limit in limits)
    low = "; lower case means low confidence" if has_low else ""
    return f"Limits: {', '.join(f'{LETTERS[resource]} {resource_name(resource)}' for resource in present)}{low}."


@dataclass(frozen=True)
class LimitGroup:
    """Neighbouring cells of one column with the same limit. `cells`: their rows and column as text; `limit`: that of the fastest
    cell."""

    cells: str
    limit: Limit


def group_limits(summary: Summary) -> list[LimitGroup]:
    """Groups of cells, column by column. Rows by number of connections are grouped if adjacent, other rows in any position."""
    table = arrange_grid(summary)
    limit_groups = []
    for index, column in enumerate(table.columns):
        runs: list[list[tuple[str, CellSummary]]] = []
        for row, cells in zip(table.rows, table.cells, strict=True):
            cell = cells[index]
            if cell is None or cell.limit is None:
                continue
            open_runs = runs[-1:] if table.row_head == "connections" else runs
            run_with_limit = next((run for run in open_runs if _is_same_resource(run[-1][1].limit, cell.limit)), None)
            if run_with_limit is None:
                runs.append([(row, cell)])
            else:
                run_with_limit.append((row, cell))
        limit_groups += [_make_group(table, column, run) for run in runs]
    return limit_groups


def _is_same_resource(one: Limit | None, other: Limit | None) -> bool:
    return one is not None and other is not None and one.resource is other.resource


def _make_group(table: Grid, column: Sequence[str], run: list[tuple[str, CellSummary]]) -> LimitGroup:
    rows = [row for row, _ in run]
    span = rows[0] if len(rows) == 1 else f"{rows[0]} to {rows[-1]}" if rows[0].isdigit() else ", ".join(rows)
    if len(rows) == len(table.rows) and not rows[0].isdigit():
        span = f"every {table.row_head}"
    plural = "" if rows == ["1"] else "s"
    unit = f" connection{plural}" if table.row_head == "connections" else ""
    fastest = max((cell for _, cell in run), key=lambda cell: cell.tps.value)
    assert fastest.limit is not None, "each cell of a group has a limit"
    return LimitGroup(", ".join([*column, f"{span}{unit}"]), fastest.limit)
