"""The C kernels compute what torch does, and are done without where they cannot be compiled."""

import itertools
import math
import subprocess

import pytest
import torch
import torch.nn.functional as F
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from per_input_networks import BOUNDS, needs_compiler

from bayesprune.adaptive.native import compiling
from bayesprune.adaptive.native import gated_convolution as of_images
from bayesprune.adaptive.native import gated_linear as of_vectors
from bayesprune.adaptive.native.gated_convolution import Steps, gated_convolution, geometry_of, packed
from bayesprune.adaptive.native.gated_linear import gated_linear, kernel, mask_in_torch

SIDES = st.integers(1, 3)


@needs_compiler
@settings(max_examples=60)
@given(
    dtype=st.sampled_from(list(BOUNDS)),
    batch=st.integers(0, 65),
    units=st.integers(1, 70),
    outputs_=st.integers(1, 70),
    rectified=st.booleans(),
    biased=st.booleans(),
    shift=st.sampled_from([-100.0, -0.5, 0.5, 100.0]),
    seed=st.integers(0, 999),
)
def test_the_kernel_gives_what_torch_gives(dtype, batch, units, outputs_, rectified, biased, shift, seed):
    torch.manual_seed(seed)
    x, weights, rule = (torch.randn(shape, dtype=dtype) for shape in ((batch, units), (units, 1, outputs_), (3, units)))
    rule[1] += shift
    bias = torch.randn(outputs_, dtype=dtype) if biased else None
    read = x.clamp(min=0.0) if rectified else x
    expected = F.linear(read * mask_in_torch(read, rule, 1e-3), weights[:, 0].T, bias)
    found = gated_linear(kernel(dtype), x, rule, 1e-3, rectified, weights, bias)
    assert found.dtype == dtype
    assert found.shape == expected.shape
    torch.testing.assert_close(found, expected, rtol=100 * BOUNDS[dtype], atol=10 * BOUNDS[dtype])


def by_torch(x, rule, threshold, steps, weights, bias, norm=None):
    read = x.clamp(min=0.0) if steps.rectified else x
    y = read if rule is None else read * mask_in_torch(read.mean(dim=(2, 3)), rule, threshold)[:, :, None, None]
    y = F.max_pool2d(y.clamp(min=0.0) if steps.rectify else y, steps.pool)
    result = F.conv2d(y, weights.movedim(-1, 0), bias, steps.stride, steps.padding, steps.dilation)
    return result if norm is None else result * norm[0][:, None, None] + norm[1][:, None, None]


def natively(x, rule, threshold, steps, weights, bias, norm=None):
    own = packed(weights, bias, norm)
    return gated_convolution(of_images.kernel(x.dtype), x, rule, threshold, geometry_of(steps, *x.shape[1:], own.outputs), own)


@needs_compiler
@settings(max_examples=200)
@given(
    dtype=st.sampled_from(list(BOUNDS)),
    steps=st.builds(
        Steps,
        st.booleans(),
        st.booleans(),
        SIDES,
        *[st.tuples(SIDES, SIDES)] * 2,
        st.tuples(*[st.integers(0, 2)] * 2),
        st.tuples(SIDES, SIDES),
    ),
    sizes=st.tuples(st.integers(0, 4), st.integers(1, 9), st.integers(1, 12), st.integers(1, 12), st.integers(1, 70)),
    biased=st.booleans(),
    normed=st.booleans(),
    shift=st.sampled_from([None, -100.0, 0.0, 0.5, 100.0]),
    seed=st.integers(0, 999),
)
def test_the_kernel_for_images_gives_what_torch_gives(dtype, steps, sizes, biased, normed, shift, seed):
    batch, units, height, width, count = sizes
    assume(geometry_of(steps, units, height, width, count) is not None)
    torch.manual_seed(seed)
    shapes = ((batch, units, height, width), (3, units), (units, *steps.kernel_size, count), (3, count))
    x, rule, weights, (bias, *norm) = (torch.randn(shape, dtype=dtype) for shape in shapes)
    rule = None if shift is None else torch.stack([rule[0], rule[1] + shift, rule[2]])
    arguments = (x, rule, 1e-3, steps, weights, bias if biased else None, norm if normed else None)
    found, expected = natively(*arguments), by_torch(*arguments)
    assert found.shape == expected.shape
    torch.testing.assert_close(found, expected, rtol=100 * BOUNDS[dtype], atol=100 * BOUNDS[dtype])


