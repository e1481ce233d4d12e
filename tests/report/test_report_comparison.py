import math

import pytest
from reproduction import DATASET, NETWORK, as_printed, diverged, row, write_results

from bayesprune.report.comparison.counts import count
from bayesprune.report.comparison.pairs import compare
from bayesprune.report.comparison.points import network_label
from bayesprune.report.comparison.results import read_results
from bayesprune.report.comparison.verdicts import Standing
from bayesprune.report.document.comparison_sheets import main_sheet, summary_sheet, tradeoff_sheet
from bayesprune.report.document.differences import differences
from bayesprune.report.figures.frame import frame_of


@pytest.fixture
def compared(tmp_path):
    def make(rows, network=NETWORK):
        name = f"{network}-{DATASET}.jsonl"
        return compare(network, DATASET, read_results(write_results(tmp_path, rows, name))[network, DATASET])

    return make


def of(comparisons, method, tradeoff):
    (found,) = [one for one in comparisons if (one.paper.method, one.paper.tradeoff) == (method, tradeoff)]
    return found


def test_medians_over_seeds(compared):
    rows = [
        row("dbb", "1", 0, 1.40, 30.0, 3.0, [100.4, 35.0, 20.9]),
        row("dbb", "1", 1, 1.70, 10.0, 9.0, [101.9, 31.0, 29.0]),
        row("dbb", "1", 2, 1.44, 40.0, 4.0, [104.0, 30.0, 28.99]),
    ]
    (point,) = compared(rows).points
    assert (point.error, point.speedup, point.memory, point.kept) == (1.44, 30.0, 4.0, (101, 31, 28))
    assert point.error_std == pytest.approx(math.sqrt(((1.40 - 1.5133333) ** 2 + (1.70 - 1.5133333) ** 2 + (1.44 - 1.5133333) ** 2) / 3))
    assert point.standard_error == pytest.approx(point.error_std * math.sqrt(3 / 2) / math.sqrt(3))


def test_the_papers_own_figures_are_equal_to_the_papers(compared):
    comparison = compared(as_printed())
    counts = count(comparison.appendix)
    assert (counts.rows, counts.nowhere_worse, counts.reached) == (30, 30, 30)
    assert counts.figures["error"] == {Standing.BETTER: 0, Standing.EQUAL: 30, Standing.WORSE: 0}
    assert count(comparison.main).reached == 10
    assert comparison.beyond_paper == []
    assert differences(comparison, {}) == []


def test_main_row_without_a_tradeoff_is_compared_with_the_nearest(compared):
    rows = [
        row("gd", tradeoff, 0, 0.7, speedup, 44.0, [1] * 4, "lenet5-caffe")
        for tradeoff, speedup in (("1e-3", 1.0), ("1e-4", 2.3), ("1e-5", 2.0))
    ]
    comparison = compared(rows, "lenet5-caffe")
    found = of(comparison.main, "gd", None)
    assert found.nearest
    assert found.point.tradeoff == "1e-4"
    (line,) = [line for line in main_sheet(comparison).rows if line[0].text == "GD"]
    assert line[1].text == "1e-4*"
    assert "nearest in xFLOPs" in main_sheet(comparison).note


def test_methods_without_tradeoffs_match_without_one(compared):
    comparison = compared([row("dense", None, 0, 1.6, 1.0, 100.0), row("cd", None, 0, 1.5, 1.0, 100.0)])
    for method in ("dense", "cd"):
        found = of(comparison.main, method, None)
        assert not found.nearest
        assert found.verdict.reached


def test_what_is_missing_is_said(compared):
    comparison = compared([row("bb", "1", 0, 1.26, 13.4, 7.5), diverged("bb", "2", 0), diverged("bb", "2", 1)])
    assert [of(comparison.appendix, "bb", tradeoff).missing for tradeoff in ("1", "2", "4")] == ["", "diverged", "not run"]
    counts = count(comparison.appendix)
    assert (counts.rows, counts.reached, counts.diverged, counts.not_run) == (30, 1, 1, 28)
    (said,) = [difference for difference in differences(comparison, {}) if difference.method == "BB"]
    assert "BB at 2: all models diverged." in said.sentences
    assert "BB at 4: not run." in said.sentences
    assert "BB at 2, seed 1, diverged: the loss became NaN." in said.sentences


