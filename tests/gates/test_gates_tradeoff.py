"""The loss with each method's trade-off equals the published loss, written out by hand."""

import math

import pytest
import torch
from torch import nn

from bayesprune.gates import METHODS
from bayesprune.objective import negative_elbo

N = 60_000
NLL = 0.37


def build(method, tradeoff, spread=0.5):
    """Two gates on the inputs of two linear layers, as the trade-off says, and the loss of the model."""
    torch.manual_seed(0)
    converted = METHODS[method].from_tradeoff(tradeoff, N)
    model = nn.ModuleDict({"gate1": None, "gate2": None, "fc1": nn.Linear(4, 3), "fc2": nn.Linear(3, 2)})
    for position, (name, layer) in enumerate([("gate1", model["fc1"]), ("gate2", model["fc2"])]):
        gate = METHODS[method](layer.in_features, **converted.hyperparameters)
        gate.position = position
        gate.control(layer, "inputs")
        model[name] = gate
        with torch.no_grad():
            for parameter in gate.parameters():
                parameter += spread * torch.randn(parameter.shape)
    model = model.double()
    return model, negative_elbo(torch.tensor(NLL, dtype=torch.float64), model, N, converted.kl_scale).item()


def pairs(model):
    return [(model["gate1"], model["fc1"]), (model["gate2"], model["fc2"])]


def softplus(x):
    return math.log1p(math.exp(x))


def digamma(x):
    return torch.digamma(torch.tensor(x, dtype=torch.float64)).item()


@pytest.mark.parametrize("gamma", [1.0, 2.0, 4.0, 6.0, 8.0])
def test_bb(gamma):
    """CE + gamma / N times the sum over units of the KL."""
    model, loss = build("bb", gamma)
    total, c = 0.0, 1e-4
    for gate, _ in pairs(model):
        for raw_a, raw_b in zip(gate.raw_a.tolist(), gate.raw_b.tolist(), strict=True):
            a, b = softplus(raw_a), softplus(raw_b)
            total += (1 - c / a) * (-0.577215664901532 - digamma(b) - 1 / b) + math.log(a * b) - math.log(c) - (b - 1) / b
    assert loss == pytest.approx(NLL + gamma / N * total, rel=1e-9)


@pytest.mark.parametrize("gamma", [1.0, 4.0])
def test_dbb(gamma):
    """The trade-off acted in the BB stage: CE + 1 / N times log(rho / kappa) + (kappa^2 + eta^2) / (2 rho^2) - 1/2."""
    model, loss = build("dbb", gamma)
    total, rho = 0.0, math.sqrt(5.0)
    for gate, _ in pairs(model):
        for eta, raw in zip(gate.shift.tolist(), gate.raw_shift_std.tolist(), strict=True):
            kappa = softplus(raw)
            total += math.log(rho / kappa) + (kappa**2 + eta**2) / (2 * rho**2) - 0.5
    assert loss == pytest.approx(NLL + total / N, rel=1e-9)


@pytest.mark.parametrize("gamma", [1.0, 8.0])
def test_sbp(gamma):
    """CE + gamma / N times the sum over units of the KL, by the textbook formula, which holds away from the edges."""
    model, loss = build("sbp", gamma)
    total = 0.0
    for gate, _ in pairs(model):
        for mu, log_sigma in zip(gate.mu.tolist(), gate.log_sigma.tolist(), strict=True):
            s = math.exp(log_sigma)
            al, be = (-20 - mu) / s, (0 - mu) / s
            if be < -30:  # Phi underflows: the tail's own expansion of the mass, phi(be) / |be| (1 - 1/be^2 + 3/be^4 - ...)
                series = 1 - be**-2 + 3 * be**-4 - 15 * be**-6 + 105 * be**-8
                log_z = -0.5 * be * be - 0.5 * math.log(2 * math.pi) - math.log(-be) + math.log(series)
                edge = -be * (-be) / series
            else:
                z = 0.5 * math.erfc(-be / math.sqrt(2)) - 0.5 * math.erfc(-al / math.sqrt(2))
                log_z = math.log(z)
                edge = (al * density(al) - be * density(be)) / z
            total += -log_sigma - log_z - edge / 2 + math.log(20.0) - 0.5 * math.log(2 * math.pi * math.e)
    assert loss == pytest.approx(NLL + gamma / N * total, rel=1e-7)


def density(x):
    return math.exp(-0.5 * x * x) / math.sqrt(2 * math.pi)


@pytest.mark.parametrize("gamma", [1e-4, 1e-6])
def test_vib(gamma):
    """CE + gamma times the sum of 0.5 log(1 + mu^2 / (var + 1e-8)): gamma is absolute, not divided by N."""
    model, loss = build("vib", gamma)
    total = 0.0
    for gate, _ in pairs(model):
        for mu, log_variance in zip(gate.mu.tolist(), gate.log_variance.tolist(), strict=True):
            total += 0.5 * math.log(1 + mu**2 / (math.exp(log_variance) + 1e-8))
    assert loss - NLL == pytest.approx(gamma * total, rel=1e-4)


@pytest.mark.parametrize("lambda_times_n", [0.1, 0.005])
def test_l0(lambda_times_n):
    """CE + P_i sum_j (0.5 wd w_ij^2 + lambda) + 0.5 wd ||bias||^2, wd = 1e-4 times one; lambda contains 1/N already."""
    price, decay = lambda_times_n / N, 1e-4
    model, loss = build("l0", price)
    total = 0.0
    for gate, layer in pairs(model):
        for i, log_alpha in enumerate(gate.log_alpha.tolist()):
            p = 1 / (1 + math.exp(-(log_alpha - 2 / 3 * math.log(0.1 / 1.1))))
            total += p * sum(0.5 * decay * w * w + price for w in layer.weight[:, i].tolist())
        total += 0.5 * decay * sum(b * b for b in layer.bias.tolist())
    assert loss == pytest.approx(NLL + total, rel=1e-9)


@pytest.mark.parametrize("alpha", [1e-3, 1e-4, 1e-5, 1e-6])
def test_gd(alpha):
    """CE + 1 / N times (1 - alpha) log k + (1 - beta) log(1 - k) + log B(alpha, beta), beta = 0.5: the trade-off is the prior's alpha."""
    model, loss = build("gd", alpha)
    total = 0.0
    for gate, _ in pairs(model):
        for raw in gate.raw_keep.tolist():
            k = 1 / (1 + math.exp(-raw))
            log_beta = math.lgamma(alpha) + math.lgamma(0.5) - math.lgamma(alpha + 0.5)
            total += (1 - alpha) * math.log(k) + 0.5 * math.log(1 - k) + log_beta
    assert loss == pytest.approx(NLL + total / N, rel=1e-9)


@pytest.mark.parametrize("ignored", [1.0, 77.0])
def test_cd(ignored):
    """CE + wr ||W||^2 / (1 - p) + dr K (p log p + (1 - p) log(1 - p)), wr = l^2 / N and dr = 1 / N; there is no trade-off."""
    model, loss = build("cd", ignored)
    total = 0.0
    for gate, layer in pairs(model):
        p = 1 / (1 + math.exp(-gate.raw_drop.item()))
        total += 1e-2**2 * layer.weight.square().sum().item() / (1 - p)
        total += layer.in_features * (p * math.log(p) + (1 - p) * math.log(1 - p))
    assert loss == pytest.approx(NLL + total / N, rel=1e-9)
