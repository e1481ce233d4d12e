"""``trace``: the internal graph of any model."""

import itertools
import keyword
import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, TypeAlias

import torch
from torch import Tensor, fx, nn
from torch.utils import _pytree as pytree

from bayesprune.errors import InputError
from bayesprune.example_inputs import (
    ExampleInputs,
    arguments,
    batch_size,
    is_record,
    tensors_in,
    with_batch_size,
    with_other_values,
    with_own_memory,
)
from bayesprune.graph.batch_limits import SINGLE, batch_limits
from bayesprune.graph.calls import after_a_call, run_example, run_watched
from bayesprune.graph.export_tracing import export_graph
from bayesprune.graph.fx_tracing import fx_graph
from bayesprune.graph.normalise import normalise
from bayesprune.graph.other_sizes import Trial, in_other_sizes
from bayesprune.graph.quiet import quiet_tracers
from bayesprune.graph.recording import annotate, positional
from bayesprune.graph.simplify import simplify
from bayesprune.graph.size_limits import numel, size_limits
from bayesprune.prediction import evaluating
from bayesprune.state import as_before

Tracer: TypeAlias = Callable[[nn.Module, tuple[Any, ...], dict[str, Any]], tuple[fx.Graph, dict[str, nn.Module | Tensor]]]
_TRACERS: tuple[tuple[str, Tracer], ...] = (
    ("torch.fx", fx_graph),
    ("torch.export", partial(export_graph, any_size=True)),
    ("torch.export", export_graph),
)
_SAME = 1e-3
"""A graph with a larger relative difference is another function."""
_RETURNED = (Tensor, str, int, float, type(None))
"""What a graph can return, in containers."""
_EPSILONS = 100
"""How many rounding errors of its type the result of the very same operations may be off by."""


def trace(model: nn.Module, example_inputs: ExampleInputs) -> fx.GraphModule:
    """The model's computation as a graph in the vocabulary, with shapes, in evaluation mode.

    ``torch.fx`` is tried first, ``torch.export`` where it cannot follow. A graph is believed only if it computes for the example what the
    model does, and for other inputs and batch sizes; one that does so for inputs of other sizes, which the model takes, is preferred. It
    shares the model's parameters; gates are leaves. Its ``meta`` has the ``tracer``, the ``other_sizes`` in which it was tried, whether
    the example's is its ``only_size`` although the model takes others, for which ``batches`` it holds, what its inputs may be
    ``at_most``, if the model grows with larger ones, and the buffers ``written`` by the model, but not by the graph.

    Raises:
        InputError: the model does not run on the example, or no tracer can follow it.
    """
    example_inputs = with_own_memory(example_inputs)
    expected, written = run_watched(model, example_inputs)
    if not tensors_in(expected):
        raise InputError(f"{type(model).__name__} returns no tensors that a graph could be compared with, but {type(expected).__name__}")
    several = _with_a_second_input(model, example_inputs, expected)
    module = _traced(model, *several)
    if not module.meta["batches"].admit(batch_size(example_inputs)):
        module = _traced(model, example_inputs, expected, alone=True)
    module.meta["written"] = written
    return module


def _traced(model: nn.Module, example_inputs: ExampleInputs, expected: Any, *, alone: bool = False) -> fx.GraphModule:
    """The graph of a model; ``alone``, one for inputs as they are in the example, which is a single one."""
    trials = [] if alone else in_other_sizes(model, example_inputs, expected)
    follow = partial(_first_that_follows, model, example_inputs, expected, trials, alone)
    with evaluating(model), quiet_tracers():  # The graph shares its gates, which must not draw masks or move statistics.
        module, reasons = follow()
        if (module is None or module.meta["only_size"]) and trials:
            largest = max(trials, key=lambda trial: numel(trial.inputs))
            with after_a_call(model, largest.inputs) as has_written:
                # A cache that grows with the inputs: no graph makes it, but one that is large enough can be read.
                again = follow()[0] if has_written else None
            if again is not None and _follows_elsewhere(again, _SAME, [Trial(example_inputs, expected), *trials]):
                module = again  # Also now that what the model wrote into itself is undone.
                module.meta["at_most"] = size_limits(model, example_inputs, largest, partial(_follows_elsewhere, module, _SAME))
        if module is None:
            _refuse_what_cannot_be_a_graph(model, example_inputs, expected)
            raise _refusal(model, reasons)
        follows = partial(_follows_elsewhere, module, _SAME)
        module.meta["batches"] = SINGLE if alone else batch_limits(model, example_inputs, follows)
        return _annotated(module, example_inputs, [] if module.meta["only_size"] else [trial.inputs for trial in trials])


