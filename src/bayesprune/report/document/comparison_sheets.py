"""The paper's tables beside ours, as tables."""

from bayesprune.report.comparison.counts import Counts, count
from bayesprune.report.comparison.pairs import Comparison, NetworkComparison
from bayesprune.report.comparison.points import Point, method_name
from bayesprune.report.comparison.verdicts import ERROR_TOLERANCE, SIZE_TOLERANCE, Standing, Verdict
from bayesprune.report.document.provenance import seconds_together
from bayesprune.report.document.sheets import EMPTY, Cell, Sheet, number, sheet, tradeoff_cell, units_cell, words

HOW_TO_READ = (
    "Ours are medians over seeds; ± is the standard deviation of just these seeds (for recipes of our own, the standard error of "
    "the mean), and kept units are rounded down, as in the paper. "
    "Figures are compared as printed: errors within "
    f"{ERROR_TOLERANCE:.2f} points of the paper's, xFLOPs and memory within {100 * SIZE_TOLERANCE:.0f} % of the paper's count as equal. "
    "▲ is better than the paper's, ▼ is worse. A row is reached if none of the three is worse, or if some trade-off of the same method "
    "is at least as good in both error and xFLOPs, which the verdict then names. If it is not reached, the verdict names the trade-off, if "
    "there is one, where none of the three is worse."
)
NEAREST = "* The paper does not say at which trade-off this row was found: ours is the one nearest in xFLOPs."


def main_sheet(comparison: NetworkComparison) -> Sheet:
    """The main table, with kept units."""
    headings = (*_HEADINGS, "kept units, paper", "kept units, ours", "#seeds", "verdict")
    rows = [[*_figures(row), *_kept(row), _seeds(row.point), verdict_cell(row)] for row in comparison.main]
    return sheet("The main table", headings, rows, NEAREST if any(row.nearest for row in comparison.main) else "")


def tradeoff_sheet(comparison: NetworkComparison) -> Sheet:
    """The table of all trade-offs; ends with those that only we have."""
    headings = (*_HEADINGS, "kept units, ours", "#seeds", "verdict")
    rows = [[*_figures(row), _kept(row)[1], _seeds(row.point), verdict_cell(row)] for row in comparison.appendix]
    rows += [[*_own_figures(point), units_cell(point.kept), _seeds(point), words("not in the paper")] for point in comparison.beyond_paper]
    return sheet("All trade-offs", headings, rows)


def summary_sheet(comparisons: list[NetworkComparison]) -> Sheet:
    """How many rows of each printed table are reached."""
    rows = []
    for comparison in comparisons:
        for table, compared in (("main", comparison.main), ("all trade-offs", comparison.appendix)):
            counts = count(compared)
            reached = (counts.nowhere_worse, counts.elsewhere, counts.not_reached, counts.nowhere_worse_elsewhere)
            numbers = (counts.rows, *reached, counts.diverged, counts.not_run)
            rows.append([words(comparison.title), words(table), *(number(value, 0) for value in numbers), *_standings(counts)])
    headings = (
        "network",
        "table",
        "#rows",
        "#reached",
        "#reached elsewhere",
        "#not reached",
        "#of these, within tolerance elsewhere",
        "#diverged",
        "#not run",
        "#error ▲\N{NO-BREAK SPACE}=\N{NO-BREAK SPACE}▼",
        "#xFLOPs ▲\N{NO-BREAK SPACE}=\N{NO-BREAK SPACE}▼",
        "#memory ▲\N{NO-BREAK SPACE}=\N{NO-BREAK SPACE}▼",
    )
    note = (
        "Reached: no figure is worse than the paper's by more than the tolerances. Reached elsewhere: at least as good in both error and "
        "xFLOPs, most often at another trade-off. Within tolerance elsewhere: not reached, but at another trade-off no figure is worse by "
        "more than the tolerances. The last three columns count the "
        f"figures that are better, equal and worse. {seconds_together([row for comparison in comparisons for row in comparison.rows])}"
    )
    return sheet("How many rows are reached", headings, rows, note)


def verdict_text(verdict: Verdict, point: Point) -> str:
    """A verdict in a few words."""
    if verdict.nowhere_worse:
        return "reached"
    if verdict.as_good == point:
        return "reached in error and xFLOPs"
    if verdict.as_good is not None:
        return f"reached by {_where(verdict.as_good)}"
    return "not reached" if verdict.nowhere_worse_at is None else f"not reached; within tolerance is {_where(verdict.nowhere_worse_at)}"


def _where(point: Point) -> str:
    return f"{point.name}: {point.error:.2f} %, {point.speedup:.2f}x"


def verdict_cell(row: Comparison) -> Cell:
    """The cell of a verdict."""
    if row.verdict is None or row.point is None:
        return words(row.missing)
    standing = Standing.EQUAL if row.verdict.reached else Standing.WORSE
    return Cell(
        verdict_text(row.verdict, row.point), verdict_text(row.verdict, row.point), None if standing is Standing.EQUAL else standing
    )


_HEADINGS = (
    "method",
    "#trade-off",
    "#error %, paper",
    "#error %, ours",
    "#xFLOPs, paper",
    "#xFLOPs, ours",
    "#memory %, paper",
    "#memory %, ours",
)


def _figures(row: Comparison) -> list[Cell]:
    paper, point, verdict = row.paper, row.point, row.verdict
    tradeoff = point.tradeoff if row.nearest and point is not None else paper.tradeoff
    spread = "" if paper.error_std is None else f" ± {paper.error_std:.2f}"
    own = [EMPTY, EMPTY, EMPTY]
    if point is not None and verdict is not None:
        own = [
            number(point.error, 2, point.spread, verdict.error),
            number(point.speedup, standing=verdict.speedup),
            number(point.memory, standing=verdict.memory),
        ]
    return [
        words(method_name(paper.method)),
        tradeoff_cell(tradeoff, "*" * row.nearest),
        number(paper.error, 2, spread),
        own[0],
        number(paper.speedup),
        own[1],
        number(paper.memory),
        own[2],
    ]


def _own_figures(point: Point) -> list[Cell]:
    error = number(point.error, 2, point.spread)
    name = words(method_name(point.method))
    return [name, tradeoff_cell(point.tradeoff), EMPTY, error, EMPTY, number(point.speedup), EMPTY, number(point.memory)]


def _kept(row: Comparison) -> tuple[Cell, Cell]:
    ours = EMPTY if row.point is None else units_cell(row.point.kept)
    return EMPTY if row.paper.kept is None else units_cell(row.paper.kept), ours


def _seeds(point: Point | None) -> Cell:
    if point is None:
        return EMPTY
    finished = len(point.outcomes)
    return Cell(f"{finished}, {point.diverged} diverged" if point.diverged else str(finished), finished)


def _standings(counts: Counts) -> list[Cell]:
    cells = []
    for name in ("error", "speedup", "memory"):
        better, equal, worse = (counts.figures[name][standing] for standing in Standing)
        cells.append(Cell(f"{better} / {equal} / {worse}", better - worse))
    return cells
