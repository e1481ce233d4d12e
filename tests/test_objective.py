import math
import warnings

import pytest
import torch
from torch import nn

from bayesprune.attach import make_dependent, sparsify
from bayesprune.errors import BayespruneWarning, InputError
from bayesprune.gates import METHODS, gates
from bayesprune.models import LeNet5Caffe
from bayesprune.objective import gate_scales, linear_warmup, negative_elbo, param_groups

NLL = torch.tensor(2.0)


def plain():
    return nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.ReLU(), nn.Linear(3, 2))


@pytest.fixture
def gated():
    return sparsify(plain(), "bb")


def divergences(model):
    return [gate.kl().item() for gate in gates(model).values()]


@pytest.mark.parametrize("loss", [2.0, 2, [2.0]])
def test_loss_that_is_no_tensor(gated, loss):
    with pytest.raises(InputError, match=rf"a tensor, not {type(loss).__name__}: .* without \.item\(\)"):
        negative_elbo(loss, gated, 100)


def test_one_scale_for_all(gated):
    loss = negative_elbo(NLL, gated, 100, 3.0)
    assert loss.shape == ()
    assert loss.item() == pytest.approx(2.0 + 3.0 / 100 * sum(divergences(gated)))
    assert negative_elbo(NLL, gated, 100).item() == pytest.approx(2.0 + sum(divergences(gated)) / 100)
    assert negative_elbo(NLL, gated, 100, 0).item() == 2.0


@pytest.mark.parametrize("as_mapping", [True, False])
def test_a_scale_for_each_gate(gated, as_mapping):
    names = list(gates(gated))
    scales = {names[1]: 8.0, names[0]: 20.0} if as_mapping else (20.0, 8.0)
    first, second = divergences(gated)
    assert first != second
    assert negative_elbo(NLL, gated, 1000, scales).item() == pytest.approx(2.0 + (20 * first + 8 * second) / 1000)
    assert gate_scales(gated, scales) == {names[0]: 20.0, names[1]: 8.0}


def test_the_scales_of_lenet5_go_by_network_order():
    gated = sparsify(LeNet5Caffe(channels=(2, 3), hidden=4), "bb")
    scales = gate_scales(gated, (20, 8, 1, 1))
    assert list(scales.values()) == [20, 8, 1, 1]
    assert [name.split(".")[0] for name in scales] == ["conv1", "conv2", "fc1", "fc2"]


def test_several_monte_carlo_estimates_count_the_divergence_once(gated):
    estimates = torch.tensor([1.0, 2.0, 6.0])
    assert negative_elbo(estimates, gated, 100).item() == pytest.approx(3.0 + sum(divergences(gated)) / 100)


@pytest.mark.parametrize("warmup", [0.0, 0.25, 1.0])
def test_warm_up(gated, warmup):
    assert negative_elbo(NLL, gated, 10, warmup=warmup).item() == pytest.approx(2.0 + warmup / 10 * sum(divergences(gated)))


def test_linear_warmup():
    assert [linear_warmup(step, 4) for step in range(7)] == [0.0, 0.25, 0.5, 0.75, 1.0, 1.0, 1.0]
    assert linear_warmup(0, 0) == 1.0


def test_gradients_are_those_of_both_terms(gated):
    gate = next(iter(gates(gated).values()))
    weight = gated[0].weight
    nll = gated(torch.randn(8, 4)).square().mean()
    expected = torch.autograd.grad(nll, weight, retain_graph=True)[0], torch.autograd.grad(gate.kl(), gate.raw_a)[0] * 2 / 50
    reached = torch.autograd.grad(negative_elbo(nll, gated, 50, 2.0), (weight, gate.raw_a), retain_graph=True)
    torch.testing.assert_close(reached[0], expected[0])
    through_nll = torch.autograd.grad(nll, gate.raw_a)[0]
    torch.testing.assert_close(reached[1], expected[1] + through_nll)


def test_a_gate_that_is_reached_twice_is_counted_once():
    gated = sparsify(nn.Sequential(nn.Linear(3, 3)), "bb")
    twice = nn.Sequential(gated, gated)
    assert negative_elbo(NLL, twice, 10).item() == pytest.approx(2.0 + sum(divergences(gated)) / 10)


@pytest.mark.parametrize("scale", [-1.0, math.nan, math.inf])
def test_a_scale_that_is_no_scale(gated, scale):
    name = list(gates(gated))[1]
    for given in (scale, (1.0, scale), dict(zip(gates(gated), (1.0, scale), strict=True))):
        with pytest.raises(InputError, match=r"kl_scale must be finite and not negative") as caught:
            negative_elbo(NLL, gated, 10, given)
        assert str(scale) in str(caught.value)
    assert name in str(caught.value)


@pytest.mark.parametrize("scales", [(), (1.0,), (1.0, 2.0, 3.0)])
def test_the_wrong_number_of_scales(gated, scales):
    with pytest.raises(InputError, match=rf"{len(scales)} factors, the model 2 gates: .*input_gate"):
        negative_elbo(NLL, gated, 10, scales)


def test_the_wrong_names(gated):
    first, second = gates(gated)
    with pytest.raises(InputError, match=rf"unknown \['fc7'\], missing \['{second}'\]"):
        negative_elbo(NLL, gated, 10, {first: 1.0, "fc7": 2.0})


@pytest.mark.parametrize("n_data", [0, -5, math.nan])
def test_no_data(gated, n_data):
    with pytest.raises(InputError, match="n_data is the number of training samples"):
        negative_elbo(NLL, gated, n_data)


