"""Predictions with two draws of the masks are made to agree."""

import dataclasses

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from bayesprune.attach import sparsify
from bayesprune.data import Split, TensorBatches
from bayesprune.errors import InputError
from bayesprune.gates import gates
from bayesprune.models.lenet import LeNet500300
from bayesprune.objective import disagreement
from bayesprune.training.plan import make_plan
from bayesprune.training.recipes import CONSISTENT, PAPER, StageRecipe
from bayesprune.training.sources import LoaderBatches
from bayesprune.training.stages import run_stages
from bayesprune.training.step import Step, objective
from bayesprune.training.store import NoStore
from bayesprune.training.trainer import StageTrainer
from bayesprune.training.watching import Silent

LATER = ("consistency", "perturbation", "kl_by_tradeoff", "without_dropout")


class Untouched(Silent):
    """Nothing may be trained."""

    def stage_started(self, *_):
        raise AssertionError("a stage was started")


def small(seed=0):
    torch.manual_seed(seed)
    return sparsify(LeNet500300(widths=(7, 5), input_shape=(1, 3, 3)), "bb")


def batches(samples=40, batch_size=10, targets=None):
    torch.manual_seed(1)
    split = Split(torch.randint(0, 255, (samples, 1, 3, 3), dtype=torch.uint8), torch.randint(0, 10, (samples,)))
    return TensorBatches(split, (0.5,), (0.25,), batch_size)


def test_disagreement_is_half_the_symmetric_divergence():
    torch.manual_seed(0)
    logits = torch.randn(6, 4, dtype=torch.float64)
    one, other = (F.log_softmax(part, dim=1) for part in logits.split(3))
    there = F.kl_div(other, one, log_target=True, reduction="batchmean")
    back = F.kl_div(one, other, log_target=True, reduction="batchmean")
    torch.testing.assert_close(disagreement(logits), 0.5 * (there + back))
    assert disagreement(torch.cat([logits, logits])) == 0.0


def test_disagreement_gradient():
    torch.manual_seed(0)
    torch.autograd.gradcheck(disagreement, torch.randn(4, 3, dtype=torch.float64, requires_grad=True))


def test_disagreement_of_certain_predictions_is_finite():
    logits = torch.tensor([[200.0, 0.0], [0.0, 200.0]], requires_grad=True)
    value = disagreement(logits)
    value.backward()
    assert value == 200.0
    assert torch.isfinite(logits.grad).all()


def test_objective_by_hand():
    model = small().train()
    x, y = torch.rand(4, 1, 3, 3), torch.tensor([1, 2, 3, 4])
    weights = torch.tensor([0.1, 0.2, 0.3])
    torch.manual_seed(5)
    twice = torch.cat([x, x]), torch.cat([y, y])
    found = objective(F.cross_entropy, "cpu", torch.float32, model, *twice, weights, torch.tensor(0.7))
    torch.manual_seed(5)
    logits = model(torch.cat([x, x]))
    divergence = sum(weight * gate.kl() for weight, gate in zip(weights, gates(model).values(), strict=True))
    torch.testing.assert_close(found, F.cross_entropy(logits, torch.cat([y, y])) + 0.7 * disagreement(logits) + divergence)
    assert not torch.equal(*logits.chunk(2)), "the two predictions have draws of their own"


def test_none_is_the_usual_objective():
    model, x, y = small().train(), torch.rand(4, 1, 3, 3), torch.tensor([1, 2, 3, 4])
    torch.manual_seed(5)
    found = objective(F.cross_entropy, "cpu", torch.float32, model, x, y, torch.zeros(3), torch.zeros(0))
    torch.manual_seed(5)
    torch.testing.assert_close(found, F.cross_entropy(model(x), y))


def test_members_as_alone():
    recipe = StageRecipe(epochs=2, consistency=0.5)
    alone = StageTrainer([small(1)], batches(), recipe, F.cross_entropy, seeds=[7])
    together = StageTrainer([small(0), small(1)], batches(), recipe, F.cross_entropy, seeds=[6, 7])
    for _ in range(2):
        first, second = alone.train_epoch(lambda _: None), together.train_epoch(lambda _: None)
    assert second[1] == pytest.approx(first[0], rel=1e-5)
    other = together.write_back()[1].state_dict()
    for name, tensor in alone.write_back()[0].state_dict().items():
        torch.testing.assert_close(other[name], tensor, rtol=1e-4, atol=1e-5)


def test_members_have_weights_of_their_own():
    recipe = StageRecipe(epochs=2, consistency=0.5)
    alone = StageTrainer([small(1)], batches(), StageRecipe(epochs=2, consistency=2.0), F.cross_entropy, seeds=[7])
    together = StageTrainer([small(0), small(1)], batches(), recipe, F.cross_entropy, seeds=[6, 7], consistency=[0.0, 2.0])
    for _ in range(2):
        first, second = alone.train_epoch(lambda _: None), together.train_epoch(lambda _: None)
    assert second[1] == pytest.approx(first[0], rel=1e-5)


