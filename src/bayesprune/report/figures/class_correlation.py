"""Whether classes share units: the correlations between the class averages of E[pi] phi(x), a panel for each gate."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.image import AxesImage
from torch import Tensor

from bayesprune.analysis import ClassAverages, class_correlations, mean_between_classes
from bayesprune.report.figures.canvas import INK, gate_title, new_figure, write_figure

_MAX_COLUMNS = 4
_LABELLED = 20
"""With more classes than this, their numbers are not written at the edges."""
_UNDEFINED = "#c8c8c8"


def draw_class_correlation(averages: Mapping[str, ClassAverages], title: str, path: Path) -> None:
    """Draw the correlations between classes before each gate, with their mean in the panel's title.

    What is correlated is E[pi] phi(x), as in the paper. E[pi] is common to all classes and makes them alike, so the title also says what
    the mean is without it.

    Args:
        averages: by the gate's name in network order.
        title: of the figure.
        path: of the PNG file to write.
    """
    columns = min(_MAX_COLUMNS, max(len(averages), 1))
    rows = max(math.ceil(len(averages) / columns), 1)
    figure = new_figure(max(2.45 * columns + 0.8, 5.0), 2.95 * rows + 0.55)
    panels = figure.subplots(rows, columns, squeeze=False).flatten()
    for axes in panels[len(averages) :]:
        axes.set_visible(False)
    found = {name: class_correlations(average.keep_probability) for name, average in averages.items()}
    scale = _scale(found.values())
    image = None
    for axes, (name, average) in zip(panels, averages.items(), strict=False):
        image = _draw_panel(axes, found[name], scale)
        axes.set_title(panel_title(name, average), fontsize=9, color=INK)
    if image is not None:
        bar = figure.colorbar(image, ax=list(panels), shrink=0.75 if rows == 1 else 0.4, aspect=25, pad=0.015, ticks=scale.ticks)
        bar.set_label("correlation of two classes", fontsize=9)
        bar.ax.tick_params(labelsize=8)
    figure.suptitle(title, fontsize=10.5, color=INK)
    write_figure(figure, path)


def panel_title(name: str, averages: ClassAverages) -> str:
    """The gate, the units that BB kept, and the mean correlation between two classes, with and without E[pi], or that there is none.

    Classes whose correlations are undefined are counted.
    """
    units = len(averages.pi)
    lines = [f"{gate_title(name)}, {units} kept"]
    if units < 2:
        return f"{lines[0]}\ncorrelation undefined\n"
    for words, values in (("between classes", averages.keep_probability), ("of φ(x) alone", averages.phi)):
        correlations = class_correlations(values)
        mean = mean_between_classes(correlations)
        undefined = int(correlations.diagonal().isnan().sum())
        note = f" ({undefined} undefined)" if undefined else ""
        lines.append(f"{words} undefined" if mean is None else f"{words} {mean:.2f}{note}")
    return "\n".join(lines)


@dataclass(frozen=True)
class _Scale:
    """The colours of correlations, from the lowest to one."""

    colours: str
    lowest: float
    ticks: tuple[float, ...]


def _scale(found: Iterable[Tensor]) -> _Scale:
    """Both signs, or where none is negative only one, in which differences show better."""
    if any(bool((correlations < 0).any()) for correlations in found):
        return _Scale("RdBu", -1.0, (-1.0, -0.5, 0.0, 0.5, 1.0))
    return _Scale("YlGnBu", 0.0, (0.0, 0.25, 0.5, 0.75, 1.0))


def _draw_panel(axes: Axes, correlations: Tensor, scale: _Scale) -> AxesImage:
    classes = len(correlations)
    axes.set_facecolor(_UNDEFINED)
    axes.patch.set_hatch("////")
    axes.patch.set_edgecolor("white")
    # NaN is not painted: the hatched ground shows.
    image = axes.imshow(correlations.numpy(), cmap=scale.colours, vmin=scale.lowest, vmax=1.0)
    ticks = list(range(classes)) if classes <= _LABELLED else []
    axes.set(xticks=ticks, yticks=ticks)
    axes.tick_params(length=0, labelsize=7.5)
    axes.spines[:].set_visible(False)
    return image
