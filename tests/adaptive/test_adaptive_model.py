"""What an adaptive model says about itself, and what it takes."""

import pytest
import torch
import torch.nn.functional as F
from per_input_networks import NETWORK_WAYS, adapt, difference, force, from_gallery, more, outputs, sparse
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

import bayesprune as bp
from bayesprune.adaptive.choice import Line
from bayesprune.errors import InputError


def gate_inputs(staged, inputs):
    """What each gate of a network reads."""
    seen = {}
    handles = [
        gate.register_forward_pre_hook(lambda _, args, name=name: seen.__setitem__(name, args[0]))
        for name, gate in bp.gates(staged).items()
    ]
    outputs(staged, inputs)
    for handle in handles:
        handle.remove()
    return seen


def test_units_needed_are_those_that_the_gates_keep():
    staged, inputs = from_gallery("lenet_500_300")
    inputs = more(inputs, 7)
    kept = [gate.keep(seen) for gate, seen in zip(bp.gates(staged).values(), gate_inputs(staged, inputs).values(), strict=True)]
    needed = adapt(staged, inputs).units_needed(*inputs)
    assert [each.tolist() for each in needed] == [each.sum(dim=1).tolist() for each in kept]
    assert all(each.any() for each in needed)
    assert any(len(set(each.tolist())) > 1 for each in needed)  # Inputs differ.


@pytest.mark.parametrize(("needed", "count"), [("none", [0, 0, 0]), ("all", [784, 24, 16])])
def test_units_needed_by_none_and_by_all(needed, count):
    adaptive = adapt(*from_gallery("lenet_500_300", kept="all", needed=needed))
    assert [each.tolist() for each in adaptive.units_needed(torch.randn(2, 1, 28, 28))] == [[each, each] for each in count]


def test_operations_are_those_of_the_units_that_are_needed():
    """Two for each weight of a linear layer."""
    staged, inputs = from_gallery("lenet_500_300")
    adaptive = force(adapt(staged, inputs), "gather", 1)
    for row in more(inputs, 6)[0].split(1):
        needed = [int(each) for each in adaptive.units_needed(row)]
        with FlopCounterMode(display=False) as counter, torch.no_grad():
            adaptive(row)
        assert min(needed) > 0
        assert counter.get_total_flops() == 2 * sum(
            units * layer.layer.out_features for units, layer in zip(needed, adaptive.layers, strict=True)
        )


def test_a_model_that_gains_nothing_runs_as_compacted(lines):
    lines(full=1.0, look=0.5, gather=Line(2.0, 0.0), fused=Line(2.0, 0.0))
    staged, inputs = from_gallery("lenet5")
    adaptive = adapt(staged, inputs)
    plan = adaptive.plan(1)
    assert not plan.adaptive
    assert plan.adaptive_us is None
    assert [layer.way for layer in plan.layers] == ["full"] * len(adaptive.segments)
    assert "run as in the compacted network" in str(plan)
    assert "no layer gains" in str(plan)
    assert "several operations read it" in str(plan)
    assert outputs(adaptive, more(inputs, 1)).equal(outputs(adaptive.plain, more(inputs, 1)))


def test_a_network_without_any_mask_left_says_so():
    staged, inputs = from_gallery("mlp_functional", kept="none")
    adaptive = adapt(staged, inputs)
    assert not adaptive.plan(3).adaptive
    assert not adaptive.plan(3).layers
    assert "no layer gains" in str(adaptive.plan(3))
    assert adaptive.units_needed(*inputs) == []
    assert difference(outputs(staged, inputs), outputs(adaptive, inputs)) <= 1e-5


def test_a_whole_that_is_slower_than_the_compacted_network_is_not_used(lines, monkeypatch):
    lines(full=1.0, look=0.0, gather=Line(0.5, 0.0))
    monkeypatch.setattr(bp.AdaptiveModel, "_compared", lambda *_: (10.0, 11.0))
    staged, inputs = from_gallery("mlp_functional")
    adaptive = adapt(staged, inputs, 3)
    assert not adaptive.plan(3).adaptive
    assert "so the compacted one is used" in str(adaptive.plan(3))
    assert not adaptive._programs


def test_a_plan_that_pays_is_followed(lines, monkeypatch):
    lines(full=1e-3, look=1e-5, gather=Line(1e-6, 1e-6), fused=Line(1.0, 0.0))
    monkeypatch.setattr(bp.AdaptiveModel, "_compared", lambda *_: (11.0, 10.0))
    staged, inputs = from_gallery("mlp_functional", kept="all", needed="all")
    adaptive = adapt(staged, inputs, 3)
    plan = adaptive.plan(3)
    assert plan.adaptive
    assert [(layer.name, layer.units, layer.needed, layer.way) for layer in plan.layers] == [
        ("fc1", 20, 20.0, "gather"),
        ("fc2", 24, 24.0, "gather"),
        ("fc3", 16, 16.0, "gather"),
    ]
    assert [layer.full_us for layer in plan.layers] == pytest.approx([1000.0] * 3)
    assert [layer.expected_us for layer in plan.layers] == pytest.approx([10.0 + 1.0 + units for units in (20, 24, 16)])
    assert difference(outputs(staged, inputs), outputs(adaptive, inputs)) <= 1e-5
    assert 3 in adaptive._programs


def test_measured_plans_compute_the_same():
    """Without any of it forced."""
    staged, inputs = from_gallery("lenet5")
    adaptive = adapt(staged, inputs, 1, 2, 8)
    for size in (1, 2, 3, 8):
        batch = more(inputs, size)
        assert difference(outputs(staged, batch), outputs(adaptive, batch)) <= 1e-5


