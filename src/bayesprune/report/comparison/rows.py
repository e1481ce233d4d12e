"""The rows that a reproduction wrote, checked and typed."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bayesprune.errors import ResultsError, did_you_mean
from bayesprune.experiments import protocol
from bayesprune.experiments.published import METHODS, published_networks, tradeoff_value
from bayesprune.report.comparison.fields import Fields
from bayesprune.storage import exists, is_folder, read_rows
from bayesprune.training import recipes
from bayesprune.training.stages import DIVERGED, FINISHED

OWN_RECIPE = f"{protocol.OWN}.jsonl"
"""The file with rows of a recipe of ours."""
PAPER, QUICK = recipes.PAPER.name, protocol.QUICK.name
"""The recipe of the paper, and the small form of it that tries the machinery and must never be shown as the real thing."""


@dataclass(frozen=True)
class Size:
    """What is left of a network.

    Attributes:
        kept: units of each gate.
        speedup: dense over pruned FLOPs, as the paper counts them.
        memory: in percent of the dense network's.
    """

    kept: tuple[float, ...]
    speedup: float
    memory: float


@dataclass(frozen=True)
class Outcome(Size):
    """What is left of a network, and its test error in percent."""

    error: float


@dataclass(frozen=True)
class ResultRow:
    """One trained model.

    Attributes:
        network: of the zoo.
        dataset: of the catalogue.
        method: key, or ``dense``.
        tradeoff: as the paper prints it; None where there is none.
        seed: of everything random.
        recipe: that it was trained by.
        outcome: None if it diverged.
        reason: why it diverged.
        epochs: of its stage; None if it diverged and does not say.
        seconds: of the stage of the fleet it was trained in; None if it diverged and does not say.
        side_by_side: how many models that fleet had.
        software: hardware, device and versions by name.
        thresholds: the same model, pruned at other thresholds.
        soft: the same model, by the paper's soft count.
        static_kept: units of the static gates below input-dependent ones.
    """

    network: str
    dataset: str
    method: str
    tradeoff: str | None
    seed: int
    recipe: str
    outcome: Outcome | None
    reason: str | None
    epochs: int | None
    seconds: float | None
    side_by_side: int
    software: Mapping[str, str]
    thresholds: Mapping[str, Outcome] = field(default_factory=dict)
    soft: Size | None = None
    static_kept: tuple[float, ...] | None = None


_ORIGIN = ("hardware", "device", "torch", "python", "version")


def read_results(results: Path) -> dict[tuple[str, str], list[ResultRow]]:
    """The rows of every network and data set of the paper that has any, whatever their order in the file.

    Raises:
        ResultsError: there are none, or some are incomplete, doubled, or of a recipe that is neither the paper's nor quick.
        StorageError: a file cannot be read.
    """
    if not is_folder(results):
        raise ResultsError(f"there is no folder {results}: give the one that has the rows of a reproduction with --results")
    found = {}
    for network, dataset in published_networks():
        path = results / f"{network}-{dataset}.jsonl"
        rows = _read(path) if exists(path) else []
        for number, row in enumerate(rows, 1):
            if (row.network, row.dataset) != (network, dataset):
                raise ResultsError(f"{path}, row {number} is of {row.network} on {row.dataset}: it belongs into another file")
            if row.recipe not in (PAPER, QUICK):
                raise ResultsError(f"{path}, row {number} is of the recipe '{row.recipe}': only 'paper' is compared with the paper")
        if rows:
            found[network, dataset] = in_order(rows)
    if not found:
        names = ", ".join(f"{network}-{dataset}.jsonl" for network, dataset in published_networks())
        raise ResultsError(f"there are no rows in {results}: expected some in {names}")
    return found


def read_own_recipe(results: Path) -> list[ResultRow]:
    """The rows of our own recipe; none if there is no such file.

    Raises:
        ResultsError: they are damaged, of the paper's recipe, or of several.
    """
    path = results / OWN_RECIPE
    rows = in_order(_read(path)) if exists(path) else []
    recipes = sorted({row.recipe for row in rows})
    if PAPER in recipes:
        raise ResultsError(f"{path} has rows of the recipe 'paper', which belong into the files of their networks")
    if len(recipes) > 1:
        raise ResultsError(f"{path} has rows of several recipes, {', '.join(recipes)}: a table of one compares nothing else")
    return rows


def in_order(rows: Iterable[ResultRow]) -> list[ResultRow]:
    """Sorted as the paper's tables are: by method, then by trade-off, then by seed."""
    return sorted(rows, key=lambda row: (row.network, row.dataset, METHODS.index(row.method), tradeoff_order(row.tradeoff), row.seed))


