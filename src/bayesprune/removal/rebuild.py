"""Writing the smaller network: the needed part of every activation, and the layers that compute it."""

import copy
from typing import Any, TypeAlias

import torch
from torch import Tensor, fx, nn

from bayesprune.graph.normalise import spoken
from bayesprune.graph.vocabulary import FUNCTIONS
from bayesprune.removal.analysis import Analysis, everything, shape_of
from bayesprune.removal.status import along

Layout: TypeAlias = dict[int, Tensor]
"""Dimension -> which of its original indices exist physically, and in which order. Dimensions that are missing are whole."""


class CannotRemoveError(Exception):
    """A node cannot work with less than its whole inputs.

    Attributes:
        node: whose result cannot be had in the layout that is asked for.
        asked_by: the node that was being written when it was asked for.
    """

    def __init__(self, node: fx.Node, reason: str) -> None:
        super().__init__(f"{node.name}: {reason}")
        self.node = self.asked_by = node


class SizeUnknownError(CannotRemoveError):
    """A node is constant, and nothing that is computed has its size."""


class Rebuild:
    """The graph under construction.

    Attributes:
        analysis: what is known and needed.
        graph: the new graph.
        attributes: its layers and tensors by path.
        new: the new node for each old one.
        layout: what of an old node's result exists in the new graph.
        trains: whether anything in the network is trained, and constants with it.
    """

    def __init__(self, analysis: Analysis) -> None:
        self.analysis = analysis
        self.graph = fx.Graph()
        self.attributes: dict[str, Any] = {}
        self.new: dict[fx.Node, fx.Node] = {}
        self.layout: dict[fx.Node, Layout] = {}
        self.trains = any(parameter.requires_grad for parameter in analysis.module.parameters())
        self._copies: dict[int, Any] = {}
        self._called_again: dict[fx.Node, nn.Module] = {}
        self._supplied: dict[tuple[Any, ...], fx.Node] = {}

    def module(self) -> fx.GraphModule:
        """The finished network."""
        self.graph.eliminate_dead_code(is_impure_node=lambda node: node.op in ("placeholder", "output"))
        used = {str(node.target) for node in self.graph.nodes if node.op in ("call_module", "get_attr")}
        module = fx.GraphModule({path: value for path, value in self.attributes.items() if path in used}, self.graph, "CompactNetwork")
        module.graph.lint()
        return module

    def device(self) -> torch.device:
        return next(iter([*self.analysis.module.parameters(), *self.analysis.module.buffers()]), torch.empty(0)).device

    def say(self, name: str, *tensors: Any, **rest: Any) -> fx.Node:
        """A node that calls a function of the vocabulary."""
        return spoken(self.graph, FUNCTIONS[name], tensors, rest)

    def enter(self, old: fx.Node, new: fx.Node, layout: Layout | None = None) -> None:
        """State what stands for an old node, and how much of its result it has."""
        self.new[old] = new
        self.layout[old] = {dim: labels for dim, labels in (layout or {}).items() if not _is_whole(labels, shape_of(old)[dim])}

    def arguments(self, arguments: Any) -> Any:
        """The old arguments with new nodes in the place of old ones."""
        return fx.map_arg(arguments, lambda node: self.whole(node) if "shape" in node.meta else self.new[node])

    def labels(self, node: fx.Node, dim: int) -> Tensor:
        """Which indices of a dimension exist."""
        if node in self.layout:
            return self.layout[node].get(dim, torch.arange(shape_of(node)[dim]))
        needed = self.analysis.needed.get(node, everything(node))
        return along(needed, dim, shape_of(node)[dim]).nonzero().flatten()

    def is_constant(self, node: fx.Node) -> bool:
        """Whether all that anybody reads of a node's result is the same for every input, so that nothing computes it."""
        return node not in self.new

    def layout_of(self, node: fx.Node) -> Layout:
        """What of a node's result exists; of a constant, what is needed."""
        if not self.is_constant(node):
            return self.layout[node]
        found = {dim: self.labels(node, dim) for dim in range(len(shape_of(node))) if dim not in node.meta["varies"]}
        return {dim: labels for dim, labels in found.items() if not _is_whole(labels, shape_of(node)[dim])}

    def covering(self, node: fx.Node, layout: Layout) -> Layout:
        """The layout that operands offer, fit for the result of ``node``.

        Where elements that are needed are missing in it, because the operands' are constant, the needed ones take its place.
        """
        result = {}
        for dim, labels in layout.items():
            needed = along(self.analysis.needed[node], dim, shape_of(node)[dim]).nonzero().flatten()
            result[dim] = labels if bool(torch.isin(needed, labels).all()) else needed
        return result

    def whole(self, node: fx.Node) -> fx.Node:
        """The node's result with all its elements: those that do not exist are filled in with what is known of them."""
        return self.supply(node, {})

    def supply(self, node: fx.Node, layout: Layout) -> fx.Node:
        """The node's result in exactly this layout."""
        key = (node, *((dim, tuple(labels.tolist())) for dim, labels in sorted(layout.items())))
        if key not in self._supplied:
            self._supplied[key] = self.constant(node, layout) if self.is_constant(node) else self._converted(node, layout)
        return self._supplied[key]

    def _converted(self, node: fx.Node, layout: Layout) -> fx.Node:
        result, have = self.new[node], dict(self.layout[node])
        for dim in sorted({*have, *layout}):
            size = shape_of(node)[dim]
            there, wanted = have.get(dim, torch.arange(size)), layout.get(dim, torch.arange(size))
            if torch.equal(there, wanted):
                continue
            if dim in node.meta["varies"]:
                raise CannotRemoveError(node, "its units lie in a dimension whose size changes with the input")
            position = torch.full((size,), -1)
            position[there] = torch.arange(len(there))
            chosen = position[wanted]
            if bool((chosen < 0).any()):
                missing = wanted[chosen < 0]
                result = self._extended(node, result, dim, missing, have)
                chosen[chosen < 0] = torch.arange(len(there), len(there) + len(missing))
            if not torch.equal(chosen, torch.arange(len(chosen))) or len(chosen) < len(there):
                result = self.gather(result, dim, chosen)
            have[dim] = wanted
        return result

    def gather(self, new: fx.Node, dim: int, index: Tensor) -> fx.Node:
        """The chosen indices along a dimension; a plain slice where they follow each other."""
        start = int(index[0])
        if torch.equal(index, torch.arange(start, start + len(index))):
            return self.say("narrow", new, dim=dim, start=start, length=len(index))
        return self.say("index_select", new, dim=dim, index=self.tensor("kept", index.to(self.device())))

    def _extended(self, node: fx.Node, new: fx.Node, dim: int, missing: Tensor, have: Layout) -> fx.Node:
        """The result with the missing indices appended; those of which nothing is known are needed by nobody and become zeros."""
        fact = self.analysis.known.get(node)
        rank = len(shape_of(node))
        values = torch.zeros([1] * rank, dtype=torch.float64) if fact is None else fact.value
        if values.shape[dim] > 1:
            values = values.index_select(dim, missing)
        for other, labels in have.items():
            if other != dim and values.shape[other] > 1:
                values = values.index_select(other, labels)
        if not bool(values.any()):
            padding = [0] * (2 * (rank - dim))
            padding[-1] = len(missing)
            return self.say("pad", new, pad=tuple(padding), value=0.0)
        sizes = tuple(len(missing) if other == dim else self.say("size", new, dim=other) for other in range(rank))
        filling = self.say("expand", self.tensor("constant", self.like(node, values), trainable=True), shape=sizes)
        return self.say("cat", (new, filling), dim=dim)

    def constant(self, node: fx.Node, layout: Layout, beside: fx.Node | None = None) -> fx.Node:
        """A result that is the same for every input, in this layout.

        Its size is that of ``beside``, a node of the new graph, in the dimensions that are not in the layout; by default it is that of the
        example.
        """
        fact = self.analysis.known[node]
        values, shape = fact.value, shape_of(node)
        for dim, labels in layout.items():
            if values.shape[dim] > 1:
                values = values.index_select(dim, labels)
        sizes: list[Any] = [len(layout[dim]) if dim in layout else size for dim, size in enumerate(shape)]
        for dim in range(len(shape)):
            if beside is not None and dim not in layout:
                sizes[dim] = self.say("size", beside, dim=dim)
            elif dim in node.meta["varies"]:
                sizes[dim] = self.size_like(node, dim)
        return self.say("expand", self.tensor("constant", self.like(node, values), trainable=True), shape=tuple(sizes))

    def size_like(self, node: fx.Node, dim: int) -> fx.Node:
        """The size of a dimension that varies, taken from a network input that has always had the same size."""
        sizes = [shape[dim] for shape in node.meta["shapes"]]
        for candidate in self.analysis.module.graph.nodes:
            if candidate.op == "placeholder" and candidate in self.new:
                for other in candidate.meta.get("varies", ()):
                    if [shape[other] for shape in candidate.meta["shapes"]] == sizes:
                        return self.say("size", self.new[candidate], dim=other)
        raise SizeUnknownError(node, "it is constant, but its size depends on the input")

    def tensor(self, name: str, value: Tensor, trainable: bool = False) -> fx.Node:
        """A new parameter or buffer."""
        path = f"{name}_{sum(key.startswith(f'{name}_') for key in self.attributes)}"
        trainable = trainable and value.is_floating_point()
        self.attributes[path] = nn.Parameter(value, requires_grad=self.trains) if trainable else value
        return self.graph.get_attr(path)

    def like(self, node: fx.Node, value: Tensor) -> Tensor:
        """Constants of the type and on the device of a node's result; they must not tell apart the inputs of a batch, of any size."""
        if any(value.shape[dim] > 1 for dim in node.meta["varies"]):
            raise CannotRemoveError(node, "it is constant, but its value changes along a dimension whose size changes with the input")
        return value.to(self.device(), node.meta["dtype"])

    def call(self, path: str, layer: nn.Module, *arguments: Any) -> fx.Node:
        """A node that calls a layer, which is entered under its old path, or one like it if another call of it has become different."""
        while path in self.attributes and self.attributes[path] is not layer:
            path += "_again"
        self.attributes[path] = layer
        return self.graph.call_module(path, arguments)

    def one_for_all(self, node: fx.Node, layer: nn.Module) -> nn.Module:
        """The layer for a node: of one that is called several times, that of its first call, which the other calls must agree with."""
        calls = self.analysis.calls.get(node)
        if calls is None:
            return layer
        first = self._called_again.setdefault(calls[0], layer)
        pairs = [(each.get(name), value) for each, other in _registries(first, layer) for name, value in other.items()]
        if not all(a is b or (a is not None and b is not None and torch.equal(a, b)) for a, b in pairs):
            raise CannotRemoveError(node, "its calls do not need the same of it")
        return first

    def same(self, value: Any) -> Any:
        """A copy of a layer or tensor; what was tied in the old network is tied in the new one."""
        twin = copy.deepcopy(value, self._copies)
        if isinstance(twin, nn.RNNBase):
            twin.flatten_parameters()  # A copy's weights do not lie together, which every call would have to mend.
        return twin


def _registries(first: nn.Module, second: nn.Module) -> list[tuple[dict[str, Tensor | None], dict[str, Tensor | None]]]:
    return [(first._parameters, second._parameters), (first._buffers, second._buffers)]  # type: ignore[list-item]


def _is_whole(labels: Tensor, size: int) -> bool:
    return len(labels) == size and torch.equal(labels, torch.arange(size))
