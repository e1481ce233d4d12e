"""`bayesprune report`."""

from pathlib import Path
from typing import Annotated

import typer

from bayesprune.cli.common import err
from bayesprune.cli.common import out as console
from bayesprune.report import write_report

REPORT_EXAMPLES = """**Examples**

`bayesprune report` — compare the rows in results/ with the paper's tables, and write docs/results.md and docs/report.html

`bayesprune report --results mine --out mine/report` — rows and report in other folders"""


def report(
    results: Annotated[Path, typer.Option(help="The folder with the rows of a reproduction.")] = Path("results"),
    out: Annotated[Path, typer.Option(help="The folder to write to; made if there is none.")] = Path("docs"),
) -> None:
    """Put the rows of a reproduction beside the paper's tables: a document, figures and a page."""
    for path in write_report(results, out, say=lambda line: err.print(line, highlight=False, soft_wrap=True, markup=False)):
        console.print(f"written to {path}", highlight=False, soft_wrap=True, markup=False)
