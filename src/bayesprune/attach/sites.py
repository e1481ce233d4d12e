"""Where in a model's code a gate can be hooked onto an activation of its graph."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, fx, nn

from bayesprune.example_inputs import ExampleInputs, arguments
from bayesprune.graph.calls import run_example
from bayesprune.graph.recording import record
from bayesprune.removal.analysis import Analysis, tensor_inputs
from bayesprune.removal.rules import rule_for
from bayesprune.removal.rules.elementwise import Activation
from bayesprune.removal.rules.layers import Convolution
from bayesprune.removal.rules.norms import ChannelNorm, GroupNorm, SpatialOperation


class Sites:
    """The calls of a model's own modules in its graph.

    Args:
        model: as it was given.
        module: its graph.
        example_inputs: what it is called with.
    """

    def __init__(self, model: nn.Module, module: fx.GraphModule, example_inputs: ExampleInputs) -> None:
        self.module = module
        calls = [node for node in module.graph.nodes if node.op == "call_module"]
        modules = dict(model.named_modules(remove_duplicate=False))
        inside = tuple(f"{path}." for path, each in modules.items() if isinstance(each, nn.MultiheadAttention))
        objects = [id(modules[str(node.target)]) for node in calls if node.target in modules]
        once = {
            path: node
            for node in calls
            if (path := str(node.target)) in modules
            and objects.count(id(modules[path])) == 1
            and not path.startswith(inside)
            # A gate would multiply a copy of what such a layer writes into its input, and those who read that input would go without.
            and not node.meta.get("read_by_another_name")
        }
        self._given = set(once)
        self._returned = dict(once)
        """The activations that modules return."""
        own = {path: node for path, node in once.items() if type(modules[path]) is not type(module.get_submodule(path))}
        if own:
            self._find_in_other_code(model, own, example_inputs)
        self._returning = {node: path for path, node in self._returned.items()}

    def _find_in_other_code(self, model: nn.Module, own: dict[str, fx.Node], example_inputs: ExampleInputs) -> None:
        """Modules of the user's do something besides the layer that stands for them: their inputs and outputs may be others than its."""
        with _without_zeros(model):
            values = record(self.module, *arguments(example_inputs))
            seen = _inputs_and_outputs(model, own, example_inputs)
        nodes = list(self.module.graph.nodes)
        for path, layer in own.items():
            given, returned = seen.get(path, (None, None))
            read = layer.args[0] if layer.args else None
            if not (isinstance(read, fx.Node) and _has_same_rows(given, values[read])):
                self._given.discard(path)
            later = nodes[nodes.index(layer) :]
            found = next((node for node in later if node.op != "output" and _is_same(returned, values[node])), None)
            if found is None:
                del self._returned[path]
            else:
                self._returned[path] = found

    def is_given(self, node: fx.Node) -> bool:
        """Whether the layer's input is that of a module, which is called just once."""
        return str(node.target) in self._given

    def output(self, node: fx.Node) -> str | None:
        """The module whose output this activation is, if it is called just once."""
        return self._returning.get(node)

    def input(self, node: fx.Node) -> str | None:
        """The module that alone reads this activation, as its input."""
        users = list(node.users)
        if len(users) != 1 or users[0].op != "call_module" or not self.is_given(users[0]):
            return None
        return str(users[0].target) if users[0].args and users[0].args[0] is node else None

    def along(self, block: list[fx.Node]) -> list[tuple[str, str, fx.Node]]:
        """The activations of a block that a gate can be hooked to, the last one first: module, side, activation.

        What a module of the user's returns, in which the block's layer is called, is one of them.
        """
        layer = str(block[0].target)
        around = self._returned.get(layer)
        found = [] if around is None or around in block else [(layer, "output", around)]
        for node in reversed(block):
            for side, path in (("output", self.output(node)), ("input", self.input(node))):
                if path is not None:
                    found.append((path, side, node))
        return found


def block_of(analysis: Analysis, layer: fx.Node) -> list[fx.Node]:
    """A layer and the norms, activations and depthwise convolutions that follow it, as long as nobody else reads what is between.

    Pooling belongs to the block only if more of these come after it.
    """
    block, end = [layer], 1
    while len(block[-1].users) == 1:
        (following,) = block[-1].users
        rule = rule_for(analysis, following)
        belongs = isinstance(rule, (Activation, ChannelNorm, GroupNorm)) or (
            isinstance(rule, Convolution) and is_depthwise(analysis.layer(following))
        )
        if not (belongs or isinstance(rule, SpatialOperation)) or tensor_inputs(following) != [block[-1]]:
            break
        block.append(following)
        end = len(block) if belongs else end
    return block[:end]


def is_depthwise(layer: nn.Module) -> bool:
    """Whether every channel of a convolution is computed from one channel, and no two from the same."""
    groups = getattr(layer, "groups", 1)
    return groups > 1 and groups == getattr(layer, "in_channels", None) == getattr(layer, "out_channels", None)


@contextmanager
def _without_zeros(model: nn.Module) -> Iterator[None]:
    """Parameters that are all zero, as those that adapters start with, are other numbers meanwhile: what they add shows."""
    zeros = [each for each in model.parameters() if each.is_floating_point() and not bool(each.any())]
    numbers = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for each in zeros:
            each.copy_(torch.randn(each.shape, generator=numbers))
    try:
        yield
    finally:
        with torch.no_grad():
            for each in zeros:
                each.zero_()


def _inputs_and_outputs(model: nn.Module, paths: Iterable[str], example_inputs: ExampleInputs) -> dict[str, tuple[Any, Any]]:
    """What some modules of a model are given as their first argument, and what they return, for the example."""
    given: dict[str, Any] = {}
    returned: dict[str, Any] = {}
    hooks = []
    for path in paths:
        module = model.get_submodule(path)
        hooks.append(module.register_forward_pre_hook(lambda _, inputs, path=path: given.update({path: _as_it_is(*inputs[:1])})))
        hooks.append(module.register_forward_hook(lambda _, _inputs, output, path=path: returned.update({path: _as_it_is(output)})))
    try:
        run_example(model, example_inputs)
    finally:
        for hook in hooks:
            hook.remove()
    return {path: (given[path], returned[path]) for path in returned}


def _as_it_is(value: Any = None) -> Any:
    """A value that stays what it is now: whoever reads a tensor next may write into it."""
    return value.clone() if isinstance(value, Tensor) else value


def _is_same(found: Any, expected: Any) -> bool:
    return isinstance(expected, Tensor) and isinstance(found, Tensor) and found.shape == expected.shape and _has_same_rows(found, expected)


def _has_same_rows(found: Any, expected: Any) -> bool:
    """Whether two tensors have the same rows: a layer may be given samples and positions as one dimension."""
    if not (isinstance(found, Tensor) and isinstance(expected, Tensor)) or found.shape[-1:] != expected.shape[-1:] or not found.ndim:
        return False
    rows, others = (each.detach().reshape(-1, each.shape[-1]) for each in (found, expected))
    return rows.shape == others.shape and torch.allclose(rows, others.to(rows.dtype), rtol=1e-3, atol=1e-5, equal_nan=True)