@pytest.mark.parametrize(
    ("asked", "factor"),
    [
        ({"tradeoff": 4.0}, 4.0),
        ({"tradeoff": 4.0, "gate_weights": (0.4, 1.8, 0.6)}, 4.0),
        ({"kl_scale": 4}, 4.0),
        ({"kl_scale": [3.0, 5.0]}, 4.0),
        ({"kl_scale": {"a": 3.0, "b": 5.0}}, 4.0),
        ({"kl_scale": torch.tensor(4.0)}, 4.0),
        ({"tradeoff": 0.5}, 1.0),
        ({"kl_scale": 0.0}, 1.0),
        ({"kl_scale": 1e-45}, 1.0),
        ({"kl_scale": []}, 1.0),
    ],
)
def test_the_stronger_the_first_stage_the_less_it_weighs_in_the_second(asked, factor):
    plan = make_plan("dbb", CONSISTENT, 60_000, **asked)
    assert plan.consistency("pruned") == CONSISTENT.stages["pruned"].consistency
    assert plan.consistency("dependent") == CONSISTENT.stages["dependent"].consistency / factor


def test_what_cannot_be_trained_with_it_is_refused_before_the_first_stage():
    model = nn.Sequential(nn.Flatten(), nn.Linear(9, 4), nn.ReLU(), nn.Linear(4, 1))
    loader = DataLoader(TensorDataset(torch.rand(20, 1, 3, 3), torch.rand(20, 1)), batch_size=10)
    with pytest.raises(InputError, match="for classification"):
        run_stages([model], [make_plan("bb", CONSISTENT, 20)], LoaderBatches(loader, "cpu"), None, F.mse_loss, NoStore(), Untouched())


def test_stages_take_it_from_the_plan(monkeypatch):
    seen = []
    before = StageTrainer.__init__
    monkeypatch.setattr(
        StageTrainer, "__init__", lambda self, *given, **named: (seen.append(named["consistency"]), before(self, *given, **named))[1]
    )
    plans = [make_plan("dbb", CONSISTENT.with_epochs(1), 20, tradeoff=tradeoff, pretrain=False) for tradeoff in (1.0, 4.0)]
    networks = [LeNet500300(widths=(7, 5), input_shape=(1, 3, 3)) for _ in plans]
    run_stages(networks, plans, batches(), None, F.cross_entropy, NoStore(), Silent())
    first, second = CONSISTENT.stages["pruned"].consistency, CONSISTENT.stages["dependent"].consistency
    assert seen == [[first, first], [second, second / 4.0]]


def test_it_makes_predictions_agree():
    def disagreeing(consistency):
        model = small()
        recipe = StageRecipe(epochs=15, lr=1e-2, gate_speed=0.1, consistency=consistency)
        trainer = StageTrainer([model], batches(200, 50), recipe, F.cross_entropy, seeds=[3], kl_scales=[0.0])
        while not trainer.finished:
            trainer.train_epoch(lambda _: None)
        model.train()
        torch.manual_seed(0)
        inputs = next(batches(200).in_order(200))[0]
        return disagreement(model(torch.cat([inputs, inputs]))).item()

    assert disagreeing(5.0) < 0.5 * disagreeing(0.0)


@pytest.mark.parametrize(
    ("model", "targets"), [(nn.Conv2d(1, 3, 1), torch.zeros(4, 3, 3, dtype=torch.int64)), (nn.Flatten(), torch.zeros(4, 9))]
)
def test_for_classification_only(model, targets):
    loss = F.cross_entropy if not targets.is_floating_point() else F.mse_loss
    with pytest.raises(InputError, match="classification"):
        objective(loss, "cpu", torch.float32, model, torch.rand(4, 1, 3, 3), targets, torch.zeros(0), torch.ones(()))


@pytest.mark.parametrize("value", [-0.1, float("nan"), float("inf")])
def test_refused(value):
    with pytest.raises(InputError, match="consistency"):
        StageRecipe(epochs=1, consistency=value)


def test_written_as_before_where_it_is_not_used():
    assert PAPER.stages["pruned"].written() == {
        key: value for key, value in dataclasses.asdict(PAPER.stages["pruned"]).items() if key not in LATER
    }
    everything = StageRecipe(epochs=1, consistency=1.0, perturbation=0.5, kl_by_tradeoff=0.25, without_dropout=True)
    assert everything.written() == dataclasses.asdict(everything)


def test_steps_take_it_from_the_recipe(monkeypatch):
    seen = []
    before = Step.__init__

    def spy(self, *arguments, **settings):
        seen.append((settings["consistency"], settings["perturbation"]))
        before(self, *arguments, **settings)

    monkeypatch.setattr(Step, "__init__", spy)
    StageTrainer([small()], batches(), StageRecipe(epochs=1, consistency=0.3, perturbation=0.5), F.cross_entropy)
    assert seen == [([0.3], [0.5])]
