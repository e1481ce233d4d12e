"""A whole report: document, figures and page."""

from collections.abc import Callable, Iterator
from pathlib import Path

from bayesprune.experiments.evidence import evidence_path
from bayesprune.experiments.protocol import own_name
from bayesprune.experiments.tables import TABLES, table_of
from bayesprune.report.comparison.pairs import compare
from bayesprune.report.document.content import QUICK_BANNER, Content, read_content
from bayesprune.report.document.illustrations import kept_units_name, own_recipes_name, tradeoffs_name
from bayesprune.report.document.results_document import DOCUMENT, FIGURES, document
from bayesprune.report.figures.model_figures import draw_model_figures, tell_as_warning
from bayesprune.report.figures.own_recipe_curves import draw_own_recipes
from bayesprune.report.figures.pruning_history import draw_pruning_history
from bayesprune.report.figures.tradeoff_curves import draw_tradeoff_curves
from bayesprune.report.page import PAGE, page
from bayesprune.storage import exists, make_folder, write_bytes


def write_report(results: Path, out: Path, say: Callable[[str], None] = tell_as_warning) -> list[Path]:
    """Compare the rows of a reproduction with the paper, and write the report.

    Args:
        results: the folder with the rows, and with the models that some figures are drawn from.
        out: the folder to write to; made if there is none.
        say: is told which figures were left out, and why.

    Returns:
        The files that were written.

    Raises:
        ResultsError: there are no rows, or some are not what they should be.
        StorageError: a file cannot be read or written.
    """
    content = read_content(results)
    figures = out / FIGURES
    make_folder(figures)
    written = draw_model_figures(results, figures, say=say)
    for comparison in (network.comparison for network in content.networks):
        history, curves = figures / kept_units_name(comparison.label), figures / tradeoffs_name(comparison.label)
        if draw_pruning_history(comparison.rows, history):
            written.append(history)
        draw_tradeoff_curves([comparison], curves, QUICK_BANNER.partition(":")[0] if content.quick else "")
        written.append(curves)
    written += _draw_own_recipes(content, figures)
    for path, text in ((out / DOCUMENT, document(content, out)), (out / PAGE, page(content, figures))):
        write_bytes(path, text.encode())
        written.append(path)
    for path, title in _evidence(content, results):
        if not exists(path):
            say(f"there is no {path}: figures of {title} that need it were not drawn")
    return written


def _evidence(content: Content, results: Path) -> Iterator[tuple[Path, str]]:
    """The files that figures are drawn from, and of what."""
    for comparison in (network.comparison for network in content.networks):
        yield evidence_path(results, table_of(comparison.network, comparison.dataset)), comparison.title
    for own in content.own_recipes:
        for name, comparison in own.comparisons.items():
            if TABLES[name].shown:
                yield evidence_path(results, TABLES[name], own_name(own.recipe, name)), f"{comparison.title}, recipe {own.recipe},"


def _draw_own_recipes(content: Content, figures: Path) -> list[Path]:
    """Recipes of our own beside the paper's, and how networks lost their units by them."""
    written = []
    found = {each.label: each for own in content.own_recipes for each in own.comparisons.values()}
    beside = {network.comparison.label: network.comparison for network in content.networks}
    for label, each in found.items():
        comparison = beside.get(label) or compare(each.network, each.dataset, [])
        recipes = {own.recipe: its.points for own in content.own_recipes for its in own.comparisons.values() if its.label == label}
        curves = figures / own_recipes_name(label)
        if draw_own_recipes(comparison, recipes, curves):
            written.append(curves)
    for own in content.own_recipes:
        for table, its in own.comparisons.items():
            history = figures / kept_units_name(own_name(own.recipe, table))
            if draw_pruning_history(its.rows, history):
                written.append(history)
    return written
