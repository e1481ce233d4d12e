"""What all figures share: paper, ink, and how they are written."""

from io import BytesIO
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from bayesprune.storage import write_bytes

INK = "#333333"
GRID = "#dddddd"
BLUE, RED, YELLOW, GREEN, VIOLET = "#1b6ca8", "#d1495b", "#edae49", "#66a182", "#8d6a9f"


def new_figure(width: float, height: float) -> Figure:
    """An empty figure, its size in inches of 130 pixels."""
    figure = Figure(figsize=(width, height), dpi=130, layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def plain_axes(axes: Axes) -> None:
    """Leave of the frame what is read, with faint lines to read heights by."""
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", color=GRID, linewidth=0.6)
    axes.set_axisbelow(True)


def write_figure(figure: Figure, path: Path) -> None:
    """Write a figure as a PNG file, whole or not at all."""
    image = BytesIO()
    figure.savefig(image, format="png")
    write_bytes(path, image.getvalue())


def gate_title(name: str) -> str:
    """The name of a gate for people: that of its layer, without the folder that VGG-like networks have them in."""
    return name.removeprefix("features.").removesuffix("_gate").replace(".", " ")
