"""One rule for each kind of operation, and which operation is of which kind."""

import operator
from typing import cast

import torch
from torch import fx, nn

from bayesprune.gates.hooks import has_other_hooks
from bayesprune.graph.binding import function_of
from bayesprune.graph.layer_types import (
    ACTIVATIONS,
    BATCH_NORMS,
    CONVOLUTIONS,
    DROPOUTS,
    INSTANCE_NORMS,
    MIXING_NORMS,
    MOVEMENT_LAYERS,
    PADDINGS,
    POOLINGS,
    TRANSPOSED_CONVOLUTIONS,
    UPSAMPLINGS,
    positional_dimensions,
)
from bayesprune.graph.vocabulary import ELEMENTWISE, FUNCTIONS, MOVEMENT, POOLING, pooled_dimensions
from bayesprune.removal.analysis import Analysis, is_number, shape_of, tensor_inputs
from bayesprune.removal.rules.contract import Attribute, Device, Number, Output, Placeholder, Rule, Size
from bayesprune.removal.rules.elementwise import Activation, Combination
from bayesprune.removal.rules.layers import Convolution, Embedding, Linear
from bayesprune.removal.rules.mixing import Attention, Product, Reduction, Softmax
from bayesprune.removal.rules.movement import Concatenation, Movement, Selection
from bayesprune.removal.rules.norms import ChannelNorm, GroupNorm, MixingNorm, SpatialOperation

_BLACK_BOX = Rule()
_BY_OPERATION: dict[str, Rule] = {"placeholder": Placeholder(), "output": Output(), "get_attr": Attribute()}
_BY_LAYER: tuple[tuple[tuple[type[nn.Module], ...], Rule], ...] = (
    ((*ACTIVATIONS, *DROPOUTS), Activation()),
    ((nn.Linear,), Linear()),
    ((*CONVOLUTIONS, *TRANSPOSED_CONVOLUTIONS), Convolution()),
    ((*BATCH_NORMS, *INSTANCE_NORMS, nn.PReLU), ChannelNorm()),
    ((nn.GroupNorm,), GroupNorm()),
    (MIXING_NORMS, MixingNorm()),
    ((*POOLINGS, *PADDINGS, *UPSAMPLINGS), SpatialOperation()),
    (MOVEMENT_LAYERS, Movement()),
    ((nn.Softmax, nn.LogSoftmax), Softmax()),
    ((nn.Embedding,), Embedding()),
)
_BY_FUNCTION: dict[str, Rule] = (
    dict.fromkeys(ELEMENTWISE, Activation())
    | dict.fromkeys(
        ("add", "sub", "rsub", "mul", "div", "pow", "maximum", "minimum", "where", "masked_fill", "eq", "ne", "lt", "le", "gt", "ge"),
        Combination(),
    )
    | dict.fromkeys(MOVEMENT - {"stack"}, Movement())
    | dict.fromkeys(("mean", "sum", "amax", "amin"), Reduction())
    | dict.fromkeys(("softmax", "log_softmax"), Softmax())
    | dict.fromkeys(("interpolate", "pad", *POOLING), SpatialOperation())
    | {"cat": Concatenation(), "index_select": Selection(), "matmul": Product(), "attention": Attention(), "size": Size()}
)
_CUTS = (operator.getitem, torch.narrow)
"""What takes a part of a tensor: how large a part may depend on the size of the input."""
_NEEDS_BATCH = (ChannelNorm, Convolution, GroupNorm, SpatialOperation)
_CALLED_AGAIN = (Linear, Convolution, ChannelNorm, MixingNorm)
"""Rules of layers that may be called several times: the others would give every call a layer of its own."""


def rule_for(analysis: Analysis, node: fx.Node) -> Rule:
    """How removal treats a node."""
    if node not in analysis.rules:
        analysis.rules[node] = _find_rule(analysis, node)
    rule: Rule = analysis.rules[node]
    return rule


