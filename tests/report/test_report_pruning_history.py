import pytest
from reproduction import ROWS, diverged, row, write_results

from bayesprune.experiments.rows import read_result_rows
from bayesprune.report.figures.pruning_history import draw_pruning_history, median_history, pruning_history, shown_rows


def trained(method="bb", tradeoff="1", seed=0, factor=1.0, epochs=(1, 10, 20), **others):
    history = [
        {"epoch": epoch, "seconds": factor * epoch, "error": factor + 1 / epoch, "kept": [200 / epoch * factor, 500 / epoch, 300 / epoch]}
        for epoch in epochs
    ]
    return row(method, tradeoff, seed, 1.0, **{"history": history, "side_by_side": 9, **others})


@pytest.fixture
def read(tmp_path):
    return lambda *rows: read_result_rows(write_results(tmp_path, rows) / ROWS)


def test_medians_are_taken_number_by_number(read):
    *all_three, middle = read(*(trained(seed=seed, factor=factor) for seed, factor in enumerate((3.0, 1.0, 2.0, 2.0))))
    assert median_history([one.history for one in all_three]) == list(middle.history)


def test_only_epochs_that_all_have(read):
    histories = [one.history for one in read(trained(), trained(seed=1, epochs=(10, 15, 20)))]
    assert [look.epoch for look in median_history(histories)] == [10, 20]
    assert median_history([]) == []


def test_stages_follow_each_other(read):
    timeline = pruning_history(read(trained("dbb", factor=2.0), trained("bb")))
    assert [point["stage"] for point in timeline] == ["BB"] * 3 + ["DBB"] * 3
    assert [point["seconds"] for point in timeline] == [1, 10, 20, 2, 20, 40]


@pytest.mark.parametrize(
    ("rows", "shown"),
    [
        ([trained("dbb", "4"), trained(tradeoff="4"), trained(tradeoff="1"), trained("dbb", "1")], [2, 3]),
        ([trained(tradeoff="10"), trained(tradeoff="4"), trained("dbb", "1")], [1]),
        ([trained("dbb")], []),
        ([], []),
    ],
)
def test_tradeoff_is_the_usual_or_the_smallest_of_bb(read, rows, shown):
    found = read(*rows)
    assert shown_rows(found) == [found[index] for index in shown]


def test_rows_with_a_history_of_one_recipe_are_shown(read):
    rows = [
        trained(recipe="quick"),
        trained(seed=1),
        diverged("bb", "1", 2),
        trained("vib"),
        trained("dense", None),
        trained("dbb", history=[]),
        trained("dbb", seed=3),
    ]
    found = read(*rows)
    assert shown_rows(found) == [found[1], found[6]]
    assert shown_rows(found[:1]) == found[:1]


def test_figure_says_what_it_shows(read, tmp_path, words_of):
    rows = read(*(trained(method, seed=seed, factor=1.0 + seed) for method in ("bb", "dbb") for seed in range(3)))
    words = words_of(draw_pruning_history, rows, tmp_path / "kept.png")
    assert "lenet-500-300 on mnist, trade-off 1: median of 3 models" in words
    assert {"BB", "DBB", "fc1 input: 20 of 784", "fc3 input: 15 of 300"} <= set(words)
    assert "training time, seconds for 9 models side by side" in words
    quick = read(*(trained(method, recipe="quick", side_by_side=1) for method in ("bb", "dbb")))
    words = words_of(draw_pruning_history, quick, tmp_path / "kept.png")
    assert "lenet-500-300 on mnist, trade-off 1: one model (recipe quick, not the paper's)" in words
    assert "training time, seconds" in words


def test_nothing_to_draw(read, tmp_path):
    assert not draw_pruning_history(read(row("bb", "1", 0, 1.0)), tmp_path / "kept.png")
    assert not (tmp_path / "kept.png").exists()
