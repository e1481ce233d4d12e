"""Removal against brute force: networks with zeros in their weights, whole and shrunk."""

import pytest
import torch
from gallery import GALLERY
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import nn

from bayesprune.example_inputs import tensors_in, with_batch_size
from bayesprune.graph import trace
from bayesprune.graph.layer_types import CONVOLUTIONS, TRANSPOSED_CONVOLUTIONS
from bayesprune.graph.recording import record
from bayesprune.graph.tracing import relative_difference
from bayesprune.removal import analyse, shrink

WEIGHTED = (nn.Linear, *CONVOLUTIONS, *TRANSPOSED_CONVOLUTIONS)
NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.LayerNorm, nn.GroupNorm)


def traced(name, seed):
    torch.manual_seed(seed)
    inputs = tuple(each.double() if each.is_floating_point() else each for each in GALLERY[name].inputs())
    return trace(GALLERY[name].build().double().eval(), inputs), inputs


@torch.no_grad()
def put_zeros_in(graph, share, seed):
    """Zero random rows, columns and norms; sometimes the biases with them, so that constants other than zero appear too."""
    generator = torch.Generator().manual_seed(seed)
    draw = lambda count: torch.rand(count, generator=generator) < share  # noqa: E731
    for layer in graph.modules():
        if type(layer) in WEIGHTED:
            kind = int(torch.randint(4, (), generator=generator))
            if kind == 1:
                rows = draw(layer.weight.shape[0])
                layer.weight[rows] = 0
                if layer.bias is not None and len(layer.bias) == len(rows) and float(torch.rand((), generator=generator)) < 0.6:
                    layer.bias[rows] = 0
            elif kind == 2:
                layer.weight[:, draw(layer.weight.shape[1])] = 0
        elif type(layer) in NORMS and float(torch.rand((), generator=generator)) < 0.3:
            channels = draw(layer.weight.shape[0])
            layer.weight[channels] = 0
            if float(torch.rand((), generator=generator)) < 0.6:
                layer.bias[channels] = 0


def check(name, share, seed):
    graph, inputs = traced(name, seed)
    put_zeros_in(graph, share, seed)
    with torch.no_grad():
        small, _ = shrink(graph)
        for got, expected in zip(tensors_in(small(*inputs)), tensors_in(graph(*inputs)), strict=True):
            assert relative_difference(got, expected) < 1e-12
    numel = [sum(p.numel() for p in each.parameters()) for each in (small, graph)]
    assert numel[0] <= numel[1] + 200, "constants that are filled in are few"


@pytest.mark.parametrize("share", [0.4, 0.9])
@pytest.mark.parametrize("name", GALLERY)
def test_shrunk_network_is_the_same(name, share):
    check(name, share, seed=11)


@settings(max_examples=20)
@example(name="vit_bmm", share=0.75, seed=11)  # Heads lie in the dimension of the batch, and one layer asks for fewer than there are.
@given(name=st.sampled_from(sorted(GALLERY)), share=st.floats(0, 1), seed=st.integers(0, 10_000))
def test_some_zeros(name, share, seed):
    check(name, share, seed)


@pytest.mark.slow
@settings(max_examples=1500)
@given(name=st.sampled_from(sorted(GALLERY)), share=st.floats(0, 1), seed=st.integers(0, 10_000))
def test_any_zeros(name, share, seed):
    check(name, share, seed)


@pytest.mark.parametrize(
    "name", ["resnet_bottleneck", "vit_own", "unet", "shufflenet_v2", "layernorm_net", "squeeze_excitation", "densenet"]
)
def test_what_is_known_is_true(name):
    graph, inputs = traced(name, 3)
    put_zeros_in(graph, 0.6, 3)
    values = record(graph, with_batch_size(inputs, 2), {})
    analysis = analyse(graph)
    assert analysis.known
    for node, fact in analysis.known.items():
        mask, value = fact.mask.expand(values[node].shape), fact.value.expand(values[node].shape)
        assert torch.allclose(values[node][mask], value[mask]), node


@torch.no_grad()
def test_what_is_not_needed_does_not_matter():
    graph, inputs = traced("resnet_basic", 5)
    put_zeros_in(graph, 0.6, 5)
    analysis = analyse(graph)
    expected = graph(*inputs)
    disturbed = 0
    for node in graph.graph.nodes:
        if node.op == "call_module" and type(layer := graph.get_submodule(node.target)) is nn.Conv2d:
            channels = torch.zeros(1, layer.out_channels, 1, 1, dtype=torch.bool)
            matter = channels | analysis.needed.get(node, channels) | (analysis.known[node].mask if node in analysis.known else channels)
            layer.weight[~matter.flatten()] = 1e3
            disturbed += int((~matter).sum())
    assert disturbed
    assert torch.allclose(graph(*inputs), expected)


@pytest.mark.parametrize("generic", [False, True])
@pytest.mark.parametrize("name", ["resnet_bottleneck", "vit_own", "unet", "shufflenet_v2", "squeeze_excitation", "densenet"])
def test_zeros_on_top_of_an_analysis_are_what_they_are_from_scratch(name, generic):
    graph, _ = traced(name, 7)
    put_zeros_in(graph, 0.3, 7)
    baseline = analyse(graph, generic=generic)
    for node in graph.graph.nodes:
        shape = node.meta.get("shape", ())
        if node.op == "get_attr" or len(shape) < 2:
            continue
        zero = torch.zeros([shape[dim] if dim == 1 else 1 for dim in range(len(shape))], dtype=torch.bool)
        zero[:, ::2] = True
        quick = analyse(graph, zeros={node: zero}, baseline=baseline)
        whole = analyse(graph, zeros={node: zero}, generic=generic)
        assert quick.constant == whole.constant
        assert quick.needed.keys() == whole.needed.keys()
        assert quick.known.keys() == whole.known.keys()
        assert all(torch.equal(quick.needed[each], whole.needed[each]) for each in whole.needed)
        for each, fact in whole.known.items():
            assert torch.equal(quick.known[each].mask, fact.mask)
            assert torch.equal(quick.known[each].value, fact.value)
