"""``narrow``: gated models with fewer units, on any model."""

import copy

import pytest
import torch
import torch.nn.functional as F
from gallery import GALLERY
from masking import prune_at_random
from torch import nn

import bayesprune as bp
from bayesprune.example_inputs import call, tensors_in
from bayesprune.gates import METHODS
from bayesprune.graph.tracing import relative_difference

STAYS = {"groupnorm_net", "grouped_conv", "shared_attention", "nested_splits", "gpt2"}
"""Nothing of these can be made narrower as they are."""


def gated(name, share=0.5, **options):
    torch.manual_seed(0)
    inputs = GALLERY[name].inputs()
    return prune_at_random(bp.sparsify(GALLERY[name].build().eval(), "bb", example_inputs=inputs, **options), share, 0), inputs


def parameters(model):
    return sum(parameter.numel() for parameter in model.parameters())


def difference(first, second, inputs):
    with torch.no_grad():
        results = [tensors_in(call(each.eval(), inputs)) for each in (first, second)]
    return max(relative_difference(a, b) for a, b in zip(*results, strict=True))


def perceptron():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 12), nn.ReLU(), nn.Linear(12, 8), nn.ReLU(), nn.Linear(8, 3))


def pruned(model, method="bb", share=0.5):
    before = bp.sparsify(model, "bb" if method == "dbb" else method)
    generator = torch.Generator().manual_seed(0)
    for gate in bp.gates(before).values():
        gate.prune(torch.rand(gate.num_units, generator=generator) < share)
    return bp.make_dependent(before) if method == "dbb" else before


@pytest.mark.parametrize("name", GALLERY)
def test_the_same_function_and_the_same_compacted_network(name):
    model, inputs = gated(name)
    before = {key: tensor.clone() for key, tensor in model.state_dict().items()}
    result = bp.narrow(model, inputs)
    assert all(torch.equal(tensor, before[key]) for key, tensor in model.state_dict().items())
    assert result.max_rel_error <= 1e-5
    assert difference(result.model, model, inputs) <= 1e-5
    assert (parameters(result.model) == parameters(model)) == (name in STAYS)
    for key, gate in bp.gates(model).items():
        narrow = bp.gates(result.model)[key]
        units = result.kept[key]
        assert narrow.num_units == len(units)
        assert torch.equal(narrow.raw_a, gate.raw_a[units])
        if narrow.num_units > int(gate.keep().sum()):
            assert result.reasons[key]
    compacted = bp.compact(result.model, inputs)
    assert difference(compacted.model, model, inputs) <= 1e-5
    whole, small = (each.certificate.after.parameters for each in (bp.compact(model, inputs), compacted))
    assert small <= 1.1 * whole  # A gate keeps two units at least, of which one may be a pruned one behind a norm.


@pytest.mark.parametrize("name", sorted(GALLERY.keys() - STAYS))
def test_in_a_file_and_back(name, tmp_path):
    model, inputs = gated(name)
    small = bp.narrow(model, inputs).model
    bp.save(small, tmp_path / "small.safetensors")
    again = bp.load(tmp_path / "small.safetensors", into=GALLERY[name].build().eval())
    assert difference(again, small, inputs) == 0.0
    assert [name for name, _ in again.named_modules()] == [name for name, _ in small.named_modules()]
    for key, gate in bp.gates(small).items():
        loaded = bp.gates(again)[key]
        assert loaded.noise_width == gate.noise_width
        assert (loaded.noise_columns is None) == (gate.noise_columns is None)
        assert gate.noise_columns is None or torch.equal(loaded.noise_columns, gate.noise_columns)
    bp.save(again, tmp_path / "again.safetensors")
    assert difference(bp.load(tmp_path / "again.safetensors", into=small), small, inputs) == 0.0


