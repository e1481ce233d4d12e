"""Files of narrower models that say something impossible."""

import pytest
import torch
from torch import nn

import bayesprune as bp
from bayesprune.artifact import file
from bayesprune.errors import InputError, StorageError


class Network(nn.Module):
    """A grouped convolution stays whole; the linear layer picks from the flattened maps that are left."""

    def __init__(self):
        super().__init__()
        self.first, self.grouped, self.last = nn.Conv2d(2, 8, 3), nn.Conv2d(8, 8, 3, groups=2), nn.Conv2d(8, 6, 3)
        self.norm, self.linear = nn.BatchNorm2d(6), nn.Linear(24, 5)

    def forward(self, x):
        x = torch.relu(self.grouped(torch.relu(self.first(x))))
        return self.linear(torch.relu(self.norm(self.last(x))).flatten(1))


def build():
    torch.manual_seed(0)
    return Network().eval()


@pytest.fixture
def narrower(tmp_path):
    x = torch.randn(2, 2, 8, 8)
    model = bp.sparsify(build(), "bb", example_inputs=x)
    for gate in bp.gates(model).values():
        gate.prune(torch.arange(0, gate.num_units, 3))
    bp.save(bp.narrow(model, x).model, tmp_path / "narrower.safetensors")
    return file.read(tmp_path / "narrower.safetensors")


def of_gate(description, name, **values):
    next(gate for gate in description["gates"] if gate["name"] == name).update(values)


def sizes(**values):
    return lambda description, tensors: description["sizes"].update(values)


def picks(**values):
    return lambda description, tensors: description["picks"].update(values)


def tensor(name, change):
    return lambda description, tensors: tensors.update({name: change(tensors[name])})


def test_as_it_is_it_loads(narrower, tmp_path, write_description):
    tensors, description = narrower
    assert {"sizes", "picks"} <= description.keys()
    assert description["picks"]
    again = bp.load(write_description(tmp_path / "a", tensors, description), into=build())
    assert again.linear.input_pick.arriving == description["picks"]["linear"]


@pytest.mark.parametrize(
    "damage",
    [
        sizes(grouped=[6, 8]),
        sizes(grouped=[8, 6]),
        sizes(last=[0, 6]),
        sizes(last=[-1, 6]),
        sizes(last=[8, 60]),
        sizes(last=[8]),
        sizes(last=[8, 6, 6]),
        sizes(last=[8.0, 6]),
        sizes(last=[True, 6]),
        sizes(last="8, 6"),
        sizes(norm=[6, 6]),
        sizes(nothing=[1, 1]),
        sizes(**{"last.__class__": [1, 1]}),
        lambda description, tensors: description.update(sizes=3),
        lambda description, tensors: description.pop("sizes"),
        picks(linear=1),
        picks(linear=-1),
        picks(linear=None),
        picks(linear=2**80),
        picks(last=3),
        picks(nothing=3),
        lambda description, tensors: description.update(picks=[]),
        lambda description, tensors: description.pop("picks"),
        tensor("linear.input_pick.index", lambda index: torch.zeros_like(index)),
        tensor("linear.input_pick.index", lambda index: -index),
        tensor("linear.input_pick.index", lambda index: index.flip(0)),
        tensor("linear.input_gate.noise_columns", lambda columns: torch.zeros_like(columns)),
        tensor("linear.input_gate.noise_columns", lambda columns: columns + 1000),
        lambda description, tensors: of_gate(description, "linear.input_gate", whole=1),
        lambda description, tensors: of_gate(description, "linear.input_gate", whole="many"),
        lambda description, tensors: of_gate(description, "linear.input_gate", units=3),
    ],
)
def test_impossible_files_are_refused(narrower, damage, tmp_path, write_description):
    tensors, description = narrower
    tensors = dict(tensors)
    damage(description, tensors)
    with pytest.raises(bp.BayespruneError) as caught:
        bp.load(write_description(tmp_path / "damaged", tensors, description), into=build())
    assert isinstance(caught.value, (StorageError, InputError))


def test_a_model_with_an_odd_weight_is_another_model(narrower, tmp_path, write_description):
    model = build()
    model.linear.weight = nn.Parameter(torch.randn(5, 30))
    with pytest.raises(InputError, match="saved from another model"):
        bp.load(write_description(tmp_path / "a", *narrower), into=model)