@pytest.mark.parametrize("warmup", [-0.1, 1.1, math.nan])
def test_a_warm_up_that_is_no_factor(gated, warmup):
    with pytest.raises(InputError, match="warmup is a factor between 0 and 1"):
        negative_elbo(NLL, gated, 10, warmup=warmup)


def test_no_gates():
    with pytest.raises(InputError, match="no gates"):
        negative_elbo(NLL, plain(), 10)


def by_name(groups):
    return {group["name"]: group for group in groups}


@pytest.mark.parametrize("method", sorted(METHODS))
def test_every_trained_parameter_is_in_exactly_one_group(method):
    gated = sparsify(plain(), method)
    groups = by_name(param_groups(gated, lr=1e-3, weight_decay=1e-4))
    listed = [id(parameter) for group in groups.values() for parameter in group["params"]]
    assert sorted(listed) == sorted(id(parameter) for parameter in gated.parameters())
    of_gates = {id(parameter) for gate in gates(gated).values() for parameter in gate.parameters()}
    assert {id(parameter) for parameter in groups["gates"]["params"]} == of_gates
    assert groups["gates"]["weight_decay"] == 0.0
    assert groups["weights"]["weight_decay"] == (0.0 if method in ("l0", "cd") else 1e-4)
    assert groups["weights"]["lr"] == 1e-3
    assert groups["gates"]["lr"] == pytest.approx(1e-3 if method == "l0" else 1e-2)
    torch.optim.Adam(list(groups.values()))


def test_a_learning_rate_for_the_gates(gated):
    assert by_name(param_groups(gated, lr=1e-3, gate_lr=0.5))["gates"]["lr"] == 0.5
    assert by_name(param_groups(gated, lr=2.0))["gates"]["lr"] == 20.0


def test_frozen_parameters_are_left_out(gated):
    staged = make_dependent(gated)
    groups = by_name(param_groups(staged))
    listed = {id(parameter) for group in groups.values() for parameter in group["params"]}
    assert id(staged[1].weight) not in listed
    assert listed == {id(parameter) for parameter in staged.parameters() if parameter.requires_grad}
    assert {name.rpartition(".")[2] for name, p in staged.named_parameters() if any(p is q for q in groups["gates"]["params"])} == {
        "scale",
        "shift",
        "raw_shift_std",
    }


def test_a_model_without_gates_has_one_group():
    (group,) = param_groups(plain(), lr=0.1, weight_decay=0.2)
    assert (group["name"], group["lr"], group["weight_decay"], len(group["params"])) == ("weights", 0.1, 0.2, 6)


def test_layers_that_no_penalty_covers_are_decayed():
    model = sparsify(plain(), "l0", include=["3"])
    decays = {id(p): group["weight_decay"] for group in param_groups(model, weight_decay=0.1) for p in group["params"]}
    assert decays[id(model[0].weight)] == decays[id(model[0].bias)] == 0.1
    assert decays[id(model[3].weight)] == decays[id(model[1].weight)] == 0.0


@pytest.mark.parametrize("method", sorted(METHODS))
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_gates_in_half_precision_are_refused(method, dtype):
    model = sparsify(plain(), method)
    negative_elbo(torch.tensor(1.0), model.to(dtype), n_data=10)
    (first, *_) = gates(model)
    for parameter in model.get_submodule(first).parameters():
        parameter.data = parameter.data.to(dtype)
    with pytest.raises(InputError, match=rf"parameters of the gate {first} are of {dtype}.*\.float\(\).*model\.to\(dtype\)"):
        negative_elbo(torch.tensor(1.0), model, n_data=10)
    negative_elbo(torch.tensor(1.0), model.float().to(dtype), n_data=10)


def loss_of(model):
    return model(torch.randn(3, 4)).square().mean()


def test_gates_that_are_trained_in_evaluation_mode_are_named(gated):
    names = list(gates(gated))
    gated.eval()
    with pytest.warns(BayespruneWarning, match=rf"^{', '.join(names)}: .*call model.train\(\)"):
        negative_elbo(loss_of(gated), gated, 10)
    gates(gated)[names[0]].train()
    with pytest.warns(BayespruneWarning, match=rf"^{', '.join(names[1:])}: "):
        negative_elbo(loss_of(gated), gated, 10)


def in_training(gated):
    gated.train()
    return loss_of(gated)


def without_gradients(gated):
    return loss_of(gated).detach()


def of_gates_that_are_not_trained(gated):
    for gate in gates(gated).values():
        gate.requires_grad_(False)
    return loss_of(gated)


def of_draws(gated):
    for gate in gates(gated).values():
        gate.sampling = True
    return loss_of(gated)


@pytest.mark.parametrize("loss", [in_training, without_gradients, of_gates_that_are_not_trained, of_draws])
def test_objectives_that_are_not_warned_of(gated, loss):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert negative_elbo(loss(gated.eval()), gated, 10).isfinite()


def test_measuring_the_objective_is_not_warned_of(gated):
    nll = loss_of(gated.eval())
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("error")
        negative_elbo(nll, gated, 10)


def test_objective_in_evaluation_mode_is_one_graph(gated):
    gated.eval()
    x = torch.randn(3, 4)
    whole = torch.compile(lambda x: negative_elbo(gated(x).square().mean(), gated, 10), fullgraph=True, backend="eager")
    with torch.no_grad():
        expected = negative_elbo(gated(x).square().mean(), gated, 10)
    torch.testing.assert_close(whole(x).detach(), expected)
