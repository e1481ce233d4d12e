"""From what a tracer recorded to the vocabulary of the internal graph."""

import functools
import operator
from collections.abc import Container
from typing import Any

import torch
from torch import Tensor, fx, nn

from bayesprune.gates import Gate
from bayesprune.gates.hooks import has_other_hooks, without_gates
from bayesprune.graph.binding import bind, function_of, spelled
from bayesprune.graph.constants import SAME_TENSOR, stands_as_number
from bayesprune.graph.functional_layers import NotALayerError, layer_maker, layer_path
from bayesprune.graph.idioms import Idioms
from bayesprune.graph.products import Products
from bayesprune.graph.recording import record
from bayesprune.graph.vocabulary import CREATING, FUNCTIONS, INT_ARITHMETIC, MOVEMENT, Function

_RANDOM = frozenset(
    f"{name}{end}"
    for name in (
        *("rand", "randn", "randint", "rand_like", "randn_like", "randint_like", "randperm", "bernoulli", "multinomial", "poisson"),
        *("normal", "normal_functional", "uniform", "exponential", "cauchy", "geometric", "log_normal"),
    )
    for end in ("", "_")
)
"""Functions that draw numbers, and those that write such numbers into a tensor."""


class UntraceableError(Exception):
    """The recorded graph does something that the internal graph cannot say."""


def normalise(
    recorded: fx.Graph,
    referred: dict[str, nn.Module | Tensor],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    reserved: Container[str] = (),
) -> fx.GraphModule:
    """The recorded graph in the vocabulary. It shares the model's tensors; layers are copies without hooks of gates.

    Args:
        recorded: what a tracer made.
        referred: the modules and tensors that it refers to, by path.
        args: positional arguments of the example.
        kwargs: its keyword arguments.
        reserved: paths of the model's modules, which layers that are no modules of it do not get.
    """
    bare = {path: _bare(each) if isinstance(each, nn.Module) and not isinstance(each, Gate) else each for path, each in referred.items()}
    source = fx.GraphModule(bare, recorded)
    source.eval()
    return _Normaliser(source, record(source, args, kwargs), reserved).run()