@pytest.mark.parametrize("method", METHODS)
def test_every_method_is_trained_on(method):
    model = pruned(perceptron(), method, share=0.0 if method == "cd" else 0.5).train()
    x, y = torch.randn(16, 6), torch.randint(0, 3, (16,))
    small = bp.narrow(model).model
    assert small.training
    assert parameters(small) < parameters(model) or method == "cd"
    optimizer = torch.optim.Adam(bp.param_groups(small, lr=1e-2, gate_lr=1e-2))
    before = F.cross_entropy(small.eval()(x), y).item()
    for _ in range(30):
        loss = bp.negative_elbo(F.cross_entropy(small.train()(x), y), small, n_data=1000)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert F.cross_entropy(small.eval()(x), y).item() < before
    assert bp.compact(small, x).max_rel_error <= 1e-5


@pytest.mark.parametrize("method", ["bb", "dbb", "l0", "gd"])
def test_draws_are_of_the_same_distribution(method):
    """Pruned units let next to nothing through; those of VIB and SBP let noise through, which goes with them."""
    model, x = pruned(perceptron(), method), torch.randn(4, 6)
    small = bp.narrow(model).model
    torch.manual_seed(0)
    whole, narrow = (bp.uncertainty(each, x, samples=2000, activation=None) for each in (model, small))
    torch.testing.assert_close(narrow.mean, whole.mean, atol=0.02, rtol=0.0)
    torch.testing.assert_close(narrow.std, whole.std, atol=0.02, rtol=0.05)


def test_input_dependent_gates_afterwards(tmp_path):
    model, inputs = gated("lenet5")
    first = bp.make_dependent(bp.narrow(model, inputs).model).eval()
    bp.save(first, tmp_path / "first.safetensors")
    assert difference(bp.load(tmp_path / "first.safetensors", into=GALLERY["lenet5"].build()), first, inputs) == 0.0
    second = bp.narrow(bp.make_dependent(model).eval(), inputs).model
    assert difference(first, second, inputs) <= 1e-5
    assert bp.AdaptiveModel(first, inputs[0], cache=None)(inputs[0]).shape == (inputs[0].shape[0], 10)


@pytest.mark.parametrize("name", ["mlp", "lenet5", "vgg", "resnet_basic", "transformer_encoder", "unet"])
def test_again_and_again(name):
    model, inputs = gated(name, 0.2)
    small = bp.narrow(model, inputs).model
    for seed in (1, 2):
        prune_at_random(small, 0.3, seed)
        before, small = small, bp.narrow(small, inputs).model
        assert difference(small, before, inputs) <= 1e-5
        assert parameters(small) < parameters(before)
        assert bp.compact(small, inputs).max_rel_error <= 1e-5
        if name in ("mlp", "lenet5", "vgg"):
            assert all(gate.num_units == max(int(gate.keep().sum()), 2) for gate in bp.gates(small).values())
    for key, gate in bp.gates(small).items():
        if gate.noise_columns is not None:
            assert gate.noise_width == bp.gates(model)[key].num_units
            assert torch.equal(gate.raw_a.detach() > -20, bp.gates(small)[key].raw_a.detach() > -20)
            assert len(gate.noise_columns.unique()) == gate.num_units


def test_a_layer_that_picks_refuses_other_sizes_as_the_whole_model_does():
    model, inputs = gated("lenet5")
    small = bp.narrow(model, inputs).model
    larger = torch.rand(2, 1, 32, 32)
    for each in (model, small):
        with pytest.raises((RuntimeError, bp.BayespruneError)):
            each(larger)


def test_what_narrow_took_out_is_not_missed_by_compact(recwarn):
    model = bp.narrow(pruned(perceptron())).model
    bp.compact(model, torch.randn(4, 6))
    assert not [each for each in recwarn if issubclass(each.category, bp.BayespruneWarning)]


def test_copies_are_independent():
    model, inputs = gated("lenet5")
    small = bp.narrow(model, inputs).model
    copied = copy.deepcopy(small)
    with torch.no_grad():
        for parameter in small.parameters():
            parameter.zero_()
    assert difference(copied, model, inputs) <= 1e-5


