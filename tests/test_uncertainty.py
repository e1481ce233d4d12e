"""What draws of the masks say beside the mean: against all draws kept in memory, and where the answer is known."""

import math

import pytest
import torch
from torch import nn

import bayesprune as bp
from bayesprune.errors import InputError
from bayesprune.gates import METHODS, gates

X = torch.randn(6, 4, generator=torch.Generator().manual_seed(0))


def plain():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.ReLU(), nn.Linear(5, 3))


@pytest.mark.parametrize("method", METHODS)
def test_against_all_draws_at_once(method):
    model = bp.sparsify(plain(), "bb" if method == "dbb" else method)
    model = bp.make_dependent(model) if method == "dbb" else model
    torch.manual_seed(1)
    found = bp.uncertainty(model, X, samples=20)
    torch.manual_seed(1)
    draws = torch.stack([bp.predict(model, X, samples=1) for _ in range(20)]).double()
    mean = draws.mean(0)
    entropy = -(draws * draws.log()).sum(-1).mean(0)
    total = -(mean * mean.log()).sum(-1)
    torch.testing.assert_close(found.mean.double(), mean, atol=1e-6, rtol=1e-5)
    torch.testing.assert_close(found.std.double(), draws.std(0), atol=1e-6, rtol=1e-4)
    torch.testing.assert_close(found.expected_entropy.double(), entropy, atol=1e-6, rtol=1e-5)
    torch.testing.assert_close(found.entropy.double(), total, atol=1e-6, rtol=1e-5)
    torch.testing.assert_close(found.mutual_information.double(), total - entropy, atol=1e-6, rtol=1e-3)
    torch.testing.assert_close(found.confidence.double(), mean.amax(-1), atol=1e-6, rtol=1e-5)
    assert found.samples == 20
    assert (found.std > 0).any()


def settle(model, raw_a):
    with torch.no_grad():
        for gate in gates(model).values():
            gate.raw_a.fill_(raw_a)
    return model


def test_certain_gates_disagree_about_nothing():
    """With E[pi] at one every draw is the same; what is left of the entropy is in each draw by itself."""
    model = settle(bp.sparsify(plain(), "bb", temperature=1e-3), 1e6)
    found = bp.uncertainty(model, X, samples=5)
    assert found.std.max() < 1e-6
    assert found.mutual_information.max() < 1e-6
    torch.testing.assert_close(found.entropy, found.expected_entropy)
    assert found.entropy.min() > 0


def test_a_coin_that_decides_between_two_classes():
    """Two draws of certain and opposite answers: the mean says nothing, each draw everything, so all of it is disagreement."""
    model = bp.sparsify(nn.Sequential(nn.Linear(1, 2, bias=False), nn.Linear(2, 2)), "bb", temperature=1e-3, alpha=1.0)
    with torch.no_grad():
        model[0].weight.fill_(1.0)
        model[1].weight.copy_(torch.tensor([[200.0, 0.0], [0.0, 0.0]]))
        model[1].bias.copy_(torch.tensor([-100.0, 0.0]))
        for gate in gates(model).values():
            gate.raw_a.fill_(math.log(math.e - 1))  # a = 1, and b = 1: pi is uniform, so a unit is there half of the time.
    torch.manual_seed(0)
    found = bp.uncertainty(model, torch.ones(1, 1), samples=2000)
    share = 0.25 if len(gates(model)) == 2 else 0.5  # A gate on the input may shut the unit as well.
    expected = -(share * math.log(share) + (1 - share) * math.log(1 - share))
    assert found.expected_entropy.item() < 0.02
    assert found.mutual_information.item() == pytest.approx(expected, abs=0.03)
    assert found.std[0, 0].item() == pytest.approx(math.sqrt(share * (1 - share)), abs=0.03)


def test_regression_has_a_mean_and_a_spread_and_no_entropy():
    model = bp.sparsify(plain(), "bb")
    found = bp.uncertainty(model, X, activation=None)
    assert found.mean.shape == found.std.shape == (6, 3)
    for name in ("entropy", "mutual_information", "confidence"):
        with pytest.raises(InputError, match="no probabilities of classes"):
            getattr(found, name)


