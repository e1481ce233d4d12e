"""What a footnote of the paper says, or what it leaves open, checked on our models."""

import statistics
from collections.abc import Sequence

from bayesprune.experiments.published import PublishedRow, published_rows, tradeoff_value
from bayesprune.experiments.rows import ResultRow, Size
from bayesprune.report.comparison.points import median_kept, method_name
from bayesprune.report.comparison.results import tradeoff_order
from bayesprune.report.document.sheets import EMPTY, Cell, Sheet, change, number, sheet, tradeoff_cell, units_cell, words


def threshold_sheet(rows: Sequence[ResultRow]) -> Sheet | None:
    """What other thresholds than 1e-3 would change, in the median over models; None if no row says."""
    lines = []
    for method in ("bb", "dbb"):
        own = [row for row in rows if row.method == method and row.outcome is not None]
        for threshold in sorted({name for row in own for name in row.thresholds}, key=_threshold_order):
            changes = [_changes(row, threshold) for row in own if threshold in row.thresholds]
            errors, units, speedups = zip(*changes, strict=True)
            lines.append(
                [
                    words(method_name(method)),
                    Cell(_power(threshold), _threshold_order(threshold)),
                    number(len(changes), 0),
                    change(statistics.median(errors)),
                    change(max(errors, key=abs)),
                    change(statistics.median(units), 1, " %"),
                    change(statistics.median(speedups), 1, " %"),
                ]
            )
    headings = ("method", "#threshold", "#models", "#error, points", "#largest change of error", "#kept units", "#xFLOPs")
    note = (
        "The paper prunes units that are kept with a probability below 1e-3, and says that the choice makes no difference. "
        "Changes against 1e-3, medians over models."
    )
    return sheet("Another threshold than 1e-3", headings, lines, note) if lines else None


def soft_count_sheet(rows: Sequence[ResultRow]) -> Sheet | None:
    """L0's units counted as the paper may have done, beside ours; None if no row says."""
    own = [row for row in rows if row.method == "l0" and row.outcome is not None and row.soft is not None]
    printed = {row.tradeoff: row for row in published_rows(own[0].network, own[0].dataset, "appendix") if row.method == "l0"} if own else {}
    lines = []
    for tradeoff in sorted({row.tradeoff for row in own}, key=tradeoff_order):
        group = [row for row in own if row.tradeoff == tradeoff]
        ours = _median_size([row.outcome for row in group if row.outcome is not None])
        soft = _median_size([row.soft for row in group if row.soft is not None])
        lines.append([tradeoff_cell(tradeoff), *_paper_size(printed.get(tradeoff)), *_size_cells(ours), *_size_cells(soft)])
    headings = (
        "#trade-off",
        "#xFLOPs, paper",
        "#memory %, paper",
        "kept units",
        "#xFLOPs",
        "#memory %",
        "kept units, soft",
        "#xFLOPs, soft",
        "#memory %, soft",
    )
    note = "Ours counts units whose gate is not exactly zero; the soft count is the sum of the gates' values, rounded down."
    return sheet("Two ways to count L0's units", headings, lines, note) if lines else None


def memory_sheet(rows: Sequence[ResultRow]) -> Sheet | None:
    """DBB's memory as the paper counts it and as it is, beside BB's; None if no row says."""
    own = [row for row in rows if row.right_memory is not None]
    lines = []
    for tradeoff in sorted({row.tradeoff for row in own}, key=tradeoff_order):
        group = [row for row in own if row.tradeoff == tradeoff]
        below = [row for row in rows if (row.method, row.tradeoff) == ("bb", tradeoff) and row.seed in {each.seed for each in group}]
        static = [row.outcome.memory for row in below if row.outcome is not None]
        counted = statistics.median(row.outcome.memory for row in group if row.outcome is not None)
        right = statistics.median(row.right_memory for row in group if row.right_memory is not None)
        lines.append([tradeoff_cell(tradeoff), number(statistics.median(static)) if static else EMPTY, number(counted), number(right)])
    headings = ("#trade-off", "#memory % of BB", "#memory % of DBB, as published", "#memory % of DBB, corrected")
    note = (
        "The published code counts each convolution of a DBB network with the units of the next one, which adds a point or so; the tables "
        "above have that count, to be compared with the paper's. Medians over seeds."
    )
    return sheet("Two ways to count DBB's memory", headings, lines, note) if lines else None


def selection_sheet(rows: Sequence[ResultRow]) -> Sheet | None:
    """How many of the units that BB keeps DBB uses for an input, on average; None if no row says."""
    own = [row for row in rows if row.outcome is not None and row.static_kept is not None]
    lines = []
    for tradeoff in sorted({row.tradeoff for row in own}, key=tradeoff_order):
        group = [row for row in own if row.tradeoff == tradeoff]
        static = median_kept([row.static_kept for row in group if row.static_kept is not None])
        used = median_kept([row.outcome.kept for row in group if row.outcome is not None])
        share = 100.0 * sum(used) / max(sum(static), 1)
        lines.append([tradeoff_cell(tradeoff), units_cell(static), units_cell(used), number(share, 0, " %")])
    headings = ("#trade-off", "kept by BB", "used by DBB for an input", "#share")
    note = "DBB chooses for each input among the units that BB keeps. Medians over seeds of averages over the test set."
    return sheet("What DBB chooses among BB's units", headings, lines, note) if lines else None


def _changes(row: ResultRow, threshold: str) -> tuple[float, float, float]:
    """Of the error in points, and of the kept units and the speed-up in percent."""
    usual, other = row.outcome, row.thresholds[threshold]
    assert usual is not None
    units = 100.0 * (sum(other.kept) / max(sum(usual.kept), 1e-9) - 1.0)
    return other.error - usual.error, units, 100.0 * (other.speedup / usual.speedup - 1.0)


def _threshold_order(name: str) -> float:
    return tradeoff_value(name)


def _power(threshold: str) -> str:
    return f"{float(threshold):.0e}".replace("e-0", "e-")


def _median_size(sizes: Sequence[Size]) -> Size:
    kept = tuple(float(units) for units in median_kept([size.kept for size in sizes]))
    return Size(kept, statistics.median(size.speedup for size in sizes), statistics.median(size.memory for size in sizes))


def _paper_size(row: PublishedRow | None) -> list[Cell]:
    return [EMPTY, EMPTY] if row is None else [number(row.speedup), number(row.memory)]


def _size_cells(size: Size) -> list[Cell]:
    return [units_cell(size.kept), number(size.speedup), number(size.memory)]
