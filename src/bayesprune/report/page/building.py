"""The page, put together from its template, its style sheet and its script."""

import base64
from html import escape
from importlib.resources import files
from pathlib import Path
from string import Template

from bayesprune.errors import StorageError
from bayesprune.report.comparison.counts import count
from bayesprune.report.document.comparison_sheets import HOW_TO_READ
from bayesprune.report.document.content import QUICK_BANNER, TRIALS, Content, NetworkContent, OwnRecipeContent
from bayesprune.report.document.differences import Difference
from bayesprune.report.document.illustrations import Illustration, illustrations
from bayesprune.report.document.sheets import Sheet
from bayesprune.report.figures.tradeoff_axes import COLOURS
from bayesprune.report.page.curves import chart
from bayesprune.report.page.html_text import element, html_list, html_table, prose

PAGE = "report.html"
_QUICK_MARK = '<p class="quick-mark">quick, not the real thing</p>'
_OWN, _TRIALS = "recipe-", "trials"


def page(content: Content, figures: Path) -> str:
    """The text of the page.

    Args:
        content: what it says.
        figures: the folder whose figures it shows.
    """
    sections = [] if content.summary is None else [_summary(content, content.summary)]
    sections += [_network(content, network, figures) for network in content.networks]
    sections += [_own_recipe(content, own, figures) for own in content.own_recipes]
    if content.trials:
        sections.append(_section(_TRIALS, [element("h2", content.marked(TRIALS)), _tables(content, content.trials)]))
    return Template(_asset("page.html")).substitute(
        title=escape(content.title),
        css=_asset("page.css"),
        colours=_colours(),
        banner=element("p", QUICK_BANNER, class_="banner", role="alert", style="margin: 0") if content.quick else "",
        how_to_read=escape(HOW_TO_READ),
        networks_menu=_menu(content),
        body="\n".join(sections),
        js=_asset("page.js"),
    )


def _asset(name: str) -> str:
    return (files("bayesprune.report.page") / name).read_text(encoding="utf-8").rstrip("\n")


def _colours() -> str:
    """The colours of methods as variables, by day and by night."""
    light = " ".join(f"--{method}: {colour.light};" for method, colour in COLOURS.items())
    dark = " ".join(f"--{method}: {colour.dark};" for method, colour in COLOURS.items())
    return f":root {{ {light} }}\n@media (prefers-color-scheme: dark) {{ :root {{ {dark} }} }}"


def _menu(content: Content) -> str:
    entries = [(network.comparison.label, network.comparison.title) for network in content.networks]
    entries += [(_OWN + own.recipe, own.title) for own in content.own_recipes]
    entries += [(_TRIALS, TRIALS)] if content.trials else []
    buttons = [
        f'<button type="button" aria-pressed="true" aria-controls="{escape(name)}">{escape(title)}</button>' for name, title in entries
    ]
    return f'<div class="menu" role="group" aria-label="Parts that are shown">{"".join(buttons)}</div>'


def _summary(content: Content, sheet: Sheet) -> str:
    cards = []
    for network in content.networks:
        comparison = network.comparison
        for name, rows in (("main table", comparison.main), ("all trade-offs", comparison.appendix)):
            counts = count(rows)
            number = f"<strong>{counts.reached} <small>of {counts.rows} rows reached</small></strong>"
            cards.append(f"<li>{number}<span>{escape(comparison.title)}<br>{name}</span></li>")
    table = _tables(content, (sheet,))
    return f'<section class="summary" aria-label="Summary">\n<ul class="counts">{"".join(cards)}</ul>\n{table}\n</section>'


def _network(content: Content, network: NetworkContent, figures: Path) -> str:
    comparison = network.comparison
    parts = [
        element("h2", content.marked(comparison.title)),
        element(
            "p", "Filled points are ours, medians over seeds; small dots are single runs; hollow points are the paper's.", class_="note"
        ),
        chart(comparison),
        _tables(content, network.tables),
        "<h3>Differences</h3>",
        _differences(network.differences),
        _tables(content, network.footnotes),
        _figures(illustrations(figures, comparison.label)),
        _origin(network.provenance),
    ]
    return _section(comparison.label, parts)


def _own_recipe(content: Content, own: OwnRecipeContent, figures: Path) -> str:
    parts = [
        element("h2", content.marked(own.title)),
        prose(own.remark) if own.remark else "",
        _tables(content, own.tables),
        html_list(own.diverged, "origin") if own.diverged else "",
        _figures([figure for label in own.labels for figure in illustrations(figures, label)]),
        _origin(own.provenance),
    ]
    return _section(_OWN + own.recipe, parts)


def _section(name: str, parts: list[str]) -> str:
    inside = "\n".join(part for part in parts if part)
    return f'<section id="{escape(name)}">\n{inside}\n</section>'


def _tables(content: Content, sheets: tuple[Sheet, ...]) -> str:
    return "\n".join(html_table(sheet, _QUICK_MARK if content.quick else "") for sheet in sheets)


def _differences(found: tuple[Difference, ...]) -> str:
    if not found:
        return element("p", "Nothing is worse than in the paper.")
    entries = []
    for difference in found:
        remark = prose(difference.remark) if difference.remark else ""
        sentences = html_list(difference.sentences, "sentences") if difference.sentences else ""
        entries.append(f"{element('dt', difference.method)}<dd>{remark}{sentences}</dd>")
    return f'<dl class="differences">{"".join(entries)}</dl>'


def _figures(shown: list[Illustration]) -> str:
    if not shown:
        return ""
    return f'<h3>Figures</h3>\n<div class="figures">{"".join(_figure(figure) for figure in shown)}</div>'


def _figure(figure: Illustration) -> str:
    try:
        image = base64.b64encode(figure.path.read_bytes()).decode("ascii")
    except OSError as error:
        raise StorageError(f"cannot read {figure.path}: {error.strerror}; change its permissions or draw it again") from error
    caption = escape(figure.caption)
    return f'<figure><img alt="{caption}" src="data:image/png;base64,{image}"><figcaption>{caption}</figcaption></figure>'


def _origin(lines: tuple[str, ...]) -> str:
    return f"<details><summary>Where these rows come from</summary>{html_list(lines, 'origin')}</details>"
