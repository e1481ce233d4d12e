"""What curves of error against speed-up share, in figures and pages: a colour for each method, and axes."""

from collections.abc import Sequence
from dataclasses import dataclass
from types import MappingProxyType

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from bayesprune.report.comparison.pairs import NetworkComparison
from bayesprune.report.comparison.points import Point
from bayesprune.report.figures.canvas import GRID, new_figure

_FEW = 300
"""Up to this ratio the powers of ten alone would be too few ticks."""


@dataclass(frozen=True)
class Colour:
    """A method's colour on white, and on black."""

    light: str
    dark: str


COLOURS = MappingProxyType(
    {
        "bb": Colour("#1b6ca8", "#5eb0ef"),
        "dbb": Colour("#d1495b", "#ff7b8a"),
        "sbp": Colour("#3f8f63", "#74c898"),
        "vib": Colour("#d08a1d", "#f0b64f"),
        "l0": Colour("#8457a8", "#bb93dd"),
        "gd": Colour("#5c5c5c", "#b0b0b0"),
        "cd": Colour("#6f96a6", "#9cc3d1"),
        "dense": Colour("#1f2328", "#e6e6e6"),
    }
)


def panels(count: int) -> tuple[Figure, list[Axes]]:
    """A figure with so many panels beside each other, but at least one."""
    count = max(count, 1)
    figure = new_figure(6.5 * count, 4.6)
    return figure, list(figure.subplots(1, count, squeeze=False)[0])


def colour_of(method: str) -> str | None:
    """A method's colour on white; None lets matplotlib choose."""
    return COLOURS[method].light if method in COLOURS else None


def printed_curve(comparison: NetworkComparison, method: str) -> list[tuple[float, float]]:
    """Speed-up and error of the paper's rows of a method, from the slowest on."""
    return sorted((row.paper.speedup, row.paper.error) for row in comparison.distinct if row.paper.method == method)


def median_curve(points: Sequence[Point], method: str) -> list[tuple[float, float]]:
    """Speed-up and error of our points of a method, from the slowest on."""
    return sorted((point.speedup, point.error) for point in points if point.method == method)


def style_tradeoff_axes(axes: Axes, title: str) -> None:
    """Make a panel one of error against speed-up, after its curves have been drawn."""
    axes.set_title(title, fontsize=10)
    axes.set_xscale("log")
    axes.xaxis.set_major_formatter(FuncFormatter(_times))
    axes.xaxis.set_minor_formatter(NullFormatter())
    low, high = axes.get_xlim()
    axes.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0) if high / low < _FEW else (1.0,)))
    axes.set_xlabel("speed-up in FLOPs (dense over pruned)")
    axes.set_ylabel("test error, %")
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(color=GRID, linewidth=0.6)
    axes.set_axisbelow(True)


def _times(value: float, _position: int | None = None) -> str:
    return f"{value:g}x"