class _Normaliser:
    def __init__(self, source: fx.GraphModule, values: dict[fx.Node, Any], reserved: Container[str]) -> None:
        self.source, self.values, self.reserved = source, values, reserved
        self.graph = fx.Graph()
        self.idioms = Idioms(self.graph, self._say)
        self.now: dict[fx.Node, Any] = {}
        """What stands for each recorded node: a node of the new graph, a literal, or a tuple of them for shapes."""
        self.attributes: dict[str, Any] = {}
        self.tensors: dict[fx.Node, Tensor] = {}
        self.device: fx.Node | None = None
        """The device of the first input."""

    def run(self) -> fx.GraphModule:
        origins: dict[fx.Node, fx.Node] = {}
        for node in self.source.graph.nodes:
            getattr(self, f"_{node.op}")(node)
            value, new = self.values.get(node), self.now.get(node)
            if isinstance(new, fx.Node) and node.op != "placeholder":
                origins.setdefault(new, node)
                self.now[node] = self._unpacked(new, value)
        products = Products(self.graph, self.tensors, origins, self.reserved)
        products.write(self.attributes)
        self.graph.eliminate_dead_code(is_impure_node=lambda node: node.op in ("placeholder", "output"))
        used = {node.target for node in self.graph.nodes if node.op in ("call_module", "get_attr")}
        kept = {path: value for path, value in self.attributes.items() if path in used}
        module = fx.GraphModule(kept, self.graph, type(self.source).__name__)
        module.meta["inputs_first"] = frozenset(products.inputs_first)
        return module

    def _unpacked(self, new: fx.Node, value: Any) -> Any:
        """What stands for a call with several results: each of them by itself."""
        if isinstance(value, Tensor):
            new.meta["shape"] = tuple(value.shape)
        if not isinstance(value, (tuple, list)):
            return new
        parts = [self._unpacked(self.graph.call_function(operator.getitem, (new, index)), each) for index, each in enumerate(value)]
        return parts if isinstance(value, list) else tuple(parts)

    def _placeholder(self, node: fx.Node) -> None:
        self.now[node] = new = self.graph.placeholder(str(node.target))
        value = self.values[node]
        if isinstance(value, Tensor):
            new.meta["shape"] = tuple(value.shape)
            self.device = self.device or self.graph.call_function(getattr, (new, "device"))

    def _get_attr(self, node: fx.Node) -> None:
        value = self.values[node]
        if not isinstance(value, Tensor):
            self.now[node] = value
            return
        path = str(node.target)
        if value.ndim == 0 and not isinstance(value, nn.Parameter) and stands_as_number(node, self.values):
            self.now[node] = value.item()  # A number that export has lifted.
            return
        self.attributes[path] = value
        new = self.graph.get_attr(path)
        self.tensors[new] = value
        self.now[node] = new

    def _output(self, node: fx.Node) -> None:
        self.graph.output(self._current(node.args[0]))

    def _call_module(self, node: fx.Node) -> None:
        path = str(node.target)
        module = self.source.get_submodule(path)
        if isinstance(module, Gate):  # Under its own name it would be part of the layer that it is hooked to.
            path = f"gates.{path.replace('.', '_')}"
        else:
            module = _bare(module)
        mutated = None
        if getattr(module, "inplace", False):
            module.inplace = False  # type: ignore[assignment]
            mutated = node.args[0]
        if type(module) is nn.GLU and not has_other_hooks(module):
            self.now[node] = self.idioms.glu(self._current(node.args[0]), module.dim)
            return
        self.attributes[path] = module
        new = self.graph.call_module(path, self._current(node.args), self._current(node.kwargs))
        self.now[node] = new
        if isinstance(mutated, fx.Node):
            new.meta["read_by_another_name"] = self._is_read_later(mutated, node)
            self._overwrite(mutated, new)

    def _call_method(self, node: fx.Node) -> None:
        if node.target == "size" or (node.target in ("dim", "numel", "item", "tolist") and not isinstance(self.values[node], Tensor)):
            self._shape_question(node)
        else:
            self._call(node, str(node.target))

    def _call_function(self, node: fx.Node) -> None:
        name = spelled(node.target)
        if "assert" in name or "guard" in name or "sym_constrain" in name:
            return
        if node.target is getattr:
            self._shape_question(node)
        elif node.target is operator.getitem:
            self._getitem(node)
        elif node.target in (operator.setitem, operator.delitem):
            raise UntraceableError("the model assigns into a part of a tensor")
        else:
            self._call(node, name)

    def _call(self, node: fx.Node, name: str) -> None:
        """Any function or method: a number, the same tensor, a layer, a word of the vocabulary, or something of its own."""
        if node.target is operator.add and isinstance(self._current(node.args[0]), tuple):
            self.now[node] = tuple(self._current(node.args[0])) + tuple(self._current(node.args[1]))  # Sizes put together for a view.
            return
        if node.kwargs.get("out") is not None:
            raise UntraceableError(f"the model gives {name} a tensor to write into")
        short = name.removesuffix(".default").split(".")[0]
        value = self.values[node]
        if short in _RANDOM and node.users:
            raise UntraceableError(f"the model draws random numbers with {short}")
        if isinstance(value, (int, float, bool)) or value is None:
            self._number(node, value)
        elif short in SAME_TENSOR:
            self.now[node] = self._current(node.args[0])
        elif short in ("select", "slice", "expand_as", "view_as") and isinstance(value, Tensor):
            self._indexing(node, short)
        elif short == "index" and isinstance(value, Tensor):
            tensor, index = self._current(node.args)
            chosen = tuple(slice(None) if each is None else each for each in index)
            self.now[node] = self._say(FUNCTIONS["getitem"], {"input": tensor, "index": chosen})
        elif not self._idiom(node, short) and not self._layer(node) and not self._word(node):
            if short.endswith("_") and not short.endswith("__"):
                raise UntraceableError(f"the model calls {short}, which changes a tensor in place")
            self.now[node] = self.graph.create_node(node.op, node.target, self._current(node.args), self._current(node.kwargs))

    def _number(self, node: fx.Node, value: Any) -> None:
        arguments = self._current(node.args)
        if node.target is torch.ops.aten.sym_size.int:
            self.now[node] = self._size(arguments[0], arguments[1] % self._value(node.args[0]).ndim)
        elif any(isinstance(each, fx.Node) for each in arguments) and node.target in INT_ARITHMETIC:
            self.now[node] = self.graph.create_node(node.op, node.target, arguments)
        else:
            self.now[node] = value

    def _idiom(self, node: fx.Node, short: str) -> bool:
        """Write a call in several words, where we have no single one."""
        new = self.idioms.write(short, self._current(node.args), self._current(node.kwargs), self.values[node])
        if new is not None:
            self.now[node] = new
        return new is not None

    def _layer(self, node: fx.Node) -> bool:
        found = layer_maker(node.target) if node.op == "call_function" else None
        if found is None:
            return False
        make, names = found
        call = dict(zip(names, self._current(node.args), strict=False)) | self._current(node.kwargs)
        try:
            layer = make(call, self.tensors)
        except NotALayerError:
            return False
        weight = call.get("weight")
        path = layer_path(str(weight.target) if isinstance(weight, fx.Node) else "", node.name, node, self.attributes, self.reserved)
        self.attributes[path] = layer
        self.now[node] = self.graph.call_module(path, (call["input"],))
        return True

    def _word(self, node: fx.Node) -> bool:
        function = function_of(node.op, node.target)
        if function is not None and function.name == "to":
            return self._conversion(node)
        bound = None if function is None else bind(function, node.target, self._current(node.args), self._current(node.kwargs))
        if function is None or bound is None:
            return False
        new = self._say(*self._tensor_first(function, bound))
        self.now[node] = new
        written = node.args[0] if node.args else None
        name = spelled(node.target).split(".")[0]
        in_place = bound.get("inplace") or name in ("iadd", "isub", "imul", "itruediv") or (name.endswith("_") and not name.endswith("__"))
        if in_place and isinstance(written, fx.Node):
            self._overwrite(written, new)
        return True

    def _tensor_first(self, function: Function, bound: dict[str, Any]) -> tuple[Function, dict[str, Any]]:
        """Arithmetic with a number on the left, or a bound that is one, which torch's functions do not take."""
        if function.name in _BOUNDS and not all(isinstance(bound[name], fx.Node) for name in ("input", "other")):
            tensor, number = sorted((bound["input"], bound["other"]), key=lambda each: not isinstance(each, fx.Node))
            return FUNCTIONS["clamp"], {"input": tensor, _BOUNDS[function.name]: number}
        if function.tensors != 2 or isinstance(bound.get("input"), fx.Node) or "other" not in bound:
            return function, bound
        number, tensor = bound["input"], bound["other"]
        if function.name in ("add", "mul"):
            return function, bound | {"input": tensor, "other": number}
        if function.name == "sub":
            return FUNCTIONS["rsub"], {"input": tensor, "other": number}
        if function.name == "div" and not bound.get("rounding_mode"):
            return FUNCTIONS["mul"], {"input": self._say(FUNCTIONS["reciprocal"], {"input": tensor}), "other": number}
        return function, bound

    def _say(self, function: Function, bound: dict[str, Any]) -> fx.Node:
        if "inplace" in bound:
            bound = {name: value for name, value in bound.items() if name != "inplace"}
        names = [name for name in function.parameters if name in bound]
        arguments = tuple(bound[name] for name in names[: function.tensors])
        rest = {name: bound[name] for name in names[function.tensors :] if bound[name] != function.defaults.get(name, bound)}
        if function.name in CREATING and self.device is not None:
            rest["device"] = self.device
        return spoken(self.graph, function, arguments, rest)

    def _conversion(self, node: fx.Node) -> bool:
        """A change of type; of device, or to the type it has, is none."""
        before, after = self._value(node.args[0]), self.values[node]
        if not isinstance(before, Tensor) or not isinstance(after, Tensor):
            return False
        tensor = self._current(node.args[0])
        same = before.dtype == after.dtype
        self.now[node] = tensor if same else self._say(FUNCTIONS["to"], {"input": tensor, "dtype": after.dtype})
        return True

    def _getitem(self, node: fx.Node) -> None:
        container, index = self._current(node.args)
        if isinstance(container, (tuple, list, dict)):
            self.now[node] = container[index]
        elif isinstance(self._value(node.args[0]), Tensor):
            self.now[node] = self._say(FUNCTIONS["getitem"], {"input": container, "index": index})
        else:  # One of several results of a call.
            self.now[node] = self.graph.call_function(operator.getitem, (container, index))

    def _indexing(self, node: fx.Node, name: str) -> None:
        """``select``, ``slice``, ``expand_as`` and ``view_as`` in the words for indexing, expanding and reshaping."""
        tensor, *rest = self._current(node.args)
        if name in ("expand_as", "view_as"):
            shape = tuple(self._size(rest[0], dim) for dim in range(self.values[node].ndim))
            self.now[node] = self._say(FUNCTIONS["expand" if name == "expand_as" else "reshape"], {"input": tensor, "shape": shape})
            return
        dim = (rest[0] if rest else 0) % self._value(node.args[0]).ndim
        if name == "select":
            chosen: Any = rest[1]
        else:
            start, end, step = (*rest[1:], *(None, None, 1)[len(rest[1:]) :]) if rest else (None, None, 1)
            chosen = slice(start, None if isinstance(end, int) and end >= 2**62 else end, None if step == 1 else step)
        self.now[node] = self._say(FUNCTIONS["getitem"], {"input": tensor, "index": (*[slice(None)] * dim, chosen)})

    def _shape_question(self, node: fx.Node) -> None:
        """A shape becomes a tuple of ``size`` nodes; what else is asked of a tensor without reading its elements is a literal."""
        asked, value = node.args[0], self.values[node]
        tensor = self._current(asked)
        if isinstance(tensor, tuple) and node.target is getattr:  # ``values`` and ``indices`` of a named tuple.
            self.now[node] = tensor[type(self._value(asked)).__match_args__.index(node.args[1])]
        elif isinstance(value, torch.Size):
            self.now[node] = tuple(self._size(tensor, dim) for dim in range(len(value)))
        elif node.target == "size" and isinstance(value, int):
            dim = self._current(node.args[1]) if len(node.args) > 1 else self._current(node.kwargs["dim"])
            self.now[node] = self._size(tensor, dim % self._value(asked).ndim)
        elif node.target == "numel":
            sizes = [self._size(tensor, dim) for dim in range(self._value(asked).ndim)]
            self.now[node] = functools.reduce(lambda a, b: self.graph.call_function(operator.mul, (a, b)), sizes) if sizes else 1
        elif isinstance(value, Tensor) and node.args[1] == "data":
            self.now[node] = self._say(FUNCTIONS["detach"], {"input": tensor})
        elif isinstance(value, Tensor):
            transposed = {"T": (0, 1), "mT": (-2, -1)}.get(str(node.args[1]))
            if transposed is None or value.ndim < 2:
                raise UntraceableError(f"the model reads the attribute '{node.args[1]}' of a tensor")
            bound = {"input": tensor, "dim0": transposed[0], "dim1": transposed[1]}
            self.now[node] = self._say(FUNCTIONS["transpose"], bound)
        else:
            self.now[node] = value

    def _size(self, tensor: fx.Node, dim: int) -> fx.Node:
        return self.graph.call_method("size", (tensor,), {"dim": dim})

    def _overwrite(self, written: fx.Node, new: fx.Node) -> None:
        """After a change in place, whoever reads the old tensor reads the new one."""
        self._check_views(written)
        old = self.now[written]
        for node, current in self.now.items():
            if current is old:
                self.now[node] = new

    def _is_read_later(self, written: fx.Node, by: fx.Node) -> bool:
        """Whether what a node writes into a tensor is also read as that tensor, rather than as the node's result."""
        names = [node for node, current in self.now.items() if current is self.now[written]]
        return any(user is not by and user not in self.now for name in names for user in name.users)

    def _check_views(self, written: fx.Node) -> None:
        """Refuse a change in place that others see through a view: of the tensor, or of the one that it is a view of."""
        base, seen = written, written
        while _is_view(base) and base.args and isinstance(base.args[0], fx.Node):
            seen, base = base, base.args[0]
        shared = base is not written and any(user is not seen for user in base.users)
        if shared or any(_is_view(user) and user in self.now for user in written.users):
            raise UntraceableError("the model changes a tensor in place that it also reads through a view")

    def _value(self, argument: Any) -> Any:
        """What the recorded node given as an argument computed for the example."""
        return self.values[argument]

    def _current(self, arguments: Any) -> Any:
        return fx.map_arg(arguments, lambda node: self.now[node]) if not isinstance(arguments, fx.Node) else self.now[arguments]


