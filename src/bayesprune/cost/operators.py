"""Multiply-accumulates of the operators that torch's own counter takes for free.

``torch.utils.flop_counter`` knows matrix products of two matrices, convolutions, and the attention kernels of GPUs. Models also reach
kernels that it does not know, and then counts nothing at all for them: attention on a processor, fused recurrent layers, products with a
vector, bilinear layers and weighted sums of embeddings. Each function here gets the positional arguments of its operator, with shapes in
place of tensors.
"""

from collections.abc import Callable, Mapping, Sequence
from math import prod
from types import MappingProxyType
from typing import Any, TypeAlias

import torch

Shape: TypeAlias = Sequence[int]
Arguments: TypeAlias = Sequence[Any]


def attention_macs(arguments: Arguments) -> int:
    """Scores q k^T and their product with v; what a causal mask hides is computed and counted."""
    query, key, value = arguments[:3]
    return int(prod(query[:-1]) * key[-2] * (query[-1] + value[-1]))


def recurrent_macs(arguments: Arguments) -> int:
    """Several layers at once: inputs and a list of all weights."""
    inputs, weights = arguments[:2]
    return _at_every_step(inputs, weights)


def recurrent_layer_macs(arguments: Arguments) -> int:
    """One layer in one direction: inputs, weights of the inputs, weights of the hidden state."""
    inputs, *weights = arguments[:3]
    return _at_every_step(inputs, weights)


def bilinear_macs(arguments: Arguments) -> int:
    """One for each weight and input."""
    left, weight = arguments[:2]
    return int(left[0]) * prod(weight)


def embedding_bag_macs(arguments: Arguments) -> int:
    """Rows times their weights, summed; without weights nothing is multiplied."""
    weight, indices = arguments[:2]
    weighted = len(arguments) > 6 and arguments[6] is not None
    return prod(indices) * int(weight[1]) if weighted else 0


def _at_every_step(inputs: Shape, weights: Sequence[Shape]) -> int:
    """Every matrix is applied at every step of every sequence; biases are vectors and do not count."""
    return prod(inputs[:-1]) * sum(prod(weight) for weight in weights if len(weight) == 2)


_aten = torch.ops.aten

MACS_BY_OPERATOR: Mapping[Any, Callable[[Arguments], int]] = MappingProxyType(
    {
        _aten._scaled_dot_product_flash_attention_for_cpu: attention_macs,
        _aten._scaled_dot_product_fused_attention_overrideable: attention_macs,
        _aten._scaled_dot_product_attention_math_for_mps: attention_macs,
        _aten.mkldnn_rnn_layer: recurrent_layer_macs,
        _aten._cudnn_rnn: recurrent_macs,
        _aten.miopen_rnn: recurrent_macs,
        _aten._trilinear: bilinear_macs,
        _aten._embedding_bag: embedding_bag_macs,
        _aten._embedding_bag_forward_only: embedding_bag_macs,
        _aten.dot: lambda arguments: prod(arguments[0]),
        _aten.vdot: lambda arguments: prod(arguments[0]),
        _aten.mv: lambda arguments: prod(arguments[0]),
        _aten.addmv: lambda arguments: prod(arguments[1]),
        _aten.addbmm: lambda arguments: prod(arguments[1]) * int(arguments[2][-1]),
    }
)


def flop_formulas() -> dict[Any, Callable[..., int]]:
    """The same for ``FlopCounterMode``, which takes keywords as well and wants two FLOPs for each multiply-accumulate."""

    def formula(macs: Callable[[Arguments], int]) -> Callable[..., int]:
        return lambda *arguments, **_: 2 * macs(arguments)

    return {operator: formula(macs) for operator, macs in MACS_BY_OPERATOR.items()}
