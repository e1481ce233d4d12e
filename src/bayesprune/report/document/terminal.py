"""Tables of a report, for the terminal."""

from rich.table import Table

from bayesprune.report.document.sheets import Sheet


def sheet_table(sheet: Sheet) -> Table:
    """A table with its marks: better or worse than the paper's."""
    table = Table(title=sheet.title, caption=sheet.note or None)
    for heading, numeric in zip(sheet.headings, sheet.numeric, strict=True):
        table.add_column(heading, justify="right" if numeric else "left")
    for row in sheet.rows:
        table.add_row(*(f"{cell.text} {cell.mark}".strip() for cell in row))
    return table
