"""Adaptive networks on a GPU, where there is one."""

import pytest
import torch
from per_input_networks import WAYS, adapt, difference, force, from_gallery, more, outputs

import bayesprune as bp

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")
NETWORKS = ("lenet_500_300", "lenet5", "vgg", "resnet_basic", "mobilenet_v2")
SIZES = (1, 2, 33, 65)


def on_gpu(name, dtype=torch.float32, **masks):
    staged, inputs = from_gallery(name, dtype, **masks)
    return staged.cuda(), tuple(each.cuda() for each in inputs)


@pytest.fixture(autouse=True)
def exact():
    """TF32 rounds to three digits."""
    with torch.backends.cudnn.flags(allow_tf32=False):
        yield


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", NETWORKS)
def test_every_way_computes_what_the_masked_network_does(name, way, dtype):
    staged, inputs = on_gpu(name, dtype)
    adaptive = force(adapt(staged, inputs), way, *SIZES)
    for size in SIZES:
        batch = tuple(each.cuda() for each in more(inputs, size))
        assert difference(outputs(staged, batch), outputs(adaptive, batch)) <= {torch.float32: 1e-5, torch.float64: 1e-12}[dtype]


@pytest.mark.parametrize("needed", ["none", "all"])
@pytest.mark.parametrize("name", NETWORKS)
def test_masks_at_the_extremes(name, needed):
    staged, inputs = on_gpu(name, kept="all", needed=needed)
    adaptive = force(adapt(staged, inputs), "gather", *SIZES)
    for size in SIZES:
        batch = tuple(each.cuda() for each in more(inputs, size))
        assert difference(outputs(staged, batch), outputs(adaptive, batch)) <= 1e-5


def test_ways_are_measured_on_the_gpu():
    staged, inputs = on_gpu("lenet5")
    adaptive = adapt(staged, inputs, 1, 64)
    for size in (1, 64):
        assert not any(layer.way.startswith("native") for layer in adaptive.plan(size).layers)
        batch = tuple(each.cuda() for each in more(inputs, size))
        assert difference(outputs(staged, batch), outputs(adaptive, batch)) <= 1e-5


def test_from_the_processor_to_the_gpu_and_back():
    staged, inputs = from_gallery("lenet5")
    batch = more(inputs, 1)
    expected = outputs(staged, batch)
    adaptive = adapt(staged, inputs, 1)
    adaptive.cuda()
    assert outputs(adaptive, tuple(each.cuda() for each in batch)).device.type == "cuda"
    assert difference(expected, outputs(adaptive, tuple(each.cuda() for each in batch)).cpu()) <= 1e-5
    adaptive.cpu()
    assert difference(expected, outputs(adaptive, batch)) <= 1e-5


def test_exported_programs_gather_on_the_gpu():
    staged, inputs = on_gpu("lenet5")
    adaptive = adapt(staged, inputs, 1)
    program = bp.adaptive.exported_program(adaptive)
    batch = tuple(each.cuda() for each in more(inputs, 1))
    assert difference(outputs(staged, batch), outputs(program.module(), batch)) <= 1e-5
