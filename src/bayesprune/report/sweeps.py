"""What a sweep found: a table with medians over seeds, and error against speed-up, a curve for each method."""

import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.table import Table

from bayesprune.experiments.standings import sweep_groups
from bayesprune.report.figures.canvas import write_figure
from bayesprune.report.figures.tradeoff_axes import colour_of, panels, style_tradeoff_axes
from bayesprune.report.tables import join_units


def sweep_tables(rows: Sequence[dict[str, Any]]) -> list[Table]:
    """A table for each network: for each method and trade-off the median over seeds, and half the range from smallest to largest."""
    return [_network_table(network, [row for row in rows if row["network"] == network]) for network in _networks(rows)]


def _networks(rows: Sequence[dict[str, Any]]) -> list[str]:
    return list(dict.fromkeys(row["network"] for row in rows))


def _network_table(network: str, rows: Sequence[dict[str, Any]]) -> Table:
    table = Table(title=f"{network}: median over seeds ± half the range")
    for heading in ("method", "trade-off", "error %", "xFLOPs", "memory %", "kept units"):
        table.add_column(heading, justify="left" if heading in ("method", "kept units") else "right", no_wrap=True)
    for (_, method, tradeoff), group in sweep_groups(rows).items():
        sound = [row for row in group if row["status"] == "finished"]
        kept = [statistics.median(units) for units in zip(*(row["kept"] for row in sound), strict=True)]
        numbers = [_spread([row[name] for row in sound]) for name in ("error", "speedup", "memory")]
        table.add_row(method, "" if tradeoff is None else f"{tradeoff:.4g}", *numbers, join_units(kept))
    diverged = sum(row["status"] != "finished" for row in rows)
    table.caption = f"{len(rows)} model{'s' * (len(rows) > 1)}"
    if diverged:
        table.caption += f", {diverged} of them diverged and not counted: the rows say why"
    return table


def _spread(values: list[float]) -> str:
    if not values:
        return ""
    digits = 2 if max(values) < 1000 else 0
    median = f"{statistics.median(values):.{digits}f}"
    return median if len(values) == 1 else f"{median} ±{(max(values) - min(values)) / 2:.{digits}f}"


def draw_tradeoffs(rows: Sequence[dict[str, Any]], path: Path) -> None:
    """Draw error against speed-up in the paper's convention: a panel for each network, a curve of medians for each method.

    Args:
        rows: of a sweep.
        path: of the PNG file to write.
    """
    sound = [row for row in rows if row["status"] == "finished"]
    networks = _networks(sound)
    figure, drawn = panels(len(networks))
    for axes, network in zip(drawn, networks, strict=False):
        for method in dict.fromkeys(row["method"] for row in sound if row["network"] == network):
            groups = [group for (net, name, _), group in sweep_groups(sound).items() if (net, name) == (network, method)]
            points = sorted(tuple(statistics.median(row[name] for row in group) for name in ("speedup", "error")) for group in groups)
            colour = colour_of(method)
            members = [row for group in groups for row in group]
            axes.scatter(
                [row["speedup"] for row in members], [row["error"] for row in members], s=9, color=colour, alpha=0.35, linewidths=0
            )
            axes.plot(*zip(*points, strict=True), marker="o", markersize=5, linewidth=1.6, color=colour, label=method.upper())
        style_tradeoff_axes(axes, network)
        axes.legend(frameon=False, fontsize=9)
    write_figure(figure, path)
