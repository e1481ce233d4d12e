"""Models that shrink while they are trained: what they learn, what is stored, what is taken up again."""

import copy

import pytest
import torch
import torch.nn.functional as F
from fleets import model, nothing, source
from masking import prune_at_random, prune_units
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import bayesprune as bp
from bayesprune.gates import gates
from bayesprune.models.description import GatePlace
from bayesprune.models.dropout import KeyedDropout
from bayesprune.narrowing.cuts import find_cuts
from bayesprune.narrowing.shrinking import Shrinking
from bayesprune.training.evaluation import evaluate, evaluate_members, kept_units
from bayesprune.training.recipes import StageRecipe
from bayesprune.training.sources import LoaderBatches
from bayesprune.training.trainer import StageTrainer

RECIPE = StageRecipe(epochs=8, lr=3e-2, gate_speed=2.0)
PRUNING = ("bb", "vib")
"""Methods that remove something of these networks in so few epochs."""


def trainer(models, shrink=True, **options):
    count = len(models)
    chosen = {"kl_scales": [0.05] * count, "seeds": [1, 2, 3][:count], **options}
    return StageTrainer(models, source(), RECIPE, F.cross_entropy, shrink=shrink, **chosen)


def finish(stage):
    losses = []
    while not stage.finished:
        losses.append(stage.train_epoch(nothing))
    return losses


@pytest.mark.parametrize("method", PRUNING)
@pytest.mark.parametrize("network", ["dense", "convolutional"])
def test_units_go_and_the_whole_model_comes_back(network, method):
    whole = model(network, method, 0)
    shapes = {name: tensor.shape for name, tensor in whole.state_dict().items()}
    stage = trainer([whole])
    finish(stage)
    assert stage.removals
    widths = [gate.num_units for gate in gates(stage.first).values()]
    assert widths == stage.removals[-1]["left"]
    assert sum(widths) < sum(gate.num_units for gate in gates(whole).values())
    narrow = evaluate_members(stage.members, stage.source, F.cross_entropy)[0]
    (returned,) = stage.write_back()
    assert returned is whole
    assert {name: tensor.shape for name, tensor in whole.state_dict().items()} == shapes
    restored = evaluate(whole, stage.source, F.cross_entropy)
    assert restored.loss == pytest.approx(narrow.loss, rel=1e-4)
    assert restored.used == narrow.used
    assert [int(gate.keep().sum()) for gate in gates(whole).values()] == kept_units(stage.members)[0]
    compacted = bp.compact(whole, torch.rand(2, 1, 8, 8))
    assert compacted.certificate.note == ""


def test_until_something_goes_nothing_differs_and_then_little_does():
    """Pruned units of BB have masks near zero, so what they are taken out of hardly notices."""
    losses, kept = {}, {}
    for shrink in (True, False):
        stage = trainer([model("dense", "bb", 0)], shrink)
        losses[shrink] = [loss for (loss,) in finish(stage)]
        kept[shrink] = kept_units(stage.members)[0]
        if shrink:
            first = stage.removals[0]["epoch"]
    assert losses[True][:first] == losses[False][:first]
    assert kept[True] == pytest.approx(kept[False], abs=2)


def test_without_shrinking_nothing_goes():
    stage = trainer([model("dense", "bb", 0)], shrink=False)
    finish(stage)
    assert stage.removals == []
    assert stage.shrinking is None


@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("network", ["dense", "convolutional"])
@pytest.mark.parametrize("stop", [3, 5, 7])
def test_taken_up_it_goes_on_bit_for_bit(network, count, stop):
    models = [model(network, "bb", seed) for seed in range(count)]
    uninterrupted = trainer(copy.deepcopy(models))
    finish(uninterrupted)
    stopped = trainer(copy.deepcopy(models))
    for _ in range(stop):
        stopped.train_epoch(nothing)
    stored = {name: tensor.clone() for name, tensor in stopped.state().items()}
    again = trainer(copy.deepcopy(models))
    again.load_state(stored, stop)
    finish(again)
    expected = uninterrupted.state()
    found = again.state()
    assert expected.keys() == found.keys()
    for name, tensor in found.items():
        assert torch.equal(tensor, expected[name]), name


