"""Networks of which a part is constant, and whose size nothing else has: as much of it stays as tells the size."""

import pytest
import torch
import torch.nn.functional as F
from gallery import randomise_norms
from masking import prune_at_random
from torch import nn

import bayesprune as bp

EVERYTHING = 1.1
"""A share of which nothing is left, whatever is drawn."""


class Maps(nn.Module):
    """Its result is as large as its images are after a step of two; ``middle`` makes the hidden maps."""

    def __init__(self, middle):
        super().__init__()
        self.middle, self.head = middle, nn.Conv2d(6, 2, 3, padding=1)

    def forward(self, x):
        return self.head(F.relu(self.middle(x)))


class Steps(nn.Module):
    """Token by token, and another number of them than come in."""

    def __init__(self):
        super().__init__()
        self.shorter, self.hidden, self.out = nn.Conv1d(4, 5, 3, stride=2), nn.Linear(5, 7), nn.Linear(7, 3)

    def forward(self, x):
        return self.out(F.relu(self.hidden(self.shorter(x).transpose(1, 2)))).softmax(dim=1)


class Half(nn.Module):
    """Of whose maps only a part is used."""

    def __init__(self, part):
        super().__init__()
        self.first, self.second, self.head = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 6, 3, stride=2), nn.Conv2d(3, 2, 3, padding=1)
        self.part = part

    def forward(self, x):
        return self.head(F.relu(self.part(self.second(F.relu(self.first(x))))))


def halved(*layers):
    return Maps(nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), *layers))


CASES = {
    "strides": (lambda: halved(nn.Conv2d(8, 6, 3, stride=2)), (3, 12, 12), (3, 17, 9)),
    "norms": (lambda: halved(nn.Conv2d(8, 6, 3, stride=2), nn.BatchNorm2d(6)), (3, 12, 12), (3, 17, 9)),
    "groups": (lambda: halved(nn.Conv2d(8, 6, 3, stride=2, groups=2), nn.GroupNorm(3, 6)), (3, 12, 12), (3, 17, 9)),
    "transposed": (lambda: halved(nn.ConvTranspose2d(8, 6, 4, stride=3)), (3, 5, 5), (3, 4, 7)),
    "pooling": (lambda: halved(nn.MaxPool2d(3), nn.Conv2d(8, 6, 1)), (3, 12, 12), (3, 19, 10)),
    "tokens": (Steps, (4, 11), (4, 20)),
    "a slice": (lambda: Half(lambda maps: maps[:, 3:]), (3, 12, 12), (3, 17, 9)),
    "a chunk": (lambda: Half(lambda maps: maps.chunk(2, dim=1)[1]), (3, 12, 12), (3, 17, 9)),
    "an example of odd size": (lambda: halved(nn.Conv2d(8, 6, 4, stride=4)), (3, 15, 15), (3, 32, 32)),
    "an example of odd length": (Steps, (4, 7), (4, 40)),
}


@pytest.mark.parametrize("seen", [True, False], ids=["biases", "nothing"])
@pytest.mark.parametrize("name", CASES)
def test_constants_have_the_size_of_what_they_stand_for(name, seen, difference):
    build, shape, other = CASES[name]
    torch.manual_seed(0)
    model = randomise_norms(build().double().eval())
    if not seen:
        for layer in model.modules():
            if isinstance(getattr(layer, "bias", None), nn.Parameter):
                nn.init.zeros_(layer.bias)
    example = torch.rand(3, *shape, dtype=torch.float64)
    gated = prune_at_random(bp.sparsify(model, "bb", example_inputs=example).eval(), EVERYTHING)
    with pytest.warns(bp.BayespruneWarning, match="no longer depend"):
        result = bp.compact(gated, example)
    with torch.no_grad():
        for inputs in (example, torch.rand(2, *other, dtype=torch.float64)):
            assert difference(gated(inputs), result.model(inputs)) <= 1e-12
    before, after = result.certificate.before, result.certificate.after
    assert after.parameters < before.parameters / 2
    assert after.macs < before.macs / 2


@pytest.mark.parametrize("share", [0.5, 0.8])
def test_a_part_of_which_nothing_is_left(share, difference):
    torch.manual_seed(0)
    example = torch.rand(2, 3, 12, 12, dtype=torch.float64)
    gated = prune_at_random(bp.sparsify(CASES["a chunk"][0]().double().eval(), "bb", example_inputs=example).eval(), share)
    with pytest.warns(bp.BayespruneWarning, match="the units that are kept are dead"):
        result = bp.compact(gated, example)
    assert {outcome.stayed for outcome in result.certificate.gates.values()} == {1}
    with torch.no_grad():
        inputs = torch.rand(2, 3, 20, 15, dtype=torch.float64)
        assert difference(gated(inputs), result.model(inputs)) <= 1e-12


def test_the_certificate_says_why_a_unit_stays():
    torch.manual_seed(0)
    example = torch.rand(2, 3, 12, 12)
    gated = prune_at_random(bp.sparsify(CASES["norms"][0]().eval(), "bb", example_inputs=example).eval(), EVERYTHING)
    outcomes = bp.compact(gated, example).certificate.gates.values()
    assert {outcome.reason for outcome in outcomes} == {"nothing else has the size of what they make"}
    assert {outcome.stayed for outcome in outcomes} == {1}
