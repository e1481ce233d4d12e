"""Error against speed-up of a reproduction: our medians and runs over the paper's points."""

from collections.abc import Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from bayesprune.experiments.published import METHODS
from bayesprune.report.comparison.pairs import NetworkComparison
from bayesprune.report.comparison.points import method_name
from bayesprune.report.figures.canvas import write_figure
from bayesprune.report.figures.frame import frame_of
from bayesprune.report.figures.tradeoff_axes import colour_of, median_curve, panels, printed_curve, style_tradeoff_axes

_INK = "#555555"


def draw_tradeoff_curves(comparisons: Sequence[NetworkComparison], path: Path, banner: str = "") -> None:
    """Draw a panel for each network, in it a curve of medians for each method, its runs as dots, and the paper's points behind it.

    Args:
        comparisons: of the networks.
        path: of the PNG file to write.
        banner: a warning above all panels.
    """
    figure, drawn = panels(len(comparisons))
    for axes, comparison in zip(drawn, comparisons, strict=False):
        _draw_network(axes, comparison)
    if banner:
        figure.suptitle(banner, color="#b3261e", fontsize=10, fontweight="bold")
    write_figure(figure, path)


def _draw_network(axes: Axes, comparison: NetworkComparison) -> None:
    frame = frame_of(comparison)
    handles = []
    for method in METHODS:
        colour = colour_of(method)
        printed = printed_curve(comparison, method)
        points = [point for point in comparison.points if point.method == method]
        if printed:
            axes.plot(*zip(*printed, strict=True), color=colour, alpha=0.6, linestyle=(0, (4, 3)), linewidth=1.0, zorder=2)
            axes.plot(*zip(*printed, strict=True), "o", color=colour, alpha=0.65, markersize=5.5, markerfacecolor="none", zorder=2)
        if points:
            runs = [outcome for point in points for outcome in point.outcomes]
            medians = median_curve(points, method)
            axes.scatter([run.speedup for run in runs], [run.error for run in runs], s=8, color=colour, alpha=0.4, linewidths=0, zorder=3)
            axes.plot(*zip(*medians, strict=True), marker="o", markersize=5.5, linewidth=1.8, color=colour, zorder=4)
            handles.append(Line2D([], [], color=colour, marker="o", markersize=5, linewidth=1.8, label=method_name(method)))
    printed_style = Line2D([], [], color=_INK, marker="o", markersize=5, markerfacecolor="none", linestyle=(0, (3, 2)), alpha=0.6)
    printed_style.set(linewidth=1.0, label="the paper")
    single = Line2D([], [], color=_INK, marker="o", markersize=3, linestyle="", alpha=0.6, label="single models")
    axes.set_xlim(frame.slowest, frame.fastest)
    axes.set_ylim(frame.lowest, frame.highest)
    style_tradeoff_axes(axes, comparison.title)
    if frame.outside:
        text = f"{frame.outside} run{'s' * (frame.outside > 1)} above the frame"
        axes.text(0.99, 0.985, text, transform=axes.transAxes, ha="right", va="top", fontsize=8, color=_INK)
    axes.legend(handles=[*handles, single, printed_style], frameon=False, fontsize=8.5, loc="upper left", bbox_to_anchor=(1.0, 1.0))
