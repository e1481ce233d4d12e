"""``compact``: the network that is left once the pruned units are gone."""

import warnings
from dataclasses import dataclass, replace

import torch
from torch import Tensor, fx, nn

from bayesprune.attach.places import model_and_example
from bayesprune.attach.units import spread
from bayesprune.compact.certificate import TOLERANCE, Certificate, Difference, GateOutcome, compare, tensor_arguments
from bayesprune.compact.dependent import write_out
from bayesprune.compact.units import factors_of
from bayesprune.cost import Cost, cost
from bayesprune.errors import BayespruneWarning, InputError
from bayesprune.example_inputs import ExampleInputs, batch_size, tensors_in, with_batch_size
from bayesprune.gates import Gate, gates
from bayesprune.gates.dependent_beta_bernoulli import DependentBetaBernoulli
from bayesprune.gates.hooks import bypassed
from bayesprune.graph import trace
from bayesprune.graph.batch_limits import SINGLE, BatchLimits
from bayesprune.graph.binding import spelled
from bayesprune.graph.calls import not_updated
from bayesprune.graph.recording import annotate
from bayesprune.graph.surroundings import in_turn
from bayesprune.removal import Analysis, analyse, shrink
from bayesprune.removal.analysis import shape_of
from bayesprune.removal.factors import Factors


@dataclass(frozen=True)
class Compaction:
    """A compacted network, and the evidence that it computes what the gated one did.

    Attributes:
        model: a plain ``nn.Module`` without gates, which needs no part of bayesprune to run, and can be trained further.
        certificate: differences, what was removed, cost.
    """

    model: nn.Module
    certificate: Certificate

    @property
    def max_abs_error(self) -> float:
        return self.certificate.max_abs_error

    @property
    def max_rel_error(self) -> float:
        return self.certificate.max_rel_error

    @property
    def kept(self) -> dict[str, int]:
        """Units kept, by gate."""
        return {name: outcome.kept for name, outcome in self.certificate.gates.items()}


@dataclass(frozen=True)
class _Pruned:
    """A gate that was taken out of the graph: where it stood, and which elements it pruned."""

    name: str
    gate: Gate
    read: fx.Node
    pruned: Tensor


@in_turn()
def compact(gated: nn.Module, example_inputs: ExampleInputs | None = None) -> Compaction:
    """Remove the pruned units of a gated model for good, without changing what it computes in evaluation mode.

    The posterior means of the kept units move into the weights. Input-dependent gates lose the units that no input uses and stay in the
    network as plain operations. Units whose removal would change something stay, and the certificate names them.

    Args:
        gated: a model with gates; it is not changed. While it is followed, no other thread should call it.
        example_inputs: a tensor, a tuple of positional arguments or a mapping of keyword arguments; may be left out for the networks of
            the paper and for an ``nn.Sequential`` that begins with a linear layer.

    Raises:
        InputError: the model has no gates, does not run on the example, or its computation cannot be followed.

    Example:
        >>> result = compact(gated, example_inputs=x)
        >>> print(result.certificate)
    """
    gated, inputs = model_and_example("compact", gated, example_inputs)
    found = gates(gated)
    _refuse_what_is_no_number(gated, inputs)
    module = trace(gated, inputs)
    _warn_if_nothing_is_pruned(found)
    pruned, masks_left = take_gates_out(module, found)
    others = module.meta["other_sizes"]
    if any(gate.depends_on_input for gate in found.values()):
        annotate(module, inputs, others)
    small, analysis = shrink(module)
    tolerance = TOLERANCE[_dtype(gated, inputs)]
    limits, every, difference = _compared(gated, small, inputs, others, module.meta["batches"], tolerance)
    note = _sizes_that_it_is_for(module, limits)
    if note:
        warnings.warn(note, BayespruneWarning, stacklevel=3)
    if not difference.relative <= tolerance:
        small, analysis = shrink(module, frozenset(module.graph.nodes))
        note = f"nothing was removed: the smaller network was off by {difference.relative:.1e}; please report this model"
        difference = compare(gated, small, inputs, every)
        if not difference.relative <= tolerance:
            raise InputError(
                f"{type(gated).__name__} cannot be compacted: its graph computes something else (relative difference "
                f"{difference.relative:.1e}). If it draws random numbers in evaluation mode, let it do so in training mode only; otherwise "
                "please report it"
            )
        warnings.warn(note, BayespruneWarning, stacklevel=3)
    _warn_if_input_is_lost(analysis, found)
    if module.meta["written"]:
        warnings.warn(not_updated(gated, module.meta["written"], "the compacted network"), BayespruneWarning, stacklevel=3)
    for old, new in zip(_placeholders(module), _placeholders(small), strict=True):
        new.meta |= {name: old.meta[name] for name in ("shape", "dtype") if name in old.meta}  # What an artifact says about its inputs.
    small.train(gated.training)
    certificate = Certificate(
        max_abs_error=difference.largest,
        max_rel_error=difference.relative,
        dtype=str(_dtype(gated, inputs)).removeprefix("torch."),
        inputs=difference.batches,
        gates={each.name: _outcome(each, analysis) for each in pruned},
        masks_left=tuple(masks_left),
        before=_cost_without_gates(gated, inputs),
        after=cost(small, tensor_arguments(small, inputs)),
        tracer=module.meta["tracer"],
        note=note,
        not_updated=module.meta["written"],
    )
    return Compaction(small, certificate)


