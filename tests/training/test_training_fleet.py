"""Models trained side by side: each is what it would be alone."""

import copy
import math

import pytest
import torch
import torch.nn.functional as F
from fleets import NETWORKS, convolutional, dense, model, nothing, source
from scipy.stats import ks_2samp

from bayesprune.errors import InputError
from bayesprune.gates import METHODS, gates
from bayesprune.training.evaluation import evaluate, evaluate_members, kept_units
from bayesprune.training.members import Members
from bayesprune.training.recipes import StageRecipe
from bayesprune.training.trainer import StageTrainer

SEEDS, SCALES = (3, 1, 8), (1.0, 0.2, 5.0)
RECIPE = StageRecipe(epochs=3, lr=1e-2)


def trainer(models, members=range(3), **options):
    chosen = {"seeds": [SEEDS[e] for e in members], "kl_scales": [SCALES[e] for e in members], **options}
    return StageTrainer(models, source(), RECIPE, F.cross_entropy, **chosen)


def close(left, right, tolerance=1e-5):
    expected = right.state_dict()
    for name, tensor in left.state_dict().items():
        assert torch.allclose(tensor, expected[name], rtol=tolerance, atol=tolerance), name


@pytest.mark.parametrize("method", [None, *METHODS])
@pytest.mark.parametrize("network", NETWORKS)
def test_a_member_is_the_model_trained_alone(network, method):
    """After one step, whose Adam gives the direction of every gradient, and its batch statistics."""
    models = [model(network, method, seed) for seed in range(3)]
    single = copy.deepcopy(models)
    fleet = trainer(models)
    batch = next(iter(fleet.source.epoch(fleet.seeds, 0)))
    fleet.first.train()
    losses = fleet.step.losses(*batch)
    fleet.step.update(losses)
    fleet.members.write_back()
    for member, own in enumerate(single):
        alone = trainer([own], [member])
        own.train()
        alone.step.keys.attach()
        inputs, targets = next(iter(alone.source.epoch(alone.seeds, 0)))
        assert torch.equal(inputs[0], batch[0][member])
        loss = alone.step.losses(inputs, targets)
        assert torch.equal(fleet.step.keys.current[member], alone.step.keys.current[0])
        torch.testing.assert_close(loss[0], losses[member], rtol=1e-5, atol=1e-6)
        alone.step.update(loss)
        close(models[member], own)


@pytest.mark.parametrize("method", ["bb", "l0"])
def test_whole_stages_agree(method):
    models = [model("dense", method, seed) for seed in range(3)]
    single = copy.deepcopy(models)
    fleet = trainer(models)
    losses = [fleet.train_epoch(nothing) for _ in range(3)]
    fleet.members.write_back()
    for member, own in enumerate(single):
        alone = trainer([own], [member])
        assert [alone.train_epoch(nothing)[0] for _ in range(3)] == pytest.approx([each[member] for each in losses], rel=1e-3)
        close(models[member], own, 1e-2)


def test_members_do_not_depend_on_how_they_are_put_together():
    models = [model("dense", "bb", seed) for seed in range(3)]
    again = copy.deepcopy(models)
    whole, part = trainer(models), trainer(again[1:], [1, 2])
    for each in (whole, part):
        each.train_epoch(nothing)
        each.members.write_back()
    close(models[1], again[1], 1e-6)
    close(models[2], again[2], 1e-6)


def test_each_member_has_its_own_learning_rate():
    models = [model("dense", "bb", seed) for seed in range(3)]
    single = copy.deepcopy(models)
    fleet = trainer(models, rate_factors=[1.0, 0.5, 2.0])
    fleet.train_epoch(nothing)
    fleet.members.write_back()
    for member, factor in enumerate((1.0, 0.5, 2.0)):
        alone = StageTrainer(
            [single[member]], source(), StageRecipe(epochs=3, lr=1e-2 * factor), F.cross_entropy,
            seeds=[SEEDS[member]], kl_scales=[SCALES[member]],
        )  # fmt: skip
        alone.train_epoch(nothing)
        close(models[member], single[member], 1e-4)


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_member_that_diverges_is_set_aside(value):
    models = [model("convolutional", "bb", seed) for seed in range(3)]
    healthy = copy.deepcopy(models)
    with torch.no_grad():
        models[1][0].weight[0, 0, 0, 0] = value
    fleet, reference = trainer(models), trainer(healthy)
    for _ in range(2):
        fleet.train_epoch(nothing)
        reference.train_epoch(nothing)
    assert list(fleet.diverged) == [1]
    assert "0.weight" in fleet.diverged[1]
    assert "epoch 1, step 1" in fleet.diverged[1]
    fleet.members.write_back(), reference.members.write_back()
    for member in (0, 2):
        close(models[member], healthy[member], 0.0)


