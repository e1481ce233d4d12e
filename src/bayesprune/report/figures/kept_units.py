"""Figures of a run."""

from pathlib import Path
from typing import Any

from matplotlib import colormaps

from bayesprune.report.figures.canvas import INK, gate_title, new_figure, plain_axes, write_figure

_STAGE_SHADES = {"dense": "#ffffff", "pruned": "#eef3fa", "BB": "#eef3fa", "dependent": "#fbf1e6", "DBB": "#fbf1e6"}
_FEW = 6
"""With more gates than this their curves are in shades from the first to the last, and the legend is beside the figure."""


def draw_kept_units(
    rows: list[dict[str, Any]],
    units: list[int],
    names: list[str],
    path: Path,
    *,
    title: str | None = None,
    time_label: str = "training time, seconds",
) -> None:
    """Draw the units that each gate keeps, in percent, and the error, against training time.

    Args:
        rows: with ``stage``, ``seconds``, ``kept`` and ``error``, such as those of ``metrics.jsonl``.
        units: of each gate.
        names: of each gate.
        path: of the PNG file to write.
        title: of the figure, if it needs one.
        time_label: what the time is that of.
    """
    figure = new_figure(9, 5.5)
    above, below = figure.subplots(2, 1, sharex=True, height_ratios=(3, 1.3))
    times = _times(rows)
    for index, (name, count) in enumerate(zip(names, units, strict=True)):
        shares = [100.0, *(100.0 * row["kept"][index] / max(count, 1) for row in rows)]
        label = f"{gate_title(name)}: {rows[-1]['kept'][index]:.0f} of {count}"
        above.plot([0.0, *times], shares, marker="o", markersize=2.5, linewidth=1.6, label=label, color=_colour(index, len(names)))
    errors = [(time, row["error"]) for time, row in zip(times, rows, strict=True) if row["error"] is not None]
    if errors:
        below.plot(*zip(*errors, strict=True), color=INK, marker="o", markersize=2.5, linewidth=1.2)
        middle = sorted(error for _, error in errors)[len(errors) // 2]
        below.set_ylim(0, min(max(3.0 * middle, 1e-3), 105.0))
    _shade_stages(rows, times, (above, below))
    above.set_ylabel("units in use, %")
    above.set_ylim(-2, 108)
    if len(names) <= _FEW:
        above.legend(frameon=False, fontsize=8)
    else:
        figure.legend(loc="outside right upper", frameon=False, fontsize=8)
    below.set_ylabel("test error, %")
    below.set_xlabel(time_label)
    for axes in (above, below):
        plain_axes(axes)
    if title is not None:
        above.set_title(title, fontsize=10.5, color=INK)
    write_figure(figure, path)


def _colour(index: int, count: int) -> Any:
    return f"C{index}" if count <= _FEW else colormaps["viridis"](0.95 * index / (count - 1))


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
        panels[0].text((start + end) / 2, 104, stage, ha="center", va="center", fontsize=9, color=INK)
        start = end
    for axes in panels:
        axes.set_xlim(0, max(times) or 1.0)
