"""Every pure function: gradients against finite differences, and the same values vectorised, compiled and one by one."""

import inspect

import pytest
import torch
import torch.nn.functional as F

from bayesprune.distributions import binary_concrete, hard_concrete, kumaraswamy, normal, stable, truncated_log_normal

UNIFORM = torch.tensor([[0.02, 0.4, 0.97], [0.5, 0.9, 0.1], [0.3, 0.001, 0.7], [0.6, 0.25, 0.8]], dtype=torch.float64)
RAW = torch.tensor([[-4.0, 0.5, 3.0], [-1.0, 2.0, -7.0], [0.1, -2.5, 1.5], [6.0, -0.7, 0.9]], dtype=torch.float64)
OTHER = RAW.flip(1) * 0.7


def positive(function, *rest):
    """As a function of raw parameters, mapped as the gates map them."""
    return lambda raw_a, raw_b, *noise: function(F.softplus(raw_a), F.softplus(raw_b), *noise, *rest)


def log_normal(function, *rest):
    return lambda mu, log_sigma, *noise: function(mu, log_sigma.exp(), *noise, *rest)


# What is called, as a function of raw parameters; the raw parameters; the noise.
CASES = {
    "kumaraswamy.log_sample": (positive(kumaraswamy.log_sample), (RAW, OTHER), (UNIFORM,)),
    "kumaraswamy.sample": (positive(kumaraswamy.sample), (RAW, OTHER), (UNIFORM,)),
    "kumaraswamy.mean": (positive(kumaraswamy.mean), (RAW, OTHER), ()),
    "kumaraswamy.kl_to_beta": (positive(kumaraswamy.kl_to_beta, 1e-4), (RAW, OTHER), ()),
    "binary_concrete.sample": (lambda logits, u: binary_concrete.sample(logits, u, 0.5), (RAW,), (UNIFORM,)),
    "hard_concrete.sample": (lambda log_alpha, u: hard_concrete.sample(log_alpha, u, 2.0 / 3.0), (RAW,), (UNIFORM,)),
    "hard_concrete.probability_nonzero": (lambda log_alpha: hard_concrete.probability_nonzero(log_alpha, 2.0 / 3.0), (RAW,), ()),
    "hard_concrete.median_gate": (hard_concrete.median_gate, (RAW,), ()),
    "truncated_log_normal.log_moment": (log_normal(truncated_log_normal.log_moment, 2.0), (RAW, OTHER), ()),
    "truncated_log_normal.mean": (log_normal(truncated_log_normal.mean), (RAW, OTHER), ()),
    "truncated_log_normal.signal_to_noise": (log_normal(truncated_log_normal.signal_to_noise), (RAW, OTHER), ()),
    "truncated_log_normal.kl_to_log_uniform": (log_normal(truncated_log_normal.kl_to_log_uniform), (RAW, OTHER), ()),
    "truncated_log_normal.log_sample": (log_normal(truncated_log_normal.log_sample), (RAW, OTHER), (UNIFORM,)),
    "truncated_log_normal.sample": (log_normal(truncated_log_normal.sample), (RAW, OTHER), (UNIFORM,)),
    "normal.kl_to_centred": (lambda mean, raw_std: normal.kl_to_centred(mean, F.softplus(raw_std), 5.0**0.5), (RAW, OTHER), ()),
    "normal.kl_to_best_centred": (normal.kl_to_best_centred, (RAW, OTHER), ()),
    "normal.log_square": (normal.log_square, (RAW,), ()),
    "stable.log1mexp": (lambda raw: stable.log1mexp(-F.softplus(raw)), (RAW,), ()),
    "stable.logit_of_log": (lambda raw: stable.logit_of_log(-F.softplus(raw)), (RAW,), ()),
    "stable.log_erfcx": (lambda raw: stable.log_erfcx(F.softplus(raw) - 1.0), (RAW,), ()),
    "stable.log_ndtr": (lambda raw: stable.log_ndtr(5.0 * raw), (RAW,), ()),
}
QUICK_TO_COMPILE = {"binary_concrete.sample"}
each_function = pytest.mark.parametrize("name", list(CASES))


def test_no_pure_function_is_left_out():
    modules = (binary_concrete, hard_concrete, kumaraswamy, normal, stable, truncated_log_normal)
    functions = {
        f"{module.__name__.rpartition('.')[2]}.{name}"
        for module in modules
        for name, function in inspect.getmembers(module, inspect.isfunction)
        if not name.startswith("_") and function.__module__ == module.__name__
    }
    assert functions == set(CASES)


@each_function
def test_gradients_agree_with_finite_differences(name):
    function, parameters, noise = CASES[name]
    inputs = tuple(parameter.clone().requires_grad_() for parameter in parameters)
    assert torch.autograd.gradcheck(lambda *raw: function(*raw, *noise), inputs, eps=1e-5)


@each_function
def test_vectorised_equals_a_loop(name):
    function, parameters, noise = CASES[name]
    arguments = (*parameters, *noise)
    looped = torch.stack([function(*row) for row in zip(*arguments, strict=True)])
    torch.testing.assert_close(torch.vmap(function)(*arguments), looped, rtol=1e-13, atol=0.0)


@each_function
def test_vectorised_gradients_equal_a_loop(name):
    function, parameters, noise = CASES[name]
    arguments = (*parameters, *noise)
    gradient = torch.func.grad(lambda *row: function(*row).sum())
    looped = torch.stack([gradient(*row) for row in zip(*arguments, strict=True)])
    torch.testing.assert_close(torch.vmap(gradient)(*arguments), looped, rtol=1e-12, atol=1e-300)


@pytest.mark.parametrize("name", [name if name in QUICK_TO_COMPILE else pytest.param(name, marks=pytest.mark.slow) for name in CASES])
def test_compiled_equals_eager(name):
    function, parameters, noise = CASES[name]
    inputs = [parameter.float().requires_grad_() for parameter in parameters]
    rest = [tensor.float() for tensor in noise]
    torch.compiler.reset()
    eager = function(*inputs, *rest)
    compiled = torch.compile(function, fullgraph=True)(*inputs, *rest)
    torch.testing.assert_close(compiled, eager, rtol=1e-5, atol=1e-5)
    for ours, theirs in zip(torch.autograd.grad(compiled.sum(), inputs), torch.autograd.grad(eager.sum(), inputs), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)
