"""Narrower models compute what the whole ones do, on any model, and find their way back."""

import pytest
import torch
from gallery import GALLERY
from masking import prune_at_random
from torch import nn
from torch.utils._pytree import tree_leaves

import bayesprune as bp
from bayesprune.gates import METHODS, gates
from bayesprune.narrowing.copies import narrowed
from bayesprune.narrowing.cuts import find_cuts
from bayesprune.narrowing.shrinking import Shrinking

ONE_TENSOR = [name for name, example in GALLERY.items() if len(example.inputs()) == 1]
CUT = {
    "lenet_500_300": 3, "lenet5": 4, "vgg": 9, "resnet_basic": 3, "resnet_bottleneck": 7, "mobilenet_v2": 3, "densenet": 4, "unet": 8,
    "vit_own": 2, "mlp": 3, "mlp_functional": 3, "squeeze_excitation": 4, "conv1d": 4, "conv3d": 3, "transposed_autoencoder": 4,
    "static_view": 3, "shared_layer": 1, "functional_control_flow": 3, "transformer_encoder": 3, "swiglu": 3, "lstm_tail": 1,
}  # fmt: skip
"""How many gates of a model can at least lose units while it is trained."""


def used(models):
    return {name: torch.stack([gates(model)[name].keep() for model in models]) for name in gates(models[0])}


def gated(name, share, seed=0, **options):
    torch.manual_seed(0)
    model = GALLERY[name].build().eval()
    inputs = GALLERY[name].inputs()
    return prune_at_random(bp.sparsify(model, "bb", example_inputs=inputs, **options), share, seed), inputs[0]


def check(model, inputs, at_least=0):
    shrinking = Shrinking([model], inputs)
    candidate = shrinking.candidate(used([model]))
    cuts = shrinking.cuts
    going = cuts.by_gate.keys() - shrinking.staying.keys()
    assert going | shrinking.staying.keys() == gates(model).keys()
    assert len(going) >= at_least
    if candidate is None:
        assert shrinking.staying
        return
    narrow = candidate.narrow[0].model.eval()
    with torch.no_grad():
        outputs = zip(tree_leaves(model(inputs)), tree_leaves(narrow(inputs)), strict=True)
    for expected, found in outputs:
        assert (found - expected).abs().max() <= 1e-5 * expected.abs().max()
    size, before = (sum(parameter.numel() for parameter in each.parameters()) for each in (narrow, model))
    assert size < before
    assert Shrinking([model], inputs).candidate(used([model]), pays=lambda _: False) is None
    for name in going:
        assert gates(narrow)[name].num_units <= max(int(gates(model)[name].keep().sum()), 2)


@pytest.mark.parametrize("name", ONE_TENSOR)
def test_the_gallery(name):
    check(*gated(name, 0.5), at_least=CUT.get(name, 0))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("share", [0.1, 0.9, 1.0])
@pytest.mark.parametrize("before_norm", [False, True], ids=["after", "before"])
@pytest.mark.parametrize("name", ONE_TENSOR)
def test_the_gallery_at_length(name, before_norm, share, seed):
    model, inputs = gated(name, share, seed, before_norm=before_norm)
    if any(not bool(gate.keep().all()) for gate in gates(model).values()):
        check(model, inputs)


def test_a_gate_before_a_norm_keeps_its_units():
    """Behind the norm a pruned channel is a bias, which is trained."""
    model, inputs = gated("vgg", 0.5, before_norm=True)
    cuts = find_cuts(model, inputs)
    assert "features.block1.conv.output_gate" in cuts.reasons
    assert "constant" in cuts.reasons["features.block1.conv.output_gate"]


def test_flattened_channels_belong_to_their_map():
    model, inputs = gated("lenet5", 0.0)
    cuts = {name: {(cut.layer, cut.side): cut.owner for cut in owned} for name, owned in find_cuts(model, inputs).by_gate.items()}
    per_channel = model.fc1.in_features // model.conv2.out_channels
    owner = cuts["conv2.output_gate"]["fc1", "inputs"]
    assert torch.equal(owner, torch.arange(model.conv2.out_channels).repeat_interleave(per_channel))
    assert torch.equal(cuts["fc1.input_gate"]["fc1", "inputs"], torch.arange(model.fc1.in_features))


def test_gates_in_a_row_lose_the_same_units():
    torch.manual_seed(0)
    model = bp.sparsify(nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3)), "bb")
    first = next(iter(gates(model)))
    cuts = find_cuts(model, torch.rand(2, 6))
    assert cuts.gathers(first)
    assert cuts.groups()[-1] == [first]


