"""The order of images in memory while a network is trained: quick, undone, and no hindrance to code that counts on the other one."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import bayesprune as bp
from bayesprune.data import TensorBatches
from bayesprune.data.dataset import Split
from bayesprune.models import LeNet5Caffe, VGGLike
from bayesprune.training.memory_format import give_back, lay_out
from bayesprune.training.recipes import StageRecipe
from bayesprune.training.trainer import StageTrainer

PIXELS, FLOAT32, BFLOAT16 = torch.channels_last, torch.float32, torch.bfloat16


class Small(nn.Module):
    """A user's network: what it does with its features is up to it."""

    def __init__(self, flatten=lambda h: h.flatten(1)):
        super().__init__()
        self.first, self.second, self.last = nn.Conv2d(1, 6, 3, padding=1), nn.Conv2d(6, 4, 3), nn.Linear(4 * 676, 3)
        self.flatten = flatten
        self.register_buffer("calls", torch.zeros(()))
        self.register_buffer("volume", torch.zeros(1, 2, 2, 2, 2))

    def forward(self, x):
        if not self.training:
            self.calls += 1
        return self.last(self.flatten(F.relu(self.second(F.relu(self.first(x))))))


def refusing(h):
    assert h.is_contiguous()
    return h.flatten(1)


def lenet():
    torch.manual_seed(0)
    return LeNet5Caffe(num_classes=3)


def batches():
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (40, 1, 28, 28), dtype=torch.uint8, generator=generator)
    return TensorBatches(Split(images, torch.randint(0, 3, (40,), generator=generator)), (0.5,), (0.25,), 10, "cpu")


def formats(model):
    return {name: weight.stride() for name, weight in model.named_parameters()}


def second(model):
    return [each for each in model.modules() if isinstance(each, nn.Conv2d)][1].weight


def trained(model, epochs=2, **options):
    stage = StageTrainer([model], batches(), StageRecipe(epochs=epochs), F.cross_entropy, **options)
    for _ in range(epochs):
        stage.train_epoch(lambda loss: None)
    return stage


@pytest.mark.parametrize(("build", "precision"), [(lenet, FLOAT32), (lenet, BFLOAT16), (Small, BFLOAT16)])
def test_weights_are_laid_out_and_given_back(build, precision):
    model = build()
    before, strides = {name: tensor.clone() for name, tensor in model.state_dict().items()}, formats(model)
    changed = lay_out(model, batches(), precision)
    assert any(weight is second(model) for weight in changed)
    assert second(model).is_contiguous(memory_format=PIXELS)
    give_back(changed)
    assert formats(model) == strides
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items()), "counters as well"


@pytest.mark.parametrize(
    ("model", "precision"),
    [
        (Small(), FLOAT32),
        (VGGLike(), FLOAT32),
        (lenet().double(), FLOAT32),
        (nn.Sequential(nn.Flatten(), nn.Linear(784, 3)), BFLOAT16),
        (Small(lambda h: h.view(h.size(0), -1)), BFLOAT16),
        (Small(refusing), BFLOAT16),
        (Small(lambda h: torch.as_strided(h, (len(h), 2704), (2704, 1))), BFLOAT16),
        (lenet().to(memory_format=PIXELS), FLOAT32),
    ],
    ids=["a user's", "wide", "double precision", "no images", "views", "errors", "strides", "laid out by its owner"],
)
def test_others_are_left_alone(model, precision):
    before = formats(model)
    assert not lay_out(model, batches(), precision)
    assert formats(model) == before


@pytest.mark.parametrize("shrink", [False, True], ids=["whole", "shrinking"])
def test_a_stage_ends_in_the_format_that_it_began_in(shrink):
    gated = bp.sparsify(lenet(), "bb")
    before = formats(gated)
    with torch.no_grad():
        for gate in bp.gates(gated).values():
            gate.raw_a[:2] = -20.0
    stage = trained(gated, shrink=shrink)
    assert bool(stage.removals) == shrink
    assert not second(stage.first).is_contiguous()
    assert formats(stage.write_back()[0]) == before
    assert not second(trained(lenet().to(memory_format=PIXELS)).write_back()[0]).is_contiguous()


def test_the_same_is_learned(monkeypatch):
    laid_out = trained(lenet()).write_back()[0]
    monkeypatch.setattr("bayesprune.training.trainer.lay_out", lambda *_: [])
    plain = trained(lenet()).write_back()[0]
    for (name, one), other in zip(laid_out.named_parameters(), plain.parameters(), strict=True):
        assert torch.allclose(one, other, atol=1e-4), name


def test_a_stage_that_was_interrupted_ends_with_the_same_bits():
    whole = trained(lenet(), 3).write_back()[0]
    first = StageTrainer([lenet()], batches(), StageRecipe(epochs=3), F.cross_entropy)
    first.train_epoch(lambda loss: None)
    kept = copy.deepcopy(first.state())
    again = StageTrainer([lenet()], batches(), StageRecipe(epochs=3), F.cross_entropy)
    again.load_state(kept, 1)
    for _ in range(2):
        again.train_epoch(lambda loss: None)
    assert all(torch.equal(a, b) for a, b in zip(whole.parameters(), again.write_back()[0].parameters(), strict=True))


def test_fit_trains_models_that_view_their_features_in_bfloat16():
    data = torch.utils.data.TensorDataset(torch.rand(40, 1, 28, 28), torch.randint(0, 3, (40,)))
    model = Small(lambda h: h.view(h.size(0), -1))
    result = bp.fit(model, torch.utils.data.DataLoader(data, 10), method="bb", precision="bfloat16", epochs=1, progress=False)
    assert len(result.stages) == 2
