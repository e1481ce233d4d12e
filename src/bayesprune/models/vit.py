"""Vision transformers, with the normalisation before each branch, a class token and learned position embeddings.

References:
    Dosovitskiy et al.: An Image is Worth 16x16 Words: Transformers for Image Recognition at Scale (arXiv:2010.11929).
"""

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bayesprune.errors import InputError
from bayesprune.models.widths import require_positive

INIT_STD = 0.02


class SelfAttention(nn.Module):
    """Multi-head self-attention with one linear layer for queries, keys and values."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.head_width = width // heads
        self.qkv = nn.Linear(width, 3 * width)
        self.proj = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        batch, tokens, _ = x.shape
        qkv = self.qkv(x).reshape(batch, tokens, 3, self.heads, self.head_width).permute(2, 0, 3, 1, 4)
        query, key, value = qkv.unbind(0)
        mixed = F.scaled_dot_product_attention(query, key, value)
        out: Tensor = self.proj(mixed.transpose(1, 2).reshape(batch, tokens, self.heads * self.head_width))
        return out


class TorchSelfAttention(nn.Module):
    """The same, by ``torch.nn.MultiheadAttention``."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(width, heads, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.attention(x, x, x, need_weights=False)[0]
        return out


class EncoderBlock(nn.Module):
    """Attention and a GELU network of one hidden layer, each normalised before and added to what came in."""

    def __init__(self, width: int, heads: int, mlp_width: int, attention: Literal["own", "torch"], dropout: float) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(width, eps=1e-6)
        self.attention = SelfAttention(width, heads) if attention == "own" else TorchSelfAttention(width, heads)
        self.dropout = nn.Dropout(dropout)
        self.norm2 = nn.LayerNorm(width, eps=1e-6)
        self.mlp = nn.Sequential(
            nn.Linear(width, mlp_width), nn.GELU(), nn.Dropout(dropout), nn.Linear(mlp_width, width), nn.Dropout(dropout)
        )

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.dropout(self.attention(self.norm1(x)))
        out: Tensor = x + self.mlp(self.norm2(x))
        return out


class VisionTransformer(nn.Module):
    """Cuts a square image into patches, embeds them as tokens and classifies from the class token.

    Args:
        image_size: side of the images.
        patch_size: side of a patch; divides ``image_size``.
        width: of a token.
        depth: how many blocks.
        heads: of each attention; divides ``width``.
        mlp_width: of the hidden layer of each block; four times ``width`` unless given.
        num_classes: width of the output.
        in_channels: of the images.
        attention: ``"own"`` for `SelfAttention`, written out, or ``"torch"`` for ``torch.nn.MultiheadAttention``.
        dropout: rate after the embedding and in every branch.
    """

    def __init__(
        self,
        image_size: int = 32,
        patch_size: int = 8,
        width: int = 64,
        depth: int = 4,
        heads: int = 4,
        mlp_width: int | None = None,
        num_classes: int = 10,
        in_channels: int = 3,
        attention: Literal["own", "torch"] = "own",
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        mlp_width = 4 * width if mlp_width is None else mlp_width
        require_positive({"image_size": image_size, "patch_size": patch_size, "width": width, "depth": depth, "heads": heads})
        require_positive({"mlp_width": mlp_width, "num_classes": num_classes, "in_channels": in_channels})
        if image_size % patch_size:
            raise InputError(f"patch_size must divide image_size: patches of {patch_size} do not fill a side of {image_size}")
        if width % heads:
            raise InputError(f"heads must divide width: {width} cannot be split among {heads} heads")
        if attention not in ("own", "torch"):
            raise InputError(f"attention is 'own' or 'torch', not {attention!r}")
        tokens = (image_size // patch_size) ** 2 + 1
        self.patch_embedding = nn.Conv2d(in_channels, width, patch_size, stride=patch_size)
        self.class_token = nn.Parameter(torch.zeros(1, 1, width))
        self.position_embedding = nn.Parameter(nn.init.trunc_normal_(torch.empty(1, tokens, width), std=INIT_STD))
        self.dropout = nn.Dropout(dropout)
        self.blocks = nn.Sequential(*(EncoderBlock(width, heads, mlp_width, attention, dropout) for _ in range(depth)))
        self.norm = nn.LayerNorm(width, eps=1e-6)
        self.head = nn.Linear(width, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        tokens = self.patch_embedding(x).flatten(2).transpose(1, 2)
        class_token = self.class_token.expand(tokens.shape[0], -1, -1)
        tokens = torch.cat([class_token, tokens], dim=1) + self.position_embedding
        tokens = self.norm(self.blocks(self.dropout(tokens)))
        logits: Tensor = self.head(tokens[:, 0])
        return logits


def vit_b_16(num_classes: int = 1000, in_channels: int = 3, attention: Literal["own", "torch"] = "own") -> VisionTransformer:
    """ViT-B/16 for images of 224x224, 86.6 million parameters."""
    return VisionTransformer(224, 16, 768, 12, 12, 3072, num_classes, in_channels, attention)
