"""Figures of a run."""

import math
from pathlib import Path
from typing import Any

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from bayesprune.report.axes import save_png

_INK = "#333333"
_STAGE_SHADES = {"dense": "#ffffff", "pruned": "#eef3fa", "dependent": "#fbf1e6"}


def draw_kept_units(rows: list[dict[str, Any]], units: list[int], names: list[str], path: Path) -> None:
    """Draw the units that each gate keeps, in percent, and the error, against training time.

    Args:
        rows: of ``metrics.jsonl``.
        units: of each gate.
        names: of each gate.
        path: of the PNG file to write.
    """
    figure = Figure(figsize=(9, 5.5), dpi=130, layout="constrained")
    FigureCanvasAgg(figure)
    above, below = figure.subplots(2, 1, sharex=True, height_ratios=(3, 1.3))
    times = _times(rows)
    for index, (name, count) in enumerate(zip(names, units, strict=True)):
        shares = [100.0, *(100.0 * row["kept"][index] / max(count, 1) for row in rows)]
        label = f"{name.removesuffix('_gate').replace('.', ' ')}: {rows[-1]['kept'][index]:.0f} of {count}"
        above.plot([0.0, *times], shares, marker="o", markersize=2.5, linewidth=1.6, label=label)
    errors = [(time, row["error"]) for time, row in zip(times, rows, strict=True) if row["error"] is not None]
    if errors:
        below.plot(*zip(*errors, strict=True), color=_INK, marker="o", markersize=2.5, linewidth=1.2)
        middle = sorted(error for _, error in errors)[len(errors) // 2]
        below.set_ylim(0, max(3.0 * middle, 1e-3))
    _shade_stages(rows, times, (above, below))
    above.set_ylabel("units in use, %")
    above.set_ylim(-2, 108)
    above.legend(frameon=False, fontsize=8, ncols=math.ceil(len(names) / 6))
    below.set_ylabel("test error, %")
    below.set_xlabel("training time, seconds")
    for axes in (above, below):
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(axis="y", color="#dddddd", linewidth=0.6)
        axes.set_axisbelow(True)
    save_png(figure, path)


def _times(rows: list[dict[str, Any]]) -> list[float]:
    """Seconds since the beginning of the run: within a row they count from the beginning of its stage."""
    times, before, previous = [], 0.0, None
    for row in rows:
        if previous is not None and row["stage"] != previous["stage"]:
            before += previous["seconds"]
        times.append(before + row["seconds"])
        previous = row
    return times


def _shade_stages(rows: list[dict[str, Any]], times: list[float], panels: tuple[Any, ...]) -> None:
    start = 0.0
    for stage in dict.fromkeys(row["stage"] for row in rows):
        end = max(time for time, row in zip(times, rows, strict=True) if row["stage"] == stage)
        for axes in panels:
            axes.axvspan(start, end, color=_STAGE_SHADES.get(stage, "#ffffff"), zorder=0)
        panels[0].text((start + end) / 2, 104, stage, ha="center", va="center", fontsize=9, color=_INK)
        start = end
    for axes in panels:
        axes.set_xlim(0, max(times) or 1.0)
