"""Loaded networks go through torch.export, torch.compile and the package's own tracer."""

import pytest
import torch
from gallery import GALLERY
from torch import nn
from torch.export import Dim
from torch.utils import _pytree as pytree

from bayesprune import compact, gates, sparsify
from bayesprune.artifact import load, save
from bayesprune.graph import trace

SOME = ["resnet_basic", "vit_own", "einsum_attention", "unet", "multi_head_outputs", "two_inputs", "tied_weights"]


def loaded(name, path):
    torch.manual_seed(0)
    model = GALLERY[name].build().eval()
    torch.manual_seed(1)
    inputs = GALLERY[name].inputs()
    save(model, path, example_inputs=inputs)
    return load(path), inputs


def agree(left, right):
    for a, b in zip(pytree.tree_leaves(left), pytree.tree_leaves(right), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", SOME)
def test_export(name, tmp_path):
    network, inputs = loaded(name, tmp_path / "a")
    shapes = {"args": tuple({0: Dim.DYNAMIC} for _ in inputs)}
    program = torch.export.export(network, inputs, dynamic_shapes=shapes, strict=False)
    assert program.state_dict.keys() == network.state_dict().keys()
    more = tuple(torch.cat([each, each]) for each in inputs)
    with torch.no_grad():
        agree(program.module()(*more), network(*more))


@pytest.mark.parametrize("name", SOME)
def test_compile(name, tmp_path):
    network, inputs = loaded(name, tmp_path / "a")
    torch.compiler.reset()
    compiled = torch.compile(network, backend="eager", fullgraph=True)
    with torch.no_grad():
        agree(compiled(*inputs), network(*inputs))
    torch.compiler.reset()


def test_compile_with_tensors_made_on_the_way(small_file, small_input):
    network = load(small_file).train()
    torch.compiler.reset()
    compiled = torch.compile(network, backend="aot_eager")
    compiled(small_input)["logits"].sum().backward()
    assert all(parameter.grad is not None for parameter in network.parameters())
    torch.compiler.reset()


@pytest.mark.parametrize("name", ["resnet_basic", "vit_own", "swiglu"])
def test_traced_again(name, tmp_path):
    network, inputs = loaded(name, tmp_path / "a")
    traced = trace(network, inputs)
    assert traced.state_dict().keys() == network.state_dict().keys()
    with torch.no_grad():
        agree(traced(*inputs), network(*inputs))


def test_functional_call(small_file, small_input):
    network = load(small_file)
    zeroed = {"scale": torch.zeros(6), "offset": torch.zeros(6)}
    assert not torch.func.functional_call(network, zeroed, (small_input,))["logits"].any()


def prune(gated: nn.Module) -> None:
    """Switch about half of the units of every gate off."""
    torch.manual_seed(3)
    with torch.no_grad():
        for gate in gates(gated).values():
            off = torch.rand(gate.num_units) < 0.5
            off[0] = False
            gate.raw_a[off] = -10.0


@pytest.mark.parametrize("name", ["lenet5", "resnet_basic", "mobilenet_v2", "vit_torch", "densenet", "unet", "shufflenet_v2", "lstm_tail"])
def test_what_compact_gives(name, tmp_path):
    torch.manual_seed(0)
    model = GALLERY[name].build().eval()
    torch.manual_seed(1)
    inputs = GALLERY[name].inputs()
    gated = sparsify(model, "bb", example_inputs=inputs).eval()
    prune(gated)
    result = compact(gated, inputs)
    save(result.model, tmp_path / "small.safetensors", certificate=result.certificate)
    network = load(tmp_path / "small.safetensors")
    with torch.no_grad():
        assert all(map(torch.equal, pytree.tree_leaves(network(*inputs)), pytree.tree_leaves(result.model.eval()(*inputs))))
    assert network.state_dict().keys() == result.model.state_dict().keys()
    assert network.certificate["max_abs_error"] == result.certificate.max_abs_error
