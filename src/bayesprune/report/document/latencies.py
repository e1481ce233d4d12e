"""What is left of trained networks, on the clock: xFLOPs beside measured milliseconds."""

from pathlib import Path

from bayesprune.experiments.fields import Fields, read_fields
from bayesprune.experiments.protocol import OWN_TARGETS
from bayesprune.report.comparison.points import method_name
from bayesprune.report.document.sheets import Cell, Sheet, number, sheet, tradeoff_cell, words
from bayesprune.storage import exists

LATENCIES = "compacted-latency.jsonl"
"""Written by benchmarks/compacted_latency.py."""


def latency_sheet(results: Path, network: str, dataset: str, own_recipe: str | None = None) -> Sheet | None:
    """A line for each network that was measured and each batch size; None if there are none.

    Args:
        results: the folder with the file.
        network: of the zoo.
        dataset: of the catalogue.
        own_recipe: of ours, that trained the networks; None for those of the paper's.

    Raises:
        ResultsError: a row is incomplete or damaged.
        StorageError: the file cannot be read.
    """
    rows = list(read_fields(results / LATENCIES, "measured latencies")) if exists(results / LATENCIES) else []
    trained_by = [(row, recipe if (recipe := row.text("recipe")) in OWN_TARGETS else None) for row in rows]
    own = [row for row, recipe in trained_by if (row.text("network"), row.text("dataset"), recipe) == (network, dataset, own_recipe)]
    if not own:
        return None
    machines = sorted({f"{row.text('cpu')}, {row.whole('threads', 1)} threads, torch {row.text('torch')}" for row in own})
    about = ("method", "#trade-off", "#seed", "gates", "#error %", "#xFLOPs", "#MACs, millions", "#parameters, millions")
    times = ("#batch", "#dense, ms", "#compacted, ms", "#times faster")
    return sheet("What is left, on the clock", (*about, *times), [_line(row) for row in own], f"Medians. {'; '.join(machines)}.")


def _line(row: Fields) -> list[Cell]:
    return [
        words(method_name(row.text("method"))),
        tradeoff_cell(row.text("tradeoff")),
        number(row.whole("seed"), 0),
        words(row.text("placement") + (", shrinks" if row.flag("shrink") else "")),
        number(row.number("error", most=100.0)),
        number(row.number("speedup")),
        number(row.number("macs") / 1e6, 1),
        number(row.number("parameters") / 1e6),
        number(row.whole("batch_size", 1), 0),
        number(row.number("dense_ms")),
        number(row.number("compacted_ms")),
        number(row.number("faster")),
    ]
