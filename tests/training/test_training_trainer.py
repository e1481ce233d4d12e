import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from bayesprune.errors import StorageError
from bayesprune.gates import METHODS, gates
from bayesprune.storage import read_tensors, write_tensors
from bayesprune.training import StageRecipe, StageTrainer

ALL = [None, *METHODS]
"""A network without gates, and one of every method."""


def nothing(loss):
    pass


def no_signal(outputs, targets):
    """A loss without a gradient: what still moves is moved by the penalty or by weight decay."""
    return 0.0 * outputs.sum()


@pytest.fixture
def make_trainer(make_network, make_source):
    def make(method=None, recipe=None, loss=F.cross_entropy, seed=0, model=None, **options):
        network = make_network(method) if model is None else model
        return StageTrainer([network], make_source(), recipe or StageRecipe(epochs=4), loss, seeds=[seed], **options)

    return make


def same(left, right):
    return left.keys() == right.keys() and all(torch.equal(left[name], right[name]) for name in left)


@pytest.mark.parametrize("method", ALL)
def test_adam_and_its_groups(make_trainer, method):
    made = make_trainer(method, StageRecipe(epochs=1, lr=2e-3, weight_decay=3e-4))
    optimizer = made.step.optimizer
    assert type(optimizer) is torch.optim.Adam
    for group in optimizer.param_groups:
        assert (group["betas"], group["eps"], group["amsgrad"], group["maximize"]) == ((0.9, 0.999), 1e-8, False, False)
    weights, *rest = optimizer.param_groups
    assert weights["lr"] == 2e-3
    assert weights["weight_decay"] == (0.0 if method in ("l0", "cd") else 3e-4)
    assert len(rest) == (method is not None)
    for group in rest:
        assert group["weight_decay"] == 0.0
        assert group["lr"] == pytest.approx(2e-3 if method == "l0" else 2e-2)
        assert {id(p) for p in group["params"]} == {id(p) for gate in gates(made.first).values() for p in gate.parameters()}
    grouped = [id(p) for group in optimizer.param_groups for p in group["params"]]
    assert sorted(grouped) == sorted(id(p) for p in made.first.parameters() if p.requires_grad)


@pytest.mark.parametrize(("method", "rate"), [("bb", 5e-2), ("dbb", 5e-2), ("vib", 5e-2), ("l0", 5e-3)])
def test_gates_learn_faster(make_trainer, method, rate):
    made = make_trainer(method, StageRecipe(epochs=4, lr=1e-3, gate_speed=5.0))
    made.train_epoch(nothing)
    assert [group["lr"] for group in made.step.optimizer.param_groups] == pytest.approx([1e-3, rate])


@pytest.mark.parametrize("method", METHODS)
def test_gates_are_never_decayed(make_trainer, method):
    made = make_trainer(method, StageRecipe(epochs=1, weight_decay=0.5), loss=no_signal, kl_scales=[0.0])
    before = copy.deepcopy(dict(made.first.named_parameters()))
    made.train_epoch(nothing)
    of_gates = {f"{path}.{name}" for path, gate in gates(made.first).items() for name, _ in gate.named_parameters()}
    assert of_gates
    for name, parameter in made.first.named_parameters():
        if name in of_gates or method in ("l0", "cd"):
            assert torch.equal(parameter, before[name]), name
        elif name.endswith("weight") and parameter.ndim == 2:
            assert parameter.norm() < before[name].norm(), name