@torch.no_grad()
def test_arguments_by_name():
    staged, (a, b) = from_gallery("two_inputs")
    adaptive = adapt(staged, {"a": a, "b": b})
    for way in NETWORK_WAYS:
        force(adaptive, way, 3)
        for got in (adaptive(a, b), adaptive(a, b=b), adaptive(b=b, a=a)):
            assert difference(staged(a, b), got) <= 1e-5, way


@pytest.mark.parametrize("shape", [(1, 1, 24, 40), (3, 1, 8, 8)])
def test_images_of_another_size(shape):
    staged, inputs = from_gallery("unet", torch.float64)
    adaptive = adapt(staged, inputs)
    x = torch.randn(shape, dtype=torch.float64)
    for way in NETWORK_WAYS:
        assert difference(outputs(staged, (x,)), outputs(force(adaptive, way, len(x)), (x,))) <= 1e-12, way


def test_empty_batches_go_through():
    staged, inputs = from_gallery("mlp_functional")
    assert outputs(adapt(staged, inputs, 1), (torch.empty(0, 20),)).shape == (0, outputs(staged, inputs).shape[1])


def test_numbers_that_are_none_are_not_hidden():
    """A mask of NaN is no zero."""
    staged, inputs = from_gallery("mlp_functional")
    x = inputs[0].clone()
    x[1] = torch.nan
    adaptive = adapt(staged, inputs)
    for way in NETWORK_WAYS:
        got = outputs(force(adaptive, way, 3), (x,))
        assert got.isnan().any(dim=1).tolist() == [False, True, False]


def test_neither_model_nor_example_is_changed():
    staged, inputs = from_gallery("lenet5")
    staged.train()
    state = {name: tensor.clone() for name, tensor in staged.state_dict().items()}
    example = inputs[0].clone()
    adaptive = adapt(staged, inputs, 1)
    adaptive.double()
    assert staged.training
    assert all(torch.equal(tensor, state[name]) for name, tensor in staged.state_dict().items())
    assert inputs[0].equal(example)
    assert not {p.data_ptr() for p in adaptive.parameters()} & {p.data_ptr() for p in staged.parameters()}


def test_it_stays_in_evaluation_mode():
    adaptive = adapt(*from_gallery("lenet5")).train()
    assert not any(module.training for module in adaptive.modules())
    assert not any(parameter.requires_grad for parameter in adaptive.parameters())


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (lambda: nn.Linear(6, 3), "Linear has no gates.*sparsify"),
        (lambda: bp.sparsify(nn.Sequential(nn.Linear(6, 4), nn.Linear(4, 3)), "bb"), "no gate of the model depends on its input.*compact"),
        (lambda: "a model", "takes an nn.Module, not str"),
    ],
)
def test_models_that_it_is_not_for(model, message):
    with pytest.raises(InputError, match=message):
        bp.AdaptiveModel(model(), torch.randn(2, 6), cache=None)


@pytest.mark.parametrize("size", [0, -1, True, "a", 2.0, None])
def test_sizes_of_batches_that_are_none(size):
    staged, inputs = from_gallery("mlp_functional")
    adaptive = adapt(staged, inputs)
    for ask in (adaptive.plan, adaptive.prepare, lambda each: adapt(staged, inputs, each)):
        with pytest.raises(InputError, match="whole number of at least 1, not"):
            ask(size)
    assert not adaptive.plans


@pytest.mark.parametrize("sizes", [0, 4, True, 2.5, {1, 2}, b"x", "1"])
def test_sizes_come_in_a_sequence(sizes):
    staged, inputs = from_gallery("mlp_functional")
    with pytest.raises(InputError, match="batch_sizes is a sequence of whole numbers"):
        bp.AdaptiveModel(staged, inputs, batch_sizes=sizes, cache=None)


def test_a_network_for_one_size_of_batches():
    staged, inputs = from_gallery("static_batch_view")
    adaptive = bp.AdaptiveModel(staged, inputs, cache=None)
    assert list(adaptive.plans) == [2]
    for size in (1, 3):
        with pytest.raises(InputError, match=f"takes no batches of {size}: its code is for batches of 2"):
            adaptive.plan(size)


def test_nothing_is_planned_if_one_of_the_sizes_is_wrong():
    adaptive = adapt(*from_gallery("mlp_functional"))
    with pytest.raises(InputError):
        adaptive.prepare(1, 0)
    assert not adaptive.plans


class Named(nn.Module):
    """Layers with the names that an adaptive network would give to its own."""

    def __init__(self):
        super().__init__()
        self.adaptive_0, self.adaptive_1, self.folded_0 = nn.Linear(6, 8), nn.Linear(8, 8), nn.Linear(8, 3)
        self.folded_1 = nn.Parameter(torch.randn(8))

    def forward(self, x):
        return self.folded_0(F.relu(self.adaptive_1(F.relu(self.adaptive_0(x)))) + self.folded_1)


def test_names_of_layers_are_the_users():
    torch.manual_seed(0)
    x = torch.randn(3, 6)
    staged = sparse(Named(), x, kept="all")
    adaptive = adapt(staged, x)
    for count in range(len(adaptive.layers) + 1):
        assert difference(outputs(staged, (x,)), outputs(adaptive.parts.with_layers(adaptive.layers[:count]), (x,))) <= 1e-5
