"""Convolutions by native code, with and without masks, ReLUs, poolings and normalisations around them."""

import copy
import itertools
import pickle

import pytest
import torch
import torch.nn.functional as F
from per_input_networks import BOUNDS, adapt, difference, from_gallery, more, natively, needs_compiler, outputs, sparse
from torch import fx, nn

import bayesprune as bp
from bayesprune.adaptive.calibration import Calibration
from bayesprune.adaptive.choice import Choice, Line
from bayesprune.adaptive.native_convolutions import plain_convolutions
from bayesprune.adaptive.rewriting import _shapes
from bayesprune.adaptive.ways import GATHER


def settled(model, x):
    """Normalisations with statistics, weights and biases that do something."""
    for norm in model.modules():
        if isinstance(norm, nn.BatchNorm2d):
            norm.momentum = 1.0
            if norm.affine:
                nn.init.uniform_(norm.weight, 0.5, 1.5)
                nn.init.normal_(norm.bias)
    with torch.no_grad():
        model.train()(x)
    return model.eval()


def found_in(model, x):
    network = fx.symbolic_trace(model.eval())
    return plain_convolutions(network, _shapes(network, (x,)))


class Branches(nn.Module):
    """What convolutions read, and what they give, is read by others too."""

    def __init__(self):
        super().__init__()
        self.first, self.second, self.third = nn.Conv2d(3, 6, 3, padding=1), nn.Conv2d(6, 6, 3, padding=1), nn.Conv2d(6, 4, 1)
        self.norm = nn.BatchNorm2d(6)

    def forward(self, x):
        h = F.relu(self.first(x))
        g = self.second(h)
        return self.third(torch.relu(self.norm(g) + h)) + g.mean()


SITES = {
    "alone": (nn.Sequential(nn.Conv2d(3, 4, 3)), [(False, 1, False)]),
    "behind a ReLU": (nn.Sequential(nn.ReLU(), nn.Conv2d(3, 4, 3)), [(True, 1, False)]),
    "behind ReLU and pooling": (nn.Sequential(nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(3, 4, 3)), [(True, 2, False)]),
    "behind pooling and ReLU": (nn.Sequential(nn.MaxPool2d(3), nn.ReLU(), nn.Conv2d(3, 4, 3)), [(True, 3, False)]),
    "behind two poolings": (nn.Sequential(nn.MaxPool2d(2), nn.MaxPool2d(2), nn.Conv2d(3, 4, 3)), [(False, 2, False)]),
    "behind another pooling": (nn.Sequential(nn.MaxPool2d(3, 2, 1), nn.Conv2d(3, 4, 3)), [(False, 1, False)]),
    "behind another activation": (nn.Sequential(nn.ReLU6(), nn.Conv2d(3, 4, 3)), [(False, 1, False)]),
    "before a norm": (nn.Sequential(nn.Conv2d(3, 4, 3, bias=False), nn.BatchNorm2d(4)), [(False, 1, True)]),
    "before a norm without weights": (nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4, affine=False)), [(False, 1, True)]),
    "before a batch norm": (
        nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4, track_running_stats=False)),
        [(False, 1, False)],
    ),
    "in groups": (nn.Sequential(nn.Conv2d(3, 6, 3, groups=3)), []),
    "with other values around": (nn.Sequential(nn.Conv2d(3, 4, 3, padding=1, padding_mode="reflect")), []),
    "that keeps the size": (nn.Sequential(nn.Conv2d(3, 4, 3, padding="same")), []),
    "with all of it": (
        nn.Sequential(nn.ReLU(), nn.Conv2d(3, 20, (3, 2), (2, 1), (0, 2), (1, 3)), nn.BatchNorm2d(20)),
        [(True, 1, True)],
    ),
    "with branches": (Branches(), [(False, 1, False), (False, 1, False), (True, 1, False)]),
}


