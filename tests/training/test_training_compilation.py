"""Steps that are compiled for a processor."""

import copy

import pytest
import torch
import torch.nn.functional as F
from fleets import model, nothing, source

import bayesprune.training.compilation as compilation_module
import bayesprune.training.trainer as trainer_module
from bayesprune.errors import BayespruneWarning, InputError
from bayesprune.training.compilation import CompiledObjective, gains_from_compiling
from bayesprune.training.recipes import StageRecipe
from bayesprune.training.trainer import StageTrainer

RECIPE = StageRecipe(epochs=5, lr=3e-2, gate_speed=2.0, consistency=1.0, perturbation=0.1)


PRUNING = StageRecipe(epochs=8, lr=3e-2, gate_speed=2.0)


@pytest.fixture
def at_once(monkeypatch):
    """Steps are compiled as soon as an epoch has been timed, however short the stage is."""
    monkeypatch.setattr(compilation_module, "_TO_COMPILE", 0.0)


@pytest.fixture
def compilations(monkeypatch):
    """A compiler that gives functions back as they are; what it was asked to compile is counted."""
    asked = []
    monkeypatch.setattr(torch, "compile", lambda function, **_options: (asked.append(function), function)[1])
    return asked


def trained(models, recipe=RECIPE, **options):
    stage = StageTrainer(
        models, source(), recipe, F.cross_entropy, kl_scales=[0.05] * len(models), seeds=[1, 2, 3][: len(models)], **options
    )
    while not stage.finished:
        stage.train_epoch(nothing)
    return stage


@pytest.mark.parametrize("count", [1, 2])
def test_what_is_trained_is_the_same(at_once, compilations, count):
    models = [model("dense", "bb", seed) for seed in range(count)]
    plain = trained(copy.deepcopy(models))
    assert not compilations
    compiled = trained(copy.deepcopy(models), compiled=True)
    assert compilations
    for one, other in zip(plain.write_back(), compiled.write_back(), strict=True):
        for name, tensor in one.state_dict().items():
            torch.testing.assert_close(other.state_dict()[name], tensor, rtol=1e-5, atol=1e-6)


def test_models_that_shrink_are_compiled_anew(at_once, compilations, monkeypatch):
    monkeypatch.setattr(trainer_module, "_SLOWLY", 1.0)
    whole = model("dense", "bb", 0)
    shapes = {name: tensor.shape for name, tensor in whole.state_dict().items()}
    stage = trained([whole], PRUNING, compiled=True, shrink=True)
    assert stage.removals
    assert 1 < len(compilations) <= 1 + len(stage.removals)
    assert {name: tensor.shape for name, tensor in stage.write_back()[0].state_dict().items()} == shapes


def test_while_many_units_go_nothing_is_compiled(at_once, compilations, monkeypatch):
    monkeypatch.setattr(trainer_module, "_SLOWLY", -1.0)
    trained([model("dense", "bb", 0)], PRUNING, compiled=True, shrink=True)
    assert not compilations


def test_short_stages_are_not_compiled(compilations):
    trained([model("dense", "bb", 0)], compiled=True)
    assert not compilations


def test_nothing_is_compiled_before_an_epoch_was_timed(at_once, compilations):
    stage = StageTrainer([model("dense", "bb", 0)], source(), RECIPE, F.cross_entropy, compiled=True)
    stage.train_epoch(nothing)
    assert not compilations
    stage.train_epoch(nothing)
    assert len(compilations) == 1
    stage.train_epoch(nothing)
    assert len(compilations) == 1


def test_only_full_batches_shown_once_or_twice_are_compiled(monkeypatch):
    seen = []
    monkeypatch.setattr(torch, "compile", lambda function, **_options: lambda *a: (seen.append(a[0].shape[1]), function(*a))[1])
    objective = CompiledObjective(lambda inputs, *_others: inputs.sum(), batch_size=4)
    for size in (4, 8, 3, 6, 4):
        assert objective(torch.ones(1, size, 2)) == 2 * size
    assert seen == [4, 8, 4]
    assert objective.seconds_to_set_up > 0


def test_a_compiler_that_fails_costs_time_only(monkeypatch):
    def refuses(*_arguments):
        raise RuntimeError("no compiler found\nand more")

    monkeypatch.setattr(torch, "compile", lambda *_arguments, **_options: refuses)
    objective = CompiledObjective(lambda inputs, *_others: inputs.sum(), batch_size=4)
    with pytest.warns(BayespruneWarning, match="cannot be compiled, which makes training slower: no compiler found$"):
        assert objective(torch.ones(1, 4)) == 4
    assert objective(torch.ones(1, 4)) == 4  # Without another warning, which would be an error.


def test_errors_of_our_own_are_not_the_compilers(monkeypatch):
    def refuses(*_arguments):
        raise InputError("wrong")

    monkeypatch.setattr(torch, "compile", lambda *_arguments, **_options: refuses)
    with pytest.raises(InputError, match="wrong"):
        CompiledObjective(lambda inputs: inputs.sum(), batch_size=4)(torch.ones(1, 4))


@pytest.mark.slow
def test_with_the_real_compiler(at_once):
    models = [model("dense", "bb", seed) for seed in range(2)]
    plain, compiled = trained(copy.deepcopy(models)), trained(copy.deepcopy(models), compiled=True)
    for one, other in zip(plain.write_back(), compiled.write_back(), strict=True):
        for name, tensor in one.state_dict().items():
            torch.testing.assert_close(other.state_dict()[name], tensor, rtol=1e-2, atol=1e-3)


@pytest.mark.parametrize(("step", "models", "to_come", "gains"), [
    (0.003, 1, 600.0, True), (0.003, 1, 100.0, False), (0.4, 1, 6000.0, False), (0.4, 15, 6000.0, True), (0.8, 15, 6000.0, False),
])  # fmt: skip
def test_short_steps_are_compiled_when_many_are_to_come(step, models, to_come, gains):
    assert gains_from_compiling(step, models, to_come) is gains


@pytest.mark.parametrize("count", [1, 3])
def test_how_long_a_step_is_goes_by_the_model(at_once, compilations, monkeypatch, count):
    asked = []
    monkeypatch.setattr(trainer_module, "gains_from_compiling", lambda step, models, to_come: asked.append(models))
    trained([model("dense", "bb", seed) for seed in range(count)], compiled=True)
    assert set(asked) == {count}


def test_long_steps_are_not_compiled(at_once, compilations, monkeypatch):
    monkeypatch.setattr(compilation_module, "_SHORT", 0.0)
    trained([model("dense", "bb", 0)], compiled=True)
    assert not compilations