@needs_compiler
def test_nothing_is_written_beside_the_place_to_work_in(monkeypatch):
    """The last channel's border is the end of the memory that native code is given."""
    torch.manual_seed(0)
    guard = 64
    given_out = []

    def guarded(x, *size):
        count = math.prod(size[0] if isinstance(size[0], (tuple, list, torch.Size)) else size)
        whole = torch.full((count + 2 * guard,), 7.0, dtype=x.dtype)
        given_out.append(whole)
        return whole[guard : guard + count].view(*size)

    monkeypatch.setattr(torch.Tensor, "new_empty", guarded)
    for padding, pool in itertools.product([(0, 0), (0, 2), (2, 0), (1, 3)], (1, 2, 3)):
        steps = Steps(True, False, pool, (1, 1), (1, 1), padding, (1, 1))
        x, weights = torch.randn(2, 3, 7, 8), torch.randn(3, 1, 1, 21)
        found = natively(x, torch.ones(3, 3), 1e-3, steps, weights, None)
        torch.testing.assert_close(found, by_torch(x, torch.ones(3, 3), 1e-3, steps, weights, None))
    assert len(given_out) >= 24
    for whole in given_out:
        assert (whole[:guard] == 7.0).all()
        assert (whole[-guard:] == 7.0).all()


@needs_compiler
def test_pixels_that_are_no_numbers_stay_so():
    torch.manual_seed(0)
    steps = Steps(False, True, 2, (2, 2), (1, 1), (0, 0), (1, 1))
    x, weights, rule = torch.randn(2, 3, 6, 6), torch.rand(3, 2, 2, 4), 1.0 + torch.rand(3, 3)
    x[1, 1, 0, 1] = torch.nan
    found = natively(x, rule, 1e-3, steps, weights, None)
    torch.testing.assert_close(found, by_torch(x, rule, 1e-3, steps, weights, None), equal_nan=True)
    assert found[0].isfinite().all()
    assert found[1].isnan().all()  # The mean of its channel is none either.
    without = natively(x, None, 0.0, steps, weights, None)
    torch.testing.assert_close(without, by_torch(x, None, 0.0, steps, weights, None), equal_nan=True)
    assert without[1].isnan().any()
    assert not without[1].isnan().all()


@needs_compiler
@pytest.mark.parametrize("value", [torch.nan, torch.inf])
@pytest.mark.parametrize("rectified", [False, True])
def test_what_is_no_number_stays_so(value, rectified):
    torch.manual_seed(0)
    x, weights, rule = torch.randn(1, 9), torch.rand(9, 5), torch.rand(3, 9)
    x[0, 3] = value
    read = torch.relu(x) if rectified else x
    expected = (read * mask_in_torch(read, rule, 1e-3)) @ weights
    found = gated_linear(kernel(torch.float32), x, rule, 1e-3, rectified, weights, None)
    torch.testing.assert_close(found, expected, equal_nan=True)


@needs_compiler
def test_what_computes_something_else_is_not_used(monkeypatch, anew):
    for module in (of_vectors, of_images):
        monkeypatch.setattr(module, "compiled", lambda *_, **_options: lambda *_arguments: None)
        assert module.kernel(torch.float32) is None


@needs_compiler
def test_a_compiler_that_does_not_know_this_machine_is_asked_again(tmp_path, monkeypatch, anew):
    script = '#!/bin/sh\nfor word; do [ "$word" = -march=native ] && exit 1; done\nexec cc "$@"\n'
    (tmp_path / "old-cc").write_text(script)
    (tmp_path / "old-cc").chmod(0o755)
    monkeypatch.setenv("CC", str(tmp_path / "old-cc"))
    assert kernel(torch.float32) is not None
    assert of_images.kernel(torch.float64) is not None


