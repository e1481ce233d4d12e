"""The report as a Markdown document."""

from pathlib import Path

from bayesprune.report.document.comparison_sheets import HOW_TO_READ
from bayesprune.report.document.content import QUICK_BANNER, TRIALS, Content, NetworkContent, OwnRecipeContent
from bayesprune.report.document.differences import Difference
from bayesprune.report.document.illustrations import Illustration, illustrations, tradeoffs_name
from bayesprune.report.document.markdown_text import escaped, markdown_table
from bayesprune.report.document.sheets import Sheet
from bayesprune.storage import exists

DOCUMENT = "results.md"
FIGURES = "figures"
WRITTEN_BY = "Written by `bayesprune report` from the rows of a reproduction: do not edit it by hand."


def document(content: Content, out: Path) -> str:
    """The text of the document.

    Args:
        content: what it says.
        out: the folder that it will lie in; figures that are in `FIGURES` below it are shown.
    """
    lines = [f"# {escaped(content.title)}", "", WRITTEN_BY, "", *_banner(content), escaped(HOW_TO_READ), ""]
    if content.summary is not None:
        lines += [line.replace("### ", "## ", 1) for line in markdown_table(content.summary)]
    for network in content.networks:
        lines += _network(content, network, out)
    for own in content.own_recipes:
        lines += _own_recipe(content, own, out)
    if content.trials:
        lines += [f"## {escaped(content.marked(TRIALS))}", "", *_tables(content, content.trials)]
    return "\n".join(lines).rstrip() + "\n"


def _banner(content: Content) -> list[str]:
    return [f"> **{QUICK_BANNER}**", ""] if content.quick else []


def _network(content: Content, network: NetworkContent, out: Path) -> list[str]:
    label = network.comparison.label
    lines = [f"## {escaped(content.marked(network.comparison.title))}", ""]
    curves = out / FIGURES / tradeoffs_name(label)
    if exists(curves):
        lines += [f"![Error against speed-up, ours and the paper's]({FIGURES}/{curves.name})", ""]
    lines += _tables(content, network.tables)
    lines += ["### Differences", "", *_differences(network.differences)]
    lines += _tables(content, network.footnotes)
    lines += _figures(illustrations(out / FIGURES, label))
    return [*lines, "### Where these rows come from", "", *_list(network.provenance)]


def _tables(content: Content, sheets: tuple[Sheet, ...]) -> list[str]:
    return [line for sheet in sheets for line in [*markdown_table(sheet), *_banner(content)]]


def _differences(found: tuple[Difference, ...]) -> list[str]:
    if not found:
        return ["Nothing is worse than in the paper.", ""]
    lines = []
    for difference in found:
        lines += [f"**{difference.method}.** {difference.remark}".rstrip(), "", *_list(difference.sentences)]
    return lines


def _figures(drawn: list[Illustration]) -> list[str]:
    lines = ["### Figures", ""] if drawn else []
    for figure in drawn:
        lines += [f"![{escaped(figure.caption)}]({FIGURES}/{figure.path.name})", "", escaped(figure.caption), ""]
    return lines


def _own_recipe(content: Content, own: OwnRecipeContent, out: Path) -> list[str]:
    lines = [f"## {escaped(content.marked(own.title))}", ""]
    lines += [own.remark, ""] if own.remark else []
    lines += [*_tables(content, own.tables), *_list(own.diverged)]
    lines += _figures([figure for label in own.labels for figure in illustrations(out / FIGURES, label)])
    return [*lines, "### Where these rows come from", "", *_list(own.provenance)]


def _list(sentences: tuple[str, ...]) -> list[str]:
    return [*(f"- {escaped(sentence)}" for sentence in sentences), ""] if sentences else []
