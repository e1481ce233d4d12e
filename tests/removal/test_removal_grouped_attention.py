"""Attention in which several heads of queries share one of keys and values: heads leave one by one, the shared ones with their last."""

import pytest
import torch
import torch.nn.functional as F
from masking import prune_at_random, prune_units
from torch import nn

import bayesprune as bp

HEAD, TOKENS = 4, 5
GATE = "out.input_gate"


class Grouped(nn.Module):
    """Keys and values are shared by the function, or repeated before it as in many packages."""

    def __init__(self, heads, shared, repeated=False, masked=False):
        super().__init__()
        torch.manual_seed(0)
        self.heads, self.shared, self.repeated = heads, shared, repeated
        self.q, self.k, self.v = nn.Linear(6, heads * HEAD), nn.Linear(6, shared * HEAD), nn.Linear(6, shared * HEAD)
        self.out, self.norm, self.last = nn.Linear(heads * HEAD, 6), nn.LayerNorm(6), nn.Linear(6, 3)
        self.register_buffer("mask", torch.randn(heads, TOKENS, TOKENS) if masked else None)

    def spread(self, x):
        batch, shared, tokens, features = x.shape
        times = self.heads // self.shared
        return x[:, :, None].expand(batch, shared, times, tokens, features).reshape(batch, shared * times, tokens, features)

    def forward(self, x):
        q, k, v = (layer(x).unflatten(-1, (-1, HEAD)).transpose(1, 2) for layer in (self.q, self.k, self.v))
        if self.repeated:
            k, v = self.spread(k), self.spread(v)
        mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=self.mask, enable_gqa=not self.repeated)
        return self.last(self.norm(x + self.out(mixed.transpose(1, 2).flatten(2))))


def gated(*args, **options):
    x = torch.randn(2, TOKENS, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    return bp.sparsify(Grouped(*args, **options).double().eval(), "bb", example_inputs=x).eval(), x


def compacted(model, x):
    result = bp.compact(model, x)
    assert (result.certificate.note, result.certificate.masks_left) == ("", ())
    fresh = torch.randn(3, TOKENS, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    with torch.no_grad():
        torch.testing.assert_close(result.model(fresh), model(fresh), rtol=1e-11, atol=1e-12)
    return result.model


def attention_in(small):
    (node,) = small.graph.find_nodes(op="call_function", target=F.scaled_dot_product_attention)
    return node.kwargs.get("enable_gqa", False)


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize(
    ("pruned", "queries", "keys", "shares"),
    [
        ([], 6, 2, True),
        ([3, 4, 5], 3, 1, True),
        ([1, 3], 4, 2, True),
        ([0, 2, 3, 4], 2, 2, False),
        ([0, 1, 3, 4, 5], 1, 1, False),
        ([0, 4, 5], 3, 2, False),
    ],
    ids=["none", "a group", "one of each", "two of each", "all but one", "unequal"],
)
def test_heads_of_groups(pruned, queries, keys, shares, masked):
    model, x = gated(6, 2, masked=masked)
    assert bp.gates(model)[GATE].num_units == 6
    small = compacted(prune_units(model, {GATE: pruned}), x)
    assert small.q.out_features == queries * HEAD
    assert (small.k.out_features, small.v.out_features) == (keys * HEAD, keys * HEAD)
    assert attention_in(small) is shares


@pytest.mark.parametrize("repeated", [False, True])
@pytest.mark.parametrize(("heads", "shared"), [(6, 2), (6, 3), (4, 1), (3, 3)])
@pytest.mark.parametrize("seed", range(3))
def test_random_masks_are_removed_exactly(heads, shared, repeated, seed, tmp_path):
    model, x = gated(heads, shared, repeated=repeated)
    small = compacted(prune_at_random(model, 0.5, seed), x)
    bp.save(small, tmp_path / "small.safetensors")
    torch.testing.assert_close(bp.load(tmp_path / "small.safetensors")(x), small(x))


def test_a_whole_group_leaves_repeated_keys_and_values():
    model, x = gated(6, 2, repeated=True)
    small = compacted(prune_units(model, {GATE: [0, 1, 2]}), x)
    assert (small.q.out_features, small.k.out_features, small.v.out_features) == (3 * HEAD, HEAD, HEAD)


def test_values_that_are_zero_make_heads_zero():
    model, x = gated(6, 2)
    with torch.no_grad():
        model.v.weight[HEAD:], model.v.bias[HEAD:] = 0.0, 0.0
    small = compacted(prune_units(model, {}), x)
    assert (small.q.out_features, small.k.out_features, small.out.in_features) == (3 * HEAD, HEAD, 3 * HEAD)
