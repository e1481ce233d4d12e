import pytest
from reproduction import DATASET, NETWORK, ROWS, as_printed, diverged, row, write_results

from bayesprune.errors import ResultsError, StorageError
from bayesprune.report.comparison.rows import OWN_RECIPE, read_own_recipe, read_results


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


def test_parts_of_a_row(tmp_path):
    other = {"error": 1.5, "kept": [1, 2, 3], "speedup": 20.0, "memory": 4.0}
    (one,) = read(tmp_path, [row("dbb", "1", 0, 1.25, thresholds={"0.01": other}, static_kept=[9, 8, 7])])
    assert (one.outcome.error, one.outcome.kept, one.reason) == (1.25, (100.0, 50.0, 30.0), None)
    assert one.thresholds["0.01"].error == 1.5
    assert one.static_kept == (9.0, 8.0, 7.0)
    assert one.software["hardware"] == "a machine"


def test_diverged_row_has_a_reason_and_nothing_else(tmp_path):
    (one,) = read(tmp_path, [diverged("vib", "1e-4", 2, "NaN in epoch 7")])
    assert (one.outcome, one.reason, one.seconds) == (None, "NaN in epoch 7", None)


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"method": "bp"}, "no method is called 'bp'"),
        ({"network": "lenet5-caffe"}, "belongs into another file"),
        ({"recipe": "fast"}, "recipe 'fast'"),
        ({"status": "running"}, "'running'"),
        ({"error": "1.2"}, "'error' is not a number"),
        ({"error": float("nan")}, "'error' is not a number"),
        ({"error": -1.0}, "'error' is not a number"),
        ({"error": True}, "'error' is not a number"),
        ({"speedup": 0}, "'speedup' is zero"),
        ({"kept": []}, "'kept' is not a list of counts"),
        ({"kept": [1, "2"]}, "'kept' is not a list of counts"),
        ({"seed": 0.5}, "'seed' is not a whole number"),
        ({"side_by_side": 0}, "'side_by_side' is not a whole number of at least 1"),
        ({"tradeoff": "much"}, "'tradeoff' is not a number as the paper prints them"),
        ({"tradeoff": "1/0"}, "'tradeoff' is not a number as the paper prints them"),
        ({"hardware": None}, "'hardware' is not a text"),
        ({"thresholds": {"low": {}}}, "'low' is no threshold"),
        ({"thresholds": {"0.01": {"kept": [1, 2, 3]}}}, "thresholds, 0.01: the field 'speedup' is missing"),
        ({"soft": [1]}, "'soft' has no fields"),
        ({"soft": {"kept": [1], "speedup": 1.0, "memory": 1.0}}, "units of 1 gates"),
    ],
)
def test_wrong_field_is_named(tmp_path, change, complaint):
    with pytest.raises(ResultsError, match=r"row 2.*") as caught:
        read(tmp_path, [row("bb", "1", 0, 1.0), row("bb", "1", 1, 1.0) | change])
    assert complaint in str(caught.value)
    assert ROWS in str(caught.value)


@pytest.mark.parametrize("name", ["network", "method", "tradeoff", "seed", "error", "kept", "seconds", "hardware", "recipe", "status"])
def test_missing_field_is_named(tmp_path, name):
    damaged = row("bb", "1", 0, 1.0)
    del damaged[name]
    with pytest.raises(ResultsError, match=f"row 1: the field '{name}' is missing"):
        read(tmp_path, [damaged])


def test_row_that_is_there_twice(tmp_path):
    with pytest.raises(ResultsError, match="row 2 is there twice: bb, trade-off 1, seed 0"):
        read(tmp_path, [row("bb", "1", 0, 1.0), row("bb", "1", 0, 1.1)])


def test_row_that_is_no_object(tmp_path):
    with pytest.raises(ResultsError, match="row 1 is no JSON object"):
        read(tmp_path, [[1, 2]])


def test_damaged_line(tmp_path):
    write_results(tmp_path, [row("bb", "1", 0, 1.0)])
    with (tmp_path / ROWS).open("a") as file:
        file.write('{"network": "lenet')
    with pytest.raises(StorageError, match="damaged"):
        read_results(tmp_path)


def test_nothing_to_read(tmp_path):
    with pytest.raises(ResultsError, match="no folder"):
        read_results(tmp_path / "nowhere")
    with pytest.raises(ResultsError, match=rf"no rows in .*{ROWS}"):
        read_results(tmp_path)
    with pytest.raises(ResultsError, match="no rows"):
        read_results(write_results(tmp_path, []))


def test_every_network_of_the_paper_is_read(tmp_path):
    write_results(tmp_path, as_printed(seeds=1))
    write_results(tmp_path, as_printed("lenet5-caffe", seeds=1), "lenet5-caffe-mnist.jsonl")
    (tmp_path / "other.jsonl").write_text("not ours")
    assert list(read_results(tmp_path)) == [("lenet-500-300", "mnist"), ("lenet5-caffe", "mnist")]


def test_own_recipe(tmp_path):
    assert read_own_recipe(tmp_path) == []
    write_results(tmp_path, [row("bb", "1", 0, 1.0, recipe="ours")], OWN_RECIPE)
    assert read_own_recipe(tmp_path)[0].recipe == "ours"


@pytest.mark.parametrize(("recipes", "complaint"), [(("paper",), "recipe 'paper'"), (("a", "b"), "several recipes, a, b")])
def test_own_recipe_is_one_of_ours(tmp_path, recipes, complaint):
    write_results(tmp_path, [row("bb", "1", seed, 1.0, recipe=recipe) for seed, recipe in enumerate(recipes)], OWN_RECIPE)
    with pytest.raises(ResultsError, match=complaint):
        read_own_recipe(tmp_path)