def test_diverged_models_are_counted_beside_the_others(compared):
    comparison = compared([row("bb", "1", 0, 1.2), row("bb", "1", 1, 1.4), diverged("bb", "1", 2)])
    assert of(comparison.appendix, "bb", "1").point.error == pytest.approx(1.3)
    (line,) = [line for line in tradeoff_sheet(comparison).rows if line[0].text == "BB" and line[1].text == "1"]
    assert "2, 1 diverged" in [cell.text for cell in line]


def test_sentence_says_how_much_worse(compared):
    comparison = compared([row("bb", "1", 0, 1.46, 10.0, 10.0), row("bb", "8", 0, 1.0, 20.0, 4.0)])
    (said,) = [difference for difference in differences(comparison, {"bb": "Known."}) if difference.method == "BB"]
    assert said.remark == "Known."
    assert said.sentences[0] == (
        "BB at 1: error 1.46 % against 1.26 % (0.20 points more), xFLOPs 10.00 against 13.38 (25 % less) and "
        "memory 10.00 % against 7.48 % (34 % more); reached by BB at 8: 1.00 %, 20.00x."
    )
    assert (
        said.sentences[-1] == "BB at 8: xFLOPs 20.00 against 33.81 (41 % less) and memory 4.00 % against 2.97 % (35 % more); not reached."
    )


def test_remark_is_shown_where_nothing_is_worse(compared):
    (only,) = differences(compared(as_printed()), {"vib": "As it should be."})
    assert (only.method, only.sentences, only.remark) == ("VIB", (), "As it should be.")


def test_points_that_only_we_have_are_shown(compared):
    comparison = compared([*as_printed(), row("bb", "3", 0, 1.3)])
    assert [point.name for point in comparison.beyond_paper] == ["BB at 3"]
    assert tradeoff_sheet(comparison).rows[-1][-1].text == "not in the paper"


def test_summary_counts(compared):
    rows = [one | {"error": 3.0} if one["method"] == "vib" else one for one in as_printed()]
    main, everything = summary_sheet([compared(rows)]).rows
    assert [cell.text for cell in main[2:]] == ["10", "9", "0", "1", "0", "0", "0", "0 / 9 / 1", "0 / 10 / 0", "0 / 10 / 0"]
    assert [cell.text for cell in everything[2:7]] == ["30", "25", "0", "5", "0"]


def test_rows_that_another_tradeoff_is_like_are_named_and_not_reached(compared):
    rows = [one | {"error": 3.0} if (one["method"], one["tradeoff"]) == ("bb", "1") else one for one in as_printed()]
    comparison = compared([*rows, row("bb", "3", 0, 1.36, 12.5, 8.0)])
    found = of(comparison.appendix, "bb", "1")
    assert not found.verdict.reached
    assert found.verdict.nowhere_worse_at.tradeoff == "3"
    (said,) = differences(comparison, {})
    assert said.sentences[0].endswith("; not reached; within tolerance is BB at 3: 1.36 %, 12.50x.")
    _, everything = summary_sheet([comparison]).rows
    assert [cell.text for cell in everything[2:7]] == ["30", "29", "0", "1", "1"]


def test_frame_shows_all_medians_and_says_what_it_leaves_out(compared):
    rows = as_printed()
    rows[0]["error"] = 90.0
    frame = frame_of(compared(rows))
    assert frame.outside == 1
    assert 1.80 < frame.highest < 3.0
    assert frame.lowest < 1.26
    assert frame.slowest < 1.0
    assert frame.fastest > 52.09
    assert frame_of(compared(as_printed())).outside == 0


def test_label_has_the_data_set_where_there_are_several():
    assert network_label("lenet-500-300", "mnist") == "lenet-500-300"
    assert network_label("vgg-like", "cifar10") == "vgg-like-cifar10"
