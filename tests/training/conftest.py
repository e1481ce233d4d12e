"""Small models and data to train on."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from bayesprune.attach import make_dependent, sparsify
from bayesprune.training.sources import LoaderBatches

FEATURES, CLASSES = 8, 3


def clusters(count: int, features: int = FEATURES, classes: int = CLASSES, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Points around one centre for each class. The classes differ in the first half of the features, the rest is noise."""
    generator = torch.Generator().manual_seed(1234)
    centres = 3.0 * torch.randn(classes, features, generator=generator)
    centres[:, features // 2 :] = 0.0
    generator.manual_seed(seed)
    labels = torch.arange(count) % classes
    return centres[labels] + torch.randn(count, features, generator=generator), labels


@pytest.fixture(scope="session")
def make_clusters() -> Callable[..., tuple[Tensor, Tensor]]:
    return clusters


@pytest.fixture(scope="session")
def make_loader() -> Callable[..., "DataLoader[tuple[Tensor, Tensor]]"]:
    def make(count: int = 60, batch_size: int = 20, shuffle: bool = True, **options: int) -> "DataLoader[tuple[Tensor, Tensor]]":
        return DataLoader(TensorDataset(*clusters(count, **options)), batch_size=batch_size, shuffle=shuffle)

    return make


@pytest.fixture(scope="session")
def make_source(make_loader) -> Callable[..., LoaderBatches]:
    def make(*arguments: int, **options: int) -> LoaderBatches:
        return LoaderBatches(make_loader(*arguments, **options), "cpu")

    return make


@pytest.fixture(scope="session")
def make_network() -> Callable[..., nn.Module]:
    """A network with batch normalisation and torch's own dropout; with gates where a method is given."""

    def make(method: str | None = None, seed: int = 0) -> nn.Module:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            plain = nn.Sequential(
                nn.Linear(FEATURES, 12),
                nn.BatchNorm1d(12),
                nn.ReLU(),
                nn.Dropout(0.3),
                nn.Linear(12, 10),
                nn.ReLU(),
                nn.Linear(10, CLASSES),
            )
            if method is None:
                return plain
            gated = sparsify(plain, "bb" if method == "dbb" else method, example_inputs=torch.zeros(2, FEATURES))
            return make_dependent(gated) if method == "dbb" else gated

    return make
