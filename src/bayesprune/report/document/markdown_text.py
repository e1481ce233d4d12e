"""Tables and text as Markdown."""

import re

from bayesprune.report.document.sheets import Cell, Sheet


def markdown_table(sheet: Sheet) -> list[str]:
    """The lines of a table, with its title above and its note below."""
    alignment = ["---:" if numeric else "---" for numeric in sheet.numeric]
    lines = [_line([escaped(heading) for heading in sheet.headings]), _line(alignment)]
    lines += [_line([_cell(cell) for cell in row]) for row in sheet.rows]
    return [f"### {escaped(sheet.title)}", "", *lines, "", *([escaped(sheet.note), ""] if sheet.note else [])]


def escaped(text: str) -> str:
    """Text that Markdown shows as it is, in a table too."""
    return re.sub(r"([\\`*_|<>\[\]])", r"\\\1", " ".join(text.split()))


def _cell(cell: Cell) -> str:
    return escaped(f"{cell.text} {cell.mark}".strip())


def _line(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"
