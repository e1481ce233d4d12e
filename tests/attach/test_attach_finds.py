"""What sparsify finds in models of many kinds: the gates, the layers left alone, and that random masks are removed exactly."""

from functools import partial

import pytest
import torch
import torch.nn.functional as F
from masking import prune_at_random
from own_models import FEATURES, IMAGES, TOKENS, Model, conv, example, gated, linear
from torch import nn

import bayesprune as bp


def heads(m, x, hidden=lambda m, x: m.act(m.body(x))):
    """Two layers on one hidden layer."""
    h = hidden(m, x)
    return m.mu(h), m.logvar(h)


two_heads = {"mu": linear(8, 3), "logvar": linear(8, 4)}


def highway(m, x):
    x = torch.relu(m.stem(x))
    gate = torch.sigmoid(m.gate(x))
    return m.head(gate * F.relu(m.hidden(x)) + (1 - gate) * x)


def deep_highway(m, x):
    """The second block's input is a sum to which the gate of the first contributes, but it does not vanish with it."""
    x = torch.relu(m.stem(x))
    for gate, hidden in ((m.gate1, m.hidden1), (m.gate2, m.hidden2)):
        t = torch.sigmoid(gate(x))
        x = t * F.relu(hidden(x)) + (1 - t) * x
    return m.head(x)


def experts(m, x):
    h = torch.tanh(m.body(x))
    weights = F.softmax(m.router(h), dim=-1)
    return m.head(weights[:, :1] * m.first(h) + weights[:, 1:] * m.second(h))


def attend(m, x):
    return m.out(F.softmax(m.q(x) @ m.k(x).transpose(1, 2), dim=-1) @ m.v(x))


def gelu_new(h):
    return 0.5 * h * (1.0 + torch.tanh(0.7978845608 * (h + 0.044715 * torch.pow(h, 3.0))))


def depthwise_on_a_sum(m, x):
    y = F.relu(m.stem(x) + m.other(x))
    return m.head(F.relu(m.pointwise(F.relu(m.depthwise(y)))).mean((2, 3)))


