"""Inputs in other sizes: dimensions that mean the same change together, the batch never."""

import pytest
import torch

from bayesprune.example_inputs import with_other_sizes


def shapes(example):
    """For every size, the dimensions together and then apart: the smaller alternatives, and the larger ones."""
    return [
        [[[tuple(leaf.shape) for leaf in leaves(inputs)] for inputs in alternatives] for alternatives in way]
        for ways in with_other_sizes(example)
        for way in ways
    ]


def leaves(inputs):
    return [leaf for leaf in (inputs if isinstance(inputs, tuple) else inputs.values()) if isinstance(leaf, torch.Tensor)]


def test_an_image():
    assert shapes(torch.randn(2, 3, 8, 8)) == [
        [[[(2, 2, 8, 8)]], [[(2, 6, 8, 8)], [(2, 4, 8, 8)]]],
        [[[(2, 3, 4, 4)]], [[(2, 3, 16, 16)], [(2, 3, 12, 12)]]],
        [[[(2, 3, 8, 4)]], [[(2, 3, 8, 16)], [(2, 3, 8, 12)]]],
        [[[(2, 3, 4, 8)]], [[(2, 3, 16, 8)], [(2, 3, 12, 8)]]],
    ]


@pytest.mark.parametrize(("size", "larger"), [(224, 320), (256, 384), (299, 448)])
def test_a_large_image_grows_by_less(size, larger):
    """What a model does on twice the height and width takes four times as long. Powers of two in its size are strides, and stay."""
    _, ways = with_other_sizes(torch.zeros(1, 3, size, size).expand(2, -1, -1, -1))
    assert [leaves(inputs)[0].shape[2:] for inputs in ways[0].larger] == [(larger, larger), (2 * size, 2 * size)]


def test_lengths_of_several_tensors_go_together():
    example = {"tokens": torch.zeros(2, 5, dtype=torch.int64), "mask": torch.ones(2, 5), "scale": 3.0}
    assert shapes(example) == [[[[(2, 4), (2, 4)]], [[(2, 10), (2, 10)], [(2, 7), (2, 7)]]]]


def test_a_dimension_of_one_grows_only():
    assert shapes((torch.randn(2, 4, 1, 1),))[1:] == [[[], [[(2, 4, 2, 2)]]], [[], [[(2, 4, 1, 2)]]], [[], [[(2, 4, 2, 1)]]]]


def test_values_are_those_of_the_example():
    ((way,),) = with_other_sizes((torch.tensor([[1, 2, 3, 4], [5, 6, 7, 8]]),))
    assert torch.equal(way.smaller[0][0], torch.tensor([[1, 2], [5, 6]]))
    assert torch.equal(way.larger[0][0], torch.tensor([[1, 2, 3, 4, 1, 2, 3, 4], [5, 6, 7, 8, 5, 6, 7, 8]]))
