"""Figures of a run."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from bayesprune.report.figures.canvas import INK, gate_title, new_figure, plain_axes, write_figure

_STAGE_SHADES = {"dense": "#ffffff", "pruned": "#eef3fa", "BB": "#eef3fa", "dependent": "#fbf1e6", "DBB": "#fbf1e6"}
_FEW = 6
"""More gates than this have a row each, in shades, instead of a curve."""


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
    few = len(names) <= _FEW
    figure = new_figure(9, 5.5 if few else 2.4 + 0.27 * len(names))
    above, below = figure.subplots(2, 1, sharex=True, height_ratios=(3 if few else 0.2 * len(names), 1.3))
    times = _times(rows)
    labels = [f"{gate_title(name)}: {last:.0f} of {count}" for name, last, count in zip(names, rows[-1]["kept"], units, strict=True)]
    shares = [[100.0 * row["kept"][index] / max(count, 1) for row in rows] for index, count in enumerate(units)]
    if few:
        _draw_curves(above, times, shares, labels)
    else:
        _draw_shades(figure, above, times, shares, labels)
    errors = [(time, row["error"]) for time, row in zip(times, rows, strict=True) if row["error"] is not None]
    if errors:
        below.plot(*zip(*errors, strict=True), color=INK, marker="o", markersize=2.5, linewidth=1.2)
        middle = sorted(error for _, error in errors)[len(errors) // 2]
        below.set_ylim(0, min(max(3.0 * middle, 1e-3), 105.0))
    charts = (above, below) if few else (below,)
    _shade_stages(rows, times, charts)
    below.set_ylabel("test error, %")
    below.set_xlabel(time_label)
    for axes in charts:
        plain_axes(axes)
    if title is not None:
        figure.suptitle(title, fontsize=10.5, color=INK)
    write_figure(figure, path)


def _draw_curves(axes: Axes, times: Sequence[float], shares: Sequence[Sequence[float]], labels: Sequence[str]) -> None:
    """A curve for each gate."""
    for share, label in zip(shares, labels, strict=True):
        axes.plot([0.0, *times], [100.0, *share], marker="o", markersize=2.5, linewidth=1.6, label=label)
    axes.set_ylabel("units in use, %")
    axes.set_ylim(-2, 108)
    axes.legend(frameon=False, fontsize=8)


def _draw_shades(figure: Figure, axes: Axes, times: Sequence[float], shares: Sequence[Sequence[float]], labels: Sequence[str]) -> None:
    """A row for each gate, the first one at the top; each time of looking shades the time before it."""
    image = axes.pcolormesh([0.0, *times], range(len(labels) + 1), shares, cmap="YlGnBu", vmin=0, vmax=100)
    axes.set_yticks([index + 0.5 for index in range(len(labels))], labels, fontsize=8)
    axes.invert_yaxis()
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    figure.colorbar(image, ax=axes, label="units in use, %", aspect=30, pad=0.015)


def _times(rows: list[dict[str, Any]]) -> list[float]:
    """Seconds since the beginning of the run: within a row they count from the beginning of its stage."""
    times, before, previous = [], 0.0, None
    for row in rows:
        if previous is not None and row["stage"] != previous["stage"]:
            before += previous["seconds"]
        times.append(before + row["seconds"])
        previous = row
    return times


def _shade_stages(rows: list[dict[str, Any]], times: list[float], panels: Sequence[Axes]) -> None:
    start = 0.0
    for stage in dict.fromkeys(row["stage"] for row in rows):
        end = max(time for time, row in zip(times, rows, strict=True) if row["stage"] == stage)
        for axes in panels:
            axes.axvspan(start, end, color=_STAGE_SHADES.get(stage, "#ffffff"), zorder=0)
        place = panels[0].get_xaxis_transform()
        panels[0].text((start + end) / 2, 0.96, stage, transform=place, ha="center", va="center", fontsize=9, color=INK)
        start = end
    for axes in panels:
        axes.set_xlim(0, max(times) or 1.0)
