"""Files that hold something else than the rows of a reproduction are named, and left as they are."""

import json

import pytest
from reproducing import EPOCHS, STRONG, WEAK, Untrained, places, reproduce, small
from reproduction import diverged, row

from bayesprune.errors import ResultsError, StorageError
from bayesprune.experiments.protocol import Entry
from bayesprune.experiments.reproduction import in_order, rows_there

ASKED = small(seeds=[0]).on("cpu")
GOOD = row("bb", WEAK, 0, 1.5, recipe="tiny", epochs=EPOCHS["pruned"])


def write(folder, *lines):
    path = places(folder).rows
    path.parent.mkdir(parents=True)
    path.write_text("".join(f"{line if isinstance(line, str) else json.dumps(line)}\n" for line in lines), encoding="utf-8")
    return path


def refused(folder, data, kind, message):
    path = places(folder).rows
    before = path.read_bytes()
    with pytest.raises(kind, match=rf"rows\.jsonl.*{message}"):
        reproduce(ASKED, folder, data, Untrained())
    assert path.read_bytes() == before
    assert not places(folder).work.exists()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"network": "lenet5-caffe", "kept": [1] * 4},
            "line 2 is of lenet5-caffe on mnist, recipe tiny, but rows of lenet-500-300 on mnist",
        ),
        ({"dataset": "cifar10"}, "line 2 is of lenet-500-300 on cifar10"),
        ({"recipe": "paper"}, "line 2 is of .*recipe paper, but .*recipe tiny.*choose another folder"),
        ({"tradeoff": WEAK, "error": 3.0}, r"line 2 has bb at 0\.05, seed 0 a second time"),
        ({"method": "xx"}, "line 2: no method is called 'xx'"),
        ({"kept": [1, 2, "a"]}, "line 2: 'kept' is not a list"),
        ({"epochs": 77}, "line 2 was trained for 77 epochs, not for .*choose another folder"),
        (
            {"stage_recipe": {"epochs": 1, "lr": 0.5}},
            "line 2 was trained by another version of the recipe tiny, .*'lr': 0.5.*choose another",
        ),
    ],
    ids=str,
)
def test_a_row_of_something_else(digits_folder, tmp_path, change, message):
    write(tmp_path, GOOD, {**GOOD, "tradeoff": STRONG, **change})
    refused(tmp_path, digits_folder, ResultsError, message)


@pytest.mark.parametrize(("line", "message"), [("[]", "line 2 is no row"), ("{}", "line 2: the field 'status' is missing")])
def test_json_of_another_kind(digits_folder, tmp_path, line, message):
    write(tmp_path, GOOD, line)
    refused(tmp_path, digits_folder, ResultsError, message)


@pytest.mark.parametrize("line", ["", "{", '{"network": ', "[" * 100_000], ids=["empty", "brace", "cut off", "deep"])
def test_damaged(digits_folder, tmp_path, line):
    write(tmp_path, GOOD, line)
    refused(tmp_path, digits_folder, StorageError, "is damaged in line 2")


def test_no_text(digits_folder, tmp_path):
    write(tmp_path, GOOD).write_bytes(b"\xff\xfe\x00")
    refused(tmp_path, digits_folder, StorageError, "is damaged")


def test_a_folder(digits_folder, tmp_path):
    places(tmp_path).rows.mkdir(parents=True)
    with pytest.raises(StorageError, match=r"cannot read .*rows\.jsonl"):
        reproduce(ASKED, tmp_path, digits_folder, Untrained())


def test_rows_that_were_not_asked_for_stay_and_come_last(tmp_path):
    other = row("bb", "8", 9, 1.2, recipe="tiny", epochs=EPOCHS["pruned"])
    failed = diverged("dbb", WEAK, 0, recipe="tiny")
    path = write(tmp_path, other, failed, GOOD)
    there = rows_there(ASKED, path)
    assert there == {Entry("bb", "8", 9): other, Entry("dbb", WEAK, 0): failed, Entry("bb", WEAK, 0): GOOD}
    assert in_order(ASKED, there) == [GOOD, failed, other]
    assert rows_there(ASKED, tmp_path / "none.jsonl") == {}