SHARED = {
    "two heads": (Model(heads, body=linear(6, 8), act=nn.ReLU(), **two_heads), [FEATURES], "inputs of body: 6, outputs of body: 8"),
    "two heads of a functional activation": (
        Model(partial(heads, hidden=lambda m, x: torch.sigmoid(m.body(x))), body=linear(6, 8), **two_heads),
        [FEATURES],
        "inputs of body: 6, outputs of body: 8",
    ),
    "two heads of a product": (
        Model(partial(heads, hidden=lambda m, x: F.silu(m.w1(x)) * m.w2(x)), w1=linear(6, 8), w2=linear(6, 8), **two_heads),
        [FEATURES],
        "inputs of w1: 6, outputs of w1: 8, inputs of w2: 6",
    ),
    "a linear layer and a convolution": (
        Model(
            lambda m, x: (lambda h: (m.head(h), m.conv(h.transpose(1, 2))))(F.relu(m.body(x))),
            body=linear(6, 8),
            head=linear(8, 3),
            conv=nn.Conv1d(8, 4, 3),
        ),
        [TOKENS],
        "inputs of body: 6, outputs of body: 8",
    ),
    "two streams on flattened channels": (
        Model(
            lambda m, x: (lambda h: m.value(h) + m.advantage(h))(torch.flatten(F.relu(m.conv(x)), 1)),
            conv=conv(3, 5, 5, stride=3),
            value=linear(20, 1),
            advantage=linear(20, 4),
        ),
        [IMAGES],
        "outputs of conv: 5",
    ),
    "highway": (
        Model(highway, stem=linear(6, 8), gate=linear(8, 8), hidden=linear(8, 8), head=linear(8, 3)),
        [FEATURES],
        "inputs of stem: 6, outputs of stem: 8, inputs of head: 8",
    ),
    "deep highway": (
        Model(
            deep_highway,
            stem=linear(6, 8),
            **{name: linear(8, 8) for name in ("gate1", "hidden1", "gate2", "hidden2")},
            head=linear(8, 3),
        ),
        [FEATURES],
        "inputs of stem: 6, outputs of stem: 8, inputs of gate2: 8, inputs of hidden2: 8, inputs of head: 8",
    ),
    "mixture of experts": (
        Model(experts, body=linear(6, 8), router=linear(8, 2), first=linear(8, 7), second=linear(8, 7), head=linear(7, 3)),
        [FEATURES],
        "inputs of body: 6, outputs of body: 8, outputs of first: 7, outputs of second: 7",
    ),
}
OUTPUTS = {
    "late fusion": (
        Model(
            lambda m, x, y: m.head(torch.cat([F.relu(m.a(x)), F.relu(m.b(y))], dim=-1)), a=linear(6, 9), b=linear(4, 8), head=linear(17, 3)
        ),
        [FEATURES, (3, 4)],
        "inputs of a: 6, outputs of a: 9, inputs of b: 4, outputs of b: 8",
    ),
    "features become channels": (
        Model(lambda m, x: m.conv(F.relu(m.fc(x)).transpose(1, 2)), fc=linear(6, 9), conv=nn.Conv1d(9, 4, 3)),
        [TOKENS],
        "inputs of fc: 6, outputs of fc: 9",
    ),
    "generator": (
        Model(
            lambda m, z: m.conv(F.relu(m.norm2(m.norm1(m.fc(z)).view(-1, 5, 4, 3)))),
            fc=linear(6, 60),
            norm1=nn.BatchNorm1d(60),
            norm2=nn.BatchNorm2d(5),
            conv=nn.ConvTranspose2d(5, 4, 4, stride=2, padding=1),
        ),
        [FEATURES],
        "inputs of fc: 6, outputs of fc: 5",
    ),
    "generator with upsampling": (
        Model(
            lambda m, z: m.conv(m.up(F.relu(m.fc(z)).view(-1, 5, 4, 3))),
            fc=linear(6, 60),
            up=nn.Upsample(scale_factor=2),
            conv=conv(5, 4, 3),
        ),
        [FEATURES],
        "inputs of fc: 6, outputs of fc: 5",
    ),
    "sum over a set": (
        Model(lambda m, x: m.head(F.relu(m.fc(x)).sum(dim=1)), fc=linear(6, 9), head=linear(9, 3)),
        [TOKENS],
        "inputs of fc: 6, outputs of fc: 9",
    ),
    "a reader called with a keyword": (
        Model(lambda m, x: m.head(input=F.relu(m.fc(x))), fc=linear(6, 9), head=linear(9, 3)),
        [FEATURES],
        "inputs of fc: 6, outputs of fc: 9",
    ),
    "a pooling over features is no place for the gate": (
        Model(lambda m, x: m.conv(m.act(m.pool(m.fc(x)))), fc=linear(6, 8), pool=nn.MaxPool1d(2), act=nn.ReLU(), conv=nn.Conv1d(5, 4, 3)),
        [TOKENS],
        "inputs of fc: 6",
    ),
    "depthwise convolution on a sum": (
        Model(
            depthwise_on_a_sum,
            stem=conv(3, 8, 3, padding=1),
            other=conv(3, 8, 1),
            depthwise=conv(8, 8, 3, groups=8),
            pointwise=conv(8, 6, 1),
            head=linear(6, 3),
        ),
        [IMAGES],
        "outputs of stem: 8, outputs of other: 8, outputs of depthwise: 8, outputs of pointwise: 6",
    ),
}
HEADS = {
    "attention with one head": (
        Model(attend, q=linear(6, 8), k=linear(6, 8), v=linear(6, 7), out=linear(7, 3)),
        [TOKENS],
        "inputs of q: 6, outputs of q: 8, inputs of k: 6, outputs of k: 8, inputs of v: 6, inputs of out: 7",
    ),
    "fused attention with one head": (
        Model(
            lambda m, x: m.out(F.scaled_dot_product_attention(m.q(x), m.k(x), m.v(x))),
            q=linear(6, 8),
            k=linear(6, 8),
            v=linear(6, 8),
            out=linear(8, 3),
        ),
        [TOKENS],
        "inputs of q: 6, outputs of q: 8, inputs of k: 6, outputs of k: 8, inputs of v: 6, inputs of out: 8",
    ),
    "torch's attention with one head": (
        Model(
            lambda m, x: m.head((lambda y: m.attention(y, y, y, need_weights=False)[0])(m.norm(x))),
            norm=nn.LayerNorm(6),
            attention=nn.MultiheadAttention(6, 1, batch_first=True),
            head=linear(6, 3),
        ),
        [TOKENS],
        "inputs of attention.out_proj: 6, inputs of head: 6",
    ),
    "graph convolution": (
        Model(lambda m, x, a: m.head(F.relu(a @ m.fc(x))), fc=linear(6, 9), head=linear(9, 3)),
        [TOKENS, (3, 5, 5)],
        "inputs of fc: 6, inputs of head: 9",
    ),
}
WRITTEN_OUT = {
    "numbers": (
        Model(lambda m, x: m.head(0.5 * m.fc(x) / 3.0 - 0.0), fc=linear(6, 9), head=linear(9, 3)),
        [TOKENS],
        "inputs of fc: 6, inputs of head: 9",
    ),
    "gelu_new": (
        Model(lambda m, x: m.head(gelu_new(m.fc(m.norm(x)))), norm=nn.LayerNorm(6), fc=linear(6, 9), head=linear(9, 3)),
        [TOKENS],
        "inputs of head: 9",
    ),
    "leaky relu by hand": (
        Model(lambda m, x: m.head((lambda h: torch.maximum(h, 0.1 * h))(m.fc(x))), fc=linear(6, 9), head=linear(9, 3)),
        [FEATURES],
        "inputs of fc: 6, inputs of head: 9",
    ),
    "scaled inputs": (Model(lambda m, x: m.head(F.relu(m.fc(2 * x - 1))), fc=linear(6, 9), head=linear(9, 3)), [FEATURES],
                      "inputs of fc: 6, inputs of head: 9"),
}  # fmt: skip
CASES = SHARED | OUTPUTS | HEADS | WRITTEN_OUT