def test_nothing_pruned_is_a_copy():
    model = bp.sparsify(perceptron(), "bb")
    result = bp.narrow(model)
    assert result.model is not model
    assert not result.reasons
    assert [len(units) for units in result.kept.values()] == [12, 8] or [len(units) for units in result.kept.values()] == [6, 12, 8]
    assert result.max_rel_error == 0.0


def test_everything_pruned_leaves_two_and_says_so():
    with pytest.warns(bp.BayespruneWarning, match="all units of"):
        result = bp.narrow(pruned(perceptron(), share=1.0))
    assert {len(units) for units in result.kept.values()} == {2}
    assert result.reasons.keys() == result.kept.keys()
    assert "two units at least" in str(result)


def test_a_gate_before_a_norm_keeps_its_units_and_says_why():
    model, inputs = gated("vgg", before_norm=True)
    result = bp.narrow(model, inputs)
    assert "constant" in result.reasons["features.block1.conv.output_gate"]
    assert "constant" in str(result)


@pytest.mark.parametrize("name", ["lenet_500_300", "lenet5", "vgg"])
def test_the_papers_cost_is_that_of_the_narrower_network(name):
    model, inputs = gated(name)
    small = bp.narrow(model, inputs).model
    assert bp.cost(small, inputs[0]).paper.flops < bp.cost(model, inputs[0]).paper.flops / 2
    before, after = bp.summary(model).cost, bp.summary(small).cost
    assert 1.0 <= after.speedup < 1.2 < before.speedup


def test_keyword_arguments_and_results_in_records():
    class Named(nn.Module):
        def __init__(self):
            super().__init__()
            self.body = perceptron()

        def forward(self, features, scale=1.0):
            return {"logits": self.body(features) * scale, "count": 3}

    inputs = {"features": torch.randn(2, 6)}
    model = prune_at_random(bp.sparsify(Named(), "bb", example_inputs=inputs), 0.5)
    small = bp.narrow(model, inputs).model
    assert parameters(small) < parameters(model)
    assert difference(small, model, inputs) <= 1e-5


class Tied(nn.Module):
    """Has a weight that another layer, which the forward does not come by, has too."""

    def __init__(self):
        super().__init__()
        self.a, self.b, self.c, self.other = nn.Linear(6, 12), nn.Linear(12, 12), nn.Linear(12, 3), nn.Linear(12, 12)
        self.other.weight = self.b.weight

    def forward(self, x):
        return self.c(torch.relu(self.b(torch.relu(self.a(x)))))


def test_weights_that_another_layer_has_too_stay_whole():
    torch.manual_seed(0)
    model = prune_at_random(bp.sparsify(Tied(), "bb", example_inputs=torch.randn(2, 6)), 0.5)
    result = bp.narrow(model, torch.randn(2, 6))
    assert result.model.other.weight is result.model.b.weight
    assert result.model.b.weight.shape == (12, 12)
    assert any("also used elsewhere" in reason for reason in result.reasons.values())
    assert parameters(result.model) < parameters(model)


class WithAWay(nn.Module):
    """Goes by a layer only if asked."""

    def __init__(self):
        super().__init__()
        self.a, self.b, self.c = nn.Linear(6, 12), nn.Linear(12, 12), nn.Linear(12, 3)

    def forward(self, x, deep=False):
        x = torch.relu(self.a(x))
        return self.c(torch.relu(self.b(x)) if deep else x)


def test_a_gate_that_the_example_does_not_reach_keeps_its_units():
    torch.manual_seed(0)
    x = torch.randn(2, 6)
    model = prune_at_random(bp.sparsify(WithAWay(), "bb", example_inputs=(x, True)), 0.5)
    result = bp.narrow(model, (x, False))
    assert "does not come by it" in result.reasons["b.input_gate"]
    assert difference(result.model, model, (x, False)) <= 1e-5


