"""Models in half precision, from gates to the compacted network: gates keep theirs, and all else is of the model's type."""

import warnings

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import bayesprune as bp
from bayesprune.gates import METHODS

IMAGES, LABELS = torch.randn(6, 3, 9, 9, generator=torch.Generator().manual_seed(0)), torch.arange(6) % 4


def network():
    torch.manual_seed(0)
    return nn.Sequential(
        *(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 6, 3), nn.ReLU()),
        *(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 4)),
    )


def train(model, x):
    """A step by hand."""
    optimiser = torch.optim.SGD(bp.param_groups(model.train(), 1e-3))
    outputs = model(x)
    assert outputs.dtype == x.dtype
    bp.negative_elbo(F.cross_entropy(outputs, LABELS), model, n_data=100).backward()
    optimiser.step()
    for name, parameter in model.named_parameters():
        assert parameter.grad is None or bool(parameter.grad.isfinite().all()), name


def check(model, x):
    """Everything that comes after training."""
    for gate in bp.gates(model).values():
        assert {t.dtype for t in (*gate.parameters(), *gate.buffers()) if t.is_floating_point()} == {torch.float32}
    model.eval()
    expected = model(x)
    assert expected.dtype == x.dtype
    for samples in (None, 2):
        assert bp.predict(model, x, samples=samples).dtype == x.dtype
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "no unit is under", bp.BayespruneWarning)
        result = bp.compact(model, x)
    assert result.certificate.dtype == str(x.dtype).removeprefix("torch.")
    assert result.certificate.note == ""
    small = result.model(x)
    assert small.dtype == x.dtype
    torch.testing.assert_close(small, expected, rtol=0.05, atol=0.05)


@pytest.mark.parametrize("method", sorted(METHODS))
@pytest.mark.parametrize(("dtype", "when"), [(torch.bfloat16, "before"), (torch.bfloat16, "after"), (torch.float16, "after")])
def test_all_the_way(method, dtype, when):
    x = IMAGES.to(dtype)
    if when == "before":
        gated = bp.sparsify(network().to(dtype), method, example_inputs=x)
    else:
        gated = bp.sparsify(network(), method, example_inputs=IMAGES).to(dtype)
    for gate in bp.gates(gated).values():
        gate.prune(torch.tensor([0, 1][: len(gate.pruned_values)], dtype=torch.int64))
    train(gated, x)
    check(gated, x)
    if method == "bb":
        staged = bp.make_dependent(gated)
        train(staged, x)
        check(staged, x)
        check(staged.float().to(dtype), x)


@pytest.fixture
def half_by_default():
    """As ``bf16-true`` of Lightning has it."""
    torch.set_default_dtype(torch.bfloat16)
    yield
    torch.set_default_dtype(torch.float32)


@pytest.mark.parametrize("method", sorted(METHODS))
def test_half_precision_by_default(method, half_by_default):
    x = IMAGES.to(torch.bfloat16)
    gated = bp.sparsify(network(), method, example_inputs=x)
    train(gated, x)
    check(gated, x)
    if method == "bb":
        staged = bp.make_dependent(gated)
        train(staged, x)
        check(staged, x)


@pytest.mark.parametrize(("of_model", "of_gates"), [(torch.float64, torch.float32), (torch.float32, torch.float64)])
@pytest.mark.parametrize("method", ["bb", "dbb"])
def test_gates_of_another_type_than_the_model(method, of_model, of_gates):
    model = network().to(of_model)
    x = IMAGES.to(of_model)
    gated = bp.sparsify(model, "bb", example_inputs=x)
    for gate in bp.gates(gated).values():
        gate.prune(torch.tensor([0, 1]))
    if method == "dbb":
        gated = bp.make_dependent(gated)
    for gate in bp.gates(gated).values():
        gate.to(of_gates)
    train(gated, x)
    result = bp.compact(gated.eval(), x)
    assert result.model(x).dtype == of_model
    assert result.certificate.after.parameters < result.certificate.before.parameters
    rounded = method == "dbb" or of_model is torch.float32
    assert result.certificate.dtype == ("float32" if rounded else "float64")
    assert result.max_rel_error < (1e-5 if rounded else 1e-12)
