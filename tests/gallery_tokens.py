"""The networks of the gallery that work on tokens and sequences, attention written out in several ways."""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

BATCH, WIDTH, HEADS, TOKENS = 3, 24, 3, 5
HEAD_WIDTH = WIDTH // HEADS

AttentionBuilder = Callable[[], nn.Module]


class SeparateProjections(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.q = nn.Linear(WIDTH, WIDTH)
        self.k = nn.Linear(WIDTH, WIDTH)
        self.v = nn.Linear(WIDTH, WIDTH)
        self.out = nn.Linear(WIDTH, WIDTH)


class MatmulAttention(SeparateProjections):
    """All sizes are numbers, the batch's too."""

    def forward(self, x: Tensor) -> Tensor:
        q = self.q(x).view(BATCH, TOKENS, HEADS, HEAD_WIDTH).transpose(1, 2)
        k = self.k(x).view(BATCH, TOKENS, HEADS, HEAD_WIDTH).transpose(1, 2)
        v = self.v(x).view(BATCH, TOKENS, HEADS, HEAD_WIDTH).transpose(1, 2)
        weights = torch.softmax(q @ k.transpose(-2, -1) / HEAD_WIDTH**0.5, dim=-1)
        return self.out((weights @ v).transpose(1, 2).contiguous().view(BATCH, TOKENS, WIDTH))


class BmmAttention(SeparateProjections):
    """Heads are merged into the batch."""

    def _heads(self, x: Tensor) -> Tensor:
        batch, tokens, _ = x.shape
        x = x.view(batch, tokens, HEADS, HEAD_WIDTH).permute(0, 2, 1, 3)
        return x.reshape(batch * HEADS, tokens, HEAD_WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        batch, tokens, width = x.shape
        q, k, v = self._heads(self.q(x)), self._heads(self.k(x)), self._heads(self.v(x))
        weights = F.softmax(torch.bmm(q * HEAD_WIDTH**-0.5, k.transpose(1, 2)), dim=-1)
        mixed = torch.bmm(weights, v).view(batch, HEADS, tokens, HEAD_WIDTH)
        return self.out(mixed.transpose(1, 2).reshape(batch, tokens, width))


class EinsumAttention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.to_qkv = nn.Linear(WIDTH, 3 * WIDTH, bias=False)
        self.to_out = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.to_qkv(x).chunk(3, dim=-1)
        q, k, v = q.unflatten(-1, (HEADS, HEAD_WIDTH)), k.unflatten(-1, (HEADS, HEAD_WIDTH)), v.unflatten(-1, (HEADS, -1))
        scores = torch.einsum("bihd,bjhd->bhij", q, k) * HEAD_WIDTH**-0.5
        mixed = torch.einsum("bhij,bjhd->bihd", scores.softmax(dim=-1), v)
        return self.to_out(mixed.flatten(2))


class TokenBlock(nn.Module):
    def __init__(self, attention: AttentionBuilder) -> None:
        super().__init__()
        self.ln1 = nn.LayerNorm(WIDTH)
        self.attn = attention()
        self.ln2 = nn.LayerNorm(WIDTH)
        self.fc1 = nn.Linear(WIDTH, 32)
        self.fc2 = nn.Linear(32, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(self.ln1(x))
        return x + self.fc2(F.gelu(self.fc1(self.ln2(x))))


class TinyViT(nn.Module):
    """A vision transformer of five tokens (four patches and the class) with the given attention."""

    def __init__(self, attention: AttentionBuilder) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, WIDTH, 8, stride=8)
        self.cls_token = nn.Parameter(torch.randn(1, 1, WIDTH))
        self.pos_embed = nn.Parameter(torch.randn(1, TOKENS, WIDTH))
        self.blocks = nn.ModuleList(TokenBlock(attention) for _ in range(2))
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patches(x).flatten(2).transpose(1, 2)
        x = torch.cat((self.cls_token.expand(x.size(0), -1, -1), x), dim=1)
        x = x + self.pos_embed
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x)[:, 0])


class Conv1D(nn.Module):
    """The linear layer of GPT-2, which holds its inputs in the first dimension."""

    def __init__(self, outputs: int, inputs: int) -> None:
        super().__init__()
        self.outputs = outputs
        self.weight = nn.Parameter(torch.randn(inputs, outputs) / inputs**0.5)
        self.bias = nn.Parameter(torch.randn(outputs) / 10)

    def forward(self, x: Tensor) -> Tensor:
        shape = x.size()[:-1] + (self.outputs,)  # noqa: RUF005  (fx follows this one)
        return torch.addmm(self.bias, x.view(-1, x.size(-1)), self.weight).view(shape)