def test_what_the_narrow_model_learned_comes_back():
    model, inputs = gated("lenet5", 0.6)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    cuts = find_cuts(model, inputs)
    kept = {name: gate.keep().nonzero().flatten() for name, gate in gates(model).items()}
    present = torch.zeros(model.conv2.out_channels, dtype=torch.bool)
    present[kept["conv2.output_gate"]] = True
    owner = torch.arange(model.conv2.out_channels).repeat_interleave(model.fc1.in_features // model.conv2.out_channels)
    kept["fc1.input_gate"] = (gates(model)["fc1.input_gate"].keep() & present[owner]).nonzero().flatten()
    narrow = narrowed(model, cuts, kept)
    with torch.no_grad():
        for parameter in narrow.model.parameters():
            parameter += 1.0
    narrow.write_to(model)
    for name, tensor in model.state_dict().items():
        part = dict(narrow.model.named_parameters())[name]
        assert torch.equal(narrow.part_of(name, tensor), part)
        assert int((tensor != before[name]).sum()) == part.numel()
    with torch.no_grad():
        expected, found = model(inputs), narrow.model.eval()(inputs)
    assert (found - expected).abs().max() <= 1e-5 * expected.abs().max()


@pytest.mark.parametrize("method", METHODS)
def test_every_method_draws_for_a_unit_what_it_drew_before(method):
    torch.manual_seed(0)
    plain = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))
    model = bp.sparsify(plain, "bb" if method == "dbb" else method)
    model = bp.make_dependent(model) if method == "dbb" else model
    cuts = find_cuts(model, torch.rand(2, 6))
    kept = {name: torch.tensor([1, 2, 4]) for name in gates(model)}
    small = narrowed(model, cuts, kept).model
    for name, gate in gates(model).items():
        narrow = gates(small)[name]
        assert narrow.num_units == 3
        key = torch.arange(2 * gate.noise_draws, dtype=torch.int32).reshape(-1, 2) + 7
        gate.noise_key = narrow.noise_key = key
        x = torch.randn(5, gate.num_units)
        drawn = gate.train().sample_mask(x)
        assert torch.allclose(narrow.train().sample_mask(x[:, kept[name]]), drawn[..., kept[name]], atol=1e-6)
        assert narrow.kl().item() < gate.kl().item() or method in ("gd", "cd")


def test_side_by_side_models_become_as_narrow_as_the_widest():
    models, inputs = zip(*(gated("lenet5", share, seed) for seed, share in enumerate((0.3, 0.6, 0.9))), strict=True)
    shrinking = Shrinking(models, inputs[0])
    candidate = shrinking.candidate(used(models))
    assert candidate is not None
    shapes = [{name: tensor.shape for name, tensor in narrow.model.state_dict().items()} for narrow in candidate.narrow]
    assert shapes[0] == shapes[1] == shapes[2]
    most = {name: int(alive.sum(dim=1).max()) for name, alive in used(models).items()}
    for name, units in candidate.kept[0].items():
        assert len(units) <= max(most[name], 2)
    for model, narrow in zip(models, candidate.narrow, strict=True):
        with torch.no_grad():
            expected, found = model(inputs[0]), narrow.model.eval()(inputs[0])
        assert (found - expected).abs().max() <= 1e-5 * expected.abs().max()


def test_widths_can_be_aligned():
    model, inputs = gated("lenet5", 0.7)
    shrinking = Shrinking([model], inputs, alignment=8)
    candidate = shrinking.candidate(used([model]))
    assert candidate is not None
    for name, units in candidate.kept[0].items():
        whole = gates(model)[name].num_units
        assert len(units) % 8 == 0 or len(units) == whole or name == "fc1.input_gate"


class Stubborn(nn.Module):
    """Insists on a width."""

    def __init__(self):
        super().__init__()
        self.first, self.second, self.third = nn.Linear(6, 8), nn.Linear(8, 7), nn.Linear(7, 3)

    def forward(self, x):
        x = torch.relu(self.first(x)).view(-1, 8)
        return self.third(torch.relu(self.second(x)))


def test_a_gate_that_the_model_insists_on_keeps_its_units_and_says_why():
    torch.manual_seed(0)
    inputs = torch.rand(2, 6)
    model = prune_at_random(bp.sparsify(Stubborn(), "bb", example_inputs=inputs), 0.5)
    shrinking = Shrinking([model], inputs)
    candidate = shrinking.candidate(used([model]))
    assert candidate is not None
    assert shrinking.staying.keys() == {"second.input_gate"}
    assert gates(candidate.narrow[0].model)["second.input_gate"].num_units == 8
    assert gates(candidate.narrow[0].model)["third.input_gate"].num_units < 7


