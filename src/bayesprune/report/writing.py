"""A whole report: document, figures and page."""

from collections.abc import Callable
from pathlib import Path

from bayesprune.report.document.content import QUICK_BANNER, read_content
from bayesprune.report.document.illustrations import tradeoffs_name
from bayesprune.report.document.results_document import DOCUMENT, FIGURES, document
from bayesprune.report.figures.model_figures import draw_model_figures, tell_as_warning
from bayesprune.report.figures.tradeoff_curves import draw_tradeoff_curves
from bayesprune.report.page import PAGE, page
from bayesprune.storage import make_folder, write_bytes


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
    for network in content.networks:
        path = figures / tradeoffs_name(network.comparison.label)
        draw_tradeoff_curves([network.comparison], path, QUICK_BANNER.partition(":")[0] if content.quick else "")
        written.append(path)
    for path, text in ((out / DOCUMENT, document(content, out)), (out / PAGE, page(content, figures))):
        write_bytes(path, text.encode())
        written.append(path)
    return written
