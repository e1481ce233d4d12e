import torch

from bayesprune.analysis import FOR_NO_INPUT, NOT_FOR_THIS_INPUT, USED, probability_stages, unit_activations, unit_use
from bayesprune.attach import make_dependent, sparsify
from bayesprune.gates import gates
from bayesprune.gates.dependent_beta_bernoulli import DependentBetaBernoulli
from bayesprune.models import LeNet5Caffe


def trained_gate(units=12, seed=0):
    """A gate with statistics, scales and shifts of its own, that prunes two units for every input."""
    random = torch.Generator().manual_seed(seed)
    gate = DependentBetaBernoulli(units, keep_init=1.0).eval()
    with torch.no_grad():
        gate.running_mean.copy_(torch.randn(units, generator=random))
        gate.running_var.copy_(torch.rand(units, generator=random) + 0.01)
        gate.scale.copy_(torch.randn(units, generator=random))
        gate.shift.copy_(torch.randn(units, generator=random))
    gate.prune(torch.tensor([3, 7]))
    return gate


def test_steps_end_in_the_gates_own_probability():
    gate, x = trained_gate(), torch.randn(40, 12, generator=torch.Generator().manual_seed(1))
    stages, kept = probability_stages(gate, x), gate.keep()
    torch.testing.assert_close((gate.keep_probability() * stages.phi)[:, kept], gate.keep_probability(x)[:, kept])
    assert 0.1 < float((stages.phi > 0.5).float().mean()) < 0.9


def test_each_step_follows_from_the_one_before():
    gate = trained_gate()
    x = gate.running_mean + 2.0 * gate.running_var.sqrt() * torch.tensor([[1.0], [-1.0]])
    stages = probability_stages(gate, x)
    torch.testing.assert_close(stages.standardised, torch.tensor([[2.0], [-2.0]]).expand(2, 12), rtol=1e-2, atol=0)
    torch.testing.assert_close(stages.rescaled, gate.scale * stages.standardised + gate.shift)
    torch.testing.assert_close(stages.phi, stages.rescaled.clamp(0, 1))


def test_stages_of_some_units():
    stages = probability_stages(trained_gate(), torch.randn(5, 12))
    some = stages.of(torch.tensor([4, 0]))
    assert torch.equal(some.activations, stages.activations[:, [4, 0]])
    assert torch.equal(some.phi, stages.phi[:, [4, 0]])


def test_use_counts_what_the_gate_keeps():
    gate, x = trained_gate(), torch.randn(30, 12, generator=torch.Generator().manual_seed(2))
    use = unit_use(gate, x)
    assert torch.equal(use == USED, gate.keep(x))
    assert torch.equal(use == FOR_NO_INPUT, (~gate.keep()).expand(30, 12))
    assert bool((use == NOT_FOR_THIS_INPUT).any())


def test_activations_are_what_gates_are_given():
    model = make_dependent(sparsify(LeNet5Caffe(), "bb", keep_init=1.0)).train()
    for gate in gates(model).values():
        gate.prune(torch.arange(0, gate.num_units, 3))
    x = torch.rand(6, 1, 28, 28)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    arrived = unit_activations(model, x)
    assert list(arrived) == list(gates(model))
    assert model.training
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())
    model.eval()
    with torch.no_grad():
        convolved = torch.nn.functional.conv2d(x, model.conv1.weight, model.conv1.bias)
        torch.testing.assert_close(arrived["conv1.output_gate"], convolved.mean(dim=(2, 3)))
        gated = model.conv1.output_gate(convolved)
        second = model.conv2._conv_forward(model.pool1(gated.relu()), model.conv2.weight, model.conv2.bias)
    torch.testing.assert_close(arrived["conv2.output_gate"], second.mean(dim=(2, 3)))
    assert not any(gate._forward_pre_hooks for gate in gates(model).values())
