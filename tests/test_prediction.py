import math

import pytest
import torch
from torch import nn

from bayesprune.attach import make_dependent, sparsify
from bayesprune.errors import InputError
from bayesprune.gates import METHODS, gates
from bayesprune.noise import NoiseKeys
from bayesprune.prediction import evaluating, predict

X = torch.randn(6, 4, generator=torch.Generator().manual_seed(0))


def plain():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.ReLU(), nn.Dropout(0.5), nn.Linear(5, 3))


@pytest.fixture(params=sorted(METHODS))
def gated(request):
    return sparsify(plain(), request.param)


def flags(model):
    return [module.training for module in model.modules()], [gate.sampling for gate in gates(model).values()]


def test_the_naive_approximation_is_the_softmax_of_evaluation_mode(gated):
    found = predict(gated.train(), X)
    assert found.shape == (6, 3)
    torch.testing.assert_close(found.sum(1), torch.ones(6))
    torch.testing.assert_close(found, torch.softmax(gated.eval()(X), -1))
    assert not found.requires_grad


def test_a_model_without_gates():
    model = plain()
    torch.testing.assert_close(predict(model, X), torch.softmax(model.eval()(X), -1))
    with pytest.raises(InputError, match="no gates"):
        predict(model, X, samples=3)


@pytest.mark.parametrize("samples", [None, 3])
def test_another_activation_or_none(samples):
    gated = sparsify(plain(), "cd").eval()
    logits = gated(X)
    if samples is None:
        torch.testing.assert_close(predict(gated, X, activation=None), logits)
        torch.testing.assert_close(predict(gated, X, activation=torch.sigmoid), torch.sigmoid(logits))
    assert (predict(gated, X, samples=samples, activation=torch.square) >= 0).all()
    assert (predict(gated, X, samples=samples, activation=None) < 0).any()


@pytest.mark.parametrize("method", ["bb", "sbp", "vib", "gd", "cd"])
def test_monte_carlo_converges_to_the_naive_approximation_where_the_model_is_linear(method):
    """The gate's mean mask is the mean of its draws at a low temperature, and a linear output averages like its mask."""
    torch.manual_seed(0)
    temperature = {} if method in ("sbp", "vib") else {"temperature": 1e-3}
    gated = sparsify(nn.Sequential(nn.Linear(4, 3)), method, **temperature)
    draws = torch.stack([predict(gated, X, samples=1, activation=None) for _ in range(300)])
    error = draws.std(0) / math.sqrt(len(draws))
    mean = draws.mean(0)
    assert ((mean - predict(gated, X, activation=None)).abs() < 5 * error + 1e-4).all()


def test_samples_are_averaged_after_the_activation():
    gated = sparsify(plain(), "bb")
    torch.manual_seed(3)
    averaged = predict(gated, X, samples=4)
    torch.manual_seed(3)
    one_by_one = torch.stack([predict(gated, X, samples=1) for _ in range(4)])
    torch.testing.assert_close(averaged, one_by_one.mean(0))
    assert not torch.equal(one_by_one[0], one_by_one[1])


def test_samples_differ_although_training_has_set_the_noise():
    """While a trainer holds keys, a forward repeats its draw; thirty-two samples must not be one sample thirty-two times."""
    gated = sparsify(plain(), "bb")
    keys = NoiseKeys(gated, 0, "cpu")
    keys.set(keys.for_steps(5, 1)[0])
    one, many = predict(gated, X, samples=1), predict(gated, X, samples=8)
    assert not torch.allclose(one, many)
    table = keys.for_steps(5, 1)[0]
    assert torch.equal(keys.current, table)
    assert torch.equal(torch.cat([gate.noise_key for gate in gates(gated).values()]), table[0])


@pytest.mark.parametrize("samples", [None, 2])
@pytest.mark.parametrize("dependent", [False, True])
def test_batch_norm_and_running_statistics_do_not_move(samples, dependent):
    gated = sparsify(plain(), "bb")
    model = (make_dependent(gated) if dependent else gated).train()
    before = {name: buffer.clone() for name, buffer in model.named_buffers()}
    predict(model, X, samples=samples)
    assert all(torch.equal(buffer, before[name]) for name, buffer in model.named_buffers())


@pytest.mark.parametrize("samples", [None, 2])
def test_every_switch_is_as_before(gated, samples):
    gated.train()
    gated[1].eval()
    first, second = gates(gated).values()
    first.sampling, second.sampling = False, True
    before = flags(gated)
    predict(gated, X, samples=samples)
    assert flags(gated) == before
    with pytest.raises(RuntimeError, match="shape"):
        predict(gated, X, samples=samples, activation=lambda logits: logits.reshape(5, 7))
    assert flags(gated) == before
    with pytest.raises(InputError):
        predict(gated, torch.zeros(2, 9), samples=samples)
    assert flags(gated) == before


def test_a_switch_that_forces_sampling_does_not_disturb_the_naive_approximation():
    gated = sparsify(plain(), "bb")
    for gate in gates(gated).values():
        gate.sampling = True
    assert torch.equal(predict(gated, X), predict(gated, X))


@pytest.mark.parametrize("samples", [0, -3])
def test_no_samples(samples):
    with pytest.raises(InputError, match=rf"samples is a number of masks to draw, at least 1, not {samples}"):
        predict(sparsify(plain(), "bb"), X, samples=samples)


@pytest.mark.parametrize("x", [X.numpy(), X.tolist(), [X.numpy()], None, 3.0], ids=["array", "list", "arrays", "none", "number"])
def test_inputs_that_are_no_tensor(x):
    with pytest.raises(InputError, match=rf"not {type(x).__name__}: .*torch\.from_numpy\(x\) or torch\.as_tensor\(x\)"):
        predict(plain(), x)


def test_inputs_in_a_container():
    class Sum(nn.Module):
        def forward(self, parts):
            return parts[0] + parts[1]

    torch.testing.assert_close(predict(Sum(), [X, X], activation=None), 2 * X)


def test_model_and_inputs_the_wrong_way_round():
    with pytest.raises(InputError, match=r"takes an nn\.Module, not Tensor: predict\(model, x\)"):
        predict(X, plain())


def test_evaluating_switches_sampling_on_within():
    gated = sparsify(plain(), "bb").train()
    with evaluating(gated, sampling=True):
        assert not gated.training
        assert all(gate.is_sampling for gate in gates(gated).values())
    with evaluating(gated):
        assert not any(gate.is_sampling for gate in gates(gated).values())
    assert gated.training
