"""Tables as plain text, for what prints itself."""

from collections.abc import Sequence


def text_table(cells: Sequence[Sequence[str]], sides: str) -> str:
    """Rows of cells in columns, each to the left (<) or right (>)."""
    widths = [max(len(cell) for cell in column) for column in zip(*cells, strict=True)]
    aligned = sides[: len(widths)]
    return "\n".join(
        "  ".join(f"{cell:{side}{width}}" for cell, side, width in zip(row, aligned, widths, strict=True)).rstrip() for row in cells
    )
