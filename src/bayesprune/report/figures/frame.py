"""The part of error against speed-up that a figure shows."""

import math
from dataclasses import dataclass

from bayesprune.report.comparison.pairs import NetworkComparison

_MARGIN = 0.07
"""Of the range of errors, on both sides."""
_ROOM_FOR_RUNS = 0.5
"""How far beyond the medians single runs may widen the range, as a share of it."""


@dataclass(frozen=True)
class Frame:
    """A part of the plane.

    Attributes:
        slowest: speed-up at the left edge.
        fastest: at the right edge.
        lowest: error at the lower edge.
        highest: at the upper edge.
        outside: how many runs of ours have errors above it.
    """

    slowest: float
    fastest: float
    lowest: float
    highest: float
    outside: int


def frame_of(comparison: NetworkComparison) -> Frame:
    """A frame that shows all medians and all rows of the paper, and all runs but those that would leave no room for the rest."""
    printed = [(row.paper.speedup, row.paper.error) for row in comparison.distinct]
    medians = [(point.speedup, point.error) for point in comparison.points]
    runs = [(outcome.speedup, outcome.error) for point in comparison.points for outcome in point.outcomes]
    certain = [error for _, error in (*printed, *medians)]
    room = _ROOM_FOR_RUNS * max(max(certain) - min(certain), 0.1)
    shown = [error for _, error in runs if error <= max(certain) + room]
    low, high = min([*certain, *shown]), max([*certain, *shown])
    margin = _MARGIN * max(high - low, 0.1)
    speedups = [speedup for speedup, _ in (*printed, *medians, *runs)]
    edge = (max(speedups) / min(speedups)) ** 0.04 if max(speedups) > min(speedups) else math.e
    return Frame(min(speedups) / edge, max(speedups) * edge, max(low - margin, 0.0), high + margin, len(runs) - len(shown))
