"""What the nodes of a graph compute for an example: values while it is translated, shapes and types for who reads it later."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, fx
from torch.utils import _pytree as pytree

from bayesprune.example_inputs import ExampleInputs, arguments, tensors_in, with_batch_size


class _Recorder(fx.Interpreter):
    def __init__(self, module: fx.GraphModule) -> None:
        super().__init__(module, garbage_collect_values=False)

    def run_node(self, n: fx.Node) -> Any:
        value = super().run_node(n)
        self.recorded[n] = value
        return value

    def record(self, args: tuple[Any, ...]) -> dict[fx.Node, Any]:
        self.recorded: dict[fx.Node, Any] = {}
        with torch.no_grad():
            self.run(*pytree.tree_map_only(Tensor, torch.clone, args))  # A layer may write into its input.
        return self.recorded


def positional(module: fx.GraphModule, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
    """The arguments in the order of the graph's placeholders: positional ones that are no tensors have no placeholder."""
    names = [str(node.target) for node in module.graph.nodes if node.op == "placeholder"]
    given = [each for each in args if tensors_in(each)]
    return (*given, *(kwargs[name] for name in names[len(given) :]))


def record(module: fx.GraphModule, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[fx.Node, Any]:
    """The value of every node for these arguments."""
    return _Recorder(module).record(positional(module, args, kwargs))


def annotate(module: fx.GraphModule, example_inputs: ExampleInputs, others: Sequence[ExampleInputs] = ()) -> None:
    """Write into the ``meta`` of nodes ``shape`` and ``dtype`` (of tensors), ``value`` (of numbers, devices), which dimensions ``vary``.

    The batch is cut to two samples, where the model allows it, so that what is derived from shapes stays small. Dimensions that differ
    with three samples, or with inputs of other sizes, vary: nothing may be removed along them by its index. Those that differ with inputs
    of other sizes also ``resize``: an index of theirs means nothing by itself. ``shapes`` has all that were seen.
    """
    batches = [record_batch(module, example_inputs, size) for size in (2, 3)]
    two, three = batches if all(batches) else (record_batch(module, example_inputs, None), None)
    assert two is not None
    resized = [record for record in (record_batch(module, inputs, None) for inputs in others) if record is not None]
    records = [*([] if three is None else [three]), *resized]
    for node, value in two.items():
        if isinstance(value, Tensor):
            shape = tuple(value.shape)
            node.meta["shape"], node.meta["dtype"] = shape, value.dtype
            node.meta["shapes"] = (shape, *(tuple(record[node].shape) for record in records))
            varies = {dim for dim, size in enumerate(shape) if any(other[dim] != size for other in node.meta["shapes"])}
            node.meta["resizes"] = frozenset(dim for dim in varies if any(record[node].shape[dim] != shape[dim] for record in resized))
            node.meta["varies"] = frozenset(varies | {0} if three is None and shape and node.op != "get_attr" else varies)
        elif isinstance(value, (int, float, bool)):
            node.meta["value"] = value
            node.meta["varies"] = frozenset({0} if any(record[node] != value for record in records) else ())
        elif isinstance(value, torch.device):
            node.meta["value"], node.meta["varies"] = value, frozenset()
        elif isinstance(value, (tuple, list)) and all(isinstance(each, Tensor) for each in pytree.tree_leaves(value)):
            node.meta["results"] = len(value)


def record_batch(module: fx.GraphModule, example_inputs: ExampleInputs, size: int | None) -> dict[fx.Node, Any] | None:
    """The values for a batch of this size, or None if the model does not run on it."""
    args, kwargs = arguments(example_inputs if size is None else with_batch_size(example_inputs, size))
    if size is None:
        return record(module, args, kwargs)
    try:
        return record(module, args, kwargs)
    except (RuntimeError, ValueError, IndexError, TypeError):
        return None
