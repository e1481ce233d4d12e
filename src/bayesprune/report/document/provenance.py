"""Where rows come from: hardware, versions, seeds, and how long it took."""

import statistics
from collections.abc import Sequence

from bayesprune.experiments.published import METHODS
from bayesprune.experiments.rows import ResultRow
from bayesprune.report.comparison.points import diverged_rows, method_name
from bayesprune.report.document.sheets import Cell, Sheet, number, sheet, words


def provenance_lines(rows: Sequence[ResultRow]) -> list[str]:
    """What the rows say of themselves, a line for each matter."""
    names = (("hardware", "hardware"), ("device", "device"), ("torch", "torch"), ("python", "Python"), ("version", "bayesprune"))
    seeds = sorted({row.seed for row in rows})
    diverged = len(diverged_rows(rows))
    return [
        f"models: {len(rows)}, of which {diverged or 'none'} diverged",
        f"seeds: {', '.join(map(str, seeds))}",
        f"recipe: {', '.join(sorted({row.recipe for row in rows}))}",
        *(f"{shown}: {', '.join(sorted({row.software[name] for row in rows}))}" for name, shown in names),
    ]


def seconds_sheet(rows: Sequence[ResultRow]) -> Sheet:
    """How long the models of each method took, where a model has its share of the fleet that it was trained in."""
    lines = []
    total = beginnings = 0.0
    for method in METHODS:
        own = [row for row in rows if row.method == method]
        shares = [row.seconds / row.side_by_side for row in own if row.seconds is not None]
        if not shares:
            continue
        first = sum(_first_epoch(row) / row.side_by_side for row in own)
        total, beginnings = total + sum(shares), beginnings + first
        fleets = sorted({row.side_by_side for row in own})
        epochs = sorted({row.epochs for row in own if row.epochs is not None})
        lines.append(
            [
                words(method_name(method)),
                number(len(own), 0),
                Cell(_span(epochs), max(epochs, default=0)),
                Cell(_span(fleets), max(fleets)),
                number(statistics.median(shares), 1),
                number(sum(shares), 0),
                number(first, 0),
            ]
        )
    unit = "GPU seconds" if all(row.software["device"].startswith("cuda") for row in rows) else "Seconds"
    note = (
        "Of each method's own stage, without the stages before it. "
        f"Seconds of a fleet are divided by its models. All {len(rows)} models together: {total:,.0f} seconds, of which {beginnings:,.0f} "
        "in first epochs, where the step is compiled."
    )
    headings = ("method", "#models", "#epochs", "#side by side", "#a model, median", "#all models", "#of these first epochs")
    return sheet(unit, headings, lines, note)


def _first_epoch(row: ResultRow) -> float:
    """The seconds of the first epoch of a row's fleet, as far as it says them."""
    return row.history[0].seconds if row.history and row.history[0].epoch == 1 else 0.0


def _span(values: Sequence[int]) -> str:
    if not values:
        return ""
    return str(values[0]) if len(values) == 1 else f"{values[0]}–{values[-1]}"
