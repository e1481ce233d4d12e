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
    placements = sorted({row.placement for row in rows if row.placement is not None})
    precisions = sorted({row.precision for row in rows})
    return [
        f"models: {len(rows)}, of which {diverged or 'none'} diverged",
        f"seeds: {', '.join(map(str, seeds))}",
        f"recipe: {', '.join(sorted({row.recipe for row in rows}))}",
        *([f"gates of convolutions: {', '.join(placements)}"] if placements else []),
        *([f"precision: {', '.join(precisions)}"] if precisions != ["float32"] else []),
        *(f"{shown}: {', '.join(sorted({row.software[name] for row in rows}))}" for name, shown in names),
    ]


def seconds_sheet(rows: Sequence[ResultRow]) -> Sheet:
    """How long the models of each method took, where a model has its share of the fleet that it was trained in."""
    lines = []
    for method in METHODS:
        own = [row for row in rows if row.method == method]
        shares = seconds_shares(own)
        if not shares:
            continue
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
                number(sum(_first_epoch(row) for row in own), 0),
            ]
        )
    unit = "GPU seconds" if all(row.software["device"].startswith("cuda") for row in rows) else "Seconds"
    note = (
        f"Of each method's own stage, without the stages before it. Seconds of a fleet are divided by its models. {seconds_together(rows)}"
    )
    headings = ("method", "#models", "#epochs", "#side by side", "#a model, median", "#all models", "#of these first epochs")
    return sheet(unit, headings, lines, note)


def seconds_together(rows: Sequence[ResultRow]) -> str:
    """How long all took, in a sentence."""
    total, first = sum(seconds_shares(rows)), sum(map(_first_epoch, rows))
    return (
        f"All {len(rows)} models together took {total:,.0f} seconds ({total / 60:.1f} minutes), of which {first:,.0f} in first epochs, "
        "where the step is compiled on a GPU."
    )


def seconds_shares(rows: Sequence[ResultRow]) -> list[float]:
    """What each row has of the seconds of its fleet."""
    return [row.seconds / row.side_by_side for row in rows if row.seconds is not None]


def _first_epoch(row: ResultRow) -> float:
    """What a row has of the seconds of its fleet's first epoch, as far as it says them."""
    return row.history[0].seconds / row.side_by_side if row.history and row.history[0].epoch == 1 else 0.0


def _span(values: Sequence[int]) -> str:
    if not values:
        return ""
    return str(values[0]) if len(values) == 1 else f"{values[0]}–{values[-1]}"
