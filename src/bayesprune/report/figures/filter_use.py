"""Which units single inputs of two classes use, layer by layer: are they the same for inputs of a class, and others for another class?"""

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import torch
from matplotlib.axes import Axes
from torch import Tensor

from bayesprune.analysis import UnitRecord, likeness
from bayesprune.report.figures.canvas import INK, gate_title, new_figure, write_figure


def draw_filter_use(record: UnitRecord, layers: Sequence[int], classes: Sequence[tuple[str, int]], title: str, path: Path) -> None:
    """Draw a panel for each layer: a row for each input, class by class, a column for each unit that BB kept, dark where it is used.

    Units stand in the order of their use by the first class. The panel's title says what share of units two inputs have in common.

    Args:
        record: of the network's units.
        layers: the numbers of the layers that it shows.
        classes: by name and number, in the order of the record's inputs.
        title: of the figure.
        path: of the PNG file to write.
    """
    figure = new_figure(9.0, 2.3 * max(len(record.uses), 1) + 0.5)
    panels = figure.subplots(max(len(record.uses), 1), 1, squeeze=False).flatten()
    for axes, number, (name, uses) in zip(panels, layers, record.uses.items(), strict=False):
        _draw_panel(axes, uses, record.labels, classes)
        axes.set_title(_panel_title(number, name, uses, record.labels, classes), fontsize=9, color=INK, loc="left")
    panels[-1].set_xlabel(
        "units that BB kept, in the order of their use by the first class; a row is an image, dark where it uses a unit",
        fontsize=9,
        color=INK,
    )
    figure.suptitle(title, fontsize=10.5, color=INK)
    write_figure(figure, path)


def _draw_panel(axes: Axes, uses: Tensor, labels: Tensor, classes: Sequence[tuple[str, int]]) -> None:
    axes.spines[:].set_visible(False)
    axes.tick_params(length=0, labelsize=8)
    if uses.numel() == 0:
        axes.set(xticks=[], yticks=[])
        axes.text(0.5, 0.5, "no unit is left", ha="center", va="center", fontsize=9, color=INK, transform=axes.transAxes)
        return
    first = uses[labels == classes[0][1]]
    order = torch.argsort((first if len(first) else uses).mean(dim=0), descending=True)
    axes.imshow(uses[:, order].numpy(), cmap="Greys", vmin=0.0, vmax=1.0, aspect="auto", interpolation="nearest")
    counts = [int((labels == number).sum()) for _, number in classes]
    edges = [sum(counts[:place]) for place in range(len(counts) + 1)]
    for edge in edges[1:-1]:
        axes.axhline(edge - 0.5, color="#d1495b", linewidth=1.2)
    axes.set_yticks([(low + high - 1) / 2 for low, high in pairwise(edges)], [name for name, _ in classes])


def _panel_title(number: int, name: str, uses: Tensor, labels: Tensor, classes: Sequence[tuple[str, int]]) -> str:
    """The layer, its units, how many an input uses, and how alike those of inputs are."""
    used = float((uses > 0).double().sum(dim=1).mean()) if len(uses) else 0.0
    words = [f"layer {number} ({gate_title(name)}): {uses.shape[1]} kept by BB, {used:.0f} used by an input"]
    pairs = [(f"two of {word}", one, one) for word, one in classes]
    pairs += [(f"{classes[0][0]} and {word}", classes[0][1], other) for word, other in classes[1:]]
    found = [(what, likeness(uses, labels, one, other)) for what, one, other in pairs]
    shared = ", ".join(f"{what} {100 * value:.0f} %" for what, value in found if value is not None)
    return "\n".join([*words, f"units in common: {shared}" if shared else ""])