def controls(model):
    return ", ".join(f"{row.controls}: {row.units}" for row in bp.placement(model).gates)


@pytest.mark.parametrize("name", CASES)
def test_places(name):
    model, shapes, expected = CASES[name]
    assert controls(gated(model, shapes)) == expected


@pytest.mark.parametrize("share", [0.3, 0.7])
@pytest.mark.parametrize("name", CASES)
def test_random_masks_are_removed_exactly(name, share):
    model, shapes, _ = CASES[name]
    pruned = prune_at_random(gated(model, shapes), share)
    result = bp.compact(pruned, example(shapes))
    assert result.certificate.note == ""
    assert result.certificate.masks_left == ()
    assert result.max_rel_error <= 1e-12
    assert result.certificate.after.macs < result.certificate.before.macs


def test_units_that_several_layers_read_leave_all_of_them():
    model, shapes, _ = SHARED["two heads"]
    pruned = gated(model, shapes)
    with torch.no_grad():
        bp.gates(pruned)["act.output_gate"].raw_a[:3] = -20.0
    small = bp.compact(pruned, example(shapes)).model
    assert (small.body.out_features, small.mu.in_features, small.logvar.in_features) == (5, 5, 5)


def test_layers_are_gated_at_their_inputs_where_the_shared_activation_cannot_be():
    body, shapes, _ = SHARED["two heads"]
    assert controls(gated(body, shapes, exclude=["body"])) == "inputs of mu: 8, inputs of logvar: 8"
    weight = nn.Parameter(torch.randn(8, 6))
    functional = Model(partial(heads, hidden=lambda m, x: F.relu(F.linear(x, m.weight))), weight=weight, **two_heads)
    assert controls(gated(functional, shapes)) == "inputs of mu: 8, inputs of logvar: 8"


def test_nothing_is_gated_twice():
    """A layer whose outputs the gate of a reader, or of heads, makes fewer."""
    chain = nn.Sequential(linear(6, 8), nn.ReLU(), linear(8, 8), nn.ReLU(), linear(8, 3))
    assert controls(gated(chain, [FEATURES])) == "inputs of 0: 6, inputs of 2: 8, inputs of 4: 8"
    several = Model(
        lambda m, x: m.out(F.scaled_dot_product_attention(*(f(x).unflatten(-1, (2, 4)).transpose(1, 2) for f in (m.q, m.k, m.v)))
                           .transpose(1, 2).flatten(2)),
        q=linear(6, 8), k=linear(6, 8), v=linear(6, 8), out=linear(8, 3),
    )  # fmt: skip
    assert controls(gated(several, [TOKENS])) == "inputs of q: 6, inputs of k: 6, inputs of v: 6, inputs of out: 2"


def test_no_layer_is_left_alone_where_all_are_gated():
    model, shapes, _ = OUTPUTS["late fusion"]
    assert bp.placement(gated(model, shapes)).left_alone == ()
