import pytest
import torch
from torch import nn

from bayesprune.attach import make_dependent, placement, sparsify
from bayesprune.errors import InputError
from bayesprune.gates import METHODS, gates
from bayesprune.gates.dependent_beta_bernoulli import DependentBetaBernoulli
from bayesprune.models import LeNet5Caffe, VGGLike


def trained(model, seed=0):
    """A BB model whose gates have gone apart, some below the threshold."""
    gated = sparsify(model, "bb")
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for gate in gates(gated).values():
            gate.raw_a += 5.0 * torch.randn(gate.num_units, generator=generator)
    return gated


@pytest.fixture
def gated():
    torch.manual_seed(0)
    return trained(VGGLike(groups=((8, 8), (8,)), hidden=9))


X = torch.randn(4, 3, 32, 32, generator=torch.Generator().manual_seed(1))


def test_every_gate_becomes_dependent_with_the_same_q_of_pi(gated):
    staged = make_dependent(gated)
    assert type(staged) is type(gated)
    assert list(gates(staged)) == list(gates(gated))
    for before, after in zip(gates(gated).values(), gates(staged).values(), strict=True):
        assert isinstance(after, DependentBetaBernoulli)
        assert torch.equal(after.raw_a, before.raw_a)
        assert torch.equal(after.raw_b, before.raw_b)
        assert after.position == before.position
        assert torch.equal(after.keep(), before.keep())


def test_controlled_layers_are_those_of_the_copy(gated):
    staged = make_dependent(gated)
    inside = set(staged.modules())
    assert all(each.layer in inside for gate in gates(staged).values() for each in gate.controlled)
    assert [row.controls for row in placement(staged).gates] == [row.controls for row in placement(gated).gates]


def test_the_new_gates_act(gated):
    staged = make_dependent(gated)
    reached = []
    for gate in gates(staged).values():
        gate.register_forward_hook(lambda module, *_: reached.append(module))
    staged(X)
    assert reached == list(gates(staged).values())


def test_units_for_an_input_are_among_those_that_bb_kept(gated):
    staged = make_dependent(gated).eval()
    pruned = {name: ~gate.keep() for name, gate in gates(gated).items()}
    assert any(mask.any() for mask in pruned.values())
    outputs = {}
    for name, gate in gates(staged).items():
        gate.register_forward_hook(lambda _gate, _inputs, output, name=name: outputs.update({name: output}))
    staged(X)
    for name, mask in pruned.items():
        assert (outputs[name][:, mask] == 0).all()


def test_the_original_is_not_changed(gated):
    before = {name: value.clone() for name, value in gated.state_dict().items()}
    flags = [parameter.requires_grad for parameter in gated.parameters()]
    staged = make_dependent(gated)
    staged.train()(X).sum().backward()
    with torch.no_grad():
        for tensor in (*staged.parameters(), *(gate.raw_a for gate in gates(staged).values())):
            tensor.add_(1.0)
    assert all(torch.equal(value, before[name]) for name, value in gated.state_dict().items())
    assert [parameter.requires_grad for parameter in gated.parameters()] == flags
    assert all(gate.method == "bb" for gate in gates(gated).values())


def test_weights_are_carried_over(gated):
    staged = make_dependent(gated)
    for name, value in gated.state_dict().items():
        assert torch.equal(staged.state_dict()[name], value)


@pytest.mark.parametrize("freeze", [True, False])
def test_norms_are_frozen_but_their_statistics_go_on(gated, freeze):
    staged = make_dependent(gated, freeze_norms=freeze).train()
    norms = [module for module in staged.modules() if isinstance(module, (nn.BatchNorm1d, nn.BatchNorm2d))]
    assert len(norms) == 4
    assert all(parameter.requires_grad is not freeze for norm in norms for parameter in norm.parameters())
    before = norms[0].running_mean.clone()
    staged(X)
    assert not torch.equal(norms[0].running_mean, before)
    others = [p for name, p in staged.named_parameters() if "norm" not in name]
    assert all(parameter.requires_grad for parameter in others)


def test_q_of_pi_is_not_trained(gated):
    staged = make_dependent(gated)
    assert not any("raw_a" in name or "raw_b" in name for name, _ in staged.named_parameters())


def test_hyper_parameters_reach_the_gates(gated):
    staged = make_dependent(gated, relaxation="single", shift_init=3.0, threshold=0.01)
    for gate in gates(staged).values():
        assert (gate.relaxation, gate.threshold) == ("single", 0.01)
        assert (gate.shift == 3.0).all()


def test_settings_of_the_first_stage_are_kept():
    model = LeNet5Caffe(channels=(2, 3), hidden=4)
    staged = make_dependent(sparsify(model, "bb", threshold=0.02, temperature=0.4).double().eval())
    for gate in gates(staged).values():
        assert (gate.threshold, gate.temperature, gate.training) == (0.02, 0.4, False)
        assert gate.scale.dtype == torch.float64


@pytest.mark.parametrize("method", sorted(set(METHODS) - {"bb"}))
def test_only_bb_can_become_dependent(method):
    model = sparsify(nn.Sequential(nn.Linear(3, 2)), method)
    with pytest.raises(InputError, match=rf"starts from BB gates, but 0.input_gate is '{method}'"):
        make_dependent(model)


def test_no_gates():
    with pytest.raises(InputError, match="no gates"):
        make_dependent(nn.Linear(3, 2))


def test_an_unknown_hyper_parameter(gated):
    with pytest.raises(InputError, match=r"'dbb' has no hyper-parameter 'shift_int'.*Did you mean 'shift_init'\?"):
        make_dependent(gated, shift_int=1.0)