def _find_rule(analysis: Analysis, node: fx.Node) -> Rule:
    if node.op in _BY_OPERATION:
        return _BY_OPERATION[node.op]
    if node.target is getattr:
        return Device()
    if is_number(node):
        return _BY_FUNCTION["size"] if node.target == "size" else Number()
    if node in analysis.rigid or "shape" not in node.meta or _is_complex(node):
        return _BLACK_BOX
    rule = _layer_rule(analysis, node) if node.op == "call_module" else _function_rule(node)
    reads = tensor_inputs(node)
    if _is_out_of_the_ordinary(analysis, node, rule) or (node in analysis.calls and not isinstance(rule, _CALLED_AGAIN)):
        return _BLACK_BOX
    lone = isinstance(rule, (Activation, Linear, Movement, Reduction, Softmax, *_NEEDS_BATCH))
    if lone and len(reads) != 1:
        return _BLACK_BOX
    if isinstance(rule, _NEEDS_BATCH) and (
        len(shape_of(reads[0])) < 2 or 0 not in reads[0].meta["varies"] or not _is_batched(analysis, node)
    ):
        return _BLACK_BOX
    return rule


def _is_complex(node: fx.Node) -> bool:
    """Whether complex numbers come in or out: what rules know of values is real."""
    return any(each.meta.get("dtype", torch.float32).is_complex for each in (node, *node.all_input_nodes))


def _is_out_of_the_ordinary(analysis: Analysis, node: fx.Node, rule: Rule) -> bool:
    """Uses of an operation that its rule does not speak of."""
    if isinstance(rule, Selection):
        index = node.kwargs["index"]
        return not isinstance(index, fx.Node) or index.op != "get_attr" or len(shape_of(index)) != 1
    if isinstance(rule, Movement) and node.target in _CUTS:
        return any(is_number(read) and read.meta["varies"] for read in node.all_input_nodes)
    if isinstance(rule, Attention):
        query, key, value = (shape_of(cast(fx.Node, read)) for read in node.args[:3])
        return bool(node.kwargs.get("enable_gqa")) and (min(map(len, (query, key, value))) < 3 or key[-3] != value[-3])
    if isinstance(rule, Concatenation):
        return not isinstance(node.args[0], (tuple, list))
    if isinstance(rule, Softmax):
        return (analysis.layer(node).dim if node.op == "call_module" else node.kwargs.get("dim")) is None
    if isinstance(rule, SpatialOperation) and "pad" in node.kwargs:
        return len(cast(tuple[int, ...], node.kwargs["pad"])) > 2 * (len(shape_of(node)) - 2)
    return False


def _layer_rule(analysis: Analysis, node: fx.Node) -> Rule:
    layer = analysis.layer(node)
    if has_other_hooks(layer):
        return _BLACK_BOX
    for types, rule in _BY_LAYER:
        if any(_is_plainly(layer, each) for each in types):
            return rule
    return _BLACK_BOX


def _is_plainly(layer: nn.Module, kind: type[nn.Module]) -> bool:
    """Whether a layer is of this type and computes what the type says."""
    return isinstance(layer, kind) and type(layer).forward is kind.forward


def _function_rule(node: fx.Node) -> Rule:
    function = function_of(node.op, node.target)
    if function is None or FUNCTIONS[function.name].target != node.target:
        return _BLACK_BOX
    return _BY_FUNCTION.get(function.name, _BLACK_BOX)


def _is_batched(analysis: Analysis, node: fx.Node) -> bool:
    """Whether the channels are in dimension 1: a layer for feature maps may also be given a single one without its batch dimension."""
    rank = len(shape_of(node))
    if node.op != "call_module":
        function = function_of(node.op, node.target)
        pooled = None if function is None else pooled_dimensions(function.name)
        return rank > 2 if pooled is None else rank == pooled + 2
    layer = analysis.layer(node)
    if isinstance(layer, (*CONVOLUTIONS, *TRANSPOSED_CONVOLUTIONS)):
        return rank == layer.weight.ndim
    positions = positional_dimensions(layer)
    return positions is None or rank == positions + 2
