"""Native code computes what torch does, and is done without where it cannot be used."""

import copy
import pickle
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
import torch.nn.functional as F
from gallery import GALLERY
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from per_input_networks import BOUNDS, adapt, difference, force, from_gallery, masked, more, outputs, sparse
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

import bayesprune as bp
from bayesprune.adaptive.native import gated_convolution as of_images
from bayesprune.adaptive.native import gated_linear as of_vectors
from bayesprune.adaptive.native.gated_convolution import Steps, gated_convolution
from bayesprune.adaptive.native.gated_linear import gated_linear, kernel, mask_in_torch
from bayesprune.adaptive.plan import ExecutionPlan
from bayesprune.adaptive.work import count_work

needs_compiler = pytest.mark.skipif(kernel(torch.float32) is None, reason="there is no C compiler")


SIDES = st.integers(1, 3)


@pytest.fixture
def anew():
    """Everything is compiled anew, and again after the test."""
    for kernels in (of_vectors.kernel, of_images.kernel):
        kernels.cache_clear()
    yield
    for kernels in (of_vectors.kernel, of_images.kernel):
        kernels.cache_clear()


def natively(adaptive, *sizes):
    """Let native code compute all that it can, for batches of these sizes, as if that had been planned."""
    force(adaptive, "native", *sizes)
    for size in sizes:
        adaptive.plans[size] = ExecutionPlan(size, (), (), 2.0, 1.0)
    return adaptive


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


def by_torch(x, rule, threshold, steps, weights, bias):
    read = x.clamp(min=0.0) if steps.rectified else x
    y = read * mask_in_torch(read.mean(dim=(2, 3)), rule, threshold)[:, :, None, None]
    y = F.max_pool2d(y.clamp(min=0.0) if steps.rectify else y, steps.pool)
    return F.conv2d(y, weights.movedim(-1, 0), bias, steps.stride, steps.padding, steps.dilation)


@needs_compiler
@settings(max_examples=150)
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
    sizes=st.tuples(st.integers(0, 4), st.integers(1, 9), st.integers(1, 12), st.integers(1, 12), st.integers(1, 40)),
    biased=st.booleans(),
    shift=st.sampled_from([-100.0, 0.0, 0.5, 100.0]),
    seed=st.integers(0, 999),
)
def test_the_kernel_for_images_gives_what_torch_gives(dtype, steps, sizes, biased, shift, seed):
    batch, units, height, width, count = sizes
    assume(min(height, width) >= steps.pool and min(steps.result_size(height, width)) > 0)
    torch.manual_seed(seed)
    shapes = ((batch, units, height, width), (3, units), (units, *steps.kernel_size, count))
    x, rule, weights = (torch.randn(shape, dtype=dtype) for shape in shapes)
    rule[1] += shift
    bias = torch.randn(count, dtype=dtype) if biased else None
    found = gated_convolution(of_images.kernel(dtype), x, rule, 1e-3, steps, weights, bias)
    expected = by_torch(x, rule, 1e-3, steps, weights, bias)
    assert found.shape == expected.shape
    torch.testing.assert_close(found, expected, rtol=100 * BOUNDS[dtype], atol=100 * BOUNDS[dtype])


@needs_compiler
def test_pixels_that_are_no_numbers_stay_so():
    torch.manual_seed(0)
    steps = Steps(False, True, 2, (2, 2), (1, 1), (0, 0), (1, 1))
    x, weights, rule = torch.randn(2, 3, 6, 6), torch.rand(3, 2, 2, 4), 1.0 + torch.rand(3, 3)
    x[1, 1, 2, 3] = torch.nan
    found = gated_convolution(of_images.kernel(torch.float32), x, rule, 1e-3, steps, weights, None)
    torch.testing.assert_close(found, by_torch(x, rule, 1e-3, steps, weights, None), equal_nan=True)
    assert found[0].isfinite().all()
    assert found[1].isnan().all()  # The mean of its channel is none either.


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
@pytest.mark.parametrize("dtype", BOUNDS)
@pytest.mark.parametrize("name", ["lenet_500_300", "lenet5", "mlp", "mlp_functional", "vgg"])
@pytest.mark.parametrize("needed", ["some", "none", "all"])
def test_networks_compute_the_same(name, needed, dtype):
    staged, inputs = from_gallery(name, dtype, needed=needed)
    sizes = (1, 2, 7)
    adaptive = natively(adapt(staged, inputs), *sizes)
    assert len(adaptive.natives) > 0
    for size in sizes:
        batch = more(inputs, size)
        assert difference(outputs(staged, batch), outputs(adaptive, batch)) <= BOUNDS[dtype]


