"""Inputs in other sizes: dimensions that mean the same change together, the batch never."""

import torch

from bayesprune.example_inputs import with_other_sizes


def shapes(example):
    return [[[tuple(leaf.shape) for leaf in (inputs if isinstance(inputs, tuple) else inputs.values())] for inputs in item]
            for item in with_other_sizes(example)]  # fmt: skip


def test_an_image():
    assert shapes(torch.randn(2, 3, 8, 8)) == [
        [[(2, 2, 8, 8)], [(2, 6, 8, 8)]],
        [[(2, 3, 4, 4)], [(2, 3, 16, 16)], [(2, 3, 8, 4)], [(2, 3, 8, 16)]],
        [[(2, 3, 4, 8)], [(2, 3, 16, 8)]],
    ]


def test_lengths_of_several_tensors_go_together():
    example = {"tokens": torch.zeros(2, 5, dtype=torch.int64), "mask": torch.ones(2, 5), "scale": 3.0}
    assert [item[1][:2] for item in [[[tuple(each.shape) for each in list(inputs.values())[:2]] for inputs in item] for item in
            with_other_sizes(example)]] == [[(2, 10), (2, 10)]]  # fmt: skip


def test_a_dimension_of_one_grows_only():
    assert shapes((torch.randn(2, 4, 1, 1),))[1:] == [[[(2, 4, 2, 2)], [(2, 4, 1, 2)]], [[(2, 4, 2, 1)]]]


def test_values_are_those_of_the_example():
    (inputs, _), *_ = with_other_sizes((torch.tensor([[1, 2, 3, 4], [5, 6, 7, 8]]),))
    assert torch.equal(inputs[0], torch.tensor([[1, 2], [5, 6]]))
