"""What every candidate is compared with: the gated network, on inputs that nobody has seen, and how much of a difference is rounding."""

import copy
from collections.abc import Callable

import torch
from torch import nn

import bayesprune as bp
from bayesprune.example_inputs import tensors_in
from bayesprune.graph.tracing import relative_difference
from bayesprune.prediction import evaluating
from benchmarks.exactness.cases import Case, Inputs

SEED = 0
DROPPED, KEPT_LOW, KEPT_RANGE = -20.0, 10.0, 20.0
"""Raw a of pruned units, and of kept ones: their posterior means are 0.91 to 0.97."""
EXACT = {"float32": 1e-5, "float64": 1e-10}
"""Up to this relative error a difference is rounding; in float32 up to twice the rounding of the reference itself, if that is more."""
CALIBRATION_BATCHES, FRESH_BATCHES = 8, 5


def prune_at_random(gated: nn.Module, share: float, only: str | None = None) -> None:
    """Prune this share of the units of every gate, or of one; the others get posterior means of their own."""
    generator = torch.Generator().manual_seed(SEED)
    with torch.no_grad():
        for name, gate in bp.gates(gated).items():
            raw_a, order = gate.get_parameter("raw_a"), torch.randperm(gate.num_units, generator=generator)
            raw_a.copy_(KEPT_LOW + KEPT_RANGE * torch.rand(gate.num_units, generator=generator))
            pruned = gate.num_units if share == 1 else min(max(1, round(share * gate.num_units)), gate.num_units - 1)
            if only in (None, name):
                raw_a[order[:pruned]] = DROPPED


def prepared(case: Case, dtype: str) -> tuple[nn.Module, Inputs]:
    """The network in evaluation mode and a batch."""
    torch.manual_seed(SEED)
    model = case.build().eval()
    calibrate_norms(model, case.inputs)
    return model.to(getattr(torch, dtype)), tuple(x.to(getattr(torch, dtype)) for x in case.inputs())


def calibrate_norms(model: nn.Module, inputs: Callable[[], Inputs]) -> None:
    """Give batch norms the statistics of what they see, as after training; with others, whole channels are constant and hide mistakes."""
    norms = [module for module in model.modules() if isinstance(module, nn.modules.batchnorm._BatchNorm)]
    for norm in norms:
        norm.reset_running_stats()
        norm.momentum = None
        norm.train()
    with torch.no_grad():
        for _ in range(CALIBRATION_BATCHES if norms else 0):
            model(*inputs())
    for norm in norms:
        norm.momentum = 0.1
        norm.eval()


def sparsified(case: Case, model: nn.Module, inputs: Inputs) -> nn.Module:
    """The network with gates that prune nothing yet."""
    return bp.sparsify(model, "bb", example_inputs=inputs, before_norm=case.before_norm, include=case.include)


def fresh_batches(case: Case, inputs: Inputs) -> list[Inputs]:
    """Random inputs that nobody has seen yet."""
    torch.manual_seed(SEED + 1)
    return [tuple(x.to(inputs[0].dtype) for x in case.inputs()) for _ in range(FRESH_BATCHES)]


def variation(case: Case, gated: nn.Module, inputs: Inputs) -> float:
    """How much the outputs depend on the inputs: the norm of their deviations from the mean over the norm of the outputs."""
    with torch.no_grad(), evaluating(gated):
        outputs = torch.cat([tensors_in(gated(*batch))[0] for batch in fresh_batches(case, inputs)])
    return float((outputs - outputs.mean(0)).norm() / outputs.norm())


def error(case: Case, gated: nn.Module, small: nn.Module, inputs: Inputs) -> float:
    """The largest relative error of an output over the example and fresh random batches; infinite where the shapes differ."""
    with torch.no_grad(), evaluating(gated), evaluating(small):
        pairs = [(tensors_in(gated(*batch)), tensors_in(small(*batch))) for batch in (inputs, *fresh_batches(case, inputs))]
    return max(relative_difference(b, a) for expected, got in pairs for a, b in zip(expected, got, strict=True))


def rounding(case: Case, gated: nn.Module, inputs: Inputs) -> float:
    """How far the reference is from itself in float64."""
    finer = copy.deepcopy(gated).double()
    with torch.no_grad(), evaluating(gated), evaluating(finer):
        pairs = [
            (tensors_in(gated(*batch)), tensors_in(finer(*(x.double() for x in batch)))) for batch in (inputs, *fresh_batches(case, inputs))
        ]
    return max(relative_difference(a.double(), b) for got, expected in pairs for a, b in zip(got, expected, strict=True))


def allowed(case: Case, gated: nn.Module, inputs: Inputs) -> float:
    """The largest error that still is rounding: two ways to compute the same may both be off by the reference's own."""
    limit = EXACT[str(inputs[0].dtype).removeprefix("torch.")]
    return limit if inputs[0].dtype == torch.float64 else max(limit, 2 * rounding(case, gated, inputs))
