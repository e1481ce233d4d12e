"""Elementary functions that keep their digits where the textbook form loses them."""

import inspect
import math
from collections.abc import Sequence
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


_FAR = 5.0
_NUMERATOR = (
    1.63153871373020978e-2,
    3.05326634961232344e-1,
    3.60344899949804439e-1,
    1.25781726111229246e-1,
    1.60837851487422766e-2,
    6.58749161529837803e-4,
)
_DENOMINATOR = (1.0, 2.56852019228982242, 1.87295284992346725, 5.27905102951428412e-1, 6.05183413124413191e-2, 2.33520497626869185e-3)


def log_erfcx(z: Tensor) -> Tensor:
    """log of the scaled complementary error function, exp(z^2) erfc(z), for z >= -1, in float64.

    Up to z = 5 as it is written; beyond, z exp(z^2) erfc(z) is 1/sqrt(pi) less a rational function of 1/z^2 (Cody, 1969). Made of
    elementary operations because compilers know no ``erfcx``, whose derivative in torch, besides, has lost all digits where z is large.

    References:
        Cody, "Rational Chebyshev approximations for the error function", Mathematics of Computation 23, 1969.
    """
    far = z > _FAR
    near, distant = torch.where(far, 1.0, z), torch.where(far, z, _FAR)
    w = distant.square().reciprocal()
    tail = 1.0 / math.sqrt(math.pi) - w * _polynomial(_NUMERATOR, w) / _polynomial(_DENOMINATOR, w)
    return torch.where(far, torch.log(tail) - torch.log(distant), near.square() + torch.log(torch.special.erfc(near)))


def _polynomial(coefficients: Sequence[float], x: Tensor) -> Tensor:
    """By Horner's rule, the highest power first."""
    value = torch.full_like(x, coefficients[0])
    for coefficient in coefficients[1:]:
        value = value * x + coefficient
    return value


def log_ndtr(x: Tensor) -> Tensor:
    """log Phi(x), with a gradient that is right at any distance from zero (that of ``torch.special.log_ndtr`` is not)."""
    tail = x < -1.0
    low = torch.where(tail, x, -1.0)
    high = torch.where(tail, 0.0, x)
    in_tail = log_erfcx(low * -math.sqrt(0.5)) - 0.5 * low.square() - math.log(2.0)
    return torch.where(tail, in_tail, torch.log1p(-0.5 * torch.special.erfc(high * math.sqrt(0.5))))
