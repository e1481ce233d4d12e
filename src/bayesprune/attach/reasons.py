"""Why layers get no gate."""

import operator
from collections.abc import Container, Iterator

from torch import Tensor, fx, nn

from bayesprune.graph.binding import spelled
from bayesprune.models.description import LeftAlone

NOT_CHOSEN = "left out by include or exclude"


def about_inputs(module: fx.GraphModule, source: fx.Node) -> str:
    """Why the inputs of a layer, coming from here, are no units of their own."""
    while source.target is operator.getitem and source.op == "call_function":
        source = source.all_input_nodes[0]
    if source.op == "call_module":
        if isinstance(module.get_submodule(str(source.target)), (nn.Embedding, nn.EmbeddingBag)):
            return f"its inputs come from {source.target}, and columns of embedding tables are not gated"
        return f"its inputs come from {source.target}, which needs all of its own"
    name = spelled(source.target)
    meaning = {
        "add": "its inputs are a residual stream, the sum of several branches",
        "cat": "its inputs are the outputs of several layers side by side",
    }
    return meaning.get(name, f"its inputs come from '{name}', whose results are not units")


def about_unseen(model: nn.Module, module: fx.GraphModule, smaller: Container[str]) -> Iterator[LeftAlone]:
    """The modules with weights that no layer of the graph is responsible for.

    Args:
        model: as it was given.
        module: its graph.
        smaller: names of parameters that some gate makes smaller.
    """
    called = [node for node in module.graph.nodes if node.op == "call_module"]
    paths = {str(node.target) for node in called}
    # By their memory: of a weight that the model holds the other way round, the layer has a view.
    tensors = {tensor.data_ptr() for node in called for tensor in module.get_submodule(str(node.target)).parameters()}
    for path, owner in model.named_modules():
        if ".parametrizations." in f".{path}." or path in paths or _is_written_out(owner, path, paths):
            continue
        weights = dict(_weights(owner))
        prefix = f"{path}." if path else ""
        unseen = [name for name, weight in weights.items() if weight.data_ptr() not in tensors and prefix + name not in smaller]
        if unseen == ["weight"]:
            yield LeftAlone(path, "its weight is computed, or it is not called as a layer that sparsify knows")
        elif unseen:
            yield LeftAlone(path, f"its parameters ({', '.join(unseen)}) are not weights of layers that sparsify knows")


def about_weight(model: nn.Module, layer: nn.Module) -> str:
    """Why no gate can control a layer that is no module of the model."""
    weights = {parameter.data_ptr() for parameter in layer.parameters() if parameter.ndim > 1}
    outside = any(each.data_ptr() in weights for name, each in model.named_parameters() if name.endswith(".weight"))
    where = "used outside of" if outside else "not called 'weight' in"
    return f"its weight is {where} the module that it belongs to, and no gate can control it"


def _weights(owner: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """The parameters of a module itself that have two or more dimensions, those behind parametrisations included."""
    for name, parameter in owner.named_parameters(recurse=False):
        if parameter.ndim > 1:
            yield name, parameter
    for name, parametrised in getattr(owner, "parametrizations", {}).items():
        for parameter in parametrised.parameters():
            if parameter.ndim > 1:
                yield name, parameter


def _is_written_out(owner: nn.Module, path: str, paths: set[str]) -> bool:
    """Whether this is an attention layer that the graph shows as the layers it hides."""
    return isinstance(owner, nn.MultiheadAttention) and any(each.startswith(f"{path}.") for each in paths)
