"""What a training would stumble over late is refused before its first step, and what it need not stumble over is not in its way."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

import bayesprune as bp
from bayesprune.errors import InputError
from bayesprune.training.sources import LoaderBatches

FEATURES = 6


def perceptron(*, norm=False):
    torch.manual_seed(0)
    norms = [nn.BatchNorm1d(8)] if norm else []
    return nn.Sequential(nn.Linear(FEATURES, 8), *norms, nn.ReLU(), nn.Linear(8, 3))


def loader_of(samples, *, features=FEATURES, **options):
    inputs = torch.randn(samples, features, generator=torch.Generator().manual_seed(1))
    return DataLoader(TensorDataset(inputs, torch.arange(samples) % 3), **{"batch_size": 4} | options)


def fit(model, loader, **options):
    return bp.fit(model, loader, **{"method": "bb", "epochs": 1, "progress": False} | options)


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "kept"


@pytest.mark.parametrize("options", [{"batch_size": 4}, {"batch_size": 1}], ids=str)
def test_batch_norm_and_a_batch_of_one(options, folder):
    with pytest.raises(InputError, match=r"single sample, which Sequential .* more than 1 value per channel.* drop_last=True"):
        fit(perceptron(norm=True), loader_of(9, **options), checkpoints=folder)
    assert not folder.exists()


@pytest.mark.parametrize(
    ("model", "loader"),
    [
        (perceptron(norm=True), loader_of(9, drop_last=True)),
        (perceptron(norm=True), loader_of(8)),
        (perceptron(), loader_of(9)),
        (
            nn.Sequential(nn.Unflatten(1, (1, FEATURES)), nn.Conv1d(1, 4, 3), nn.BatchNorm1d(4), nn.Flatten(), nn.Linear(16, 3)),
            loader_of(9),
        ),
    ],
    ids=["dropped", "even", "no norm", "positions"],
)
def test_batches_of_one_elsewhere(model, loader):
    assert fit(model, loader).stages


@pytest.mark.parametrize(
    ("samples", "options", "expected"),
    [(9, {}, 1), (8, {}, 4), (9, {"drop_last": True}, 4), (3, {}, 3), (9, {"batch_size": None}, None)],
    ids=str,
)
def test_smallest_batch(samples, options, expected):
    assert LoaderBatches(loader_of(samples, **options), "cpu").smallest_batch == expected


def test_frozen_model(folder):
    frozen = perceptron().requires_grad_(False)
    with pytest.raises(InputError, match=r"all parameters of Sequential are frozen.* pretrain=False"):
        fit(frozen, loader_of(8), checkpoints=folder)
    assert not folder.exists()
    assert fit(frozen, loader_of(8), pretrain=False).stages


def test_validation_that_does_not_fit(folder):
    with pytest.raises(InputError, match=r"validation loader do not fit the model: .*\[2, 7\]"):
        fit(perceptron(), loader_of(8), validation=loader_of(8, features=7), checkpoints=folder)
    assert not folder.exists()


class Two(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = perceptron()

    def forward(self, x):
        return self.layers(x), x


def test_several_outputs():
    with pytest.raises(InputError, match=r"returns tuple, but cross entropy .*outputs\[0\]"):
        fit(Two(), loader_of(8))
    picked = fit(Two(), loader_of(8), loss=lambda outputs, labels: F.cross_entropy(outputs[0], labels), validation=loader_of(8))
    assert picked.stages[-1]["error"] is None


@pytest.mark.parametrize(
    ("loss", "message"),
    [
        (lambda scores, labels: F.cross_entropy(scores, labels).item(), "as a tensor, not float"),
        (lambda scores, labels: F.cross_entropy(scores, labels).detach(), "does not depend on what is trained"),
    ],
    ids=["number", "detached"],
)
def test_loss_without_gradient(loss, message):
    with pytest.raises(InputError, match=message):
        fit(perceptron(), loader_of(8), loss=loss)


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_gradients_switched_off_around_it(mode):
    with mode():
        result = fit(perceptron(), loader_of(8))
    assert torch.equal(result.model[0].weight, fit(perceptron(), loader_of(8)).model[0].weight)
    result.model(torch.zeros(2, FEATURES)).sum().backward()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"recipe": 3}, "recipe is the name"),
        ({"recipe": None}, "recipe is the name"),
        ({"example_inputs": [1]}, "example_inputs is a tensor"),
        ({"n_data": "many"}, "n_data is the number of training samples, at least 1, not 'many'"),
    ],
    ids=str,
)
def test_options_of_the_wrong_type(options, message):
    with pytest.raises(InputError, match=message):
        fit(perceptron(), loader_of(8), **options)


class Counted(IterableDataset):
    def __iter__(self):
        return iter(loader_of(9).dataset)

    def __len__(self):
        return 9


def test_stream_that_knows_its_length():
    source = LoaderBatches(DataLoader(Counted(), batch_size=4), "cpu")
    assert (source.n_data, len(source), source.smallest_batch) == (9, 3, None)
    assert fit(perceptron(), DataLoader(Counted(), batch_size=4)).stages
