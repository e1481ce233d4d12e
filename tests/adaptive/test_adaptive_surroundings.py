"""Adaptive models in modes of torch that others are in, and with hooks of others on their modules."""

import copy
import pickle

import pytest
import torch
from per_input_networks import NETWORK_WAYS, adapt, difference, force, from_gallery, outputs
from torch import nn


def gradient(network, inputs):
    (x,) = inputs
    x = x.clone().requires_grad_()
    network(x).square().sum().backward()
    return x.grad


def built_in_it(staged, inputs):
    with torch.inference_mode():
        return adapt(staged, inputs)


def called_in_it(staged, inputs):
    adaptive = built_in_it(staged, inputs)
    with torch.inference_mode():
        force(adaptive, "gather", len(inputs[0]))(*inputs)
    return adaptive


def changed_in_it(staged, inputs):
    adaptive = adapt(staged, inputs)
    with torch.inference_mode():
        adaptive.double().float().load_state_dict(adaptive.state_dict())
        adaptive.prepare(2)
    return adaptive


@pytest.mark.parametrize("make", [built_in_it, called_in_it, changed_in_it])
def test_gradients_of_what_was_made_in_inference_mode(make):
    staged, inputs = from_gallery("lenet5")
    adaptive = make(staged, inputs)
    expected = gradient(adaptive.compacted, inputs)
    for way in NETWORK_WAYS:
        force(adaptive, way, len(inputs[0]))
        torch.testing.assert_close(gradient(adaptive, inputs), expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("copied", [lambda adaptive: adaptive, copy.deepcopy, lambda adaptive: pickle.loads(pickle.dumps(adaptive))])
@pytest.mark.parametrize("register", ["register_forward_hook", "register_forward_pre_hook"])
def test_hooks_on_any_module_see_what_the_compacted_network_computes(register, copied):
    staged, inputs = from_gallery("lenet5")
    adaptive = force(copied(adapt(staged, inputs)), NETWORK_WAYS[-1], len(inputs[0]))
    expected, seen = outputs(adaptive, inputs), []
    called = [adaptive.compacted.get_submodule(node.target) for node in adaptive.compacted.graph.nodes if node.op == "call_module"]
    hooks = [getattr(module, register)(lambda module, *_: seen.append(module)) for module in called]
    assert difference(expected, outputs(adaptive, inputs)) < 1e-5
    assert seen == called
    assert any(isinstance(module, (nn.BatchNorm1d, nn.Conv2d)) for module in called)
    for hook in hooks:
        hook.remove()
    assert difference(expected, outputs(adaptive, inputs)) == 0
    assert seen == called


@pytest.mark.parametrize("copied", [lambda adaptive: adaptive, copy.deepcopy, lambda adaptive: pickle.loads(pickle.dumps(adaptive))])
def test_hooks_may_change_results(copied):
    staged, inputs = from_gallery("lenet5")
    adaptive = force(copied(adapt(staged, inputs)), NETWORK_WAYS[-1], len(inputs[0]))
    adaptive.compacted.register_forward_hook(lambda *_: torch.zeros(()))
    assert adaptive(*inputs).shape == ()