def test_a_checkpoint_holds_whole_models():
    whole = model("dense", "bb", 0)
    stage = trainer([whole])
    finish(stage)
    state = stage.state()
    for name, tensor in whole.state_dict().items():
        assert state[f"model/{name}"].shape == tensor.shape
    for name, parameter in whole.named_parameters():
        assert state[f"optimizer/exp_avg/{name}"].shape == parameter.shape


def test_side_by_side_each_model_learns_what_it_learns_alone():
    models = [model("dense", "bb", seed) for seed in range(3)]
    alone = []
    for index, each in enumerate(copy.deepcopy(models)):
        stage = trainer([each], seeds=[index + 1])
        finish(stage)
        alone.append(kept_units(stage.members)[0])
    together = trainer(models)
    finish(together)
    assert together.removals
    for found, expected in zip(kept_units(together.members), alone, strict=True):
        assert found == pytest.approx(expected, abs=2)


def test_units_that_come_back_before_the_end_of_an_epoch_stay():
    stage = trainer([model("dense", "bb", 0)])
    name = list(gates(stage.first))[1]
    gate = gates(stage.first)[name]
    with torch.no_grad():
        gate.raw_a[:4] = -20.0
    stage._look()
    with torch.no_grad():
        gate.raw_a[:2] = 2.0
    stage._shrink()
    assert gates(stage.first)[name].num_units == gate.num_units - 2
    with torch.no_grad():
        gates(stage.first)[name].raw_a[0] = -20.0  # Out of use now, but not when it was looked at.
    stage._look()
    with torch.no_grad():
        gates(stage.first)[name].raw_a[0] = 2.0
    stage._shrink()
    assert gates(stage.first)[name].num_units == gate.num_units - 2


def test_input_dependent_gates_begin_without_what_is_pruned():
    bb = prune_units(model("dense", "bb", 0), {name: [0, 3, 5] for name in gates(model("dense", "bb", 0))})
    stage = trainer([bp.make_dependent(bb)])
    stage.train_epoch(nothing)
    assert stage.removals == [{"epoch": 0, "left": [61, 9]}]
    finish(stage)
    assert len(stage.removals) == 1


@pytest.mark.parametrize("network", ["dense", "convolutional"])
def test_without_what_is_pruned_beforehand_the_rest_learns_the_same(network):
    """The divergence of pruned units is gone from the loss, but no other unit's parameters are in it. Dropout would draw anew."""
    outputs, removals = [], []
    for shrink in (True, False):
        bb = model(network, "bb", 0)
        for layer in bb.modules():
            if isinstance(layer, KeyedDropout):
                layer.p = 0.0
        stage = trainer([bp.make_dependent(prune_units(bb, {name: [0, 3] for name in gates(bb)}))], shrink)
        finish(stage)
        outputs.append(stage.write_back()[0].eval()(torch.rand(5, 1, 8, 8, generator=torch.Generator().manual_seed(1))))
        removals.append(stage.removals)
    assert removals[0]
    assert not removals[1]
    torch.testing.assert_close(outputs[0], outputs[1], rtol=1e-3, atol=1e-3)


def test_everything_pruned_leaves_a_unit_and_training_goes_on():
    whole = model("convolutional", "bb", 0)
    with torch.no_grad():
        for gate in gates(whole).values():
            gate.raw_a.fill_(-20.0)
    stage = trainer([whole])
    finish(stage)
    assert min(gate.num_units for gate in gates(stage.first).values()) >= 1
    assert stage.removals[0]["epoch"] <= 3


def test_a_diverged_member_does_not_widen_the_others():
    models = [model("dense", "bb", seed) for seed in range(3)]
    stage = trainer(models)
    with torch.no_grad():
        stage.members.parameters["1.weight"][1] = float("nan")
    finish(stage)
    assert list(stage.diverged) == [1]
    assert stage.removals
    assert all(torch.isfinite(tensor).all() for each in (models[0], models[2]) for tensor in each.state_dict().values())


