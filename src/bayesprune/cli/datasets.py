"""`bayesprune data`."""

from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape
from rich.table import Table

from bayesprune.cli.common import out
from bayesprune.data import describe_datasets, load_dataset

DATA_EXAMPLES = """**Examples**

`bayesprune data` — what there is

`bayesprune data --download cifar10` — fetch a data set from its official address"""


def data(
    download: Annotated[str | None, typer.Option(help="Download this data set: cifar10 or cifar100.")] = None,
    data_dir: Annotated[
        Path | None, typer.Option(help="The folder for data sets; by default $BAYESPRUNE_DATA or the cache folder.")
    ] = None,
) -> None:
    """Show the data sets and where they are, or download one."""
    if download is not None:
        loaded = load_dataset(download, data_dir, download=True)
        out.print(f"{loaded.name}: {len(loaded.train):,} training and {len(loaded.test):,} test images are in place", highlight=False)
        return
    table = Table()
    for heading in ("data set", "images", "classes", "where"):
        table.add_column(heading, overflow="fold")
    for row in describe_datasets(data_dir):
        table.add_row(row.name, row.images, str(row.classes), escape(row.where))
    out.print(table)