def test_taken_up_to_the_same_bits():
    through, stopped = (trainer([model("convolutional", "dbb", seed) for seed in range(3)]) for _ in range(2))
    for _ in range(3):
        through.train_epoch(nothing)
    stopped.train_epoch(nothing)
    state = {name: tensor.detach().clone() for name, tensor in stopped.state().items()}
    again = trainer([model("convolutional", "dbb", seed + 7) for seed in range(3)])
    again.load_state(state, 1)
    for _ in range(2):
        again.train_epoch(nothing)
    expected = through.state()
    assert again.state().keys() == expected.keys()
    assert all(torch.equal(tensor, expected[name]) for name, tensor in again.state().items())


@pytest.mark.parametrize("method", [None, "bb", "dbb", "sbp"])
def test_evaluation_side_by_side(method):
    models = [model("convolutional", method, seed) for seed in range(3)]
    for seed, each in enumerate(models):
        for gate in gates(each).values():
            with torch.no_grad():
                for parameter in gate.parameters():
                    parameter.add_(torch.randn(parameter.shape, generator=torch.Generator().manual_seed(seed)))
    members = Members(models)
    found = evaluate_members(members, source(), F.cross_entropy)
    for each, own in zip(found, models, strict=True):
        alone = evaluate(own, source(), F.cross_entropy)
        assert (each.error, each.used) == (alone.error, alone.used)
        assert each.loss == pytest.approx(alone.loss, rel=1e-5)
    assert kept_units(members) == [[int(gate.keep().sum()) for gate in gates(own).values()] for own in models]


def test_models_of_other_shapes_are_refused():
    with pytest.raises(InputError, match="same names and shapes"):
        Members([dense(), convolutional()])
    with pytest.raises(InputError, match="no model"):
        Members([])


def test_members_and_models_alone_end_alike_in_distribution():
    """Thirty of each, of one trade-off and another: the same seeds end at the same place up to rounding, others as far apart as ever."""
    count = 30
    recipe = StageRecipe(epochs=8, lr=3e-2, gate_speed=2.0)

    def stage(models, seeds, scales):
        return StageTrainer(models, source(), recipe, F.cross_entropy, seeds=seeds, kl_scales=scales)

    def outcome(trained):
        while not trained.finished:
            trained.train_epoch(nothing)
        losses = [each.loss for each in evaluate_members(trained.members, trained.source, F.cross_entropy)]
        return list(zip(losses, [sum(units) for units in kept_units(trained.members)], strict=True))

    models = [model("dense", "bb", seed) for seed in range(count)]
    seeds, scales = list(range(100, 100 + count)), [0.02 if seed % 2 else 0.2 for seed in range(count)]
    alone = [outcome(stage([copy.deepcopy(each)], [seed], [scale]))[0] for each, seed, scale in zip(models, seeds, scales, strict=True)]
    others = [
        outcome(stage([copy.deepcopy(each)], [seed + 500], [scale]))[0] for each, seed, scale in zip(models, seeds, scales, strict=True)
    ]
    together = outcome(stage(models, seeds, scales))
    for measure in (0, 1):
        fleet, single, apart = (torch.tensor([float(each[measure]) for each in group]) for group in (together, alone, others))
        difference = fleet - single
        bound = 4 * difference.std() / math.sqrt(count) + 1e-3
        assert abs(float(difference.mean())) <= bound
        assert ks_2samp(fleet.tolist(), apart.tolist()).pvalue > 1e-3
        assert ks_2samp(fleet[::2].tolist(), fleet[1::2].tolist()).pvalue < 1e-3  # It could tell: the trade-offs differ.
        assert float(difference.abs().median()) < 0.5 * float((fleet - apart).abs().median()) + 1e-6
