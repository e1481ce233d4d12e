"""Files with gates into models that they do not fit: nothing is rounded, tied or untied without a word."""

import copy

import pytest
import torch
from torch import nn

from bayesprune import make_dependent, sparsify
from bayesprune.artifact import file, load, save
from bayesprune.errors import InputError, StorageError

X = torch.randn(3, 6)


class Tied(nn.Module):
    def __init__(self, tie):
        super().__init__()
        self.a, self.b, self.c, self.d = nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 4), nn.Linear(4, 2)
        if tie:
            self.b.weight = self.a.weight

    def forward(self, x):
        return self.d(torch.relu(self.c(self.b(self.a(x)))))


def saved(model, path, dependent=False):
    gated = sparsify(model.eval(), "bb", example_inputs=X)
    save(make_dependent(gated) if dependent else gated, path)
    return path


@pytest.mark.parametrize("in_file", [False, True])
def test_ties_that_only_one_of_them_has(tmp_path, in_file):
    path = saved(Tied(in_file), tmp_path / "a")
    restored = load(path, into=Tied(in_file))
    assert (restored.a.weight is restored.b.weight) == in_file
    with pytest.raises(InputError, match=r"'a.weight' and 'b.weight' are tied"):
        load(path, into=Tied(not in_file))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_another_precision(tmp_path, dtype):
    path = saved(Tied(False), tmp_path / "a")
    with pytest.raises(InputError, match=f"{dtype} in the model and torch.float32 in the file"):
        load(path, into=Tied(False).to(dtype))


def test_half_precision_as_saved(tmp_path):
    model = Tied(False).eval()
    half = sparsify(model, "bb", example_inputs=X).half()
    save(half, tmp_path / "a")
    restored = load(tmp_path / "a", into=copy.deepcopy(model).half()).eval()
    assert torch.equal(restored(X.half()), half.eval()(X.half()))


def test_model_without_memory(tmp_path):
    path = saved(Tied(False), tmp_path / "a")
    with pytest.raises(InputError, match="without memory"):
        load(path, into=Tied(False).to("meta"))


@pytest.fixture
def changed(tmp_path, write_description):
    """A file with gates after a change to its description and tensors."""

    def change(damage, dependent=False):
        tensors, description = file.read(saved(Tied(False), tmp_path / "good", dependent))
        damage(description, tensors)
        for name, plan in description["tensors"]["stored"].items():
            plan.update(dtype=str(tensors[name].dtype).removeprefix("torch."), shape=list(tensors[name].shape), trainable=False)
        return write_description(tmp_path / "changed", tensors, description)

    return change


@pytest.mark.parametrize("value", [1.0, -1.0, True, "1", 0])
def test_channel_dimensions_that_are_none(changed, value):
    path = changed(lambda description, _: description["gates"][0].update(channel_dim=value))
    with pytest.raises(StorageError, match="channel_dim"):
        load(path, into=Tied(False))


def converted(ending, dtype):
    def convert(_, tensors):
        for name in tensors:
            if name.endswith(ending):
                tensors[name] = tensors[name].to(dtype)

    return convert


@pytest.mark.parametrize(
    ("ending", "dtype", "dependent"),
    [
        ("raw_a", torch.complex64, False),
        ("raw_a", torch.int64, False),
        ("raw_a", torch.bool, False),
        ("raw_a", torch.float64, False),
        ("running_mean", torch.float64, True),
        ("scale", torch.float16, True),
    ],
)
def test_gates_of_other_types(changed, ending, dtype, dependent):
    with pytest.raises(StorageError, match="its tensors are of the types"):
        load(changed(converted(ending, dtype), dependent), into=Tied(False))


@pytest.mark.parametrize("dtype", [torch.float32, torch.int32, torch.complex64])
def test_groups_of_other_types(changed, dtype):
    def add_groups(description, tensors):
        gate = description["gates"][0]
        name = f"{gate['name']}.units.groups"
        tensors[name] = torch.arange(gate["units"]).to(dtype)
        description["tensors"]["stored"][name] = {"role": "buffer", "persistent": False}

    with pytest.raises(StorageError, match="its groups are of type"):
        load(changed(add_groups), into=Tied(False))


def test_messages_are_one_line_without_escapes(changed):
    evil = "x\n\x1b[2J\x07"
    for damage in (
        lambda description, _: description["gates"][0].update(name=evil),
        lambda description, _: description["gates"][0].update(controls=[[evil, "inputs"]]),
        lambda description, _: description["gates"][0].update(controls=[["d", "outputs"]]),
        lambda description, _: description.update(model=evil, gates=[]),
    ):
        path = changed(damage)
        for into in (None, Tied(False)):
            with pytest.raises((InputError, StorageError)) as caught:
                load(path, into=into)
            assert str(caught.value).isprintable()
