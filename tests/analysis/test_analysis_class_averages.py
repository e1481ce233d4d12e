import numpy as np
import pytest
import torch

from bayesprune.analysis import class_averages, class_correlations, mean_between_classes
from bayesprune.attach import make_dependent, sparsify
from bayesprune.gates import gates
from bayesprune.models import LeNet500300


def made_up(classes=6, units=9, seed=0):
    return torch.from_numpy(np.random.default_rng(seed).random((classes, units)))


def test_correlations_are_numpys():
    averages = made_up()
    np.testing.assert_allclose(class_correlations(averages).numpy(), np.corrcoef(averages.numpy()), atol=1e-12)


def test_mean_leaves_the_diagonal_out():
    expected = np.corrcoef(made_up().numpy())[~np.eye(6, dtype=bool)].mean()
    assert mean_between_classes(class_correlations(made_up())) == pytest.approx(expected)


@pytest.mark.parametrize("units", [0, 1])
def test_too_few_units_have_no_correlation(units):
    correlations = class_correlations(made_up(units=units))
    assert correlations.shape == (6, 6)
    assert bool(correlations.isnan().all())
    assert mean_between_classes(correlations) is None


def test_class_that_does_not_tell_units_apart_is_undefined_alone():
    averages = made_up()
    averages[2] = 0.7 + 1e-12 * made_up()[2]
    correlations = class_correlations(averages)
    others = [0, 1, 3, 4, 5]
    assert bool(correlations[2].isnan().all())
    assert bool(correlations[:, 2].isnan().all())
    np.testing.assert_allclose(correlations[others][:, others].numpy(), np.corrcoef(averages[others].numpy()), atol=1e-12)
    assert mean_between_classes(correlations) == pytest.approx(mean_between_classes(class_correlations(averages[others])))


def test_averages_are_over_the_inputs_of_each_class():
    torch.manual_seed(0)
    model = make_dependent(sparsify(LeNet500300(3, (6, 5), (1, 4, 4)), "bb", keep_init=1.0), shift_init=0.3).eval()
    first, last = gates(model)["fc1.input_gate"], gates(model)["fc3.input_gate"]
    first.prune(torch.tensor([0, 5]))
    last.prune(torch.arange(5))
    x, labels = torch.rand(50, 1, 4, 4), torch.arange(50) % 2
    averages = class_averages(model, [(x[:20], labels[:20]), (x[20:], labels[20:])], num_classes=3)
    kept = first.keep()
    expected = torch.stack([first.keep_probability(x[labels == label].flatten(1))[:, kept].mean(dim=0) for label in (0, 1)])
    torch.testing.assert_close(averages["fc1.input_gate"].keep_probability[:2].float(), expected.detach())
    torch.testing.assert_close(averages["fc1.input_gate"].pi.float(), first.keep_probability()[kept])
    assert bool(averages["fc1.input_gate"].phi[2].isnan().all())
    assert bool(class_correlations(averages["fc1.input_gate"].phi)[2].isnan().all())
    assert averages["fc3.input_gate"].phi.shape == (3, 0)