@needs_compiler
@pytest.mark.parametrize("dtype", BOUNDS)
@pytest.mark.parametrize("name", SITES)
def test_what_stands_around_a_convolution_is_computed_with_it(name, dtype):
    torch.manual_seed(0)
    x = torch.randn(3, 3, 14, 13, dtype=dtype)
    model, expected = SITES[name]
    model = settled(copy.deepcopy(model).to(dtype), x)
    network = fx.symbolic_trace(model)
    found = plain_convolutions(network, _shapes(network, (x,)))
    assert [(each.steps.rectify, each.steps.pool, each.weights.norm is not None) for each in found] == expected
    nodes = {node.name: node for node in network.graph.nodes}
    values = {}

    class Values(fx.Interpreter):
        def run_node(self, n):
            values[n.name] = super().run_node(n)
            return values[n.name].clone()

    with torch.no_grad():
        Values(network).run(x)
        for each in found:
            assert nodes[each.consumer].op == "call_module"
            read = values[each.read]
            assert each._run(each._kernel(dtype), read, None) is not None
            assert difference(values[each.replaces], each(read)) <= BOUNDS[dtype]
            assert difference(values[each.replaces], each.in_torch(read)) <= BOUNDS[dtype]


@needs_compiler
@pytest.mark.parametrize("dtype", BOUNDS)
@pytest.mark.parametrize("needed", ["some", "none", "all"])
def test_normalised_networks_compute_the_same(needed, dtype):
    torch.manual_seed(0)
    widths, layers = (3, 12, 20, 9), []
    for before, after in itertools.pairwise(widths):
        layers += [nn.Conv2d(before, after, 3, padding=1), nn.BatchNorm2d(after), nn.ReLU(), nn.MaxPool2d(2)]
    x = torch.randn(5, 3, 16, 16, dtype=dtype)
    model = settled(nn.Sequential(*layers, nn.Flatten(), nn.Linear(36, 4)).to(dtype), x)
    staged = sparse(model, x, needed=needed)
    adaptive = natively(adapt(staged, x), 1, 5)
    masked = [each for each in adaptive.natives if hasattr(each, "steps")]
    assert [each.weights.norm is not None for each in masked] == [True, True]
    assert all(each.weights.norm is not None for each in adaptive.parts.convolutions)
    for size in (1, 5):
        batch = more((x,), size)
        assert difference(outputs(staged, batch), outputs(adaptive, batch)) <= BOUNDS[dtype]
        assert difference(outputs(adaptive.plain, batch), outputs(adaptive, batch)) <= BOUNDS[dtype]


@needs_compiler
def test_every_convolution_can_be_native_without_its_masks():
    staged, inputs = from_gallery("lenet5")
    adaptive = adapt(staged, inputs)
    assert [each.consumer for each in adaptive.parts.convolutions] == ["conv1", "conv2"]
    program = adaptive.parts.with_layers([], adaptive.parts.convolutions)
    assert [node.op for node in program.graph.nodes].count("call_module") > 2
    assert not any(str(node.target).startswith("conv") for node in program.graph.nodes)
    assert difference(outputs(staged, more(inputs, 2)), outputs(program, more(inputs, 2))) <= 1e-5


@needs_compiler
def test_the_plan_takes_what_is_measured_to_gain(monkeypatch):
    staged, inputs = from_gallery("lenet5")
    monkeypatch.setattr(Calibration, "convolution", lambda _self, each, *_: (1e-4, 1e-5) if each.consumer == "conv1" else (1e-5, 1e-5))
    monkeypatch.setattr(bp.AdaptiveModel, "_compared", lambda *_: (11.0, 10.0))
    adaptive = bp.AdaptiveModel(staged, inputs, cache=None)
    (planned,) = (layer for layer in adaptive.plan(1).layers if layer.way == "native, whole")
    assert (planned.name, planned.units, planned.needed) == ("conv1", 1, 1)
    assert (planned.full_us, planned.expected_us) == pytest.approx((100.0, 10.0))
    first, second = adaptive.parts.convolutions
    assert first in adaptive._natively[1]
    assert second not in adaptive._natively[1]
    assert first.weights._taken is None  # It was not run yet.
    outputs(adaptive, more(inputs, 1))
    assert first.weights._taken is not None
    adaptive.prepare(3)
    assert first.weights._taken is not None
    without = bp.AdaptiveModel(staged, inputs, cache=None, native=False)
    assert not any("native" in layer.way for layer in without.plan(1).layers)


