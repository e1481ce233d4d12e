"""A recipe of our own beside the best that the paper prints."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from bayesprune.experiments.published import tradeoff_value
from bayesprune.report.comparison.points import Point, method_name, points_of
from bayesprune.report.comparison.rows import ResultRow
from bayesprune.report.comparison.verdicts import Standing
from bayesprune.report.document.sheets import EMPTY, Cell, Sheet, number, sheet, words
from bayesprune.report.tables import join_units

TARGET_NETWORK = "lenet-500-300"


@dataclass(frozen=True)
class Target:
    """An error to stay below at a speed-up or more."""

    error: float
    speedup: float


TARGETS = (Target(1.26, 13.4), Target(1.40, 38.7), Target(1.59, 47.1))
"""Rows of BB and DBB in the paper's tables: the lowest error, and two of the fastest networks."""


@dataclass(frozen=True)
class Attempt:
    """The best of our points at a target's speed-up.

    Attributes:
        target: to be beaten.
        point: with the lowest error among those that are fast enough; None if none is.
    """

    target: Target
    point: Point | None

    @property
    def beaten(self) -> bool:
        """Whether the median error is below the target by more than its standard error."""
        return self.point is not None and self.target.error - self.point.error > self.point.standard_error


def attempts(points: Sequence[Point]) -> list[Attempt]:
    """What became of each target."""
    found = []
    for target in TARGETS:
        fast = [point for point in points if round(point.speedup, 2) >= target.speedup]
        found.append(Attempt(target, min(fast, key=lambda point: (point.error, -point.speedup), default=None)))
    return found


def own_recipe_sheets(rows: Sequence[ResultRow]) -> list[Sheet]:
    """The targets, and all points of our recipe; nothing without rows."""
    if not rows:
        return []
    points = points_of([row for row in rows if row.network == TARGET_NETWORK])
    return [_target_sheet(points), *(_points_sheet(network, rows) for network in sorted({row.network for row in rows}))]


def _target_sheet(points: Sequence[Point]) -> Sheet:
    lines = []
    for attempt in attempts(points):
        target, point = attempt.target, attempt.point
        wanted = [Cell(f"below {target.error:.2f}", target.error), Cell(f"{target.speedup:.1f} or more", target.speedup)]
        if point is None:
            lines.append([*wanted, words("none is as fast"), EMPTY, EMPTY, EMPTY, EMPTY, Cell("no", "no", Standing.WORSE)])
        else:
            outcome = Cell("yes", "yes", Standing.BETTER) if attempt.beaten else Cell("no", "no", Standing.WORSE)
            size = [number(point.speedup), number(point.memory), number(len(point.outcomes), 0)]
            lines.append([*wanted, words(point.name), number(point.error, 2, _standard_error(point)), *size, outcome])
    headings = ("#error %, wanted", "#xFLOPs, wanted", "ours", "#error %", "#xFLOPs", "#memory %", "#seeds", "beaten")
    note = (
        f"On {TARGET_NETWORK}. Median error over seeds ± the standard error of the mean; beaten means below the target by more than that. "
        "Among points that are fast enough, the one with the lowest median error is shown."
    )
    return sheet("Targets", headings, lines, note)


def _points_sheet(network: str, rows: Sequence[ResultRow]) -> Sheet:
    own = [row for row in rows if row.network == network]
    lines = [
        [
            words(method_name(point.method)),
            EMPTY if point.tradeoff is None else Cell(point.tradeoff, tradeoff_value(point.tradeoff)),
            number(point.error, 2, _standard_error(point)),
            number(point.speedup),
            number(point.memory),
            Cell(join_units(point.kept), sum(point.kept)),
            Cell(f"{len(point.outcomes)}{f', {point.diverged} diverged' if point.diverged else ''}", len(point.outcomes)),
        ]
        for point in points_of(own)
    ]
    headings = ("method", "#trade-off", "#error %", "#xFLOPs", "#memory %", "kept units", "#seeds")
    return sheet(f"All points on {network}", headings, lines)


def _standard_error(point: Point) -> str:
    return "" if math.isinf(point.standard_error) else f" ± {point.standard_error:.2f}"