@pytest.mark.parametrize(
    ("schedule", "factors"), [("steps", [1, 1, 1, 1, 1, 0.1, 0.1, 0.1, 0.01, 0.01]), ("cosine", [1, None, None, None, None, 0.5])]
)
def test_learning_rates_over_a_stage(make_trainer, monkeypatch, schedule, factors):
    made = make_trainer("bb", StageRecipe(epochs=10, lr=1e-3, gate_speed=10.0, schedule=schedule))
    seen = []
    step = made.step.optimizer.step
    monkeypatch.setattr(
        made.step.optimizer, "step", lambda: (seen.append([g["lr"].item() for g in made.step.optimizer.param_groups]), step())
    )
    while not made.finished:
        made.train_epoch(nothing)
    steps = len(made.source)
    assert len(seen) == 10 * steps
    for epoch, factor in enumerate(factors):
        if factor is not None:
            assert seen[epoch * steps] == pytest.approx([factor * 1e-3, factor * 1e-1])
    assert all(rates[1] == pytest.approx(100 * rates[0]) for rates in seen)
    assert [rates[0] for rates in seen] == sorted((rates[0] for rates in seen), reverse=True)


@pytest.mark.parametrize(("share", "steps"), [(0.0, 0), (0.5, 6), (1.0, 12)])
def test_divergence_warms_up(make_trainer, monkeypatch, share, steps):
    made, seen = make_trainer("bb", StageRecipe(epochs=4, kl_warmup=share), kl_scales=[0.7]), []
    objective = made.step.objective

    def spy(inputs, targets, weights, consistency):
        assert weights.shape == (1, len(gates(made.first)))
        seen.append(weights[0, 0].item() * 60 / 0.7)
        return objective(inputs, targets, weights, consistency)

    monkeypatch.setattr(made.step, "objective", spy)
    while not made.finished:
        made.train_epoch(nothing)
    assert seen == pytest.approx([1.0 if step >= steps else step / steps for step in range(12)])


def test_objective_is_the_negative_elbo(make_trainer):
    """One step of the trainer is one step of the documented recipe: the loss that it reports contains the scaled divergence."""
    made = make_trainer("bb", StageRecipe(epochs=1), kl_scales=[2.0], loss=lambda outputs, targets: 0.0 * outputs.sum() + 5.0)
    divergence = sum(gate.kl().item() for gate in gates(made.first).values())
    losses = []
    made.train_epoch(losses.append)
    assert losses[0] == pytest.approx(5.0 + 2.0 * divergence / 60, rel=1e-5)


def test_epoch_reports_steps_and_mean_loss(make_trainer):
    made, losses = make_trainer(), []
    (mean,) = made.train_epoch(losses.append)
    assert len(losses) == len(made.source) == 3
    assert mean == pytest.approx(sum(losses) / 3)
    assert made.epoch == 1


@pytest.mark.parametrize("method", ALL)
def test_batch_norm_statistics(make_trainer, method):
    made = make_trainer(method)
    norm = made.first[1]
    before = copy.deepcopy(norm.state_dict())
    made.train_epoch(nothing)
    for name in ("running_mean", "running_var", "num_batches_tracked"):
        assert torch.equal(getattr(norm, name), before[name]) == (method == "sbp"), name
    scale_moves = not torch.equal(norm.weight, before["weight"])
    assert scale_moves == (method != "dbb")


@pytest.mark.parametrize("method", ALL)
def test_taken_up_goes_on_bit_for_bit(make_trainer, make_network, tmp_path, method):
    through = make_trainer(method)
    losses = [through.train_epoch(nothing) for _ in range(4)]
    first = make_trainer(method)
    taken_up_losses = [first.train_epoch(nothing) for _ in range(2)]
    write_tensors(tmp_path / "checkpoint", first.state(), {})
    del first
    torch.rand(17)
    # Other weights and other initial values of the gates: whatever the checkpoint does not hold would show.
    second = make_trainer(method, model=make_network(method, seed=99))
    second.load_state(read_tensors(tmp_path / "checkpoint")[0], epoch=2)
    taken_up_losses += [second.train_epoch(nothing) for _ in range(2)]
    assert taken_up_losses == losses
    assert second.finished
    assert same(through.state(), second.state())


def test_stages_of_another_seed_differ(make_trainer):
    states = []
    for seed in (0, 1):
        made = make_trainer("bb", seed=seed)
        made.train_epoch(nothing)
        states.append(made.state())
    assert not same(*states)


