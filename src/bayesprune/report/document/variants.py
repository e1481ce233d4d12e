"""The paper's models trained otherwise: gates in another place, networks that shrink."""

import statistics
from collections.abc import Sequence

from bayesprune.experiments.rows import ResultRow
from bayesprune.report.comparison.points import method_name, points_of
from bayesprune.report.document.provenance import seconds_shares
from bayesprune.report.document.sheets import Cell, Sheet, number, sheet, tradeoff_cell, words


def variant_sheet(rows: Sequence[ResultRow], variants: Sequence[ResultRow]) -> Sheet | None:
    """Each variant beside the models of the paper's protocol with the same method, trade-off and seeds; None if there are no variants.

    Args:
        rows: of the paper's protocol.
        variants: of the same network.
    """
    lines: list[list[Cell]] = []
    for method, tradeoff in dict.fromkeys((row.method, row.tradeoff) for row in variants if row.outcome is not None):
        own = [row for row in variants if (row.method, row.tradeoff) == (method, tradeoff) and row.outcome is not None]
        seeds = {row.seed for row in own}
        usual = [row for row in rows if (row.method, row.tradeoff) == (method, tradeoff) and row.seed in seeds and row.outcome is not None]
        kinds = [[row for row in own if _kind(row) == kind] for kind in dict.fromkeys(map(_kind, own))]
        lines += [_line(group) for group in (usual, *kinds) if group]
    headings = ("method", "#trade-off", "gates", "network", "#seeds", "#error %", "#xFLOPs", "#memory %", "#seconds")
    note = "Seconds are those of a model in the method's own stage; medians over seeds."
    return sheet("Gates in another place, and networks that shrink", headings, lines, note) if lines else None


def _kind(row: ResultRow) -> tuple[str | None, bool]:
    return row.placement, row.shrink


def _line(group: Sequence[ResultRow]) -> list[Cell]:
    (point,) = points_of(group)
    return [
        words(method_name(point.method)),
        tradeoff_cell(point.tradeoff),
        words(group[0].placement or ""),
        words("shrinks" if group[0].shrink else "as it is"),
        number(len(group), 0),
        number(point.error),
        number(point.speedup),
        number(point.memory),
        number(statistics.median(seconds_shares(group)), 0),
    ]
