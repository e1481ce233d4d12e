"""What a reproduction came to, for the terminal: narrower than the tables of a report."""

from rich.table import Table

from bayesprune.report.comparison.pairs import Comparison, NetworkComparison
from bayesprune.report.comparison.points import Point, method_name
from bayesprune.report.comparison.verdicts import Standing
from bayesprune.report.document.sheets import MARKS
from bayesprune.report.tables import join_units


def comparison_table(comparison: NetworkComparison) -> Table:
    """All trade-offs: ours, with the paper's in brackets, and whether the paper's row is reached."""
    table = Table(title=f"{comparison.title}: ours (the paper's)", padding=(0, 1, 0, 0), collapse_padding=True)
    for heading in ("method", "trade-off", "error %", "xFLOPs", "kept units", "reached"):
        table.add_column(heading, justify="right" if heading in ("error %", "xFLOPs") else "left")
    for row in comparison.appendix:
        table.add_row(method_name(row.paper.method), row.paper.tradeoff or "", *_figures(row), _reached(row))
    for point in comparison.beyond_paper:
        table.add_row(method_name(point.method), point.tradeoff or "", *_own(point), "ours alone")
    return table


def _figures(row: Comparison) -> tuple[str, str, str]:
    paper = row.paper
    if row.point is None or row.verdict is None:
        return f"({paper.error:.2f})", f"({paper.speedup:.1f})", ""
    error, speedup, kept = _own(row.point)
    return (
        f"{error} ({paper.error:.2f}){_mark(row.verdict.error)}",
        f"{speedup} ({paper.speedup:.1f}){_mark(row.verdict.speedup)}",
        kept,
    )


def _own(point: Point) -> tuple[str, str, str]:
    return f"{point.error:.2f}", f"{point.speedup:.1f}", join_units(point.kept)


def _mark(standing: Standing) -> str:
    return f" {MARKS[standing]}" if MARKS[standing] else "  "


def _reached(row: Comparison) -> str:
    if row.verdict is None:
        return row.missing
    if row.verdict.nowhere_worse:
        return "yes"
    return "elsewhere" if row.verdict.reached else "no"
