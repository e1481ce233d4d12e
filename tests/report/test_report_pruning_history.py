import json

import pytest

from bayesprune.errors import StorageError
from bayesprune.models import LeNet500300
from bayesprune.report.figures.pruning_history import draw_pruning_history, median_history, pruning_history, read_histories, shown_tradeoff


def row(method="bb", tradeoff="1", seed=0, factor=1.0, epochs=(1, 10, 20), **changes):
    history = [
        {"epoch": epoch, "seconds": factor * epoch, "error": factor + 1 / epoch, "kept": [700 / epoch * factor, 500 / epoch, 300 / epoch]}
        for epoch in epochs
    ]
    return {
        "method": method,
        "tradeoff": tradeoff,
        "seed": seed,
        "status": "finished",
        "recipe": "paper",
        "side_by_side": 9,
        "history": history,
    } | changes


def write(path, rows):
    path.write_text("".join(json.dumps(each) + "\n" for each in rows))
    return path


def test_medians_are_taken_number_by_number():
    histories = [row(factor=factor)["history"] for factor in (3.0, 1.0, 2.0)]
    assert median_history(histories) == row(factor=2.0)["history"]


def test_only_epochs_that_all_have():
    assert [point["epoch"] for point in median_history([row()["history"], row(epochs=(10, 15, 20))["history"]])] == [10, 20]
    assert median_history([]) == []


def test_stages_follow_each_other_at_one_tradeoff():
    rows = [row("dbb", factor=2.0), row("bb"), row("bb", "4", factor=9.0)]
    timeline = pruning_history(rows, "1")
    assert [point["stage"] for point in timeline] == ["BB"] * 3 + ["DBB"] * 3
    assert [point["seconds"] for point in timeline] == [1, 10, 20, 2, 20, 40]


def test_tradeoff_is_the_usual_or_the_smallest():
    assert shown_tradeoff([row(tradeoff="4"), row(tradeoff="1")]) == "1"
    assert shown_tradeoff([row(tradeoff="10"), row(tradeoff="4")]) == "4"
    assert shown_tradeoff([row("dbb")]) is None


def test_reading_takes_what_has_a_history_of_one_recipe(tmp_path):
    rows = [
        row(recipe="quick"),
        row(seed=1),
        row(seed=2, status="diverged", history=None),
        row("vib", "1e-4", history=[{"anything": 1}]),
        row("dense", None),
        row("dbb", history=[]),
        row("dbb", seed=3),
    ]
    assert read_histories(write(tmp_path / "rows.jsonl", rows), 3) == [rows[1], rows[6]]
    assert read_histories(write(tmp_path / "rows.jsonl", rows[:1]), 3) == rows[:1]


@pytest.mark.parametrize(
    "wrong",
    [
        [1],
        {"method": "bb"},
        row(tradeoff=None),
        row(tradeoff="much"),
        row(history=7),
        row(history=[{"epoch": 1, "seconds": 1.0, "error": 1.0, "kept": [1, 2]}]),
        row(history=[{"epoch": 1, "seconds": 1.0, "error": None, "kept": [1, 2, 3]}]),
        row(history=[{"epoch": 1, "seconds": float("nan"), "error": 1.0, "kept": [1, 2, 3]}]),
    ],
)
def test_foreign_rows_are_named(tmp_path, wrong):
    path = write(tmp_path / "rows.jsonl", [row(), wrong])
    with pytest.raises(StorageError, match=r"rows\.jsonl.* line 2 "):
        read_histories(path, 3)


def test_figure_says_what_it_shows(tmp_path, words_of):
    places = LeNet500300().gate_places()
    rows = [row(method, seed=seed, factor=1.0 + seed) for method in ("bb", "dbb") for seed in range(3)]
    words = words_of(draw_pruning_history, rows, "1", places, "the network", tmp_path / "kept.png")
    assert "the network, trade-off 1: median of 3 models" in words
    assert {"BB", "DBB", "fc1 input: 70 of 784", "fc3 input: 15 of 300"} <= set(words)
    assert "training time, seconds for 9 models side by side" in words
    quick = [each | {"recipe": "quick", "side_by_side": 1} for each in rows if each["seed"] == 0]
    words = words_of(draw_pruning_history, quick, "1", places, "the network", tmp_path / "kept.png")
    assert "the network, trade-off 1: one model (recipe quick, not the paper's)" in words
    assert "training time, seconds" in words
