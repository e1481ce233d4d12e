"""Native code computes what torch does, and is done without where it cannot be used."""

import copy
import pickle
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from gallery import GALLERY
from per_input_networks import BOUNDS, adapt, difference, from_gallery, more, natively, needs_compiler, outputs, sparse
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

import bayesprune as bp
from bayesprune.adaptive.work import count_work


@needs_compiler
@pytest.mark.parametrize("dtype", BOUNDS)
@pytest.mark.parametrize("name", ["lenet_500_300", "lenet5", "mlp", "mlp_functional", "vgg"])
@pytest.mark.parametrize("needed", ["some", "none", "all"])
def test_networks_compute_the_same(name, needed, dtype):
    staged, inputs = from_gallery(name, dtype, needed=needed)
    sizes = (1, 2, 7)
    adaptive = natively(adapt(staged, inputs), *sizes)
    assert len(adaptive.natives) > 0
    for size in sizes:
        batch = more(inputs, size)
        assert difference(outputs(staged, batch), outputs(adaptive, batch)) <= BOUNDS[dtype]


@needs_compiler
def test_native_code_is_really_called(monkeypatch):
    staged, inputs = from_gallery("lenet5")
    adaptive = natively(adapt(staged, inputs), 1)
    called = []
    for layer in adaptive.natives:
        monkeypatch.setattr(layer, "_run", lambda *arguments, run=layer._run: called.append(True) or run(*arguments))
    outputs(adaptive, more(inputs, 1))
    assert len(called) == len(adaptive.natives) > 1


@needs_compiler
def test_who_counts_operations_sees_those_of_torch():
    staged, inputs = from_gallery("lenet_500_300")
    adaptive = natively(adapt(staged, inputs), 1)
    counts = []
    for network in (adaptive, adaptive.plain):
        with FlopCounterMode(display=False) as counter:
            outputs(network, more(inputs, 1))
        counts.append(counter.get_total_flops())
    assert counts[0] == counts[1] > 0
    assert bp.cost(adaptive, more(inputs, 1)).macs == bp.cost(adaptive.plain, more(inputs, 1)).macs


@needs_compiler
def test_threads_copies_and_pickles_compute_the_same():
    staged, inputs = from_gallery("lenet_500_300")
    adaptive = natively(adapt(staged, inputs), 1)
    batches = [more(inputs, 1, seed) for seed in range(40)]
    expected = [outputs(adaptive, batch) for batch in batches]
    with ThreadPoolExecutor(4) as pool:
        assert all(map(torch.equal, pool.map(lambda batch: outputs(adaptive, batch), batches), expected))
    copied, loaded = copy.deepcopy(adaptive), pickle.loads(pickle.dumps(adaptive))
    with torch.no_grad():
        for layer in adaptive.layers:
            layer.layer.weight.zero_()
            layer.refresh()
    assert not outputs(adaptive, batches[0]).equal(expected[0])
    for other in (copied, loaded):
        assert all(outputs(other, batch).equal(result) for batch, result in zip(batches, expected, strict=True))


@needs_compiler
def test_gradients_are_those_of_torch():
    staged, inputs = from_gallery("lenet_500_300", torch.float64)
    adaptive = natively(adapt(staged, inputs), 2)
    gradients = []
    for network in (adaptive, adaptive.compacted):
        (x,) = (each.clone().requires_grad_() for each in more(inputs, 2))
        network(x).square().sum().backward()
        gradients.append(x.grad)
    assert gradients[0].abs().sum() > 0
    assert difference(*gradients) <= 1e-12


@needs_compiler
def test_other_derivatives_are_those_of_torch():
    staged, inputs = from_gallery("lenet_500_300", torch.float64)
    adaptive = natively(adapt(staged, inputs), 1)
    (x,), (direction,) = more(inputs, 1), more(inputs, 1, seed=1)
    for derivative in (
        lambda network: torch.func.jvp(network, (x,), (direction,))[1],
        lambda network: torch.func.grad(lambda x: network(x).square().sum())(x),
        lambda network: torch.func.jacrev(network)(x),
    ):
        expected = derivative(adaptive.plain)
        assert expected.abs().sum() > 0
        assert difference(expected, derivative(adaptive)) <= 1e-12


@needs_compiler
def test_other_types_are_for_torch_or_for_other_code():
    staged, inputs = from_gallery("lenet_500_300")
    adaptive = natively(adapt(staged, inputs), 1)
    expected = outputs(adaptive, more(inputs, 1))
    with pytest.raises(RuntimeError, match="dtype"):
        adaptive(more(inputs, 1)[0].double())
    doubled = natively(adaptive.double(), 1)
    assert doubled.natives[0].rule.dtype == torch.float64
    assert difference(expected.double(), outputs(doubled, tuple(each.double() for each in more(inputs, 1)))) <= 1e-5
    halved = adaptive.to(torch.bfloat16)
    assert not halved.natives[0].available
    natively(halved, 1)
    assert outputs(halved, tuple(each.bfloat16() for each in more(inputs, 1))).dtype == torch.bfloat16


@needs_compiler
@pytest.mark.parametrize("shape", [(1, 17), (1, 15), (16,), (1, 1, 16)])
def test_inputs_of_another_shape_are_for_torch(shape, monkeypatch):
    torch.manual_seed(0)
    x = torch.randn(6, 20)
    layer = adapt(sparse(nn.Sequential(nn.Linear(20, 16), nn.ReLU(), nn.Linear(16, 4)), x, kept="all"), x).natives[-1]
    called = []
    monkeypatch.setattr(layer, "in_torch", lambda *_: called.append(True))
    layer(torch.randn(1, 16))
    assert not called
    layer(torch.randn(shape))
    assert called


