"""A whole report: document, figures and page."""

from pathlib import Path

from bayesprune.report.content import QUICK_BANNER, read_content
from bayesprune.report.document import DOCUMENT, FIGURES, document
from bayesprune.report.illustrations import tradeoffs_name
from bayesprune.report.page import PAGE, page
from bayesprune.report.tradeoff_curves import draw_tradeoff_curves
from bayesprune.storage import make_folder, write_bytes


def write_report(results: Path, out: Path) -> list[Path]:
    """Compare the rows of a reproduction with the paper, and write the report.

    The figures that are drawn from models are shown if they lie in the folder of figures, under the names in `illustrations.CAPTIONS`.

    Args:
        results: the folder with the rows.
        out: the folder to write to; made if there is none.

    Returns:
        The files that were written.

    Raises:
        ResultsError: there are no rows, or some are not what they should be.
        StorageError: a file cannot be read or written.
    """
    content = read_content(results)
    figures = out / FIGURES
    make_folder(figures)
    written = []
    for network in content.networks:
        path = figures / tradeoffs_name(network.comparison.label)
        draw_tradeoff_curves([network.comparison], path, QUICK_BANNER.partition(":")[0] if content.quick else "")
        written.append(path)
    for path, text in ((out / DOCUMENT, document(content, out)), (out / PAGE, page(content, figures))):
        write_bytes(path, text.encode())
        written.append(path)
    return written