def _first_that_follows(
    model: nn.Module, example_inputs: ExampleInputs, expected: Any, trials: Sequence[Trial], alone: bool
) -> tuple[fx.GraphModule | None, dict[str, str]]:
    """The graph of the first tracer that follows the model in all sizes, or else for the example's; and what kept the others from it."""
    reasons: dict[str, str] = {}
    found: fx.GraphModule | None = None
    for name, tracer in _TRACERS:
        try:
            module, difference = _followed(model, tracer, example_inputs, expected, alone)
        except InputError:
            raise
        except Exception as error:  # noqa: BLE001  Tracers raise whatever the model's code makes of their proxies.
            reasons.setdefault(name, (str(error).strip() or type(error).__name__).splitlines()[0])
            continue
        module.meta["tracer"], module.meta["only_size"] = name, alone or not _follows_elsewhere(module, difference, trials)
        if alone or not module.meta["only_size"]:
            return module, reasons
        found = found or module
    return found, reasons


def _refuse_what_cannot_be_a_graph(model: nn.Module, example_inputs: ExampleInputs, expected: Any) -> None:
    """Say what it is about a model that lets no tracer follow it, where that can be told from what it computes."""
    again = run_example(model, example_inputs)
    if any(relative_difference(a, b) > 0 for a, b in zip(tensors_in(again), tensors_in(expected), strict=False)):
        raise InputError(
            f"{type(model).__name__} does not compute the same twice in evaluation mode: it draws random numbers, such as F.dropout "
            "without training=self.training, or changes its state. Let it do so in training mode only"
        )
    foreign = sorted({type(leaf).__name__ for leaf in pytree.tree_leaves(expected) if not isinstance(leaf, _RETURNED)})
    if foreign:
        raise InputError(
            f"{type(model).__name__} returns objects that no graph can make: {', '.join(foreign)}. Let it return tensors in tuples, lists "
            "and dictionaries: by an option of the model (use_cache=False, return_dict=False), or in a module that picks the tensors"
        )


def _refusal(model: nn.Module, reasons: dict[str, str]) -> InputError:
    """The error for a model that no tracer can follow."""
    names = (name for name, _ in (*model.named_modules(), *model.named_parameters(), *model.named_buffers()))
    words = sorted({part for name in names for part in name.split(".") if keyword.iskeyword(part)})
    if words:
        return InputError(
            f"the computation of {type(model).__name__} cannot be followed: {', '.join(words)} are names of its parts, and words of "
            "Python, which torch.fx cannot write down: call them otherwise"
        )
    tried = "; ".join(f"{tracer}: {reason}" for tracer, reason in reasons.items())
    return InputError(
        f"the computation of {type(model).__name__} cannot be followed ({tried}). "
        "Move what depends on the values of tensors out of forward, or wrap the part that is plain and sparsify that"
    )


def _followed(model: nn.Module, tracer: Tracer, example_inputs: ExampleInputs, expected: Any, alone: bool) -> tuple[fx.GraphModule, float]:
    """The graph that a tracer finds, which computes what the model does for the example, another input and, unless alone, batch size.

    Also how far it is off for the example.
    """
    args, kwargs = arguments(example_inputs)
    with as_before(model):
        graph, referred = tracer(model, args, kwargs)
    with as_before(model):  # What was recorded writes as the model does.
        module = normalise(graph, referred, args, kwargs, {path for path, _ in model.named_modules(remove_duplicate=False)})
    module.eval()
    difference = _check(module, example_inputs, expected)
    _check_elsewhere(model, module, example_inputs, alone)
    return module, difference


