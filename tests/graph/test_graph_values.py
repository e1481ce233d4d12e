"""A graph is either right for every input or refused: what one example cannot tell must not be guessed from it."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from bayesprune.errors import InputError
from bayesprune.graph import trace

CAP = torch.full((8,), 50.0)


class Between(nn.Module):
    """Changes something between two layers; none of the example's values reach 50."""

    def __init__(self, change, branch):
        super().__init__()
        torch.manual_seed(0)
        self.fc1, self.fc2, self.change, self.branch = nn.Linear(6, 8), nn.Linear(8, 4), change, branch

    def forward(self, x):
        y = F.relu(self.fc1(x))
        if self.branch and y.shape[0] > 1:  # Only torch.export gets past this.
            y = y * 1.0
        return self.fc2(self.change(y))


def in_place(statement):
    def change(y):
        statement(y)
        return y

    return change


def assign_part(y):
    y[:, 1:3] = torch.minimum(y[:, 1:3], CAP[1:3])
    return y


def assign_where(y):
    y[y > 50] = 0.0
    return y


def halves(y):
    for half in y.chunk(2, 1):
        half.clamp_(max=50.0)
    return y


def kept_for_later(y):
    view = y.view(-1)
    y.clamp_(max=50.0)
    return view.view(y.shape)


CHANGES = {
    "a column": in_place(lambda y: y[:, 0].clamp_(max=50.0)),
    "a view": in_place(lambda y: y.view(-1).clamp_(max=50.0)),
    "a transpose": in_place(lambda y: y.t().clamp_(max=50.0)),
    "with a new dimension": in_place(lambda y: y.unsqueeze(0).clamp_(max=50.0)),
    "detached": in_place(lambda y: y.detach().clamp_(max=50.0)),
    "halves": halves,
    "a view made before": kept_for_later,
    "a part assigned": assign_part,
    "elements assigned": assign_where,
    "copied over": in_place(lambda y: y.copy_(torch.minimum(y, CAP))),
    "given as out": in_place(lambda y: torch.clamp(y, max=50.0, out=y)),
    "lerp_": in_place(lambda y: y.lerp_(0 * CAP, (y > 50).to(y.dtype))),
    "clamp_": in_place(lambda y: y.clamp_(max=50.0)),
    "clip_": in_place(lambda y: y.clip_(max=50.0)),
    "hardtanh_": in_place(lambda y: F.hardtanh_(y, 0.0, 50.0)),
    "masked_fill_": in_place(lambda y: y.masked_fill_(y > 50, 0.0)),
    "item": lambda y: y * y.sum().item(),
    "tolist": lambda y: y * y.sum().tolist(),
    "largest item": lambda y: y / (1 + y.max().item()),
    "numel": lambda y: y.reshape(y.numel() // 8, 8),
    "len": lambda y: y / len(y),
    "expanded by a size": lambda y: y + torch.ones(1, 8).expand(y.size(0), 8),
    "flattened and in place": lambda y: F.relu_(y.unsqueeze(1).flatten(1)),
    "a branch on values": lambda y: y * 2 if (y > 50).any() else y,
}


@pytest.mark.parametrize("branch", [False, True], ids=["fx", "export"])
@pytest.mark.parametrize("name", CHANGES)
def test_right_for_every_input_or_refused(name, branch):
    model = Between(CHANGES[name], branch).eval()
    try:
        graph = trace(model, torch.randn(3, 6))
    except InputError:
        return
    with torch.no_grad():
        for inputs in (torch.randn(3, 6), 1000 * torch.randn(3, 6), torch.randn(5, 6)):
            torch.testing.assert_close(graph(inputs), model(inputs))


@pytest.mark.parametrize("name", ["clamp_", "masked_fill_", "numel", "expanded by a size", "flattened and in place"])
def test_what_is_common_is_followed(name):
    trace(Between(CHANGES[name], False).eval(), torch.randn(3, 6))


def test_a_number_kept_in_the_model_is_a_number():
    class Tempered(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = nn.Linear(6, 2)
            self.register_buffer("temperature", torch.tensor(2.0))
            self.scale = nn.Parameter(torch.tensor(3.0))

        def forward(self, x):
            return self.fc(x) / self.temperature.item() * self.scale

    model, x = Tempered().eval(), torch.randn(3, 6)
    torch.testing.assert_close(trace(model, x)(x), model(x))


@pytest.mark.parametrize("masked", [False, True])
def test_encoders_with_a_padding_mask(masked):
    """In evaluation mode the original takes a fused path, which returns zeros where there is padding."""
    torch.manual_seed(0)
    model = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 2).eval()
    padding = torch.zeros(3, 5, dtype=torch.bool)
    padding[1, 3:] = True
    example = {"src": torch.randn(3, 5, 8), "src_key_padding_mask": padding} if masked else {"src": torch.randn(3, 5, 8)}
    graph = trace(model, example)
    with torch.no_grad():
        expected, got = model(**example), graph(**example)
    torch.testing.assert_close(got[~padding], expected[~padding], rtol=1e-5, atol=1e-5)
