"""Rows of a reproduction, read: every field is what it should be, or the file, the line and the field are named."""

import pytest
from reproduction import ROWS, diverged, row, write_results

from bayesprune.errors import ResultsError, StorageError
from bayesprune.experiments.protocol import Entry
from bayesprune.experiments.rows import Look, read_result_rows

LOOK = {"epoch": 1, "seconds": 0.5, "error": 3.0, "kept": [700, 400, 200]}
OTHER = {"error": 1.5, "kept": [1, 2, 3], "speedup": 20.0, "memory": 4.0}
HUGE = 10**400


def read(folder, *rows):
    return read_result_rows(write_results(folder, rows) / ROWS)


def test_parts_of_a_row(tmp_path):
    given = row("dbb", "1", 0, 1.25, thresholds={"0.01": OTHER}, static_kept=[9, 8, 7], history=[LOOK], more="anything")
    (one,) = read(tmp_path, given)
    assert one.entry == Entry("dbb", "1", 0)
    assert (one.outcome.error, one.outcome.kept, one.reason) == (1.25, (100.0, 50.0, 30.0), None)
    assert one.thresholds["0.01"].error == 1.5
    assert one.static_kept == (9.0, 8.0, 7.0)
    assert one.software["hardware"] == "a machine"
    assert one.history == (Look(1, 0.5, 3.0, (700.0, 400.0, 200.0)),)
    assert one.written == given


def test_what_a_row_need_not_have(tmp_path):
    without = row("cd", None, 0, 1.0)
    del without["history"]
    one, other = read(tmp_path, without, row("dense", None, 0, 1.0, history=None, thresholds=None, soft=None, static_kept=None))
    for each in (one, other):
        assert (each.tradeoff, each.thresholds, each.soft, each.static_kept, each.history) == (None, {}, None, None, ())


def test_diverged_row_has_a_reason_and_nothing_else(tmp_path):
    (one,) = read(tmp_path, diverged("vib", "1e-4", 2, "NaN in epoch 7", thresholds=3, soft=3, static_kept=3, history=3))
    assert (one.outcome, one.reason, one.seconds) == (None, "NaN in epoch 7", None)
    assert (one.thresholds, one.soft, one.static_kept, one.history) == ({}, None, None, ())
    unexplained = diverged("vib", "1e-4", 2)
    del unexplained["reason"]
    with pytest.raises(ResultsError, match="the field 'reason' is missing"):
        read(tmp_path, unexplained)


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"status": "running"}, "no status is called 'running': there are finished, diverged"),
        ({"status": []}, "'status' is not a text"),
        ({"network": "lenet5"}, "no network is called 'lenet5': .*Did you mean 'lenet5-caffe'"),
        ({"network": 3}, "'network' is not a text"),
        ({"network": "lenet5-caffe"}, "'kept' is not a list of the units of 4 gates"),
        ({"method": "bp"}, "no method is called 'bp'"),
        ({"method": ["bb"]}, "'method' is not a text"),
        ({"method": None}, "'method' is not a text"),
        ({"recipe": {}}, "'recipe' is not a text"),
        ({"hardware": None}, "'hardware' is not a text"),
        *(({"seed": value}, "'seed' is not a whole number") for value in (0.5, "0", [0], None, True)),
        *(({"tradeoff": value}, "'tradeoff' is not a text") for value in (None, 1, [])),
        *(
            ({"tradeoff": value}, "'tradeoff' is not a number as the paper prints them")
            for value in ("much", "1/0", "", "1e400", "nan", "1/2/3", "-1", "0", "1_0")
        ),
        *(({"error": value}, "'error' is not a number") for value in (None, "1.2", HUGE, 1e308, 100.1, -1.0, True)),
        ({"speedup": "2"}, "'speedup' is not a number"),
        *(({"speedup": value}, "'speedup' is not a number of at least 0.001") for value in (0, 5e-324)),
        ({"hardware": "\ud800"}, "'hardware' is not a text"),
        ({"kept": [785, 500, 300]}, "'kept' is not a list of the units of 3 gates, at most 784-500-300"),
        ({"side_by_side": 10**400}, "'side_by_side' is not a whole number"),
        ({"method": "dense", "tradeoff": "1"}, "dense has no 'tradeoff'"),
        *(
            ({"kept": value}, "'kept' is not a list of the units of 3 gates")
            for value in (None, 3, [], [1, 2], [1, 2, 3, 4], [1, 2, "3"], [1, 2, -3], [1, 2, HUGE])
        ),
        ({"epochs": 1.5}, "'epochs' is not a whole number of at least 0"),
        ({"seconds": None}, "'seconds' is not a number"),
        ({"side_by_side": 0}, "'side_by_side' is not a whole number of at least 1"),
        ({"thresholds": {"low": {}}}, "thresholds: 'low' is no threshold"),
        ({"thresholds": {"0.01": {"kept": [1, 2, 3]}}}, r"thresholds, 0\.01: the field 'speedup' is missing"),
        ({"soft": [1]}, "'soft' has no fields"),
        ({"soft": {**OTHER, "kept": [1]}}, "soft: 'kept' is not a list of the units of 3 gates"),
        ({"static_kept": [1]}, "'static_kept' is not a list of the units of 3 gates"),
        *(({"history": value}, "'history' is not a list of parts") for value in (7, {}, [LOOK, 7])),
        ({"history": [{}]}, "history, part 1: the field 'epoch' is missing"),
        ({"history": [LOOK, {**LOOK, "epoch": "2"}]}, "history, part 2: 'epoch' is not a whole number"),
        ({"history": [{**LOOK, "seconds": "soon"}]}, "history, part 1: 'seconds' is not a number"),
        ({"history": [{**LOOK, "error": None}]}, "history, part 1: 'error' is not a number"),
        ({"history": [{**LOOK, "kept": [1, 2]}]}, "history, part 1: 'kept' is not a list of the units of 3 gates"),
    ],
)
def test_wrong_field_is_named(tmp_path, change, complaint):
    with pytest.raises(ResultsError, match=rf"{ROWS}, line 2.*{complaint}.*; put a good row in its place"):
        read(tmp_path, row("bb", "1", 0, 1.0), row("bb", "1", 1, 1.0) | change)


@pytest.mark.parametrize("name", sorted(set(row("bb", "1", 0, 1.0)) - {"macs", "parameters", "history"}))
def test_missing_field_is_named(tmp_path, name):
    damaged = row("bb", "1", 0, 1.0)
    del damaged[name]
    with pytest.raises(ResultsError, match=f"line 1: the field '{name}' is missing"):
        read(tmp_path, damaged)


def test_row_that_is_there_twice(tmp_path):
    with pytest.raises(ResultsError, match="line 2 has bb at 1, seed 0 a second time"):
        read(tmp_path, row("bb", "1", 0, 1.0), row("bb", "1", 0, 1.1))


@pytest.mark.parametrize("other", [[1, 2], 3, None, "a row"], ids=str)
def test_json_of_another_kind(tmp_path, other):
    with pytest.raises(ResultsError, match="line 1 is no row of a reproduction"):
        read(tmp_path, other)


def test_damaged_line(tmp_path):
    read(tmp_path, row("bb", "1", 0, 1.0))
    with (tmp_path / ROWS).open("a") as file:
        file.write('{"network": "lenet')
    with pytest.raises(StorageError, match="damaged in line 2"):
        read_result_rows(tmp_path / ROWS)