def _annotated(module: fx.GraphModule, example_inputs: ExampleInputs, others: Sequence[ExampleInputs]) -> fx.GraphModule:
    module.meta["other_sizes"] = others
    annotate(module, example_inputs, others)
    if simplify(module):
        annotate(module, example_inputs, others)
    return module


def _follows_elsewhere(module: fx.GraphModule, difference: float, trials: Sequence[Trial]) -> bool:
    """Whether a graph computes the same for other sizes, as exactly as for the example: another branch of the code may differ by little."""
    kinds = {tensor.dtype for trial in trials for tensor in tensors_in(trial.result) if tensor.is_floating_point()}
    allowed = min(_SAME, max([10 * difference, *(_EPSILONS * torch.finfo(kind).eps for kind in kinds)]))
    try:
        return all(_difference(module, trial.inputs, trial.result) <= allowed for trial in trials)
    except Exception:  # noqa: BLE001  Whatever torch makes of a size that does not fit.
        return False


def _with_a_second_input(model: nn.Module, example_inputs: ExampleInputs, expected: Any) -> tuple[ExampleInputs, Any]:
    """An example of one input, twice: tracers take a size of one for a constant."""
    if batch_size(example_inputs) != 1:
        return example_inputs, expected
    doubled = with_batch_size(example_inputs, 2)
    try:
        return doubled, run_example(model, doubled)
    except InputError:
        return example_inputs, expected


def _check(module: fx.GraphModule, inputs: ExampleInputs, expected: Any) -> float:
    difference = _difference(module, inputs, expected)
    if difference > _SAME:
        raise RuntimeError("the traced graph computes something else than the model: its code depends on values")
    return difference


def _difference(module: fx.GraphModule, inputs: ExampleInputs, expected: Any) -> float:
    """The largest relative difference of a result from what the model computes."""
    with torch.no_grad():
        got = module(*positional(module, *arguments(inputs)))
    if pytree.tree_structure(_plain(got)) != pytree.tree_structure(_plain(expected)):
        raise RuntimeError("the traced graph returns another structure than the model")
    return max((relative_difference(a, b) for a, b in zip(tensors_in(got), tensors_in(expected), strict=True)), default=0.0)


def _plain(nest: Any) -> Any:
    """A result in plain containers: a dictionary for any mapping or dataclass, and a tuple where torch has names for its parts."""
    if isinstance(nest, Mapping) or is_record(nest):
        return {name: _plain(each) for name, each in (nest if isinstance(nest, Mapping) else vars(nest)).items()}
    if type(nest).__module__ == "torch.return_types":
        return tuple(nest)
    return type(nest)(map(_plain, nest)) if type(nest) in (tuple, list) else nest


def _check_elsewhere(model: nn.Module, module: fx.GraphModule, example_inputs: ExampleInputs, alone: bool) -> None:
    """See that nothing of the example has become part of the graph: its batch size, or numbers that were read from its tensors."""
    sizes = (1,) if alone else (batch_size(example_inputs) + 1, batch_size(example_inputs))
    for size, whole_numbers in itertools.product(sizes, (True, False)):
        inputs = with_other_values(with_batch_size(example_inputs, size), whole_numbers=whole_numbers)
        try:
            expected = run_example(model, inputs)
        except InputError:
            continue  # A model for this batch size only, or for such numbers only.
        _check(module, inputs, expected)
        return


def relative_difference(a: Tensor, b: Tensor) -> float:
    """The norm of a - b over the norm of b; infinite where shapes or types differ, or where only one of them is finite, or a number."""
    if a.shape != b.shape or a.dtype != b.dtype:
        return float("inf")
    if b.is_complex():
        return relative_difference(torch.view_as_real(a.resolve_conj()), torch.view_as_real(b.resolve_conj()))
    if not b.is_floating_point():
        return float((a != b).any())
    a, b = a.detach().double(), b.detach().double()
    same = (a == b) | (a.isnan() & b.isnan())
    error = torch.where(same, 0.0, a - b)
    size = float(torch.where(b.isfinite(), b, 0.0).norm())
    norm = float(error.norm())
    return 0.0 if norm == 0 else norm / size if size and not math.isnan(norm) else float("inf")