@needs_compiler
def test_what_was_measured_is_not_measured_again(tmp_path, monkeypatch):
    (convolution,) = found_in(nn.Sequential(nn.Conv2d(3, 4, 3)), torch.randn(1, 3, 9, 9))
    path = tmp_path / "calibration.json"
    first = Calibration(path)
    seconds = first.convolution(convolution, torch.Size((1, 3, 9, 9)), 1)
    assert all(0 < each < 10 for each in seconds)
    first.keep()
    monkeypatch.setattr("bayesprune.adaptive.calibration._seconds", lambda *_: pytest.fail("measured again"))
    assert Calibration(path).convolution(convolution, torch.Size((1, 3, 9, 9)), 1) == seconds
    path.write_text(path.read_text().replace("[", '["x", '))
    monkeypatch.setattr("bayesprune.adaptive.calibration._seconds", lambda *_: 1.0)
    assert Calibration(path).convolution(convolution, torch.Size((1, 3, 9, 9)), 1) == (1.0, 1.0)


@needs_compiler
def test_weights_are_taken_over_again_when_they_change():
    torch.manual_seed(0)
    x = torch.randn(2, 3, 9, 9)
    model = nn.Sequential(nn.Conv2d(3, 4, 3))
    (convolution,) = found_in(model, x)
    before = outputs(convolution, (x,))
    with torch.no_grad():
        convolution.layer.weight.data = torch.randn(4, 3, 3, 3)
    after = outputs(convolution, (x,))
    assert difference(outputs(convolution.layer, (x,)), after) <= 1e-5
    assert not torch.allclose(before, after)
    convolution.layer.double()
    assert difference(outputs(convolution.layer, (x.double(),)), outputs(convolution, (x.double(),))) <= 1e-12
    assert convolution.weights._taken is not None
    convolution.release()
    assert convolution.weights._taken is None
    assert difference(outputs(convolution.layer, (x.double(),)), outputs(convolution, (x.double(),))) <= 1e-12


@needs_compiler
@pytest.mark.parametrize(
    "change",
    [
        lambda network: network[0].weight.mul_(-1.0),
        lambda network: network[0].bias.add_(1.0),
        lambda network: network[1].running_mean.add_(0.3),
        lambda network: network[1].running_var.mul_(2.0),
        lambda network: network[1].weight.mul_(2.0),
        lambda network: setattr(network[0], "bias", nn.Parameter(torch.ones(4))),
        lambda network: setattr(network[1], "bias", nn.Parameter(torch.ones(4))),
    ],
    ids=["weight", "bias", "mean", "variance", "norm's weight", "another bias", "another norm's bias"],
)
def test_whatever_changes_is_noticed(change):
    torch.manual_seed(0)
    x = torch.randn(2, 3, 9, 9)
    network = fx.symbolic_trace(settled(nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)), x))
    (convolution,) = plain_convolutions(network, _shapes(network, (x,)))
    before = outputs(convolution, (x,))
    with torch.no_grad():
        change([network.get_submodule("0"), network.get_submodule("1")])
    assert not torch.allclose(before, outputs(convolution, (x,)))
    assert difference(outputs(network, (x,)), outputs(convolution, (x,))) <= 1e-5


@needs_compiler
@pytest.mark.parametrize(("side", "padding"), [(1, 1), (5, 2)])
def test_weights_of_another_size_than_their_layer_says_are_for_torch(side, padding):
    """Torch goes by the weights, so models whose weights were replaced still run."""
    torch.manual_seed(0)
    x = torch.randn(2, 3, 9, 9)
    model = nn.Sequential(nn.Conv2d(3, 4, 3, padding=padding))
    model[0].weight = nn.Parameter(torch.randn(4, 3, side, side))
    (convolution,) = found_in(model, x)
    assert outputs(convolution, (x,)).equal(outputs(model, (x,)))
    assert convolution.weights._taken is None


@needs_compiler
def test_parameters_that_are_trained_get_gradients():
    (convolution,) = found_in(nn.Sequential(nn.Conv2d(3, 4, 3)), torch.randn(1, 3, 9, 9))
    convolution(torch.randn(2, 3, 9, 9)).sum().backward()
    assert convolution.layer.weight.grad.abs().sum() > 0