class Counting(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.calls = perceptron(), 0
        self.register_buffer("seen", torch.tensor(0))

    def forward(self, x):
        self.calls += 1
        self.seen += 1
        return self.body(x)


def test_what_the_model_writes_into_itself_is_as_it_was():
    x = torch.randn(2, 6)
    model = prune_at_random(bp.sparsify(Counting(), "bb", example_inputs=x), 0.5)
    small = bp.narrow(model, x).model
    assert (model.calls, int(model.seen)) == (small.calls, int(small.seen)) == (0, 0)


class Masked(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = perceptron()

    def forward(self, x):
        return self.body(x).masked_fill(torch.tensor([False, True, False]), -torch.inf)


def test_infinite_scores_are_numbers():
    x = torch.randn(2, 6)
    model = prune_at_random(bp.sparsify(Masked(), "bb", example_inputs=x), 0.5)
    result = bp.narrow(model, x)
    assert parameters(result.model) < parameters(model)
    assert difference(result.model, model, x) <= 1e-5


class Remembering(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = perceptron()

    def forward(self, x):
        if self.training:
            self.last = x * self.body[0].weight.sum()
        return self.body(x)


def test_a_model_that_cannot_be_copied():
    x = torch.randn(2, 6)
    model = prune_at_random(bp.sparsify(Remembering(), "bb", example_inputs=x), 0.5).train()
    model(x)
    with pytest.raises(bp.BayespruneError, match="cannot be copied"):
        bp.narrow(model, x)


def test_weights_keep_the_order_in_which_they_lie():
    model, inputs = gated("lenet5")
    small = bp.narrow(model.to(memory_format=torch.channels_last), inputs).model
    assert small.conv2.weight.is_contiguous(memory_format=torch.channels_last)
    assert not small.conv2.weight.is_contiguous()
    assert bp.narrow(model.to(memory_format=torch.contiguous_format), inputs).model.conv2.weight.is_contiguous()


def test_a_layer_that_picks_is_called_as_one_with_a_gate():
    model, inputs = gated("lenet5")
    layer = bp.narrow(model, inputs).model.fc1
    assert f"of {layer.input_pick.arriving}" in repr(layer)
    with pytest.raises(bp.BayespruneError, match="positional argument"):
        layer(input=torch.randn(2, layer.input_pick.arriving))
    with pytest.raises(bp.BayespruneError, match="picks from"):
        layer(torch.tensor(1.0))


def test_refusals():
    model = bp.sparsify(perceptron(), "bb")
    with pytest.raises(bp.BayespruneError, match=r"narrow takes an nn\.Module"):
        bp.narrow([model])
    with pytest.raises(bp.BayespruneError, match="no gates"):
        bp.narrow(perceptron())
    with pytest.raises(bp.BayespruneError, match="was given an input of shape"):
        bp.narrow(model, torch.randn(2, 5))
    with torch.no_grad():
        model[0].weight.fill_(float("nan"))
    with pytest.raises(bp.BayespruneError, match="no number"):
        bp.narrow(model)


def test_a_file_of_a_narrower_model_is_for_its_own_model(tmp_path):
    small = bp.narrow(pruned(perceptron())).model
    bp.save(small, tmp_path / "small.safetensors")
    smaller = nn.Sequential(nn.Linear(6, 4), nn.ReLU(), nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
    with pytest.raises(bp.BayespruneError, match="saved from another model"):
        bp.load(tmp_path / "small.safetensors", into=smaller)
    other = nn.Sequential(nn.Linear(6, 12), nn.Tanh(), nn.BatchNorm1d(12), nn.ReLU(), nn.Linear(12, 3))
    with pytest.raises(bp.BayespruneError, match="saved from another model"):
        bp.load(tmp_path / "small.safetensors", into=other)