def _compared(
    gated: nn.Module, small: fx.GraphModule, inputs: ExampleInputs, others: list[ExampleInputs], limits: BatchLimits, tolerance: float
) -> tuple[BatchLimits, list[ExampleInputs], Difference]:
    """For which batches the smaller network is, what it was compared on besides the example, and how far it is off.

    Its constants have the shapes that they have in batches of several inputs, also where the model squeezes that of a single one.
    """
    every = [*others, *_other_batches(inputs, limits)]
    difference = compare(gated, small, inputs, every)
    if difference.relative <= tolerance or limits.least > 1 or batch_size(inputs) == 1:
        return limits, every, difference
    several = replace(limits, least=2)
    without = [*others, *_other_batches(inputs, several)]
    apart = compare(gated, small, inputs, without)
    return (several, without, apart) if apart.relative <= tolerance else (limits, every, difference)


def _sizes_that_it_is_for(module: fx.GraphModule, limits: BatchLimits) -> str:
    """What to know about the sizes of inputs and batches; empty where they may be any."""
    notes = []
    if str(limits):
        notes.append(f"it is {limits}: with others the model does something else, or does not run")
    if module.meta.get("only_size") and limits != SINGLE:
        notes.append("it is for inputs of the example's size (the batch apart): the model's code could be followed for no other")
    elif module.meta.get("at_most"):
        sizes = " and ".join(module.meta["at_most"])
        notes.append(f"it is for inputs of at most {sizes}: the model grows with larger ones; give such an example for more")
    return "; ".join(notes)


def _other_batches(inputs: ExampleInputs, limits: BatchLimits) -> list[ExampleInputs]:
    """Batches of other sizes than the example's, a single input among them, that the graph is for."""
    now = batch_size(inputs)
    return [with_batch_size(inputs, size) for size in (now + 1, 1) if size != now and limits.admit(size)]


def _refuse_what_is_no_number(gated: nn.Module, inputs: ExampleInputs) -> None:
    """Nothing can be compared with results that are no numbers."""
    for name, tensor in (*gated.named_parameters(), *gated.named_buffers()):
        if bool(tensor.isnan().any()):
            raise InputError(
                f"{name} of {type(gated).__name__} is not a number (NaN): its training has diverged; take an earlier state of it"
            )
    if any(bool(leaf.isnan().any()) for leaf in tensors_in(inputs)):
        raise InputError("the example has values that are not numbers (NaN): give one that the model computes something from")


def _placeholders(module: fx.GraphModule) -> list[fx.Node]:
    return [node for node in module.graph.nodes if node.op == "placeholder"]


def take_gates_out(module: fx.GraphModule, found: dict[str, Gate]) -> tuple[list[_Pruned], list[str]]:
    """Replace every gate of the graph: by factors in the weights, or by the operations that it consists of."""
    names = {id(gate): name for name, gate in found.items()}
    pruned, masks_left = [], []
    factors: Factors | None = None
    for node in list(module.graph.nodes):
        gate = module.get_submodule(str(node.target)) if node.op == "call_module" else None
        if not isinstance(gate, Gate):
            continue
        read = node.all_input_nodes[0]
        name = names[id(gate)]
        rank = len(shape_of(read))
        with torch.no_grad():
            pruned.append(_Pruned(name, gate, read, spread(gate, (~gate.keep()).cpu().double(), rank) > 0))
            if isinstance(gate, DependentBetaBernoulli):
                write_out(module, node, gate)
                factors = None  # It knows the layers that were there before.
                continue
            factors = factors or Factors(module)
            if not factors.move(node, factors_of(gate, rank)):
                masks_left.append(name)
    module.graph.lint()
    module.recompile()
    return pruned, masks_left


