"""Tables as data, which the document and the page both show."""

from collections.abc import Sequence
from dataclasses import dataclass

from bayesprune.experiments.published import tradeoff_value
from bayesprune.report.comparison.verdicts import Standing
from bayesprune.report.tables import join_units

MARKS = {Standing.BETTER: "▲", Standing.EQUAL: "", Standing.WORSE: "▼"}


@dataclass(frozen=True)
class Cell:
    """A cell of a table.

    Attributes:
        text: what is read.
        value: what sorts it among others of its column; None sorts last, whatever the direction.
        standing: beside the paper's figure, where it is one of ours.
    """

    text: str
    value: float | str | None = None
    standing: Standing | None = None

    @property
    def mark(self) -> str:
        """A sign for its standing."""
        return "" if self.standing is None else MARKS[self.standing]


EMPTY = Cell("")


@dataclass(frozen=True)
class Sheet:
    """A table.

    Attributes:
        title: above it.
        headings: of its columns.
        numeric: for each column, whether it has numbers.
        rows: of cells.
        note: below it.
    """

    title: str
    headings: tuple[str, ...]
    numeric: tuple[bool, ...]
    rows: tuple[tuple[Cell, ...], ...]
    note: str = ""


def sheet(title: str, headings: Sequence[str], rows: Sequence[Sequence[Cell]], note: str = "") -> Sheet:
    """A table from headings, of which those that begin with ``#`` stand above numbers."""
    return Sheet(
        title,
        tuple(heading.removeprefix("#") for heading in headings),
        tuple(heading.startswith("#") for heading in headings),
        tuple(tuple(row) for row in rows),
        note,
    )


def words(text: str) -> Cell:
    """A cell of text; an empty one sorts last."""
    return Cell(text, text or None)


def number(value: float, digits: int = 2, after: str = "", standing: Standing | None = None) -> Cell:
    """A cell with a number, and perhaps something after it."""
    return Cell(f"{value:.{digits}f}{after}", value, standing)


def tradeoff_cell(tradeoff: str | None, after: str = "") -> Cell:
    """A cell with a trade-off as it is printed; empty where there is none."""
    return EMPTY if tradeoff is None else Cell(tradeoff + after, tradeoff_value(tradeoff))


def units_cell(kept: Sequence[float]) -> Cell:
    """A cell with the units of every gate; sorted by their sum."""
    return Cell(join_units(kept), sum(kept))


def change(value: float, digits: int = 2, after: str = "") -> Cell:
    """A cell with a signed number; what rounds to zero has no sign."""
    rounded = round(value, digits)
    return Cell(f"{rounded:+.{digits}f}{after}" if rounded else f"{0:.{digits}f}{after}", value)
