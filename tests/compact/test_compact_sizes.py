"""Inputs of other sizes than the example: what a model takes, its compacted form takes, and computes the same."""

import math

import pytest
import torch
import torch.nn.functional as F
from gallery import randomise_norms
from masking import prune_at_random, prune_units
from torch import nn

import bayesprune as bp


class Same(nn.Conv2d):
    """A convolution that pads as much as its input's size asks for, as in networks that came from TensorFlow."""

    def forward(self, x):
        rows, columns = x.size()[-2:]
        down, right = ((math.ceil(size / 2) - 1) * 2 + 3 - size for size in (rows, columns))
        down, right = max(down, 0), max(right, 0)
        if down > 0 or right > 0:
            x = F.pad(x, [right // 2, right - right // 2, down // 2, down - down // 2])
        return F.conv2d(x, self.weight, self.bias, self.stride)


class Sets(nn.Module):
    def __init__(self):
        super().__init__()
        self.each = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 8))
        self.all = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 3))

    def forward(self, x):
        return self.all(self.each(x).sum(dim=1))


class Checked(nn.Module):
    """Attention by hand, with a limit on the length that torch.fx cannot follow."""

    def __init__(self):
        super().__init__()
        self.qkv, self.out, self.head = nn.Linear(8, 24), nn.Linear(8, 8), nn.Linear(8, 3)

    def forward(self, x):
        batch, length, _ = x.shape
        assert length <= 64
        q, k, v = (each.view(batch, length, 2, 4).transpose(1, 2) for each in self.qkv(x).split(8, dim=2))
        scores = (q @ k.transpose(-2, -1)) / math.sqrt(4)
        scores = scores.masked_fill(torch.ones(length, length).triu(1).bool(), float("-inf"))
        y = (scores.softmax(-1) @ v).transpose(1, 2).reshape(*x.shape[:-1], 8)
        return self.head(x + self.out(y))


def norm_before_a_border():
    layers = [nn.Conv2d(3, 6, 3, padding=1), nn.BatchNorm2d(6), nn.Conv2d(6, 6, 3, padding=1), nn.ReLU()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(6, 3))


CASES = {
    "padding that depends on the size": (
        lambda: nn.Sequential(
            Same(3, 8, 3, stride=2), nn.BatchNorm2d(8), nn.ReLU(), Same(8, 6, 3, stride=2), nn.ReLU(), nn.AdaptiveAvgPool2d(1),
            nn.Flatten(), nn.Linear(6, 3),
        ),
        (3, 15, 15), [(3, 16, 16), (3, 24, 9)],
    ),
    "a sum over a set": (Sets, (6, 6), [(9, 6), (1, 6)]),
    "attention": (Checked, (6, 8), [(9, 8), (3, 8)]),
    "a norm before a border": (norm_before_a_border, (3, 16, 16), [(3, 24, 24), (3, 8, 20)]),
}  # fmt: skip


@pytest.mark.parametrize("share", [0.5, 1.0])
@pytest.mark.parametrize("before_norm", [False, True])
@pytest.mark.parametrize("name", CASES)
@pytest.mark.filterwarnings("ignore:the outputs no longer depend")
def test_other_sizes(name, before_norm, share):
    build, shape, others = CASES[name]
    torch.manual_seed(0)
    model, x = randomise_norms(build()).double().eval(), torch.randn(2, *shape, dtype=torch.float64)
    gated = prune_at_random(bp.sparsify(model, "bb", example_inputs=x, before_norm=before_norm), share)
    result = bp.compact(gated, x)
    assert result.certificate.note == ""
    for other in (shape, *others):
        fresh = torch.randn(3, *other, dtype=torch.float64)
        torch.testing.assert_close(result.model(fresh), gated(fresh), rtol=1e-11, atol=1e-13)


def test_one_gate_with_nothing_left():
    torch.manual_seed(0)
    x = torch.randn(2, 3, 16, 16, dtype=torch.float64)
    gated = bp.sparsify(randomise_norms(norm_before_a_border()).double().eval(), "bb", example_inputs=x, before_norm=True)
    result = bp.compact(prune_units(gated, {"0.output_gate": range(6)}), x)
    fresh = torch.randn(3, 3, 10, 12, dtype=torch.float64)
    torch.testing.assert_close(result.model(fresh), gated(fresh), rtol=1e-11, atol=1e-13)


class Branching(nn.Module):
    def __init__(self, factor):
        super().__init__()
        self.factor = factor
        self.first, self.second = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 4, 3, padding=1)

    def forward(self, x):
        y = torch.relu(self.first(x))
        return self.second(y * self.factor if x.shape[-1] > 12 else y)


@pytest.mark.parametrize("size", [8, 16], ids=["above the example", "below it"])
@pytest.mark.parametrize("factor", [2.0, 1 + 1e-6])
def test_a_model_that_branches_on_its_size_says_so(factor, size):
    x = torch.randn(2, 3, size, size, dtype=torch.float64)
    gated = prune_at_random(bp.sparsify(Branching(factor).double().eval(), "bb", example_inputs=x), 0.5)
    with pytest.warns(bp.BayespruneWarning, match="inputs of the example's size"):
        result = bp.compact(gated, x)
    assert "the example's size" in result.certificate.note


class FixedWidth(nn.Module):
    """Takes any height, and does something else above ten."""

    def __init__(self):
        super().__init__()
        self.first, self.second, self.last = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 4, 3, padding=1), nn.Linear(8, 2)

    def forward(self, x):
        y = torch.relu(self.first(x))
        return self.last(self.second(2 * y if x.shape[2] > 10 else y))


def test_a_branch_on_one_of_two_equal_sizes():
    x = torch.randn(2, 3, 8, 8)
    gated = prune_at_random(bp.sparsify(FixedWidth().eval(), "bb", example_inputs=x), 0.5)
    with pytest.warns(bp.BayespruneWarning, match="inputs of the example's size"):
        bp.compact(gated, x)


class Tagger(nn.Module):
    """Its second result is (2, batch, 6): two is the number of directions."""

    def __init__(self):
        super().__init__()
        self.recurrent = nn.GRU(4, 6, batch_first=True, bidirectional=True)
        self.head = nn.Sequential(nn.Linear(12, 9), nn.ReLU(), nn.Linear(9, 4))

    def forward(self, x):
        outputs, hidden = self.recurrent(x)
        return self.head(outputs), hidden


@pytest.mark.parametrize("batch", [2, 3, 5])
@pytest.mark.parametrize("share", [0.5, 1.0])
@pytest.mark.filterwarnings("ignore:the outputs no longer depend")
def test_a_result_with_as_many_rows_as_the_batch_of_the_trial(share, batch):
    torch.manual_seed(0)
    x = torch.randn(batch, 5, 4, dtype=torch.float64)
    gated = prune_at_random(bp.sparsify(Tagger().double().eval(), "bb", example_inputs=x), share)
    result = bp.compact(gated, x)
    assert result.certificate.note == ""
    fresh = torch.randn(3, 7, 4, dtype=torch.float64)
    torch.testing.assert_close(result.model(fresh), gated(fresh), rtol=1e-11, atol=1e-13)
