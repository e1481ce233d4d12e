"""Small pieces of HTML, in which everything that comes from elsewhere is escaped."""

import re
from html import escape

from bayesprune.report.document.sheets import Cell, Sheet


def element(tag: str, text: str, **attributes: str) -> str:
    """An element with text in it; ``class_`` is the attribute of that name without the underscore."""
    return f"<{tag}{attribute_text(attributes)}>{escape(text)}</{tag}>"


def attribute_text(attributes: dict[str, str]) -> str:
    """Attributes as they stand in a tag; underscores in their names become hyphens."""
    return "".join(f' {name.rstrip("_").replace("_", "-")}="{escape(value)}"' for name, value in attributes.items())


def prose(text: str) -> str:
    """A paragraph in which what stands between backticks is code."""
    with_code = re.sub(r"`([^`]+)`", r"<code>\1</code>", escape(text))
    return f"<p>{with_code}</p>"


def html_list(sentences: tuple[str, ...], class_: str) -> str:
    """A list of sentences."""
    return f"<ul{attribute_text({'class_': class_})}>{''.join(element('li', sentence) for sentence in sentences)}</ul>"


def html_table(sheet: Sheet, mark: str = "") -> str:
    """A table that can be sorted, with its title above and its note below.

    Args:
        sheet: the table.
        mark: HTML between the title and the table.
    """
    headings = "".join(
        f'<th scope="col" aria-sort="none"{_class(numeric)}><button type="button">{escape(heading)}</button></th>'
        for heading, numeric in zip(sheet.headings, sheet.numeric, strict=True)
    )
    rows = "\n".join(f"<tr>{''.join(_cell(*pair) for pair in zip(row, sheet.numeric, strict=True))}</tr>" for row in sheet.rows)
    label = escape(sheet.title)
    return (
        f'<h3>{label}</h3>\n{mark}<div class="scroll" tabindex="0" role="region" aria-label="{label}"><table>\n'
        f"<thead><tr>{headings}</tr></thead>\n<tbody>\n{rows}\n</tbody></table></div>\n"
        f"{element('p', sheet.note, class_='note') if sheet.note else ''}"
    )


def _class(numeric: bool) -> str:
    return ' class="number"' if numeric else ""


def _cell(cell: Cell, numeric: bool) -> str:
    standing = cell.standing.value if cell.standing is not None else ""
    classes = " ".join(filter(None, ("number" if numeric else "", standing if cell.mark else "")))
    attributes = {} if cell.value is None else {"data_value": _value(cell.value)}
    text = f"{cell.text} {cell.mark}".strip()
    return element("td", text, **({"class_": classes} if classes else {}), **attributes)


def _value(value: float | str) -> str:
    return value if isinstance(value, str) else repr(float(value))
