"""A recipe of our own beside the best that the paper prints."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from bayesprune.experiments.protocol import OWN_TARGETS, Target
from bayesprune.report.comparison.points import Point, method_name
from bayesprune.report.comparison.verdicts import Standing
from bayesprune.report.document.sheets import EMPTY, Cell, Sheet, number, sheet, tradeoff_cell, units_cell, words


@dataclass(frozen=True)
class Attempt:
    """What became of a target.

    Attributes:
        target: to be beaten.
        point: that was chosen for it; None if it was not trained.
    """

    target: Target
    point: Point | None

    @property
    def beaten(self) -> bool:
        """Whether the point is fast enough, and its median error below the target by more than its standard error."""
        if self.point is None or round(self.point.speedup, 2) < self.target.speedup:
            return False
        return self.target.error - self.point.error > self.point.standard_error


def attempts(points: Sequence[Point], targets: Sequence[Target]) -> list[Attempt]:
    """What became of each target: the point at the trade-off that was chosen for it, whatever others there are."""
    found = {point.tradeoff: point for point in points if point.method == "dbb"}
    return [Attempt(target, found.get(target.tradeoff)) for target in targets]


def own_recipe_sheets(recipe: str, found: Mapping[str, Sequence[Point]]) -> list[Sheet]:
    """The targets and all points of a recipe on each network, by the names of their tables."""
    sheets = []
    for network, points in found.items():
        sheets += [_target_sheet(network, points, OWN_TARGETS[recipe][network]), _points_sheet(network, points)]
    return sheets


def _target_sheet(network: str, points: Sequence[Point], targets: Sequence[Target]) -> Sheet:
    lines = []
    for attempt in attempts(points, targets):
        target, point = attempt.target, attempt.point
        wanted = [Cell(f"below {target.error:.2f}", target.error), Cell(f"{target.speedup:.1f} or more", target.speedup)]
        if point is None:
            lines.append([*wanted, words("not run"), EMPTY, EMPTY, EMPTY, EMPTY, Cell("no", "no", Standing.WORSE)])
        else:
            outcome = Cell("yes", "yes", Standing.BETTER) if attempt.beaten else Cell("no", "no", Standing.WORSE)
            size = [number(point.speedup), number(point.memory), number(len(point.outcomes), 0)]
            lines.append([*wanted, words(point.name), number(point.error, 2, _standard_error(point)), *size, outcome])
    headings = ("#error %, wanted", "#xFLOPs, wanted", "ours", "#error %", "#xFLOPs", "#memory %", "#seeds", "beaten")
    note = (
        "Median error over seeds ± the standard error of the mean; beaten means fast enough, and below the target by more than that. "
        "The remark on the recipe says how its trade-offs were chosen."
    )
    return sheet(f"Targets on {network}", headings, lines, note)


def _points_sheet(network: str, points: Sequence[Point]) -> Sheet:
    lines = [
        [
            words(method_name(point.method)),
            tradeoff_cell(point.tradeoff),
            number(point.error, 2, _standard_error(point)),
            number(point.speedup),
            number(point.memory),
            units_cell(point.kept),
            Cell(f"{len(point.outcomes)}{f', {point.diverged} diverged' if point.diverged else ''}", len(point.outcomes)),
        ]
        for point in points
    ]
    headings = ("method", "#trade-off", "#error %", "#xFLOPs", "#memory %", "kept units", "#seeds")
    return sheet(f"All points on {network}", headings, lines)


def _standard_error(point: Point) -> str:
    return "" if math.isinf(point.standard_error) else f" ± {point.standard_error:.2f}"
