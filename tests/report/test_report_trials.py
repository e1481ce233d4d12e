"""What was tried on validation images, as tables."""

import json
import math

import pytest
from reproduction import as_printed, write_results

from bayesprune.errors import ResultsError
from bayesprune.report import write_report
from bayesprune.report.document.trials import SEARCH, TUNING, Mean, error_at, trial_sheets

ORIGIN = {"hardware": "a machine"}


def tuned(error, speedup=1.0, method="cd", network="lenet-500-300", tradeoff=None, **settings):
    about = {"network": network, "method": method, "tradeoff": tradeoff, "seed": 0, "epochs": 100, **settings, **ORIGIN}
    return {**about, "validation_error": error, "speedup": speedup}


def tried(error, speedup, stage="dbb", tradeoff=1.0, seed=0, name="paper", **settings):
    about = {"program": "first", "name": name, "stage": stage, "tradeoff": tradeoff, "seed": seed, "epochs": 150, **settings, **ORIGIN}
    return {**about, "validation_error": error, "speedup": speedup}


def texts(sheet):
    return [[cell.text.replace("\N{NO-BREAK SPACE}", " ") for cell in line] for line in sheet.rows]


def test_nothing_was_tried(tmp_path):
    assert trial_sheets(tmp_path) == []


def test_baselines(tmp_path):
    rows = [
        tuned(1.5, length_scale=0.01, entropy_weight=0.1),
        tuned(1.4, length_scale=0.3, entropy_weight=1.0),
        *(
            tuned(error, speedup, "l0", "lenet5-caffe", tradeoff, prices=prices)
            for prices in (["1x", "1x", "1x", "1x"], ["500x", "15x", "1x", "10x"])
            for tradeoff, error, speedup in (("0.1/60000", 0.9, 8.0), ("0.05/60000", 0.7, 4.04))
        ),
    ]
    (sheet,) = trial_sheets(write_results(tmp_path, rows, TUNING))
    assert texts(sheet) == [
        ["lenet-500-300", "CD", "length scale 0.01, entropy times 0.1", "100", "1.50 at 1.0x", ""],
        ["lenet-500-300", "CD", "length scale 0.3, entropy times 1", "100", "1.40 at 1.0x", "yes"],
        ["lenet5-caffe", "L0", "prices 1x, 1x, 1x, 1x", "100", "0.70 at 4.0x, 0.90 at 8.0x", ""],
        ["lenet5-caffe", "L0", "prices 500x, 15x, 1x, 10x", "100", "0.70 at 4.0x, 0.90 at 8.0x", "yes"],
    ]
    assert "6 models on a machine" in sheet.note


def test_candidates(tmp_path):
    better = {
        "name": "better",
        "twice": True,
        "weight_decay": 1e-5,
        "consistency": 1.0,
        "in_proportion": True,
        "gate_weights": [1.0, 2.0, 1.0],
    }
    rows = [
        *(tried(error, 10.0, "bb", seed=seed) for seed, error in enumerate((1.2, 1.4))),
        *(tried(1.4, 20.0, seed=seed, averaged_error=1.5) for seed in range(2)),
        *(tried(1.8, 45.0, seed=seed, tradeoff=4.0, averaged_error=1.8) for seed in range(2)),
        tried(1.2, 25.0, **better),
        tried(1.3, 11.0, "bb", name="twice", twice=True),
    ]
    (sheet,) = trial_sheets(write_results(tmp_path, rows, SEARCH))
    paper, other, twice = texts(sheet)
    assert paper == ["the paper's", "first", "150", "2", "1, 4", "1.30 at 10.0x", "1.40 at 20.0x, 1.80 at 45.0x", "1.60"]
    assert other[0] == "weight decay 1e-05, consistency 1, divergence by gate 1-2-1, consistency in DBB over the trade-off"
    assert other[4:] == ["1", "", "1.20 at 25.0x", ""]
    assert twice[0] == "every image twice"
    assert "6 models" in sheet.note
    assert "by +0.050 points" in sheet.note
    expected = math.sqrt((0.02 / 2 + 0.0 + 0.0) / 3)
    assert f"about {expected:.2f} points" in sheet.note


def test_candidates_of_one_name_and_different_settings(tmp_path):
    rows = [
        tried(error, speedup, stage, seed=seed, second_weights=[weight] * 3, kl_warmup=0.1 * (stage == "bb"))
        for weight, error in ((0.2, 1.2), (0.4, 1.4))
        for stage, speedup in (("bb", 8.0), ("dbb", 16.0))
        for seed in range(2)
    ]
    (sheet,) = trial_sheets(write_results(tmp_path, rows, SEARCH))
    gentle, less = texts(sheet)
    assert gentle[0] == "divergence by gate in DBB 0.2-0.2-0.2, warm-up 0.1"
    assert gentle[3:] == ["2", "1", "1.20 at 8.0x", "1.20 at 16.0x", ""]
    assert less[3:] == ["2", "1", "1.40 at 8.0x", "1.40 at 16.0x", ""]
    assert "4 models" in sheet.note


