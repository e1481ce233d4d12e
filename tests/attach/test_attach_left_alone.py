"""Which layers are left alone, and the reason that is given for each."""

import pytest
import torch
import torch.nn.functional as F
from own_models import FEATURES, IMAGES, TOKENS, Model, conv, gated, linear
from torch import nn

import bayesprune as bp


class Standardised(nn.Conv2d):
    """Qiao et al.: Weight Standardization (arXiv:1903.10520)."""

    def forward(self, x):
        weight = self.weight - self.weight.mean(dim=(1, 2, 3), keepdim=True)
        return F.conv2d(x, weight / weight.flatten(1).std(dim=1).view(-1, 1, 1, 1), self.bias, self.stride, self.padding)


def convnext(m, x):
    x = m.stem(x)
    y = m.fc2(F.gelu(m.fc1(m.norm(m.depthwise(x).permute(0, 2, 3, 1)))))
    return m.head((x + y.permute(0, 3, 1, 2)).mean((2, 3)))


REASONS = {
    "channels side by side": (
        Model(
            lambda m, x: m.head(torch.cat([F.relu(m.a(x)).mean((2, 3)), F.relu(m.b(x)).amax((2, 3))], dim=1)),
            a=conv(3, 4, 3),
            b=conv(3, 5, 1),
            head=linear(9, 3),
        ),
        [IMAGES],
        {},
    ),
    "convnext": (
        Model(
            convnext,
            stem=conv(3, 8, 2, stride=2),
            depthwise=conv(8, 8, 3, padding=1, groups=8),
            norm=nn.LayerNorm(8),
            fc1=linear(8, 12),
            fc2=linear(12, 8),
            head=linear(8, 3),
        ),
        [IMAGES],
        {
            "stem": "norm (LayerNorm) normalises its units together",
            "depthwise": "its channels go with those of stem, which feeds it",
            "head": "its inputs are a residual stream, the sum of several branches",
        },
    ),
    "depthwise behind a norm": (
        Model(
            lambda m, x: m.head(m.norm2(m.depthwise(m.norm1(x).permute(0, 3, 1, 2)).permute(0, 2, 3, 1)).mean((1, 2))),
            norm1=nn.LayerNorm(8),
            depthwise=conv(8, 8, 3, groups=8),
            norm2=nn.LayerNorm(8),
            fc=linear(8, 5),
            head=nn.Sequential(linear(8, 5), nn.ReLU(), linear(5, 3)),
        ),
        [(3, 6, 6, 8)],
        {
            "depthwise": "norm2 (LayerNorm) normalises its units together",
            "fc": "its weight is computed, or it is not called as a layer that sparsify knows",
        },
    ),
    "computed weights": (
        Model(
            lambda m, x: m.head(F.relu(m.second(F.relu(m.first(x)))).mean((2, 3))),
            first=Standardised(3, 8, 3),
            second=conv(8, 6, 3),
            head=linear(6, 3),
        ),
        [IMAGES],
        {"first": "its weight is computed, or it is not called as a layer that sparsify knows"},
    ),
    "parameters of the model itself": (
        Model(
            lambda m, x: m.head(F.relu(m.fc((x @ m.mixing) + m.positions))),
            mixing=nn.Parameter(torch.randn(6, 7)),
            positions=nn.Parameter(torch.randn(5, 7)),
            fc=linear(7, 8),
            head=linear(8, 3),
        ),
        [TOKENS],
        {
            "matmul": "its inputs are not those of a module that is called once, so that no gate can be hooked to it",
            "": "its parameters (positions) are not weights of layers that sparsify knows",
        },
    ),
    "poolings that take channels for positions": (
        Model(
            lambda m, x: m.head(F.relu(m.second(F.max_pool2d(m.pool(F.relu(m.first(x))), 3, 1, 1))).mean(2)),
            first=nn.Conv1d(6, 8, 3, padding=1),
            pool=nn.MaxPool2d((2, 1)),
            second=nn.Conv1d(4, 5, 3, padding=1),
            head=linear(5, 3),
        ),
        [(2, 6, 16)],
        {"first": "pool (MaxPool2d) needs all of its units"},
    ),
    "parametrised layers": (
        Model(
            lambda m, x: m.head(F.relu(m.fc(x))),
            fc=nn.utils.parametrizations.weight_norm(linear(6, 8)),
            head=nn.utils.parametrizations.spectral_norm(linear(8, 3)),
        ),
        [FEATURES],
        {},
    ),
}


@pytest.mark.parametrize("name", REASONS)
def test_reasons(name):
    model, shapes, expected = REASONS[name]
    found = {row.layer: row.reason for row in bp.placement(gated(model, shapes)).left_alone}
    assert found == expected


def test_reasons_behind_embeddings():
    model = Model(
        lambda m, x: (m.head(F.relu(m.fc(m.table(x))).mean(1)), m.other(m.table2(x).mean(1))),
        table=nn.Embedding(9, 6),
        table2=nn.Embedding(9, 6),
        fc=linear(6, 8),
        head=linear(8, 3),
        other=linear(6, 3),
    )
    found = bp.placement(bp.sparsify(model, "bb", example_inputs=torch.randint(0, 9, (2, 5)))).left_alone
    assert {row.layer: row.reason for row in found} == {
        "table": "Embedding is not a layer that sparsify knows",
        "table2": "Embedding is not a layer that sparsify knows",
        "other": "its inputs come from table2, and columns of embedding tables are not gated",
    }