class Own(nn.Module):
    """Layers, and a function that calls them."""

    def __init__(self, compute, **layers):
        super().__init__()
        self.compute = compute
        for name, layer in layers.items():
            self.add_module(name, layer)

    def forward(self, x):
        return self.compute(self, x)


def maxout():
    return Own(lambda net, x: net.last(net.first(x).view(-1, 2, 6).amax(1)), first=nn.Linear(16, 12), last=nn.Linear(6, 3))


def maxout_of_channels():
    layers = {"first": nn.Conv2d(3, 16, 3), "second": nn.Conv2d(8, 6, 3), "last": nn.Linear(6, 3)}
    return Own(lambda net, x: net.last(torch.relu(net.second(net.first(x).unflatten(1, (2, 8)).amax(1))).mean((2, 3))), **layers)


def maxout_in_a_sum():
    layers = {"first": nn.Linear(16, 8), "second": nn.Linear(16, 16), "last": nn.Linear(8, 3)}
    return Own(lambda net, x: net.last(torch.relu(net.first(x)) + net.second(x).view(-1, 8, 2).amax(-1)), **layers)


def repeated():
    return Own(lambda net, x: net.last(torch.relu(net.first(x)).repeat_interleave(2, -1)), first=nn.Linear(16, 8), last=nn.Linear(16, 3))


def rotated(x):
    even, odd = x[..., ::2], x[..., 1::2]
    return torch.stack((0.6 * even - 0.8 * odd, 0.8 * even + 0.6 * odd), -1).flatten(-2)