def _outcome(each: _Pruned, analysis: Analysis) -> GateOutcome:
    """What became of a gate: which of its pruned units still exist, and who needs them."""
    kept = int(each.gate.keep().sum())
    needed = analysis.needed.get(each.read)
    still = None if needed is None else each.pruned & needed
    if still is None or not bool(still.any()):
        return GateOutcome(each.gate.num_units, kept)
    units = _units_in(each.gate, still, len(shape_of(each.read)))
    if each.read in analysis.sized or any(user in analysis.sized for user in each.read.users):
        return GateOutcome(each.gate.num_units, kept, units, "nothing else has the size of what they make")
    readers, turned = [], False
    for user in each.read.users:
        part = analysis.parts.get(user, {}).get(each.read)
        if part is not None and bool((part & each.pruned).any()):
            readers.append(spelled(user.target))
            turned |= user in analysis.known and bool((analysis.known[user].value != 0).any())
    names = ", ".join(dict.fromkeys(readers)) or "something else"
    reason = f"behind {names} the pruned units are constant but not zero: one stands for all" if turned else f"{names} reads them"
    return GateOutcome(each.gate.num_units, kept, units, reason)


def _units_in(gate: Gate, elements: Tensor, rank: int) -> int:
    """How many units have an element among these."""
    return sum(bool((spread(gate, one.double(), rank).bool() & elements).any()) for one in torch.eye(gate.num_units)[~gate.keep().cpu()])


def _cost_without_gates(gated: nn.Module, inputs: ExampleInputs) -> Cost:
    with bypassed(gated):
        counted = cost(gated, inputs)
    own = [*gates(gated).values()]
    parameters = sum(tensor.numel() for gate in own for tensor in gate.parameters())
    stored = sum(tensor.numel() * tensor.element_size() for gate in own for tensor in (*gate.parameters(), *gate.buffers()))
    return replace(counted, parameters=counted.parameters - parameters, bytes=counted.bytes - stored)


def _warn_if_nothing_is_pruned(found: dict[str, Gate]) -> None:
    taken_out = any(gate.noise_columns is not None for gate in found.values())  # By ``narrow``: nothing is left to prune.
    if not taken_out and all(bool(gate.keep().all()) for gate in found.values()):
        warnings.warn(
            "no unit is under its gate's threshold, so the network comes back whole: train longer, with a larger kl_scale or gate_lr, "
            "and with a method that prunes (cd does not)",
            BayespruneWarning,
            stacklevel=4,
        )


def _warn_if_input_is_lost(analysis: Analysis, found: dict[str, Gate]) -> None:
    """Say so if training has pruned too much: a network that always says the same is exact, and of no use."""
    inputs = _placeholders(analysis.module)
    facts = analyse(analysis.module, analysis.rigid) if analysis.sized else analysis  # A constant is still as large as its input.
    if any(node in facts.needed for node in inputs) or not inputs:
        return
    empty = [name for name, gate in found.items() if not bool(gate.keep().any())]
    why = f"{', '.join(empty)} keep no unit" if empty else "the units that are kept are dead: they say the same for every input"
    warnings.warn(
        f"the outputs no longer depend on the inputs, because {why}: train with a smaller kl_scale or tradeoff",
        BayespruneWarning,
        stacklevel=4,
    )


def _dtype(model: nn.Module, inputs: ExampleInputs) -> torch.dtype:
    of_gates = tuple(f"{name}." for name in gates(model))
    tensors = [parameter for name, parameter in model.named_parameters() if not name.startswith(of_gates)]
    for gate in gates(model).values():
        if gate.depends_on_input:  # Its own numbers are rounded as they are computed, for every input anew.
            tensors += gate.parameters()
    floats = [tensor.dtype for tensor in [*tensors, *tensors_in(inputs)] if tensor.is_floating_point()]
    return min(floats, key=lambda dtype: torch.finfo(dtype).bits) if floats else torch.float32
