"""Better, equal or worse than a row of the paper.

Figures are compared as they are printed, with two digits. Errors that differ by no more than `ERROR_TOLERANCE` points are equal; so are
speed-ups and memories that differ by no more than `SIZE_TOLERANCE` of the paper's.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum

from bayesprune.experiments.published import PublishedRow
from bayesprune.report.comparison.points import Point

ERROR_TOLERANCE = 0.15
"""In points of percent: about three times the spread over seeds that the paper prints."""
SIZE_TOLERANCE = 0.10
"""As a share of the paper's figure."""
_ROUNDING = 1e-9


class Standing(Enum):
    """How a figure of ours stands beside the paper's."""

    BETTER = "better"
    EQUAL = "equal"
    WORSE = "worse"


@dataclass(frozen=True)
class Verdict:
    """How a point of ours stands beside a row of the paper.

    Attributes:
        error: of the test.
        speedup: in FLOPs.
        memory: of the network.
        as_good: the point of the same method that is at least as good in both error and speed-up, if there is one.
        nowhere_worse_at: if the row is not reached, the point of the same method at another trade-off that is nowhere worse, if any.
    """

    error: Standing
    speedup: Standing
    memory: Standing
    as_good: Point | None
    nowhere_worse_at: Point | None = None

    @property
    def nowhere_worse(self) -> bool:
        """Whether no figure is worse than the paper's."""
        return Standing.WORSE not in (self.error, self.speedup, self.memory)

    @property
    def reached(self) -> bool:
        """Whether the paper's row is reached: nowhere worse, or another point is at least as good."""
        return self.nowhere_worse or self.as_good is not None


def judge(paper: PublishedRow, point: Point, others: Sequence[Point]) -> Verdict:
    """Compare a point with a row of the paper.

    Args:
        paper: what to compare with.
        point: of ours at the same trade-off.
        others: all points of ours; those of other methods are left aside.
    """
    verdict = Verdict(*_standings(paper, point), _as_good(paper, point, others))
    return verdict if verdict.reached else replace(verdict, nowhere_worse_at=_nowhere_worse(paper, others))


def error_standing(ours: float, papers: float) -> Standing:
    """Errors in percent, compared."""
    excess = _printed(ours) - _printed(papers)
    if abs(excess) <= ERROR_TOLERANCE + _ROUNDING:
        return Standing.EQUAL
    return Standing.WORSE if excess > 0 else Standing.BETTER


def speedup_standing(ours: float, papers: float) -> Standing:
    """Speed-ups, compared: more is better."""
    return _size_standing(_printed(ours) - _printed(papers), papers)


def memory_standing(ours: float, papers: float) -> Standing:
    """Memories in percent, compared: less is better."""
    return _size_standing(_printed(papers) - _printed(ours), papers)


def _size_standing(gain: float, papers: float) -> Standing:
    if abs(gain) <= SIZE_TOLERANCE * _printed(papers) + _ROUNDING:
        return Standing.EQUAL
    return Standing.BETTER if gain > 0 else Standing.WORSE


def _as_good(paper: PublishedRow, point: Point, others: Sequence[Point]) -> Point | None:
    """The point itself if it is at least as good, otherwise the one with the lowest error among those that are."""
    good = [
        other
        for other in others
        if other.method == paper.method
        and _printed(other.error) <= _printed(paper.error)
        and _printed(other.speedup) >= _printed(paper.speedup)
    ]
    return point if point in good else min(good, key=lambda other: (other.error, -other.speedup), default=None)


def _nowhere_worse(paper: PublishedRow, others: Sequence[Point]) -> Point | None:
    """Of the points that are nowhere worse the one that is nearest in speed-up."""
    found = [other for other in others if other.method == paper.method and Standing.WORSE not in _standings(paper, other)]
    return min(found, key=lambda other: abs(other.speedup - paper.speedup), default=None)


def _standings(paper: PublishedRow, point: Point) -> tuple[Standing, Standing, Standing]:
    return (
        error_standing(point.error, paper.error),
        speedup_standing(point.speedup, paper.speedup),
        memory_standing(point.memory, paper.memory),
    )


def _printed(value: float) -> float:
    return round(value, 2)
