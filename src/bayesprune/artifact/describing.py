"""From a graph in the vocabulary to a blueprint."""

from collections.abc import Mapping
from typing import Any

from torch import Tensor, fx, nn

from bayesprune.artifact.blueprint import Blueprint, LayerPlan, Program, Step
from bayesprune.artifact.layers import layer_plan, make_layer
from bayesprune.artifact.tensors import own_tensors, submodule, tensor_at, tensor_table
from bayesprune.artifact.values import MalformedError, Reference, TensorShape
from bayesprune.errors import InputError
from bayesprune.example_inputs import ExampleInputs, arguments
from bayesprune.graph.binding import function_of
from bayesprune.graph.recording import positional
from bayesprune.graph.vocabulary import INT_ARITHMETIC


def program_of(module: fx.GraphModule) -> Program:
    """The graph's computation as steps.

    Raises:
        InputError: a node does something that is not in the vocabulary; the message names it.
    """
    names: dict[fx.Node, str] = {}
    inputs, steps, output = [], [], None
    taken = {str(node.target) for node in module.graph.nodes if node.op == "placeholder"}
    for node in module.graph.nodes:
        try:
            if node.op == "placeholder":
                names[node] = _input_name(node)
                inputs.append(names[node])
            elif node.target is getattr:
                continue  # The device of an input, on which a loaded network makes tensors by itself.
            elif node.op == "output":
                output = _value(node.args[0], names)
            else:
                names[node] = _free(node.name, taken)
                steps.append(_step(node, names))
        except MalformedError as error:
            raise InputError(
                f"the node '{node.name}' cannot be saved: {error}. Only what is written in the layers and functions of "
                "bayesprune.graph.vocabulary can; save the part of the model around it"
            ) from error
    return Program(tuple(inputs), tuple(steps), output)


def examples_of(module: fx.GraphModule, example_inputs: ExampleInputs | None) -> tuple[Any, ...]:
    """Shapes and types of the inputs: as they were when the graph was traced, or those of the example."""
    placeholders = [node for node in module.graph.nodes if node.op == "placeholder"]
    if all("shape" in node.meta and "dtype" in node.meta for node in placeholders):
        return tuple(TensorShape(tuple(node.meta["shape"]), node.meta["dtype"]) for node in placeholders)
    if example_inputs is None:
        raise InputError("the model does not say what its inputs look like: give example_inputs, a batch of two or more, to save")
    try:
        return tuple(_example(value) for value in positional(module, *arguments(example_inputs)))
    except (KeyError, MalformedError) as error:
        raise InputError(f"example_inputs does not fit the model, which takes {', '.join(map(str, placeholders))}: {error}") from error


def blueprint_of(root: nn.Module, program: Program, examples: tuple[Any, ...]) -> tuple[Blueprint, dict[str, Tensor]]:
    """The blueprint of a module that holds the layers and tensors of a program, and the tensors to be stored."""
    layers: dict[str, LayerPlan] = {}
    tensors: dict[str, Tensor] = {}
    for path in {step.target: None for step in program.steps if step.kind == "layer"}:
        layer = submodule(root, path)
        try:
            layers[path] = layer_plan(layer)
            expected = own_tensors(make_layer(layers[path]))
        except MalformedError as error:
            raise InputError(f"the layer '{path}' cannot be saved: {error}") from error
        for name, like in expected.items():
            tensors[f"{path}.{name}"] = _checked(f"{path}.{name}", layer, name, like)
    for path in {step.target: None for step in program.steps if step.kind == "tensor"}:
        tensors[path] = tensor_at(root, path)
    table, stored = tensor_table(root, tensors)
    return Blueprint(program, examples, layers, table), stored


def _checked(name: str, layer: nn.Module, attribute: str, like: Tensor) -> Tensor:
    """A tensor of a layer, which must have the shape that the layer's settings say."""
    tensor = getattr(layer, attribute, None)
    if not isinstance(tensor, Tensor) or tensor.shape != like.shape:
        found = tuple(tensor.shape) if isinstance(tensor, Tensor) else type(tensor).__name__
        raise InputError(f"the tensor '{name}' is {found}, but {layer} needs {tuple(like.shape)}: set the layer's attributes to agree")
    return tensor


def _step(node: fx.Node, names: Mapping[fx.Node, str]) -> Step:
    given = {keyword: value for keyword, value in node.kwargs.items() if keyword != "device"}
    name, args, kwargs = names[node], _value(tuple(node.args), names), _value(given, names)
    if node.op == "get_attr":
        return Step(name, "tensor", str(node.target))
    if node.op == "call_module":
        return Step(name, "layer", str(node.target), args, kwargs)
    function = function_of(node.op, node.target)
    if function is not None and (function.target is node.target or function.target == node.target):
        return Step(name, "call", function.name, args, kwargs)
    if node.op == "call_function" and node.target in INT_ARITHMETIC and not kwargs:
        return Step(name, "number", node.target.__name__, args)
    raise MalformedError(f"it calls {getattr(node.target, '__name__', node.target)}")


def _input_name(node: fx.Node) -> str:
    if node.args:
        raise MalformedError("it is an argument with a default")
    return str(node.target)


def _free(name: str, taken: set[str]) -> str:
    while name in taken:
        name += "_"
    taken.add(name)
    return name


def _value(argument: Any, names: Mapping[fx.Node, str]) -> Any:
    """An argument of a node in plain containers, with nodes as references."""
    if isinstance(argument, fx.Node):
        return Reference(names[argument])
    if isinstance(argument, slice):
        return slice(*(_value(part, names) for part in (argument.start, argument.stop, argument.step)))
    if isinstance(argument, dict):
        return {key: _value(each, names) for key, each in argument.items()}
    if isinstance(argument, (tuple, list)):
        parts = [_value(each, names) for each in argument]
        return parts if isinstance(argument, list) else tuple(parts)
    return argument


def _example(value: Any) -> Any:
    if isinstance(value, Tensor):
        return TensorShape(tuple(value.shape), value.dtype)
    if isinstance(value, dict):
        return {key: _example(each) for key, each in value.items()}
    if isinstance(value, (tuple, list)):
        return type(value)(_example(each) for each in value)
    return value
