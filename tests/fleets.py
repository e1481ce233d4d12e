"""Small networks and data for tests of models that are trained side by side."""

import torch
from torch import nn

import bayesprune as bp
from bayesprune.data import Split, TensorBatches
from bayesprune.models.dropout import KeyedDropout


def convolutional():
    return nn.Sequential(
        nn.Conv2d(1, 6, 3, bias=False), nn.BatchNorm2d(6), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(6, 5, 2), nn.ReLU(),
        nn.Flatten(), KeyedDropout(0.2), nn.Linear(20, 4),
    )  # fmt: skip


def dense():
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 12), nn.ReLU(), nn.Linear(12, 4))


NETWORKS = {"convolutional": convolutional, "dense": dense}


def model(network, method, seed):
    torch.manual_seed(seed)
    plain = NETWORKS[network]()
    if method is None:
        return plain
    settings = {"l0": {"price": 0.1 * (seed + 1)}, "gd": {"alpha": 0.01 * (seed + 1)}}.get(method, {})
    gated = bp.sparsify(plain, "bb" if method == "dbb" else method, example_inputs=torch.randn(2, 1, 8, 8), **settings)
    return bp.make_dependent(gated) if method == "dbb" else gated


def source(count=50, augment=False):
    generator = torch.Generator().manual_seed(0)
    labels = torch.randint(0, 4, (count,), generator=generator)
    images = torch.randint(0, 60, (count, 1, 8, 8), generator=generator, dtype=torch.uint8)
    for index, label in enumerate(labels.tolist()):
        images[index, :, 2 * label : 2 * label + 2] += 150
    return TensorBatches(Split(images, labels), (0.3,), (0.25,), 20, augment=augment)


def nothing(_loss):
    """A watcher of steps."""
