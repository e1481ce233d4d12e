"""Operations of sequence models can be saved, whichever tracer follows them."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils.parametrizations import weight_norm

import bayesprune as bp

WORDS = {
    "and": lambda y: y * ((y > 0) & (y < 1)),
    "or": lambda y: y * ((y > 1) | (y < 0)),
    "exclusive or": lambda y: y * torch.bitwise_xor(y > 1, y < 0),
    "not": lambda y: y * ~(y > 0),
    "floor division": lambda y: y // 0.5,
    "remainder": lambda y: y % 0.5,
    "power of a number": lambda y: 2.0**y,
    "at least": lambda y: y.clamp_min(0.1),
    "at most": lambda y: torch.clamp_max(y, 0.1),
    "any": lambda y: y * (y > 1).any(dim=-1, keepdim=True),
    "all": lambda y: y * (y > -1).all(),
    "variance": lambda y: y / torch.sqrt(y.var(-1, unbiased=False, keepdim=True) + 1e-5),
    "sample variance": lambda y: y - y.var(dim=1, keepdim=True),
    "norm": lambda y: y / torch.linalg.vector_norm(y, dim=-1, keepdim=True),
    "differences": lambda y: y + torch.diff(y, dim=1, prepend=y[:, :1]),
    "gathered": lambda y: torch.gather(y, 1, torch.zeros_like(y, dtype=torch.int64)),
    "ones like it": lambda y: y * y.new_ones(y.shape[1], 1),
    "zeros like it": lambda y: y + y.new_zeros((1, 1)),
    "numbers like it": lambda y: y + y.new_full((1,), 3.0),
    "a slice replaced": lambda y: torch.slice_scatter(y, y[:, 1:] * 2, dim=1, start=1),
    "a position replaced": lambda y: torch.select_scatter(y, y[:, 0] * 2, 1, 0),
    "windows": lambda y: y[:, :4].unfold(1, 2, 1).sum(-1),
}


class Between(nn.Module):
    def __init__(self, change, branch):
        super().__init__()
        torch.manual_seed(0)
        self.fc1, self.fc2, self.change, self.branch = nn.Linear(6, 8), nn.Linear(8, 4), change, branch

    def forward(self, x):
        y = self.fc1(x)
        if self.branch and y.shape[0] > 1:  # Only torch.export gets past this.
            y = y * 1.0
        return self.fc2(self.change(y))


def check_saved(model, x, path):
    model = model.double().eval()
    bp.save(model, path, example_inputs=x)
    network = bp.load(path)
    with torch.no_grad():
        for other in (x, torch.randn(4, *x.shape[1:], dtype=x.dtype)):
            torch.testing.assert_close(network(other), model(other))


@pytest.mark.parametrize("branch", [False, True], ids=["fx", "export"])
@pytest.mark.parametrize("name", WORDS)
def test_words(name, branch, tmp_path):
    check_saved(Between(WORDS[name], branch), torch.randn(3, 5, 6, dtype=torch.float64), tmp_path / "network.safetensors")


class ComputedWeight(nn.Module):
    """A convolution whose weight is computed, and one with weight norm, behind a branch."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.weight, self.normed = nn.Parameter(torch.randn(4, 3, 3)), weight_norm(nn.Conv1d(4, 2, 3))

    def forward(self, x):
        y = F.conv1d(x, self.weight - self.weight.mean(dim=(1, 2), keepdim=True), padding=1)
        return self.normed(y * 2 if y.shape[0] > 1 else y)


def test_convolutions_with_computed_weights(tmp_path):
    check_saved(ComputedWeight(), torch.randn(3, 3, 8, dtype=torch.float64), tmp_path / "network.safetensors")
