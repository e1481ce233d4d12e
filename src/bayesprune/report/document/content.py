"""What a report says, before it is written as a document or as a page."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from bayesprune.errors import ResultsError
from bayesprune.experiments.protocol import own_name
from bayesprune.experiments.published import published_networks
from bayesprune.experiments.rows import ResultRow
from bayesprune.experiments.tables import table_name
from bayesprune.report.comparison.pairs import NetworkComparison, compare
from bayesprune.report.comparison.points import diverged_rows, point_name
from bayesprune.report.comparison.remarks import RECIPES, read_remarks
from bayesprune.report.comparison.results import QUICK, read_own_recipes, read_results, read_variants
from bayesprune.report.document.comparison_sheets import main_sheet, summary_sheet, tradeoff_sheet
from bayesprune.report.document.differences import Difference, differences
from bayesprune.report.document.footnotes import memory_sheet, selection_sheet, soft_count_sheet, threshold_sheet
from bayesprune.report.document.latencies import latency_sheet
from bayesprune.report.document.own_recipe import own_recipe_sheets
from bayesprune.report.document.provenance import provenance_lines, seconds_sheet
from bayesprune.report.document.sheets import Sheet
from bayesprune.report.document.trials import trial_sheets
from bayesprune.report.document.variants import variant_sheet

TITLE = "The paper's tables, reproduced"
TRIALS = "Tried on validation images"
QUICK_BANNER = (
    "Quick, not the real thing: these models were trained by a small recipe that only tries the machinery. No figure here is a result."
)


@dataclass(frozen=True)
class NetworkContent:
    """What is said of a network.

    Attributes:
        comparison: of its rows with the paper's.
        tables: the main table and all trade-offs.
        differences: where ours is worse, and remarks.
        footnotes: tables on details.
        provenance: of its rows.
    """

    comparison: NetworkComparison
    tables: tuple[Sheet, ...]
    differences: tuple[Difference, ...]
    footnotes: tuple[Sheet, ...]
    provenance: tuple[str, ...]


@dataclass(frozen=True)
class OwnRecipeContent:
    """What is said of a recipe of our own.

    Attributes:
        recipe: its name.
        remark: what it is.
        comparisons: of its rows with the paper's, by the table that they are for.
        alone: those tables whose networks have no section of their own.
        tables: targets and points.
        diverged: a sentence for each model that diverged.
        provenance: of its rows.
    """

    recipe: str
    remark: str
    comparisons: Mapping[str, NetworkComparison]
    alone: tuple[str, ...]
    tables: tuple[Sheet, ...]
    diverged: tuple[str, ...]
    provenance: tuple[str, ...]

    @property
    def title(self) -> str:
        """Of what is said."""
        return f"A recipe of our own: {self.recipe}"

    @property
    def labels(self) -> list[str]:
        """Of the figures that belong here, as in names of files."""
        return [*(self.comparisons[table].label for table in self.alone), *(own_name(self.recipe, table) for table in self.comparisons)]


@dataclass(frozen=True)
class Content:
    """What a report says.

    Attributes:
        quick: some row is of the quick recipe, so that nothing in the report is a result.
        summary: how many rows of the paper are reached; None where there are rows of our own recipes alone.
        networks: those that have rows.
        own_recipes: those that have rows.
        trials: tables of what was tried on validation images.
    """

    quick: bool
    summary: Sheet | None
    networks: tuple[NetworkContent, ...]
    own_recipes: tuple[OwnRecipeContent, ...]
    trials: tuple[Sheet, ...]

    @property
    def title(self) -> str:
        """Of the whole report."""
        return self.marked(TITLE)

    def marked(self, title: str) -> str:
        """A title, which says so if nothing below it is a result."""
        return f"[QUICK, NOT THE REAL THING] {title}" if self.quick else title


def read_content(results: Path) -> Content:
    """Read rows and remarks, and compare them with the paper.

    Args:
        results: the folder that has them.

    Raises:
        ResultsError: there are no rows, or some are not what they should be.
        StorageError: a file cannot be read.
    """
    found, own, remarks = read_results(results), read_own_recipes(results), read_remarks(results)
    variants = read_variants(results)
    if not found and not own and not variants:
        names = ", ".join(f"{network}-{dataset}.jsonl" for network, dataset in published_networks())
        raise ResultsError(f"there are no rows in {results}: expected some in {names}")
    rows = [row for rows in (*found.values(), *variants.values()) for row in rows]
    comparisons = [compare(*key, found.get(key, [])) for key in published_networks() if key in found or key in variants]
    return Content(
        any(row.recipe == QUICK for row in rows),
        summary_sheet(comparisons) if comparisons else None,
        tuple(
            _network_content(
                each,
                remarks.get(each.label, {}),
                variant_sheet(each.rows, variants.get((each.network, each.dataset), [])),
                latency_sheet(results, each.network, each.dataset),
            )
            for each in comparisons
        ),
        tuple(
            _own_recipe_content(results, recipe, rows, remarks.get(RECIPES, {}).get(recipe, ""), comparisons)
            for recipe, rows in own.items()
        ),
        tuple(trial_sheets(results)),
    )


def _network_content(comparison: NetworkComparison, remarks: dict[str, str], *others: Sheet | None) -> NetworkContent:
    rows = comparison.rows
    counts = (threshold_sheet(rows), soft_count_sheet(rows), memory_sheet(rows), selection_sheet(rows))
    footnotes = (*counts, *others, seconds_sheet(rows))
    return NetworkContent(
        comparison,
        (main_sheet(comparison), tradeoff_sheet(comparison)),
        tuple(differences(comparison, remarks)),
        tuple(footnote for footnote in footnotes if footnote is not None),
        tuple(provenance_lines(rows)),
    )


def _own_recipe_content(
    results: Path, recipe: str, rows: list[ResultRow], remark: str, others: Sequence[NetworkComparison]
) -> OwnRecipeContent:
    lost = [
        f"{row.network}, {point_name(row.method, row.tradeoff)}, seed {row.seed}, diverged: {row.reason}." for row in diverged_rows(rows)
    ]
    found = {
        table_name(*key): compare(*key, [row for row in rows if (row.network, row.dataset) == key])
        for key in sorted({(row.network, row.dataset) for row in rows})
    }
    alone = tuple(table for table, comparison in found.items() if comparison.label not in {other.label for other in others})
    sheets: list[Sheet | None] = [*own_recipe_sheets(recipe, {table: comparison.points for table, comparison in found.items()})]
    for table, comparison in found.items():
        sheets += [selection_sheet(comparison.rows) if table in alone else None, memory_sheet(comparison.rows)]
        sheets.append(latency_sheet(results, comparison.network, comparison.dataset, recipe))
    tables = tuple(each for each in sheets if each is not None)
    return OwnRecipeContent(recipe, remark, found, alone, tables, tuple(lost), tuple(provenance_lines(rows)))
