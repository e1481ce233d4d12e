"""The order of images in memory while a network is trained: quick, undone, and no hindrance to code that counts on the other one."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import bayesprune as bp
from bayesprune.data import TensorBatches
from bayesprune.data.dataset import Split
from bayesprune.training.memory_format import give_back, lay_out
from bayesprune.training.recipes import StageRecipe
from bayesprune.training.trainer import StageTrainer

PIXELS = torch.channels_last


class Small(nn.Module):
    """Its features are flattened by a view, or by a function that takes either format."""

    def __init__(self, view):
        super().__init__()
        self.first, self.second, self.last = nn.Conv2d(1, 6, 3, padding=1), nn.Conv2d(6, 4, 3), nn.Linear(4 * 9, 3)
        self.view = view
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x):
        if not self.training:
            self.calls += 1
        x = F.max_pool2d(F.relu(self.second(F.max_pool2d(F.relu(self.first(x)), 2))), 1)
        return self.last(x.view(x.size(0), -1) if self.view else x.flatten(1))


def network(view=False):
    torch.manual_seed(0)
    return Small(view)


def wide():
    return nn.Sequential(nn.Conv2d(1, 4, 3), nn.Conv2d(4, 512, 3), nn.Flatten())


def batches():
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (40, 1, 10, 10), dtype=torch.uint8, generator=generator)
    return TensorBatches(Split(images, torch.randint(0, 3, (40,), generator=generator)), (0.5,), (0.25,), 10, "cpu")


def formats(model):
    return {name: weight.is_contiguous() for name, weight in model.named_parameters()}


def trained(model, epochs=2, **options):
    stage = StageTrainer([model], batches(), StageRecipe(epochs=epochs), F.cross_entropy, **options)
    for _ in range(epochs):
        stage.train_epoch(lambda loss: None)
    return stage


def test_wide_networks_are_laid_out_for_bfloat16():
    assert lay_out(wide(), batches(), torch.bfloat16)


def test_a_network_of_convolutions_is_laid_out_and_given_back():
    model = network()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    assert lay_out(model, batches(), torch.float32)
    assert model.second.weight.is_contiguous(memory_format=PIXELS)
    assert not model.second.weight.is_contiguous()
    give_back(model)
    assert all(formats(model).values())
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items()), "counters as well"


@pytest.mark.parametrize(
    "model",
    [
        network(view=True),
        network().double(),
        nn.Sequential(nn.Flatten(), nn.Linear(100, 3)),
        network().to(memory_format=PIXELS),
        wide(),
    ],
    ids=["code that counts on the other format", "double precision", "no images", "laid out by its owner", "wide"],
)
def test_others_are_left_alone(model):
    before = formats(model)
    assert not lay_out(model, batches(), torch.float32)
    assert formats(model) == before


@pytest.mark.parametrize("shrink", [False, True], ids=["whole", "shrinking"])
def test_a_stage_ends_in_the_format_that_it_began_in(shrink):
    gated = bp.sparsify(network(), "bb", example_inputs=torch.rand(2, 1, 10, 10))
    with torch.no_grad():
        for gate in bp.gates(gated).values():
            gate.raw_a[:2] = -20.0
    stage = trained(gated, shrink=shrink)
    assert bool(stage.removals) == shrink
    assert not stage.first.second.weight.is_contiguous()
    (model,) = stage.write_back()
    assert all(formats(model).values())
    assert formats(trained(network().to(memory_format=PIXELS)).write_back()[0])["second.weight"] is False


def test_the_same_is_learned(monkeypatch):
    laid_out = trained(network()).write_back()[0]
    monkeypatch.setattr("bayesprune.training.trainer.lay_out", lambda *_: False)
    plain = trained(network()).write_back()[0]
    for (name, one), other in zip(laid_out.named_parameters(), plain.parameters(), strict=True):
        assert torch.allclose(one, other, atol=1e-5), name


def test_a_stage_that_was_interrupted_ends_with_the_same_bits():
    whole = trained(network(), 3).write_back()[0]
    first = StageTrainer([network()], batches(), StageRecipe(epochs=3), F.cross_entropy)
    first.train_epoch(lambda loss: None)
    kept = copy.deepcopy(first.state())
    second = StageTrainer([network()], batches(), StageRecipe(epochs=3), F.cross_entropy)
    second.load_state(kept, 1)
    for _ in range(2):
        second.train_epoch(lambda loss: None)
    assert all(torch.equal(a, b) for a, b in zip(whole.parameters(), second.write_back()[0].parameters(), strict=True))


def test_fit_trains_models_that_view_their_features_in_bfloat16():
    data = torch.utils.data.TensorDataset(torch.rand(40, 1, 10, 10), torch.randint(0, 3, (40,)))
    result = bp.fit(network(view=True), torch.utils.data.DataLoader(data, 10), method="bb", precision="bfloat16", epochs=1, progress=False)
    assert len(result.stages) == 2