def tradeoff_order(tradeoff: str | None) -> tuple[float, str]:
    """What sorts trade-offs: their values, and their texts where those are the same."""
    return (-1.0, "") if tradeoff is None else (tradeoff_value(tradeoff), tradeoff)


def _read(path: Path) -> list[ResultRow]:
    rows, seen = [], set()
    for number, values in enumerate(read_rows(path), 1):
        place = f"{path}, row {number}"
        if not isinstance(values, dict):
            raise ResultsError(f"{place} is no JSON object: put a good row in its place or take it out")
        row = _parse(Fields(values, place))
        identity = (row.network, row.dataset, row.method, row.tradeoff, row.seed)
        if identity in seen:
            raise ResultsError(f"{place} is there twice: {row.method}, trade-off {row.tradeoff}, seed {row.seed}; take one of them out")
        seen.add(identity)
        rows.append(row)
    _check_gates(rows, path)
    return rows


def _parse(fields: Fields) -> ResultRow:
    status = fields.text("status")
    if status not in (FINISHED, DIVERGED):
        fields.refuse(f"the status is '{status}', neither 'finished' nor 'diverged'")
    finished = status == FINISHED
    return ResultRow(
        fields.text("network"),
        fields.text("dataset"),
        _method(fields),
        _tradeoff(fields),
        fields.whole("seed"),
        fields.text("recipe"),
        _outcome(fields) if finished else None,
        None if finished else fields.text("reason"),
        fields.whole("epochs", 0) if finished or fields.has("epochs") else None,
        fields.number("seconds") if finished or fields.has("seconds") else None,
        fields.whole("side_by_side", 1),
        {name: fields.text(name) for name in _ORIGIN},
        _thresholds(fields) if finished else {},
        _size(fields.part("soft")) if finished and fields.has("soft") else None,
        fields.units("static_kept") if finished and fields.has("static_kept") else None,
    )


def _method(fields: Fields) -> str:
    method = fields.text("method")
    if method not in METHODS:
        fields.refuse(f"no method is called '{method}': there are {', '.join(METHODS)}.{did_you_mean(method, METHODS)}")
    return method


def _tradeoff(fields: Fields) -> str | None:
    if fields.raw("tradeoff") is None:
        return None
    text = fields.text("tradeoff")
    if not _is_value(text):
        fields.refuse(f"'tradeoff' is not a number as the paper prints them, such as 0.1/60000, but '{text}'")
    return text


def _is_value(text: str) -> bool:
    """Whether a text is a number as the paper prints them."""
    try:
        return math.isfinite(tradeoff_value(text))
    except (ValueError, ZeroDivisionError):
        return False


def _thresholds(fields: Fields) -> dict[str, Outcome]:
    if not fields.has("thresholds"):
        return {}
    part = fields.part("thresholds")
    for name in part.values:
        if not _is_value(name):
            part.refuse(f"'{name}' is no threshold")
    return {name: _outcome(part.part(name)) for name in part.values}


def _outcome(fields: Fields) -> Outcome:
    size = _size(fields)
    return Outcome(size.kept, size.speedup, size.memory, fields.number("error"))


def _size(fields: Fields) -> Size:
    return Size(fields.units("kept"), _positive(fields, "speedup"), fields.number("memory"))


def _positive(fields: Fields, name: str) -> float:
    value = fields.number(name)
    if value == 0.0:
        fields.refuse(f"'{name}' is zero")
    return value


def _check_gates(rows: list[ResultRow], path: Path) -> None:
    """Rows of a network have as many gates as each other."""
    gates: dict[str, int] = {}
    for number, row in enumerate(rows, 1):
        sizes: list[Any] = [row.outcome, row.soft, *row.thresholds.values()]
        counts = [size.kept for size in sizes if size is not None] + [row.static_kept] * (row.static_kept is not None)
        for kept in counts:
            if len(kept) != gates.setdefault(row.network, len(kept)):
                raise ResultsError(f"{path}, row {number} has units of {len(kept)} gates, rows before it of {gates[row.network]}")
