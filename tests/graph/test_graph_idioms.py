"""Ways to say the same: spellings that people use come out in the vocabulary, and units leave through them."""

from collections import OrderedDict

import pytest
import torch
import torch.nn.functional as F
from gallery import randomise_norms
from masking import prune_at_random
from torch import nn

import bayesprune as bp
from bayesprune.example_inputs import tensors_in
from bayesprune.graph.idioms import as_product
from bayesprune.graph.tracing import relative_difference


class Written(nn.Module):
    """Two layers and whatever happens between them."""

    def __init__(self, between, outputs=8, inputs=8, conv=True):
        super().__init__()
        self.between = between
        self.a = nn.Conv2d(3, outputs, 3, padding=1) if conv else nn.Linear(6, outputs)
        self.b = nn.Conv2d(inputs, 5, 3, padding=1) if conv else nn.Linear(inputs, 5)

    def forward(self, x):
        return self.b(self.between(torch.relu(self.a(x))))


IMAGES = {
    "pieces in another order": (lambda y: torch.cat(y.chunk(2, 1)[::-1], 1), {}),
    "all pieces": (lambda y: torch.cat(y.split(2, 1), 1), {}),
    "window of the input's size": (lambda y: y * F.avg_pool2d(y, y.size()[2:]), {}),
    "window of one size": (lambda y: y + F.max_pool2d(y, y.size(2)), {}),
    "half of the positions": (lambda y: F.adaptive_avg_pool2d(y, (y.shape[2] // 2, y.shape[3] // 2)), {}),
    "largest element": (lambda y: y * torch.max(y.flatten(2), 2)[0][..., None, None], {}),
    "largest element by name": (lambda y: y * y.flatten(2).max(dim=2).values[..., None, None], {}),
    "smallest element": (lambda y: y + y.amin(dim=(2, 3), keepdim=True), {}),
    "gated linear unit": (lambda y: F.glu(y, 1), {"outputs": 16}),
    "view as another": (lambda y: y.flatten(2).softmax(-1).view_as(y), {}),
    "shrinking": (lambda y: F.hardshrink(y, 0.2), {}),
    "repeated": (lambda y: y.repeat(1, 1, 2, 1), {}),
}
ROWS = {
    "sizes put together": lambda y: y.view(y.size()[:-1] + (2, 4)).flatten(-2),  # noqa: RUF005  (fx follows this one)
    "sizes unpacked": lambda y: y.view(*y.shape[:-1], 2, 4).flatten(-2),
    "a number in between": lambda y: 0.5 * y,
}


@pytest.mark.parametrize("glu", [F.glu, nn.GLU()])
def test_gated_linear_units_are_units(glu):
    torch.manual_seed(0)
    model = Written(glu, outputs=16, conv=False).double().eval()
    _, result = check(model, torch.randn(2, 6, dtype=torch.float64), "b")
    assert result.model.a.out_features == 2 * result.model.b.in_features


def check(model, x, controlled="a"):
    gated = bp.sparsify(model, "bb", example_inputs=x)
    assert any(row.controls.endswith(f" {controlled}") for row in bp.placement(gated).gates)
    result = bp.compact(prune_at_random(gated, 0.5), x)
    assert result.certificate.note == ""
    assert result.max_rel_error <= 1e-12
    assert result.certificate.after.macs < result.certificate.before.macs
    return gated, result


@pytest.mark.parametrize("name", IMAGES)
def test_between_convolutions(name, tmp_path):
    between, options = IMAGES[name]
    torch.manual_seed(0)
    gated, result = check(Written(between, **options).double().eval(), torch.randn(2, 3, 8, 8, dtype=torch.float64))
    assert result.model.a.out_channels < gated.a.out_channels
    fresh = torch.randn(3, 3, 12, 12, dtype=torch.float64)
    torch.testing.assert_close(result.model(fresh), gated(fresh), rtol=1e-11, atol=1e-13)
    bp.save(result.model, tmp_path / "small.safetensors")
    torch.testing.assert_close(bp.load(tmp_path / "small.safetensors")(fresh), result.model(fresh))


@pytest.mark.parametrize("name", ROWS)
def test_between_linear_layers(name):
    torch.manual_seed(0)
    gated, result = check(Written(ROWS[name], conv=False).double().eval(), torch.randn(2, 7, 6, dtype=torch.float64), "b")
    fresh = torch.randn(3, 4, 6, dtype=torch.float64)
    torch.testing.assert_close(result.model(fresh), gated(fresh), rtol=1e-11, atol=1e-13)


@pytest.mark.parametrize(
    ("scores", "mixing"),
    [
        ("bhid,bhjd->bhij", "bhij,bhjd->bhid"),
        ("b h i d, b h j d -> b h i j", "b h i j, b h j d -> b h i d"),
        ("...id,...jd->...ij", "...ij,...jd->...id"),
    ],
)
def test_attention_in_letters_is_gated_by_heads(scores, mixing):
    class Attention(nn.Module):
        def __init__(self):
            super().__init__()
            self.q, self.k, self.v, self.out = (nn.Linear(12, 12) for _ in range(4))

        def forward(self, x):
            q, k, v = (layer(x).unflatten(-1, (3, 4)).transpose(1, 2) for layer in (self.q, self.k, self.v))
            weights = torch.einsum(scores, q, k).softmax(-1)
            return self.out(torch.einsum(mixing, weights, v).transpose(1, 2).flatten(2))

    torch.manual_seed(0)
    gated, result = check(Attention().double().eval(), torch.randn(2, 5, 12, dtype=torch.float64), "out")
    assert bp.gates(gated)["out.input_gate"].num_units == 3
    assert result.model.q.out_features == 4 * result.kept["out.input_gate"]


@pytest.mark.parametrize(
    ("equation", "ranks"), [("ij,jk", (2, 2)), ("ij,ij->i", (2, 2)), ("ii,ij->ij", (2, 2)), ("i,j->ij", (1, 1)), ("abc,cd->abd", (3, 2))]
)
def test_other_sums_are_left_as_they_are(equation, ranks):
    assert as_product(equation, ranks) is None


def test_product_of_matrices():
    product = as_product("bqhd,bkhd->bhqk", (4, 4))
    left, right = torch.randn(2, 3, 4, 5), torch.randn(2, 6, 4, 5)
    result = (left.permute(product.left) @ right.permute(product.right)).permute(product.result)
    torch.testing.assert_close(result, torch.einsum("bqhd,bkhd->bhqk", left, right))


def test_results_in_other_containers():
    class Named(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(6, 8), nn.Linear(8, 3)

        def forward(self, x):
            return OrderedDict(hidden=[x.sum(1)], out=self.b(torch.relu(self.a(x))))

    x = torch.randn(2, 6, dtype=torch.float64)
    gated, result = check(Named().double().eval(), x, "b")
    assert result.model(x).keys() == gated(x).keys()


@pytest.mark.parametrize("said", [None, True])
def test_a_causal_mask_needs_no_hint(said):
    class Causal(nn.Module):
        def __init__(self):
            super().__init__()
            self.encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 1, enable_nested_tensor=False)
            self.head = nn.Linear(8, 3)

        def forward(self, x):
            mask = nn.Transformer.generate_square_subsequent_mask(x.shape[1], dtype=x.dtype)
            return self.head(self.encoder(x, mask=mask, is_causal=said))

    torch.manual_seed(0)
    gated, result = check(Causal().double().eval(), torch.randn(2, 6, 8, dtype=torch.float64), "encoder.layers.0.linear2")
    fresh = torch.randn(3, 9, 8, dtype=torch.float64)
    torch.testing.assert_close(result.model(fresh), gated(fresh), rtol=1e-10, atol=1e-12)


def test_grouped_queries_are_no_obstacle_elsewhere():
    class Grouped(nn.Module):
        def __init__(self):
            super().__init__()
            self.q, self.k, self.v, self.out = nn.Linear(16, 16), nn.Linear(16, 8), nn.Linear(16, 8), nn.Linear(16, 16)
            self.first, self.second = nn.Linear(16, 32), nn.Linear(32, 3)

        def forward(self, x):
            q, k, v = (layer(x).unflatten(-1, (-1, 4)).transpose(1, 2) for layer in (self.q, self.k, self.v))
            y = self.out(F.scaled_dot_product_attention(q, k, v, enable_gqa=True).transpose(1, 2).flatten(2))
            return self.second(torch.relu(self.first(x + y)))

    torch.manual_seed(0)
    check(Grouped().double().eval(), torch.randn(2, 5, 16, dtype=torch.float64), "second")


def test_frozen_models_stay_frozen():
    torch.manual_seed(0)
    layers = nn.Conv2d(3, 6, 3, padding=1, bias=False), nn.BatchNorm2d(6), nn.ReLU(), nn.Conv2d(6, 4, 3, padding=1, bias=False)
    model = randomise_norms(nn.Sequential(*layers)).double().eval().requires_grad_(False)
    x = torch.randn(2, 3, 8, 8, dtype=torch.float64)
    small = bp.compact(prune_at_random(bp.sparsify(model, "bb", example_inputs=x, before_norm=True), 0.5), x).model
    assert not any(parameter.requires_grad for parameter in small.parameters())


def test_outputs_of_the_graph_are_those_of_the_model():
    class Recurrent(nn.Module):
        def __init__(self):
            super().__init__()
            self.lstm, self.head = nn.LSTM(6, 8, batch_first=True), nn.Linear(8, 3)

        def forward(self, x):
            y, (hidden, cell) = self.lstm(x)
            return self.head(torch.relu(y)), hidden, cell

    x = torch.randn(2, 5, 6)
    model = Recurrent().eval()
    for got, expected in zip(tensors_in(bp.graph.trace(model, x)(x)), tensors_in(model(x)), strict=True):
        assert relative_difference(got, expected) <= 1e-6
