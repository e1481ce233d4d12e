"""Which inputs of other sizes a model is tried on: smaller and larger ones, as long as its results belong to the same batch."""

import pytest
import torch
from torch import nn

from bayesprune.graph.calls import run_example
from bayesprune.graph.other_sizes import in_other_sizes


class Steps(nn.Module):
    def __init__(self, steps):
        super().__init__()
        self.steps = steps

    def forward(self, x):
        return self.steps(x)


def shapes(steps, x):
    model = Steps(steps)
    return [tuple(trial.inputs[0].shape) for trial in in_other_sizes(model, x, run_example(model, x))]


def fixed(x, width, height=None):
    assert x.shape[-1] == width
    assert height is None or x.shape[-2] in height
    return x


@pytest.mark.parametrize(
    ("steps", "shape", "expected"),
    [
        (lambda x: x, (3, 5), [(2, 4), (2, 10)]),
        (lambda x: fixed(x, 4), (3, 8, 4), [(2, 4, 4), (2, 16, 4)]),
        (lambda x: fixed(x, 6), (3, 6, 6), [(2, 3, 6), (2, 12, 6)]),  # Features, and as many elements of a set.
        (lambda x: fixed(x, 4, range(8, 99)), (3, 8, 4), [(2, 16, 4)]),
        (lambda x: fixed(x, 4, range(14)), (3, 8, 4), [(2, 4, 4), (2, 12, 4)]),  # A table that is too short for twice the length.
        (lambda x: fixed(x, 4, [8]), (3, 8, 4), []),
    ],
)
def test_in_both_directions_where_the_model_takes_them(steps, shape, expected):
    assert shapes(steps, torch.randn(shape)) == expected


@pytest.mark.parametrize("batch", [2, 3, 8])
def test_a_model_that_takes_samples_apart_does_not_take_them(batch):
    assert shapes(lambda x: x.reshape(-1, 8), torch.randn(batch, 8)) == []


@pytest.mark.parametrize("batch", [2, 3, 4])
@pytest.mark.parametrize("length", [2, 3, 4, 8])
@pytest.mark.parametrize("steps", [lambda x: (x, x.transpose(0, 1)), lambda x: (x, x.new_zeros(2, len(x))), lambda x: (x, x.sum(0))])
def test_other_results_may_have_as_many_rows_by_chance(steps, length, batch):
    found = shapes(steps, torch.randn(batch, length))
    assert [size for _, size in found] == [length // 2 if length % 2 == 0 else length - 1, 2 * length]


def test_a_model_for_one_batch_size():
    assert shapes(lambda x: x + torch.zeros(5, 1), torch.randn(5, 4)) == [(5, 2), (5, 8)]