@needs_compiler
def test_native_code_is_really_called(monkeypatch):
    staged, inputs = from_gallery("lenet5")
    adaptive = natively(adapt(staged, inputs), 1)
    called = []
    for layer in adaptive.natives:
        monkeypatch.setattr(layer, "_run", lambda *arguments, run=layer._run: called.append(True) or run(*arguments))
    outputs(adaptive, more(inputs, 1))
    assert len(called) == len(adaptive.natives) > 1


@needs_compiler
def test_who_counts_operations_sees_those_of_torch():
    staged, inputs = from_gallery("lenet_500_300")
    adaptive = natively(adapt(staged, inputs), 1)
    counts = []
    for network in (adaptive, adaptive.plain):
        with FlopCounterMode(display=False) as counter:
            outputs(network, more(inputs, 1))
        counts.append(counter.get_total_flops())
    assert counts[0] == counts[1] > 0
    assert bp.cost(adaptive, more(inputs, 1)).macs == bp.cost(adaptive.plain, more(inputs, 1)).macs


@needs_compiler
def test_threads_copies_and_pickles_compute_the_same():
    staged, inputs = from_gallery("lenet_500_300")
    adaptive = natively(adapt(staged, inputs), 1)
    batches = [more(inputs, 1, seed) for seed in range(40)]
    expected = [outputs(adaptive, batch) for batch in batches]
    with ThreadPoolExecutor(4) as pool:
        assert all(map(torch.equal, pool.map(lambda batch: outputs(adaptive, batch), batches), expected))
    copied, loaded = copy.deepcopy(adaptive), pickle.loads(pickle.dumps(adaptive))
    with torch.no_grad():
        for layer in adaptive.layers:
            layer.layer.weight.zero_()
            layer.refresh()
    assert not outputs(adaptive, batches[0]).equal(expected[0])
    for other in (copied, loaded):
        assert all(outputs(other, batch).equal(result) for batch, result in zip(batches, expected, strict=True))


@needs_compiler
def test_gradients_are_those_of_torch():
    staged, inputs = from_gallery("lenet_500_300", torch.float64)
    adaptive = natively(adapt(staged, inputs), 2)
    gradients = []
    for network in (adaptive, adaptive.compacted):
        (x,) = (each.clone().requires_grad_() for each in more(inputs, 2))
        network(x).square().sum().backward()
        gradients.append(x.grad)
    assert gradients[0].abs().sum() > 0
    assert difference(*gradients) <= 1e-12


@needs_compiler
def test_other_derivatives_are_those_of_torch():
    staged, inputs = from_gallery("lenet_500_300", torch.float64)
    adaptive = natively(adapt(staged, inputs), 1)
    (x,), (direction,) = more(inputs, 1), more(inputs, 1, seed=1)
    for derivative in (
        lambda network: torch.func.jvp(network, (x,), (direction,))[1],
        lambda network: torch.func.grad(lambda x: network(x).square().sum())(x),
        lambda network: torch.func.jacrev(network)(x),
    ):
        expected = derivative(adaptive.plain)
        assert expected.abs().sum() > 0
        assert difference(expected, derivative(adaptive)) <= 1e-12


@needs_compiler
def test_other_types_are_for_torch_or_for_other_code():
    staged, inputs = from_gallery("lenet_500_300")
    adaptive = natively(adapt(staged, inputs), 1)
    expected = outputs(adaptive, more(inputs, 1))
    with pytest.raises(RuntimeError, match="dtype"):
        adaptive(more(inputs, 1)[0].double())
    doubled = natively(adaptive.double(), 1)
    assert doubled.natives[0].rule.dtype == torch.float64
    assert difference(expected.double(), outputs(doubled, tuple(each.double() for each in more(inputs, 1)))) <= 1e-5
    halved = adaptive.to(torch.bfloat16)
    assert not halved.natives[0].available
    natively(halved, 1)
    assert outputs(halved, tuple(each.bfloat16() for each in more(inputs, 1))).dtype == torch.bfloat16


@needs_compiler
@pytest.mark.parametrize("shape", [(1, 17), (1, 15), (16,), (1, 1, 16)])
def test_inputs_of_another_shape_are_for_torch(shape, monkeypatch):
    torch.manual_seed(0)
    x = torch.randn(6, 20)
    layer = adapt(sparse(nn.Sequential(nn.Linear(20, 16), nn.ReLU(), nn.Linear(16, 4)), x, kept="all"), x).natives[-1]
    called = []
    monkeypatch.setattr(layer, "in_torch", lambda *_: called.append(True))
    layer(torch.randn(1, 16))
    assert not called
    layer(torch.randn(shape))
    assert called


