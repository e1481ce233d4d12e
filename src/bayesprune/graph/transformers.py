"""The layers of ``torch.nn`` that hide linear layers and attention, written out so that a tracer can see through them.

They compute what the originals compute; masks are left to ``torch.export``, whose graph shows them as they are used.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules import transformer as torch_transformer

Step: TypeAlias = Callable[[Tensor], Tensor]


@contextmanager
def attention_written_out() -> Iterator[None]:
    """Keep attention from taking the fused path, in which its layers cannot be seen or counted.

    Transformers also look into a mask to see whether it is causal, which a tracer cannot follow; it is a mask like any other.
    """
    before, detect = torch.backends.mha.get_fastpath_enabled(), torch_transformer._detect_is_causal_mask
    torch.backends.mha.set_fastpath_enabled(False)
    torch_transformer._detect_is_causal_mask = _is_said_to_be_causal  # type: ignore[assignment]
    try:
        yield
    finally:
        torch_transformer._detect_is_causal_mask = detect
        torch.backends.mha.set_fastpath_enabled(before)


def _is_said_to_be_causal(_mask: Tensor | None, is_causal: bool | None = None, _size: int | None = None) -> bool:
    return bool(is_causal)


class HiddenControlFlowError(Exception):
    """The layer is used in a way that is not written out here."""


def attention_steps(
    attention: nn.MultiheadAttention,
    inputs: Sequence[Tensor],
    projections: Sequence[Step],
    heads: Step,
    project_output: Step,
    **options: Any,
) -> Tensor:
    """Multi-head attention without its weights.

    Args:
        attention: says how many heads there are, and which dimension is the batch.
        inputs: query, key and value.
        projections: what is applied to each of them.
        heads: what is applied to the outputs of the heads, laid side by side in the last dimension.
        project_output: the output projection.
        **options: of ``scaled_dot_product_attention``.
    """
    ordered = inputs if attention.batch_first else [each.transpose(0, 1) for each in inputs]
    split = [into_heads(attention, project(each)) for project, each in zip(projections, ordered, strict=True)]
    merged = F.scaled_dot_product_attention(split[0], split[1], split[2], **options).transpose(1, 2).flatten(2)
    result = project_output(heads(merged))
    return result if attention.batch_first else result.transpose(0, 1)


def into_heads(attention: nn.MultiheadAttention, x: Tensor) -> Tensor:
    """Features split into heads: (batch, heads, positions, features of a head)."""
    return x.unflatten(-1, (attention.num_heads, attention.head_dim)).transpose(1, 2)  # type: ignore[no-untyped-call, no-any-return]


def input_projections(attention: nn.MultiheadAttention) -> list[tuple[Tensor, Tensor | None]]:
    """Weight and bias of the projections to queries, keys and values."""
    if attention.in_proj_weight is not None:
        weights = list(attention.in_proj_weight.chunk(3))
    else:
        weights = [attention.q_proj_weight, attention.k_proj_weight, attention.v_proj_weight]
    biases: list[Tensor | None] = [None] * 3 if attention.in_proj_bias is None else list(attention.in_proj_bias.chunk(3))
    return list(zip(weights, biases, strict=True))


def projection_steps(attention: nn.MultiheadAttention) -> list[Step]:
    """The input projections as functions."""
    return [partial(F.linear, weight=weight, bias=bias) for weight, bias in input_projections(attention)]


def projection_layers(attention: nn.MultiheadAttention) -> dict[str, nn.Linear]:
    """The input projections as linear layers of their own, which hold copies of the weights."""
    layers = {}
    for name, (weight, bias) in zip(("q_proj", "k_proj", "v_proj"), input_projections(attention), strict=True):
        layer = nn.Linear(weight.shape[1], weight.shape[0], bias=bias is not None, device="meta")
        layer.weight = nn.Parameter(weight.detach().clone(), requires_grad=weight.requires_grad)
        if bias is not None:
            layer.bias = nn.Parameter(bias.detach().clone(), requires_grad=bias.requires_grad)
        layers[name] = layer.train(attention.training)
    return layers


def check_written_out(attention: nn.MultiheadAttention, **masks: Any) -> None:
    """Refuse uses of attention that are not written out here."""
    if attention.bias_k is not None or attention.bias_v is not None or attention.add_zero_attn:
        raise HiddenControlFlowError("nn.MultiheadAttention with add_bias_kv or add_zero_attn")
    given = [name for name, mask in masks.items() if mask is not None and mask is not False]
    if given:
        raise HiddenControlFlowError(f"a transformer layer is given {', '.join(given)}")


def encoder_layer_steps(layer: nn.TransformerEncoderLayer, x: Tensor) -> Tensor:
    """One block of a transformer encoder, with the norms before or after."""

    def attend(y: Tensor) -> Tensor:
        return layer.dropout1(layer.self_attn(y, y, y, need_weights=False)[0])  # type: ignore[no-any-return]

    def feed_forward(y: Tensor) -> Tensor:
        return layer.dropout2(layer.linear2(layer.dropout(layer.activation(layer.linear1(y)))))  # type: ignore[no-any-return]

    if layer.norm_first:
        x = x + attend(layer.norm1(x))
        return x + feed_forward(layer.norm2(x))
    x = layer.norm1(x + attend(x))
    return layer.norm2(x + feed_forward(x))  # type: ignore[no-any-return]


def encoder_steps(encoder: nn.TransformerEncoder, x: Tensor) -> Tensor:
    """A stack of encoder layers."""
    for layer in encoder.layers:
        x = layer(x)
    return x if encoder.norm is None else encoder.norm(x)
