"""Where ours is worse than the paper, in sentences: by how much, and what is known about it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from bayesprune.experiments.published import METHODS
from bayesprune.report.comparison.pairs import Comparison, NetworkComparison
from bayesprune.report.comparison.points import method_name, point_name
from bayesprune.report.comparison.verdicts import Standing
from bayesprune.report.document.comparison_sheets import verdict_text


@dataclass(frozen=True)
class Difference:
    """What is to be said of a method on a network.

    Attributes:
        method: as tables call it.
        sentences: about each of its rows that is worse or missing.
        remark: written by hand; empty if there is none.
    """

    method: str
    sentences: tuple[str, ...]
    remark: str


def differences(comparison: NetworkComparison, remarks: Mapping[str, str]) -> list[Difference]:
    """The methods of a network that there is something to say about.

    Args:
        comparison: of the network.
        remarks: written by hand, by method.
    """
    found = []
    for method in METHODS:
        own = [row for row in comparison.distinct if row.paper.method == method]
        sentences = [sentence for row in own if (sentence := _sentence(row))]
        lost = [row for row in comparison.diverged if row.method == method]
        sentences += [f"{point_name(method, row.tradeoff)}, seed {row.seed}, diverged: {row.reason}." for row in lost]
        if sentences or method in remarks:
            found.append(Difference(method_name(method), tuple(sentences), remarks.get(method, "")))
    return found


def _sentence(row: Comparison) -> str:
    """What is worse than in the paper; empty if nothing is."""
    name = point_name(row.paper.method, row.paper.tradeoff)
    if row.nearest:
        name = f"{name} in the main table"
    if row.point is None or row.verdict is None:
        return f"{name}: {'all models diverged' if row.missing == 'diverged' else 'not run'}."
    paper, point, verdict = row.paper, row.point, row.verdict
    worse = []
    if verdict.error is Standing.WORSE:
        worse.append(f"error {point.error:.2f} % against {paper.error:.2f} % ({point.error - paper.error:.2f} points more)")
    if verdict.speedup is Standing.WORSE:
        worse.append(f"xFLOPs {point.speedup:.2f} against {paper.speedup:.2f} ({_percent(1 - point.speedup / paper.speedup)} less)")
    if verdict.memory is Standing.WORSE:
        worse.append(f"memory {point.memory:.2f} % against {paper.memory:.2f} % ({_percent(point.memory / paper.memory - 1)} more)")
    if not worse:
        return ""
    nearest = f", beside ours at {point.tradeoff}" if row.nearest else ""
    return f"{name}{nearest}: {_listed(worse)}; {verdict_text(verdict, point)}."


def _percent(share: float) -> str:
    return f"{share:.0%}".replace("%", " %")


def _listed(parts: Sequence[str]) -> str:
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"
