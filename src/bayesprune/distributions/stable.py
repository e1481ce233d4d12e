"""Elementary functions that keep their digits where the textbook form loses them."""

import inspect
import math
from typing import Any, cast

import torch
from torch import Tensor

UNIT_EPS = 2.0**-23
"""How close a relaxed draw and its probability may come to 0 and 1: the float32 machine epsilon, as in ``torch.distributions``."""


class _Log1mexp(torch.autograd.Function):
    """Spares the backward pass the branches of the forward: its derivative has one form that is accurate everywhere."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return torch.where(x > -math.log(2.0), torch.log(-torch.expm1(x)), torch.log1p(-torch.exp(x)))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor], _output: Tensor) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return -gradient / torch.expm1(-x)


# torch asks for the signature at every call, which takes longer than the computation on a processor; here it finds it ready.
_Log1mexp.forward.__signature__ = inspect.signature(_Log1mexp.forward)  # type: ignore[attr-defined]


def log1mexp(x: Tensor) -> Tensor:
    """log(1 - exp(x)) for x < 0, accurate at both ends (Maechler, 2012); its derivative is -1 / (exp(-x) - 1)."""
    return cast(Tensor, _Log1mexp.apply(x))  # type: ignore[no-untyped-call]


def logit_of_log(log_p: Tensor) -> Tensor:
    """The logit of p, from log p, held within the logits of ``UNIT_EPS`` and ``1 - UNIT_EPS``; no gradient flows beyond them."""
    low, high = math.log(UNIT_EPS), math.log1p(-UNIT_EPS)
    held = log_p.clamp(low, high)
    return held - log1mexp(held)


def log_erfcx(z: Tensor) -> Tensor:
    """log of the scaled complementary error function, exp(z^2) erfc(z), for z >= -1.

    Beyond z = 1000 by its asymptotic series: there the derivative of ``torch.special.erfcx`` has lost all digits.
    """
    far = z > 1e3
    near = torch.where(far, 1.0, z)
    distant = torch.where(far, z, 1e3)
    inverse_square = distant.square().reciprocal()
    series = torch.log1p(-0.5 * inverse_square * (1.0 - 1.5 * inverse_square)) - torch.log(distant) - 0.5 * math.log(math.pi)
    return torch.where(far, series, torch.log(torch.special.erfcx(near)))


def log_ndtr(x: Tensor) -> Tensor:
    """log Phi(x), with a gradient that is right at any distance from zero (that of ``torch.special.log_ndtr`` is not)."""
    tail = x < -1.0
    low = torch.where(tail, x, -1.0)
    high = torch.where(tail, 0.0, x)
    in_tail = log_erfcx(low * -math.sqrt(0.5)) - 0.5 * low.square() - math.log(2.0)
    return torch.where(tail, in_tail, torch.log1p(-0.5 * torch.special.erfc(high * math.sqrt(0.5))))
