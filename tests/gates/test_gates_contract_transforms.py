"""Every registered method: gradients against finite differences, many models at once, and compilation."""

import copy

import pytest
import torch
from torch.func import functional_call, grad, stack_module_state, vmap

from bayesprune.gates import METHODS


def inputs(dtype=torch.float64, channels=6):
    return torch.rand(5, channels, generator=torch.Generator().manual_seed(0)).to(dtype)


def check_gradients(gated, function):
    """Finite differences with respect to every parameter of the gate and of its layer; the noise is fixed."""
    names, values = zip(*((name, value.detach().clone().requires_grad_()) for name, value in gated.named_parameters()), strict=True)

    class Wrapped(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.gated = gated

        def forward(self):
            return function(self.gated)

    wrapped = Wrapped()
    assert torch.autograd.gradcheck(
        lambda *tensors: functional_call(wrapped, {f"gated.{name}": tensor for name, tensor in zip(names, tensors, strict=True)}), values
    )


def test_gradients_of_the_drawn_mask(make_gated):
    x = inputs()
    check_gradients(make_gated(dtype=torch.float64, spread=0.5).train(), lambda gated: gated.gate(x))


def test_gradients_of_the_mean_mask(make_gated):
    x = inputs()
    check_gradients(make_gated(dtype=torch.float64, spread=0.5).eval(), lambda gated: gated.gate(x))


def test_gradients_of_the_divergence(make_gated):
    check_gradients(make_gated(dtype=torch.float64, spread=0.5), lambda gated: gated.gate.kl())


def test_gradients_with_shared_units(make_gated):
    x = inputs()
    gated = make_gated(3, groups=torch.tensor([0, 1, 0, 2, 2, 0]), dtype=torch.float64, spread=0.5).train()
    check_gradients(gated, lambda gated: gated(x).square().sum() + gated.gate.kl())


def loss_of(gated, state, x):
    """The objective of one model, as a function of its parameters."""

    class Objective(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.gated = gated

        def forward(self, x):
            return self.gated(x).square().mean() + self.gated.gate.kl() / 100

    return functional_call(Objective(), {f"gated.{name}": value for name, value in state.items()}, (x,))


@pytest.mark.parametrize("shared_data", [True, False])
def test_many_models_at_once_equal_one_by_one(make_gated, shared_data):
    """Parameters, buffers and noise are stacked; gradients, running statistics included, are those of each model alone."""
    models = [make_gated(seed=seed, dtype=torch.float64).train() for seed in range(3)]
    data = torch.rand(3, 5, 6, generator=torch.Generator().manual_seed(9)).double()
    if shared_data:
        data[1:] = data[0]
    parameters, buffers = stack_module_state(models)
    base = copy.deepcopy(models[0])
    gradient = grad(lambda parameters, buffers, x: loss_of(base, parameters | buffers, x))
    stacked = vmap(gradient, in_dims=(0, 0, None if shared_data else 0))(parameters, buffers, data[0] if shared_data else data)
    for index, model in enumerate(models):
        loss = model(data[index]).square().mean() + model.gate.kl() / 100
        loss.backward()
        for name, parameter in model.named_parameters():
            torch.testing.assert_close(stacked[name][index], parameter.grad, rtol=1e-10, atol=1e-12)
        for name, buffer in model.named_buffers():
            torch.testing.assert_close(buffers[name][index], buffer)


def test_the_noise_of_a_model_does_not_depend_on_its_neighbours(make_gated):
    models, x = [make_gated(seed=seed).train() for seed in range(3)], inputs(torch.float32)
    alone = models[1](x)
    base = copy.deepcopy(models[0])
    for company in (models, models[1:], models[:2]):
        parameters, buffers = stack_module_state(company)
        together = vmap(lambda p, b: functional_call(base, p | b, (x,)))(parameters, buffers)
        torch.testing.assert_close(together[company.index(models[1])], alone)


@pytest.mark.parametrize("method", [name if name == "bb" else pytest.param(name, marks=pytest.mark.slow) for name in sorted(METHODS)])
def test_compiled_equals_eager(make_gated):
    gated, x = make_gated().train(), inputs(torch.float32)
    torch.compiler.reset()
    eager = gated.gate(x)
    compiled = torch.compile(gated.gate, fullgraph=True)(x)
    torch.testing.assert_close(compiled, eager, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_a_compiled_training_step_equals_an_eager_one(make_gated):
    gated, x = make_gated().train(), inputs(torch.float32)

    def step():
        return gated(x).square().mean() + gated.gate.kl() / 100

    torch.compiler.reset()
    eager = torch.autograd.grad(step(), list(gated.parameters()))
    compiled = torch.autograd.grad(torch.compile(step, fullgraph=True)(), list(gated.parameters()))
    for ours, theirs in zip(compiled, eager, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-5)
