"""Operations are counted as they are carried out."""

import pytest
import torch
from per_input_networks import adapt, choice_of, force, from_gallery
from torch.utils.flop_counter import FlopCounterMode

from bayesprune.adaptive.plan import ExecutionPlan
from bayesprune.adaptive.work import count_work
from bayesprune.cost import plain_cost
from bayesprune.gates import gates


@torch.no_grad()
def flops(model, *inputs):
    with FlopCounterMode(display=False) as counter:
        model(*inputs)
    return counter.get_total_flops()


@pytest.mark.parametrize("name", ["lenet_500_300", "lenet5", "vgg", "conv1d", "swiglu", "static_view"])
def test_what_an_input_spares_is_what_torch_counts(name):
    staged, inputs = from_gallery(name)
    adaptive = force(adapt(staged, inputs), "gather", 1)
    work = count_work(adaptive, *inputs)
    needed = torch.stack(adaptive.units_needed(*inputs))
    for row, x in enumerate(inputs[0].split(1)):
        assert needed[:, row].min() > 0
        assert 2 * int(work.compacted - work.needed[row]) == flops(adaptive.plain, x) - flops(adaptive, x)


def test_what_is_executed_depends_on_the_ways_that_are_chosen():
    adaptive = adapt(*from_gallery("lenet5"))
    nothing_chosen = count_work(adaptive, *adaptive.example)
    assert (nothing_chosen.executed == nothing_chosen.compacted).all()
    adaptive.plans[1] = ExecutionPlan(1, (), (), 2.0, 1.0)
    for way in ("gather", "full"):
        for layer in adaptive.layers:
            layer.choices[1] = choice_of(way, layer, 1)
        work = count_work(adaptive, *adaptive.example)
        assert torch.equal(work.executed, work.needed if way == "gather" else torch.full_like(work.needed, work.compacted))


@pytest.mark.parametrize("way", ["gather", "product", "whole product", "full"])
def test_what_is_executed_is_what_torch_counts(way):
    adaptive = force(adapt(*from_gallery("vgg")), way, 1)
    adaptive.plans[1] = ExecutionPlan(1, (), (), 2.0, 1.0)
    work = count_work(adaptive, *adaptive.example)
    for row, x in enumerate(adaptive.example[0].split(1)):
        assert 2 * int(work.compacted - work.executed[row]) == flops(adaptive.plain, x) - flops(adaptive, x)


@pytest.mark.parametrize("name", ["lenet_500_300", "lenet5"])
def test_the_average_is_that_of_the_formula(name):
    """Kept outputs times used inputs, layer by layer, from what the gates themselves say they use."""
    staged, inputs = from_gallery(name)
    used = {}

    def look(gate, given):
        used[gate] = gate.keep(*given)

    handles = [gate.register_forward_pre_hook(look) for gate in gates(staged).values()]
    with torch.no_grad():
        staged(*inputs)
    for handle in handles:
        handle.remove()
    kept = [int(gate.keep().sum()) for gate in gates(staged).values()]
    average = [float(used[gate].sum(dim=1).double().mean()) for gate in gates(staged).values()]
    found = float(count_work(adapt(staged, inputs), *inputs).needed.double().mean())
    assert found == pytest.approx(plain_cost(staged.layers(), kept, average).macs, rel=0.02)
