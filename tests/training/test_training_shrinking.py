"""Models that shrink while they are trained: what they learn, what is stored, what is taken up again."""

import copy

import pytest
import torch
import torch.nn.functional as F
from fleets import model, nothing, source
from masking import prune_units

import bayesprune as bp
from bayesprune.gates import gates
from bayesprune.models.dropout import KeyedDropout
from bayesprune.training.evaluation import evaluate, evaluate_members, kept_units
from bayesprune.training.recipes import StageRecipe
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