@pytest.mark.parametrize("method", ALL)
def test_training_leaves_the_global_generator_alone(make_trainer, method):
    made = make_trainer(method)
    torch.manual_seed(5)
    before = torch.get_rng_state()
    made.train_epoch(nothing)
    assert torch.equal(torch.get_rng_state(), before)


def test_noise_of_an_epoch_does_not_depend_on_the_global_generator(make_trainer):
    states = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        made = make_trainer("bb")
        made.train_epoch(nothing)
        states.append(made.state())
    assert same(*states)


def test_noise_is_new_in_every_step_of_every_epoch(make_trainer):
    made, keys = make_trainer("bb"), []
    for _ in range(2):
        made.train_epoch(lambda loss: keys.extend(key for gate in gates(made.first).values() for key in gate.noise_key.tolist()))
    draws = sum(gate.noise_draws for gate in gates(made.first).values())
    assert len(keys) == 2 * len(made.source) * draws
    assert len({tuple(key) for key in keys}) == len(keys)


@pytest.mark.parametrize("method", METHODS)
def test_gates_are_given_back_to_torchs_generator(make_trainer, method):
    made = make_trainer(method)
    made.train_epoch(nothing)
    assert all(gate.noise_key is None for gate in gates(made.first).values())
    with pytest.raises(ZeroDivisionError):
        made.train_epoch(lambda loss: 1 / 0)
    assert all(gate.noise_key is None for gate in gates(made.first).values())


def test_tied_weights_are_taken_up(make_source, tmp_path):
    def tied():
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8), nn.Linear(8, 3))
        model[2].weight = model[0].weight
        return StageTrainer([model], make_source(), StageRecipe(epochs=4), F.cross_entropy)

    through, first, second = tied(), tied(), tied()
    for _ in range(2):
        through.train_epoch(nothing)
    first.train_epoch(nothing)
    write_tensors(tmp_path / "checkpoint", first.state(), {})
    second.load_state(read_tensors(tmp_path / "checkpoint")[0], epoch=1)
    second.train_epoch(nothing)
    assert same(through.state(), second.state())
    assert second.first[0].weight is second.first[2].weight


def test_checkpoint_of_another_model(make_trainer):
    made = make_trainer()
    state = make_trainer("bb").state()
    with pytest.raises(StorageError, match="does not belong to this model"):
        made.load_state(state, 1)
    wrong_shape = made.state() | {"model/0.weight": torch.zeros(2, 2)}
    with pytest.raises(StorageError, match="does not belong to this model"):
        made.load_state(wrong_shape, 1)


def test_weights_far_below_rounding_become_zero(make_trainer):
    made = make_trainer("bb", StageRecipe(epochs=1, weight_decay=0.0), loss=no_signal, kl_scales=[0.0])
    weight = made.first[0].weight
    with torch.no_grad():
        weight[0] = torch.tensor([1e-25, -1e-25, 9e-21, 2e-20, -2e-20, 1e-40, 1.0, -1.0])
        made.first[0].bias[0] = 1e-25
    before = copy.deepcopy(made.first.state_dict())
    made.train_epoch(nothing)
    assert weight[0].tolist() == [0.0, 0.0, 0.0, *before["0.weight"][0, 3:5].tolist(), 0.0, 1.0, -1.0]
    assert torch.equal(weight[1:], before["0.weight"][1:])
    assert made.first[0].bias[0] == before["0.bias"][0]


@pytest.mark.parametrize("method", [None, "bb"])
def test_flushing_does_not_change_what_is_learnt(make_trainer, monkeypatch, method):
    with_flush = make_trainer(method)
    with_flush.train_epoch(nothing)
    monkeypatch.setattr(StageTrainer, "_flush_tiny", nothing)
    without = make_trainer(method)
    without.train_epoch(nothing)
    assert same(with_flush.state(), without.state())