def multi_query(heads=4, joined=-1):
    """Attention with one key and value for all heads; ``joined`` is the width that its code names for the heads together."""

    def compute(net, x):
        q, k, v = (part(x).unflatten(-1, (count, -1)).transpose(1, 2) for part, count in ((net.q, heads), (net.k, 1), (net.v, 1)))
        k, v = rotated(k).expand(-1, heads, -1, -1), v.repeat_interleave(heads, 1)
        y = F.scaled_dot_product_attention(rotated(q), k, v)
        return net.last(y.transpose(1, 2).reshape(*x.shape[:2], joined)).mean(1)

    return Own(compute, q=nn.Linear(32, 32), k=nn.Linear(32, 32 // heads), v=nn.Linear(32, 32 // heads), last=nn.Linear(32, 3))


def used(models):
    return {name: torch.stack([gates(model)[name].keep() for model in models]) for name in gates(models[0])}


def gated_own(build, inputs, share=0.5, seed=0):
    torch.manual_seed(0)
    return prune_at_random(bp.sparsify(build().eval(), "bb", example_inputs=inputs), share, seed)


@pytest.mark.parametrize("share", [0.3, 0.5, 1.0])
@pytest.mark.parametrize(
    ("build", "shape", "staying"),
    [
        (maxout, (16,), {"first.output_gate"}),
        (maxout_of_channels, (3, 8, 8), {"first.output_gate"}),
        (maxout_in_a_sum, (16,), {"first.output_gate", "second.output_gate"}),
        (repeated, (16,), set()),
        (multi_query, (5, 32), {"k.output_gate"}),  # Its code takes every second feature of what is there.
    ],
)
def test_units_that_views_and_repetitions_put_together(build, shape, staying, share):
    torch.manual_seed(0)
    inputs = torch.randn(36, *shape)
    whole = gated_own(build, inputs[:4], share)
    loader = DataLoader(TensorDataset(inputs, torch.randint(0, 3, (36,))), batch_size=12)
    options = {"kl_scales": [0.05], "seeds": [1], "shrink": True}
    stage = StageTrainer([whole], LoaderBatches(loader, "cpu"), StageRecipe(epochs=2, lr=1e-2), F.cross_entropy, **options)
    finish(stage)
    assert stage.shrinking.staying.keys() == staying
    assert stage.removals
    stage.write_back()
    with torch.no_grad():
        expected, found = whole.eval()(inputs), stage.shrinking.narrow[0].model.eval()(inputs)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    if share < 1:
        torch.testing.assert_close(bp.compact(whole, inputs[:4]).model(inputs), expected, rtol=1e-4, atol=1e-5)


def test_a_unit_whose_zero_takes_part_in_a_maximum_stays():
    inputs = torch.randn(4, 16)
    cuts = find_cuts(gated_own(maxout, inputs), inputs)
    assert cuts.reasons == {"first.output_gate": "no layer has channels that one of its units alone decides on"}


@pytest.mark.parametrize("count", [1, 3])
def test_heads_are_picked_from_features_that_are_fewer(count):
    inputs = torch.randn(4, 5, 32)
    models = [gated_own(multi_query, inputs, 0.0) for _ in range(count)]
    for index, each in enumerate(models):
        gates(each)["v.output_gate"].prune(torch.tensor([index]))
        gates(each)["last.input_gate"].prune(torch.tensor([index, 3]))
    shrinking = Shrinking(models, inputs)
    candidate = shrinking.candidate(used(models))
    assert not shrinking.staying
    for whole, narrow in zip(models, candidate.narrow, strict=True):
        assert [gate.num_units for gate in gates(narrow.model).values()][-2:] == [7, 2]
        assert narrow.model.last.in_features == 2 * 7
        with torch.no_grad():
            torch.testing.assert_close(narrow.model.eval()(inputs), whole(inputs), rtol=1e-5, atol=1e-6)


def test_pruned_units_that_are_kept_stand_where_they_stood():
    """Zeros hide which units are added to which; those that come back would show it."""
    inputs = torch.randn(4, 16)
    whole = gated_own(maxout_in_a_sum, inputs, 0.0)
    gates(whole)["first.output_gate"].prune(torch.arange(6))
    gates(whole)["second.output_gate"].prune(torch.arange(8))
    shrinking = Shrinking([whole], inputs)
    assert shrinking.candidate(used([whole])) is None
    assert shrinking.staying.keys() == {"first.output_gate", "second.output_gate"}


class Uneven(nn.Sequential):
    """States units of different sizes."""

    input_shape, gate_defaults = (6,), {}

    def gate_places(self, before_norm=False):
        return (GatePlace("2", "input", 4, "2", "inputs", -1, (0, 0, 0, 1, 1, 2, 2, 3)),)

    def layers(self):
        return ()


def test_models_side_by_side_stay_of_one_size():
    models = [bp.sparsify(Uneven(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3)), "bb").eval() for _ in range(2)]
    for index, each in enumerate(models):
        gates(each)["2.input_gate"].prune(torch.tensor([index]))
    assert Shrinking(models[:1], torch.rand(2, 6)).candidate(used(models[:1])) is not None
    shrinking = Shrinking(models, torch.rand(2, 6))
    assert shrinking.candidate(used(models)) is None
    assert "different sizes" in shrinking.staying["2.input_gate"]


@pytest.mark.parametrize(
    ("build", "shape", "left", "staying"),
    [
        (maxout, (16,), [2, 12], {"first.output_gate": "no layer has channels that one of its units alone decides on"}),
        (lambda: multi_query(4, 32), (6, 32), None, {"v.output_gate": "computes something else, or nothing"}),
    ],
    ids=["maxout", "multi_query"],
)
def test_fit_goes_through(build, shape, left, staying):
    torch.manual_seed(0)
    inputs = torch.randn(36, *shape)
    loader = DataLoader(TensorDataset(inputs, torch.randint(0, 3, (36,))), batch_size=12)
    fitted = bp.fit(build(), loader, method="bb", epochs=3, pretrain=False, progress=False, keep_init=-9.0)
    (stage,) = fitted.stages
    assert left is None or stage["removals"][-1]["left"] == left
    assert all(reason in stage["staying"][name] for name, reason in staying.items())
    with pytest.warns(bp.BayespruneWarning, match="no longer depend"):
        compacted = bp.compact(fitted.model, inputs[:4])
    with torch.no_grad():
        torch.testing.assert_close(compacted.model(inputs), fitted.model.eval()(inputs), rtol=1e-4, atol=1e-5)
