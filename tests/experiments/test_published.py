"""The paper's tables as data."""

import pytest

from bayesprune.experiments.published import METHODS, published_networks, published_rows, tradeoff_value


def test_every_network_of_the_paper_has_its_tables():
    assert published_networks() == [
        ("lenet-500-300", "mnist"),
        ("lenet5-caffe", "mnist"),
        ("vgg-like", "cifar10"),
        ("vgg-like", "cifar100"),
    ]
    for network, dataset in published_networks():
        appendix, main = published_rows(network, dataset, "appendix"), published_rows(network, dataset, "main")
        assert len(appendix) == 30
        assert len(main) == 10
        assert {row.method for row in main} == set(METHODS)
        assert published_rows(network, dataset) == [*appendix, *main]


@pytest.mark.parametrize(
    ("network", "method", "tradeoffs"),
    [
        ("lenet-500-300", "bb", ["8", "1"]),
        ("lenet-500-300", "dbb", ["6", "1"]),
        ("lenet-500-300", "sbp", ["4"]),
        ("lenet-500-300", "vib", ["1e-4"]),
        ("lenet-500-300", "l0", ["0.1/60000"]),
        ("lenet-500-300", "dense", [None]),
        ("lenet5-caffe", "bb", ["4", "1"]),
        ("lenet5-caffe", "sbp", ["1"]),
        ("lenet5-caffe", "vib", ["1e-7"]),
        ("lenet5-caffe", "l0", ["0.05/60000"]),
        ("lenet5-caffe", "gd", [None]),
    ],
)
def test_rows_of_the_main_table_are_found_in_the_appendix(network, method, tradeoffs):
    assert [row.tradeoff for row in published_rows(network, "mnist", "main") if row.method == method] == tradeoffs


@pytest.mark.parametrize(("text", "value"), [("8", 8.0), ("5e-7", 5e-7), ("0.1/60000", 0.1 / 60_000)])
def test_printed_tradeoffs_are_numbers(text, value):
    assert tradeoff_value(text) == value


def test_a_row_has_what_is_printed():
    row = next(row for row in published_rows("lenet5-caffe", "mnist", "main") if row.method == "l0")
    assert (row.error, row.error_std, row.kept, row.speedup, row.memory) == (0.66, 0.03, (11, 22, 79, 137), 4.08, 10.61)
