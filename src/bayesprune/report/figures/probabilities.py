"""How one gate's activations become probabilities, in four steps."""

from pathlib import Path

import numpy as np
import torch
from matplotlib.axes import Axes
from torch import Tensor

from bayesprune.analysis import ProbabilityStages
from bayesprune.report.figures.canvas import BLUE, GREEN, INK, RED, VIOLET, YELLOW, new_figure, plain_axes, write_figure

_COLOURS = (RED, YELLOW, GREEN, BLUE, VIOLET)
_STEPS = (
    ("activation", "x"),
    ("standardised", "(x − μ) / σ"),
    ("scaled and shifted", "γ (x − μ) / σ + β"),
    ("probability", "clamped to [0, 1]"),
)
_SHOWN_INPUTS = 250
_FAR_OUT = 0.002
"""The share of values at either end that may lie outside of a panel, so that a few do not squeeze all others."""


def highlighted_units(phi: Tensor) -> Tensor:
    """Up to five units that stand for all: spread evenly over the ranking by their average phi, from the least to the most probable."""
    ranked = phi.mean(dim=0).argsort(stable=True)
    places = torch.linspace(0, max(len(ranked) - 1, 0), min(len(_COLOURS), len(ranked))).round().long()
    return ranked[places]


def draw_probabilities(stages: ProbabilityStages, units: Tensor, title: str, path: Path) -> None:
    """Draw the values of all units in each step as a histogram, and below it a few units, each in one colour through all steps.

    Args:
        stages: of the units that BB kept, of which there is at least one.
        units: the number of each of them in its gate.
        title: of the figure.
        path: of the PNG file to write.
    """
    figure = new_figure(9.6, 5.0)
    panels = figure.subplots(2, len(_STEPS), sharex="col", height_ratios=(1.5, 1))
    chosen = highlighted_units(stages.phi)
    values = [getattr(stages, name).cpu() for name in ("activations", "standardised", "rescaled", "phi")]
    for column, (step, (name, formula)) in enumerate(zip(values, _STEPS, strict=True)):
        above, below = panels[:, column]
        low, high = (-0.04, 1.04) if column == len(_STEPS) - 1 else _range(step)
        above.hist(step.flatten().numpy(), bins=np.linspace(low, high, 46).tolist(), color="#b9c4cf", weights=_percent(step))
        above.set_title(f"{column + 1}. {name}", fontsize=10, color=INK)
        above.set_xlim(low, high)
        _draw_units(below, step[:_SHOWN_INPUTS, chosen])
        below.set_xlabel(formula, fontsize=9.5)
        below.set_yticks(range(len(chosen)), [f"unit {units[unit]}" for unit in chosen.tolist()] if column == 0 else [""] * len(chosen))
        for tick, colour in zip(below.get_yticklabels(), _COLOURS, strict=False):
            tick.set_color(colour)
        for axes in (above, below):
            plain_axes(axes)
            axes.tick_params(labelsize=8)
            for edge in (0.0, 1.0) if column >= 2 else ():
                axes.axvline(edge, color=INK, linewidth=0.7, linestyle=":")
        below.tick_params(axis="y", length=0)
    panels[0, 0].set_ylabel("share of values, %", fontsize=9)
    figure.suptitle(title, fontsize=10.5, color=INK)
    write_figure(figure, path)


def _range(values: Tensor) -> tuple[float, float]:
    """From where to where a panel reaches: all but the values furthest out."""
    low, high = np.quantile(values.numpy(), [_FAR_OUT, 1.0 - _FAR_OUT]).tolist()
    margin = 0.04 * (high - low) or 0.5
    return low - margin, high + margin


def _percent(values: Tensor) -> np.ndarray:
    return np.full(values.numel(), 100.0 / values.numel())


def _draw_units(axes: Axes, values: Tensor) -> None:
    """The values of a few units, a row for each, a dot for each input, a little apart so that dots do not hide each other."""
    scatter = np.random.default_rng(0)
    for row, colour in zip(range(values.shape[1]), _COLOURS, strict=False):
        heights = row + scatter.uniform(-0.28, 0.28, len(values))
        axes.scatter(values[:, row].numpy(), heights, s=4, color=colour, alpha=0.45, linewidths=0)
    axes.set_ylim(-0.6, max(values.shape[1], 1) - 0.4)