@needs_compiler
def test_a_layer_has_one_line_in_the_plan(monkeypatch):
    staged, inputs = from_gallery("lenet5")
    monkeypatch.setattr(Calibration, "choice", lambda _self, _segment, _layer, _shape, batch, _native=None: Choice(batch, 1e-5, 0.0))
    monkeypatch.setattr(Calibration, "convolution", lambda *_: (1e-4, 1e-5))
    monkeypatch.setattr(bp.AdaptiveModel, "_compared", lambda *_: (11.0, 10.0))
    adaptive = bp.AdaptiveModel(staged, inputs, cache=None)
    planned = {layer.name: layer for layer in adaptive.plan(1).layers}
    assert len(planned) == len(adaptive.plan(1).layers) == 4
    assert [planned[name].way for name in ("conv1", "conv2", "fc1", "fc2")] == ["native, whole", "native, whole", "full", "full"]
    assert planned["conv2"].needed <= planned["conv2"].units == adaptive.segments[0].units


@needs_compiler
def test_what_gains_in_another_way_is_left_to_it(monkeypatch):
    staged, inputs = from_gallery("lenet5")
    gathers = {GATHER: Line(1e-7, 0.0)}
    monkeypatch.setattr(
        Calibration, "choice", lambda _self, _segment, _layer, _shape, batch, _native=None: Choice(batch, 1e-5, 0.0, gathers)
    )
    monkeypatch.setattr(Calibration, "convolution", lambda *_: (1e-4, 1e-5))
    adaptive = bp.AdaptiveModel(staged, inputs, cache=None)
    assert [each.consumer for each in adaptive._natively[1]] == ["conv1"]


@needs_compiler
def test_a_plan_that_is_not_used_keeps_no_weights(monkeypatch):
    staged, inputs = from_gallery("lenet5")
    monkeypatch.setattr(Calibration, "convolution", lambda *_: (1e-4, 1e-5))
    compared = bp.AdaptiveModel._compared
    monkeypatch.setattr(bp.AdaptiveModel, "_compared", lambda *arguments: (compared(*arguments)[0], 1e9))
    adaptive = bp.AdaptiveModel(staged, inputs, cache=None)
    assert not adaptive.plan(1).adaptive
    assert all(each.weights._taken is None for each in adaptive.parts.convolutions)


@needs_compiler
@pytest.mark.parametrize("shape", [(2, 4, 9, 9), (3, 9, 9), (2, 3, 2, 9)])
def test_inputs_of_another_shape_are_for_torch(shape):
    (convolution,) = found_in(nn.Sequential(nn.Conv2d(3, 4, 3)), torch.randn(1, 3, 9, 9))
    try:
        expected = outputs(convolution.layer, (torch.ones(shape),))
    except RuntimeError as error:
        with pytest.raises(RuntimeError, match=str(error)[:20]):
            outputs(convolution, (torch.ones(shape),))
    else:
        assert difference(expected, outputs(convolution, (torch.ones(shape),))) <= 1e-6


@needs_compiler
def test_other_layouts_gradients_copies_and_pickles():
    torch.manual_seed(0)
    x = torch.randn(2, 3, 9, 9)
    (convolution,) = found_in(settled(nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)), x), x)
    expected = outputs(convolution, (x,))
    strided = x.to(memory_format=torch.channels_last)
    assert outputs(convolution, (strided,)).equal(expected)
    assert difference(expected, outputs(convolution, (torch._neg_view(-x),))) <= 1e-6
    for other in (copy.deepcopy(convolution), pickle.loads(pickle.dumps(convolution))):
        assert outputs(other, (x,)).equal(expected)
    asked = x.clone().requires_grad_()
    convolution(asked).sum().backward()
    assert asked.grad.abs().sum() > 0


@needs_compiler
@pytest.mark.parametrize("threads", [1, 2, 3, 7])
def test_threads_change_nothing(threads):
    torch.manual_seed(0)
    now = torch.get_num_threads()
    sizes = [(64, 70, 24), (96, 200, 5)]  # Many places, and many outputs, to share out.
    try:
        for (units, outputs_, side), batch in itertools.product(sizes, (2, 15)):
            x = torch.randn(batch, units, side, side)
            (convolution,) = found_in(nn.Sequential(nn.Conv2d(units, outputs_, 3, padding=1)), x)
            torch.set_num_threads(1)
            expected = outputs(convolution, (x,))
            torch.set_num_threads(threads)
            assert outputs(convolution, (x,)).equal(expected)
            assert difference(outputs(convolution.layer, (x,)), expected) <= 1e-5
    finally:
        torch.set_num_threads(now)
