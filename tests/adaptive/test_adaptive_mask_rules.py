"""Masks that follow from what they mask are found, and nothing else is taken for one."""

import pytest
import torch
import torch.nn.functional as F
from per_input_networks import adapt, difference, masked, natively, needs_compiler, outputs, sparse
from torch import fx, nn

from bayesprune.adaptive.rewriting import rewrite


class Reread(nn.Module):
    """Its activation is read by more than the gate and the layer behind it."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(6, 6), nn.Linear(6, 6)

    def forward(self, x):
        hidden = F.relu(self.first(x))
        return self.second(hidden) + hidden.sum()


@needs_compiler
def test_rules_are_found_where_they_hold():
    torch.manual_seed(0)
    found = masked(torch.randn(2, 8), 1, nn.Linear(8, 5)).natives
    assert found == [None]  # The mask comes from elsewhere, not from what it masks.
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Dropout(), nn.Linear(8, 7), nn.Tanh(), nn.Linear(7, 3))
    x = torch.randn(4, 6)
    adaptive = adapt(sparse(model, x, kept="all"), x)
    assert [native.rectified for native in adaptive.natives] == [False, True, False]
    natively(adaptive, 1)
    assert difference(outputs(adaptive.plain, (x[:1],)), outputs(adaptive, (x[:1],))) <= 1e-5


@needs_compiler
def test_an_activation_that_others_read_stays():
    torch.manual_seed(0)
    x = torch.randn(4, 6)
    staged = sparse(Reread(), x, kept="all")
    adaptive = natively(adapt(staged, x), 1)
    assert not any(native.rectified for native in adaptive.natives)
    assert difference(outputs(staged, (x[:1],)), outputs(adaptive, (x[:1],))) <= 1e-5


IMAGES = {
    "as they are": ([], (False, False, 1)),
    "rectified": ([nn.ReLU()], (True, False, 1)),
    "pooled": ([nn.ReLU(inplace=True), nn.MaxPool2d(2)], (True, False, 2)),
    "pooled by a tuple": ([nn.ReLU(), nn.MaxPool2d((2, 2), stride=(2, 2))], (True, False, 2)),
    "pooled by lists": ([nn.ReLU(), nn.MaxPool2d([2, 2], stride=[2, 2])], (True, False, 2)),
    "pooled with overlap": ([nn.ReLU(), nn.MaxPool2d(3, 2)], None),
    "pooled with padding": ([nn.ReLU(), nn.MaxPool2d(2, padding=1)], None),
    "pooled upwards": ([nn.ReLU(), nn.MaxPool2d(2, ceil_mode=True)], None),
    "pooled by averages": ([nn.ReLU(), nn.AvgPool2d(2)], None),
    "bent": ([nn.Tanh()], (False, False, 1)),
}


@needs_compiler
@pytest.mark.parametrize("kind", IMAGES)
def test_what_native_code_knows_of_images(kind):
    between, steps = IMAGES[kind]
    torch.manual_seed(0)
    x = torch.randn(4, 3, 13, 11)
    model = nn.Sequential(nn.Conv2d(3, 8, 3), *between, nn.Conv2d(8, 5, 3, stride=2, padding=1), nn.Flatten(1), nn.LazyLinear(4))
    model(x)
    staged = sparse(model, x, kept="all")
    adaptive = natively(adapt(staged, x), 1, 3)
    found = [(each.steps.rectified, each.steps.rectify, each.steps.pool) for each in adaptive.natives if hasattr(each, "steps")]
    assert found == ([] if steps is None else [steps])
    for size in (1, 3):
        assert difference(outputs(staged, (x[:size],)), outputs(adaptive, (x[:size],))) <= 1e-5


class Functions(nn.Module):
    """ReLU and pooling as functions."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 8, 3), nn.Conv2d(8, 5, 3)

    def forward(self, x):
        return self.second(F.max_pool2d(F.relu(self.first(x)), 2)).mean(dim=(2, 3))


@needs_compiler
def test_functions_are_known_too():
    torch.manual_seed(0)
    x = torch.randn(4, 3, 13, 11)
    staged = sparse(Functions(), x, kept="all")
    adaptive = natively(adapt(staged, x), 1)
    assert [(each.steps.rectified, each.steps.rectify, each.steps.pool) for each in adaptive.natives] == [(False, True, 2)]
    assert difference(outputs(staged, (x[:1],)), outputs(adaptive, (x[:1],))) <= 1e-5


@needs_compiler
@pytest.mark.parametrize("shape", [(1, 7, 6, 6), (1, 9, 6, 6), (8, 6, 6), (1, 8, 1, 6), (1, 8, 2, 3)])
def test_images_of_another_shape_are_for_torch(shape, monkeypatch):
    torch.manual_seed(0)
    x = torch.randn(4, 3, 14, 14)
    (layer,) = adapt(sparse(Functions(), x, kept="all"), x).natives
    called = []
    monkeypatch.setattr(layer, "in_torch", lambda *_: called.append(True))
    assert layer(torch.randn(1, 8, 9, 7)).shape == (1, 5, 2, 1)  # Another size is none of its business.
    assert not called
    layer(torch.randn(shape))
    assert called


class OwnMask(nn.Module):
    """A mask of the model's own making, which looks like a gate's and is none."""

    def __init__(self, kind, images):
        super().__init__()
        self.images, self.value, self.threshold = images, 2.0 if kind == "value" else 1.0, -0.5 if kind == "negative" else 0.1
        for name in ("scale", "shift", "most"):
            tensor = torch.randn(8)
            if kind == "parameters":
                setattr(self, name, nn.Parameter(tensor, requires_grad=False))
            else:
                self.register_buffer(name, tensor)
        self.layer = nn.Conv2d(8, 5, 3) if images else nn.Linear(8, 5)

    def forward(self, x):
        read = torch.mean(x, dim=(2, 3)) if self.images else x
        options = {} if self.value == 1.0 else {"value": self.value}
        opened = torch.minimum(torch.addcmul(self.shift, read, self.scale, **options), self.most)
        mask = F.threshold(opened, threshold=self.threshold, value=0.0)
        if self.images:
            mask = torch.unsqueeze(torch.unsqueeze(mask, dim=-1), dim=-1)
        return self.layer(F.relu(torch.mul(x, mask)) if self.images else torch.mul(x, mask))


@needs_compiler
@pytest.mark.parametrize("images", [False, True])
@pytest.mark.parametrize("kind", ["alike", "value", "negative", "parameters"])
def test_masks_of_a_models_own(kind, images):
    torch.manual_seed(0)
    x = torch.randn(3, 8, 6, 6) if images else torch.randn(3, 8)
    network = fx.symbolic_trace(OwnMask(kind, images).eval())
    (threshold,) = (node for node in network.graph.nodes if "threshold" in node.name)
    edge, zero = threshold.args[1:]
    threshold.args, threshold.kwargs = threshold.args[:1], {"threshold": edge, "value": zero}  # As graphs of ours have it.
    network.recompile()
    parts = rewrite(network, (x,))
    assert [native is not None for native in parts.natives] == [kind == "alike"]
    program = parts.with_layers([], [native for native in parts.natives if native is not None])
    assert difference(outputs(network, (x,)), outputs(program, (x,))) <= 1e-5