class GPT2Block(nn.Module):
    """Radford et al.: Language Models are Unsupervised Multitask Learners, as it is written in public packages."""

    def __init__(self) -> None:
        super().__init__()
        self.ln_1, self.ln_2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.c_attn, self.attn_proj = Conv1D(3 * WIDTH, WIDTH), Conv1D(WIDTH, WIDTH)
        self.c_fc, self.c_proj = Conv1D(32, WIDTH), Conv1D(WIDTH, 32)

    def attention(self, x: Tensor) -> Tensor:
        q, k, v = self.c_attn(x).split(WIDTH, dim=2)
        q, k, v = (each.unflatten(-1, (HEADS, HEAD_WIDTH)).transpose(1, 2) for each in (q, k, v))
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2)
        return self.attn_proj(mixed.flatten(2))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.ln_1(x))
        return x + self.c_proj(F.gelu(self.c_fc(self.ln_2(x)), approximate="tanh"))


class TinyGPT2(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.wte, self.wpe = nn.Embedding(20, WIDTH), nn.Parameter(torch.randn(10, WIDTH))
        self.h = nn.ModuleList(GPT2Block() for _ in range(2))
        self.ln_f = nn.LayerNorm(WIDTH)
        self.lm_head = nn.Linear(WIDTH, 20, bias=False)
        self.lm_head.weight = self.wte.weight

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.wte(tokens) + self.wpe[: tokens.size(1)]
        for block in self.h:
            x = block(x)
        return self.lm_head(self.ln_f(x))


class EncoderNet(nn.Module):
    """PyTorch's own encoder, with its defaults: dropout 0.1, and nested tensors where it can use them."""

    def __init__(self, norm_first: bool) -> None:
        super().__init__()
        self.embed = nn.Linear(10, 16)
        layer = nn.TransformerEncoderLayer(16, nhead=4, dim_feedforward=24, batch_first=True, norm_first=norm_first)
        norm = nn.LayerNorm(16) if norm_first else None
        self.encoder = nn.TransformerEncoder(layer, num_layers=2, norm=norm, enable_nested_tensor=not norm_first)
        self.fc = nn.Linear(16, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.encoder(self.embed(x)).mean(dim=1))


class SwiGLU(nn.Module):
    """Shazeer: GLU Variants Improve Transformer (arXiv:2002.05202)."""

    def __init__(self, width: int, hidden: int, norm: nn.Module) -> None:
        super().__init__()
        self.norm = norm
        self.w1 = nn.Linear(width, hidden, bias=False)
        self.w2 = nn.Linear(width, hidden, bias=False)
        self.w3 = nn.Linear(hidden, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        h = self.norm(x)
        return x + self.w3(F.silu(self.w1(h)) * self.w2(h))


class SwiGLUNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Linear(10, 16)
        self.layers = nn.Sequential(SwiGLU(16, 24, nn.RMSNorm(16)), SwiGLU(16, 20, nn.LayerNorm(16)))
        self.head = nn.Linear(16, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.layers(self.embed(x)))


class PositionalDropoutNet(nn.Module):
    """Learned positions, then functional dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Linear(10, 16)
        self.positions = nn.Parameter(torch.randn(6, 16))
        self.fc1 = nn.Linear(16, 24)
        self.fc2 = nn.Linear(24, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.embed(x) + self.positions
        x = F.dropout(x, 0.1, training=self.training)
        x = F.relu(self.fc1(x))
        x = F.dropout(x, p=0.5, training=self.training)
        return self.fc2(x.mean(1))


class TiedWeightsNet(nn.Module):
    """The embedding of 20 tokens is also the weight of the output layer."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(20, 16)
        self.fc1 = nn.Linear(16, 24)
        self.fc2 = nn.Linear(24, 16)
        self.head = nn.Linear(16, 20, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens)
        x = x + self.fc2(F.gelu(self.fc1(x)))
        return self.head(x)


class LSTMTail(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv1d(4, 8, 3, padding=1)
        self.bn = nn.BatchNorm1d(8)
        self.conv2 = nn.Conv1d(8, 10, 3, stride=2, padding=1)
        self.lstm = nn.LSTM(10, 12, batch_first=True)
        self.fc = nn.Linear(12, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.bn(self.conv1(x)))
        x = F.relu(self.conv2(x))
        states, _ = self.lstm(x.permute(0, 2, 1))
        return self.fc(states[:, -1])