@needs_compiler
def test_operations_by_native_code_are_counted():
    staged, inputs = from_gallery("lenet_500_300")
    adaptive = natively(adapt(staged, inputs), 1)
    work = count_work(adaptive, *inputs)
    assert torch.equal(work.executed, work.needed)
    assert (work.needed < work.compacted).all()
    adaptive._natively[1] = adaptive._natively[1][:1]
    for layer in adaptive.layers:
        layer.choices.clear()
    part = count_work(adaptive, *inputs)
    assert ((part.executed > work.needed) & (part.executed < work.compacted)).all()


@needs_compiler
def test_the_plan_tells_of_it_and_it_can_be_refused(monkeypatch):
    staged, inputs = from_gallery("lenet_500_300")
    monkeypatch.setattr(bp.AdaptiveModel, "_compared", lambda *_: (11.0, 10.0))
    adaptive = bp.AdaptiveModel(staged, inputs, cache=None)
    plan = adaptive.plan(1)
    assert [layer.way for layer in plan.layers] == ["native"] * 3  # By far the fastest for layers as small as these.
    assert all(layer.expected_us < layer.full_us for layer in plan.layers)
    assert all(adaptive.runs_natively(layer, 1) for layer in adaptive.layers)
    without = bp.AdaptiveModel(staged, inputs, cache=None, native=False)
    assert "native" not in [layer.way for layer in without.plan(1).layers]
    assert not any(without.runs_natively(layer, 1) for layer in without.layers)
    assert difference(outputs(without, more(inputs, 1)), outputs(adaptive, more(inputs, 1))) <= 1e-5


@pytest.mark.parametrize("compiler", ["none", "fails", "writes nothing", "writes nonsense"])
def test_without_a_compiler_torch_computes(compiler, tmp_path, monkeypatch, anew):
    monkeypatch.delenv("CC", raising=False)
    if compiler == "none":
        monkeypatch.setenv("PATH", str(tmp_path))
    else:
        words = {"fails": "exit 1", "writes nothing": "exit 0", "writes nonsense": 'for last; do :; done; echo nonsense > "$last"'}
        (tmp_path / "own-cc").write_text(f"#!/bin/sh\n{words[compiler]}\n")
        (tmp_path / "own-cc").chmod(0o755)
        monkeypatch.setenv("CC", f"{tmp_path / 'own-cc'} --with-an-option")
    staged, inputs = from_gallery("lenet_500_300")
    adaptive = adapt(staged, inputs, 1)
    assert not adaptive.natives[0].available
    assert "native" not in [layer.way for layer in adaptive.plan(1).layers]
    natively(adaptive, 1)  # As after it was compiled on another machine and sent here.
    assert difference(outputs(staged, more(inputs, 1)), outputs(adaptive, more(inputs, 1))) <= 1e-5


@needs_compiler
def test_what_computes_something_else_is_not_used(monkeypatch, anew):
    for module in (of_vectors, of_images):
        monkeypatch.setattr(module, "compiled", lambda *_: lambda *_arguments: None)
        assert module.kernel(torch.float32) is None


@needs_compiler
def test_a_compiler_that_does_not_know_this_machine_is_asked_again(tmp_path, monkeypatch, anew):
    script = '#!/bin/sh\nfor word; do [ "$word" = -march=native ] && exit 1; done\nexec cc "$@"\n'
    (tmp_path / "old-cc").write_text(script)
    (tmp_path / "old-cc").chmod(0o755)
    monkeypatch.setenv("CC", str(tmp_path / "old-cc"))
    assert kernel(torch.float32) is not None
    assert of_images.kernel(torch.float64) is not None


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


@needs_compiler
def test_weights_that_are_loaded_are_computed_with():
    staged, inputs = from_gallery("lenet_500_300")
    torch.manual_seed(7)
    other = sparse(GALLERY["lenet_500_300"].build(), inputs)
    adaptive = natively(adapt(staged, inputs), 1)
    before = outputs(adaptive, more(inputs, 1))
    adaptive.load_state_dict(adapt(other, inputs).state_dict())
    after = outputs(natively(adaptive, 1), more(inputs, 1))
    assert difference(outputs(other, more(inputs, 1)), after) <= 1e-5
    assert not torch.allclose(before, after)


IMAGES = {
    "as they are": ([], (False, False, 1)),
    "rectified": ([nn.ReLU()], (True, False, 1)),
    "pooled": ([nn.ReLU(inplace=True), nn.MaxPool2d(2)], (True, False, 2)),
    "pooled by a tuple": ([nn.ReLU(), nn.MaxPool2d((2, 2), stride=(2, 2))], (True, False, 2)),
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
