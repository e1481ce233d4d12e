"""Models that differ in their seed alone, as one point: medians over seeds."""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from bayesprune.experiments.published import published_networks
from bayesprune.experiments.rows import Outcome, ResultRow


@dataclass(frozen=True)
class Point:
    """The models of a method at a trade-off.

    Attributes:
        method: key, or ``dense``.
        tradeoff: as the paper prints it.
        outcomes: of the models that did not diverge; at least one.
        diverged: how many did.
        error: the median, in percent.
        error_std: the standard deviation over seeds, dividing by their number.
        speedup: the median of the ratios of each model, as in the paper.
        memory: likewise.
        kept: the median of each gate, without its fraction.
    """

    method: str
    tradeoff: str | None
    outcomes: tuple[Outcome, ...]
    diverged: int
    error: float
    error_std: float
    speedup: float
    memory: float
    kept: tuple[int, ...]

    @property
    def name(self) -> str:
        """What it is called in a sentence."""
        return point_name(self.method, self.tradeoff)

    @property
    def spread(self) -> str:
        """The standard deviation as it stands behind the median; nothing for a single seed, which has none."""
        return f" ± {self.error_std:.2f}" if len(self.outcomes) > 1 else ""

    @property
    def standard_error(self) -> float:
        """Of the mean error over seeds, from the sample's standard deviation; infinite for a single seed."""
        errors = [outcome.error for outcome in self.outcomes]
        return statistics.stdev(errors) / math.sqrt(len(errors)) if len(errors) > 1 else math.inf


def points_of(rows: Sequence[ResultRow]) -> list[Point]:
    """The points of one network's rows, in the order of the rows. Models that all diverged make no point: see `diverged_rows`."""
    groups: dict[tuple[str, str | None], list[ResultRow]] = {}
    for row in rows:
        groups.setdefault((row.method, row.tradeoff), []).append(row)
    return [_point(group) for group in groups.values() if any(row.outcome is not None for row in group)]


def diverged_rows(rows: Sequence[ResultRow]) -> list[ResultRow]:
    """The models that diverged."""
    return [row for row in rows if row.outcome is None]


def median_kept(counts: Sequence[tuple[float, ...]]) -> tuple[int, ...]:
    """The median units of each gate, without its fraction."""
    return tuple(int(statistics.median(units)) for units in zip(*counts, strict=True))


def method_name(method: str) -> str:
    """A method as tables call it."""
    return "Original" if method == "dense" else method.upper()


def point_name(method: str, tradeoff: str | None) -> str:
    """A method at a trade-off, in a sentence."""
    return method_name(method) if tradeoff is None else f"{method_name(method)} at {tradeoff}"


def network_label(network: str, dataset: str) -> str:
    """A network in the names of files: with its data set only where the paper has it on several."""
    datasets = [other for name, other in published_networks() if name == network]
    return f"{network}-{dataset}" if len(datasets) > 1 else network


def _point(rows: Sequence[ResultRow]) -> Point:
    outcomes = tuple(row.outcome for row in rows if row.outcome is not None)
    errors = [outcome.error for outcome in outcomes]
    return Point(
        rows[0].method,
        rows[0].tradeoff,
        outcomes,
        len(rows) - len(outcomes),
        statistics.median(errors),
        statistics.pstdev(errors),
        statistics.median(outcome.speedup for outcome in outcomes),
        statistics.median(outcome.memory for outcome in outcomes),
        median_kept([outcome.kept for outcome in outcomes]),
    )
