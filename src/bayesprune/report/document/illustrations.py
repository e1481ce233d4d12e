"""The figures that a report shows, if they have been drawn: their files' names and captions."""

from dataclasses import dataclass
from pathlib import Path

from bayesprune.storage import exists

CAPTIONS = {
    "own-recipes": "BB and DBB by recipes of our own, with standard errors, beside the paper's points and what its recipe gave us.",
    "kept-units": "Units that each gate keeps while the network is trained, and its test error.",
    "input-regions": "Which pixels DBB prunes for four images: BB keeps the same ones for all images, DBB chooses among them for each.",
    "filter-use": "Which units DBB uses for images of two classes in a low, a middle and the last layer.",
    "class-correlation": "How alike the units are that DBB uses for two classes: correlations of the class averages of φ(x) in each layer.",
    "activations-to-probabilities": "How DBB turns activations into probabilities: standardised, scaled and shifted, clamped.",
}
"""The first part of a file's name, which the network follows, and what the figure shows."""


@dataclass(frozen=True)
class Illustration:
    """A figure of a network."""

    path: Path
    caption: str


def kept_units_name(label: str) -> str:
    """The name of the file that shows how a network lost its units."""
    return f"kept-units-{label}.png"


def tradeoffs_name(label: str) -> str:
    """The name of the file with a network's trade-off curves."""
    return f"tradeoffs-{label}.png"


def own_recipes_name(label: str) -> str:
    """The name of the file with the curves of our own recipes on a network."""
    return f"own-recipes-{label}.png"


def illustrations(figures: Path, label: str) -> list[Illustration]:
    """The figures of a network that lie in a folder.

    Args:
        figures: the folder.
        label: the network, as in names of files.
    """
    paths = [(figures / f"{name}-{label}.png", caption) for name, caption in CAPTIONS.items()]
    return [Illustration(path, caption) for path, caption in paths if exists(path)]
