"""The paper's tables, row by row, beside ours."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from bayesprune.experiments.published import WITHOUT_TRADEOFF, PublishedRow, published_rows
from bayesprune.experiments.rows import ResultRow
from bayesprune.report.comparison.points import Point, diverged_rows, network_label, points_of
from bayesprune.report.comparison.verdicts import Verdict, judge


@dataclass(frozen=True)
class Comparison:
    """A printed row of the paper beside ours.

    Attributes:
        paper: the printed row.
        point: ours; None if there is none.
        nearest: the paper does not say which trade-off its row has, so ours is the one that is nearest in speed-up.
        verdict: on our point; None if there is none.
        missing: why there is no point.
    """

    paper: PublishedRow
    point: Point | None
    nearest: bool
    verdict: Verdict | None
    missing: Literal["", "not run", "diverged"] = ""


@dataclass(frozen=True)
class NetworkComparison:
    """Everything that we and the paper have about a network on a data set.

    Attributes:
        network: of the zoo.
        dataset: of the catalogue.
        rows: ours.
        points: ours, medians over seeds.
        main: the rows of the paper's main table.
        appendix: the rows of its appendix.
    """

    network: str
    dataset: str
    rows: tuple[ResultRow, ...]
    points: tuple[Point, ...]
    main: tuple[Comparison, ...]
    appendix: tuple[Comparison, ...]

    @property
    def label(self) -> str:
        """The network in names of files."""
        return network_label(self.network, self.dataset)

    @property
    def title(self) -> str:
        """The network in headings."""
        return f"{self.network} on {self.dataset}"

    @property
    def diverged(self) -> list[ResultRow]:
        """The models that diverged."""
        return diverged_rows(self.rows)

    @property
    def beyond_paper(self) -> list[Point]:
        """Points that the paper does not have: at other trade-offs."""
        printed = {(row.paper.method, row.paper.tradeoff) for row in (*self.main, *self.appendix)}
        return [point for point in self.points if (point.method, point.tradeoff) not in printed]

    @property
    def distinct(self) -> list[Comparison]:
        """Every printed row once: the appendix, and what the main table alone has."""
        printed = {(row.paper.method, row.paper.tradeoff) for row in self.appendix}
        alone = [row for row in self.main if (row.paper.method, row.paper.tradeoff) not in printed]
        return [*(row for row in alone if row.paper.method == "dense"), *self.appendix, *(r for r in alone if r.paper.method != "dense")]


def compare(network: str, dataset: str, rows: Sequence[ResultRow]) -> NetworkComparison:
    """Put rows of ours beside the paper's tables.

    Args:
        network: of the zoo.
        dataset: of the catalogue.
        rows: of this network and data set.
    """
    points = points_of(rows)
    compared = [_compare_row(row, points, rows) for row in published_rows(network, dataset)]
    main, appendix = (tuple(each for each in compared if each.paper.table == table) for table in ("main", "appendix"))
    return NetworkComparison(network, dataset, tuple(rows), tuple(points), main, appendix)


def _compare_row(paper: PublishedRow, points: Sequence[Point], rows: Sequence[ResultRow]) -> Comparison:
    own = [point for point in points if point.method == paper.method]
    nearest = paper.tradeoff is None and paper.method not in WITHOUT_TRADEOFF
    if nearest:
        point = min(own, key=lambda point: abs(math.log(point.speedup / paper.speedup)), default=None)
    else:
        point = next((point for point in own if point.tradeoff == paper.tradeoff), None)
    if point is not None:
        return Comparison(paper, point, nearest, judge(paper, point, points))
    tried = any(row.method == paper.method and (nearest or row.tradeoff == paper.tradeoff) for row in rows)
    return Comparison(paper, None, nearest, None, "diverged" if tried else "not run")