def _bare(layer: nn.Module) -> nn.Module:
    """A copy of a layer without gates, with the same tensors in lists of its own: a graph registers anew what is read of them."""
    bare = without_gates(layer)
    for registry in ("_parameters", "_buffers", "_non_persistent_buffers_set"):
        bare.__dict__[registry] = getattr(layer, registry).copy()
    return bare


def _is_view(node: fx.Node) -> bool:
    """Whether a node may share memory with the tensor that it reads."""
    function = function_of(node.op, node.target)
    name = function.name if function is not None else spelled(node.target).split(".")[0]
    return name in _VIEWS or name in MOVEMENT


_BOUNDS = {"maximum": "min", "minimum": "max"}
"""What ``clamp`` calls the bound that a function sets."""
_VIEWS = frozenset({"detach", "contiguous", "to", "alias", "select", "slice", "expand_as", "getattr", "view_as", "t"})
_WITHOUT_KEYWORD = frozenset(
    {"expand", "split", "tensor_split", "zeros", "ones", "full", "arange", "repeat", "new_zeros", "new_ones", "new_full"}
)
"""Functions whose first argument after the tensors is positional, because torch calls it otherwise or not at all."""


def spoken(graph: fx.Graph, function: Function, arguments: tuple[Any, ...], rest: dict[str, Any]) -> fx.Node:
    """A node that calls a function of the vocabulary."""
    if function.name == "getitem":
        return graph.call_function(operator.getitem, (*arguments, rest["index"]))
    if function.name in _WITHOUT_KEYWORD:
        first, *others = rest
        return graph.create_node(function.opcode, function.target, (*arguments, rest[first]), {name: rest[name] for name in others})
    return graph.create_node(function.opcode, function.target, arguments, rest)
