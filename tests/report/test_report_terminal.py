"""The table that a reproduction ends with."""

import io

import pytest
from reproduction import DATASET, NETWORK, as_printed, diverged, row, write_results
from rich.console import Console

from bayesprune.experiments.rows import read_result_rows
from bayesprune.report.comparison.pairs import compare
from bayesprune.report.document.terminal import comparison_table


def lines(folder, rows, network=NETWORK, width=80):
    path = write_results(folder, rows, f"{network}-{DATASET}.jsonl") / f"{network}-{DATASET}.jsonl"
    console = Console(file=io.StringIO(), width=width)
    console.print(comparison_table(compare(network, DATASET, read_result_rows(path))))
    return console.file.getvalue().splitlines()


@pytest.mark.parametrize("network", ["lenet-500-300", "lenet5-caffe"])
def test_it_fits_into_a_terminal(tmp_path, network):
    printed = lines(tmp_path, as_printed(network), network)
    assert all("…" not in line for line in printed)
    assert len(printed) == 5 + len(as_printed(network, seeds=1)) - 1, "a line a row, and no dense one"


def test_what_it_says(tmp_path):
    rows = [
        row("bb", "1", 0, 1.20, 15.0, 4.0),
        row("bb", "2", 0, 2.50, 12.0, 5.0),
        row("bb", "3", 0, 1.0, 90.0, 1.0),
        diverged("dbb", "1", 0),
    ]
    found = [" ".join(line.replace("│", " ").split()) for line in lines(tmp_path, rows)]
    assert "BB 1 1.20 (1.26) 15.0 (13.4) ▲ 100-50-30 yes" in found
    assert "BB 2 2.50 (1.28) ▼ 12.0 (16.2) ▼ 100-50-30 elsewhere" in found
    assert "BB 3 1.00 90.0 100-50-30 ours alone" in found
    assert "DBB 1 (1.41) (35.0) diverged" in found
    assert "CD (1.54) (1.0) not run" in found
