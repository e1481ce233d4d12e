"""How many rows of the paper are reached."""

from collections.abc import Sequence
from dataclasses import dataclass

from bayesprune.report.comparison.pairs import Comparison
from bayesprune.report.comparison.verdicts import Standing


@dataclass(frozen=True)
class Counts:
    """Rows of a table by what became of them.

    Attributes:
        rows: all.
        nowhere_worse: reached at their own trade-off.
        elsewhere: reached, though not at their own trade-off: another point is at least as good.
        not_reached: compared, and neither.
        nowhere_worse_elsewhere: of these, those that another trade-off is nowhere worse than.
        diverged: all models diverged.
        not_run: there are no models.
        figures: of error, speedup and memory: how many are better, equal and worse.
    """

    rows: int
    nowhere_worse: int
    elsewhere: int
    not_reached: int
    nowhere_worse_elsewhere: int
    diverged: int
    not_run: int
    figures: dict[str, dict[Standing, int]]

    @property
    def reached(self) -> int:
        """Rows that are reached in either way."""
        return self.nowhere_worse + self.elsewhere


def count(comparisons: Sequence[Comparison]) -> Counts:
    """Count what became of rows of the paper."""
    verdicts = [row.verdict for row in comparisons if row.verdict is not None]
    return Counts(
        len(comparisons),
        sum(verdict.nowhere_worse for verdict in verdicts),
        sum(verdict.reached and not verdict.nowhere_worse for verdict in verdicts),
        sum(not verdict.reached for verdict in verdicts),
        sum(verdict.nowhere_worse_at is not None for verdict in verdicts),
        sum(row.missing == "diverged" for row in comparisons),
        sum(row.missing == "not run" for row in comparisons),
        {
            name: {standing: sum(getattr(verdict, name) is standing for verdict in verdicts) for standing in Standing}
            for name in ("error", "speedup", "memory")
        },
    )
