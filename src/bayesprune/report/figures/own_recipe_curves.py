"""Error against speed-up of recipes of our own, beside the paper's recipe and the paper's points."""

from collections.abc import Mapping, Sequence
from itertools import cycle
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from bayesprune.report.comparison.pairs import NetworkComparison
from bayesprune.report.comparison.points import Point, method_name
from bayesprune.report.figures.canvas import INK, write_figure
from bayesprune.report.figures.tradeoff_axes import colour_of, median_curve, panels, printed_curve, style_tradeoff_axes

_METHODS = ("bb", "dbb")
_MARKERS = "s^Dv"
_AS_PUBLISHED, _BY_PAPER = "the paper's recipe, ours", "the paper"


def draw_own_recipes(comparison: NetworkComparison, recipes: Mapping[str, Sequence[Point]], path: Path) -> bool:
    """Draw BB and DBB of each recipe as curves of medians over seeds, with the standard error of their means.

    Args:
        comparison: of the network's rows with the paper's.
        recipes: the points of each recipe of our own, by its name.
        path: of the PNG file to write.

    Returns:
        Whether there was anything to draw.
    """
    recipes = {name: points for name, points in recipes.items() if _has_curves(points)}
    if not recipes:
        return False
    figure, (axes,) = panels(1)
    for method in _METHODS:
        _curve(
            axes,
            printed_curve(comparison, method),
            method,
            marker="o",
            markerfacecolor="none",
            linestyle=(0, (4, 3)),
            linewidth=1.0,
            alpha=0.55,
        )
        _curve(axes, median_curve(comparison.points, method), method, marker="o", linewidth=1.0, alpha=0.55)
        for marker, points in zip(cycle(_MARKERS), recipes.values(), strict=False):
            _curve(axes, median_curve(points, method), method, marker=marker, linewidth=1.8)
            several = [point for point in points if point.method == method and len(point.outcomes) > 1]
            for point in several:
                axes.errorbar(point.speedup, point.error, point.standard_error, color=colour_of(method), linewidth=1.0, capsize=2.5)
    style_tradeoff_axes(axes, f"{comparison.title}: {_what(recipes)}")
    styles = [
        *(Line2D([], [], color=colour_of(method), linewidth=1.8, label=method_name(method)) for method in _METHODS),
        Line2D([], [], color=INK, marker="o", markersize=5, markerfacecolor="none", linestyle=(0, (3, 2)), alpha=0.6, label=_BY_PAPER),
        *(
            [Line2D([], [], color=INK, marker="o", markersize=5, linewidth=1.0, alpha=0.6, label=_AS_PUBLISHED)]
            if _has_curves(comparison.points)
            else []
        ),
        *(
            Line2D([], [], color=INK, marker=marker, markersize=5, label=name)
            for marker, name in zip(cycle(_MARKERS), recipes, strict=False)
        ),
    ]
    axes.legend(handles=styles, frameon=False, fontsize=8.5, loc="upper left", bbox_to_anchor=(1.0, 1.0))
    write_figure(figure, path)
    return True


def _what(recipes: Mapping[str, Sequence[Point]]) -> str:
    """Whose curves they are, and over how many seeds."""
    seeds = {len(point.outcomes) for points in recipes.values() for point in points}
    whose = "recipes of our own" if len(recipes) > 1 else f"recipe {next(iter(recipes))}"
    count = f"{max(seeds)} seeds" if max(seeds) > 1 else "one seed"
    return f"{whose}, {count if len(seeds) == 1 else f'up to {count}'}"


def _has_curves(points: Sequence[Point]) -> bool:
    return any(point.method in _METHODS for point in points)


def _curve(axes: Axes, points: Sequence[tuple[float, float]], method: str, **style: object) -> None:
    if points:
        axes.plot(*zip(*points, strict=True), color=colour_of(method), markersize=5.5, **style)  # type: ignore[arg-type]
