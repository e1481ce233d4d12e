"""The files of results that a report compares with the paper: which rows each may hold, and their order."""

from collections.abc import Iterable
from pathlib import Path

from bayesprune.errors import ResultsError
from bayesprune.experiments import protocol
from bayesprune.experiments.published import METHODS, published_networks, tradeoff_value
from bayesprune.experiments.rows import ResultRow, read_result_rows
from bayesprune.storage import exists, is_folder
from bayesprune.training import recipes

PAPER, QUICK = recipes.PAPER.name, protocol.QUICK.name
"""The recipe of the paper, and the small form of it that tries the machinery and must never be shown as the real thing."""


def read_results(results: Path) -> dict[tuple[str, str], list[ResultRow]]:
    """The rows of every network and data set of the paper that has any, whatever their order in the file.

    Raises:
        ResultsError: there are none, or some are incomplete, doubled, or not all of the paper's recipe or all quick.
        StorageError: a file cannot be read.
    """
    if not is_folder(results):
        raise ResultsError(f"there is no folder {results}: give the one that has the rows of a reproduction with --results")
    found = {}
    for network, dataset in published_networks():
        path = results / f"{network}-{dataset}.jsonl"
        rows = read_result_rows(path) if exists(path) else []
        for number, row in enumerate(rows, start=1):
            if (row.network, row.dataset) != (network, dataset):
                raise ResultsError(f"{path}, line {number} is of {row.network} on {row.dataset}: it belongs into another file")
            if row.recipe not in (PAPER, QUICK):
                raise ResultsError(f"{path}, line {number} is of the recipe '{row.recipe}': only 'paper' is compared with the paper")
        if len({row.recipe for row in rows}) > 1:
            raise ResultsError(f"{path} has rows of the recipes '{PAPER}' and '{QUICK}': move those of '{QUICK}' to a folder of their own")
        if rows:
            found[network, dataset] = as_in_tables(rows)
    if not found:
        names = ", ".join(f"{network}-{dataset}.jsonl" for network, dataset in published_networks())
        raise ResultsError(f"there are no rows in {results}: expected some in {names}")
    return found


def read_own_recipe(results: Path) -> list[ResultRow]:
    """The rows of our own recipe, of all networks; none if there are no such files.

    Raises:
        ResultsError: they are damaged, of another network or of the paper's recipe, or there are several recipes.
    """
    found = []
    for network in dict.fromkeys(network for network, _ in published_networks()):
        path = results / own_recipe_file(network)
        rows = read_result_rows(path) if exists(path) else []
        for number, row in enumerate(rows, start=1):
            if row.network != network:
                raise ResultsError(f"{path}, line {number} is of {row.network}: it belongs into {own_recipe_file(row.network)}")
            if row.recipe == PAPER:
                raise ResultsError(f"{path}, line {number} is of the recipe 'paper': it belongs into {row.network}-{row.dataset}.jsonl")
        found += rows
    recipes = sorted({row.recipe for row in found})
    if len(recipes) > 1:
        raise ResultsError(f"{results} has rows of several recipes of our own, {', '.join(recipes)}: a table of one compares nothing else")
    return as_in_tables(found)


def own_recipe_file(network: str) -> str:
    """The file with rows of a recipe of ours."""
    return f"{protocol.own_name(network)}.jsonl"


def as_in_tables(rows: Iterable[ResultRow]) -> list[ResultRow]:
    """Sorted as the paper's tables are: by method, then by trade-off, then by seed."""
    return sorted(rows, key=lambda row: (row.network, row.dataset, METHODS.index(row.method), tradeoff_order(row.tradeoff), row.seed))


def tradeoff_order(tradeoff: str | None) -> tuple[float, str]:
    """What sorts trade-offs: their values, and their texts where those are the same."""
    return (-1.0, "") if tradeoff is None else (tradeoff_value(tradeoff), tradeoff)
