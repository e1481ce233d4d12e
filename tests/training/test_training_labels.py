from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import bayesprune as bp
from bayesprune.errors import InputError

FEATURES, CLASSES = 16, 3


def perceptron():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(FEATURES, 20), nn.ReLU(), nn.Linear(20, CLASSES))


@pytest.fixture
def small(make_loader):
    return make_loader(40, features=FEATURES)


LABELS = torch.arange(40) % CLASSES
BAD_LABELS = {
    "fractions": (LABELS.float() + 0.5, r"type torch\.float32, the first is 0\.5, .* labels\.long\(\)"),
    "short": (LABELS.int(), r"type torch\.int32"),
    "from one": (LABELS + 1, "a label is 3, but the network has 3 outputs, for the labels 0 to 2"),
    "negative": (LABELS - 1, "a label is -1"),
    "last": (torch.cat([LABELS[:-1], torch.tensor([7])]), "a label is 7"),
    "column": (LABELS[:, None], r"shape \(40, 1\), but outputs of 2 dimensions take labels of 1"),
}


@pytest.mark.parametrize(
    "loss", [F.cross_entropy, nn.CrossEntropyLoss(), partial(F.cross_entropy, label_smoothing=0.1)], ids=["function", "module", "partial"]
)
@pytest.mark.parametrize(("labels", "message"), BAD_LABELS.values(), ids=BAD_LABELS)
def test_bad_labels_are_found_before_the_first_step(labels, message, loss, small, tmp_path):
    bad = DataLoader(TensorDataset(torch.zeros(40, FEATURES), labels), batch_size=20)
    for loaders in ({"loader": bad}, {"loader": small, "validation": bad}):
        with pytest.raises(InputError, match=message):
            bp.fit(perceptron(), loss=loss, checkpoints=tmp_path / "kept", progress=False, **loaders)
    assert not (tmp_path / "kept").exists()


def test_bad_label_that_only_reading_shows():
    data = [(torch.zeros(FEATURES), int(label)) for label in BAD_LABELS["last"][0]]
    with pytest.raises(InputError, match="a label is 7"):
        bp.fit(perceptron(), DataLoader(data, batch_size=20), epochs=1, progress=False)


@pytest.mark.parametrize(
    "labels",
    [LABELS.byte(), torch.full((40, CLASSES), 1 / CLASSES), torch.where(LABELS == 2, -100, LABELS)],
    ids=["bytes", "probabilities", "ignored"],
)
def test_labels_that_cross_entropy_takes(labels):
    loader = DataLoader(TensorDataset(torch.randn(40, FEATURES), labels), batch_size=20)
    assert bp.fit(perceptron(), loader, method="bb", epochs=1, progress=False).stages


def test_the_label_that_stands_for_none_is_the_losses_own():
    labels = torch.where(LABELS == 2, 9, LABELS)
    loader = DataLoader(TensorDataset(torch.randn(40, FEATURES), labels), batch_size=20)
    loss = partial(F.cross_entropy, ignore_index=9)
    assert bp.fit(perceptron(), loader, validation=loader, method="bb", loss=loss, epochs=1, progress=False).stages
    with pytest.raises(InputError, match="a label is 9"):
        bp.fit(perceptron(), loader, loss=partial(F.cross_entropy, label_smoothing=0.1), epochs=1, progress=False)


class Ordinal(nn.CrossEntropyLoss):
    """Takes labels from one onwards, as fractions."""

    def forward(self, scores, labels):
        return super().forward(scores, labels.long() - 1)


def test_loss_derived_from_cross_entropy_has_labels_of_its_own():
    loader = DataLoader(TensorDataset(torch.randn(40, FEATURES), LABELS + 1.0), batch_size=20)
    assert bp.fit(perceptron(), loader, method="bb", loss=Ordinal(), epochs=1, progress=False).stages


def test_bytes_as_labels_of_positions():
    labels = torch.zeros(8, 4, 4, dtype=torch.uint8)
    model = nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.ReLU(), nn.Conv2d(4, CLASSES, 1))
    with pytest.raises(InputError, match=r"type torch\.uint8.* labels\.long\(\)"):
        bp.fit(model, DataLoader(TensorDataset(torch.randn(8, 1, 4, 4), labels), batch_size=4), epochs=1, progress=False)
