import pytest
from reproduction import DATASET, NETWORK, ROWS, as_printed, row, write_results

from bayesprune.errors import ResultsError
from bayesprune.report.comparison.results import own_recipe_file, read_own_recipes, read_results
from bayesprune.report.document.content import read_content


def read(folder, rows):
    return read_results(write_results(folder, rows))[NETWORK, DATASET]


def test_rows_come_in_the_order_of_the_tables(tmp_path):
    rows = [
        row("bb", "8", 1, 1.0),
        row("bb", "8", 0, 1.0),
        row("bb", "1", 0, 1.0),
        row("dense", None, 0, 1.0),
        row("l0", "0.1/60000", 0, 1.0),
    ]
    found = read(tmp_path, rows)
    assert [(one.method, one.tradeoff, one.seed) for one in found] == [
        ("dense", None, 0), ("l0", "0.1/60000", 0), ("bb", "1", 0), ("bb", "8", 0), ("bb", "8", 1),
    ]  # fmt: skip
    assert read(tmp_path, rows[::-1]) == found


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"network": "lenet5-caffe", "kept": [1, 2, 3, 4]}, "is of lenet5-caffe on mnist: it belongs into another file"),
        ({"dataset": "cifar10"}, "is of lenet-500-300 on cifar10: it belongs into another file"),
        ({"recipe": "fast"}, "is of the recipe 'fast'"),
    ],
)
def test_row_of_another_file_is_named(tmp_path, change, complaint):
    with pytest.raises(ResultsError, match=f"{ROWS}, line 2 {complaint}"):
        read(tmp_path, [row("bb", "1", 0, 1.0), row("bb", "1", 1, 1.0) | change])


def test_rows_that_are_comparable_and_others_are_not_mixed(tmp_path):
    with pytest.raises(ResultsError, match="'paper' and 'quick'"):
        read(tmp_path, [row("bb", "1", 0, 1.0), row("bb", "1", 1, 1.0, recipe="quick")])


def test_nothing_to_read(tmp_path):
    with pytest.raises(ResultsError, match="no folder"):
        read_results(tmp_path / "nowhere")
    assert read_results(tmp_path) == {}
    with pytest.raises(ResultsError, match=rf"no rows in .*{ROWS}"):
        read_content(tmp_path)
    with pytest.raises(ResultsError, match="no rows"):
        read_content(write_results(tmp_path, []))


def test_every_network_of_the_paper_is_read(tmp_path):
    write_results(tmp_path, as_printed(seeds=1))
    write_results(tmp_path, as_printed("lenet5-caffe", seeds=1), "lenet5-caffe-mnist.jsonl")
    (tmp_path / "other.jsonl").write_text("not ours")
    assert list(read_results(tmp_path)) == [("lenet-500-300", "mnist"), ("lenet5-caffe", "mnist")]


def test_own_recipes(tmp_path):
    assert read_own_recipes(tmp_path) == read_own_recipes(tmp_path / "nowhere") == {}
    write_results(tmp_path, [row("bb", "1", 0, 1.0, recipe="consistent")], own_recipe_file("consistent", NETWORK))
    other = [row("bb", "9", 0, 0.8, kept=[4] * 4, network="lenet5-caffe", recipe="consistent")]
    write_results(tmp_path, other, own_recipe_file("consistent", "lenet5-caffe"))
    write_results(tmp_path, [row("bb", "2", 0, 1.0, recipe="smooth")], own_recipe_file("smooth", NETWORK))
    found = read_own_recipes(tmp_path)
    assert {recipe: [(row.network, row.tradeoff) for row in rows] for recipe, rows in found.items()} == {
        "consistent": [(NETWORK, "1"), ("lenet5-caffe", "9")],
        "smooth": [(NETWORK, "2")],
    }


@pytest.mark.parametrize(
    ("recipe", "name", "complaint"),
    [
        ("paper", own_recipe_file("smooth", NETWORK), "line 1 is of the recipe 'paper': only 'smooth' belongs here"),
        ("consistent", own_recipe_file("smooth", NETWORK), "line 1 is of the recipe 'consistent': only 'smooth' belongs here"),
        ("smooth", own_recipe_file("smooth", "lenet5-caffe"), "line 1 is of lenet-500-300 on mnist: it belongs into another file"),
        ("smooth", "own-recipe-lenet-500-300.jsonl", "of no recipe of ours .* rename it to one of own-recipe-consistent"),
    ],
)
def test_files_of_own_recipes_have_rows_of_theirs_alone(tmp_path, recipe, name, complaint):
    write_results(tmp_path, [row("bb", "1", 0, 1.0, recipe=recipe)], name)
    with pytest.raises(ResultsError, match=complaint):
        read_own_recipes(tmp_path)
