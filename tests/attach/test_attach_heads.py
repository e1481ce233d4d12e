"""Gates on the heads of nn.MultiheadAttention."""

import copy

import pytest
import torch
from torch import nn

import bayesprune as bp
from bayesprune.attach.heads import HeadGatedAttention, put_on_heads
from bayesprune.errors import InputError
from bayesprune.gates import gates
from bayesprune.gates.information_bottleneck import InformationBottleneck

BATCH, QUERIES, KEYS, WIDTH, HEADS = 3, 4, 5, 8, 2


def head_gate(values=(1.0,) * HEADS):
    gate = InformationBottleneck(HEADS, channel_dim=-1, groups=torch.arange(WIDTH) // (WIDTH // HEADS)).eval()
    with torch.no_grad():
        gate.mu.copy_(torch.tensor(values))
    return gate


def pair(**options):
    """An attention layer, and a copy of it with an open gate on its heads."""
    torch.manual_seed(0)
    plain = nn.MultiheadAttention(WIDTH, HEADS, **{"batch_first": True} | options).eval()
    gated = copy.deepcopy(plain)
    put_on_heads(gated, head_gate())
    return plain, gated


def inputs(batch_first=True, kdim=WIDTH, vdim=WIDTH):
    torch.manual_seed(1)
    query, key, value = torch.randn(BATCH, QUERIES, WIDTH), torch.randn(BATCH, KEYS, kdim), torch.randn(BATCH, KEYS, vdim)
    return (query, key, value) if batch_first else tuple(each.transpose(0, 1) for each in (query, key, value))


PADDING = torch.tensor([[False] * 5, [False, False, False, True, True], [False, True, False, False, True]])
CAUSAL = torch.ones(QUERIES, KEYS).triu(1).bool()
CALLS = {
    "plain": {},
    "without weights": {"need_weights": False},
    "weights of each head": {"average_attn_weights": False},
    "padding": {"key_padding_mask": PADDING},
    "padding as numbers": {"key_padding_mask": torch.zeros(BATCH, KEYS).masked_fill(PADDING, -1e9)},
    "mask": {"attn_mask": CAUSAL},
    "mask as numbers": {"attn_mask": torch.randn(QUERIES, KEYS, generator=torch.Generator().manual_seed(2))},
    "mask of each head": {"attn_mask": torch.randn(BATCH * HEADS, QUERIES, KEYS, generator=torch.Generator().manual_seed(3))},
    "mask and padding": {"attn_mask": CAUSAL, "key_padding_mask": PADDING, "need_weights": False},
    "causal": {"attn_mask": CAUSAL, "is_causal": True, "need_weights": False},
}


@pytest.mark.parametrize("options", [{}, {"batch_first": False}, {"bias": False}, {"kdim": 6, "vdim": 7}], ids=str)
@pytest.mark.parametrize("call", CALLS)
def test_an_open_gate_changes_nothing(call, options):
    plain, gated = pair(**options)
    given = inputs(options.get("batch_first", True), options.get("kdim", WIDTH), options.get("vdim", WIDTH))
    expected, expected_weights = plain(*given, **CALLS[call])
    got, weights = gated(*given, **CALLS[call])
    torch.testing.assert_close(got, expected)
    assert (weights is None) == (expected_weights is None)
    if weights is not None:
        torch.testing.assert_close(weights, expected_weights)


def test_a_single_sequence_without_a_batch():
    plain, gated = pair()
    given = tuple(each[0] for each in inputs())
    for got, expected in zip(gated(*given), plain(*given), strict=True):
        torch.testing.assert_close(got, expected)


def test_a_closed_head_contributes_nothing():
    plain, gated = pair()
    gated.head_gate = head_gate((0.0, 1.0))
    with torch.no_grad():
        plain.out_proj.weight[:, : WIDTH // HEADS] = 0
    torch.testing.assert_close(gated(*inputs())[0], plain(*inputs())[0])


def test_parameters_keep_their_names():
    plain, gated = pair()
    assert isinstance(gated, nn.MultiheadAttention)
    assert {name for name, _ in gated.named_parameters() if not name.startswith("head_gate.")} == {n for n, _ in plain.named_parameters()}


def test_other_layers_have_no_heads():
    with pytest.raises(InputError, match=r"onto an nn.MultiheadAttention, not onto a Linear"):
        put_on_heads(nn.Linear(2, 2), head_gate())


def encoder():
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(WIDTH, HEADS, 16, batch_first=True)
    return nn.Sequential(nn.Linear(6, WIDTH), nn.TransformerEncoder(layer, 2)).eval()


def test_gates_on_heads_alone_act_without_gradients():
    """In evaluation mode and without gradients the encoder would compute attention by itself."""
    x = torch.randn(3, 5, 6)
    gated = bp.sparsify(encoder(), "vib", example_inputs=x, include=["*out_proj"], exclude=["*linear*"]).eval()
    heads = {
        name: gate for name, gate in gates(gated).items() if isinstance(gated.get_submodule(name.rpartition(".")[0]), HeadGatedAttention)
    }
    assert len(heads) == 2
    with torch.no_grad():
        before = gated(x)
        for gate in heads.values():
            gate.mu.zero_()
        after = gated(x)
    assert not torch.allclose(before, after)
    torch.testing.assert_close(after, gated(x), msg="the same with gradients")


def test_gated_encoder_takes_a_padding_mask_in_every_mode():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(WIDTH, HEADS, 16, batch_first=True, dropout=0.0), 2)

        def forward(self, x, padding=None):
            return self.encoder(x, src_key_padding_mask=padding)

    torch.manual_seed(0)
    model, x = Net().eval(), torch.randn(BATCH, KEYS, WIDTH)
    gated = bp.sparsify(model, "vib", example_inputs=x)
    with torch.no_grad():
        for gate in gates(gated).values():
            gate.mu.fill_(1.0)
    padding = torch.arange(KEYS) >= torch.tensor([[5], [3], [2]])  # At the end, where the encoder would make nested tensors of it.
    expected = model.train()(x, padding)[~padding]
    torch.testing.assert_close(gated.eval()(x, padding)[~padding], expected)
    with torch.no_grad():
        torch.testing.assert_close(gated(x, padding)[~padding], expected)


@pytest.mark.parametrize("method", ["bb", "l0"])
def test_transformers_that_only_export_can_follow(method):
    class Translator(nn.Module):
        def __init__(self):
            super().__init__()
            self.transformer = nn.Transformer(WIDTH, HEADS, 1, 1, 16, batch_first=True)
            self.head = nn.Linear(WIDTH, 3)

        def forward(self, source, target):
            return self.head(self.transformer(source, target))

    torch.manual_seed(0)
    example = (torch.randn(2, 5, WIDTH), torch.randn(2, 4, WIDTH))
    gated = bp.sparsify(Translator().eval(), method, example_inputs=example).eval()
    units = {row.controls: row.units for row in bp.placement(gated).gates}
    assert units["inputs of transformer.encoder.layers.0.linear2"] == 16
    assert units["inputs of transformer.decoder.layers.0.linear2"] == 16
    wrong = [row for row in bp.placement(gated).left_alone if "attn" in row.layer and "several places" in row.reason]
    assert not wrong, "no layer of attention is used twice here"
    with torch.no_grad():
        for gate in gates(gated).values():
            (gate.raw_a if method == "bb" else gate.log_alpha)[::2] = -20.0
    result = bp.compact(gated, example)
    assert result.max_rel_error <= 1e-5
    assert result.model.transformer.encoder.layers.get_submodule("0").linear1.out_features == 8
    with torch.no_grad():
        source, target = torch.randn(3, 5, WIDTH), torch.randn(3, 4, WIDTH)
        torch.testing.assert_close(result.model.eval()(source, target), gated(source, target), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("options", [{}, {"batch_first": False}, {"need_weights": True}], ids=str)
def test_attention_that_only_torch_export_can_follow(options):
    class Branching(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = nn.Linear(6, WIDTH)
            self.attention = nn.MultiheadAttention(WIDTH, HEADS, batch_first=options.get("batch_first", True))
            self.head = nn.Linear(WIDTH, 3)

        def forward(self, x):
            y = self.embed(x) if x.shape[-1] > 5 else x
            y = y + self.attention(y, y, y, need_weights=options.get("need_weights", False))[0]
            if isinstance(x, torch.fx.Proxy):
                raise RuntimeError("torch.fx does not get past this")
            return self.head(y)

    torch.manual_seed(0)
    model, x = Branching().double().eval(), torch.randn(3, 5, 6, dtype=torch.float64)
    gated = bp.sparsify(model, "bb", example_inputs=x)
    assert gates(gated)["attention.head_gate"].num_units == HEADS
    with torch.no_grad():
        gates(gated)["attention.head_gate"].raw_a[0] = -20.0
    result = bp.compact(gated, x)
    assert result.certificate.tracer == "torch.export"
    assert result.max_rel_error <= 1e-12
    assert result.certificate.after.macs < result.certificate.before.macs