def test_rows_of_before_a_setting_existed_belong_to_its_usual_value(tmp_path):
    rows = [tried(1.4, 20.0), tried(1.2, 20.0, seed=1, perturbation=0.0, gate_speed=1.0, pretraining=100, second_weights=[1.0] * 3)]
    (sheet,) = trial_sheets(write_results(tmp_path, rows, SEARCH))
    assert [(line[0], line[3], line[6]) for line in texts(sheet)] == [("the paper's", "2", "1.30 at 20.0x")]


def test_stages_of_different_length_and_other_pretraining(tmp_path):
    rows = [tried(1.4, 9.0, "bb"), tried(1.4, 20.0) | {"epochs": 60}, tried(1.2, 20.0, pretraining=20)]
    (sheet,) = trial_sheets(write_results(tmp_path, rows, SEARCH))
    assert [(line[0], line[2]) for line in texts(sheet)] == [("the paper's", "150 + 60"), ("epochs of pretraining 20", "150")]
    assert sheet.note.startswith("2 models")


def test_candidates_of_each_network(tmp_path):
    weights = {"second_weights": [1.0] * 4, "perturbation": 0.25, "gate_speed": 5.0}
    rows = [tried(1.4, 20.0), tried(0.7, 14.0, network="lenet5-caffe", **weights), tried(1.3, 20.0, network="lenet-500-300", name="other")]
    first, second = trial_sheets(write_results(tmp_path, rows, SEARCH))
    assert first.title == "Candidates for a recipe of our own, on lenet-500-300"
    assert [line[6] for line in texts(first)] == ["1.40 at 20.0x", "1.30 at 20.0x"]
    assert second.title == "Candidates for a recipe of our own, on lenet5-caffe"
    assert texts(second)[0][0] == "second showing moved by 0.25, gates' rates times 5"


@pytest.mark.parametrize(("speedup", "error"), [(10.0, 1.0), (20.0, 1.5), (40.0, 2.0), (9.9, None), (41.0, None)])
def test_between_two_points(speedup, error):
    points = [Mean(4.0, 2.0, 40.0, 1), Mean(1.0, 1.0, 10.0, 1)]
    assert error_at(points, speedup) == (None if error is None else pytest.approx(error))


def test_points_of_one_speedup():
    assert error_at([Mean(1.0, 1.0, 10.0, 1), Mean(2.0, 2.0, 10.0, 1)], 10.0) is None


@pytest.mark.parametrize("name", [TUNING, SEARCH])
@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"validation_error": "low"}, "'validation_error' is not a number"),
        ({"speedup": 0}, "'speedup' is not a number"),
        ({"tradeoff": "much"}, "'tradeoff' is no number"),
        ({"hardware": None}, "'hardware' is not a text"),
        ({"epochs": "many"}, "'epochs' is not a whole number"),
    ],
)
def test_damaged_rows_are_named(tmp_path, name, change, complaint):
    good = tuned(1.5, length_scale=0.01, entropy_weight=0.1) if name == TUNING else tried(1.0, 10.0)
    with pytest.raises(ResultsError, match=f"{name}, line 2: {complaint}"):
        trial_sheets(write_results(tmp_path, [good, good | change], name))


def test_no_row(tmp_path):
    (tmp_path / SEARCH).write_text(json.dumps([1]) + "\n")
    with pytest.raises(ResultsError, match=f"{SEARCH}, line 1 is no row"):
        trial_sheets(tmp_path)


def test_part_of_document_and_page(tmp_path):
    results = write_results(tmp_path / "results", as_printed(seeds=1))
    write_results(results, [tried(1.0, 10.0)], SEARCH)
    write_report(results, tmp_path / "out")
    assert "## Tried on validation images" in (tmp_path / "out" / "results.md").read_text()
    page = (tmp_path / "out" / "report.html").read_text()
    assert '<section id="trials">' in page
    assert 'aria-controls="trials"' in page


@pytest.mark.parametrize("prices", ["1x", [1, 1, 1, 1], [None], ["\ud800"]])
def test_prices_are_texts(tmp_path, prices):
    rows = [tuned(0.7, 4.0, "l0", "lenet5-caffe", "0.1/60000", prices=prices)]
    with pytest.raises(ResultsError, match="line 1: 'prices' is not a list of texts"):
        trial_sheets(write_results(tmp_path, rows, TUNING))
