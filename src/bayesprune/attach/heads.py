"""Gates on the heads of ``nn.MultiheadAttention``, which shows nobody what its heads compute."""

import math
from typing import Any

import torch
from torch import Tensor, nn

from bayesprune.errors import InputError
from bayesprune.gates import Gate
from bayesprune.graph.fx_tracing import HEAD_GATE
from bayesprune.graph.transformers import attention_steps, into_heads, projection_steps


class HeadGatedAttention(nn.MultiheadAttention):
    """Multi-head attention with a gate between its heads and its output projection; parameters and their names are the same."""

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """As in ``nn.MultiheadAttention``; ``is_causal`` is only a hint there and needs ``attn_mask``."""
        if query.dim() == 2:
            return self._unbatched(query, key, value, key_padding_mask, need_weights, attn_mask, average_attn_weights)
        mask = self._mask(query, key, key_padding_mask, attn_mask)
        result = attention_steps(
            self,
            (query, key, value),
            projection_steps(self),
            self.head_gate,  # type: ignore[arg-type]
            self.out_proj,
            attn_mask=mask,
            dropout_p=self.dropout if self.training else 0.0,
        )
        weights = self._weights(query, key, mask, average_attn_weights) if need_weights else None
        return result, weights

    def _unbatched(self, query: Tensor, key: Tensor, value: Tensor, padding: Tensor | None, need_weights: bool, mask: Tensor | None,
                   average: bool) -> tuple[Tensor, Tensor | None]:  # fmt: skip
        batch = 0 if self.batch_first else 1
        padding = None if padding is None else padding.unsqueeze(0)
        inputs = (each.unsqueeze(batch) for each in (query, key, value))
        result, weights = self.forward(*inputs, padding, need_weights, mask, average)  # type: ignore[call-arg, arg-type]
        return result.squeeze(batch), None if weights is None else weights.squeeze(0)

    def _mask(self, query: Tensor, key: Tensor, padding: Tensor | None, mask: Tensor | None) -> Tensor | None:
        """One additive mask that broadcasts to (batch, heads, queries, keys)."""
        if mask is not None:
            mask = _additive(mask, query.dtype)
            if mask.dim() == 3:
                mask = mask.reshape(-1, self.num_heads, *mask.shape[1:])
        if padding is not None:
            padded = _additive(padding, query.dtype)[:, None, None, :]
            mask = padded if mask is None else mask + padded
        return mask

    def _weights(self, query: Tensor, key: Tensor, mask: Tensor | None, average: bool) -> Tensor:
        ordered = (query, key) if self.batch_first else (query.transpose(0, 1), key.transpose(0, 1))
        q, k = (into_heads(self, project(each)) for project, each in zip(projection_steps(self)[:2], ordered, strict=True))
        scores = q @ k.transpose(-2, -1) / math.sqrt(self.head_dim)
        weights = torch.softmax(scores if mask is None else scores + mask, dim=-1)
        return weights.mean(dim=1) if average else weights


def put_on_heads(attention: nn.Module, gate: Gate) -> None:
    """Let the gate multiply the outputs of the heads. The layer changes its class, and nothing else."""
    if type(attention) is not nn.MultiheadAttention:
        raise InputError(f"a gate on heads goes onto an nn.MultiheadAttention, not onto a {type(attention).__name__}")
    attention.__class__ = HeadGatedAttention
    attention.add_module(HEAD_GATE, gate)
    # nn.TransformerEncoderLayer computes attention by itself in evaluation mode, unless a layer inside it has a hook.
    attention.register_forward_hook(_is_watched)


def _is_watched(_layer: nn.Module, _inputs: Any, _outputs: Any) -> None:
    return None


def _additive(mask: Tensor, dtype: torch.dtype) -> Tensor:
    """A mask in which true means "not allowed" as one that is added to the scores."""
    if mask.dtype != torch.bool:
        return mask.to(dtype)
    return torch.zeros_like(mask, dtype=dtype).masked_fill(mask, float("-inf"))
