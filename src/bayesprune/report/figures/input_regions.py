"""Which pixels of an image a network with gates on its pixels looks at: the same for all images with BB, its own for each with DBB."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap
from matplotlib.patches import Patch
from torch import Tensor

from bayesprune.analysis import FOR_NO_INPUT, NOT_FOR_THIS_INPUT, USED, unit_use
from bayesprune.gates.dependent_beta_bernoulli import DependentBetaBernoulli
from bayesprune.report.figures.canvas import BLUE, INK, YELLOW, new_figure, write_figure

_COLOURS = {USED: BLUE, NOT_FOR_THIS_INPUT: YELLOW, FOR_NO_INPUT: "#f0f0f0"}
_WORDS = {
    USED: "used for this image",
    NOT_FOR_THIS_INPUT: "kept by BB, pruned by DBB for this image",
    FOR_NO_INPUT: "pruned by BB for every image",
}


@dataclass(frozen=True, eq=False)
class Region:
    """An image, and what becomes of each of its pixels.

    Attributes:
        image: brightness from 0 to 1, of shape (H, W).
        use: ``FOR_NO_INPUT``, ``NOT_FOR_THIS_INPUT`` or ``USED``, of the same shape.
        title: of the image.
    """

    image: Tensor
    use: Tensor
    title: str

    @property
    def used(self) -> int:
        """How many pixels the network looks at."""
        return int((self.use == USED).sum())


def class_examples(labels: Tensor, predicted: Tensor, classes: Sequence[int]) -> list[int]:
    """For each class the number of the first image that is classified correctly, or else of its first; classes without images have none."""
    chosen = []
    for label in classes:
        own = labels == label
        correct = own & (predicted == label)
        candidates = (correct if bool(correct.any()) else own).nonzero().flatten().tolist()
        chosen += candidates[:1]
    return chosen


def input_regions(gate: DependentBetaBernoulli, images: Tensor, labels: Tensor, predicted: Tensor) -> list[Region]:
    """What becomes of the pixels of some images.

    Args:
        gate: on the pixels, in evaluation mode.
        images: as the network is given them, brightness from 0 to 1, of shape (N, 1, H, W).
        labels: of the images.
        predicted: labels that the network gives them.
    """
    uses = unit_use(gate, images.flatten(1)).view(len(images), *images.shape[-2:])
    titles = [
        f"{label}" if label == guess else f"{label}, taken for {guess}"
        for label, guess in zip(labels.tolist(), predicted.tolist(), strict=True)
    ]
    return [Region(image[0], use, title) for image, use, title in zip(images.cpu(), uses.cpu(), titles, strict=True)]


def draw_input_regions(regions: Sequence[Region], mean_used: float, path: Path) -> None:
    """Draw images, and below each what becomes of its pixels.

    Args:
        regions: at least one.
        mean_used: pixels that an image uses, on average over the test set.
        path: of the PNG file to write.
    """
    columns = len(regions)
    figure = new_figure(max(2.2 * columns, 6.6), 5.25)
    panels = figure.subplots(2, columns, squeeze=False)
    for above, below, region in zip(*panels, regions, strict=True):
        above.imshow(region.image.numpy(), cmap="gray_r", vmin=0, vmax=1)
        above.set_title(region.title, fontsize=11, color=INK)
        _draw_use(below, region)
        for axes in (above, below):
            axes.set(xticks=[], yticks=[])
            axes.spines[:].set_color("#bbbbbb")
    pixels, kept = regions[0].use.numel(), int((regions[0].use != FOR_NO_INPUT).sum())
    figure.suptitle(
        f"BB keeps {kept} of {pixels} pixels for all images; DBB uses {mean_used:.0f} of them for an image of the test set, on average",
        fontsize=9.5,
        color=INK,
    )
    handles = [Patch(facecolor=_COLOURS[kind], edgecolor="#999999", linewidth=0.6, label=words) for kind, words in _WORDS.items()]
    figure.legend(handles=handles, loc="outside lower center", ncols=3, frameon=False, fontsize=9, columnspacing=1.4, handlelength=1.2)
    write_figure(figure, path)


def _draw_use(axes: Axes, region: Region) -> None:
    """The map of a region, with the outline of what is drawn in the image over it."""
    colours = ListedColormap([_COLOURS[kind] for kind in sorted(_COLOURS)])
    axes.imshow(region.use.numpy(), cmap=colours, vmin=min(_COLOURS), vmax=max(_COLOURS), interpolation="nearest")
    if bool((region.image > 0.5).any()) and bool((region.image < 0.5).any()):
        axes.contour(region.image.numpy(), levels=[0.5], colors="black", linewidths=1.0)
    axes.set_xlabel(f"{region.used} of {region.use.numel()} pixels used", fontsize=9.5, color=INK)


def average_use(gate: DependentBetaBernoulli, images: Tensor) -> float:
    """How many units of a gate on the pixels an image uses, on average."""
    with torch.no_grad():
        return float(gate.keep(images.flatten(1)).sum(dim=1).double().mean())
