"""Modules of the user's that multiply by a parameter themselves, in either orientation: gates go onto them as onto linear layers."""

import pytest
import torch
from gallery import GALLERY, randomise_norms
from gallery_tokens import Conv1D
from masking import prune_at_random
from torch import nn

import bayesprune as bp
from bayesprune.narrowing.cuts import find_cuts


class Turned(nn.Module):
    """The same layer with its outputs first."""

    def __init__(self, outputs, inputs):
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.randn(outputs, inputs)), nn.Parameter(torch.randn(outputs))

    def forward(self, x):
        return x @ self.weight.T + self.bias


class Projected(nn.Module):
    """Two products with parameters of other names, and a module between them."""

    def __init__(self):
        super().__init__()
        self.first, self.second, self.act = nn.Parameter(torch.randn(6, 8)), nn.Parameter(torch.randn(8, 6)), nn.ReLU()

    def forward(self, x):
        return self.act(x @ self.first) @ self.second


class Convolved(nn.Module):
    """A convolution whose weight has a name of its own, and a norm behind it."""

    def __init__(self):
        super().__init__()
        self.kernel, self.norm, self.last = nn.Parameter(torch.randn(8, 3, 3, 3)), nn.BatchNorm2d(8), nn.Conv2d(8, 5, 1)

    def forward(self, x):
        return self.last(torch.relu(self.norm(nn.functional.conv2d(x, self.kernel))))


def perceptron(kind):
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(6, 8), nn.ReLU(), kind(8, 8), nn.LayerNorm(8), kind(10, 8), nn.GELU(), kind(8, 10), nn.ReLU(), kind(3, 8)
    )


def same_as_linear(model):
    """The model with linear layers of torch for its own."""
    layers = []
    for layer in model:
        if isinstance(layer, (Conv1D, Turned)):
            weight = layer.weight.T if isinstance(layer, Conv1D) else layer.weight
            linear = nn.Linear(weight.shape[1], weight.shape[0])
            linear.load_state_dict({"weight": weight.detach(), "bias": layer.bias.detach()})
            layers.append(linear)
        else:
            layers.append(layer)
    return nn.Sequential(*layers)


@pytest.mark.parametrize("kind", [Conv1D, Turned])
@pytest.mark.parametrize("method", ["bb", "l0", "cd", "gd", "vib"])
def test_gates_are_those_of_linear_layers(kind, method):
    x, model = torch.randn(4, 6), perceptron(kind)
    found = []
    for each in (model, same_as_linear(model)):
        torch.manual_seed(1)
        found.append(bp.sparsify(each, method, example_inputs=x).eval())
    own, usual = found
    assert str(bp.placement(own)) == str(bp.placement(usual))
    for a, b in zip(bp.gates(own).values(), bp.gates(usual).values(), strict=True):
        torch.testing.assert_close(a.kl(), b.kl())
    torch.testing.assert_close(own(x), usual(x))


@pytest.mark.parametrize("kind", [Conv1D, Turned])
@pytest.mark.parametrize("share", [0.3, 0.7])
def test_units_leave_exactly(kind, share, tmp_path):
    x, model = torch.randn(4, 6, dtype=torch.float64), randomise_norms(perceptron(kind)).double().eval()
    gated = prune_at_random(bp.sparsify(model, "bb", example_inputs=x).eval(), share)
    result = bp.compact(gated, x)
    assert result.max_rel_error <= 1e-12
    assert all(outcome.stayed == 0 for outcome in result.certificate.gates.values())
    assert all(type(layer).__module__.startswith("torch.nn") for layer in list(result.model.modules())[1:])
    assert all(tensor.is_contiguous() for tensor in result.model.parameters())
    bp.save(result.model, tmp_path / "small.safetensors")
    torch.testing.assert_close(bp.load(tmp_path / "small.safetensors")(x), gated(x), rtol=1e-12, atol=1e-12)


