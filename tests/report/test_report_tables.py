from io import StringIO

import pytest
from rich.console import Console

from bayesprune.report import removal_lines, stage_table
from bayesprune.report.tables import join_units

VGG = [64, 64, 128, 128, 256, 256, 256, 512, 512, 512, 512, 512, 512, 512]


def text_of(kept, width=80):
    stages = [
        {"stage": "dense", "error": 1.234, "kept": [784, 500, 300], "speedup": 1.0, "memory": 100.0, "seconds": 9.4},
        {"stage": "pruned", "error": 1.5, "kept": kept, "speedup": 12.345, "memory": 5.678, "seconds": 61.0},
        {"stage": "dependent", "error": 1.675, "kept": kept, "speedup": 123.456, "memory": 1.0, "seconds": 7200.0},
    ]
    file = StringIO()
    console = Console(file=file, width=width)
    console.print(stage_table({"network": "lenet-500-300", "dataset": "mnist", "method": "dbb", "recipe": "fast", "stages": stages}))
    return file.getvalue()


@pytest.mark.parametrize("kept", [[518, 187, 135], [20.4, 49.6, 800, 500], VGG[-8:], VGG], ids=["lenet", "lenet5", "eight", "vgg"])
def test_table_has_every_number(kept):
    """On a standard terminal, where nothing may be cut off."""
    text = text_of(kept)
    for part in ("lenet-500-300 on mnist, dbb, recipe fast", "stage", "error %", "kept units", "xFLOPs", "memory %", "seconds"):
        assert part in text
    cells = [[cell.strip() for cell in line.strip("│").split("│")] for line in text.splitlines() if line.startswith("│")]
    assert cells == [
        ["dense", "1.23", "784-500-300", "1.00", "100.00", "9"],
        ["pruned", "1.50", join_units(kept), "12.35", "5.68", "61"],
        ["dependent", "1.68", join_units(kept), "123.46", "1.00", "7200"],
    ]


@pytest.mark.parametrize(
    ("kept", "text"),
    [
        ([], ""),
        ([784, 500, 300], "784-500-300"),
        ([12.4, 3.6, 0], "12-4-0"),
        (list(range(6)), "0-1-2-3-4-5"),
    ],
)
def test_units_as_the_paper_prints_them(kept, text):
    assert join_units(kept) == text


def test_long_networks_are_shortened_in_the_middle():
    text = join_units(range(10, 25))
    assert text.startswith("10-11-")
    assert "-…-" in text
    assert text.endswith("-23-24")


def test_what_was_removed_when():
    removals = [{"epoch": epoch, "left": [90 - epoch, 50, 30]} for epoch in range(1, 9)]
    stages = [
        {"stage": "dense"},
        {"stage": "pruned", "removals": removals},
        {"stage": "dependent", "removals": [{"epoch": 0, "left": [7]}]},
    ]
    first, second = removal_lines({"stages": stages})
    assert first.startswith("units of the network that is trained, pruned: 89-50-30 after epoch 1, 88-50-30 after epoch 2")
    assert first.endswith("85-50-30 after epoch 5, … 82-50-30 after epoch 8")
    assert second == "units of the network that is trained, dependent: 7 from the start"
    assert removal_lines({"stages": stages[:1]}) == []