class OnlyInTraining(nn.Module):
    """Has a second head while it is trained."""

    def __init__(self):
        super().__init__()
        self.first, self.second, self.third, self.head = nn.Linear(6, 8), nn.Linear(8, 7), nn.Linear(7, 3), nn.Linear(8, 3)

    def forward(self, x):
        x = torch.relu(self.first(x))
        outputs = self.third(torch.relu(self.second(x)))
        return outputs + self.head(x) if self.training else outputs


def test_what_happens_in_training_only_counts_too():
    torch.manual_seed(0)
    inputs = torch.rand(2, 6)
    model = prune_at_random(bp.sparsify(OnlyInTraining(), "bb", example_inputs=inputs), 0.5)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    shrinking = Shrinking([model], inputs)
    candidate = shrinking.candidate(used([model]))
    assert candidate is not None
    assert shrinking.staying.keys() == {"second.input_gate"}
    assert candidate.narrow[0].model.train()(inputs).shape == (2, 3)
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())


class Aliased(nn.Module):
    """Has names for its layers twice over."""

    def __init__(self, head_first):
        super().__init__()
        head = nn.Linear(7, 3)
        if head_first:
            self.head = head
        self.net = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8, affine=False), nn.ReLU(), nn.Linear(8, 7), nn.ReLU(), head)
        if not head_first:
            self.head = head

    def forward(self, x):
        return self.net(x)


@pytest.mark.parametrize("head_first", [True, False])
def test_layers_with_two_names(head_first):
    torch.manual_seed(0)
    inputs = torch.rand(4, 6)
    model = prune_at_random(bp.sparsify(Aliased(head_first), "bb", example_inputs=inputs), 0.5)
    shrinking = Shrinking([model], inputs)
    candidate = shrinking.candidate(used([model]))
    assert candidate is not None
    assert not shrinking.staying
    shrinking.adopt(candidate)
    narrow = candidate.narrow[0].model
    assert narrow.head is narrow.net[-1]
    with torch.no_grad():
        narrow.head.weight.fill_(5.0)
    shrinking.write_back()
    assert int((model.head.weight == 5.0).sum()) == narrow.head.weight.numel()
    with torch.no_grad():
        assert torch.allclose(model.eval()(inputs), narrow.eval()(inputs), rtol=1e-4, atol=1e-5)


def test_a_gate_that_fails_later_keeps_the_units_that_it_has(monkeypatch):
    model, inputs = gated("mlp", 0.3)
    shrinking = Shrinking([model], inputs)
    first = shrinking.candidate(used([model]))
    shrinking.adopt(first)
    widths = shrinking.widths
    same, late = Shrinking._is_same, list(gates(model))[1]
    fewer = len(first.kept[0][late])
    monkeypatch.setattr(
        Shrinking,
        "_is_same",
        lambda self, whole, narrow: (
            gates(narrow.model)[late].num_units in (fewer, gates(whole)[late].num_units) and same(self, whole, narrow)
        ),
    )
    with torch.no_grad():
        for gate in gates(model).values():
            gate.prune(gate.keep().nonzero().flatten()[:2])
    alive = {name: gate.keep()[first.kept[0][name]].unsqueeze(0) for name, gate in gates(model).items()}
    second = shrinking.candidate(alive)
    shrinking.adopt(second)
    assert list(shrinking.staying) == [late]
    assert shrinking.widths[1] == widths[1]
    assert [len(units) for units in shrinking.kept[0].values()] == shrinking.widths


class Residual(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.branch, self.last = nn.Linear(6, 8), nn.Linear(8, 8), nn.Linear(8, 3)

    def forward(self, x):
        x = torch.relu(self.first(x))
        return self.last(x + torch.relu(self.branch(x)))


def test_a_single_unit_is_not_broadcast():
    torch.manual_seed(0)
    inputs = torch.rand(2, 6)
    model = bp.sparsify(Residual(), "bb", example_inputs=inputs)
    for gate in gates(model).values():
        gate.prune(torch.arange(1, gate.num_units))
    with torch.no_grad():
        model.branch.weight.mul_(1e-5)  # What a unit adds elsewhere by mistake would pass for rounding.
        model.branch.bias.mul_(1e-5)
    candidate = Shrinking([model], inputs).candidate(used([model]))
    assert candidate is not None
    assert min(len(units) for units in candidate.kept[0].values()) == 2
    with torch.no_grad():
        expected, found = model.eval()(inputs), candidate.narrow[0].model.eval()(inputs)
    assert (found - expected).abs().max() <= 1e-7 * expected.abs().max()