def test_independent_labels_have_no_entropy():
    found = bp.uncertainty(bp.sparsify(plain(), "bb"), X, activation=torch.sigmoid)
    assert found.expected_entropy is None


def test_it_prints():
    model = bp.sparsify(plain(), "bb")
    text = str(bp.uncertainty(model, X, samples=3))
    assert text.startswith("3 draws for 6 inputs")
    assert "mutual information, nats" in text
    assert "confidence" not in str(bp.uncertainty(model, X, samples=3, activation=None))
    assert "0 inputs" in str(bp.uncertainty(model.eval(), X[:0], samples=2))


def test_the_softmax_of_a_single_output_is_refused():
    model = bp.sparsify(nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 1)), "bb")
    for predict in (bp.predict, bp.uncertainty):
        with pytest.raises(InputError, match="a single output, whose softmax is always 1"):
            predict(model, X)
        predict(model, X, activation=None)


def test_a_single_score_is_no_class():
    model = bp.sparsify(nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 1)), "bb")
    found = bp.uncertainty(model, X, activation=lambda scores: torch.ones_like(scores))
    assert found.expected_entropy is None
    assert bp.uncertainty(model, X[:1], activation=lambda scores: torch.ones(1)).expected_entropy is None


def test_activations_that_give_no_real_numbers():
    model = bp.sparsify(plain(), "bb")
    for predict in (bp.predict, bp.uncertainty):
        with pytest.raises(InputError, match="must return a tensor"):
            predict(model, X, activation=lambda scores: scores.tolist())
    with pytest.raises(InputError, match="complex"):
        bp.uncertainty(model, X, activation=torch.fft.fft)


def test_classes_in_another_dimension():
    torch.manual_seed(0)
    model = bp.sparsify(nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Conv2d(4, 3, 1)), "bb", example_inputs=torch.randn(2, 1, 6, 6))
    found = bp.uncertainty(model, torch.randn(2, 1, 6, 6), activation=lambda scores: scores.movedim(1, -1).softmax(-1))
    assert found.entropy.shape == found.mutual_information.shape == (2, 4, 4)


def test_half_precision_is_added_up_in_single():
    model = bp.sparsify(plain(), "bb").to(torch.bfloat16)
    found = bp.uncertainty(model, X.to(torch.bfloat16), samples=300)
    assert found.mean.dtype == found.entropy.dtype == torch.float32
    torch.testing.assert_close(found.mean.sum(-1), torch.ones(6), atol=1e-2, rtol=0.0)


def test_a_large_constant_leaves_the_spread_its_digits():
    model = bp.sparsify(plain(), "bb")
    torch.manual_seed(3)
    expected = bp.uncertainty(model, X, activation=None).std
    torch.manual_seed(3)
    found = bp.uncertainty(model, X, activation=lambda outputs: outputs.double() + 1e6).std
    torch.testing.assert_close(found.float(), expected, atol=1e-6, rtol=1e-4)


def test_the_model_is_as_it_was():
    model = bp.sparsify(plain(), "bb").train()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    bp.uncertainty(model, X, samples=3)
    assert model.training
    assert not any(gate.sampling for gate in gates(model).values() if not gate.training)
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())


@pytest.mark.parametrize("samples", [1, 0, -3, 2.0, True, None, "many"])
def test_too_few_draws(samples):
    with pytest.raises(InputError, match="at least 2"):
        bp.uncertainty(bp.sparsify(plain(), "bb"), X, samples=samples)


def test_refusals_name_the_function():
    with pytest.raises(InputError, match="uncertainty takes an"):
        bp.uncertainty([], X)
    with pytest.raises(InputError, match="uncertainty takes a batch"):
        bp.uncertainty(bp.sparsify(plain(), "bb"), [1.0])
    with pytest.raises(InputError, match="no gates"):
        bp.uncertainty(plain(), X)
    with pytest.raises(InputError, match="was given an input"):
        bp.uncertainty(bp.sparsify(plain(), "bb"), X[:, :2])
