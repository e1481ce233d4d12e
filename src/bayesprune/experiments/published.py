"""The paper's tables, as data: what a reproduction is compared with.

``published.csv`` has a line for each printed row: of the main tables, which show one or two trade-offs of each method, and of the appendix,
which shows all. The main tables do not print trade-offs; a row's is that of the appendix row with the same numbers, where there is one.

References:
    Lee et al., "Adaptive Network Sparsification with Dependent Variational Beta-Bernoulli Dropout", 2019, tables 1 to 4.
"""

import csv
import math
from dataclasses import dataclass, replace
from functools import cache
from importlib.resources import files
from typing import Literal

METHODS = ("dense", "cd", "gd", "sbp", "l0", "vib", "bb", "dbb")
"""In the order of the paper's tables; ``dense`` is the network without gates."""
WITHOUT_TRADEOFF = ("dense", "cd")
"""Methods that have none."""


@dataclass(frozen=True)
class PublishedRow:
    """A row of a printed table.

    Attributes:
        table: ``main`` or ``appendix``.
        network: of the zoo.
        dataset: of the catalogue.
        method: key, or ``dense``.
        tradeoff: as it is printed, such as ``0.1/60000``; None where there is none, or where a main row is none of the appendix's.
        error: in percent.
        error_std: of three runs; None where none is printed.
        kept: units of each gate; None where they are not printed.
        speedup: dense over pruned FLOPs.
        memory: in percent of the dense network's.
    """

    table: Literal["main", "appendix"]
    network: str
    dataset: str
    method: str
    tradeoff: str | None
    error: float
    error_std: float | None
    kept: tuple[int, ...] | None
    speedup: float
    memory: float


def published_rows(network: str, dataset: str, table: Literal["main", "appendix"] | None = None) -> list[PublishedRow]:
    """The printed rows of a network on a data set, in the order of the tables."""
    return [row for row in _all() if (row.network, row.dataset) == (network, dataset) and table in (None, row.table)]


def published_networks() -> list[tuple[str, str]]:
    """Every network with its data set that the tables have."""
    return list(dict.fromkeys((row.network, row.dataset) for row in _all()))


def tradeoff_value(text: str) -> float:
    """A printed trade-off as a number: 1, 5e-7, 0.1/60000."""
    numerator, _, denominator = text.partition("/")
    return float(numerator) / float(denominator or 1)


def is_printed_number(text: str) -> bool:
    """Whether a text is a number above zero as the paper prints them."""
    try:
        return "_" not in text and 0.0 < tradeoff_value(text) < math.inf
    except (ValueError, ZeroDivisionError):
        return False


@cache
def _all() -> tuple[PublishedRow, ...]:
    text = (files("bayesprune.experiments") / "published.csv").read_text(encoding="utf-8")
    rows = [_read(line) for line in csv.DictReader(text.splitlines())]
    appendix = [row for row in rows if row.table == "appendix"]
    return tuple(replace(row, tradeoff=_tradeoff_of(row, appendix)) if row.table == "main" else row for row in rows)


def _read(line: dict[str, str]) -> PublishedRow:
    table: Literal["main", "appendix"] = "main" if line["table"] == "main" else "appendix"
    return PublishedRow(
        table,
        line["network"],
        line["dataset"],
        line["method"],
        line["tradeoff"] or None,
        float(line["error"]),
        float(line["error_std"]) if line["error_std"] else None,
        tuple(int(units) for units in line["kept"].split("-")) if line["kept"] else None,
        float(line["speedup"]),
        float(line["memory"]),
    )


def _tradeoff_of(row: PublishedRow, appendix: list[PublishedRow]) -> str | None:
    """Which trade-off of the appendix a main row shows: the one with its numbers, its speed-up or, as two differ in print, its error."""
    own = [other for other in appendix if (other.network, other.dataset, other.method) == (row.network, row.dataset, row.method)]
    for names in (("error", "speedup", "memory"), ("speedup",), ("error",)):
        same = [other for other in own if all(getattr(other, name) == getattr(row, name) for name in names)]
        if len(same) == 1:
            return same[0].tradeoff
    return None
