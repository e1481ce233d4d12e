"""The files of results that a report compares with the paper: which rows each may hold, and their order."""

from collections.abc import Iterable
from pathlib import Path

from bayesprune.errors import ResultsError
from bayesprune.experiments import protocol
from bayesprune.experiments.published import METHODS, published_networks, tradeoff_value
from bayesprune.experiments.rows import ResultRow, read_result_rows
from bayesprune.experiments.tables import TABLES
from bayesprune.storage import exists, files_in, is_folder
from bayesprune.training import recipes

PAPER, QUICK = recipes.PAPER.name, protocol.QUICK.name
"""The recipe of the paper, and the small form of it that tries the machinery and must never be shown as the real thing."""


def read_results(results: Path) -> dict[tuple[str, str], list[ResultRow]]:
    """The rows of every network and data set of the paper that has any, whatever their order in the file.

    Raises:
        ResultsError: there is no such folder, or rows are incomplete, doubled, or not all of the paper's recipe or all quick.
        StorageError: a file cannot be read.
    """
    if not is_folder(results):
        raise ResultsError(f"there is no folder {results}: give the one that has the rows of a reproduction with --results")
    found = {}
    for network, dataset in published_networks():
        path = results / f"{network}-{dataset}.jsonl"
        rows = _published_rows(path, network, dataset, after_activation=False, shrink=False)
        if rows:
            found[network, dataset] = rows
    return found


def read_variants(results: Path) -> dict[tuple[str, str], list[ResultRow]]:
    """The rows of networks that were trained as the paper's but for the place of their gates, or that shrank meanwhile.

    Raises:
        ResultsError: rows are incomplete or doubled, or do not belong into their file.
        StorageError: a file cannot be read.
    """
    found: dict[tuple[str, str], list[ResultRow]] = {}
    for network, dataset in published_networks():
        for after_activation, shrink in ((False, True), (True, False), (True, True)):
            path = results / f"{network}-{dataset}-{protocol.variant_name(after_activation, shrink)}.jsonl"
            rows = _published_rows(path, network, dataset, after_activation, shrink)
            if rows:
                found.setdefault((network, dataset), []).extend(rows)
    return found


def read_own_recipes(results: Path) -> dict[str, list[ResultRow]]:
    """The rows of our own recipes, each with those of all networks; nothing if there are no such files.

    Raises:
        ResultsError: they are damaged, of another network or recipe, or a file is of no recipe that there is.
    """
    known = {own_recipe_file(recipe, table): (recipe, TABLES[table]) for recipe, own in protocol.OWN_TARGETS.items() for table in own}
    for path in files_in(results) if is_folder(results) else ():
        if path.name.startswith(protocol.OWN_PREFIX) and path.suffix == ".jsonl" and path.name not in known:
            raise ResultsError(
                f"{path} is of no recipe of ours and network that there are: rename it to one of {', '.join(known)}, or move it"
            )
    found: dict[str, list[ResultRow]] = {}
    for name, (recipe, table) in known.items():
        rows = _rows_of(results / name, table.network, table.dataset, (recipe,))
        if rows:
            found.setdefault(recipe, []).extend(rows)
    return found


def own_recipe_file(recipe: str, table: str) -> str:
    """The file with rows of a recipe of ours on the network of a table."""
    return f"{protocol.own_name(recipe, table)}.jsonl"


def _published_rows(path: Path, network: str, dataset: str, after_activation: bool, shrink: bool) -> list[ResultRow]:
    """The rows of a file of the paper's protocol, or of its quick form, with gates in their place, on networks that shrink or do not."""
    rows = _rows_of(path, network, dataset, (PAPER, QUICK))
    if len({row.recipe for row in rows}) > 1:
        raise ResultsError(f"{path} has rows of the recipes '{PAPER}' and '{QUICK}': move those of '{QUICK}' to a folder of their own")
    for row in rows:
        if (row.placement == "after activation", row.shrink) != (after_activation, shrink):
            raise ResultsError(f"{path}: {row.entry.title} was trained in another way: it belongs into another file")
    return rows


def _rows_of(path: Path, network: str, dataset: str, recipes: tuple[str, ...]) -> list[ResultRow]:
    """The rows of a file that is for these alone, as in tables; none if there is no such file."""
    rows = read_result_rows(path) if exists(path) else []
    for number, row in enumerate(rows, start=1):
        if (row.network, row.dataset) != (network, dataset):
            raise ResultsError(f"{path}, line {number} is of {row.network} on {row.dataset}: it belongs into another file")
        if row.recipe not in recipes:
            raise ResultsError(f"{path}, line {number} is of the recipe '{row.recipe}': only '{recipes[0]}' belongs here")
    return as_in_tables(rows)


def as_in_tables(rows: Iterable[ResultRow]) -> list[ResultRow]:
    """Sorted as the paper's tables are: by method, then by trade-off, then by seed."""
    return sorted(rows, key=lambda row: (row.network, row.dataset, METHODS.index(row.method), tradeoff_order(row.tradeoff), row.seed))


def tradeoff_order(tradeoff: str | None) -> tuple[float, str]:
    """What sorts trade-offs: their values, and their texts where those are the same."""
    return (-1.0, "") if tradeoff is None else (tradeoff_value(tradeoff), tradeoff)