@needs_compiler
@pytest.mark.parametrize("dtype", BOUNDS)
def test_masks_at_their_threshold_are_those_of_torch(dtype):
    """Rounding decides there, and must decide alike."""
    torch.manual_seed(0)
    count, threshold = 4000, 1e-3
    x, scale = torch.randn(1, count, dtype=dtype), torch.rand(count, dtype=dtype) + 0.5
    shift = torch.full((count,), threshold, dtype=dtype) - x[0] * scale
    rule = torch.stack([scale, shift, torch.ones(count, dtype=dtype)])
    opened = mask_in_torch(x, rule, threshold)[0] != 0
    assert 0 < opened.sum() < count
    found = gated_linear(kernel(dtype), x, rule, threshold, False, torch.eye(count, dtype=dtype), None)[0] != 0
    assert found.equal(opened & (x[0] != 0))
    steps = Steps(False, False, 1, (1, 1), (1, 1), (0, 0), (1, 1))
    few = slice(0, 256)
    images = natively(
        x[:, few, None, None].contiguous(), rule[:, few].contiguous(), threshold, steps, torch.eye(256, dtype=dtype)[:, None, None], None
    )
    assert (images.flatten() != 0).equal(found[few])


@needs_compiler
@pytest.mark.skipif(compiling._openmp() is None, reason="the threads of torch cannot be told")
def test_the_threads_are_those_of_torch(monkeypatch, anew):
    commands = []
    run = subprocess.run
    monkeypatch.setattr(compiling.subprocess, "run", lambda command, **options: commands.append(command) or run(command, **options))
    assert of_images.kernel(torch.float32) is not None
    assert len(commands) == 2  # The first way succeeds.
    assert "-fopenmp" in commands[0]
    assert compiling._openmp() in commands[1]


@needs_compiler
@pytest.mark.parametrize("loaded", ["nothing", "no file", "two", "nonsense", "not a library"])
def test_without_the_threads_of_torch_one_is_enough(loaded, tmp_path, monkeypatch, anew):
    (tmp_path / "libgomp.so.1").write_text("nonsense")
    lines = {
        "nothing": "",
        "two": "0-1 r-xp 0 0:0 1 /a/libgomp.so.1\n0-1 r-xp 0 0:0 1 /a/libomp.so\n",
        "nonsense": "\n\nlibgomp\n0",
        "not a library": f"0-1 r-xp 0 0:0 1 {tmp_path / 'libgomp.so.1'}\n",
    }
    if loaded in lines:
        (tmp_path / "maps").write_text(lines[loaded])
    monkeypatch.setattr(compiling, "_LOADED", tmp_path / "maps")
    x, rule, weights = torch.randn(1, 3, 5, 5), torch.rand(3, 3), torch.randn(3, 2, 2, 4)
    steps = Steps(False, True, 1, (2, 2), (1, 1), (0, 0), (1, 1))
    torch.testing.assert_close(natively(x, rule, 1e-3, steps, weights, None), by_torch(x, rule, 1e-3, steps, weights, None))


@needs_compiler
@pytest.mark.parametrize("side", [300, 700])
def test_means_of_large_images_are_exact(side):
    """Sums of many numbers of one sign lose digits, and a sensitive mask shows it."""
    torch.manual_seed(0)
    steps = Steps(False, False, 1, (1, 1), (side, side), (0, 0), (1, 1))
    x = 100.0 + torch.randn(1, 2, side, side)
    rule = torch.tensor([[1e3, 1e3], [-99_999.0, -99_999.0], [9e9, 9e9]])
    weights = torch.ones(2, 1, 1, 1)
    found = natively(x, rule, 1e-3, steps, weights, None)
    expected = by_torch(x.double(), rule.double(), 1e-3, steps, weights.double(), None)
    torch.testing.assert_close(found.double(), expected, rtol=2e-2, atol=0.0)  # The mask has 1e3 times the mean's relative rounding.


@needs_compiler
def test_a_default_device_does_not_matter(anew):
    x, rule, weights = torch.randn(1, 3, 5, 5), torch.rand(3, 3), torch.randn(3, 2, 2, 4)
    steps = Steps(False, True, 1, (2, 2), (1, 1), (0, 0), (1, 1))
    with torch.device("meta"):
        found = natively(x, rule, 1e-3, steps, weights, None)
        vectors = gated_linear(kernel(torch.float32), x[:, :, 0, 0], rule, 1e-3, False, weights[:, 0, 0].contiguous(), None)
    assert found.device.type == vectors.device.type == "cpu"
    torch.testing.assert_close(found, by_torch(x, rule, 1e-3, steps, weights, None))