def test_heads_and_hidden_units_of_gpt2():
    torch.manual_seed(0)
    model, inputs = GALLERY["gpt2"].build().double().eval(), GALLERY["gpt2"].inputs()
    gated = bp.sparsify(model, "bb", example_inputs=inputs)
    units = {row.gate: row.units for row in bp.placement(gated).gates}
    assert units["h.0.attn_proj.input_gate"] == 3
    assert units["h.1.c_proj.input_gate"] == 32
    with torch.no_grad():
        for name, gate in bp.gates(gated).items():
            if name.endswith("input_gate"):
                gate.raw_a[1:] = -20.0
    layers = dict(bp.compact(gated, inputs).model.named_modules())
    assert (layers["h.1.c_attn"].out_features, layers["h.1.attn_proj"].in_features) == (24, 8)
    assert (layers["h.0.c_fc"].out_features, layers["h.0.c_proj"].in_features) == (1, 1)


def test_a_plain_model_is_saved_as_linear_layers(tmp_path):
    model, x = perceptron(Conv1D).eval(), torch.randn(4, 6)
    bp.save(model, tmp_path / "plain.safetensors", example_inputs=x)
    loaded = bp.load(tmp_path / "plain.safetensors")
    torch.testing.assert_close(loaded(x), model(x))
    assert loaded.get_submodule("4").weight.shape == (10, 8)


def test_gates_come_back_from_a_file_with_the_orientation_of_their_layer(tmp_path):
    x, model = torch.randn(4, 6), perceptron(Conv1D)
    gated = bp.sparsify(model, "l0", example_inputs=x)
    bp.save(gated, tmp_path / "gated.safetensors")
    loaded = bp.load(tmp_path / "gated.safetensors", into=perceptron(Conv1D))
    for name, gate in bp.gates(loaded).items():
        assert [each.unit_axis for each in gate.controlled] == [each.unit_axis for each in bp.gates(gated)[name].controlled]
        torch.testing.assert_close(gate.kl(), bp.gates(gated)[name].kl())
    assert {each.inputs_first for gate in bp.gates(loaded).values() for each in gate.controlled} == {True, False}


def test_parameters_with_other_names_are_left_alone():
    torch.manual_seed(0)
    x = torch.randn(4, 6)
    gated = bp.sparsify(nn.Sequential(nn.Linear(6, 6), Projected(), nn.LayerNorm(6), nn.Linear(6, 3)), "l0", example_inputs=x)
    assert {row.controls for row in bp.placement(gated).gates} <= {"inputs of 0", "outputs of 0"}
    assert "1.matmul_1" in {row.layer for row in bp.placement(gated).left_alone}
    images = torch.randn(2, 3, 8, 8)
    left = bp.placement(bp.sparsify(nn.Sequential(nn.Conv2d(3, 3, 1), Convolved()), "bb", example_inputs=images)).left_alone
    assert any("not called 'weight'" in row.reason for row in left)


def test_a_module_of_the_name_that_a_product_has():
    """As in code that keeps products in modules, for quantisation."""

    class MatMul(nn.Module):
        def forward(self, a, b):
            return a @ b

    class Named(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.weights, self.matmul, self.last = nn.Linear(6, 6), nn.Parameter(torch.randn(6, 8)), MatMul(), nn.Linear(8, 3)

        def forward(self, x):
            return self.last(torch.relu(self.matmul(torch.relu(self.first(x)), self.weights)))

    torch.manual_seed(0)
    x = torch.randn(4, 6, dtype=torch.float64)
    gated = prune_at_random(bp.sparsify(Named().double().eval(), "bb", example_inputs=x).eval(), 0.4)
    assert {"first.output_gate", "last.input_gate"} <= set(bp.gates(gated))
    assert bp.compact(gated, x).max_rel_error <= 1e-12


def test_a_weight_that_is_used_outside_of_its_module_is_named_so():
    class Borrowing(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second, self.third = nn.Conv2d(3, 8, 3), nn.Conv2d(8, 5, 1), nn.Conv2d(5, 4, 1)

        def forward(self, x):
            return self.third(torch.relu(self.second(torch.relu(nn.functional.conv2d(x, self.first.weight, self.first.bias)))))

    left = bp.placement(bp.sparsify(Borrowing(), "bb", example_inputs=torch.randn(2, 3, 8, 8))).left_alone
    assert any("used outside of the module" in row.reason for row in left)


def test_while_they_are_trained_they_keep_their_width():
    x = torch.randn(4, 6)
    cuts = find_cuts(bp.sparsify(perceptron(Conv1D), "bb", example_inputs=x), x)
    assert any("Conv1D), which cannot be made narrower as it is" in reason for reason in cuts.reasons.values())
