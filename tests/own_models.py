"""Models as users write them: layers by name, and a function of them."""

import torch
from gallery import randomise_norms
from torch import nn

import bayesprune as bp

FEATURES, TOKENS, IMAGES = (3, 6), (3, 5, 6), (3, 3, 8, 8)
linear, conv = nn.Linear, nn.Conv2d


class Model(nn.Module):
    def __init__(self, forward, **layers):
        super().__init__()
        self.computation = forward
        for name, layer in layers.items():
            setattr(self, name, layer)

    def forward(self, x, y=None):
        return self.computation(self, x) if y is None else self.computation(self, x, y)


def example(shapes):
    torch.manual_seed(1)
    tensors = tuple(torch.randn(shape, dtype=torch.float64) for shape in shapes)
    return tensors if len(tensors) > 1 else tensors[0]


def gated(model, shapes, **options):
    return bp.sparsify(randomise_norms(model).double().eval(), "bb", example_inputs=example(shapes), **options).eval()


class TwoInputs(nn.Module):
    """Does something else with each of its inputs."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.a, self.b, self.out = nn.Linear(6, 8), nn.Linear(6, 8), nn.Linear(8, 3)

    def forward(self, x, y):
        return self.out(torch.relu(self.a(x)) - torch.relu(self.b(y)))