@needs_compiler
def test_operations_by_native_code_are_counted():
    staged, inputs = from_gallery("lenet_500_300")
    adaptive = natively(adapt(staged, inputs), 1)
    work = count_work(adaptive, *inputs)
    assert torch.equal(work.executed, work.needed)
    assert (work.needed < work.compacted).all()
    adaptive._natively[1] = adaptive._natively[1][:1]
    for layer in adaptive.layers:
        layer.choices.clear()
    part = count_work(adaptive, *inputs)
    assert ((part.executed > work.needed) & (part.executed < work.compacted)).all()


@needs_compiler
def test_the_plan_tells_of_it_and_it_can_be_refused(monkeypatch):
    staged, inputs = from_gallery("lenet_500_300")
    monkeypatch.setattr(bp.AdaptiveModel, "_compared", lambda *_: (11.0, 10.0))
    adaptive = bp.AdaptiveModel(staged, inputs, cache=None)
    plan = adaptive.plan(1)
    assert [layer.way for layer in plan.layers] == ["native"] * 3  # By far the fastest for layers as small as these.
    assert all(layer.expected_us < layer.full_us for layer in plan.layers)
    assert all(adaptive.runs_natively(layer, 1) for layer in adaptive.layers)
    without = bp.AdaptiveModel(staged, inputs, cache=None, native=False)
    assert "native" not in [layer.way for layer in without.plan(1).layers]
    assert not any(without.runs_natively(layer, 1) for layer in without.layers)
    assert difference(outputs(without, more(inputs, 1)), outputs(adaptive, more(inputs, 1))) <= 1e-5


@pytest.mark.parametrize("compiler", ["none", "fails", "writes nothing", "writes nonsense"])
def test_without_a_compiler_torch_computes(compiler, tmp_path, monkeypatch, anew):
    monkeypatch.delenv("CC", raising=False)
    if compiler == "none":
        monkeypatch.setenv("PATH", str(tmp_path))
    else:
        words = {"fails": "exit 1", "writes nothing": "exit 0", "writes nonsense": 'for last; do :; done; echo nonsense > "$last"'}
        (tmp_path / "own-cc").write_text(f"#!/bin/sh\n{words[compiler]}\n")
        (tmp_path / "own-cc").chmod(0o755)
        monkeypatch.setenv("CC", f"{tmp_path / 'own-cc'} --with-an-option")
    staged, inputs = from_gallery("lenet_500_300")
    adaptive = adapt(staged, inputs, 1)
    assert not adaptive.natives[0].available
    assert "native" not in [layer.way for layer in adaptive.plan(1).layers]
    natively(adaptive, 1)  # As after it was compiled on another machine and sent here.
    assert difference(outputs(staged, more(inputs, 1)), outputs(adaptive, more(inputs, 1))) <= 1e-5


@needs_compiler
def test_weights_that_are_loaded_are_computed_with():
    staged, inputs = from_gallery("lenet_500_300")
    torch.manual_seed(7)
    other = sparse(GALLERY["lenet_500_300"].build(), inputs)
    adaptive = natively(adapt(staged, inputs), 1)
    before = outputs(adaptive, more(inputs, 1))
    adaptive.load_state_dict(adapt(other, inputs).state_dict())
    after = outputs(natively(adaptive, 1), more(inputs, 1))
    assert difference(outputs(other, more(inputs, 1)), after) <= 1e-5
    assert not torch.allclose(before, after)


@needs_compiler
@pytest.mark.parametrize("name", ["lenet_500_300", "lenet5"])
def test_a_default_device_does_not_matter(name):
    staged, inputs = from_gallery(name)
    adaptive = natively(adapt(staged, inputs), 1)
    expected = outputs(adaptive, more(inputs, 1))
    batch = more(inputs, 1)
    with torch.device("meta"):
        assert outputs(adaptive, batch).equal(expected)


@needs_compiler
@pytest.mark.parametrize("bias", [lambda n: torch.randn(n, 4)[:, 1], lambda n: torch.tensor(0.5).expand(n)], ids=["strided", "expanded"])
@pytest.mark.parametrize("name", ["lenet_500_300", "lenet5"])
def test_biases_that_do_not_lie_together(name, bias):
    staged, inputs = from_gallery(name)
    adaptive = natively(adapt(staged, inputs), 1)
    state = adaptive.state_dict()
    adaptive.load_state_dict({name: bias(len(value)) if name.endswith(".bias") else value for name, value in state.items()}, assign=True)
    natively(adaptive, 1)
    assert difference(outputs(adaptive.plain, more(inputs, 1)), outputs(adaptive, more(inputs, 1))) <= 1e-5


@needs_compiler
def test_a_bias_of_another_length_is_for_torch():
    staged, inputs = from_gallery("lenet_500_300")
    adaptive = natively(adapt(staged, inputs), 1)
    for layer in adaptive.layers:
        layer.layer.bias = nn.Parameter(torch.ones(1), requires_grad=False)
        layer.refresh()
    assert difference(outputs(adaptive.plain, more(inputs, 1)), outputs(adaptive, more(inputs, 1))) <= 1e-5


@needs_compiler
def test_what_lies_elsewhere_is_for_torch():
    staged, inputs = from_gallery("lenet_500_300")
    adaptive = natively(adapt(staged, inputs), 1)
    layer = adaptive.natives[0]
    x = torch.randn(1, layer.rule.shape[1])
    assert layer(torch._neg_view(x)).equal(layer.in_torch(-x, layer.rule))
    zeros = torch._efficientzerotensor((1, layer.rule.shape[1]))
    assert difference(layer(torch.zeros_like(x)), layer(zeros)) <= 1e-5
    adaptive.natives.to("meta")
    with pytest.raises(RuntimeError):
        layer(x)
