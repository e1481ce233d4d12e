import re

import pytest
from reproduction import NETWORK, as_printed, diverged, row, write_results

from bayesprune.report import write_report
from bayesprune.report.comparison.remarks import REMARKS
from bayesprune.report.comparison.results import own_recipe_file
from bayesprune.report.comparison.verdicts import Standing
from bayesprune.report.document.content import QUICK_BANNER, read_content
from bayesprune.report.document.markdown_text import escaped, markdown_table
from bayesprune.report.document.results_document import document
from bayesprune.report.document.sheets import Cell, Sheet

PNG = b"\x89PNG\r\n\x1a\n"


@pytest.fixture
def results(tmp_path):
    rows = [one | {"error": 3.0} if one["method"] == "vib" else one for one in as_printed()]
    folder = write_results(tmp_path / "results", rows)
    write_results(folder, as_printed("lenet5-caffe"), "lenet5-caffe-mnist.jsonl")
    return folder


def text_of(results, out):
    return document(read_content(results), out)


def test_table():
    sheet = Sheet("A | B", ("x", "y"), (False, True), ((Cell("a|b"), Cell("1.0", 1.0, Standing.WORSE)),), "A note.")
    assert markdown_table(sheet) == [r"### A \| B", "", "| x | y |", "| --- | ---: |", r"| a\|b | 1.0 ▼ |", "", "A note.", ""]


def test_text_is_shown_as_it_is():
    assert escaped("<b>\n*x* `y` [z] a_b") == r"\<b\> \*x\* \`y\` \[z\] a\_b"


def test_document_has_everything(results, tmp_path):
    text = text_of(results, tmp_path)
    assert "## lenet-500-300 on mnist" in text
    assert "## lenet5-caffe on mnist" in text
    assert "vgg-like" not in text
    assert "| lenet-500-300 on mnist | main | 10 | 9 | 0 | 1 | 0 | 0 | 0 | 0 / 9 / 1 |" in text
    assert "| BB | 8 | 1.59 ± 0.07 | 1.59 ± 0.00 | 33.81 | 33.81 | 2.97 | 2.97 | 137-90-37 | 20-20-20 | 3 | reached |" in text
    assert "| VIB | 1e-4 | 1.60 ± 0.05 | 3.00 ± 0.00 ▼ | 33.63 | 33.63 | 2.98 | 2.98 | 20-20-20 | 3 | not reached ▼ |" in text
    assert "- VIB at 1e-4: error 3.00 % against 1.60 % (1.40 points more); not reached." in text
    assert "### GPU seconds" in text
    assert "- seeds: 0, 1, 2" in text
    assert "- hardware: a machine" in text
    assert "A recipe of our own" not in text
    assert "Quick" not in text


def test_every_table_has_as_many_cells_as_headings(results, tmp_path):
    lines = [re.sub(r"\\.", "", line).count("|") for line in text_of(results, tmp_path).splitlines() if line.startswith("|")]
    blocks = re.findall(r"(?:^\|.*\n)+", text_of(results, tmp_path), re.MULTILINE)
    assert len(blocks) >= 7
    assert sum(len(block.splitlines()) for block in blocks) == len(lines)
    for block in blocks:
        assert len({re.sub(r"\\.", "", line).count("|") for line in block.splitlines()}) == 1


def test_remarks_and_own_recipe(results, tmp_path):
    remarks = '[lenet-500-300]\nvib = "A `known` cause."\n[recipes]\nconsistent = "Draws must `agree`."\n'
    (results / REMARKS).write_text(remarks, encoding="utf-8")
    write_results(
        results, [row("dbb", "1", seed, 1.2, 14.0, recipe="consistent") for seed in range(5)], own_recipe_file("consistent", NETWORK)
    )
    text = text_of(results, tmp_path)
    assert "**VIB.** A `known` cause." in text
    assert "## A recipe of our own: consistent\n\nDraws must `agree`.\n" in text
    assert "| below 1.26 | 13.4 or more | DBB at 1 | 1.20 ± 0.00 | 14.00 | 5.00 | 5 | yes ▲ |" in text


def test_diverged_models_of_our_recipe_are_named(results, tmp_path):
    write_results(results, [diverged("dbb", "1", 3, "NaN in epoch 2", recipe="consistent")], own_recipe_file("consistent", NETWORK))
    assert "- lenet-500-300, DBB at 1, seed 3, diverged: NaN in epoch 2." in text_of(results, tmp_path)


def test_figures_are_shown_if_they_are_there(results, tmp_path):
    out = tmp_path / "docs"
    assert "![" not in text_of(results, out)
    (out / "figures").mkdir(parents=True)
    (out / "figures" / "kept-units-lenet5-caffe.png").write_bytes(PNG)
    write_report(results, out)
    text = (out / "results.md").read_text(encoding="utf-8")
    assert "](figures/kept-units-lenet5-caffe.png)" in text
    assert "](figures/tradeoffs-lenet-500-300.png)" in text
    assert "input-regions" not in text
    for link in re.findall(r"\]\((figures/[^)]+)\)", text):
        assert (out / link).is_file()


def test_quick_report_is_marked_everywhere(results, tmp_path):
    write_results(results, [each | {"recipe": "quick"} for each in as_printed()])
    text = text_of(results, tmp_path)
    assert text.startswith(r"# \[QUICK, NOT THE REAL THING\]")
    for title in re.findall(r"^## (.+ on .+)$", text, re.MULTILINE):
        assert title.startswith(r"\[QUICK, NOT THE REAL THING\]")
    tables = len(re.findall(r"^\| -", text, re.MULTILINE))
    assert tables >= 7
    assert text.count(f"> **{QUICK_BANNER}**") == tables


def test_same_rows_same_bytes_whatever_their_order(results, tmp_path):
    first, second = tmp_path / "first", tmp_path / "second"
    write_report(results, first)
    path = results / "lenet-500-300-mnist.jsonl"
    path.write_text("\n".join(reversed(path.read_text().splitlines())) + "\n")
    written = write_report(results, second)
    names = [path.relative_to(second) for path in written]
    assert [str(name) for name in names] == [
        "figures/tradeoffs-lenet-500-300.png", "figures/tradeoffs-lenet5-caffe.png", "results.md", "report.html",
    ]  # fmt: skip
    for name in names:
        assert (first / name).read_bytes() == (second / name).read_bytes(), name
