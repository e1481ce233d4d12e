import copy

import pytest
import torch
from torch import nn

from bayesprune.attach import make_dependent, placement, sparsify
from bayesprune.errors import InputError
from bayesprune.models import LeNet5Caffe

X = torch.randn(2, 1, 8, 8)


def chain():
    """The second convolution's channels are mixed by the norm behind it, all of them."""
    return nn.Sequential(
        nn.Conv2d(1, 4, 3),
        nn.ReLU(),
        nn.Conv2d(4, 4, 3, groups=2),
        nn.GroupNorm(1, 4),
        nn.AdaptiveAvgPool2d(2),
        nn.Flatten(),
        nn.Linear(16, 2),
    )


def test_rows_name_the_gate_its_method_and_what_it_controls():
    rows = placement(sparsify(LeNet5Caffe(channels=(2, 3), hidden=4), "vib")).gates
    assert [(row.gate, row.method, row.units, row.controls) for row in rows] == [
        ("conv1.output_gate", "vib", 2, "outputs of conv1"),
        ("conv2.output_gate", "vib", 3, "outputs of conv2"),
        ("fc1.input_gate", "vib", 48, "inputs of fc1"),
        ("fc2.input_gate", "vib", 4, "inputs of fc2"),
    ]


def test_layers_left_alone_and_why():
    found = placement(sparsify(chain(), "bb", example_inputs=X))
    assert [row.gate for row in found.gates] == ["6.input_gate"]
    assert {row.layer: row.reason for row in found.left_alone} == {
        "0": "2 (Conv2d) needs all of its units",
        "2": "3 (GroupNorm) normalises its units together",
    }


@pytest.mark.parametrize("before_norm", [False, True])
def test_excluded_layers_are_named(before_norm):
    model = LeNet5Caffe(channels=(2, 3), hidden=4)
    found = placement(sparsify(model, "bb", exclude=["conv*"], before_norm=before_norm))
    assert {row.layer: row.reason for row in found.left_alone} == dict.fromkeys(("conv1", "conv2"), "left out by include or exclude")
    assert placement(sparsify(model, "bb", before_norm=before_norm)).left_alone == ()


def test_it_prints_as_an_aligned_table():
    lines = str(placement(sparsify(chain(), "bb", example_inputs=X))).splitlines()
    assert lines[0].split() == ["gate", "method", "units", "controls"]
    assert lines[1].split(maxsplit=3) == ["6.input_gate", "bb", "16", "inputs of 6"]
    assert lines[0].index("method") == lines[1].index("bb")
    assert lines[2].startswith("left alone: 0: ")
    assert len(lines) == 4


def test_a_trained_copied_or_staged_model_has_the_same_placement():
    gated = sparsify(chain(), "bb", example_inputs=X)
    before = placement(gated)
    gated.train()(X).sum().backward()
    assert placement(copy.deepcopy(gated)) == before
    staged = placement(make_dependent(gated))
    assert [(row.gate, row.units, row.controls) for row in staged.gates] == [(row.gate, row.units, row.controls) for row in before.gates]
    assert staged.left_alone == before.left_alone


def test_no_gates():
    with pytest.raises(InputError, match="no gates"):
        placement(chain())
